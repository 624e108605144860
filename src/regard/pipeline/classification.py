"""`ClassificationPipeline`: texts to labels, each with its probability."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.config.inference import RecordConfig
from regard.data.labelled import LabelledTexts
from regard.errors import UsageError
from regard.models.bert import Bert
from regard.models.rnn_text import RnnClassifier
from regard.pipeline.records.encoder import EncoderRecorder, RnnTextRecorder, encode_row
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.calibration import calibration_error, multi_label_f1, sigmoid_probabilities, softmax_probabilities
from regard.tasks.classification import label_probabilities
from regard.tasks.metrics import confusion_matrix, label_scores
from regard.tasks.rnn_text import RnnPreprocessor
from regard.tasks.windows import encode_texts, text_logits
from regard.text.special_tokens import SpecialTokens, TruncationReport
from regard.view.record.parts import LabelProbabilities
from regard.view.record.record import Record

TOGETHER = 512  # texts that are read together
SEPARATOR = ";"  # between the labels of a text that may have several, where the data had none

Chances = NDArray[np.floating]


@dataclass(frozen=True)
class LabelPredictions:
    """What a model says of texts, and how much of them it read."""

    probabilities: Chances  # [texts, labels]
    truncated: NDArray[np.int64]  # [texts], tokens that were not read
    windows: NDArray[np.int64]  # [texts], rows that each was read in
    account: TruncationReport


class TextClassifier(Protocol):
    """A model that reads texts and tells the chances of labels."""

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None) -> LabelPredictions:
        """Return the chances of all labels for each text."""
        ...

    def record(self, text: str, pair: str | None, verdict: LabelProbabilities, seeing: RecordConfig) -> Record:
        """Return where the model looked while it read one text."""
        ...


@dataclass(frozen=True)
class RecurrentClassifier:
    """A classifier with words of its own."""

    model: RnnClassifier
    perception: RnnPreprocessor

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None) -> LabelPredictions:
        """Return the chances of all labels for each text."""
        if pairs is not None:
            raise UsageError("this classifier reads single texts, not pairs: one made with --from reads both")
        read = self.perception.encode(texts)
        windows = np.ones(len(texts), dtype=np.int64)
        return LabelPredictions(
            label_probabilities(self.model, read), read.truncated, windows, self.perception.account(read)
        )

    def record(self, text: str, pair: str | None, verdict: LabelProbabilities, seeing: RecordConfig) -> Record:
        """Return where the model looked while it read one text."""
        looker = RnnTextRecorder(self.model, self.perception)
        return looker.record(text, seeing, task="classify", label=verdict.best[0], verdict=verdict)


@dataclass(frozen=True)
class EncoderClassifier:
    """An encoder with a head for labels, whose chances are calibrated."""

    model: Bert
    framing: SpecialTokens
    max_length: int
    temperature: float = 1.0
    is_multi_label: bool = False

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None) -> LabelPredictions:
        """Return the chances of all labels for each text; a long text is read in windows, a long pair is cut."""
        read = encode_texts(self.framing, texts, pairs, self.max_length)
        scores = text_logits(self.model, read, len(texts))
        chances = (
            sigmoid_probabilities(scores, self.temperature)
            if self.is_multi_label
            else softmax_probabilities(scores, self.temperature)
        )
        cut = np.zeros(len(texts), dtype=np.int64)
        if read.account.truncated_texts and pairs is not None:
            whole = [self.framing.tokenizer.encode_batch(side) for side in (texts, pairs)]
            lengths = np.array([len(one) + len(other) for one, other in zip(*whole, strict=True)])
            cut = np.maximum(0, lengths + self.framing.num_special(pair=True) - self.max_length)
        windows = np.bincount(np.asarray(read.text_indices, dtype=np.int64), minlength=len(texts))
        return LabelPredictions(chances, cut, windows, read.account)

    def record(self, text: str, pair: str | None, verdict: LabelProbabilities, seeing: RecordConfig) -> Record:
        """Return where the model looked while it read one text; of a long one, its first window."""
        row = encode_row(self.framing, text, pair, max_length=self.max_length)
        looker = EncoderRecorder(self.model, self.framing)
        return looker.record(row, seeing, task="classify", more=lambda states: {"verdict": verdict})


class Label(PipelineResult, str):
    """The likeliest label of a text; a str with what else is known."""

    text: str
    probability: float
    probabilities: dict[str, float]  # of all labels, the likeliest first
    truncated: int  # tokens of the text that were not read
    windows: int  # rows that it was read in
    labels: tuple[str, ...]  # all that the text has; the likeliest alone where labels exclude each other

    @classmethod
    def from_probabilities(
        cls,
        text: str,
        probabilities: Chances,
        cut: int,
        windows: int,
        labels: Sequence[str],
        thresholds: Sequence[float] | None = None,
        separator: str = SEPARATOR,
    ) -> Label:
        """Return the likeliest of the labels; with thresholds, all labels that reach theirs."""
        ranked = np.argsort(-probabilities, kind="stable")
        given = [ranked[0]] if thresholds is None else [one for one in ranked if probabilities[one] >= thresholds[one]]
        made = cls(separator.join(labels[one] for one in given))
        made.text, made.truncated, made.windows = text, int(cut), int(windows)
        made.labels = tuple(labels[one] for one in given)
        made.probabilities = {labels[number]: float(probabilities[number]) for number in ranked}
        least = min((float(probabilities[one]) for one in given), default=1 - float(probabilities.max()))
        made.probability = least  # of the least sure of them; of having none, where it has none
        return made

    @classmethod
    def none(cls, text: str) -> Label:
        """Return the empty label of a blank text."""
        made = cls("")
        made.text, made.truncated, made.probability, made.probabilities = text, 0, 0.0, {}
        made.windows, made.labels = 0, ()
        return made


class ClassificationPipeline:
    """Texts in, labels out; `account` says how much of all texts so far was read."""

    def __init__(self, reader: TextClassifier, task: dict[str, Any]) -> None:
        self.reader, self.task = reader, task
        self.labels: list[str] = list(task["labels"])
        levels = task.get("thresholds")
        self.thresholds = None if levels is None else [float(levels[name]) for name in self.labels]
        self.account = TruncationReport()

    def stream(self, texts: Iterable[str], pairs: Iterable[str] | None = None) -> Iterator[Label]:
        """Yield the label of each text, in order; a blank text has an empty one."""
        waiting, others = iter(texts), None if pairs is None else iter(pairs)
        while some := list(islice(waiting, TOGETHER)):
            second = None if others is None else list(islice(others, len(some)))
            filled = [number for number, text in enumerate(some) if text.strip()]
            self.account.blank += len(some) - len(filled)
            wanted = None if second is None else [second[number] for number in filled]
            told = self.reader.predict([some[number] for number in filled], wanted) if filled else None
            if told is not None:
                self.account.add(told.account)
            made = [Label.none(text) for text in some]
            separator = str(self.task.get("separator") or SEPARATOR)
            for place, number in enumerate(filled):
                assert told is not None
                facts = told.probabilities[place], told.truncated[place], told.windows[place]
                label = Label.from_probabilities(some[number], *facts, self.labels, self.thresholds, separator)
                other = None if second is None else second[number]
                made[number] = attach_recorder(label, partial(self._recorded, label, other))
            yield from made

    def _recorded(self, label: Label, pair: str | None, seeing: RecordConfig) -> Record:
        verdict = LabelProbabilities(tuple(label.probabilities), tuple(label.probabilities.values()))
        return self.reader.record(label.text, pair, verdict, seeing)

    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Label]:
        """Return the label of each text, or pair of texts."""
        if isinstance(texts, str):
            raise UsageError("classify takes a list of texts: call the pipeline itself with one")
        return list(self.stream(texts, pairs))

    def __call__(self, text: str, pair: str | None = None) -> Label:
        """Return the label of one text, or of a pair."""
        return self.classify([text], None if pair is None else [pair])[0]

    def evaluate(self, examples: LabelledTexts, predictions: Sequence[Label]) -> dict[str, Any]:
        """Return the scores of labels that were given, with calibration error and what was not read."""
        cut = {
            "cut": sum(label.truncated > 0 for label in predictions),
            "windowed": sum(label.windows > 1 for label in predictions),
        }
        chances = np.array([[label.probabilities.get(name, 0.0) for name in self.labels] for label in predictions])
        if self.thresholds is not None:
            marks = examples.label_matrix(self.labels)
            given = np.array([[name in label.labels for name in self.labels] for label in predictions])
            each = {
                name: multi_label_f1(given[:, [at]], marks[:, [at]])["micro_f1"] for at, name in enumerate(self.labels)
            }
            right = (chances >= 0.5) == (marks > 0)
            error = calibration_error(np.maximum(chances, 1 - chances).ravel(), right.ravel())
            facts: dict[str, Any] = {"texts": len(examples), **multi_label_f1(given, marks), "calibration_error": error}
            return {**facts, "labels": self.labels, "f1_by_label": each, **cut}
        numbers = examples.label_ids(self.labels)
        said_numbers = np.array([self.labels.index(label) for label in predictions], dtype=np.int64)
        table = confusion_matrix(numbers, said_numbers, len(self.labels))
        return {
            "texts": len(examples),
            **label_scores(table),
            "calibration_error": calibration_error(chances.max(1), said_numbers == numbers),
            "labels": self.labels,
            "confusion": table.tolist(),
            **cut,
        }
