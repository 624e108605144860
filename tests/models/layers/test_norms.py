"""Norms equal those of transformers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.models.layers.norms import build_norm

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
@pytest.mark.parametrize(
    ("kind", "path", "name"),
    [
        ("rms", "llama.modeling_llama", "LlamaRMSNorm"),
        ("rms", "t5.modeling_t5", "T5LayerNorm"),
        ("rms_plus_one", "gemma.modeling_gemma", "GemmaRMSNorm"),
    ],
)
def test_rms_norms_are_those_of_transformers(kind: str, path: str, name: str, dtype: torch.dtype) -> None:
    module = pytest.importorskip(f"transformers.models.{path}")
    reference = getattr(module, name)(13, eps=1e-3).to(dtype)
    norm = build_norm(kind, 13, 1e-3).to(dtype)
    torch.manual_seed(3)
    weight = torch.randn(13, dtype=dtype)
    for layer in (reference, norm):
        layer.weight.data.copy_(weight)
    hidden = torch.randn(5, 13, dtype=dtype)
    torch.testing.assert_close(norm(hidden), reference(hidden), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["layer", "rms", "rms_plus_one"])
def test_new_norms_only_normalise(kind: str) -> None:
    hidden = torch.tensor([[3.0, -3.0, 3.0, -3.0]])  # mean 0, root mean square 3
    torch.testing.assert_close(build_norm(kind, 4, 0.0)(hidden), hidden / 3)


def test_only_layer_norms_have_a_bias() -> None:
    parameters = {kind: [name for name, _ in build_norm(kind, 4, 0.0).named_parameters()] for kind in ("layer", "rms")}
    assert parameters == {"layer": ["weight", "bias"], "rms": ["weight"]}
    norm = build_norm("layer", 4, 0.0, bias=False)
    assert isinstance(norm, nn.LayerNorm)
    assert norm.bias is None
