"""Claims made checkable: train the models that a claim speaks of, measure them alike, say whether it holds here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from regard.checkpoint.directory import RunDirectory
from regard.checkpoint.files import json_bytes, make_folder, write_file
from regard.config.architecture import architecture
from regard.config.claim import MEASURES, ClaimConfig, Expectation
from regard.config.run import RunConfig
from regard.config.tasks import in_own_names, usual
from regard.data.made import make
from regard.data.sources import read_pairs
from regard.data.stories import read_stories
from regard.errors import ConfigError, UsageError
from regard.pipeline import StoryPipeline, TranslationPipeline, load
from regard.tasks.metrics import translation_scores
from regard.training.run import train_run
from regard.training.watch import Watcher
from regard.view.verdict import Found, Verdict

ROWS, TESTED = 20_000, 500  # made rows, where a claim gives no numbers
LOOKED_AT = 50  # test sentences whose heads are compared
Tell = Callable[[str], object]


@dataclass(frozen=True)
class Files:
    """What models are trained and measured on."""

    train: Sequence[str]
    test: Sequence[str]
    valid: Sequence[str] = ()


def check_claim(
    config: ClaimConfig,
    out: Path,
    files: Files | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (),
    watchers: Sequence[Watcher] = (),
    tell: Tell = lambda text: None,
) -> Verdict:
    """Train every model with every seed, measure it, and return the verdict; finished runs are not trained again."""
    if not config.make and files is None:
        raise UsageError(f"this claim needs data: give --train and --test files ({config.about})")
    files = files or _made(config.make, out / "data")
    seeds = [*(seeds or config.seeds)]
    configs = {  # a wrong setting is told before anything trains
        name: [_run(config, own, files, seed, changes or {}) for seed in seeds] for name, own in config.models.items()
    }
    measured: dict[str, list[float]] = {}
    for name, runs in configs.items():
        for seed, run in zip(seeds, runs, strict=True):
            folder = out / f"{name}-{seed}"
            tell(f"{name}, seed {seed}")
            report = train_run(run, folder, watchers=watchers)
            if not report.finished:
                raise UsageError(f"{report.reason} stopped {name} at {report.step}: the same command goes on")
            measured.setdefault(name, []).append(_measured(config, folder, files))
            tell(f"{name}, seed {seed}: {measured[name][-1]:.4g} {MEASURES[config.measure]}")
    return verdict(config, measured, seeds)


def verdict(config: ClaimConfig, measured: Mapping[str, Sequence[float]], seeds: Sequence[int]) -> Verdict:
    """Return what the measures say of the claim; the means over seeds decide."""
    means = {name: mean(values) for name, values in measured.items()}
    found = [_found(wish, means, measured) for wish in config.expectations]
    return Verdict(config.claim, config.said_by, config.about, MEASURES[config.measure], dict(measured), seeds, found)


def _found(wish: Expectation, means: Mapping[str, float], measured: Mapping[str, Sequence[float]]) -> Found:
    value = wish.value(means)
    alone = [
        wish.holds(wish.value(dict(zip(measured, one, strict=True)))) for one in zip(*measured.values(), strict=True)
    ]
    return Found(wish.text, value, abs(value - wish.bound), wish.holds(value), sum(alone), len(alone))


def _run(config: ClaimConfig, own: Mapping[str, Any], files: Files, seed: int, changes: Mapping[str, Any]) -> RunConfig:
    """Return one run: shared settings, then the model's own, then those of the command line."""
    given = {**config.settings, **own}
    if "model" in given and isinstance(given["model"], str):
        given |= architecture(given.pop("model"))
    task = str(given.get("task", "translate"))
    given |= {**changes, "training.seed": seed, "data.train": list(files.train), "data.valid": list(files.valid)}
    return RunConfig().override({**usual(task), **in_own_names(task, given)})


def _made(wishes: Mapping[str, Any], folder: Path) -> Files:
    """Write made data into a folder; what is there already is the same."""
    known = {"kind", "count", "tested", "lengths", "seed"}
    if unknown := set(wishes) - known:
        raise ConfigError(f"make: unknown {', '.join(sorted(unknown))}: there are {', '.join(sorted(known))}")
    lengths = tuple(wishes["lengths"]) if "lengths" in wishes else None
    make_folder(folder)
    names = {}
    for split, count in (("train", wishes.get("count", ROWS)), ("test", wishes.get("tested", TESTED))):
        rows = make(wishes["kind"], count, wishes.get("seed", 1), split=split, lengths=lengths)
        names[split] = [str(folder / f"{split}.tsv")]
        write_file(folder / f"{split}.tsv", "".join(f"{source}\t{target}\n" for source, target in rows).encode())
    return Files(names["train"], names["test"])


def _measured(config: ClaimConfig, folder: Path, files: Files) -> float:
    """Return what a claim measures of one finished run."""
    if config.measure == "minutes_to_bleu":
        return _minutes_to(config.bleu, folder)
    model = load(folder)
    if isinstance(model, StoryPipeline):
        if config.measure != "error":
            raise ConfigError(f"measure must be error for stories, not {config.measure}")
        return model.evaluate(read_stories(files.test), refuse=False)[0].error
    if not isinstance(model, TranslationPipeline) or config.measure == "error":
        raise ConfigError(f"{config.measure} is not measured of what this claim trains")
    pairs = read_pairs(files.test, RunConfig().data.read)
    if config.measure == "heads_apart":
        return _heads_apart(model, pairs.source[:LOOKED_AT])
    said = [str(text) for text in model(list(pairs.source), split=False)]
    return float(translation_scores(said, pairs.target)[config.measure])


def _minutes_to(bleu: float, folder: Path) -> float:
    """Return the minutes of training after which validation BLEU first was this high; infinite where it never was.

    A log holds no times, so that it is the same for the same run: an update counts as its share of the whole.
    """
    whole = RunDirectory(folder).read_run()["finished"]
    for line in (folder / "log.jsonl").read_text("utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "evaluate" and event["bleu"] >= bleu:
            return float(event["step"] / whole["step"] * whole["seconds"] / 60)
    return float("inf")


def _heads_apart(model: TranslationPipeline, texts: Sequence[str]) -> float:
    """Return how far the heads of a layer look apart: half the summed difference of their weights, over all pairs."""
    apart: list[float] = []
    for said in model(list(texts), split=False):
        for sight in said.attention.values():
            for one, other in combinations(sight.weights, 2):
                apart.append(float(np.abs(one - other).sum(-1).mean()) / 2)
    if not apart:
        raise ConfigError("heads_apart needs models with several heads")
    return mean(apart)


def write(found: Verdict, out: Path) -> list[Path]:
    """Write the verdict as JSON and as Markdown; return the files."""
    contents = {"claim.json": json_bytes(found.to_dict()), "claim.md": found.markdown().encode()}
    for name, content in contents.items():
        write_file(out / name, content)
    return [out / name for name in contents]
