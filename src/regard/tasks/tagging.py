"""Tagging as a task: a tag for each word, decided at its first piece."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.noise import Noise
from regard.errors import UsageError
from regard.models.encoder import Encoder
from regard.tasks.base import RowTask
from regard.tasks.encoding import OVERLAP, Account, Encoded, KeptStates, encoder_states, summed_losses, windows
from regard.text.framing import Framing
from regard.tokens import Ids, Tokens

Numbers = NDArray[np.int64]


@dataclass
class EncodedWords(Encoded):
    """Rows of sentences; each word is decided at one place of one row."""

    places: list[Numbers] = field(default_factory=list)  # in a row, the first pieces of the words that it decides
    words: list[Numbers] = field(default_factory=list)  # their numbers in the sentence

    def told(self, model: Encoder) -> Scored:
        """Yield what a model says of all tokens, some rows at a time."""
        return ((numbers, tokens.offsets, scores) for numbers, tokens, scores in self.scored(model))


def packed_places(places: Sequence[Numbers], numbers: Numbers, offsets: Ids) -> Numbers:
    """Return where places of some rows are when these rows are packed."""
    return np.concatenate([places[number] + offsets[at] for at, number in enumerate(numbers)])


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


def read_words(framing: Framing, texts: Sequence[str], spans: Sequence[Spans], longest: int) -> EncodedWords:
    """Return sentences as rows of at most `longest` tokens; a word is decided where most stands around it."""
    room = longest - framing.room()
    if room < 2:
        raise UsageError(f"rows of {longest} tokens have no room for a sentence: see --max-length")
    opening = len(framing.alone.before)
    made = EncodedWords(account=Account(texts=len(texts), longest=longest))
    for number, (text, where) in enumerate(zip(texts, spans, strict=True)):
        encoded = framing.tokenizer.encode(text)
        pieces = first_pieces(where, encoded.spans)
        found = windows(len(encoded.ids), room, room // OVERLAP)
        made.account.tokens += len(encoded.ids)
        made.account.windowed += len(found) > 1
        known = np.flatnonzero(pieces >= 0)
        edges = np.array(found)
        margin = np.minimum(pieces[known, None] - edges[:, 0], edges[:, 1] - 1 - pieces[known, None])
        home = margin.argmax(1) if len(known) else known
        for turn, (first, last) in enumerate(found):
            mine = known[home == turn]
            made.add(*framing.frame(encoded.ids[first:last]), number)
            made.places.append(pieces[mine] - first + opening)
            made.words.append(mine)
    made.account.windows = len(made)
    return made


def first_pieces(words: Spans, pieces: Spans) -> Numbers:
    """Return the number of each word's first piece; -1 where it has none.

    >>> first_pieces([(0, 5), (6, 8)], [(0, 2), (2, 5), (6, 8)]).tolist()
    [0, 2]
    """
    starts = np.array([start for start, _ in pieces], dtype=np.int64)
    stops = np.array([stop for _, stop in pieces], dtype=np.int64)
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
    places: Numbers  # among all states
    tags: Numbers
    states: Tensor | None = None  # of these places, where the encoder does not change

    @property
    def count(self) -> int:
        """Words: each has one tag."""
        return max(1, len(self.tags))

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.tokens)} sentences of up to {self.tokens.lengths.max()} tokens"


class TaggingTask(RowTask[EncodedWords]):
    """Knows what a batch of tagged sentences means."""

    counted = "words"

    def __init__(
        self,
        train: EncodedWords,
        tags: Sequence[Numbers],
        *,
        seed: int,
        digest: str,
        weights: NDArray[np.float32] | None = None,
        kept: KeptStates | None = None,
    ) -> None:
        super().__init__(train, seed=seed, digest=digest, weights=weights)
        self.kept = kept
        self.tags = [tags[owner][words] for owner, words in zip(train.owners, train.words, strict=True)]

    def batch(self, numbers: Numbers, epoch: int) -> TagBatch:
        """Return training rows and their tags."""
        tokens = self.train.batch(numbers)
        tags = np.concatenate([self.tags[number] for number in numbers])
        if self.kept is not None:  # what is kept are the states of first pieces
            return TagBatch(tokens, np.arange(len(tags), dtype=np.int64), tags, self.kept.of(numbers))
        return TagBatch(tokens, packed_places(self.train.places, numbers, tokens.offsets), tags)

    def loss(self, model: Encoder, batch: TagBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the batch's words."""
        states, rows = encoder_states(model, batch.tokens, noise, batch.states, batch.places)
        if batch.states is not None:
            states = states[torch.from_numpy(batch.places).to(states.device)]
        scores = model.label_scores(states, rows, noise).float()
        return summed_losses(scores, torch.from_numpy(batch.tags), smoothing, self.weights)


class Decided(Protocol):
    """Rows of sentences, and where in them words are decided."""

    places: list[Numbers]  # in a row, the first pieces of the words that it decides
    words: list[Numbers]  # their numbers in the sentence

    @property
    def owners(self) -> Sequence[int]:
        """The sentence of each row."""
        ...


Scored = Iterable[tuple[Numbers, Ids, NDArray[np.float32]]]  # some rows: numbers, offsets, scores of all their tokens


def word_chances(read: Decided, scored: Scored, counts: Sequence[int], size: int) -> list[NDArray[np.float64]]:
    """Return the log-chances of the tags for each word of each sentence; one without a piece is outside."""
    made = [np.zeros((count, size)) for count in counts]
    for row in made:
        row[:, 1:] = -30.0
    for numbers, offsets, scores in scored:
        for at, number in enumerate(numbers):
            raised = scores[read.places[number] + offsets[at]].astype(np.float64)
            raised -= raised.max(axis=1, keepdims=True) if len(raised) else 0
            made[read.owners[number]][read.words[number]] = raised - np.log(np.exp(raised).sum(1, keepdims=True))
    return made
