"""Translating: one model with made-up weights for everybody, and translations as long as their sources.

The model never ends a text by itself (its bias forbids it), so whoever translates writes as many tokens as are asked
for: the source's, and one step for the end. Ours is given texts, peers are given tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from regard.bench import cost, work
from regard.bench.child import Job, seconds
from regard.bench.measure import Task
from regard.bench.settings import Size
from regard.checkpoint.model_folder import save_model
from regard.config.decoding import DecodingConfig
from regard.convert import convert
from regard.models import build
from regard.models.base import start_weights

TASKS = {  # name → beam, and whether sentences come one by one
    "greedy": (1, False),
    "beam 4": (4, False),
    "lone greedy": (1, True),
    "lone beam 4": (4, True),
}
NEVER = -1e4  # bias of tokens that are never written
LAYOUTS = {"transformers": "huggingface", "ctranslate2": "ctranslate2"}  # library → what `convert` calls it
BATCHES = (32, 64, 128)  # sentences together that peers choose from


def make_models(room: Path, size: Size, libraries: Sequence[str]) -> None:
    """Write one model for us, and the same weights for each library that reads another layout."""
    config = size.config(norm="after", output_bias=True)
    model = build(config)
    start_weights(model, 1)
    with torch.no_grad():
        assert model.output_bias is not None
        model.output_bias[[config.pad, config.end, config.start]] = NEVER
    words = work.tokenizer(size.vocabulary)
    save_model(
        room / "regard",
        config,
        model.state_dict(),
        tokenizers={"source": words, "target": words},
        decoding=DecodingConfig(),
        task={},
        card="# Made-up weights, for speed alone\n",
    )
    for library in libraries:
        if library in LAYOUTS and not (room / library).exists():
            convert(room / "regard", room / library, to=LAYOUTS[library])


def facts(size: Size, room: Path, tasks: Sequence[str]) -> dict[str, object]:
    """Return what contestants need to know."""
    return {
        "size": asdict(size),
        "folder": str(room),
        "tasks": list(tasks),
        "lengths": work.sentence_lengths(size.sentences, seed=7)[0].tolist(),
        "lone": work.sentence_lengths(size.lone, seed=3)[0].tolist(),
    }


def tasks(size: Size, given: dict[str, object]) -> list[Task]:
    """Return what is measured."""
    made = []
    for name in TASKS:
        if name in given["tasks"]:  # type: ignore[operator]
            beam, lone = TASKS[name]
            lengths: list[int] = given["lone" if lone else "lengths"]  # type: ignore[assignment]
            kind, unit = ("latency", "ms/sentence") if lone else ("translation", "sentences/s")
            tokens = sum(length + 2 for length in lengths) / len(lengths)
            bench = f"{kind} {size.name} {name.removeprefix('lone ')}"
            made.append(Task(name, bench, unit, lone, tokens, cost.translation(size, lengths, beam)))
    return made


def folder(job: Job, library: str) -> Path:
    """Return where a library's copy of the model is."""
    return Path(job.facts["folder"]) / library


def lengths(job: Job, task: str) -> list[int]:
    """Return the lengths of the sentences of a task."""
    found: list[int] = job.facts["lone" if TASKS[task][1] else "lengths"]
    return found


def texts(job: Job, task: str) -> list[str]:
    """Return the sentences of a task."""
    return work.texts(lengths(job, task), job.facts["size"]["vocabulary"])


def rows(job: Job, task: str) -> list[list[int]]:
    """Return the sentences of a task as token numbers, each with its end."""
    drawn = work.drawn_rows(lengths(job, task), job.facts["size"]["vocabulary"], seed=7)
    return [[*row.tolist(), work.END] for row in drawn]


def batches(rows: Sequence[Sequence[int]], size: int) -> list[tuple[list[Sequence[int]], int]]:
    """Return rows of like length together, and for each batch how many tokens are written: the mean, and the end.

    >>> batches([[5, 6, 1], [7, 1], [8, 9, 9, 1]], 2)
    [([[8, 9, 9, 1], [5, 6, 1]], 5), ([[7, 1]], 3)]
    """
    ordered = sorted(rows, key=len, reverse=True)
    parts = [list(ordered[first : first + size]) for first in range(0, len(ordered), size)]
    return [(part, round(sum(map(len, part)) / len(part)) + 1) for part in parts]


def batch_sizes(job: Job) -> Sequence[int]:
    """Return the sizes of batches that peers try; a quick run tries one."""
    return BATCHES[1:2] if job.facts.get("quick") else BATCHES


def value(run: Callable[[], object], task: str, job: Job) -> float:
    """Run a task and return its value: sentences a second, or milliseconds of a lone sentence."""
    taken, count = seconds(run), len(lengths(job, task))
    return 1000 * taken / count if TASKS[task][1] else count / taken
