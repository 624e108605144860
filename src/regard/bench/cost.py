"""How many operations the matrix products of a piece of work take: weights times tokens; attention is not counted."""

from __future__ import annotations

from collections.abc import Sequence

from regard.bench.settings import EncoderSize, Size
from regard.bench.work import PairLengths


def source_weights(size: Size) -> int:
    """Return the weights that each source token is multiplied with: the encoder, and the decoder's keys and values.

    >>> source_weights(Size("one", 1, 8, 2, 32, 100, 0, 0, 0, 0)) == 4 * 64 + 2 * 8 * 32 + 2 * 64
    True
    """
    return size.layers * (6 * size.width**2 + 2 * size.width * size.feedforward)


def target_weights(size: Size) -> int:
    """Return the weights that each target token is multiplied with: the rest of the decoder, and the vocabulary."""
    return size.layers * (6 * size.width**2 + 2 * size.width * size.feedforward) + size.width * size.vocabulary


def training(size: Size, lengths: Sequence[PairLengths]) -> float:
    """Return operations for one target token: forwards once, backwards twice."""
    source = sum(length + 1 for batch in lengths for length in batch[0])
    target = sum(length + 1 for batch in lengths for length in batch[1])
    return 6 * (source_weights(size) * source + target_weights(size) * target) / target


def translation(size: Size, lengths: Sequence[int], beam: int) -> float:
    """Return operations for one sentence whose translation is as long as its source."""
    source = sum(length + 1 for length in lengths) / len(lengths)
    return 2 * (source_weights(size) * source + target_weights(size) * beam * (source + 1))


def layer_weights(size: EncoderSize) -> int:
    """Return the weights that each token is multiplied with in an encoder's layers."""
    return size.layers * (4 * size.width**2 + 2 * size.width * size.feedforward)


def encoding(size: EncoderSize, lengths: Sequence[int]) -> float:
    """Return operations for one text, its two marks counted."""
    return 2 * layer_weights(size) * sum(length + 2 for length in lengths) / len(lengths)


def masked(size: EncoderSize, rate: float) -> float:
    """Return operations for one token: forwards once, backwards twice; words are scored where they are hidden.

    >>> masked(EncoderSize("one", 1, 8, 2, 32, 100), 0.5) == 6 * (4 * 64 + 2 * 8 * 32 + 0.5 * (64 + 800))
    True
    """
    return 6 * (layer_weights(size) + rate * (size.width**2 + size.width * size.vocabulary))


def tuning(size: EncoderSize) -> float:
    """Return operations for one token: forwards once, backwards twice; the head is not counted."""
    return 6.0 * layer_weights(size)
