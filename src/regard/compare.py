"""Several models on one data set under one budget: train or load them, measure them alike, write one report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.checkpoint.directory import RunDirectory
from regard.checkpoint.files import json_bytes, write_file
from regard.config.architecture import architecture
from regard.config.run import RunConfig
from regard.data.sources import Pairs
from regard.errors import UsageError
from regard.info import describe
from regard.pipeline import Translation, TranslationPipeline, load_translator
from regard.tasks.metrics import paired_bootstrap, scores_by_length, short_and_long, translation_scores
from regard.training.run import train_run
from regard.training.watch import Watcher
from regard.view.chart import heat_map
from regard.view.chosen import choose
from regard.view.report import Compared, Report

SHOWN_WORDS = (8, 14)  # words of the sentence that is shown, where none is given

Tell = Callable[[str], object]


@dataclass(frozen=True)
class Contender:
    """A model to compare: its name and its folder."""

    name: str
    folder: Path


def train_all(
    config: RunConfig, entries: Sequence[str], out: Path, watchers: Sequence[Watcher], tell: Tell
) -> list[Contender]:
    """Train a model of each architecture under the same budget; those that are finished already are kept."""
    if len(set(entries)) != len(entries):
        raise UsageError("an architecture is named twice: name each once")
    configs = {
        entry: config.override(architecture(entry)) for entry in entries
    }  # a wrong one is told before any trains
    made = []
    for number, (entry, own) in enumerate(configs.items(), 1):
        folder = out / entry.replace(":", "-")
        tell(f"{number} of {len(configs)}: {entry}")
        report = train_run(own, folder, watchers=watchers)
        if not report.finished:
            raise UsageError(f"{report.reason} stopped {entry} at step {report.step}: the same command goes on")
        made.append(Contender(entry, folder))
    return made


def compare(
    contenders: Sequence[Contender], test: Pairs, *, title: str, text: str = "", tell: Tell, threads: int = 0
) -> Report:
    """Translate the test set with every model and return the report; the same sentence is shown in each."""
    if len(contenders) < 2:
        raise UsageError("a comparison needs at least two models")
    place = _shown(test)
    sentence, reference = (text, "") if text else (test.source[place], test.target[place])
    measured = []
    for one in contenders:
        tell(f"{one.name}: translating {len(test):,} sentences")
        measured.append(_measure(one, test, sentence, threads))
    said = {one.name: found["said"] for one, found in zip(contenders, measured, strict=True)}
    sure = paired_bootstrap(said, test.target)
    models = []
    for one, found in zip(contenders, measured, strict=True):
        models.append(_compared(one, found, sure[one.name]))
    return Report(title, models, sentence, reference, {"test sentences": len(test)})


def _compared(one: Contender, found: dict[str, Any], sure: dict[str, Any]) -> Compared:
    return Compared(
        one.name,
        found["summary"],
        found["parameters"],
        found["scores"],
        sure["low"],
        sure["high"],
        sure["chance"],
        found["by_length"],
        found["decoding"],
        found["apart"],
        found["training"],
        found["minutes"],
        found["losses"],
        str(found["shown"]),
        _picture(found["shown"], found["looks"]),
    )


def _measure(one: Contender, test: Pairs, sentence: str, threads: int) -> dict[str, Any]:
    model: TranslationPipeline = load_translator(one.folder, threads=threads)
    known = describe(one.folder)
    model(test.source[0])  # the first call prepares what later ones find ready
    began = time.perf_counter()
    said = [str(text) for text in model(list(test.source), split=False)]
    seconds = time.perf_counter() - began
    history = _history(one.folder)
    return {
        "summary": known.model.summary() if known.model else "",
        "parameters": known.parameters,
        "scores": translation_scores(said, test.target),
        "apart": short_and_long(test.source, said, test.target),
        "by_length": scores_by_length(test.source, said, test.target),
        "decoding": len(said) / seconds,
        "said": said,
        "shown": model(sentence, split=False),
        "looks": bool(model.models[0].looks()),
        **history,
    }


def _history(folder: Path) -> dict[str, Any]:
    """Return what a run's own files tell of its training: speed, minutes, validation losses."""
    finished = RunDirectory(folder).read_run().get("finished")
    if not finished:
        return {"training": None, "minutes": None, "losses": []}
    seconds, tokens = float(finished["seconds"]), finished.get("tokens")
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    losses = [(float(event["step"]), float(event["loss"])) for event in events if event["event"] == "evaluate"]
    return {"training": tokens / seconds if tokens else None, "minutes": seconds / 60, "losses": losses}


def _shown(test: Pairs) -> int:
    """Return which sentence to show: the first of a length that fits a picture, or the first."""
    low, high = SHOWN_WORDS
    fitting = (number for number, text in enumerate(test.source) if low <= len(text.split()) <= high)
    return next(fitting, 0)


def _picture(said: Translation, looks: bool) -> str:
    """Return where a model looked, word by word; a model without attention has nothing to show."""
    if not looks or not said:
        return "" if looks else "<p>no attention: nothing to see</p>"
    chosen = choose(said.record(), words=True)
    rows = [unit.label for unit in chosen.rows]
    columns = [unit.label for unit in chosen.columns]
    return heat_map(chosen.table, rows, columns, title=f"where it looked while writing {said}")


def write(report: Report, out: Path) -> list[Path]:
    """Write the report as a page, as JSON and as Markdown; return the files."""
    contents = {
        "report.html": report.page().encode(),
        "report.json": json_bytes(report.to_dict()),
        "report.md": report.markdown().encode(),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_file(out / name, content)
    return [out / name for name in contents]
