"""`ClassificationPipeline`: labels of texts, with probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from regard.backends import EncoderBackend
from regard.config.data import ReadConfig
from regard.config.inference import RecordConfig
from regard.data.labelled import LabelledTexts, training_columns
from regard.errors import UsageError
from regard.hardware import ForkSafeLock
from regard.pipeline.pickling import PicklablePipeline
from regard.pipeline.records.encoder_records import EncoderRecorder, encode_row
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.calibration import calibration_error, multi_label_f1, sigmoid_probabilities, softmax_probabilities
from regard.tasks.metrics import label_scores
from regard.tasks.predictions import PredictedLabels, PredictedLabelSets
from regard.tasks.scoring import Scoring
from regard.tasks.text_model import TextPreprocessor, label_probabilities
from regard.tasks.windows import encode_texts, text_logits
from regard.text.special_tokens import SpecialTokens, TruncationReport
from regard.view.record.parts import LabelProbabilities
from regard.view.record.record import Record

if TYPE_CHECKING:
    from regard.models.text_classifier import TextClassifierModel

TASK = "classify"
TEXTS_PER_BATCH = 512  # read from a stream at a time
LABEL_SEPARATOR = ";"  # between the labels of a multi-label text, where the data had no separator

Probabilities = NDArray[np.floating]


@dataclass(frozen=True)
class LabelPredictions:
    """Label probabilities of texts, and how much of the texts was read."""

    probabilities: Probabilities  # [texts, labels]
    truncated: NDArray[np.int64]  # [texts], tokens that were not read
    windows: NDArray[np.int64]  # [texts], rows in which each text was read
    truncation_report: TruncationReport
    backend: str = ""  # that computed them


class TextClassifier(Protocol):
    """Model that predicts label probabilities of texts."""

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None) -> LabelPredictions:
        """Predict the probabilities of all labels for each text, or pair of texts."""
        ...

    def record(self, text: str, pair: str | None, probabilities: LabelProbabilities, config: RecordConfig) -> Record:
        """Record the attention over one text, or pair of texts."""
        ...


@dataclass(frozen=True)
class TextModelClassifier:
    """Classifier with its own vocabulary: an RNN, or a model of a plugin's family."""

    model: TextClassifierModel
    preprocessor: TextPreprocessor

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None) -> LabelPredictions:
        """Predict the probabilities of all labels for each text."""
        if pairs is not None:
            raise UsageError(
                "this classifier reads single texts, not pairs: train one with --arch transformer or --from MODEL, "
                "which read both"
            )
        encoded = self.preprocessor.encode(texts)
        return LabelPredictions(
            label_probabilities(self.model, encoded),
            encoded.truncated,
            windows=np.ones(len(texts), dtype=np.int64),
            truncation_report=self.preprocessor.report_truncation(encoded),
            backend=getattr(self.model, "backend_name", ""),  # a plugin's engine may not have it
        )

    def record(self, text: str, pair: str | None, probabilities: LabelProbabilities, config: RecordConfig) -> Record:
        """Record the attention over one text."""
        from regard.pipeline.records.text_model_records import TextModelRecorder

        recorder = TextModelRecorder(self.model, self.preprocessor)
        best_label, _ = probabilities.best
        return recorder.record(text, config, task=TASK, label=best_label, prediction=probabilities)


@dataclass(frozen=True)
class EncoderClassifier:
    """Encoder with a classification head and calibrated probabilities."""

    model: EncoderBackend
    special_tokens: SpecialTokens
    max_length: int
    temperature: float = 1.0
    is_multi_label: bool = False

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None) -> LabelPredictions:
        """Predict the probabilities of all labels; a long text is read in windows, a long pair is truncated."""
        encoded = encode_texts(self.special_tokens, texts, pairs, self.max_length)
        logits = text_logits(self.model, encoded, len(texts))
        calibrate = sigmoid_probabilities if self.is_multi_label else softmax_probabilities
        truncated = np.zeros(len(texts), dtype=np.int64)
        if encoded.truncation.truncated_texts and pairs is not None:
            truncated = self._count_truncated(texts, pairs)
        return LabelPredictions(
            calibrate(logits, self.temperature),
            truncated,
            windows=np.bincount(np.asarray(encoded.text_indices, dtype=np.int64), minlength=len(texts)),
            truncation_report=encoded.truncation,
            backend=self.model.backend_name,
        )

    def _count_truncated(self, texts: Sequence[str], second_texts: Sequence[str]) -> NDArray[np.int64]:
        """Number of tokens of each text pair beyond `max_length`."""
        tokenizer = self.special_tokens.tokenizer
        encoded_pairs = zip(tokenizer.encode_batch(texts), tokenizer.encode_batch(second_texts), strict=True)
        lengths = np.array([len(first) + len(second) for first, second in encoded_pairs])
        max_content = self.max_length - self.special_tokens.num_special(pair=True)
        return np.asarray(np.maximum(0, lengths - max_content), dtype=np.int64)

    def record(self, text: str, pair: str | None, probabilities: LabelProbabilities, config: RecordConfig) -> Record:
        """Record the attention over one text, or pair of texts; of a long text, over its first window."""
        row = encode_row(self.special_tokens, text, pair, max_length=self.max_length)
        recorder = EncoderRecorder(self.model, self.special_tokens)
        return recorder.record(row, config, task=TASK, extra_parts=lambda _: {"prediction": probabilities})


class LabelDict(TypedDict):
    """JSON form of a `Label`."""

    text: str
    label: str  # all labels of a multi-label text, joined; empty for a blank text
    labels: list[str]  # the same, one by one
    probability: float  # of the least probable label that the text has; of none, where it has none
    probabilities: dict[str, float]  # of all labels, the most probable first
    truncated: int  # tokens of the text that were not read
    windows: int  # rows in which it was read
    backend: str  # what computed it, and in which precision: engine int8


class Label(PipelineResult, str):
    """The most probable label of a text: a str with the probabilities of all labels."""

    text: str
    probability: float  # of the least probable label that the text has; of none, where it has none
    probabilities: dict[str, float]  # of all labels, the most probable first
    truncated: int  # tokens of the text that were not read
    windows: int  # rows in which it was read
    labels: tuple[str, ...]  # all labels of a multi-label text, else the most probable one

    @classmethod
    def from_probabilities(
        cls,
        text: str,
        probabilities: Probabilities,
        truncated: int,
        windows: int,
        labels: Sequence[str],
        thresholds: Sequence[float] | None = None,
        label_separator: str = LABEL_SEPARATOR,
    ) -> Label:
        """Choose the most probable label; with thresholds, all labels that reach theirs."""
        ranked = np.argsort(-probabilities, kind="stable")
        if thresholds is None:
            predicted = [ranked[0]]
        else:
            predicted = [index for index in ranked if probabilities[index] >= thresholds[index]]
        no_label_probability = 1 - float(probabilities.max())
        label = cls(label_separator.join(labels[index] for index in predicted))
        label.text = text
        label.probability = min((float(probabilities[index]) for index in predicted), default=no_label_probability)
        label.probabilities = {labels[index]: float(probabilities[index]) for index in ranked}
        label.truncated = int(truncated)
        label.windows = int(windows)
        label.labels = tuple(labels[index] for index in predicted)
        return label

    @classmethod
    def for_blank_text(cls, text: str) -> Label:
        """The empty label of a blank text."""
        label = cls("")
        label.text = text
        label.probability = 0.0
        label.probabilities = {}
        label.truncated = 0
        label.windows = 0
        label.labels = ()
        return label

    def to_dict(self) -> LabelDict:
        """JSON form of the label."""
        return {
            "text": self.text,
            "label": str(self),
            "labels": list(self.labels),
            "probability": round(self.probability, 6),
            "probabilities": {name: round(probability, 6) for name, probability in self.probabilities.items()},
            "truncated": self.truncated,
            "windows": self.windows,
            "backend": self.backend,
        }


class ClassificationPipeline(PicklablePipeline):
    """Classifies texts; `truncation_report` counts how much of all texts so far was read."""

    task_name = TASK

    def __init__(self, classifier: TextClassifier, task: dict[str, Any]) -> None:
        self.classifier = classifier
        self.task = task
        self.task_name = str(task.get("task") or TASK)  # a plugin's task may have such models, too
        self.labels: list[str] = list(task["labels"])
        self.thresholds: list[float] | None = None  # of each label, where a text may have several
        if task.get("thresholds") is not None:
            self.thresholds = [float(task["thresholds"][label]) for label in self.labels]
        self.truncation_report = TruncationReport()
        self._report_lock = ForkSafeLock()

    def read_config(self, config: ReadConfig) -> ReadConfig:
        """Settings to read labelled texts as in training, columns and label separator, unless `config` has its own."""
        settings: dict[str, Any] = dict(training_columns(self.task))
        if self.thresholds is not None:
            settings["label_separator"] = self.task.get("label_separator") or ""
        return config.override({name: value for name, value in settings.items() if not getattr(config, name)})

    def stream(self, texts: Iterable[str], pairs: Iterable[str] | None = None) -> Iterator[Label]:
        """Yield the label of each text, or pair of texts, in order; a blank text has an empty label."""
        pending_texts = iter(texts)
        pending_pairs = None if pairs is None else iter(pairs)
        while batch := list(islice(pending_texts, TEXTS_PER_BATCH)):
            batch_pairs = None if pending_pairs is None else list(islice(pending_pairs, len(batch)))
            yield from self._classify_batch(batch, batch_pairs)

    def _classify_batch(self, texts: Sequence[str], pairs: Sequence[str] | None) -> list[Label]:
        labels = [Label.for_blank_text(text) for text in texts]
        indices = [index for index, text in enumerate(texts) if text.strip()]
        with self._report_lock:
            self.truncation_report.blank += len(texts) - len(indices)
        if not indices:
            return labels
        predictions = self.classifier.predict(
            [texts[index] for index in indices], None if pairs is None else [pairs[index] for index in indices]
        )
        with self._report_lock:
            self.truncation_report.add(predictions.truncation_report)
        label_separator = str(self.task.get("label_separator") or LABEL_SEPARATOR)
        for row, index in enumerate(indices):
            label = Label.from_probabilities(
                texts[index],
                predictions.probabilities[row],
                truncated=predictions.truncated[row],
                windows=predictions.windows[row],
                labels=self.labels,
                thresholds=self.thresholds,
                label_separator=label_separator,
            )
            pair = None if pairs is None else pairs[index]
            recorder = partial(self._build_record, label, pair)
            labels[index] = attach_recorder(label, recorder, predictions.backend)
        return labels

    def _build_record(self, label: Label, pair: str | None, config: RecordConfig) -> Record:
        probabilities = LabelProbabilities(tuple(label.probabilities), tuple(label.probabilities.values()))
        return self.classifier.record(label.text, pair, probabilities, config)

    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Label]:
        """Classify each text, or pair of texts."""
        if isinstance(texts, str):
            raise UsageError("classify takes a list of texts: call the pipeline itself with a single one")
        return list(self.stream(texts, pairs))

    def __call__(self, text: str, pair: str | None = None) -> Label:
        """Classify one text, or a pair of texts."""
        return self.classify([text], None if pair is None else [pair])[0]

    def predict_examples(self, examples: LabelledTexts) -> PredictedLabels | PredictedLabelSets:
        """Predict the labels of a test set; the result is the argument of every metric."""
        return self._collect(examples, self.classify(examples.texts, examples.pairs))

    def _collect(self, examples: LabelledTexts, predictions: Sequence[Label]) -> PredictedLabels | PredictedLabelSets:
        """Predicted labels beside those of the examples."""
        if self.thresholds is not None:
            predicted_sets = np.array([[name in label.labels for name in self.labels] for label in predictions])
            label_matrix = examples.label_matrix(self.labels)  # [texts, labels]
            return PredictedLabelSets(predictions=predicted_sets, references=label_matrix > 0, labels=self.labels)
        predicted = np.array([self.labels.index(label) for label in predictions], dtype=np.int64)
        return PredictedLabels(predictions=predicted, references=examples.label_ids(self.labels), labels=self.labels)

    def evaluate(
        self, examples: LabelledTexts, predictions: Sequence[Label], *, metrics: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Metrics of predictions, their calibration error, and how many texts were truncated or read in windows.

        `metrics` are names of further ones.
        """
        scoring = Scoring(self.task_name, tuple(metrics))
        reading = {
            "truncated": sum(label.truncated > 0 for label in predictions),
            "windowed": sum(label.windows > 1 for label in predictions),
        }
        rows = [[label.probabilities.get(name, 0.0) for name in self.labels] for label in predictions]
        probabilities = np.array(rows)  # [texts, labels]
        collected = self._collect(examples, predictions)
        if isinstance(collected, PredictedLabelSets):
            return {**self._evaluate_label_sets(collected, probabilities, scoring), **reading}
        confusion = collected.confusion
        is_right = collected.predictions == collected.references
        return {
            "texts": len(examples),
            **label_scores(confusion),
            **scoring.compute_final(collected),
            "calibration_error": calibration_error(probabilities.max(1), is_right),
            "labels": self.labels,
            "confusion": confusion.tolist(),
            **reading,
        }

    def _evaluate_label_sets(
        self, collected: PredictedLabelSets, probabilities: Probabilities, scoring: Scoring
    ) -> dict[str, Any]:
        predicted = collected.predictions  # [texts, labels]
        references = collected.references
        f1_by_label = {}
        for index, name in enumerate(self.labels):
            f1_by_label[name] = multi_label_f1(predicted[:, [index]], references[:, [index]])["micro_f1"]
        is_right = (probabilities >= 0.5) == references
        confidence = np.maximum(probabilities, 1 - probabilities)
        return {
            "texts": len(references),
            **scoring.compute_final(collected),
            "calibration_error": calibration_error(confidence.ravel(), is_right.ravel()),
            "labels": self.labels,
            "f1_by_label": f1_by_label,
        }
