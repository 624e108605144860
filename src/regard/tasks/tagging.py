"""Tagging as a task: a label for each word, decided at its first piece; entities that begin before they go on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.noise import Noise
from regard.errors import UsageError
from regard.models.encoder import Encoder
from regard.tasks.encoding import OVERLAP, Account, Encoded, KeptStates, encoder_states, summed_losses, windows
from regard.text.framing import Framing
from regard.tokens import Ids, Tokens

Numbers = NDArray[np.int64]
Floats = NDArray[np.floating]


class Entity(NamedTuple):
    """Words from `start` up to `stop` that are of a kind."""

    start: int
    stop: int
    kind: str


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities that valid tags mark.

    >>> entities(["O", "B-place", "I-place", "B-place"])
    [Entity(start=1, stop=3, kind='place'), Entity(start=3, stop=4, kind='place')]
    """
    made: list[Entity] = []
    for place, tag in enumerate(tags):
        if tag.startswith("B-"):
            made.append(Entity(place, place + 1, tag[2:]))
        elif tag.startswith("I-") and made and made[-1].stop == place and made[-1].kind == tag[2:]:
            made[-1] = made[-1]._replace(stop=place + 1)
    return made


def followers(tags: Sequence[str]) -> NDArray[np.bool_]:
    """Return which tag may follow which, [tags + 1, tags]; the last row is the beginning of a sentence.

    >>> followers(["O", "B-x", "I-x"]).tolist()
    [[True, True, False], [True, True, True], [True, True, True], [True, True, False]]
    """
    made = np.ones((len(tags) + 1, len(tags)), dtype=np.bool_)
    for column, tag in enumerate(tags):
        if tag.startswith("I-"):
            before = [other[2:] == tag[2:] and other[:2] in ("B-", "I-") for other in tags]
            made[:, column] = [*before, False]
    return made


def best_tags(scores: Floats, allowed: NDArray[np.bool_]) -> Numbers:
    """Return the likeliest valid tags of a sentence, given log-chances [words, tags] and `followers`.

    >>> scores = np.log([[0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
    >>> best_tags(scores, followers(["O", "B-x", "I-x"])).tolist()
    [1, 2]
    """
    barred = np.where(allowed, 0.0, -np.inf)
    total = np.asarray(scores[0] + barred[-1], dtype=np.float64)
    back = np.zeros(scores.shape, dtype=np.int64)
    for place in range(1, len(scores)):
        ways = total[:, None] + barred[:-1]
        back[place] = ways.argmax(0)
        total = ways[back[place], np.arange(len(total))] + scores[place]
    made = np.zeros(len(scores), dtype=np.int64)
    made[-1] = total.argmax()
    for place in range(len(scores) - 1, 0, -1):
        made[place - 1] = back[place, made[place]]
    return made


def entity_counts(
    said: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]], kinds: Sequence[str] | None = None
) -> Numbers:
    """Return of each sentence the entities that are right, said and wanted, [sentences, 1 or kinds, 3].

    An entity is right where its words and its kind are.
    """
    groups = 1 if kinds is None else len(kinds)
    made = np.zeros((len(said), groups, 3), dtype=np.int64)
    for row, given, right in zip(made, said, wanted, strict=True):
        sides = [{*entities(given)}, {*entities(right)}]
        for column, found in enumerate((sides[0] & sides[1], *sides)):
            for one in found:
                if kinds is None or one.kind in kinds:
                    row[0 if kinds is None else kinds.index(one.kind), column] += 1
    return made


def entity_scores(said: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return strict precision, recall and F1 of entities, in percent, and how many words have the right tag.

    >>> round(entity_scores([["B-x", "O", "B-y"]], [["B-x", "O", "B-x"]])["f1"], 1)
    50.0
    """
    right, given, there = (int(number) for number in entity_counts(said, wanted).sum((0, 1)))
    pairs = [(one, other) for row in zip(said, wanted, strict=True) for one, other in zip(*row, strict=True)]
    return {
        "f1": 200.0 * right / max(1, given + there),
        "precision": 100.0 * right / max(1, given),
        "recall": 100.0 * right / max(1, there),
        "accuracy": 100.0 * sum(one == other for one, other in pairs) / max(1, len(pairs)),
    }


def usual_tags(
    sentences: Sequence[tuple[Sequence[str], Sequence[str]]], asked: Sequence[Sequence[str]], tags: Sequence[str]
) -> list[list[str]]:
    """Return the tag that each word had most often, valid ones: what a model must beat.

    >>> seen = [(["in", "York"], ["O", "B-place"])]
    >>> usual_tags(seen, [["near", "York"]], ["O", "B-place", "I-place"])
    [['O', 'B-place']]
    """
    place = {tag: number for number, tag in enumerate(tags)}
    counts: dict[str, NDArray[np.float64]] = {}
    usual = np.zeros(len(tags))
    for words, given in sentences:
        for word, tag in zip(words, given, strict=True):
            counts.setdefault(word, np.zeros(len(tags)))[place[tag]] += 1
            usual[place[tag]] += 1
    usual /= max(1.0, usual.sum())
    allowed = followers(tags)
    made = []
    for words in asked:
        scores = np.stack([counts.get(word, np.zeros(len(tags))) + usual + 1e-9 for word in words])
        best = best_tags(np.log(scores / scores.sum(1, keepdims=True)), allowed)
        made.append([tags[number] for number in best])
    return made


# ---- words as an encoder reads them


@dataclass
class EncodedWords(Encoded):
    """Rows of sentences; each word is decided at one place of one row."""

    places: list[Numbers] = field(default_factory=list)  # in a row, the first pieces of the words that it decides
    words: list[Numbers] = field(default_factory=list)  # their numbers in the sentence

    def first_pieces(self, numbers: Numbers, offsets: Ids) -> Numbers:
        """Return where in packed rows the words stand that they decide."""
        return np.concatenate([self.places[number] + offsets[at] for at, number in enumerate(numbers)])


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
        pieces = _first_pieces(where, encoded.spans)
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


def _first_pieces(words: Spans, pieces: Spans) -> Numbers:
    """Return the number of each word's first piece; -1 where it has none.

    >>> _first_pieces([(0, 5), (6, 8)], [(0, 2), (2, 5), (6, 8)]).tolist()
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


class TaggingTask:
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
        self.train, self.seed, self.digest, self.kept = train, seed, digest, kept
        self.weights = None if weights is None else torch.from_numpy(weights)
        self.tags = [tags[owner][words] for owner, words in zip(train.owners, train.words, strict=True)]

    @property
    def lengths(self) -> Numbers:
        """Lengths of the training rows, in tokens."""
        return self.train.lengths

    def epoch(self, epoch: int, budget: int) -> list[Numbers]:
        """Return the row numbers of each batch of an epoch, in order."""
        return self.train.epoch(budget=budget, seed=self.seed, epoch=epoch, digest=self.digest)

    def batch(self, numbers: Numbers, epoch: int) -> TagBatch:
        """Return training rows and their tags."""
        tokens = self.train.batch(numbers)
        tags = np.concatenate([self.tags[number] for number in numbers])
        if self.kept is not None:  # what is kept are the states of first pieces
            return TagBatch(tokens, np.arange(len(tags), dtype=np.int64), tags, self.kept.of(numbers))
        return TagBatch(tokens, self.train.first_pieces(numbers, tokens.offsets), tags)

    def loss(self, model: Encoder, batch: TagBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the batch's words."""
        states, rows = encoder_states(model, batch.tokens, noise, batch.states)
        places = torch.from_numpy(batch.places).to(states.device)
        scores = model.label_scores(states[places], rows, noise).float()
        return summed_losses(scores, torch.from_numpy(batch.tags), smoothing, self.weights)


def word_chances(model: Encoder, read: EncodedWords, counts: Sequence[int]) -> list[NDArray[np.float64]]:
    """Return the log-chances of the tags for each word of each sentence; one without a piece is outside."""
    size = model.config.outputs
    made = [np.zeros((count, size)) for count in counts]
    for row in made:
        row[:, 1:] = -30.0
    for numbers, tokens, scores in read.scored(model):
        for at, number in enumerate(numbers):
            raised = scores[read.places[number] + tokens.offsets[at]].astype(np.float64)
            raised -= raised.max(axis=1, keepdims=True) if len(raised) else 0
            made[read.owners[number]][read.words[number]] = raised - np.log(np.exp(raised).sum(1, keepdims=True))
    return made
