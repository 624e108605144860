"""The demo: dates in twenty languages, made here, learned until validation is good, and where the model looked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from regard import __version__
from regard.checkpoint.atomic import write_file
from regard.config.data import DataConfig, TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import StackConfig, TransformerConfig
from regard.config.runs import RunConfig
from regard.config.training import TrainingConfig
from regard.data.synthetic import SyntheticPair, generate_rows
from regard.engine.library import unavailable_reason
from regard.formatting import format_duration
from regard.pipeline.load import load_translator
from regard.pipeline.translation import Translation
from regard.tasks.metrics import exact_match
from regard.training.listeners import Listener
from regard.training.run import train_run
from regard.training.verdict import Verdict
from regard.view.page import page
from regard.view.record.record import Record
from regard.view.terminal import render_record

SECONDS = 300.0  # limit of training; it takes a minute or less where nothing else runs
GOAL = 99.0  # per cent of the unseen dates exactly right: below it, the demo says that it failed
STOP_AT = 99.8  # validation BLEU: at most one of the 500 dates is wrong
WARMUP, EVALUATE_EVERY = 100, 100  # updates
PAIRS = {"train": 100_000, "valid": 500}
UNSEEN = 1000  # dates of the test, none of them in the training data in any language
SAMPLES = 5
SHOWN, SHOWN_TARGET = "viernes, 3 de marzo de 2017", "2017-03-03"
PAGE = "attention.html"


def demo_config(folder: Path, seconds: float) -> RunConfig:
    """Return the demo's run: a small model of characters, trained until validation is good, for `seconds` at most.

    Neither the warm-up nor the rate after it depends on the time, so a busy machine needs longer for the same updates.
    One thread: products this small gain little from a second one, and a busy machine cannot stall them.
    """
    return RunConfig(
        preset="custom",
        data=DataConfig(train=(str(folder / "train.tsv"),), valid=(str(folder / "valid.tsv"),)),
        tokenizer=TokenizerConfig(kind="characters"),
        model=TransformerConfig(
            hidden_size=64,
            encoder=StackConfig(num_layers=2, num_heads=4, feed_forward_size=256),
            decoder=StackConfig(num_layers=1, num_heads=4, feed_forward_size=256),
            dropout=0.0,
        ),
        training=TrainingConfig(
            minutes=seconds / 60,
            batch_tokens=1024,
            stop_at=STOP_AT,
            evaluate_every=EVALUATE_EVERY,
            warmup_steps=WARMUP,
            learning_rate=1.5e-2,
            label_smoothing=0.0,
            precision="float32",
            threads=1,
        ),
        decoding=DecodingConfig(beam=1),
    )


@dataclass(frozen=True)
class DemoResult:
    """What the demo has to show."""

    folder: Path  # the model's
    page: Path
    exact_match: float  # percent of the unseen dates
    by_language: dict[str, tuple[int, int]]  # right, all
    samples: list[tuple[SyntheticPair, str]]
    record: Record
    seconds: float  # limit of training
    verdict: Verdict | None  # of the training run

    @property
    def reached(self) -> bool:
        """Whether enough of the unseen dates are right."""
        return self.exact_match >= GOAL

    @property
    def translated(self) -> str:
        """The translation of the date that is shown."""
        return self.record.texts["target"].text

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        languages = {name: {"right": right, "of": count} for name, (right, count) in self.by_language.items()}
        return {
            "folder": str(self.folder),
            "page": str(self.page),
            "exact_match": self.exact_match,
            "goal_reached": self.reached,
            "verdict": self.verdict.to_dict() if self.verdict is not None else None,
            "shown": {"source": SHOWN, "translation": self.translated, "right": self.translated == SHOWN_TARGET},
            "by_language": languages,
            "samples": [{"source": row.source, "translation": said} for row, said in self.samples],
        }

    def lines(self, *, colour: bool = False, command: str = "regard") -> list[str]:
        """Return it for people; the last lines say how many dates came out right, and what to do with `command`."""
        languages = [f"{name} {right}/{count}" for name, (right, count) in self.by_language.items()]
        wide = max(len(row.source) for row, _ in self.samples)
        return [
            "",
            *(f"  {row.source:<{wide}} → {said}" for row, said in self.samples),
            "",
            f"where it looked while it wrote each part of {self.translated}{self._correction()}:",
            "",
            render_record(self.record, colour=colour),
            "",
            f"unseen dates exactly right, by language: {', '.join(languages)}",
            f"page: {self.page} (open it in a browser: every layer, every head)",
            f"exact match: {self.exact_match:.1f} %",
            "",
            *(self._next_steps(command) if self.reached else self._failure(command)),
        ]

    def _correction(self) -> str:
        """Say that the date that is shown is wrong, if it is."""
        return "" if self.translated == SHOWN_TARGET else f", which is wrong: {SHOWN} is {SHOWN_TARGET}"

    def _next_steps(self, command: str) -> list[str]:
        return [
            "try next:",
            f'  {command} translate {self.folder} "12 de octubre de 1992"',
            f"  {command} info {self.folder}",
            f"  {command} train translate YOUR.tsv --out runs/mine    # two columns: source, tab, target",
        ]

    def _failure(self, command: str) -> list[str]:
        """Say that the model is not good enough and what to do."""
        other = self.folder.parent.with_name(f"{self.folder.parent.name}-longer")
        verdict = [self.verdict.text] if self.verdict is not None and self.verdict.text else []
        return [
            *verdict,
            f"not good enough: {self.exact_match:.1f} % of the unseen dates are right, {GOAL:g} % were the goal; the time "
            f"limit of {format_duration(self.seconds)} was too short on this machine, or it was busy. Give it more time:",
            f"  {command} demo --seconds {math.ceil(max(SECONDS, 4 * self.seconds))} --out {other}",
        ]


def run_demo(
    folder: Path, seconds: float, listeners: Sequence[Listener], notify: Callable[[str], object]
) -> DemoResult:
    """Make the data, train, test on unseen dates, and write the page; a finished run is only tested again."""
    data = folder / "data"
    for name, count in PAIRS.items():
        if not (data / f"{name}.tsv").exists():
            notify(f"making {count:,} dates for {name}")
            _write_rows(data / f"{name}.tsv", generate_rows("dates", count, split=name))
    model_folder = folder / "model"
    report = train_run(demo_config(data, seconds), model_folder, listeners=listeners)
    model = load_translator(model_folder)
    unseen = list(generate_rows("dates", UNSEEN, split="test"))
    if why := unavailable_reason():
        notify(f"the engine is absent, so torch translates: {why}")
    notify(f"translating {UNSEEN:,} dates never seen in training, in any language")
    said: list[Translation] = model.translate([row.source for row in unseen], split=False)
    chosen = _one_of_each_language(unseen)
    records = [
        _record(model(SHOWN, split=False), "es"),
        *(_record(said[number], unseen[number].group) for number in chosen),
    ]
    place = folder / PAGE
    write_file(place, page(records, title="Dates in twenty languages").encode())
    return DemoResult(
        model_folder,
        place,
        exact_match(said, [row.target for row in unseen]),
        _by_language(unseen, said),
        [(unseen[number], str(said[number])) for number in chosen[:SAMPLES]],
        records[0],
        seconds=seconds,
        verdict=report.verdict,
    )


def _write_rows(path: Path, rows: Iterable[SyntheticPair]) -> None:
    write_file(path, "".join(f"{row.source}\t{row.target}\n" for row in rows).encode())


def _one_of_each_language(rows: Sequence[SyntheticPair]) -> list[int]:
    """Return the number of the first row in each language."""
    return sorted({row.group: number for number, row in reversed(list(enumerate(rows)))}.values())


def _record(said: Translation, language: str) -> Record:
    made = {"model": "dates", "version": __version__, "when": datetime.now(UTC).isoformat(timespec="seconds")}
    return replace(said.record(languages=(language, "")), made=made)


def _by_language(rows: Sequence[SyntheticPair], said: Sequence[str]) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for row, text in sorted(zip(rows, said, strict=True), key=lambda pair: pair[0].group):
        right, count = counts.get(row.group, (0, 0))
        counts[row.group] = (right + (row.target == text), count + 1)
    return counts
