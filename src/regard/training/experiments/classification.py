"""Fine-tune or train an encoder that classifies texts: one label, several labels, or pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.config.models import BertConfig
from regard.config.settings import AUTO
from regard.config.task_runs import ClassifyRun, FineTunedRun
from regard.data.labelled import (
    LabelledTexts,
    check_labels,
    hold_out_texts,
    label_counts,
    read_labelled,
    selected_columns,
)
from regard.formatting import format_names
from regard.metric_table import SPLITS
from regard.models.bert import Bert
from regard.tasks.base import Objective
from regard.tasks.baselines import BagOfWordsBaseline, f1_gain, paired_gain
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
from regard.tasks.classification import ClassificationObjective
from regard.tasks.encoder_states import pooled_positions
from regard.tasks.losses import balanced_weights
from regard.tasks.predictions import PredictedLabels, PredictedLabelSets, Predictions
from regard.tasks.windows import EncodedTexts, encode_texts, text_logits
from regard.training.evaluation import Samples
from regard.training.experiments.base import ConfigT, EvaluatorT, Notify, prefix_metrics, report_gain
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.fine_tuning import EncoderEvaluator, EncoderExperiment
from regard.training.experiments.supervised import EncodedSplit, RowsT, SupervisedExperiment
from regard.training.trivial_baselines import constant_labels, majority_label
from regard.training.verdict import TrivialBaseline

NUM_SAMPLES = 2  # texts shown at each evaluation
MAX_SHOWN_LABELS = 12

Logits = NDArray[np.float32]  # [texts, labels]


@dataclass(frozen=True)
class LabelledSplit(EncodedSplit[LabelledTexts, RowsT]):
    """Labelled texts, encoded for a model."""

    targets: NDArray[Any]  # label ids [texts], or a label matrix [texts, labels]

    def select(self, indices: NDArray[np.int64]) -> Self:
        """The texts at these indices."""
        return replace(super().select(indices), targets=self.targets[indices])


EncodedLabelledSplit = LabelledSplit[EncodedTexts]
LabelledSplitT = TypeVar("LabelledSplitT", bound=LabelledSplit[Any])


def read_labelled_splits(config: FineTunedRun) -> DataSplits[LabelledTexts]:
    """Read labelled texts and their labels; hold some texts out where there are no validation files."""
    return DataSplits.read(
        config,
        read_labelled,
        hold_out_texts,
        describe_held_out=lambda valid: f"{len(valid):,} of the texts are held out, as many of each label",
        find_labels=check_labels,
    )


class BagOfWordsExperiment(SupervisedExperiment[ConfigT, EvaluatorT, LabelledSplitT]):
    """Train a classifier, and compare it with a bag-of-words model of the same texts."""

    gain_source = "attention"  # what a gain over the baseline is attributed to

    def prepare(self) -> None:
        """Read and encode the data, and build the objective and the baseline."""
        super().prepare()
        if self.config.training.minutes and self.config.fine_tuning.baseline:
            _ = self.baseline  # fitted before the time left for training is computed

    @cached_property
    def baseline(self) -> BagOfWordsBaseline:
        """Bag-of-words model of the training texts."""
        train = self.train.examples
        valid = self.valid.examples
        return BagOfWordsBaseline.fit(
            train.texts,
            self.train.targets,
            len(self.labels),
            pairs=train.pairs,
            valid=(valid.texts, valid.pairs, self.valid.targets),
        )

    def baseline_logits(self, split: LabelledSplitT) -> Logits:
        """Logits of the baseline for the texts of a split."""
        return self.baseline.logits(split.examples.texts, split.examples.pairs)

    def report_accuracy_gain(
        self, name: str, split: LabelledSplitT, predictions: NDArray[np.int64], notify: Notify
    ) -> dict[str, float]:
        """Score the baseline on the texts of a split, and report what the model's label ids gain over it."""
        is_correct = predictions == split.targets
        baseline_is_correct = self.baseline_logits(split).argmax(1) == split.targets
        gain = paired_gain(is_correct, baseline_is_correct)
        accuracy = 100 * float(baseline_is_correct.mean())
        caption = "baseline (bag of words) accuracy"
        return report_gain(gain, accuracy, name, caption, notify, source=self.gain_source)


# ---- fine-tuned encoders


@dataclass(frozen=True)
class Calibration:
    """How logits become probabilities and predicted labels."""

    temperature: float = 1.0
    thresholds: NDArray[np.float64] | None = None  # [labels], of several labels per text; None: 0.5 for all

    def predict_labels(self, logits: Logits) -> NDArray[np.bool_]:  # [texts, labels]
        """Labels whose probability reaches the threshold, where texts may have several."""
        thresholds = 0.5 if self.thresholds is None else self.thresholds
        return np.asarray(sigmoid_probabilities(logits, self.temperature) >= thresholds)


UNCALIBRATED = Calibration()


class ClassificationExperiment(
    BagOfWordsExperiment[BertConfig, EncoderEvaluator, EncodedLabelledSplit], EncoderExperiment[EncodedLabelledSplit]
):
    """Fine-tune or train an encoder on labelled texts."""

    config: ClassifyRun
    head = "label"
    default_epochs = 3.0
    default_batch_rows = 32

    # set by `prepare`
    is_multi_label: bool

    def read_splits(self) -> DataSplits[LabelledTexts]:
        """Read labelled texts, with one label or several per text."""
        splits = read_labelled_splits(self.config)
        self.is_multi_label = bool(splits.train.label_separator)
        self.problem_type = "multi_label_classification" if self.is_multi_label else "single_label_classification"
        return splits

    def training_texts(self, train: LabelledTexts) -> list[str]:
        """Texts of the training examples, also the second ones of pairs."""
        return [*train.texts, *(train.pairs or ())]

    def encode_splits(self, splits: DataSplits[LabelledTexts]) -> None:
        """Note the labels that validation lacks, and encode all splits."""
        valid_counts = label_counts(splits.valid)
        missing = [label for label in self.labels if label not in valid_counts]
        if missing:
            self.notes.append(f"no validation text has the label {format_names(missing)}: it is not evaluated")
        super().encode_splits(splits)

    def encode(self, examples: LabelledTexts, split: str) -> EncodedLabelledSplit:
        """Encode texts and their labels."""
        if self.is_multi_label:
            targets: NDArray[Any] = examples.label_matrix(self.labels)
        else:
            targets = examples.label_ids(self.labels)
        rows = encode_texts(self.special_tokens, examples.texts, examples.pairs, self.max_length)
        self.report_truncation(rows.truncation, split)
        return LabelledSplit(examples, rows, targets=targets)

    def build_objective(self) -> Objective:
        """Build the objective: cross-entropy of the labels."""
        rows = self.train.rows
        return ClassificationObjective(
            rows,
            self.train.targets,
            seed=self.config.training.seed,
            digest=self.train.examples.digest,
            class_weights=self._class_weights(),
            cached_states=self.cache_states(rows, pooled_positions(self.model_config, rows)),
        )

    def _class_weights(self) -> NDArray[np.float32] | None:
        """Weight of each class in the loss; of each positive label, where texts have several."""
        if self.config.fine_tuning.class_weights == "none":
            return None
        num_texts = label_counts(self.train.examples)
        counts = np.array([num_texts.get(label, 0) for label in self.labels], dtype=np.int64)
        if not self.is_multi_label:
            return balanced_weights(counts)
        num_negative = len(self.train.examples) - counts
        return (num_negative / np.maximum(1, counts)).clip(1, 100).astype(np.float32)

    # ---- interface of a run

    @property
    def data_summary(self) -> str:
        """Size of the training data in a few words."""
        examples = self.train.examples
        return f"{len(examples):,} {'pairs of texts' if examples.pairs is not None else 'texts'}"

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        examples = self.train.examples
        test = f", test {len(self.test.examples):,}" if self.test is not None else ""
        several = ", several per text" if self.is_multi_label else ""
        return [
            f"data: {self.data_summary}, {self.tokens_per_epoch:,} tokens; "
            f"validation {len(self.valid.examples):,}{test}",
            f"labels: {len(self.labels)}{several} ({format_label_counts(examples)})",
            self.describe_model(num_parameters),
        ]

    def preprocessing_metadata(self) -> dict[str, Any]:
        """Entries of task.json on labels and the format of the data."""
        read = self.config.data.read
        return {
            "labels": list(self.labels),
            "label_separator": read.label_separator,
            "has_pairs": bool(read.pair),
            "columns": selected_columns(read),
        }

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Accuracy of the most frequent label; where texts have several, F1 of predicting all of them."""
        if self.is_multi_label:
            return [constant_labels(self.train.targets, self.valid.targets)]
        return [majority_baseline(self.config, self.train, self.valid, self.labels)]

    # ---- metrics

    @property
    def prediction_kind(self) -> str:
        """Kind of the predictions, by which metrics apply."""
        return PredictedLabelSets.kind if self.is_multi_label else PredictedLabels.kind

    def predict(self, model: Bert) -> tuple[Predictions, Samples]:
        """Predict the labels of validation texts."""
        logits = self._compute_logits(model, self.valid)
        examples = self.valid.examples
        labels = self._format_predictions(logits[:NUM_SAMPLES])
        samples = [*zip(examples.texts[:NUM_SAMPLES], examples.labels[:NUM_SAMPLES], labels, strict=False)]
        return self._predict_labels(logits, self.valid, UNCALIBRATED), samples

    def _compute_logits(self, model: Bert, split: EncodedLabelledSplit) -> Logits:
        return text_logits(model, split.rows, len(split.examples))

    def _format_predictions(self, logits: Logits) -> list[str]:
        if not self.is_multi_label:
            return [self.labels[label_id] for label_id in logits.argmax(1)]
        label_separator = self.config.data.read.label_separator
        label_matrix = UNCALIBRATED.predict_labels(logits)
        return [label_separator.join(self.labels[label_id] for label_id in np.flatnonzero(row)) for row in label_matrix]

    def _predict_labels(self, logits: Logits, split: EncodedLabelledSplit, calibration: Calibration) -> Predictions:
        if self.is_multi_label:
            return PredictedLabelSets(
                predictions=calibration.predict_labels(logits),
                references=split.targets > 0,
                labels=self.labels,
                loss=multi_label_loss(logits, split.targets, calibration.temperature),
            )
        return PredictedLabels(
            predictions=logits.argmax(1),
            references=split.targets,
            labels=self.labels,
            loss=label_loss(logits, split.targets, calibration.temperature),
        )

    def _calibration_error(self, logits: Logits, split: EncodedLabelledSplit, temperature: float) -> float:
        if self.is_multi_label:
            probabilities = sigmoid_probabilities(logits, temperature)
            confidence = np.maximum(probabilities, 1 - probabilities)
            is_correct = (probabilities >= 0.5) == (split.targets > 0)
            return calibration_error(confidence.ravel(), is_correct.ravel())
        probabilities = softmax_probabilities(logits, temperature)
        return calibration_error(probabilities.max(1), probabilities.argmax(1) == split.targets)

    def compute_final_metrics(self, model: Bert, notify: Notify) -> tuple[dict[str, float], dict[str, Any]]:
        """Calibrate on validation texts; score validation and test texts, and compare with the baseline."""
        valid_logits = self._compute_logits(model, self.valid)
        calibration = self._calibrate(valid_logits)
        metadata: dict[str, Any] = {"temperature": calibration.temperature}
        if calibration.thresholds is not None:
            metadata["thresholds"] = dict(zip(self.labels, calibration.thresholds.tolist(), strict=True))
        metrics = self._score_calibrated("valid", self.valid, valid_logits, calibration, notify)
        if self.test is not None:
            test_logits = self._compute_logits(model, self.test)
            metrics |= self._score_calibrated("test", self.test, test_logits, calibration, notify)
        return metrics, metadata

    def _calibrate(self, logits: Logits) -> Calibration:
        """Fit the temperature, and thresholds where texts have several labels, on validation texts."""
        temperature = fit_temperature(logits, self.valid.targets)
        if not self.is_multi_label:
            return Calibration(temperature)
        thresholds = fit_thresholds(sigmoid_probabilities(logits, temperature), self.valid.targets)
        return Calibration(temperature, thresholds)

    def _score_calibrated(
        self, name: str, split: EncodedLabelledSplit, logits: Logits, calibration: Calibration, notify: Notify
    ) -> dict[str, float]:
        """Score a split before and after calibration; the last split is also compared with the baseline."""
        metrics = self.scoring.compute_final(self._predict_labels(logits, split, calibration))
        metrics["calibration_error_before"] = self._calibration_error(logits, split, 1.0)
        metrics["calibration_error"] = self._calibration_error(logits, split, calibration.temperature)
        if calibration.thresholds is not None:
            labels_at_half = Calibration(calibration.temperature).predict_labels(logits)
            metrics["macro_f1_before"] = multi_label_f1(labels_at_half, split.targets)["macro_f1"]
        _report_calibration(metrics, name, notify)
        prefixed = prefix_metrics(name, metrics)
        is_last = name == "test" or self.test is None
        if self.config.fine_tuning.baseline and is_last:
            prefixed |= self._compare_with_baseline(name, split, logits, calibration, notify)
        return prefixed

    def _compare_with_baseline(
        self, name: str, split: EncodedLabelledSplit, logits: Logits, calibration: Calibration, notify: Notify
    ) -> dict[str, float]:
        """Score the baseline on the same texts, and report what attention gains over it."""
        if not self.is_multi_label:
            return self.report_accuracy_gain(name, split, logits.argmax(1), notify)
        valid_probabilities = sigmoid_probabilities(self.baseline_logits(self.valid))
        baseline_calibration = Calibration(thresholds=fit_thresholds(valid_probabilities, self.valid.targets))
        labels = calibration.predict_labels(logits)
        baseline_labels = baseline_calibration.predict_labels(self.baseline_logits(split))
        targets = split.targets > 0
        gain = f1_gain(_f1_counts(labels, targets), _f1_counts(baseline_labels, targets))
        macro_f1 = multi_label_f1(baseline_labels, split.targets)["macro_f1"]
        return report_gain(gain, macro_f1, name, "baseline (bag of words) macro-F1", notify)


def _f1_counts(labels: NDArray[np.bool_], targets: NDArray[np.bool_]) -> NDArray[np.int64]:  # [texts, labels, 3]
    """True positives, predictions and targets of each text and label."""
    return np.stack([labels & targets, labels, targets], axis=2).astype(np.int64)


def _report_calibration(metrics: Mapping[str, float], split: str, notify: Notify) -> None:
    """Report what calibration on validation texts changed."""
    before = metrics["calibration_error_before"]
    after = metrics["calibration_error"]
    notify(f"{SPLITS[split]}: calibration error ({BINS} bins) {before:.4f} before calibration, {after:.4f} after")
    if "macro_f1_before" in metrics:
        before = metrics["macro_f1_before"]
        after = metrics["macro_f1"]
        notify(f"{SPLITS[split]}: macro-F1 {before:.2f} % with thresholds of 0.5, {after:.2f} % with tuned ones")


def format_label_counts(examples: LabelledTexts) -> str:
    """Labels of the examples, each with its number of texts."""
    return format_names([f"{label} {count:,}" for label, count in label_counts(examples).items()], MAX_SHOWN_LABELS)


def majority_baseline(
    config: FineTunedRun, train: LabelledSplit[Any], valid: LabelledSplit[Any], labels: Sequence[str]
) -> TrivialBaseline:
    """Baseline of the most frequent label; macro-F1 counts, too, where training trades accuracy for it."""
    is_balanced = config.fine_tuning.class_weights == "balanced" or config.training.metric != AUTO
    return majority_label(train.targets, valid.targets, labels, is_balanced=is_balanced)
