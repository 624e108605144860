"""Stacks of blocks: whole sequences, cached steps, padded and packed batches give the same hidden states."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention.cache import CrossKeyValues
from regard.attention.packed_batch import PackedBatch, SelectedTokens
from regard.attention.positions import RelativeBias
from regard.attention.trace import trace
from regard.config.block import BlockConfig
from regard.errors import ConfigError, UsageError
from regard.models.layers.layer_spec import BlockSparsity, LayerSpec, bind_masks, same_layers
from regard.models.layers.prepacked import PrepackedLinear, prepack_linears
from regard.models.layers.stack import TransformerStack
from tests.models.layers.random_stacks import assert_close, random_source, random_stack
from tests.scale import scaled

NUM_SETTINGS = 200
SEEDS_PER_TEST = 20
LENGTHS = np.array([9] * 4 + [5] * 7 + [1])  # runs of equal lengths that are long enough to attend together


def run_alone(stack: TransformerStack, hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Hidden states of every sequence computed on its own."""
    sources, source_batch = random_source(stack, batch.num_rows)
    outputs = []
    for row, sequence in enumerate(hidden.split(batch.row_lengths.tolist())):
        row_batch = PackedBatch(np.array([len(sequence)]))
        row_sources = [select_row(source, row, source_batch) for source in sources]
        outputs.append(stack(sequence, row_batch, sources=row_sources))
    return torch.cat(outputs)


def select_row(source: CrossKeyValues, row: int, source_batch: PackedBatch) -> CrossKeyValues:
    length = int(source_batch.row_lengths[row])
    return CrossKeyValues(source.key[row : row + 1, :, :length], source.value[row : row + 1, :, :length])


def run_batch(stack: TransformerStack, hidden: Tensor, batch: PackedBatch, **options: bool) -> Tensor:
    """Hidden states of the whole batch."""
    sources, source_batch = random_source(stack, batch.num_rows)
    return stack(hidden, batch, sources=sources, source_mask=source_batch.cross_mask(batch), **options)


def run_cached(stack: TransformerStack, hidden: Tensor, num_rows: int) -> Tensor:
    """Hidden states of sequences of equal length: three tokens at once, then one by one."""
    sources, source_batch = random_source(stack, num_rows)
    tokens = hidden.unflatten(0, (num_rows, -1))
    cache = stack.empty_cache(num_rows, capacity=1)  # it must grow
    outputs = []
    for start, stop in ((0, 3), *((position, position + 1) for position in range(3, tokens.shape[1]))):
        batch = PackedBatch(np.full(num_rows, stop - start), position_offset=start)
        output = stack(
            tokens[:, start:stop].flatten(0, 1),
            batch,
            cache=cache,
            sources=sources,
            source_mask=source_batch.cross_mask(batch),
        )
        outputs.append(output.unflatten(0, (num_rows, -1)))
    return torch.cat(outputs, dim=1).flatten(0, 1)


@pytest.mark.parametrize("first_seed", range(0, scaled(NUM_SETTINGS, 100), SEEDS_PER_TEST))
@pytest.mark.parametrize("is_causal", [False, True], ids=["bidirectional", "causal"])
@torch.inference_mode()
def test_whole_cached_padded_and_packed_sequences_have_the_same_hidden_states(first_seed: int, is_causal: bool) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        stack = random_stack(seed, is_causal)
        batch = PackedBatch(LENGTHS)
        hidden = torch.randn(batch.num_tokens, stack.config.hidden_size)
        expected = run_alone(stack, hidden, batch)
        assert_close(run_batch(stack, hidden, batch), expected)
        rounded = PackedBatch(LENGTHS, multiple=64)
        padded_hidden = torch.nn.functional.pad(hidden, (0, 0, 0, rounded.num_padding))
        assert_close(run_batch(stack, padded_hidden, rounded)[: batch.num_tokens], expected)
        prepack_linears(stack)
        assert_close(run_batch(stack, hidden, batch, by_length=True), expected)
        if is_causal:
            assert_close(run_cached(stack, hidden[: 4 * 9], 4), expected[: 4 * 9])


@pytest.mark.parametrize("is_causal", [False, True], ids=["bidirectional", "causal"])
def test_selected_tokens_have_the_hidden_states_and_gradients_of_all(is_causal: bool) -> None:
    for seed in range(30):
        stack = random_stack(seed, is_causal)
        batch = PackedBatch(LENGTHS)
        hidden = torch.randn(batch.num_tokens, stack.config.hidden_size, requires_grad=True)
        sources, source_batch = random_source(stack, batch.num_rows)
        options = {"sources": sources, "source_mask": source_batch.cross_mask(batch)}
        indices = np.array([3, 60, 8, 9, 0])
        expected = stack(hidden, batch, **options)[torch.from_numpy(indices)]
        actual = stack(hidden, batch, None, SelectedTokens(batch, indices), **options)
        assert_close(actual, expected)
        factors = torch.randn(expected.shape)
        (expected_gradient,) = torch.autograd.grad((expected * factors).sum(), hidden, retain_graph=True)
        (gradient,) = torch.autograd.grad((actual * factors).sum(), hidden)
        assert_close(gradient, expected_gradient, 1e-4)


def test_every_parameter_has_a_gradient() -> None:
    for seed in range(30):
        stack = random_stack(seed, is_causal=True)
        batch = PackedBatch(LENGTHS)
        hidden = torch.randn(batch.num_tokens, stack.config.hidden_size)
        sources, source_batch = random_source(stack, batch.num_rows)
        output = stack(hidden, batch, sources=sources, source_mask=source_batch.cross_mask(batch))
        (output * torch.randn(output.shape)).sum().backward()
        for name, parameter in stack.named_parameters():
            assert parameter.grad is not None, (seed, name)


@torch.inference_mode()
def test_a_trace_captures_all_query_heads_and_changes_nothing() -> None:
    for seed in range(20):
        stack = random_stack(seed, is_causal=False)
        batch = PackedBatch(LENGTHS)
        hidden = torch.randn(batch.num_tokens, stack.config.hidden_size)
        untraced = run_batch(stack, hidden, batch, by_length=True)
        with trace(full_precision=True) as captured:
            traced = run_batch(stack, hidden, batch, by_length=True)
        assert torch.equal(traced, untraced)
        weights = captured["decoder.1.self"].weights
        assert weights.shape == (len(LENGTHS), stack.config.num_heads, 9, 9)
        np.testing.assert_allclose(weights[0].sum(-1), 1, atol=1e-5)


def test_layers_are_data() -> None:
    sparsity = BlockSparsity(block_size=2, max_full_length=6)
    layers = [
        LayerSpec(0),
        LayerSpec(0, window=2),
        LayerSpec(1, is_causal=True, window=2),
        LayerSpec(1, sparsity=sparsity),
        LayerSpec(1, window=8),
    ]
    masks = [str(layer_mask.mask) for layer_mask in bind_masks(layers, PackedBatch(np.array([9, 4])))]
    assert masks == [
        "padding()",
        "padding() & window(2)",
        "causal() & window(2) & padding()",
        "blocks(window(1) | global_tokens(0, -1), size=2) & padding()",
        "padding()",  # the window holds the whole sequence
    ]
    stack = TransformerStack(BlockConfig(hidden_size=8, num_heads=2, feed_forward_size=8), layers)
    assert len(stack.layers) == 2
    assert [block.attention.site for block in stack.layer_blocks] == [f"encoder.{layer}.self" for layer in range(5)]
    assert stack.layer_blocks[0].attention.qkv is stack.layer_blocks[1].attention.qkv


def test_layers_with_equal_masks_share_one() -> None:
    batch = PackedBatch(np.array([9, 4]))
    first, second, local, last_local = bind_masks(
        [*same_layers(2), LayerSpec(2, window=3), LayerSpec(3, window=3)], batch
    )
    assert first.mask is second.mask
    assert local.mask is last_local.mask
    assert first.mask is not local.mask


class CountedBias(RelativeBias):
    """Counts how often its bias is computed."""

    count = 0

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        self.count += 1
        return super().bias(query_positions, key_positions)


@pytest.mark.parametrize("case", ["all", "selected", "by_length", "cached"])
def test_a_relative_bias_is_computed_once_for_all_layers(case: str) -> None:
    torch.manual_seed(1)
    positions = CountedBias(2, num_buckets=8, is_causal=case == "cached")
    config = BlockConfig(hidden_size=8, num_heads=2, feed_forward_size=8)
    stack = TransformerStack(config, same_layers(3, positions, is_causal=case == "cached"))
    batch = PackedBatch(np.array([40, 40] if case != "selected" else [40, 7]))
    options = {}
    if case == "selected":
        options["selected"] = SelectedTokens(batch, np.array([41, 3]))
    elif case == "cached":
        options["cache"] = stack.empty_cache(2, capacity=40)
    else:
        options["by_length"] = case == "by_length"
    with torch.inference_mode():
        stack(torch.randn(batch.num_tokens, 8), batch, **options)
    assert positions.count == 1


def test_runs_of_shorter_sequences_have_the_bias_of_their_own_positions() -> None:
    torch.manual_seed(1)
    positions = RelativeBias(2, num_buckets=8)
    stack = TransformerStack(BlockConfig(hidden_size=8, num_heads=2, feed_forward_size=8), same_layers(2, positions))
    batch = PackedBatch(np.array([40, 33, 33]))
    hidden = torch.randn(batch.num_tokens, 8)
    with torch.inference_mode():
        assert_close(stack(hidden, batch, by_length=True), stack(hidden, batch))


def test_only_causal_layers_have_a_cache() -> None:
    stack = TransformerStack(BlockConfig(hidden_size=8, num_heads=2, feed_forward_size=8), same_layers(1))
    with pytest.raises(UsageError, match="only causal layers decode with a cache"):
        stack(torch.zeros(2, 8), PackedBatch(np.array([1, 1])), cache=stack.empty_cache(2, capacity=4))


def test_key_heads_that_do_not_divide_the_heads_are_rejected_with_numbers_that_do() -> None:
    with pytest.raises(ConfigError, match=r"num_kv_heads \(4\) must divide num_heads \(6\): try 1, 2, 3, 6"):
        BlockConfig(hidden_size=12, num_heads=6, num_kv_heads=4)
    with pytest.raises(ConfigError, match=r"norm must be one of layer, rms, rms_plus_one, not 'rsm'"):
        BlockConfig(hidden_size=12, num_heads=6, norm="rsm")


def build_prepacked() -> TransformerStack:
    torch.manual_seed(1)
    stack = TransformerStack(BlockConfig(hidden_size=8, num_heads=2, feed_forward_size=8), same_layers(2))
    prepack_linears(stack)
    return stack


def packed_weights(stack: TransformerStack) -> list[Tensor]:
    linears = [module for module in stack.modules() if isinstance(module, PrepackedLinear)]
    assert len(linears) == 8
    return [linear.packed_weight for linear in linears if linear.packed_weight is not None]


def test_prepacking_keeps_names_and_parameters() -> None:
    torch.manual_seed(1)
    stack = TransformerStack(BlockConfig(hidden_size=8, num_heads=2, feed_forward_size=8), same_layers(2))
    parameters = dict(stack.named_parameters())
    prepack_linears(stack)
    assert len(packed_weights(stack)) == 8
    prepacked_parameters = dict(stack.named_parameters())
    assert [*prepacked_parameters] == [*parameters]
    assert all(prepacked_parameters[name] is parameter for name, parameter in parameters.items())


def test_new_weights_another_dtype_and_copies_discard_prepacked_weights() -> None:
    stack = build_prepacked()
    stack.load_state_dict(build_prepacked().state_dict())
    assert not packed_weights(stack)
    assert not packed_weights(build_prepacked().to(torch.float64))
    assert not packed_weights(copy.deepcopy(build_prepacked()))
    assert not packed_weights(pickle.loads(pickle.dumps(build_prepacked())))
    prepack_linears(stack)
    assert len(packed_weights(stack)) == 8


def test_prepacked_layers_can_be_trained() -> None:
    stack = build_prepacked()
    batch = PackedBatch(np.array([3, 2]))
    hidden = torch.randn(5, 8)
    stack(hidden, batch).square().sum().backward()
    prepacked_gradients = [parameter.grad.clone() for parameter in stack.parameters()]
    stack.zero_grad()
    unpacked = copy.deepcopy(stack)
    unpacked(hidden, batch).square().sum().backward()
    assert all(
        torch.equal(gradient, parameter.grad)
        for gradient, parameter in zip(prepacked_gradients, unpacked.parameters(), strict=True)
    )
