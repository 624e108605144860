"""Questions about stories as sequences of words, for models that read texts: RNNs and Transformers.

A story becomes `mary went home . john slept . where is mary ?`: every sentence is closed by a full stop, the question
by a question mark. An RNN reads one text, an encoder the pair of story and question. The answers are the labels. Of a
story that is too long, the first sentences are left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.attention.sites import POOLING_SITE
from regard.attention.trace import trace
from regard.backends import EncoderBackend
from regard.data.babi import StoryQuestion, StoryQuestions, story_words
from regard.errors import DataError
from regard.tasks.calibration import softmax_probabilities
from regard.tasks.metrics import negative_log_likelihood
from regard.tasks.story_qa import (
    UNKNOWN_ANSWER,
    StoryPrediction,
    StoryReferences,
    StoryVocabulary,
    refuse_unknown_answers,
)
from regard.tasks.text_model import PreprocessedTexts, TextPreprocessor
from regard.tasks.windows import EncodedTexts
from regard.text.special_tokens import SpecialTokens
from regard.text.tokenizer import SPACE, Tokenizer

if TYPE_CHECKING:
    from regard.models.text_classifier import TextClassifierModel

SENTENCE_END = "."
QUESTION_END = "?"
RowsT = TypeVar("RowsT", EncodedTexts, PreprocessedTexts)
BatchT = TypeVar("BatchT")
Indices = NDArray[np.int64]
Floats = NDArray[np.float32]


# ---- stories as texts


@dataclass(frozen=True)
class StoryText:
    """A question and the end of its story, as words between spaces."""

    story: str  # sentences that are read, each closed by a full stop
    question: str  # closed by a question mark
    sentence_lengths: tuple[int, ...]  # tokens of each sentence that is read, with its full stop
    truncated_sentences: int  # at the beginning of the story, left out

    @property
    def text(self) -> str:
        """Story and question as one text."""
        return f"{self.story} {self.question}"


class StoryFormatter:
    """Formats stories as texts of known words that fit a row.

    >>> from regard.text.train import build_word_tokenizer
    >>> formatter = StoryFormatter(build_word_tokenizer("mary went home where is . ?".split()), ["home"], max_length=9)
    >>> question = StoryQuestion("one", ("Mary is home.", "Mary went home."), "Where is Mary?")
    >>> formatter.format(question).text, formatter.format(question).truncated_sentences
    ('mary went home . where is mary ?', 1)
    """

    def __init__(self, tokenizer: Tokenizer, answers: Sequence[str], *, max_length: int, num_special: int = 0) -> None:
        words = sorted(tokenizer.backend.get_vocab().items(), key=lambda item: item[1])
        known_words = tuple(token.removeprefix(SPACE) for token, _ in words if token.startswith(SPACE))
        self.vocabulary = StoryVocabulary(known_words, frozenset(answers))
        self.max_length = max_length
        self.capacity = max_length - num_special
        self._sentences: dict[str, str] = {}

    def format(self, question: StoryQuestion) -> StoryText:
        """Format the last sentences of a story that fit, and its question; faults have their location."""
        sentences = []
        for position, sentence in enumerate(question.sentences):
            if sentence not in self._sentences:
                self._sentences[sentence] = self._join(sentence, SENTENCE_END, question.sentence_location(position))
            sentences.append(self._sentences[sentence])
        question_text = self._join(question.text, QUESTION_END, question.location, "question")
        lengths = [sentence.count(" ") + 1 for sentence in sentences]
        ends = np.cumsum(lengths[::-1])  # tokens of the last sentence, of the last two, …
        num_read = int(np.searchsorted(ends, self.capacity - question_text.count(" ") - 1, side="right"))
        if not num_read:
            raise DataError(
                f"the question and the sentence before it have more than {self.capacity} words and signs",
                location=question.location,
                advice="shorten them, or train with a larger --max-length",
            )
        num_truncated = len(sentences) - num_read
        return StoryText(
            " ".join(sentences[num_truncated:]),
            question_text,
            sentence_lengths=tuple(lengths[num_truncated:]),
            truncated_sentences=num_truncated,
        )

    def _join(self, text: str, end: str, location: str, role: str = "sentence") -> str:
        try:
            self.vocabulary.encode(text, role=role)
        except DataError as error:
            raise DataError(error.what, location=location, advice=error.advice) from None
        return " ".join([*story_words(text), end])


def story_tokens(questions: StoryQuestions) -> list[str]:
    """Words and signs of stories, in the order of their first occurrence: the vocabulary of a tokenizer."""
    vocabulary = StoryVocabulary.from_questions(questions)
    texts = dict.fromkeys(text for question in questions.questions for text in (*question.sentences, question.text))
    words = {word for text in texts for word in story_words(text)}
    return [SENTENCE_END, QUESTION_END, *(word for word in vocabulary.words if word in words)]


# ---- rows of a model


@dataclass(frozen=True)
class StorySequences(ABC, Generic[RowsT]):
    """Questions with their stories as rows of a model, and what its answers are compared with."""

    texts: Sequence[StoryText]
    rows: RowsT
    references: StoryReferences
    targets: NDArray[np.int64]  # label of each answer, or UNKNOWN_ANSWER

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, indices: Indices) -> Self:
        """The questions at these indices."""
        return replace(
            self,
            texts=[self.texts[index] for index in indices],
            rows=self.rows.select(indices),
            references=self.references.select(indices),
            targets=self.targets[indices],
        )

    @abstractmethod
    def iter_probabilities(self, model: Any) -> Iterator[tuple[Indices, Floats]]:
        """Yield indices and label probabilities of each batch."""

    @abstractmethod
    def iter_attention(self, model: Any) -> Iterator[tuple[Indices, Floats, list[Floats]]]:
        """Yield the same with attention of each row to its tokens, [layers, T]."""

    def loss(self, probabilities: Floats) -> float:  # [questions, labels]
        """Mean loss over the questions whose answer the model can give."""
        known = np.flatnonzero(self.targets != UNKNOWN_ANSWER)
        return negative_log_likelihood(probabilities[known], self.targets[known])


class TextStories(StorySequences[PreprocessedTexts]):
    """Stories with their questions as texts, for a model with its own vocabulary, such as an RNN."""

    def iter_probabilities(self, model: TextClassifierModel) -> Iterator[tuple[Indices, Floats]]:
        for indices, batch in self.rows.batches():
            yield indices, model.probabilities(batch)

    def iter_attention(self, model: TextClassifierModel) -> Iterator[tuple[Indices, Floats, list[Floats]]]:
        for (indices, probabilities), sites in _iter_traced(self.iter_probabilities(model)):
            if POOLING_SITE in sites:
                yield indices, probabilities, [heads[0] for heads in sites[POOLING_SITE]]
            else:
                yield indices, probabilities, [np.zeros((0, 0), dtype=np.float32)] * len(indices)


class EncoderStories(StorySequences[EncodedTexts]):
    """Stories and questions as pairs of texts, for an encoder."""

    def iter_probabilities(self, model: EncoderBackend) -> Iterator[tuple[Indices, Floats]]:
        for indices, _, logits in self.rows.iter_logits(model):
            yield indices, softmax_probabilities(logits).astype(np.float32)

    def iter_attention(self, model: EncoderBackend) -> Iterator[tuple[Indices, Floats, list[Floats]]]:
        for (indices, probabilities), sites in _iter_traced(self.iter_probabilities(model)):
            layers = [weights.mean(axis=1) for site, weights in sites.items() if site != POOLING_SITE]  # [B, T, T] each
            weights = []
            for row, index in enumerate(indices):
                length = len(self.rows.rows[index])
                if POOLING_SITE in sites:
                    readout = sites[POOLING_SITE][row, 0, 0, :length]
                else:
                    readout = _pooled_shares(model.config.pooling, length)
                weights.append(np.stack([readout @ layer[row, :length, :length] for layer in layers]))
            yield indices, probabilities, weights


def _iter_traced(batches: Iterator[BatchT]) -> Iterator[tuple[BatchT, dict[str, Floats]]]:
    """Yield each batch with the attention weights of all sites behind it, [B, H, Q, K]."""
    while True:
        with trace(full_precision=True) as captured:
            batch = next(batches, None)
        if batch is None:
            return
        yield batch, {site: captured[site].weights for site in captured}


def _pooled_shares(pooling: str, length: int) -> Floats:
    """Share of each token in the pooled state, [T]."""
    if pooling == "mean":
        return np.full(length, 1 / length, dtype=np.float32)
    shares = np.zeros(length, dtype=np.float32)
    shares[length - 1 if pooling == "last" else 0] = 1
    return shares


@dataclass(frozen=True)
class StoryEncoder:
    """Encodes stories as rows of a model with these answers: pairs with special tokens, or single texts."""

    tokenizer: Tokenizer
    answers: tuple[str, ...]  # the labels of the model
    max_length: int
    has_pairs: bool

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """Template of the tokenizer."""
        return SpecialTokens(self.tokenizer)

    @cached_property
    def formatter(self) -> StoryFormatter:
        """Formatter of stories that fit a row."""
        num_special = self.special_tokens.num_special(pair=True) if self.has_pairs else 0
        return StoryFormatter(self.tokenizer, self.answers, max_length=self.max_length, num_special=num_special)

    def encode(self, stories: StoryQuestions, *, strict: bool = False) -> StorySequences[Any]:
        """Encode questions; with `strict`, answers that do not occur in training are errors."""
        if strict:
            refuse_unknown_answers(stories, self.answers)
        texts = [self.formatter.format(question) for question in stories.questions]
        labels = {answer: label for label, answer in enumerate(self.answers)}
        references = StoryReferences(
            answers=tuple(question.answer if question.answer in labels else "" for question in stories.questions),
            tasks=tuple(question.task for question in stories.questions),
            support=tuple(
                {position - text.truncated_sentences for position in question.support}
                for question, text in zip(stories.questions, texts, strict=True)
            ),
        )
        targets = np.array([labels.get(question.answer, UNKNOWN_ANSWER) for question in stories.questions])
        if not self.has_pairs:
            preprocessor = TextPreprocessor(self.tokenizer, self.max_length)
            return TextStories(texts, preprocessor.encode([text.text for text in texts]), references, targets)
        rows = EncodedTexts()
        for index, text in enumerate(texts):
            ids = self.tokenizer.encode(text.story).ids
            row, token_types = self.special_tokens.add(ids, self.tokenizer.encode(text.question).ids)
            rows.add(row, token_types, index)
        return EncoderStories(texts, rows, references, targets)

    @property
    def story_start(self) -> int:
        """Index of the first token of the story in a row."""
        return len(self.special_tokens.pair_template.before) if self.has_pairs else 0

    def predict(
        self, model: Any, sequences: StorySequences[Any], *, top_k: int = 1
    ) -> tuple[list[StoryPrediction], float]:
        """Answers of a model with attention to sentences, the `top_k` most likely of each question; and the loss."""
        predictions: dict[int, StoryPrediction] = {}
        all_probabilities = np.zeros((len(sequences), len(self.answers)), dtype=np.float32)
        for indices, probabilities, attention in sequences.iter_attention(model):
            all_probabilities[indices] = probabilities
            for index, token_weights in zip(indices.tolist(), attention, strict=True):
                lengths = sequences.texts[index].sentence_lengths
                weights = _sentence_weights(token_weights, self.story_start, lengths)
                predictions[index] = self._prediction(all_probabilities[index], weights, top_k)
        return [predictions[index] for index in range(len(sequences))], sequences.loss(all_probabilities)

    def predict_texts(self, model: Any, sequences: StorySequences[Any]) -> tuple[list[str], float]:
        """The most likely answers alone, and the loss."""
        all_probabilities = np.zeros((len(sequences), len(self.answers)), dtype=np.float32)
        for indices, probabilities in sequences.iter_probabilities(model):
            all_probabilities[indices] = probabilities
        return [self.answers[label] for label in all_probabilities.argmax(1)], sequences.loss(all_probabilities)

    def _prediction(self, probabilities: Floats, weights: Floats, top_k: int) -> StoryPrediction:
        ranked = np.argsort(-probabilities, kind="stable")[:top_k]
        answers = [(self.answers[label], float(probabilities[label])) for label in ranked]
        text, probability = answers[0]
        return StoryPrediction(text, probability, weights=weights, alternatives=tuple(answers[1:]))


def _sentence_weights(token_weights: Floats, start: int, lengths: Sequence[int]) -> Floats:
    """Sum the weights of the tokens of each sentence, [layers, T] → [layers, sentences].

    >>> _sentence_weights(np.array([[0.5, 0.25, 0.125, 0.125]]), 1, [2, 1]).tolist()
    [[0.375, 0.125]]
    """
    if not len(token_weights):
        return np.zeros((0, len(lengths)), dtype=np.float32)
    starts = start + np.append(0, np.cumsum(lengths))
    sums = [token_weights[:, first:stop].sum(axis=1) for first, stop in pairwise(starts)]
    return np.stack(sums, axis=1)
