"""Tagging as a task: a tag for each word, decided at its first piece.

Tagging by a reader with words of its own: sentences as its tokens, each word decided at its first one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.dropout import Noise
from regard.errors import UsageError
from regard.models.bert import Bert
from regard.models.rnn_text import RnnTagger, TextBatch
from regard.tasks.base import RowObjective
from regard.tasks.losses import cross_entropy_sums
from regard.tasks.rnn_text import RnnPreprocessor, RnnTexts
from regard.tasks.windows import OVERLAP, CachedStates, EncodedTexts, encode_for_training, window_spans
from regard.text.special_tokens import SpecialTokens, TruncationReport
from regard.tokens import Ids, Tokens

Numbers = NDArray[np.int64]


@dataclass
class EncodedSentences(EncodedTexts):
    """Rows of sentences; each word is decided at one place of one row."""

    positions: list[Numbers] = field(default_factory=list)  # in a row, the first pieces of the words that it decides
    words: list[Numbers] = field(default_factory=list)  # their numbers in the sentence

    def iter_token_logits(self, model: Bert) -> Scored:
        """Yield what a model says of all tokens, some rows at a time."""
        return ((numbers, tokens.offsets, scores) for numbers, tokens, scores in self.iter_logits(model))


def packed_indices(positions: Sequence[Numbers], rows: Numbers, offsets: Ids) -> Numbers:
    """Return where places of some rows are when these rows are packed."""
    return np.concatenate([positions[number] + offsets[at] for at, number in enumerate(rows)])


Spans = Sequence[tuple[int, int]]


def word_spans(words: Sequence[str]) -> list[tuple[int, int]]:
    """Return where words stand in the text that has a space between them.

    >>> word_spans(["In", "York"])
    [(0, 2), (3, 7)]
    """
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    return [(int(start), int(start) + len(word)) for start, word in zip(starts, words, strict=False)]


def split_words(text: str) -> list[tuple[int, int]]:
    """Return where the words of a text stand: punctuation is apart, but for what stands inside a word or names it.

    >>> text = "It's @jo, in St.-Denis."
    >>> [text[start:stop] for start, stop in split_words(text)]
    ['It', "'s", '@jo', ',', 'in', 'St.-Denis', '.']
    """
    return [found.span() for found in _WORD.finditer(text)]


_WORD = re.compile(r"['’](?:s|re|ve|ll|d|m|t)\b|[@#]?\w+(?:[-._&/]+\w+)*|[^\w\s]", re.IGNORECASE)


def encode_words(
    special_tokens: SpecialTokens, texts: Sequence[str], spans: Sequence[Spans], max_length: int
) -> EncodedSentences:
    """Return sentences as rows of at most `longest` tokens; a word is decided where most stands around it."""
    room = max_length - special_tokens.num_special()
    if room < 2:
        raise UsageError(f"rows of {max_length} tokens have no room for a sentence: see --max-length")
    opening = len(special_tokens.alone.before)
    made = EncodedSentences(account=TruncationReport(texts=len(texts), max_length=max_length))
    for number, (text, where) in enumerate(zip(texts, spans, strict=True)):
        encoded = special_tokens.tokenizer.encode(text)
        pieces = first_subwords(where, encoded.spans)
        found = window_spans(len(encoded.ids), room, room // OVERLAP)
        made.account.tokens += len(encoded.ids)
        made.account.windowed += len(found) > 1
        known = np.flatnonzero(pieces >= 0)
        edges = np.array(found)
        margin = np.minimum(pieces[known, None] - edges[:, 0], edges[:, 1] - 1 - pieces[known, None])
        home = margin.argmax(1) if len(known) else known
        for turn, (first, last) in enumerate(found):
            mine = known[home == turn]
            made.add(*special_tokens.add(encoded.ids[first:last]), number)
            made.positions.append(pieces[mine] - first + opening)
            made.words.append(mine)
    made.account.windows = len(made)
    return made


def first_subwords(words: Spans, subwords: Spans) -> Numbers:
    """Return the number of each word's first piece; -1 where it has none.

    >>> first_subwords([(0, 5), (6, 8)], [(0, 2), (2, 5), (6, 8)]).tolist()
    [0, 2]
    """
    starts = np.array([start for start, _ in subwords], dtype=np.int64)
    stops = np.array([stop for _, stop in subwords], dtype=np.int64)
    made = np.full(len(words), -1, dtype=np.int64)
    at = 0
    for number, (start, stop) in enumerate(words):
        while at < len(starts) and (starts[at] < start or stops[at] == starts[at]):
            at += 1
        if at < len(starts) and starts[at] < stop:
            made[number] = at
    return made


@dataclass(frozen=True)
class TagBatch:
    """Rows of sentences and the tags of the words that they decide."""

    tokens: Tokens
    positions: Numbers  # among all states
    tags: Numbers
    cached_states: Tensor | None = None  # of these places, where the encoder does not change

    @property
    def num_predictions(self) -> int:
        """Words: each has one tag."""
        return max(1, len(self.tags))

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.tokens)} sentences of up to {self.tokens.lengths.max()} tokens"


class TaggingObjective(RowObjective[EncodedSentences]):
    """Knows what a batch of tagged sentences means."""

    unit = "words"

    def __init__(
        self,
        train: EncodedSentences,
        tags: Sequence[Numbers],
        *,
        seed: int,
        digest: str,
        weights: NDArray[np.float32] | None = None,
        kept: CachedStates | None = None,
    ) -> None:
        super().__init__(train, seed=seed, digest=digest, weights=weights)
        self.cached_states = kept
        self.tags = [tags[owner][words] for owner, words in zip(train.text_indices, train.words, strict=True)]

    def batch(self, numbers: Numbers, epoch: int) -> TagBatch:
        """Return training rows and their tags."""
        tokens = self.train.batch(numbers)
        tags = np.concatenate([self.tags[number] for number in numbers])
        if self.cached_states is not None:  # what is kept are the states of first pieces
            return TagBatch(tokens, np.arange(len(tags), dtype=np.int64), tags, self.cached_states.get(numbers))
        return TagBatch(tokens, packed_indices(self.train.positions, numbers, tokens.offsets), tags)

    def loss(self, model: Bert, batch: TagBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the batch's words."""
        states, rows = encode_for_training(model, batch.tokens, noise, batch.cached_states, batch.positions)
        if batch.cached_states is not None:
            states = states[torch.from_numpy(batch.positions).to(states.device)]
        scores = model.head_logits(states, rows, noise).float()
        return cross_entropy_sums(scores, torch.from_numpy(batch.tags), smoothing, self.weights)


class WordPositions(Protocol):
    """Rows of sentences, and where in them words are decided."""

    positions: list[Numbers]  # in a row, the first pieces of the words that it decides
    words: list[Numbers]  # their numbers in the sentence

    @property
    def text_indices(self) -> Sequence[int]:
        """The sentence of each row."""
        ...


Scored = Iterable[tuple[Numbers, Ids, NDArray[np.float32]]]  # some rows: numbers, offsets, scores of all their tokens


def tag_logprobs(
    rows: WordPositions, logits: Scored, counts: Sequence[int], num_tags: int
) -> list[NDArray[np.float64]]:
    """Return the log-chances of the tags for each word of each sentence; one without a piece is outside."""
    made = [np.zeros((count, num_tags)) for count in counts]
    for row in made:
        row[:, 1:] = -30.0
    for numbers, offsets, scores in logits:
        for at, number in enumerate(numbers):
            raised = scores[rows.positions[number] + offsets[at]].astype(np.float64)
            raised -= raised.max(axis=1, keepdims=True) if len(raised) else 0
            made[rows.text_indices[number]][rows.words[number]] = raised - np.log(np.exp(raised).sum(1, keepdims=True))
    return made


@dataclass
class RnnSentences(RnnTexts):
    """Sentences, and where in them words are decided; a word beyond what is read is not."""

    positions: list[Numbers] = field(default_factory=list)  # in a sentence, the first tokens of its words
    words: list[Numbers] = field(default_factory=list)  # their numbers

    @classmethod
    def read(cls, perception: RnnPreprocessor, texts: Sequence[str], spans: Sequence[Spans]) -> RnnSentences:
        """Return texts whose words stand at these spans of characters."""
        made = cls(**vars(perception.encode(texts)))
        for where, pieces in zip(spans, made.spans, strict=True):
            found = first_subwords(where, pieces)
            made.words.append(np.flatnonzero(found >= 0))
            made.positions.append(found[made.words[-1]])
        return made

    @property
    def text_indices(self) -> Sequence[int]:
        """The sentence of each row: itself."""
        return range(len(self))

    def iter_token_logits(self, model: RnnTagger) -> Scored:
        """Yield what a model says of all tokens, some sentences at a time."""
        return ((numbers, texts.tokens.offsets, model.logits(texts)) for numbers, texts in self.batches())


@dataclass(frozen=True)
class RnnTagBatch:
    """Sentences and the tags of their words."""

    texts: TextBatch
    positions: Numbers  # among all tokens
    tags: Numbers

    @property
    def num_predictions(self) -> int:
        """Words: each has one tag."""
        return max(1, len(self.tags))

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.texts.tokens)} sentences of up to {self.texts.tokens.lengths.max()} tokens"


class RnnTaggingObjective(RowObjective[RnnSentences]):
    """Knows what a batch of tagged sentences means to a reader with words of its own."""

    unit = "words"

    def __init__(
        self,
        train: RnnSentences,
        tags: Sequence[Numbers],
        *,
        seed: int,
        digest: str,
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(train, seed=seed, digest=digest, weights=weights)
        self.tags = [given[words] for given, words in zip(tags, train.words, strict=True)]

    def batch(self, numbers: Numbers, epoch: int) -> RnnTagBatch:
        """Return training sentences and their tags."""
        texts = self.train.batch(numbers)
        places = packed_indices(self.train.positions, numbers, texts.tokens.offsets)
        return RnnTagBatch(texts, places, np.concatenate([self.tags[number] for number in numbers]))

    def loss(
        self, model: RnnTagger, batch: RnnTagBatch, smoothing: float, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the batch's words."""
        scores = model(batch.texts, torch.from_numpy(batch.positions).to(model.device()), noise).float()
        return cross_entropy_sums(scores, torch.from_numpy(batch.tags), smoothing, self.weights)
