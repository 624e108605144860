"""Padded batches: the same hidden states as from packed sequences, with every kind of mask and pooling."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.attention.masks import Mask, causal, window
from regard.attention.packed_batch import PackedBatch
from regard.attention.padded_batch import PaddedBatch
from regard.config.block import BlockConfig
from regard.models.layers.layer_spec import LayerSpec
from regard.models.layers.pooling import Pooling
from regard.models.layers.stack import TransformerStack

LENGTHS = np.array([5, 1, 9])
CONFIG = BlockConfig(hidden_size=8, num_heads=2, feed_forward_size=12)


def layouts() -> tuple[PackedBatch, PaddedBatch]:
    is_token = np.arange(LENGTHS.max()) < LENGTHS[:, None]
    return PackedBatch(LENGTHS), PaddedBatch(torch.from_numpy(is_token.astype(np.int64)))


@pytest.mark.parametrize("mask", [causal(), window(2), causal() & window(2)], ids=str)
def test_masks_hide_padding_and_what_they_hide_in_packed_batches(mask: Mask) -> None:
    packed, padded = layouts()
    is_token = ~padded.is_padding
    expected = packed.bind(mask).dense.expand(3, 1, 9, 9)
    assert torch.equal(padded.bind(mask).dense[:, 0][is_token], expected[:, 0][is_token])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window_size", [0, 2])
def test_a_stack_computes_the_same_as_for_packed_tokens(is_causal: bool, window_size: int) -> None:
    torch.manual_seed(3)
    stack = TransformerStack(CONFIG, [LayerSpec(block, is_causal=is_causal, window=window_size) for block in range(2)])
    packed, padded = layouts()
    hidden = torch.randn(27, 8)  # padding has hidden states, too
    is_token = ~padded.is_padding
    with torch.no_grad():
        padded_output = stack(hidden, padded)
        packed_output = stack(hidden[is_token.flatten()], packed)
    torch.testing.assert_close(padded.pad(padded_output)[is_token], packed_output)


@pytest.mark.parametrize("kind", ["mean", "max"])
def test_pooling_ignores_padding(kind: str) -> None:
    packed, padded = layouts()
    hidden = torch.randn(27, 8) + 3
    pooling = Pooling(kind, 8)
    torch.testing.assert_close(pooling(hidden, padded), pooling(hidden[~padded.is_padding.flatten()], packed))
