"""A Transformer encoder whose attention decays with the logarithm of the distance, and a classifier on its mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from regard.attention.positions import PositionSizes
from regard.components import POSITIONS, Family
from regard.config.models import check_head_size
from regard.config.settings import knob
from regard.config.text_classifier import TextClassifierConfig
from regard.models.text_classifier import TextBatch, TextClassifierModel
from regard.nn import Noise, Positions, TransformerBlock, build_positions


class LogDistance(Positions):
    """Bias of -slope · log(1 + distance) on attention scores, with a learned slope for each head."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.ones(num_heads))

    @classmethod
    def build(cls, sizes: PositionSizes) -> Self:
        return cls(sizes.num_heads)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distances = (key_positions[:, None, :] - query_positions[:, :, None]).abs()  # [B|1, Q, K]
        return -self.slopes.view(1, -1, 1, 1) * torch.log1p(distances.float())[:, None]


@dataclass(frozen=True, kw_only=True)
class LogEncoderConfig(TextClassifierConfig):
    """A small Transformer encoder."""

    family: str = knob("log-encoder", "Model family.", choices=("log-encoder",))
    hidden_size: int = knob(32, "Hidden size.", low=2)
    num_layers: int = knob(2, "Number of Transformer blocks.", low=1)
    num_heads: int = knob(2, "Attention heads per block.", low=1)
    positions: str = knob("log-distance", "Positional scheme.", choices=POSITIONS)
    max_positions: int = knob(512, "Longest sequence with positions of its own.", low=1)
    dropout: float = knob(0.1, "Dropout after each sublayer.", low=0, high=0.95)

    def check(self) -> None:
        check_head_size("num_heads", self.hidden_size, self.num_heads)

    def summary(self) -> str:
        """Describe the model in one line."""
        sizes = f"{self.num_layers} layers of {self.hidden_size}, {self.num_heads} heads"
        return f"log-distance encoder, {sizes}, {self.positions} positions, {self.num_labels} labels"


class LogEncoder(TextClassifierModel):
    """Embeddings, Transformer blocks, mean of the hidden states, linear classifier."""

    def __init__(self, config: LogEncoderConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.token_embedding = nn.Embedding(config.vocab_size, size)
        self.positions = build_positions(config.positions, config.max_positions, size, num_heads=config.num_heads)
        self.blocks = nn.ModuleList(
            TransformerBlock(size, config.num_heads, 4 * size, dropout=config.dropout, site=f"encoder.{layer}")
            for layer in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(size)
        self.classifier = nn.Linear(size, config.num_labels)

    def attention_sites(self) -> dict[str, int]:
        """Sites of all blocks, with their number of heads."""
        return {f"encoder.{layer}.self": self.config.num_heads for layer in range(self.config.num_layers)}

    def label_logits(self, batch: TextBatch, noise: Noise | None = None) -> Tensor:
        """Logits of the labels of each text, [B, labels]."""
        ids, packed = self.to_tensors(batch.tokens)
        hidden = self.positions.embed(self.token_embedding(ids), packed.positions)
        for block in self.blocks:
            hidden = block(hidden, packed, positions=self.positions, noise=noise)
        padded = packed.pad(self.norm(hidden))  # [B, T, D], zero where a text is shorter
        mean = padded.sum(dim=1) / packed.lengths[:, None]
        return self.classifier(mean)


FAMILY = Family(config=LogEncoderConfig, model=LogEncoder)
