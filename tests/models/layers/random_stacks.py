"""Random stacks of Transformer blocks: every setting of a block, of a layer and of positions, drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.cache import CrossKeyValues
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import Alibi, Positions, RelativeBias, Rotary
from regard.config.block import NORM_PLACEMENTS, NORMS, BiasConfig, BlockConfig
from regard.config.models import ACTIVATIONS
from regard.models.layers.layer_spec import LayerSpec
from regard.models.layers.stack import TransformerStack

POSITION_KINDS = ("none", "rotary", "alibi", "relative")
SOURCE_LENGTHS = np.array([7, 3, 5, 4])


def random_config(rng: np.random.Generator) -> BlockConfig:
    num_heads = int(rng.choice([1, 2, 3, 4, 6]))
    divisors = [count for count in range(1, num_heads + 1) if num_heads % count == 0]
    bias = BiasConfig(**{name: bool(rng.integers(2)) for name in ("qkv", "output", "feed_forward", "norm")})
    return BlockConfig(
        hidden_size=24,
        num_heads=num_heads,
        num_kv_heads=int(rng.choice([0, *divisors])),
        head_size=int(rng.choice([0, 4, 10])),
        value_size=int(rng.choice([0, 3, 7])),
        feed_forward_size=19,
        activation=str(rng.choice(ACTIVATIONS)),
        gated=bool(rng.integers(2)),
        bias=bias,
        norm=str(rng.choice(NORMS)),
        norm_placement=str(rng.choice(NORM_PLACEMENTS)),
        first_attention_norm=bool(rng.random() < 0.8),
        residual=bool(rng.random() < 0.8),
        qk_norm=bool(rng.integers(2)),
        attention_scale=float(rng.choice([0.0, 0.3, 1.0])),
        cross_attention=bool(rng.integers(2)),
    )


def random_positions(rng: np.random.Generator, config: BlockConfig, is_causal: bool) -> Positions:
    kind = str(rng.choice(POSITION_KINDS))
    if kind == "alibi":
        return Alibi(config.num_heads)
    if kind == "relative":
        return RelativeBias(config.num_heads, is_causal=is_causal, num_buckets=6, max_distance=8)
    if kind == "rotary":
        return Rotary(
            float(rng.choice([100.0, 10_000.0])),
            rotary_dim=int(rng.choice([0, 2, 4])),
            interleaved=bool(rng.integers(2)),
            scaling=str(rng.choice(["linear", "ntk"])),
            factor=float(rng.choice([1.0, 2.5])),
        )
    return Positions()


def random_stack(seed: int, is_causal: bool, changes: Mapping[str, Any] | None = None) -> TransformerStack:
    """Three layers, of which the first and the last may share a block, each with its own window and positions."""
    rng = np.random.default_rng(seed)
    config = random_config(rng).override(changes or {})
    torch.manual_seed(seed)
    blocks = [0, 1, int(rng.choice([0, 2]))]
    has_windows = bool(rng.integers(2))
    layers = [
        LayerSpec(
            block,
            random_positions(rng, config, is_causal),
            is_causal=is_causal,
            window=int(rng.choice([0, 1, 3])) if has_windows else 0,
        )
        for block in blocks
    ]
    stack = TransformerStack(config, layers, "decoder").eval()
    with torch.no_grad():
        for name, parameter in stack.named_parameters():
            parameter.normal_(0, 0.15)
            if "norm.weight" in name and config.norm != "rms_plus_one":
                parameter.add_(1)
    return stack


def random_source(stack: TransformerStack, num_rows: int) -> tuple[list[CrossKeyValues], PackedBatch]:
    """Keys and values of random source sentences for every layer; none without cross-attention."""
    batch = PackedBatch(np.resize(SOURCE_LENGTHS, num_rows))
    if not stack.config.cross_attention:
        return [], batch
    hidden = torch.randn(128, stack.config.hidden_size, generator=torch.Generator().manual_seed(7))
    return stack.precompute_keys_values(hidden[: batch.num_tokens], batch), batch


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert actual.shape == expected.shape
    assert torch.isfinite(expected).all()
    difference = (actual - expected).abs().max().item()
    assert difference <= tolerance * max(1.0, expected.abs().max().item()), difference
