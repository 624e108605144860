"""`TransformerBlock` and `FeedForward`: packed sequences, masks, sites, noise, bad input."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.errors import ConfigError, UsageError
from regard.nn import (
    FeedForward,
    MultiHeadAttention,
    Noise,
    PackedBatch,
    TransformerBlock,
    build_positions,
    causal,
    name_sites,
    pack_sequences,
    padding,
    window,
)
from regard.nn.block import _warned_classes

WIDTH = 12
HEADS = 3
LENGTHS = (5, 2, 7)


def random_states(lengths: tuple[int, ...] = LENGTHS) -> tuple[Tensor, PackedBatch]:
    return pack_sequences([torch.randn(length, WIDTH) for length in lengths])


def build_block(**options: Any) -> TransformerBlock:
    return TransformerBlock(WIDTH, HEADS, 31, **options).eval()


@pytest.mark.parametrize("norm_placement", ["pre", "post"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_block_is_the_layer_of_torch(norm_placement: str, is_causal: bool) -> None:
    is_pre_norm = norm_placement == "pre"
    theirs = nn.TransformerEncoderLayer(WIDTH, HEADS, 31, dropout=0.0, batch_first=True, norm_first=is_pre_norm)
    block = build_block(norm_placement=norm_placement)
    names = {
        "attention.qkv": theirs.self_attn.in_proj_weight,
        "attention.out": theirs.self_attn.out_proj.weight,
        "feed_forward.up": theirs.linear1.weight,
        "feed_forward.down": theirs.linear2.weight,
    }
    biases = {
        "attention.qkv": theirs.self_attn.in_proj_bias,
        "attention.out": theirs.self_attn.out_proj.bias,
        "feed_forward.up": theirs.linear1.bias,
        "feed_forward.down": theirs.linear2.bias,
    }
    with torch.no_grad():
        for name, weight in names.items():
            linear = block.layers.get_submodule(name)
            linear.weight.copy_(weight)
            linear.bias.copy_(biases[name])
    hidden, batch = random_states()
    output = block(hidden, batch, mask=causal() if is_causal else None)
    positions = torch.arange(batch.max_length)
    triangle = positions[None] > positions[:, None] if is_causal else None
    is_padding = positions[None] >= batch.lengths[:, None]
    expected = theirs(batch.pad(hidden), src_mask=triangle, src_key_padding_mask=is_padding)
    torch.testing.assert_close(output, batch.pack(expected), rtol=1e-5, atol=1e-5)


def test_a_sequence_has_the_same_output_alone_as_in_a_batch_and_with_a_bound_mask() -> None:
    block = build_block(gated=True, activation="silu", bias=False)
    rotary = build_positions("rotary", 16, WIDTH)
    hidden, batch = random_states()
    output = block(hidden, batch, mask=window(1), positions=rotary)
    bound = block(hidden, batch, mask=batch.bind(window(1)), positions=rotary)
    assert torch.equal(output, bound)
    positions = batch.padded_positions
    dense = (window(1) & padding(batch.lengths)).bind(positions, positions)
    torch.testing.assert_close(block(hidden, batch, mask=dense, positions=rotary), output)
    for states, together in zip(hidden.split(LENGTHS), output.split(LENGTHS), strict=True):
        packed, alone = pack_sequences([states])
        torch.testing.assert_close(block(packed, alone, mask=window(1), positions=rotary), together)
    assert not torch.allclose(block(hidden, batch, mask=window(1)), output)


def test_cross_attention_reads_the_sequence_of_the_same_index() -> None:
    block = build_block(cross_attention=True)
    hidden, batch = random_states()
    source, source_batch = random_states((3, 6, 4))
    output = block(hidden, batch, source=source, source_batch=source_batch)
    rows = zip(hidden.split(LENGTHS), source.split((3, 6, 4)), output.split(LENGTHS), strict=True)
    for states, source_states, together in rows:
        packed, alone = pack_sequences([states])
        packed_source, source_alone = pack_sequences([source_states])
        output = block(packed, alone, source=packed_source, source_batch=source_alone)
        torch.testing.assert_close(output, together)


def test_sites_are_places_or_numbers_and_copies_do_not_share_them() -> None:
    model = nn.ModuleList(build_block(cross_attention=True) for _ in range(2))
    hidden, batch = random_states()
    with regard.trace() as captured:
        for block in model:
            block(hidden, batch, source=hidden, source_batch=batch)
    assert len(captured) == 4
    assert all(site.startswith("block.") for site in captured)
    sites = {f"{layer}.{role}": HEADS for layer in range(2) for role in ("self", "cross")}
    assert name_sites(model) == sites
    unnamed = build_block()
    unnamed(hidden, batch)
    clone = copy.deepcopy(unnamed)
    with regard.trace() as captured:
        for block in (unnamed, clone):
            block(hidden, batch)
    assert len(captured) == 2


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
def test_noise_is_a_function_of_seed_step_and_site(rate: str) -> None:
    block = TransformerBlock(WIDTH, HEADS, 31, site="a", **{rate: 0.3})
    other = copy.deepcopy(block)
    other.site = "b"
    hidden, batch = random_states()
    output = block(hidden, batch, noise=Noise(seed=1, step=2))
    assert torch.equal(output, block(hidden, batch, noise=Noise(seed=1, step=2)))
    assert not torch.equal(output, block(hidden, batch, noise=Noise(seed=1, step=3)))
    assert not torch.equal(output, other(hidden, batch, noise=Noise(seed=1, step=2)))


@pytest.mark.parametrize("rate", ["dropout", "activation_dropout"])
def test_two_feed_forward_layers_do_not_share_their_noise(rate: str) -> None:
    feed_forward = FeedForward(WIDTH, 31, **{rate: 0.5})
    hidden, _ = random_states()
    noise = Noise(seed=1, step=1)
    assert torch.equal(feed_forward(hidden, noise), feed_forward(hidden, noise))
    assert not torch.equal(feed_forward(hidden, noise), copy.deepcopy(feed_forward)(hidden, noise))


# ---- a warning, once


def test_dropout_without_noise_warns_once_per_class_and_names_the_caller() -> None:
    _warned_classes.clear()
    block = TransformerBlock(WIDTH, HEADS, 31, attention_dropout=0.2)
    hidden, batch = random_states()
    message = r"TransformerBlock is in training mode but was called without noise: its dropout \(0.2\) is inactive"
    with pytest.warns(UserWarning, match=message) as caught:
        block(hidden, batch)
        block(hidden, batch)
        TransformerBlock(WIDTH, HEADS, 31, dropout=0.5)(hidden, batch)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="FeedForward is in training mode"):
        FeedForward(WIDTH, 31, dropout=0.1)(hidden)


def test_nothing_warns_where_dropout_is_active_or_not_wanted() -> None:
    _warned_classes.clear()
    hidden, batch = random_states()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TransformerBlock(WIDTH, HEADS, 31)(hidden, batch)
        TransformerBlock(WIDTH, HEADS, 31, dropout=0.1)(hidden, batch, noise=Noise(seed=1, step=1))
        TransformerBlock(WIDTH, HEADS, 31, dropout=0.1).eval()(hidden, batch)
        FeedForward(WIDTH, 31, dropout=0.1).eval()(hidden)
        MultiHeadAttention(WIDTH, HEADS, dropout=0.1)(hidden, hidden, hidden)


# ---- bad input


def test_settings_that_make_no_block_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"activation.*rellu.*did you mean relu"):
        FeedForward(WIDTH, 31, activation="rellu")
    with pytest.raises(ConfigError, match="norm_placement.*past"):
        TransformerBlock(WIDTH, HEADS, 31, norm_placement="past")
    with pytest.raises(ConfigError, match="hidden_size.*12.*num_heads.*5|num_heads.*5.*hidden_size.*12"):
        TransformerBlock(WIDTH, 5, 31)
    with pytest.raises(ConfigError, match="dropout.*1"):
        TransformerBlock(WIDTH, HEADS, 31, attention_dropout=1.0)


def test_tensors_that_do_not_fit_their_batch_are_rejected() -> None:
    hidden, batch = random_states()
    with pytest.raises(UsageError, match=r"hidden must be \[14, width\].*not \[3, 7, 12\]"):
        build_block()(batch.pad(hidden), batch)
    with pytest.raises(UsageError, match="takes neither"):
        build_block()(hidden, batch, source=hidden, source_batch=batch)
    with pytest.raises(UsageError, match="needs source and source_batch"):
        build_block(cross_attention=True)(hidden, batch)
    source, source_batch = random_states((4, 3))
    with pytest.raises(UsageError, match="the source has 2 sequences and the batch 3"):
        build_block(cross_attention=True)(hidden, batch, source=source, source_batch=source_batch)


def test_sequences_that_cannot_be_packed_are_rejected() -> None:
    with pytest.raises(UsageError, match="sequence 1 is empty"):
        pack_sequences([[5], []])
    with pytest.raises(UsageError, match="sequence 0 is a number"):
        pack_sequences([5, 6])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="at least one sequence"):
        pack_sequences([])
    with pytest.raises(UsageError, match=r"must agree in all but their length, not \['T', 3\], \['T', 4\]"):
        pack_sequences([torch.zeros(2, 3), torch.zeros(2, 4)])
