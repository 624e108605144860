"""The demo: dates in twenty languages, made here, learned in about a minute, and where the model looked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from regard import __version__
from regard.checkpoint.files import write_file
from regard.config.data import DataConfig, TokenizerConfig
from regard.config.decoding import DecodingConfig
from regard.config.model import StackConfig, TranslatorConfig
from regard.config.run import RunConfig
from regard.config.training import TrainingConfig
from regard.data.made import Made, make_rows
from regard.engine.library import absence
from regard.pipeline import Translation, load_translator
from regard.tasks.metrics import exact_match
from regard.training.run import train_run
from regard.training.watch import Watcher
from regard.view.page import page
from regard.view.record import Record
from regard.view.terminal import draw

SECONDS = 60.0  # of training
PAIRS = {"train": 100_000, "valid": 500}
UNSEEN = 1000  # dates of the test, none of them in the training data in any language
SAMPLES = 5
SHOWN = "viernes, 3 de marzo de 2017"
PAGE = "attention.html"


def demo_config(folder: Path, seconds: float) -> RunConfig:
    """Return the demo's run: a small model of characters, on a budget of seconds.

    One thread: products this small gain little from a second one, and a busy machine cannot stall them.
    """
    return RunConfig(
        preset="custom",
        data=DataConfig(train=(str(folder / "train.tsv"),), valid=(str(folder / "valid.tsv"),)),
        tokenizer=TokenizerConfig(kind="characters"),
        model=TranslatorConfig(
            width=64,
            encoder=StackConfig(layers=2, heads=4, feedforward=256),
            decoder=StackConfig(layers=1, heads=4, feedforward=256),
            dropout=0.0,
        ),
        training=TrainingConfig(
            minutes=seconds / 60,
            batch_tokens=1024,
            learning_rate=1.5e-2,
            label_smoothing=0.0,
            precision="float32",
            threads=1,
        ),
        decoding=DecodingConfig(beam=1),
    )


@dataclass(frozen=True)
class Shown:
    """What the demo has to show."""

    folder: Path  # the model's
    page: Path
    exact: float  # percent of the unseen dates
    by_language: dict[str, tuple[int, int]]  # right, all
    samples: list[tuple[Made, str]]
    record: Record

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        languages = {name: {"right": right, "of": count} for name, (right, count) in self.by_language.items()}
        return {
            "folder": str(self.folder),
            "page": str(self.page),
            "exact_match": self.exact,
            "by_language": languages,
            "samples": [{"source": row.source, "translation": said} for row, said in self.samples],
        }

    def lines(self, *, colour: bool = False, command: str = "regard") -> list[str]:
        """Return it for people; the last lines say how many dates came out right, and what to try with `command`."""
        languages = [f"{name} {right}/{count}" for name, (right, count) in self.by_language.items()]
        wide = max(len(row.source) for row, _ in self.samples)
        return [
            "",
            *(f"  {row.source:<{wide}} → {said}" for row, said in self.samples),
            "",
            f"where it looked while it wrote each part of {self.record.texts['target'].text}:",
            "",
            draw(self.record, colour=colour),
            "",
            f"unseen dates exactly right, by language: {', '.join(languages)}",
            f"page: {self.page} (open it in a browser: every layer, every head)",
            f"exact match: {self.exact:.1f} %",
            "",
            "try next:",
            f'  {command} translate {self.folder} "12 de octubre de 1992"',
            f"  {command} info {self.folder}",
            f"  {command} train translate YOUR.tsv --out runs/mine    # two columns: source, tab, target",
        ]


def run_demo(folder: Path, seconds: float, watchers: Sequence[Watcher], tell: Callable[[str], object]) -> Shown:
    """Make the data, train, test on unseen dates, and write the page; a finished run is only tested again."""
    data = folder / "data"
    for name, count in PAIRS.items():
        if not (data / f"{name}.tsv").exists():
            tell(f"making {count:,} dates for {name}")
            _write_rows(data / f"{name}.tsv", make_rows("dates", count, split=name))
    model_folder = folder / "model"
    train_run(demo_config(data, seconds), model_folder, watchers=watchers)
    model = load_translator(model_folder)
    unseen = list(make_rows("dates", UNSEEN, split="test"))
    if why := absence():
        tell(f"the engine is absent, so torch translates: {why}")
    tell(f"translating {UNSEEN:,} dates never seen in training, in any language")
    said: list[Translation] = model.translate([row.source for row in unseen], split=False)
    chosen = _one_of_each_language(unseen)
    records = [
        _record(model(SHOWN, split=False), "es"),
        *(_record(said[number], unseen[number].group) for number in chosen),
    ]
    place = folder / PAGE
    write_file(place, page(records, title="Dates in twenty languages").encode())
    return Shown(
        model_folder,
        place,
        exact_match(said, [row.target for row in unseen]),
        _by_language(unseen, said),
        [(unseen[number], str(said[number])) for number in chosen[:SAMPLES]],
        records[0],
    )


def _write_rows(path: Path, rows: Iterable[Made]) -> None:
    write_file(path, "".join(f"{row.source}\t{row.target}\n" for row in rows).encode())


def _one_of_each_language(rows: Sequence[Made]) -> list[int]:
    """Return the number of the first row in each language."""
    return sorted({row.group: number for number, row in reversed(list(enumerate(rows)))}.values())


def _record(said: Translation, language: str) -> Record:
    made = {"model": "dates", "version": __version__, "when": datetime.now(UTC).isoformat(timespec="seconds")}
    return replace(said.record(languages=(language, "")), made=made)


def _by_language(rows: Sequence[Made], said: Sequence[str]) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for row, text in sorted(zip(rows, said, strict=True), key=lambda pair: pair[0].group):
        right, count = counts.get(row.group, (0, 0))
        counts[row.group] = (right + (row.target == text), count + 1)
    return counts
