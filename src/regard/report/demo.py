"""The demo: train a small model on synthetic dates in twenty languages, test it, and show its attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from regard import __version__
from regard.checkpoint.atomic import write_file
from regard.config.data import DataConfig, TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import StackConfig, TransformerConfig
from regard.config.task_runs import TranslateRun
from regard.config.training import TrainingConfig
from regard.data.synthetic import SyntheticPair, generate_rows
from regard.engine.library import unavailable_reason
from regard.formatting import format_duration
from regard.pipeline.load import load_translator
from regard.pipeline.translation_result import Translation
from regard.report.json_output import DemoResultDict, LanguageCountDict
from regard.tasks.metrics import exact_match
from regard.training.listeners import Listener
from regard.training.run import train_run
from regard.training.verdict import Verdict
from regard.view.page import page
from regard.view.record.record import Record
from regard.view.terminal import render_record

MAX_SECONDS = 300.0  # of training; an idle machine needs a minute or less
GOAL = 99.0  # exact match on the test dates in percent; below it the demo reports a failure
STOP_AT = 99.8  # validation BLEU: at most one of the 500 dates is wrong
WARMUP_STEPS = 100
EVALUATE_EVERY = 100  # updates
NUM_PAIRS = {"train": 100_000, "valid": 500}
NUM_TEST_DATES = 1000  # none of them is in the training data in any language
NUM_SAMPLES = 5
EXAMPLE_SOURCE = "viernes, 3 de marzo de 2017"
EXAMPLE_TARGET = "2017-03-03"
PAGE = "attention.html"


def demo_config(folder: Path, max_seconds: float) -> TranslateRun:
    """Config of a small character model, trained until validation is good or `max_seconds` are over.

    Neither the warm-up nor the learning rate after it depends on time: a busy machine needs longer for the same
    updates. Matrix products this small gain little from a second thread, and one thread cannot be stalled by another.
    """
    return TranslateRun(
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
            minutes=max_seconds / 60,
            batch_tokens=1024,
            stop_at=STOP_AT,
            evaluate_every=EVALUATE_EVERY,
            warmup_steps=WARMUP_STEPS,
            learning_rate=1.5e-2,
            label_smoothing=0.0,
            precision="float32",
            threads=1,
        ),
        decoding=DecodingConfig(beam=1),
    )


@dataclass(frozen=True)
class DemoResult:
    """Test results, samples and attention of the demo."""

    folder: Path  # of the model
    page: Path
    exact_match: float  # percent of the test dates
    by_language: dict[str, tuple[int, int]]  # correct, total
    samples: list[tuple[SyntheticPair, str]]  # with their translations
    record: Record  # attention on the example
    max_seconds: float  # limit of training
    verdict: Verdict | None  # of the training run

    @property
    def has_reached_goal(self) -> bool:
        """Whether enough test dates are correct."""
        return self.exact_match >= GOAL

    @property
    def example_translation(self) -> str:
        """Translation of the example."""
        return self.record.texts["target"].text

    def to_dict(self) -> DemoResultDict:
        """The figures as plain values."""
        translation = self.example_translation
        by_language: dict[str, LanguageCountDict] = {
            name: {"correct": correct, "total": total} for name, (correct, total) in self.by_language.items()
        }
        return {
            "folder": str(self.folder),
            "page": str(self.page),
            "exact_match": self.exact_match,
            "goal_reached": self.has_reached_goal,
            "verdict": self.verdict.to_dict() if self.verdict is not None else None,
            "example": {
                "source": EXAMPLE_SOURCE,
                "translation": translation,
                "correct": translation == EXAMPLE_TARGET,
            },
            "by_language": by_language,
            "samples": [{"source": pair.source, "translation": text} for pair, text in self.samples],
        }

    def lines(self, *, colour: bool = False, command: str = "regard") -> list[str]:
        """Format for reading; the last lines have the exact match and the next steps with `command`."""
        languages = [f"{name} {correct}/{total}" for name, (correct, total) in self.by_language.items()]
        width = max(len(pair.source) for pair, _ in self.samples)
        return [
            "",
            *(f"  {pair.source:<{width}} → {translation}" for pair, translation in self.samples),
            "",
            f"attention for each part of {self.example_translation}{self._correction()}:",
            "",
            render_record(self.record, colour=colour),
            "",
            f"test dates exactly right, by language: {', '.join(languages)}",
            f"page: {self.page} (open it in a browser: every layer, every head)",
            f"exact match: {self.exact_match:.1f} %",
            "",
            *(self._next_steps(command) if self.has_reached_goal else self._failure(command)),
        ]

    def _correction(self) -> str:
        """Correct translation of the example, if the model is wrong."""
        if self.example_translation == EXAMPLE_TARGET:
            return ""
        return f", which is wrong: {EXAMPLE_SOURCE} is {EXAMPLE_TARGET}"

    def _next_steps(self, command: str) -> list[str]:
        return [
            "try next:",
            f'  {command} translate {self.folder} "12 de octubre de 1992"',
            f"  {command} info {self.folder}",
            f"  {command} train translate YOUR.tsv --out runs/mine    # two columns: source, tab, target",
        ]

    def _failure(self, command: str) -> list[str]:
        """Report that the model is not good enough, and the command to train longer."""
        longer_folder = self.folder.parent.with_name(f"{self.folder.parent.name}-longer")
        longer_seconds = math.ceil(max(MAX_SECONDS, 4 * self.max_seconds))
        lines = []
        if self.verdict is not None and self.verdict.text:
            lines.append(self.verdict.text)
        lines.append(
            f"not good enough: {self.exact_match:.1f} % of the test dates are right, the goal is {GOAL:g} %; the time "
            f"limit of {format_duration(self.max_seconds)} was too short on this machine, or it was busy. Train longer:"
        )
        lines.append(f"  {command} demo --seconds {longer_seconds} --out {longer_folder}")
        return lines


def run_demo(
    folder: Path, max_seconds: float, listeners: Sequence[Listener], notify: Callable[[str], object]
) -> DemoResult:
    """Generate data, train, test on unseen dates, and write the page; a finished run is only tested again."""
    data_folder = folder / "data"
    for split, count in NUM_PAIRS.items():
        path = data_folder / f"{split}.tsv"
        if not path.exists():
            notify(f"generating {count:,} dates for {split}")
            _write_pairs(path, generate_rows("dates", count, split=split))
    model_folder = folder / "model"
    report = train_run(demo_config(data_folder, max_seconds), model_folder, listeners=listeners)
    model = load_translator(model_folder)
    test_pairs = list(generate_rows("dates", NUM_TEST_DATES, split="test"))
    reason = unavailable_reason()
    if reason:
        notify(f"the engine is unavailable, torch translates: {reason}")
    notify(f"translating {NUM_TEST_DATES:,} dates that are not in the training data, in any language")
    translations: list[Translation] = model.translate([pair.source for pair in test_pairs], split=False)
    indices = _first_of_each_language(test_pairs)
    example = _record_translation(model(EXAMPLE_SOURCE, split=False), "es")
    records = [example]
    records += [_record_translation(translations[index], test_pairs[index].group) for index in indices]
    page_path = folder / PAGE
    write_file(page_path, page(records, title="Dates in twenty languages").encode())
    return DemoResult(
        model_folder,
        page_path,
        exact_match=exact_match(translations, [pair.target for pair in test_pairs]),
        by_language=_count_by_language(test_pairs, translations),
        samples=[(test_pairs[index], str(translations[index])) for index in indices[:NUM_SAMPLES]],
        record=example,
        max_seconds=max_seconds,
        verdict=report.verdict,
    )


def _write_pairs(path: Path, pairs: Iterable[SyntheticPair]) -> None:
    write_file(path, "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs).encode())


def _first_of_each_language(pairs: Sequence[SyntheticPair]) -> list[int]:
    """Index of the first pair in each language, in increasing order."""
    first: dict[str, int] = {}
    for index, pair in enumerate(pairs):
        first.setdefault(pair.group, index)
    return list(first.values())


def _record_translation(translation: Translation, language: str) -> Record:
    provenance = {"model": "dates", "version": __version__, "when": datetime.now(UTC).isoformat(timespec="seconds")}
    return replace(translation.record(languages=(language, "")), provenance=provenance)


def _count_by_language(pairs: Sequence[SyntheticPair], translations: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Numbers of correct translations and of all translations, by language in alphabetical order."""
    counts: dict[str, tuple[int, int]] = {}
    for pair, translation in sorted(zip(pairs, translations, strict=True), key=lambda entry: entry[0].group):
        correct, total = counts.get(pair.group, (0, 0))
        counts[pair.group] = (correct + (pair.target == translation), total + 1)
    return counts
