"""Positional schemes: rotary variants, ALiBi and T5's relative bias are those of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.attention.alibi import alibi_slopes
from regard.attention.positions import Alibi, RelativeBias, Rotary, Sinusoidal, build_positions, relative_buckets
from regard.errors import ConfigError

pytest.importorskip("transformers")
POSITIONS = torch.tensor([[0, 1, 5, 17]])


def random_heads(head_size: int = 12) -> torch.Tensor:
    return torch.randn(2, 3, 4, head_size, generator=torch.Generator().manual_seed(1))


def llama_rotation(heads: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(hidden_size=3 * heads.shape[-1], num_attention_heads=3, rope_parameters=rope)
    cosine, sine = LlamaRotaryEmbedding(config)(heads, POSITIONS)
    rotated, _ = apply_rotary_pos_emb(heads, heads, cosine, sine)
    return rotated


@pytest.mark.parametrize(
    ("scheme", "rope"),
    [
        (Rotary(500.0), {"rope_type": "default", "rope_theta": 500.0}),
        (Rotary(500.0, factor=4.0), {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}),
        (
            Rotary(500.0, scaling="ntk", factor=4.0),
            {"rope_type": "default", "rope_theta": 500.0 * 4.0 ** (12 / 10)},
        ),
    ],
    ids=["default", "linear", "ntk"],
)
def test_rotations_are_those_of_llama(scheme: Rotary, rope: dict[str, Any]) -> None:
    heads = random_heads()
    torch.testing.assert_close(scheme.rotate(heads, POSITIONS), llama_rotation(heads, rope))


def test_interleaved_rotations_of_some_dimensions_are_those_of_gpt_j() -> None:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    heads = random_heads()
    sine, cosine = create_sinusoidal_positions(18, 8)[POSITIONS].chunk(2, dim=-1)
    by_token = heads.transpose(1, 2)
    expected = apply_rotary_pos_emb(by_token[..., :8], sine, cosine).transpose(1, 2)
    rotated = Rotary(rotary_dim=8, interleaved=True).rotate(heads, POSITIONS)
    torch.testing.assert_close(rotated[..., :8], expected)
    assert torch.equal(rotated[..., 8:], heads[..., 8:])


def test_impossible_rotations_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"rotary_dim \(3\) must be an even number"):
        Rotary(rotary_dim=3)
    with pytest.raises(ConfigError, match="scaling must be one of linear, ntk, not 'linaer' .did you mean linear"):
        Rotary(scaling="linaer")
    with pytest.raises(ConfigError, match=r"rotary_dim \(14\) must be at most the head size \(12\)"):
        Rotary(rotary_dim=14).rotate(random_heads(), POSITIONS)


@pytest.mark.parametrize("kind", ["sinusoidal", "interleaved", "concatenated"])
def test_fixed_codes_are_the_same_within_their_table_and_beyond_it(kind: str) -> None:
    short = build_positions(kind, 3, 10)
    long = build_positions(kind, 11, 10)
    assert isinstance(short, Sinusoidal)
    assert short.table.shape == (3, 10)
    long.load_state_dict(short.state_dict())
    hidden = torch.randn(11, 10, generator=torch.Generator().manual_seed(1))
    embedded = long.embed(hidden, torch.arange(11))
    torch.testing.assert_close(short.embed(hidden, torch.arange(11)), embedded)
    torch.testing.assert_close(short.embed(hidden[:3], torch.arange(3)), embedded[:3])


@pytest.mark.parametrize("num_heads", [1, 2, 3, 7, 8, 12, 20])
def test_slopes_of_alibi_are_those_of_bloom(num_heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    expected = build_alibi_tensor(torch.ones(1, 5), num_heads, torch.float32)  # [H, 1, keys]
    slopes = torch.tensor(alibi_slopes(num_heads))
    torch.testing.assert_close(slopes, expected[:, 0, 1])
    # the bias of the last query differs from Bloom's by a constant in each head, which softmax ignores
    bias = Alibi(num_heads).bias(torch.tensor([[4]]), torch.arange(5)[None])[0, :, 0]
    torch.testing.assert_close(bias - bias[:, :1], expected[:, 0])


@pytest.mark.parametrize("is_causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (12, 20)])
def test_buckets_and_bias_are_those_of_t5(is_causal: bool, num_buckets: int, max_distance: int) -> None:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    sizes = {"num_buckets": num_buckets, "max_distance": max_distance}
    offsets = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(offsets, bidirectional=not is_causal, **sizes)
    assert torch.equal(relative_buckets(offsets, is_causal=is_causal, **sizes), expected)
    config = T5Config(
        num_heads=3,
        is_decoder=is_causal,
        relative_attention_num_buckets=num_buckets,
        relative_attention_max_distance=max_distance,
    )
    attention = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    scheme = RelativeBias(3, is_causal=is_causal, **sizes)
    scheme.relative_attention_bias.weight = attention.relative_attention_bias.weight
    positions = torch.arange(11)[None]
    torch.testing.assert_close(scheme.bias(positions, positions), attention.compute_bias(11, 11))
