"""Train text classifiers with their own vocabulary from scratch: an RNN, or a model of any registered family."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.checkpoint.native import TextModelConfig
from regard.config.rnn_models import RnnClassifierConfig
from regard.config.task_runs import ClassifyRun
from regard.data.labelled import LabelledTexts, selected_columns
from regard.models import build_model
from regard.models.text_classifier import TextClassifierModel
from regard.tasks.base import Objective
from regard.tasks.classification import TextClassificationObjective
from regard.tasks.losses import balanced_weights
from regard.tasks.metrics import negative_log_likelihood
from regard.tasks.predictions import PredictedLabels, Predictions
from regard.tasks.text_model import PreprocessedTexts, label_probabilities
from regard.training.evaluation import ModelEvaluator, Samples
from regard.training.experiments.base import Notify, prefix_metrics
from regard.training.experiments.classification import (
    NUM_SAMPLES,
    BagOfWordsExperiment,
    LabelledSplit,
    format_label_counts,
    majority_baseline,
    read_labelled_splits,
)
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.rnn_text import RnnTextExperiment
from regard.training.experiments.text_model import TextModelExperiment
from regard.training.verdict import TrivialBaseline

ClassifierConfigT = TypeVar("ClassifierConfigT", bound=TextModelConfig)
TextLabelledSplit = LabelledSplit[PreprocessedTexts]


class TextClassificationExperiment(
    TextModelExperiment[ClassifierConfigT, "TextClassificationEvaluator", TextLabelledSplit]
):
    """Train a text classifier of any family on labelled texts, from scratch; its config is `model` of the run."""

    def choose_config(self) -> tuple[ClassifierConfigT, str]:
        """The model config of the run, with the sizes of the data."""
        run: Any = self.config  # its config `model` is that of the family
        sizes = {"vocab_size": self.preprocessor.tokenizer.vocab_size, "num_labels": len(self.labels)}
        return run.model.override(sizes), "by its settings"

    def read_splits(self) -> DataSplits[LabelledTexts]:
        """Read labelled texts."""
        return read_labelled_splits(self.config)

    def tokenizer_texts(self, examples: LabelledTexts) -> list[str]:
        """The texts, without labels."""
        return examples.texts

    def encode(self, examples: LabelledTexts, split: str) -> TextLabelledSplit:
        """Encode texts and their labels."""
        targets = examples.label_ids(self.labels)
        rows = self.preprocessor.encode(examples.texts)
        self.report_truncation(self.preprocessor.report_truncation(rows), split)
        return LabelledSplit(examples, rows, targets=targets)

    def build_objective(self) -> Objective:
        """Build the objective: cross-entropy of the labels."""
        return TextClassificationObjective(
            self.train.rows,
            self.train.targets,
            seed=self.config.training.seed,
            digest=self.train.examples.digest,
            class_weights=self._class_weights(),
        )

    def _class_weights(self) -> NDArray[np.float32] | None:
        if self.config.fine_tuning.class_weights == "none":
            return None
        return balanced_weights(np.bincount(self.train.targets, minlength=len(self.labels)))

    # ---- interface of a run

    def evaluator(self, device: str) -> TextClassificationEvaluator:
        """Build the evaluator on validation data."""
        return TextClassificationEvaluator(self, device)

    @property
    def data_summary(self) -> str:
        """Size of the training data in a few words."""
        return f"{len(self.train.examples):,} texts"

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        test = f", test {len(self.test.examples):,}" if self.test is not None else ""
        return [
            f"data: {self.data_summary}, {self.tokens_per_epoch:,} tokens; "
            f"validation {len(self.valid.examples):,} texts{test}",
            f"labels: {len(self.labels)} ({format_label_counts(self.train.examples)})",
            self.describe_tokenizer(),
            self.describe_model(num_parameters),
        ]

    @property
    def prediction_kind(self) -> str:
        """Kind of the predictions, by which metrics apply."""
        return PredictedLabels.kind

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Accuracy of the most frequent label."""
        return [majority_baseline(self.config, self.train, self.valid, self.labels)]

    def final_evaluation(
        self, evaluator: TextClassificationEvaluator, notify: Notify
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Evaluate the final model on validation and test texts."""
        metrics: dict[str, Any] = {}
        for name, split in (("valid", self.valid), ("test", self.test)):
            if split is None:
                continue
            predictions = evaluator.predict_labels(split)
            metrics |= prefix_metrics(name, self.scoring.compute_final(predictions))
            is_last = name == "test" or self.test is None
            if is_last:
                metrics |= self.compare_with_baseline(name, split, predictions, notify)
        return metrics, {}

    def compare_with_baseline(
        self, name: str, split: TextLabelledSplit, predictions: PredictedLabels, notify: Notify
    ) -> dict[str, float]:
        """Metrics of a comparison with a simple model; there is none of a plugin's family."""
        return {}

    def metadata(self, evaluator: TextClassificationEvaluator) -> dict[str, Any]:
        """Entries of task.json that inference needs, and the columns of the data."""
        return {**super().metadata(evaluator), "columns": selected_columns(self.config.data.read)}


class RnnClassificationExperiment(
    BagOfWordsExperiment[RnnClassifierConfig, "TextClassificationEvaluator", TextLabelledSplit],
    TextClassificationExperiment[RnnClassifierConfig],
    RnnTextExperiment[RnnClassifierConfig, "TextClassificationEvaluator", TextLabelledSplit],
):
    """Train an RNN classifier on labelled texts."""

    config: ClassifyRun
    gain_source = "reading in context"

    def choose_config(self) -> tuple[RnnClassifierConfig, str]:
        """Choose the sizes by the preset."""
        return RnnTextExperiment.choose_config(self)

    def base_config(self) -> RnnClassifierConfig:
        """Model config of the run, before its sizes are chosen."""
        return self.config.rnn_classifier

    def compare_with_baseline(
        self, name: str, split: TextLabelledSplit, predictions: PredictedLabels, notify: Notify
    ) -> dict[str, float]:
        """Score the bag-of-words baseline on the same texts, and report what the model gains over it."""
        if not self.config.fine_tuning.baseline:
            return {}
        return self.report_accuracy_gain(name, split, predictions.predictions, notify)


class TextClassificationEvaluator(ModelEvaluator[TextClassifierModel]):
    """Evaluates a text classifier with its own vocabulary on validation texts."""

    def __init__(self, experiment: TextClassificationExperiment[Any], device: str) -> None:
        super().__init__(build_model(experiment.model_config), device, experiment.scoring)
        self.valid = experiment.valid
        self.labels = experiment.labels

    def predict(self) -> tuple[Predictions, Samples]:
        """Predict the labels of validation texts."""
        predictions = self.predict_labels(self.valid)
        labels = [self.labels[label_id] for label_id in predictions.predictions[:NUM_SAMPLES]]
        texts = self.valid.rows.texts[:NUM_SAMPLES]
        targets = self.valid.examples.labels[:NUM_SAMPLES]
        return predictions, list(zip(texts, targets, labels, strict=True))

    def predict_labels(self, split: TextLabelledSplit) -> PredictedLabels:
        """Predict the labels of a split."""
        probabilities = label_probabilities(self.model, split.rows)
        return PredictedLabels(
            predictions=probabilities.argmax(1),
            references=split.targets,
            labels=self.labels,
            loss=negative_log_likelihood(probabilities, split.targets),
        )
