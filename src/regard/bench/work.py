"""What everybody works on: made batches, sentences and texts with the lengths of real ones; a function of the seed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models, pre_tokenizers

from regard.data.batching import epoch_batches
from regard.text.framing import with_marks
from regard.text.tokenizer import SPECIALS, Tokenizer
from regard.tokens import PairBatch, Tokens

Lengths = NDArray[np.int64]
PairLengths = tuple[list[int], list[int]]  # of the source and target rows of one batch

START, END = (SPECIALS.index(name) for name in ("<s>", "</s>"))
FIRST = len(SPECIALS)  # the first token that is a word

POOL = 20_000  # sentence pairs that batches are cut from
SHORTEST, LONGEST = 4, 45  # tokens of a sentence
LONGEST_TEXT = 126  # tokens of a text to encode, without its two marks


def sentence_lengths(count: int, seed: int) -> tuple[Lengths, Lengths]:
    """Return source and target lengths as captions of pictures have them: 13.5 tokens on average, few above 30.

    >>> source, target = sentence_lengths(1000, seed=1)
    >>> 12 < float(source.mean()) < 15, int(source.min()) >= SHORTEST, int(target.max()) <= LONGEST
    (True, True, True)
    """
    chance = np.random.default_rng(seed)
    source = np.clip(chance.gamma(9, 1.5, count), SHORTEST, LONGEST).astype(np.int64)
    target = np.clip(source * chance.normal(1, 0.15, count), SHORTEST, LONGEST).astype(np.int64)
    return source, target


def text_lengths(count: int, seed: int) -> Lengths:
    """Return the lengths of texts of all kinds: a phrase as often as a paragraph, 24 tokens on average."""
    drawn = np.random.default_rng(seed).lognormal(2.99, 0.6, count)
    return np.clip(drawn, 3, LONGEST_TEXT).astype(np.int64)


def drawn_rows(lengths: Sequence[int] | Lengths, vocabulary: int, seed: int) -> list[NDArray[np.int64]]:
    """Return rows of token numbers of these lengths, few of them frequent and most rare, as words are."""
    chance = np.random.default_rng(seed + 1)
    first = len(SPECIALS)
    most = vocabulary - first + 1
    return [first - 1 + np.floor(most ** chance.random(length)).astype(np.int64) for length in lengths]


def training_lengths(budget: int, count: int, seed: int = 1) -> list[PairLengths]:
    """Return source and target lengths of batches: pairs of like length, at most `budget` tokens a side, ends counted.

    >>> source, target = training_lengths(128, 1)[0]
    >>> sum(length + 1 for length in source) <= 128, len(set(target))
    (True, 1)
    """
    source, target = sentence_lengths(POOL, seed)
    numbers = epoch_batches(np.stack([source + 1, target + 1], 1), budget=budget, seed=seed, epoch=0, digest="ab")
    return [(source[some].tolist(), target[some].tolist()) for some in numbers[:count]]


def batches(lengths: Sequence[PairLengths], vocabulary: int, seed: int = 1) -> list[PairBatch]:
    """Return batches with rows of these lengths; source rows get their end.

    >>> batch = batches([([2, 1], [3, 1])], 50)[0]
    >>> batch.source.lengths.tolist(), batch.target.lengths.tolist(), int(batch.source.ids[-1])
    ([3, 2], [3, 1], 1)
    """
    made = []
    for place, (source, target) in enumerate(lengths):
        rows = [np.append(row, END) for row in drawn_rows(source, vocabulary, seed + place)]
        others = drawn_rows(target, vocabulary, seed + place + 1000)
        made.append(PairBatch(*(Tokens.from_rows([row.astype(np.int32) for row in some]) for some in (rows, others))))
    return made


def share(batch: PairBatch, rank: int, count: int) -> PairBatch:
    """Return the part of a batch that one of several processes computes: rows are dealt out like cards.

    >>> share(batches([([2, 1, 5], [3, 1, 4])], 50)[0], 0, 2).source.lengths.tolist()
    [3, 6]
    """
    return PairBatch(*(Tokens.from_rows(list(side)[rank::count]) for side in (batch.source, batch.target)))


def pairs(count: int, vocabulary: int, seed: int = 1) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return pairs of token rows, for libraries that cut their own batches."""
    source, target = sentence_lengths(count, seed)
    return list(zip(drawn_rows(source, vocabulary, seed), drawn_rows(target, vocabulary, seed + 1000), strict=True))


def padded(rows: Sequence[Sequence[int]], fill: int = 0) -> NDArray[np.int64]:
    """Return rows side by side, filled up to the longest.

    >>> padded([[5, 6], [7]]).tolist()
    [[5, 6], [7, 0]]
    """
    table = np.full((len(rows), max(map(len, rows))), fill, dtype=np.int64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return table


@cache
def word(number: int) -> str:
    """Return a made word: letters only, another one for each number.

    >>> word(4), word(5), word(700)
    ('eaab', 'faab', 'yabb')
    """
    letters, rest = "", number + 26**3
    while rest:
        rest, digit = divmod(rest, 26)
        letters += chr(ord("a") + digit)
    return letters


def tokenizer(vocabulary: int) -> Tokenizer:
    """Return a tokenizer of made words, so that every text is its tokens and every token a word.

    >>> made = tokenizer(9)
    >>> made.encode_all(["eaab haab"]), made.decode([4, 7])
    ([[4, 7]], 'eaab haab')
    """
    names = [*SPECIALS, *(word(number) for number in range(len(SPECIALS), vocabulary))]
    known = {name: number for number, name in enumerate(names)}
    backend = tokenizers.Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(SPECIALS))
    return Tokenizer(backend)


def encoder_tokenizer(vocabulary: int) -> Tokenizer:
    """Return a tokenizer of made words for an encoder: its last token is the mask, rows have a mark at each end.

    >>> made = encoder_tokenizer(9)
    >>> made.size, made.backend.id_to_token(8)
    (9, '<mask>')
    """
    return with_marks(tokenizer(vocabulary - 1))


def texts(lengths: Sequence[int] | Lengths, vocabulary: int, seed: int = 7) -> list[str]:
    """Return texts of so many made words.

    >>> [len(text.split()) for text in texts([3, 5], 100)]
    [3, 5]
    """
    return texts_of(drawn_rows(lengths, vocabulary, seed))


def texts_of(rows: Sequence[NDArray[np.int64]]) -> list[str]:
    """Return rows of token numbers as text."""
    return [" ".join(word(number) for number in row.tolist()) for row in rows]
