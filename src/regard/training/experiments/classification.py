"""Fine-tuning an encoder to classify: one label a text, several, or labels of pairs of texts.

Training a classifier with words of its own on labelled texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.checkpoint.native import LoadedRnnText, load_rnn_text
from regard.config.rnn_models import RnnClassifierConfig
from regard.config.runs import RunConfig
from regard.data.labelled import LabelledTexts, check_labels, hold_out_texts, label_counts, read_labelled
from regard.formatting import format_names
from regard.models import build_model
from regard.models.bert import Bert
from regard.models.rnn_text import RnnClassifier
from regard.tasks.baselines import BagOfWordsBaseline, ScoreGain, f1_gain, paired_gain
from regard.tasks.calibration import (
    BINS,
    calibration_error,
    fit_temperature,
    fit_thresholds,
    label_loss,
    multi_label_f1,
    multi_label_loss,
    sigmoid_probabilities,
    softmax_probabilities,
)
from regard.tasks.classification import ClassificationObjective, RnnClassificationObjective, label_probabilities
from regard.tasks.losses import balanced_weights
from regard.tasks.metrics import confusion_matrix, label_scores
from regard.tasks.rnn_text import RnnTexts
from regard.tasks.windows import EncodedTexts, encode_texts, text_logits
from regard.training.experiments.base import (
    DataSplits,
    EvaluationResult,
    ModelEvaluator,
    Notify,
    initialize_model,
    prefix_metrics,
    report_gain,
    spread_indices,
)
from regard.training.experiments.fine_tuning import FineTuningExperiment
from regard.training.experiments.rnn_text import RnnTextExperiment
from regard.training.trivial_baselines import constant_labels, majority_label
from regard.training.verdict import TrivialBaseline

Scores = NDArray[np.float32]


@dataclass(frozen=True)
class LabelledSplit:
    """Labelled texts as the encoder reads them."""

    examples: LabelledTexts
    rows: EncodedTexts
    targets: NDArray[Any]  # [texts], or marks [texts, labels]


class ClassificationExperiment(FineTuningExperiment):
    """Labelled texts and the encoder that learns them."""

    name, head, passes, batch_rows = "classify", "label", 3.0, 32

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        parts = DataSplits.read(config, read_labelled, self._check, hold_out_texts, HELD_OUT)
        self.prepare(parts)
        self.counts = label_counts(parts.train)
        missing = [name for name in self.labels if name not in label_counts(parts.valid)]
        if missing:
            self.notes.append(f"no validation text has the label {format_names(missing)}: it is not measured")
        self.train, self.valid = self._part(parts.train, "training"), self._part(parts.valid, "validation")
        self.test = None if parts.test is None else self._part(parts.test, "test")
        rows = self.train.rows
        self.set_training_rows(rows)
        seed, digest = config.training.seed, parts.train.digest
        self.task = ClassificationObjective(
            rows, self.train.targets, seed=seed, digest=digest, weights=self._weights(), kept=self.cache_states(rows)
        )
        if config.training.minutes and config.fine_tuning.baseline:
            _ = self.baseline  # fitted now, so that the time left for training is known

    def _check(self, train: LabelledTexts) -> None:
        self.several = bool(train.separator)
        self.labels = tuple(check_labels(train, self.config.data.train[0]))
        self.problem_type = "multi_label_classification" if self.several else "single_label_classification"

    def _part(self, given: LabelledTexts, name: str) -> LabelledSplit:
        wanted = given.label_matrix(self.labels) if self.several else given.label_ids(self.labels)
        rows = encode_texts(self.framing, given.texts, given.pairs, self.max_length)
        self.report_truncation(rows.account, name)
        return LabelledSplit(given, rows, wanted)

    def _weights(self) -> NDArray[np.float32] | None:
        if self.config.fine_tuning.class_weights == "equal":
            return None
        found = np.array([self.counts.get(name, 0) for name in self.labels], dtype=np.int64)
        if not self.several:
            return balanced_weights(found)
        return ((len(self.train.examples) - found) / np.maximum(1, found)).clip(1, 100).astype(np.float32)

    def describe(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        shown = format_names([f"{label} {count:,}" for label, count in self.counts.items()], 12)
        tested = f", test {len(self.test.examples):,}" if self.test is not None else ""
        what = "pairs of texts" if self.train.examples.pairs is not None else "texts"
        many = ", several a text" if self.several else ""
        data = f"data: {len(self.train.examples):,} {what}, {self.tokens_per_epoch:,} tokens; validation {len(self.valid.examples):,}"
        return [data + tested, f"labels: {len(self.labels)}{many} ({shown})", self.model_line(parameters)]

    def preprocessing_metadata(self) -> dict[str, Any]:
        """Return what must be known to read texts as in training."""
        read = self.config.data.read
        return {"labels": list(self.labels), "separator": read.label_separator, "pairs": bool(read.pair)}

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation data only."""
        given = self.valid.examples
        self.valid = self._part(given.select(spread_indices(len(given), share)), "validation")

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Accuracy of the most frequent label; where texts have several, F1 of giving all."""
        if self.several:
            return [constant_labels(self.train.targets, self.valid.targets)]
        balanced = self.config.fine_tuning.class_weights == "balanced"
        return [majority_label(self.train.targets, self.valid.targets, self.labels, balanced=balanced)]

    # ---- measures

    def validation_rows(self) -> EncodedTexts:
        """Return the validation rows."""
        return self.valid.rows

    def compute_metrics(self, model: Bert) -> EvaluationResult:
        """Return loss and shares of right labels on validation texts."""
        scores = self._scores(model, self.valid)
        metrics = self._metrics(scores, self.valid, 1.0, None)
        said = self._said(scores[:2], 1.0, None)
        samples = [*zip(self.valid.examples.texts[:2], self.valid.examples.labels[:2], said, strict=False)]
        best = metrics["micro_f1" if self.several else "accuracy"]
        return metrics, (round(best, 4), -metrics["loss"]), samples

    def _scores(self, model: Bert, part: LabelledSplit) -> Scores:
        return text_logits(model, part.rows, len(part.examples))

    def _said(self, scores: Scores, temperature: float, thresholds: NDArray[np.float64] | None) -> list[str]:
        if not self.several:
            return [self.labels[number] for number in scores.argmax(1)]
        marks = self._given(scores, temperature, thresholds)
        separator = self.config.data.read.label_separator
        return [separator.join(self.labels[number] for number in np.flatnonzero(row)) for row in marks]

    def _given(self, scores: Scores, temperature: float, thresholds: NDArray[np.float64] | None) -> NDArray[np.bool_]:
        return np.asarray(sigmoid_probabilities(scores, temperature) >= (0.5 if thresholds is None else thresholds))

    def _metrics(
        self, scores: Scores, part: LabelledSplit, temperature: float, thresholds: NDArray[np.float64] | None
    ) -> dict[str, float]:
        if self.several:
            loss = multi_label_loss(scores, part.targets, temperature)
            return {"loss": loss, **multi_label_f1(self._given(scores, temperature, thresholds), part.targets)}
        found = label_scores(confusion_matrix(part.targets, scores.argmax(1), len(self.labels)))
        loss = label_loss(scores, part.targets, temperature)
        return {"loss": loss, "accuracy": found["accuracy"], "macro_f1": found["macro_f1"]}

    def _calibration(self, scores: Scores, part: LabelledSplit, temperature: float) -> float:
        if self.several:
            chances = sigmoid_probabilities(scores, temperature)
            sure = np.maximum(chances, 1 - chances)
            return calibration_error(sure.ravel(), ((chances >= 0.5) == (part.targets > 0)).ravel())
        chances = softmax_probabilities(scores, temperature)
        return calibration_error(chances.max(1), chances.argmax(1) == part.targets)

    def concluded(self, model: Bert, notify: Notify) -> tuple[dict[str, float], dict[str, Any]]:
        """Tune temperature and thresholds on validation texts; score these and the test's, beside the baseline."""
        valid = self._scores(model, self.valid)
        temperature = fit_temperature(valid, self.valid.targets)
        thresholds = (
            fit_thresholds(sigmoid_probabilities(valid, temperature), self.valid.targets) if self.several else None
        )
        facts: dict[str, Any] = {"temperature": temperature}
        facts |= {} if thresholds is None else {"thresholds": dict(zip(self.labels, thresholds.tolist(), strict=True))}
        metrics: dict[str, float] = {}
        base = self.baseline if self.config.fine_tuning.baseline else None
        for name, part in (("valid", self.valid), ("test", self.test)):
            if part is None:
                continue
            scores = valid if name == "valid" else self._scores(model, part)
            found = self._metrics(scores, part, temperature, thresholds)
            found["calibration_error_before"] = self._calibration(scores, part, 1.0)
            found["calibration_error"] = self._calibration(scores, part, temperature)
            if thresholds is not None:
                found["macro_f1_before"] = multi_label_f1(self._given(scores, temperature, None), part.targets)[
                    "macro_f1"
                ]
            metrics |= prefix_metrics(name, found)
            _say_tuned(found, name, notify)
            if base is not None and (name == "test") == (self.test is not None):
                metrics |= self._beside(base, part, scores, (temperature, thresholds), name, notify)
        return metrics, facts

    @cached_property
    def baseline(self) -> BagOfWordsBaseline:
        """The simple model of word counts, trained on the same texts."""
        given, valid = self.train.examples, self.valid
        return BagOfWordsBaseline.fit(
            given.texts,
            self.train.targets,
            len(self.labels),
            pairs=given.pairs,
            valid=(valid.examples.texts, valid.examples.pairs, valid.targets),
        )

    def _beside(
        self,
        base: BagOfWordsBaseline,
        part: LabelledSplit,
        scores: Scores,
        tuned: tuple[float, NDArray[np.float64] | None],
        name: str,
        notify: Notify,
    ) -> dict[str, float]:
        """Return how the baseline does on the same texts, and what attention gives over it."""
        theirs = base.scores(part.examples.texts, part.examples.pairs)
        if not self.several:
            right = [found.argmax(1) == part.targets for found in (scores, theirs)]
            gain: ScoreGain = paired_gain(*right)
            return report_gain(gain, 100 * float(right[1].mean()), name, "baseline (words counted) accuracy", notify)
        valid = base.scores(self.valid.examples.texts, self.valid.examples.pairs)
        levels = fit_thresholds(sigmoid_probabilities(valid), self.valid.targets)
        given = [self._given(scores, *tuned), self._given(theirs, 1.0, levels)]
        wanted = part.targets > 0
        counted = [np.stack([one & wanted, one, wanted], axis=2).astype(np.int64) for one in given]
        score = multi_label_f1(given[1], part.targets)["macro_f1"]
        return report_gain(f1_gain(*counted), score, name, "baseline (words counted) macro-F1", notify)


def _say_tuned(found: Mapping[str, float], name: str, notify: Notify) -> None:
    """Say what tuning on validation texts changed."""
    before, after = found["calibration_error_before"], found["calibration_error"]
    notify(f"{name}: calibration error ({BINS} bins) {before:.4f} before calibration, {after:.4f} after")
    if "macro_f1_before" in found:
        at, tuned = found["macro_f1_before"], found["macro_f1"]
        notify(f"{name}: macro-F1 {at:.2f} % with thresholds of 0.5, {tuned:.2f} % with tuned ones")


HELD_OUT = "of the texts are held out, as many of each label"


@dataclass(frozen=True)
class RnnLabelledSplit:
    """Labelled texts as the model reads them."""

    examples: LabelledTexts
    rows: RnnTexts
    labels: NDArray[np.int64]
    targets: list[str]  # names of the labels

    def __len__(self) -> int:
        return len(self.labels)


class RnnClassificationExperiment(RnnTextExperiment[RnnClassifierConfig, "RnnClassificationEvaluator"]):
    """Labelled texts and the classifier that learns them."""

    name = "classify"

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        parts = DataSplits.read(config, read_labelled, self._check, hold_out_texts, HELD_OUT)
        self.begin(parts, parts.train.texts)
        self.counts = label_counts(parts.train)
        self.train, self.valid = self._part(parts.train, "training"), self._part(parts.valid, "validation")
        self.test = None if parts.test is None else self._part(parts.test, "test")
        self.learn([part.rows for part in (self.train, self.valid, self.test) if part is not None])
        self.task = RnnClassificationObjective(
            self.train.rows,
            self.train.labels,
            seed=config.training.seed,
            digest=parts.train.digest,
            weights=self._weights(),
        )
        self.model_config, self.reason = self.choose_config(config.rnn_classifier)
        self.hidden_size = self.model_config.encoder.hidden_size

    def _check(self, train: LabelledTexts) -> None:
        self.labels = check_labels(train, self.config.data.train[0])

    def _part(self, rows: LabelledTexts, name: str) -> RnnLabelledSplit:
        labels = rows.label_ids(self.labels)
        read = self.perception.encode(rows.texts)
        self.account(read, name)
        return RnnLabelledSplit(rows, read, labels, rows.labels)

    def _weights(self) -> NDArray[np.float32] | None:
        if self.config.fine_tuning.class_weights == "equal":
            return None
        return balanced_weights(np.bincount(self.train.labels, minlength=len(self.labels)))

    # ---- what a run asks

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation texts only."""
        given = self.valid.examples
        self.valid = self._part(given.select(spread_indices(len(given), share)), "validation")

    def model(self) -> RnnClassifier:
        """Return the model with its first weights."""
        return initialize_model(build_model(self.model_config), self.config.training.seed)

    def evaluator(self, device: str) -> RnnClassificationEvaluator:
        """Return what measures weights."""
        return RnnClassificationEvaluator(self.model_config, self.valid, self.labels, device)

    def describe(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        shown = format_names([f"{label} {count:,}" for label, count in self.counts.items()], 12)
        tested = f", test {len(self.test):,}" if self.test is not None else ""
        return [
            f"data: {len(self.train):,} texts, {self.tokens_per_epoch:,} tokens; validation {len(self.valid):,} texts{tested}",
            f"labels: {len(self.labels)} ({shown})",
            *self.model_lines(parameters),
        ]

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Accuracy of the most frequent label."""
        balanced = self.config.fine_tuning.class_weights == "balanced"
        return [majority_label(self.train.labels, self.valid.labels, self.labels, balanced=balanced)]

    def load_saved(self) -> LoadedRnnText[RnnClassifierConfig]:
        """Return the run's model as it was written."""
        return load_rnn_text(self.folder, RnnClassifierConfig, self.name)

    def final_evaluation(
        self, evaluator: RnnClassificationEvaluator, notify: Notify
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Score validation and test texts."""
        metrics, facts = super().final_evaluation(evaluator, notify)
        if self.test is not None:
            metrics |= prefix_metrics("test", evaluator.scores(self.test))
        return metrics, facts


class RnnClassificationEvaluator(ModelEvaluator[RnnClassifier]):
    """Measures a classifier on validation texts."""

    def __init__(self, config: RnnClassifierConfig, valid: RnnLabelledSplit, names: Sequence[str], device: str) -> None:
        super().__init__(build_model(config), device)
        self.valid, self.names = valid, names

    def compute_metrics(self) -> EvaluationResult:
        """Return loss, accuracy and macro-F1 on validation texts."""
        chances = label_probabilities(self.model, self.valid.rows)
        metrics = _scores(chances, self.valid)
        said = chances.argmax(1)
        samples = [
            (self.valid.rows.texts[number], self.valid.targets[number], self.names[said[number]])
            for number in range(min(2, len(self.valid)))
        ]
        return metrics, (round(metrics["accuracy"], 4), -metrics["loss"]), samples

    def scores(self, part: RnnLabelledSplit) -> dict[str, float]:
        """Return loss, accuracy and macro-F1 on other texts."""
        return _scores(label_probabilities(self.model, part.rows), part)


def _scores(probabilities: NDArray[np.float32], part: RnnLabelledSplit) -> dict[str, float]:
    right = probabilities[np.arange(len(part)), part.labels].astype(np.float64)
    loss = float(-np.log(np.maximum(right, 1e-12)).mean())
    found = label_scores(confusion_matrix(part.labels, probabilities.argmax(1), probabilities.shape[1]))
    return {"loss": loss, "accuracy": found["accuracy"], "macro_f1": found["macro_f1"]}
