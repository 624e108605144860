"""Synthetic batches, sentences and texts with the lengths of real ones: drawn from a seed, equal for every runner."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models, pre_tokenizers

from regard.data.batching import epoch_batches
from regard.packed_tokens import PairBatch, Tokens
from regard.text.special_tokens import with_mask_token
from regard.text.tokenizer import SPECIAL_TOKENS, Tokenizer

Lengths = NDArray[np.int64]
Ids = NDArray[np.int64]
PairLengths = tuple[list[int], list[int]]  # of the source and target rows of one batch

BOS_ID = SPECIAL_TOKENS.index("<s>")
EOS_ID = SPECIAL_TOKENS.index("</s>")
FIRST_WORD_ID = len(SPECIAL_TOKENS)

POOL_PAIRS = 20_000  # sentence pairs that batches are taken from
MIN_LENGTH = 4  # tokens of a sentence
MAX_LENGTH = 45
MIN_TEXT_LENGTH = 3  # tokens of a text to embed, without special tokens
MAX_TEXT_LENGTH = 126
TARGET_SEED_OFFSET = 1000  # between the seeds of source and target rows


def draw_sentence_lengths(count: int, seed: int) -> tuple[Lengths, Lengths]:
    """Draw source and target lengths as image captions have them: 13.5 tokens on average, few above 30.

    >>> source, target = draw_sentence_lengths(1000, seed=1)
    >>> 12 < float(source.mean()) < 15, int(source.min()) >= MIN_LENGTH, int(target.max()) <= MAX_LENGTH
    (True, True, True)
    """
    rng = np.random.default_rng(seed)
    source = np.clip(rng.gamma(9, 1.5, count), MIN_LENGTH, MAX_LENGTH).astype(np.int64)
    target = np.clip(source * rng.normal(1, 0.15, count), MIN_LENGTH, MAX_LENGTH).astype(np.int64)
    return source, target


def draw_text_lengths(count: int, seed: int) -> Lengths:
    """Draw lengths from phrases to paragraphs: 24 tokens on average."""
    lengths = np.random.default_rng(seed).lognormal(2.99, 0.6, count)
    return np.clip(lengths, MIN_TEXT_LENGTH, MAX_TEXT_LENGTH).astype(np.int64)


def draw_token_rows(lengths: Sequence[int] | Lengths, vocab_size: int, seed: int) -> list[Ids]:
    """Draw rows of token ids of these lengths; a few tokens are frequent and most are rare, as words are."""
    rng = np.random.default_rng(seed + 1)
    num_words = vocab_size - FIRST_WORD_ID + 1
    return [FIRST_WORD_ID - 1 + np.floor(num_words ** rng.random(length)).astype(np.int64) for length in lengths]


def draw_batch_lengths(batch_tokens: int, count: int, seed: int = 1) -> list[PairLengths]:
    """Draw the lengths of batches: pairs of similar length, at most `batch_tokens` per side with end tokens.

    >>> source, target = draw_batch_lengths(128, 1)[0]
    >>> sum(length + 1 for length in source) <= 128, len(set(target))
    (True, 1)
    """
    source, target = draw_sentence_lengths(POOL_PAIRS, seed)
    lengths = np.stack([source + 1, target + 1], 1)
    batches = epoch_batches(lengths, max_tokens=batch_tokens, seed=seed, epoch=0, digest="ab")
    return [(source[indices].tolist(), target[indices].tolist()) for indices in batches[:count]]


def build_batches(lengths: Sequence[PairLengths], vocab_size: int, seed: int = 1) -> list[PairBatch]:
    """Batches with rows of these lengths; source rows end with the end token.

    >>> batch = build_batches([([2, 1], [3, 1])], 50)[0]
    >>> batch.source.lengths.tolist(), batch.target.lengths.tolist(), int(batch.source.ids[-1])
    ([3, 2], [3, 1], 1)
    """
    batches = []
    for index, (source_lengths, target_lengths) in enumerate(lengths):
        source_rows = [np.append(row, EOS_ID) for row in draw_token_rows(source_lengths, vocab_size, seed + index)]
        target_rows = draw_token_rows(target_lengths, vocab_size, seed + index + TARGET_SEED_OFFSET)
        batches.append(PairBatch(_pack_rows(source_rows), _pack_rows(target_rows)))
    return batches


def _pack_rows(rows: Sequence[Ids]) -> Tokens:
    return Tokens.from_rows([row.astype(np.int32) for row in rows])


def shard_batch(batch: PairBatch, rank: int, world_size: int) -> PairBatch:
    """Rows of a batch that one of several processes computes: every `world_size`-th one.

    >>> shard_batch(build_batches([([2, 1, 5], [3, 1, 4])], 50)[0], 0, 2).source.lengths.tolist()
    [3, 6]
    """
    source = Tokens.from_rows(list(batch.source)[rank::world_size])
    target = Tokens.from_rows(list(batch.target)[rank::world_size])
    return PairBatch(source, target)


def draw_pairs(count: int, vocab_size: int, seed: int = 1) -> list[tuple[Ids, Ids]]:
    """Draw pairs of token rows, for libraries that form their own batches."""
    source_lengths, target_lengths = draw_sentence_lengths(count, seed)
    source_rows = draw_token_rows(source_lengths, vocab_size, seed)
    target_rows = draw_token_rows(target_lengths, vocab_size, seed + TARGET_SEED_OFFSET)
    return list(zip(source_rows, target_rows, strict=True))


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int = 0) -> Ids:
    """Rows as a table, padded to the longest.

    >>> pad_rows([[5, 6], [7]]).tolist()
    [[5, 6], [7, 0]]
    """
    table = np.full((len(rows), max(map(len, rows))), pad_id, dtype=np.int64)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table


@cache
def spell_word(token_id: int) -> str:
    """Synthetic word of a token: letters only, different for each id.

    >>> spell_word(4), spell_word(5), spell_word(700)
    ('eaab', 'faab', 'yabb')
    """
    letters = ""
    remainder = token_id + 26**3
    while remainder:
        remainder, digit = divmod(remainder, 26)
        letters += chr(ord("a") + digit)
    return letters


def build_tokenizer(vocab_size: int) -> Tokenizer:
    """Tokenizer of synthetic words: one token for each word.

    >>> tokenizer = build_tokenizer(9)
    >>> tokenizer.encode_batch(["eaab haab"]), tokenizer.decode([4, 7])
    ([[4, 7]], 'eaab haab')
    """
    words = [*SPECIAL_TOKENS, *(spell_word(token_id) for token_id in range(FIRST_WORD_ID, vocab_size))]
    vocabulary = {word: token_id for token_id, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return Tokenizer(backend)


def build_encoder_tokenizer(vocab_size: int) -> Tokenizer:
    """Tokenizer of synthetic words for an encoder: its last token is the mask, and a template adds special tokens.

    >>> tokenizer = build_encoder_tokenizer(9)
    >>> tokenizer.vocab_size, tokenizer.backend.id_to_token(8)
    (9, '<mask>')
    """
    return with_mask_token(build_tokenizer(vocab_size - 1))


def draw_texts(lengths: Sequence[int] | Lengths, vocab_size: int, seed: int = 7) -> list[str]:
    """Draw texts of so many synthetic words.

    >>> [len(text.split()) for text in draw_texts([3, 5], 100)]
    [3, 5]
    """
    return spell_rows(draw_token_rows(lengths, vocab_size, seed))


def spell_rows(rows: Sequence[Ids]) -> list[str]:
    """Rows of token ids as texts."""
    return [" ".join(spell_word(token_id) for token_id in row.tolist()) for row in rows]
