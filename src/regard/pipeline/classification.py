"""`ClassificationPipeline`: texts to labels, each with its probability."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.labelled import Labelled
from regard.errors import UsageError
from regard.models.classifier import Classifier
from regard.tasks.classification import Perception, label_chances
from regard.tasks.metrics import confusion, label_scores

TOGETHER = 512  # texts that are read together


class Label(str):
    """The likeliest label of a text; a str with what else is known."""

    text: str
    probability: float
    probabilities: dict[str, float]  # of all labels, the likeliest first
    cut: int  # tokens at the end of the text that were not read

    @classmethod
    def of(cls, text: str, chances: NDArray[np.float32], cut: int, labels: Sequence[str]) -> Label:
        """Return the likeliest of the labels."""
        ranked = np.argsort(-chances, kind="stable")
        made = cls(labels[ranked[0]])
        made.text, made.cut = text, int(cut)
        made.probabilities = {labels[number]: float(chances[number]) for number in ranked}
        made.probability = made.probabilities[made]
        return made

    @classmethod
    def none(cls, text: str) -> Label:
        """Return the empty label of a blank text."""
        made = cls("")
        made.text, made.cut, made.probability, made.probabilities = text, 0, 0.0, {}
        return made


class ClassificationPipeline:
    """Texts in, labels out."""

    def __init__(self, model: Classifier, perception: Perception, task: dict[str, Any]) -> None:
        self.model, self.perception, self.task = model, perception, task
        self.labels: list[str] = list(task["labels"])

    def stream(self, texts: Iterable[str]) -> Iterator[Label]:
        """Yield the label of each text, in order; a blank text has an empty one."""
        waiting = iter(texts)
        while some := list(islice(waiting, TOGETHER)):
            filled = [text for text in some if text.strip()]
            read = self.perception.read(filled)
            found = zip(filled, label_chances(self.model, read), read.cut, strict=True)
            for text in some:
                yield Label.of(*next(found), self.labels) if text.strip() else Label.none(text)

    def classify(self, texts: Sequence[str]) -> list[Label]:
        """Return the label of each text."""
        if isinstance(texts, str):
            raise UsageError("classify takes a list of texts: call the pipeline itself with one")
        return list(self.stream(texts))

    def __call__(self, text: str) -> Label:
        """Return the label of one text."""
        return self.classify([text])[0]

    def scores(self, wanted: Labelled, said: Sequence[Label]) -> dict[str, Any]:
        """Return accuracy with its interval, macro-F1 and the table of confusions of labels that were given."""
        right = wanted.numbers(self.labels)
        given = np.array([self.labels.index(label) for label in said], dtype=np.int64)
        table = confusion(right, given, len(self.labels))
        return {
            "texts": len(wanted),
            **label_scores(table),
            "labels": self.labels,
            "confusion": table.tolist(),
            "cut": sum(label.cut > 0 for label in said),
        }
