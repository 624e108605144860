"""What a model predicts on a split, beside the references: the argument of every metric.

Predictions have a kind, and a metric applies to some kinds (`regard.metric_table`):

    labels                PredictedLabels          one label per text
    label sets            PredictedLabelSets       any number of labels per text
    tags                  PredictedTags            a tag per word
    entities              PredictedEntities        BIO tags, which mark entities
    answers               PredictedAnswers         spans of passages (in `question_answering`)
    story answers         PredictedStoryAnswers    words that answer questions about stories
    translations          PredictedTranslations    each with one reference
    next tokens           PredictedNextTokens      causal language modelling
    masked tokens         PredictedMaskedTokens    masked language modelling
    bidirectional tokens  PredictedBothDirections  next and previous tokens
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.tasks.entities import entity_scores

if TYPE_CHECKING:
    from regard.tasks.story_qa import StoryReferences

TagSequences = Sequence[Sequence[str]]
LabelIds = NDArray[np.int64]  # [texts]
LabelMatrix = NDArray[np.bool_]  # [texts, labels]


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Base of predictions of all kinds."""

    kind: ClassVar[str]

    loss: float | None = None  # mean in nats; None where it is not measured


@dataclass(frozen=True, kw_only=True)
class PredictedLabels(Predictions):
    """One label per text.

    >>> PredictedLabels(predictions=np.array([0, 1, 1]), references=np.array([0, 0, 1]), labels="no yes".split())
    PredictedLabels(loss=None, predictions=array([0, 1, 1]), references=array([0, 0, 1]), labels=['no', 'yes'])
    """

    kind = "labels"

    predictions: LabelIds
    references: LabelIds
    labels: Sequence[str]  # by id

    @cached_property
    def confusion(self) -> NDArray[np.int64]:  # [labels, labels]
        """Number of texts by reference (rows) and prediction (columns)."""
        num_labels = len(self.labels)
        counts = np.bincount(self.references * num_labels + self.predictions, minlength=num_labels * num_labels)
        return counts.reshape(num_labels, num_labels)


@dataclass(frozen=True, kw_only=True)
class PredictedLabelSets(Predictions):
    """Any number of labels per text."""

    kind = "label sets"

    predictions: LabelMatrix
    references: LabelMatrix
    labels: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class PredictedTags(Predictions):
    """A tag for each word of each sentence."""

    kind: ClassVar[str] = "tags"

    predictions: TagSequences
    references: TagSequences

    @cached_property
    def scores(self) -> dict[str, float]:
        """Strict precision, recall and F1 of entities, and the accuracy of tags, in percent."""
        return entity_scores(self.predictions, self.references)


@dataclass(frozen=True, kw_only=True)
class PredictedEntities(PredictedTags):
    """BIO tags, which mark entities."""

    kind = "entities"


@dataclass(frozen=True, kw_only=True)
class PredictedStoryAnswers(Predictions):
    """Answers to questions about stories; every task has the same weight in a metric."""

    kind = "story answers"

    predictions: Sequence[str]
    references: Sequence[str]
    tasks: Sequence[str]  # of each question
    stories: Sequence[str] = ()  # of each question: those about one story are not independent; empty: all are

    @classmethod
    def from_answers(
        cls, references: StoryReferences, answers: Sequence[str], *, loss: float | None = None
    ) -> PredictedStoryAnswers:
        """Collect the answers of a model; the reference of an answer that it cannot give is empty."""
        return cls(
            predictions=answers,
            references=references.answers,
            tasks=references.tasks,
            loss=loss,
        )


@dataclass(frozen=True, kw_only=True)
class PredictedTranslations(Predictions):
    """Translations, each with one reference."""

    kind = "translations"

    predictions: Sequence[str]
    references: Sequence[str]


@dataclass(frozen=True)
class TokenBlocks:
    """Running text in blocks of tokens, which are the examples of intervals and tests."""

    losses: NDArray[np.float64]  # [blocks], summed over the tokens, in nats
    tokens: NDArray[np.int64]  # [blocks], their number


@dataclass(frozen=True, kw_only=True)
class PredictedNextTokens(Predictions):
    """Running text, each token predicted from those before it."""

    kind = "next tokens"

    loss_per_character: float
    blocks: TokenBlocks | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class PredictedBothDirections(Predictions):
    """Running text, each token predicted from those before it and from those after it."""

    kind = "bidirectional tokens"

    forward_loss: float
    backward_loss: float


@dataclass(frozen=True, kw_only=True)
class PredictedMaskedTokens(Predictions):
    """Masked tokens of running text."""

    kind = "masked tokens"

    references: NDArray[np.int64]  # token ids of all masks
    predict: Callable[[], NDArray[np.int64]] = field(repr=False)  # most probable token of each mask
    unigram_loss: float | None = None  # of token frequencies at the same masks
    next_sentence_accuracy: float | None = None  # in percent, where there are pairs of sentences

    @cached_property
    def predictions(self) -> NDArray[np.int64]:
        """Most probable token of each mask, computed on first use."""
        return self.predict()
