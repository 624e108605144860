"""BPE dropout: sampled segmentations as a pure function of seed, epoch and example.

Provilkov, Emelianenko and Voita 2020, algorithm 1: at every step, each possible merge is dropped with some probability.
The `tokenizers` library draws from a generator that cannot be seeded. So a few segmentations of every distinct word are
sampled in advance, all words at once, and an epoch only picks among them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import ConfigError
from regard.packed_tokens import Ids, Tokens
from regard.text.tokenizer import Tokenizer

VARIANTS = 16  # sampled segmentations of each word
_MAX_ROWS = 1 << 14  # segmentations merged at once; bounds memory
Bits = NDArray[np.uint64]
Indices = NDArray[np.int64]


class BpeDropout:
    """Texts in segmentations that change with the epoch, but not with the order or the batch of a request.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_tokenizer
    >>> texts = ["lower and lower", "the lowest"] * 9
    >>> tokenizer = train_tokenizer(texts, TokenizerConfig())
    >>> segmenter = BpeDropout(tokenizer, texts, dropout=0.5, seed=3)
    >>> [tokenizer.decode(segmenter.sample(1, epoch)) for epoch in (0, 1)]
    ['the lowest', 'the lowest']
    >>> len(segmenter.sample_all(epoch=2))
    18
    """

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str], dropout: float, seed: int) -> None:
        if not 0 <= dropout < 1:
            raise ConfigError(f"the probability to skip a merge ({dropout}) must be at least 0 and less than 1")
        vocabulary: dict[str, int] = {}  # distinct words
        word_ids = [
            [vocabulary.setdefault(word, len(vocabulary)) for word in words] for words in _split_words(tokenizer, texts)
        ]
        self._words = Tokens.from_rows(word_ids)
        self._seed = seed
        self._num_variants = VARIANTS if dropout else 1
        # Row `word * num_variants + variant`.
        self._segmentations = _Merges(tokenizer).segment(list(vocabulary), self._num_variants, dropout, seed)
        self._lengths = self._segmentations.lengths

    def __len__(self) -> int:
        return len(self._words)

    def sample(self, example: int, epoch: int) -> Ids:
        """Token ids of one text in one epoch."""
        return self.sample_batch([example], epoch).ids

    def sample_all(self, epoch: int) -> Tokens:
        """All texts in one epoch, each as `sample` returns it."""
        return self.sample_batch(np.arange(len(self)), epoch)

    def sample_batch(self, examples: Sequence[int] | Indices, epoch: int) -> Tokens:
        """Several texts in one epoch, each as `sample` returns it."""
        indices = np.asarray(examples, dtype=np.int64)
        starts = self._words.offsets[indices]
        word_counts = self._words.offsets[indices + 1] - starts
        positions = _aranges(word_counts)  # of each word in its text
        words = self._words.ids[np.repeat(starts, word_counts) + positions].astype(np.int64)
        bits = mix_bits(self._seed, epoch, np.repeat(indices, word_counts), positions)
        variants = (bits % np.uint64(self._num_variants)).astype(np.int64)
        rows = words * self._num_variants + variants
        lengths = self._lengths[rows]
        row_starts = self._segmentations.offsets[rows]
        ids = self._segmentations.ids[np.repeat(row_starts, lengths) + _aranges(lengths)]
        token_ends = np.concatenate([[0], np.cumsum(lengths)])  # after each word
        text_ends = token_ends[np.concatenate([[0], np.cumsum(word_counts)])]
        return Tokens(ids, text_ends.astype(np.int32))


def _aranges(counts: NDArray[Any]) -> Indices:
    """Concatenate `arange(count)` of all counts."""
    stops = np.cumsum(counts)
    total = stops[-1] if len(stops) else 0
    return np.asarray(np.arange(total) - np.repeat(stops - counts, counts))


def mix_bits(*parts: int | Sequence[int] | NDArray[Any]) -> Bits:
    """Pseudorandom 64-bit numbers that depend on every part (counter-based, with the finalizer of SplitMix64).

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


def _split_words(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the words of each text, as the tokenizer splits it before merging."""
    normalizer = tokenizer.backend.normalizer
    pre_tokenizer = tokenizer.backend.pre_tokenizer
    if pre_tokenizer is None:
        raise ConfigError("this tokenizer does not split texts into words: segmentations cannot be sampled")
    for text in texts:
        normalized = normalizer.normalize_str(text) if normalizer else text
        yield [word for word, _ in pre_tokenizer.pre_tokenize_str(normalized)]


class _Merges:
    """The merges of a BPE model, applied to many words at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        model = json.loads(tokenizer.to_json())["model"]
        unsupported = ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
        if model["type"] != "BPE" or not model["merges"] or any(model.get(name) for name in unsupported):
            raise ConfigError("segmentations can be sampled for byte-level BPE only: drop --sampling or use kind bpe")
        self.vocabulary: dict[str, int] = model["vocab"]
        self.vocab_size = len(self.vocabulary)
        codes = np.array(
            [self._pair_code(self.vocabulary[left], self.vocabulary[right]) for left, right in model["merges"]],
            dtype=np.int64,
        )
        self._ranks = np.argsort(codes)  # of the sorted codes; a merge's rank is its index in the list
        self._sorted_codes = codes[self._ranks]
        merged = [self.vocabulary[left + right] for left, right in model["merges"]]
        self._merged_ids = np.array(merged, dtype=np.int32)  # by rank

    def _pair_code(self, left: Any, right: Any) -> Any:
        """One number for a pair of ids, or an array of them."""
        return left * self.vocab_size + right

    def segment(self, words: Sequence[str], num_variants: int, dropout: float, seed: int) -> Tokens:
        """Sample segmentations of each word; they are in row `word * num_variants + variant`."""
        letters = Tokens.from_rows([[self.vocabulary[letter] for letter in word] for word in words])
        num_letters = letters.lengths
        hashes = np.array([_hash_word(word) for word in words], dtype=np.uint64)
        segmentations: list[Ids] = [np.zeros(0, np.int32)] * (len(words) * num_variants)
        by_length = np.argsort(num_letters, kind="stable")
        step = max(_MAX_ROWS // num_variants, 1)
        for start in range(0, len(by_length), step):
            selected = by_length[start : start + step]
            max_length = int(num_letters[selected[-1]])
            padded = np.full((len(selected), max_length), -1, dtype=np.int32)  # [words, letters]
            for row, word in enumerate(selected):
                padded[row, : num_letters[word]] = letters.row(int(word))
            variants = np.tile(np.arange(num_variants), len(selected))
            noise = mix_bits(seed, np.repeat(hashes[selected], num_variants), variants)
            merged = self._merge(np.repeat(padded, num_variants, axis=0), noise, dropout)
            lengths = (merged >= 0).sum(axis=1)
            indices = (selected[:, None] * num_variants + np.arange(num_variants)).ravel()
            for index, ids, length in zip(indices, merged, lengths, strict=True):
                segmentations[index] = ids[:length]
        return Tokens.from_rows(segmentations)

    def _merge(self, rows: Ids, noise: Bits, dropout: float) -> Ids:
        """Apply merges to rows of letters, best rank first; at every step, each is dropped at random."""
        threshold = np.uint64(dropout * 2**64)
        no_merge = len(self._merged_ids)
        rows = rows.copy()
        active = np.arange(len(rows))  # rows that may still be merged
        step = 0
        while len(active) and rows.shape[1] > 1:
            current = rows[active]
            ranks = self._rank_pairs(current)
            if dropout:
                draws = mix_bits(noise[active][:, None], step, np.arange(ranks.shape[1])[None, :])
                ranks[draws < threshold] = no_merge
            best = ranks.argmin(axis=1)  # position of the best pair
            best_ranks = ranks[np.arange(len(active)), best]
            can_merge = best_ranks < no_merge
            active = active[can_merge]
            current = current[can_merge]
            best = best[can_merge]
            current[np.arange(len(active)), best] = self._merged_ids[best_ranks[can_merge]]
            # Shift what follows the merged pair one position to the left.
            positions = np.arange(current.shape[1])[None, :]
            shifted = np.minimum(positions + (positions > best[:, None]), current.shape[1] - 1)
            current = np.take_along_axis(current, shifted, axis=1)
            current[:, -1] = -1
            rows[active] = current
            step += 1
        return rows

    def _rank_pairs(self, rows: Ids) -> Indices:
        """Rank of the merge of each pair of neighbours; the number of merges where there is none."""
        left = rows[:, :-1].astype(np.int64)
        right = rows[:, 1:].astype(np.int64)
        codes = np.where(right < 0, -1, self._pair_code(left, right))
        indices = np.minimum(np.searchsorted(self._sorted_codes, codes), len(self._sorted_codes) - 1)
        is_merge = self._sorted_codes[indices] == codes
        return np.where(is_merge, self._ranks[indices], len(self._merged_ids))


def _hash_word(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
