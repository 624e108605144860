"""Sample segmentations (BPE dropout) as a pure function of seed, epoch and example.

Provilkov, Emelianenko and Voita 2020, algorithm 1: at every step each possible merge is left out by chance. The
library draws from a generator that cannot be seeded, so the sampled segmentations of every distinct word are made
here beforehand, all words at once; an epoch then only picks among them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import ConfigError
from regard.text.tokenizer import Tokenizer
from regard.tokens import Ids, Tokens

VARIANTS = 16  # segmentations kept of each word
_ROWS = 1 << 14  # words merged together: bounds memory
Numbers = NDArray[np.uint64]


class BpeDropout:
    """Texts in segmentations that change from epoch to epoch, and never with who asks or in which order.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_tokenizer
    >>> texts = ["lower and lower", "the lowest"] * 9
    >>> tokenizer = train_tokenizer(texts, TokenizerConfig())
    >>> segmenter = BpeDropout(tokenizer, texts, chance=0.5, seed=3)
    >>> [tokenizer.decode(segmenter.sample(1, epoch)) for epoch in (0, 1)]
    ['the lowest', 'the lowest']
    >>> len(segmenter.sample_all(epoch=2))
    18
    """

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str], chance: float, seed: int) -> None:
        if not 0 <= chance < 1:
            raise ConfigError(f"the chance to skip a merge ({chance}) must be at least 0 and less than 1")
        numbers: dict[str, int] = {}
        rows = [[numbers.setdefault(word, len(numbers)) for word in words] for words in _split(tokenizer, texts)]
        packed = Tokens.from_rows(rows)
        self._words, self._offsets = packed.ids, packed.offsets
        self._seed = seed
        self._variants = VARIANTS if chance else 1
        pieces = _Merges(tokenizer).segment(list(numbers), self._variants, chance, seed)
        self._pieces = pieces.ids
        self._starts, self._lengths = pieces.offsets[:-1], pieces.lengths

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def sample(self, example: int, epoch: int) -> Ids:
        """Return the token numbers of one text in one epoch."""
        return self.sample_batch([example], epoch).ids

    def sample_all(self, epoch: int) -> Tokens:
        """Return all texts in one epoch, each as `sample` gives it."""
        return self.sample_batch(np.arange(len(self)), epoch)

    def sample_batch(self, examples: Sequence[int] | NDArray[np.int64], epoch: int) -> Tokens:
        """Return some texts in one epoch, each as `sample` gives it."""
        numbers = np.asarray(examples, dtype=np.int64)
        begins = self._offsets[numbers]
        counts = self._offsets[numbers + 1] - begins
        places = _counted_up(counts)  # of each word in its text
        words = self._words[np.repeat(begins, counts) + places].astype(np.int64)
        choice = mix_bits(self._seed, epoch, np.repeat(numbers, counts), places) % np.uint64(self._variants)
        rows = words * self._variants + choice.astype(np.int64)
        lengths = self._lengths[rows]
        ids = self._pieces[np.repeat(self._starts[rows], lengths) + _counted_up(lengths)]
        ends = np.concatenate([[0], np.cumsum(lengths)])[np.concatenate([[0], np.cumsum(counts)])]
        return Tokens(ids, ends.astype(np.int32))


def _counted_up(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return 0, 1, 2 … for each count, one after another."""
    ends = np.cumsum(counts)
    return np.asarray(np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts))


def mix_bits(*parts: int | Sequence[int] | NDArray[Any]) -> Numbers:
    """Return numbers that look random and depend on every part: a counter-based generator (SplitMix64's finish).

    >>> mix_bits(1, 2).tolist(), mix_bits(2, [1, 2]).tolist()
    ([13608149317741381227], [16171810823986729605, 10842689389309339473])
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        state = (state ^ np.asarray(part).astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


def _split(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterable[list[str]]:
    """Yield the words of each text as the tokenizer cuts it before merging."""
    normal, cut = tokenizer.backend.normalizer, tokenizer.backend.pre_tokenizer
    if cut is None:
        raise ConfigError("this tokenizer does not cut texts into words: segmentations cannot be sampled")
    for text in texts:
        yield [word for word, _ in cut.pre_tokenize_str(normal.normalize_str(text) if normal else text)]


class _Merges:
    """The merges of a BPE model, for many words at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        model = json.loads(tokenizer.to_json())["model"]
        plain = not any(
            model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
        )
        if model["type"] != "BPE" or not model["merges"] or not plain:
            raise ConfigError("segmentations can be sampled for byte-level BPE only: drop --sampling or use kind bpe")
        self.numbers: dict[str, int] = model["vocab"]
        self.size = len(self.numbers)
        pairs = [(self.numbers[left], self.numbers[right]) for left, right in model["merges"]]
        codes = np.array([left * self.size + right for left, right in pairs], dtype=np.int64)
        self._ranks = np.argsort(codes)  # the place in the list is the rank
        self._codes = codes[self._ranks]
        self._made = np.array([self.numbers[left + right] for left, right in model["merges"]], dtype=np.int32)

    def segment(self, words: Sequence[str], variants: int, chance: float, seed: int) -> Tokens:
        """Return `variants` segmentations of each word, row `word * variants + variant`."""
        letters = Tokens.from_rows([[self.numbers[letter] for letter in word] for word in words])
        keys = np.array([_key(word) for word in words], dtype=np.uint64)
        results: list[Ids] = [np.zeros(0, np.int32)] * (len(words) * variants)
        order = np.argsort(letters.lengths, kind="stable")
        step = max(_ROWS // variants, 1)
        for first in range(0, len(order), step):
            chosen = order[first : first + step]
            length = int(letters.lengths[chosen[-1]])
            rows = np.full((len(chosen), length), -1, dtype=np.int32)  # [words, letters], filled up with −1
            for place, word in enumerate(chosen):
                rows[place, : letters.lengths[word]] = letters.row(int(word))
            noise = mix_bits(seed, np.repeat(keys[chosen], variants), np.tile(np.arange(variants), len(chosen)))
            merged = self._merge(np.repeat(rows, variants, axis=0), noise, chance)
            numbers = (chosen[:, None] * variants + np.arange(variants)).ravel()
            for number, row, count in zip(numbers, merged, (merged >= 0).sum(axis=1), strict=True):
                results[number] = row[:count]
        return Tokens.from_rows(results)

    def _merge(self, rows: Ids, noise: Numbers, chance: float) -> Ids:
        """Return rows of letters with merges done, best rank first, each left out by chance at every step."""
        threshold = np.uint64(chance * 2**64)
        rows = rows.copy()
        alive = np.arange(len(rows))
        step = 0
        while len(alive) and rows.shape[1] > 1:
            now = rows[alive]
            ranks = self._rank(now)
            if chance:
                draws = mix_bits(noise[alive][:, None], step, np.arange(ranks.shape[1])[None, :])
                ranks[draws < threshold] = len(self._made)
            best = ranks.argmin(axis=1)
            rank = ranks[np.arange(len(alive)), best]
            go = rank < len(self._made)
            alive, now, best, rank = alive[go], now[go], best[go], rank[go]
            now[np.arange(len(alive)), best] = self._made[rank]
            places = np.arange(now.shape[1])[None, :]
            moved = np.minimum(places + (places > best[:, None]), now.shape[1] - 1)
            now = np.take_along_axis(now, moved, axis=1)
            now[:, -1] = -1
            rows[alive] = now
            step += 1
        return rows

    def _rank(self, rows: Ids) -> NDArray[np.int64]:
        """Return the rank of the merge of each neighbouring pair; the number of merges where there is none."""
        left, right = rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)
        codes = np.where(right < 0, -1, left * self.size + right)
        places = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        return np.where(self._codes[places] == codes, self._ranks[places], len(self._made))


def _key(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
