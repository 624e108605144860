"""Low-rank adaptation (LoRA, Hu et al. 2021): a frozen matrix W computes with W + s·B·A, and only A and B are trained.

A fused matrix, such as that of query, key and value, has an own A and B for each adapted part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.attention.dropout import Noise, apply_dropout
from regard.attention.multihead import RowLinear
from regard.errors import ConfigError
from regard.models.layers.block import TransformerBlock, linear_parts

LORA_A = "lora_A"  # as peft names them
LORA_B = "lora_B"
_noise: ContextVar[Noise | None] = ContextVar("lora_noise", default=None)


@contextmanager
def lora_noise(noise: Noise) -> Iterator[None]:
    """Apply LoRA dropout with this noise inside the block; linear layers have no argument for it."""
    token = _noise.set(noise)
    try:
        yield
    finally:
        _noise.reset(token)


@dataclass(frozen=True)
class LoraSettings:
    """Settings that all LoRA layers of a model share."""

    rank: int
    alpha: float
    dropout: float = 0.0

    @property
    def scale(self) -> float:
        """Factor s of B·A."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class LoraPart:
    """One of the projections that a linear layer fuses."""

    num_rows: int
    is_adapted: bool


class LoraLinear(RowLinear):
    """A linear layer with a frozen weight, and A and B for each of its adapted parts.

    `lora_A` has the A of each adapted part below each other, [parts · rank, in]; so has `lora_B`, [rows, rank].
    """

    def __init__(self, layer: nn.Linear, settings: LoraSettings, parts: Sequence[LoraPart], site: str) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight = layer.weight
        self.bias = layer.bias
        self.settings = settings
        self.parts = tuple(parts)
        self.site = site
        adapted_rows = [part.num_rows for part in parts if part.is_adapted]
        self.lora_A = nn.Parameter(layer.weight.new_zeros(len(adapted_rows) * settings.rank, layer.in_features))
        self.lora_B = nn.Parameter(layer.weight.new_zeros(sum(adapted_rows), settings.rank))

    def forward(self, hidden: Tensor) -> Tensor:
        """W·x + b + s·B·A·x."""
        return self.project_rows(hidden, 0, self.out_features)

    def project_rows(self, hidden: Tensor, start: int, stop: int) -> Tensor:
        """Output with rows `start:stop` of the weight and of B."""
        frozen = super().project_rows(hidden, start, stop)
        inner = linear(apply_dropout(hidden, self.settings.dropout, _noise.get(), self.site), self.lora_A)
        up = block_matrix(self.lora_B, self.parts)[start:stop]
        return torch.addmm(frozen, inner, up.t(), alpha=self.settings.scale)

    def merge(self, weight: Tensor, lora_a: Tensor, lora_b: Tensor) -> Tensor:
        """W + s·B·A, [out, in]."""
        return torch.addmm(weight, block_matrix(lora_b, self.parts), lora_a, alpha=self.settings.scale)


def block_matrix(lora_b: Tensor, parts: Sequence[LoraPart]) -> Tensor:
    """B of all parts as one block matrix, [out, parts · rank]: parts that are not adapted have rows of zeros.

    >>> parts = [LoraPart(1, True), LoraPart(2, False), LoraPart(1, True)]
    >>> block_matrix(torch.tensor([[1.0], [2.0]]), parts).tolist()
    [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 2.0]]
    """
    adapted_rows = [part.num_rows for part in parts if part.is_adapted]
    blocks = lora_b.split(adapted_rows)
    rank = lora_b.shape[1]
    rows = []
    column = 0
    for part in parts:
        if part.is_adapted:
            rows.append(nn.functional.pad(blocks[column], (column * rank, (len(blocks) - column - 1) * rank)))
            column += 1
        else:
            rows.append(lora_b.new_zeros(part.num_rows, len(blocks) * rank))
    return torch.cat(rows)


def add_lora(model: nn.Module, settings: LoraSettings, targets: Sequence[str], seed: int) -> list[str]:
    """Replace the target layers of all Transformer blocks by LoRA layers; return their names.

    As in the paper, A is random, by the seed, and B is zero, so that the model computes as before.

    >>> from regard.config.block import BlockConfig
    >>> layers = nn.ModuleList([TransformerBlock(BlockConfig(hidden_size=4, num_heads=2, feed_forward_size=8))])
    >>> add_lora(layers, LoraSettings(rank=2, alpha=4.0), ["query", "value"], seed=1)
    ['0.attention.qkv']
    >>> layers[0].attention.qkv.lora_A.shape, layers[0].attention.qkv.lora_B.shape
    (torch.Size([4, 4]), torch.Size([8, 2]))
    """
    generator = torch.Generator().manual_seed(seed)
    names = []
    for name, parts in adapted_layers(model, targets).items():
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        _check_rank(settings.rank, layer, parts, name)
        lora_layer = LoraLinear(layer, settings, parts, site=f"{name}.lora")
        bound = 1 / math.sqrt(layer.in_features)
        with torch.no_grad():
            lora_layer.lora_A.uniform_(-bound, bound, generator=generator)
        model.set_submodule(name, lora_layer)
        names.append(name)
    return names


def adapted_layers(model: nn.Module, targets: Sequence[str]) -> dict[str, list[LoraPart]]:
    """Linear layers of all Transformer blocks that have one of the targets, by name, with their parts."""
    layers = {}
    for block_name, block in model.named_modules():
        if not isinstance(block, TransformerBlock):
            continue
        for path, rows in linear_parts(block).items():
            parts = [LoraPart(num_rows, is_adapted=part in targets) for part, num_rows in rows.items()]
            if any(part.is_adapted for part in parts):
                layers[f"{block_name}.{path}".removeprefix(".")] = parts
    return layers


def _check_rank(rank: int, layer: nn.Linear, parts: Sequence[LoraPart], name: str) -> None:
    width = min([layer.in_features, *(part.num_rows for part in parts if part.is_adapted)])
    if rank > width:
        raise ConfigError(
            f"lora.rank ({rank}) exceeds the width of {name} ({width}), so that LoRA would have more parameters than "
            f"the layer itself: set --lora to at most {width}; 4 to 16 are usual"
        )


def lora_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """LoRA layers of a model by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}


def is_lora_weight(name: str) -> bool:
    """Whether a weight of this name is an A or B of LoRA."""
    return name.endswith((f".{LORA_A}", f".{LORA_B}"))


def merge_lora(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of the plain model, with those of each LoRA layer of `model` merged; A and B stay beside them."""
    merged = dict(weights)
    for name, layer in lora_layers(model).items():
        lora_a = merged[f"{name}.{LORA_A}"]
        lora_b = merged[f"{name}.{LORA_B}"]
        merged[f"{name}.weight"] = layer.merge(merged[f"{name}.weight"], lora_a, lora_b)
    return merged
