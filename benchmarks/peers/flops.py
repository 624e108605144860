"""Floating-point operations of matrix products, counted as weights times tokens; attention is not counted."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.config import EncoderSize, TranslatorSize
from benchmarks.peers.workload import PairLengths


def count_source_weights(size: TranslatorSize) -> int:
    """Weights that each source token is multiplied with: the encoder, and the keys and values of cross-attention.

    >>> count_source_weights(TranslatorSize("one", 1, 8, 2, 32, 100, 0, 0, 0, 0)) == 4 * 64 + 2 * 8 * 32 + 2 * 64
    True
    """
    return size.layers * (6 * size.hidden_size**2 + 2 * size.hidden_size * size.feed_forward_size)


def count_target_weights(size: TranslatorSize) -> int:
    """Weights that each target token is multiplied with: the rest of the decoder, and the output projection."""
    layers = size.layers * (6 * size.hidden_size**2 + 2 * size.hidden_size * size.feed_forward_size)
    return layers + size.hidden_size * size.vocab_size


def training_flops(size: TranslatorSize, lengths: Sequence[PairLengths]) -> float:
    """Operations per target token of a training step; the backward pass takes twice the forward pass."""
    source = sum(length + 1 for batch in lengths for length in batch[0])
    target = sum(length + 1 for batch in lengths for length in batch[1])
    return 6 * (count_source_weights(size) * source + count_target_weights(size) * target) / target


def translation_flops(size: TranslatorSize, lengths: Sequence[int], beam: int) -> float:
    """Operations per sentence whose translation is as long as its source."""
    source = sum(length + 1 for length in lengths) / len(lengths)
    return 2 * (count_source_weights(size) * source + count_target_weights(size) * beam * (source + 1))


def count_layer_weights(size: EncoderSize) -> int:
    """Weights that each token is multiplied with in an encoder's layers."""
    return size.layers * (4 * size.hidden_size**2 + 2 * size.hidden_size * size.feed_forward_size)


def encoding_flops(size: EncoderSize, lengths: Sequence[int]) -> float:
    """Operations per text, its two special tokens included."""
    return 2 * count_layer_weights(size) * sum(length + 2 for length in lengths) / len(lengths)


def masked_lm_flops(size: EncoderSize, rate: float) -> float:
    """Operations per token of a training step; only masked tokens are multiplied with the output embedding.

    >>> masked_lm_flops(EncoderSize("one", 1, 8, 2, 32, 100), 0.5) == 6 * (4 * 64 + 2 * 8 * 32 + 0.5 * (64 + 800))
    True
    """
    head = size.hidden_size**2 + size.hidden_size * size.vocab_size
    return 6 * (count_layer_weights(size) + rate * head)


def fine_tuning_flops(size: EncoderSize) -> float:
    """Operations per token of a training step; the classification head is not counted."""
    return 6.0 * count_layer_weights(size)
