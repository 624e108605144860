"""Training a classifier with words of its own on labelled texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.checkpoint.reader_folder import LoadedReader, load_reader
from regard.config.model import ClassifierConfig
from regard.config.run import RunConfig
from regard.data.labelled import Labelled, check_classes, counts, hold_out, listed, read_labelled
from regard.models import build
from regard.models.classifier import Classifier
from regard.tasks.classification import ClassificationTask, label_chances
from regard.tasks.encoding import balanced_weights
from regard.tasks.metrics import confusion, label_scores
from regard.tasks.perception import TextRows
from regard.training.job import Say, started
from regard.training.keeping import Measured, ModelEvaluator, measured_on, spread_indices
from regard.training.parts import Parts
from regard.training.reader_job import ReaderJob
from regard.training.trivial import majority_label
from regard.training.verdict import TrivialBaseline

HELD_OUT = "of the texts are held out, as many of each label"


@dataclass(frozen=True)
class Part:
    """Labelled texts as the model reads them."""

    given: Labelled
    rows: TextRows
    labels: NDArray[np.int64]
    wanted: list[str]  # names of the labels

    def __len__(self) -> int:
        return len(self.labels)


class ClassificationJob(ReaderJob[ClassifierConfig, "LabelEvaluator"]):
    """Labelled texts and the classifier that learns them."""

    name = "classify"

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        parts = Parts.of(config, read_labelled, self._check, hold_out, HELD_OUT)
        self.begin(parts, parts.train.texts)
        self.counts = counts(parts.train)
        self.train, self.valid = self._part(parts.train, "training"), self._part(parts.valid, "validation")
        self.test = None if parts.test is None else self._part(parts.test, "test")
        self.learn([part.rows for part in (self.train, self.valid, self.test) if part is not None])
        self.task = ClassificationTask(
            self.train.rows,
            self.train.labels,
            seed=config.training.seed,
            digest=parts.train.digest,
            weights=self._weights(),
        )
        self.model_config, self.reason = self.sized(config.classifier)
        self.width = self.model_config.encoder.width

    def _check(self, train: Labelled) -> None:
        self.names = check_classes(train, self.config.data.train[0])

    def _part(self, rows: Labelled, name: str) -> Part:
        labels = rows.numbers(self.names)
        read = self.perception.read(rows.texts)
        self.account(read, name)
        return Part(rows, read, labels, rows.labels)

    def _weights(self) -> NDArray[np.float32] | None:
        if self.config.classify.weights == "equal":
            return None
        return balanced_weights(np.bincount(self.train.labels, minlength=len(self.names)))

    # ---- what a run asks

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation texts only."""
        given = self.valid.given
        self.valid = self._part(given.chosen(spread_indices(len(given), share)), "validation")

    def model(self) -> Classifier:
        """Return the model with its first weights."""
        return started(build(self.model_config), self.config.training.seed)

    def evaluator(self, device: str) -> LabelEvaluator:
        """Return what measures weights."""
        return LabelEvaluator(self.model_config, self.valid, self.names, device)

    def lines(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        shown = listed([f"{label} {count:,}" for label, count in self.counts.items()], 12)
        tested = f", test {len(self.test):,}" if self.test is not None else ""
        return [
            f"data: {len(self.train):,} texts, {self.tokens:,} tokens; validation {len(self.valid):,} texts{tested}",
            f"labels: {len(self.names)} ({shown})",
            *self.model_lines(parameters),
        ]

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Accuracy of the most frequent label."""
        balanced = self.config.classify.weights == "balanced"
        return [majority_label(self.train.labels, self.valid.labels, self.names, balanced=balanced)]

    def kept(self) -> LoadedReader[ClassifierConfig]:
        """Return the run's model as it was written."""
        return load_reader(self.folder, ClassifierConfig, self.name)

    def conclude(self, evaluator: LabelEvaluator, say: Say) -> tuple[dict[str, Any], dict[str, Any]]:
        """Score validation and test texts."""
        metrics, facts = super().conclude(evaluator, say)
        if self.test is not None:
            metrics |= measured_on("test", evaluator.scores(self.test))
        return metrics, facts


class LabelEvaluator(ModelEvaluator[Classifier]):
    """Measures a classifier on validation texts."""

    def __init__(self, config: ClassifierConfig, valid: Part, names: Sequence[str], device: str) -> None:
        super().__init__(build(config), device)
        self.valid, self.names = valid, names

    def measured(self) -> Measured:
        """Return loss, accuracy and macro-F1 on validation texts."""
        chances = label_chances(self.model, self.valid.rows)
        metrics = _scores(chances, self.valid)
        said = chances.argmax(1)
        samples = [
            (self.valid.rows.texts[number], self.valid.wanted[number], self.names[said[number]])
            for number in range(min(2, len(self.valid)))
        ]
        return metrics, (round(metrics["accuracy"], 4), -metrics["loss"]), samples

    def scores(self, part: Part) -> dict[str, float]:
        """Return loss, accuracy and macro-F1 on other texts."""
        return _scores(label_chances(self.model, part.rows), part)


def _scores(chances: NDArray[np.float32], part: Part) -> dict[str, float]:
    right = chances[np.arange(len(part)), part.labels].astype(np.float64)
    loss = float(-np.log(np.maximum(right, 1e-12)).mean())
    found = label_scores(confusion(part.labels, chances.argmax(1), chances.shape[1]))
    return {"loss": loss, "accuracy": found["accuracy"], "macro_f1": found["macro_f1"]}
