"""Readers with words of their own: recurrent layers both ways, frozen features beside the words where there are any."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.noise import Noise, drop
from regard.attention.rows import Rows
from regard.blocks.reading import Mix
from regard.blocks.recurrent import RecurrentEncoder
from regard.config.model import ReaderConfig, RecurrentConfig
from regard.models.base import Model
from regard.tokens import Tokens


@dataclass(frozen=True)
class Texts:
    """What an encoder reads: rows of tokens, and what is known of each token beforehand."""

    tokens: Tokens
    features: NDArray[np.float16] | None = None  # [N, layers, F]


class Reader(nn.Module):
    """The words of a text, with a mix of frozen layers beside each, read both ways (Peters et al. 2018, section 3)."""

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        self.config = config
        self.width = 2 * config.width
        self.words = nn.Embedding(config.vocabulary, config.embedding)
        self.mix = Mix(config.feature_layers) if config.feature_layers else None
        settings = RecurrentConfig(
            cell=config.cell,
            embedding=config.embedding + config.feature_width,
            width=config.width,
            layers=config.layers,
            dropout=config.dropout,
        )
        self.recurrent = RecurrentEncoder(settings)

    def forward(self, ids: Tensor, rows: Rows, features: Tensor | None, noise: Noise | None) -> Tensor:
        """Return a state for each token, [N, width]."""
        states = self.words(ids)
        if self.mix is not None:
            assert features is not None
            states = torch.cat([states, self.mix(features.to(states.dtype))], dim=1)
        states, _ = self.recurrent(drop(states, self.config.dropout, noise, "words"), rows, noise)
        return states

    def mixed(self) -> tuple[list[float], float]:
        """Return how much of each frozen layer is in the mix, and its scale; nothing where there are none."""
        return ([], 0.0) if self.mix is None else (self.mix.shares().tolist(), self.mix.scale.item())


class ReadingModel(Model):
    """A model whose encoder is a `Reader`."""

    encoder: Reader

    def states(self, texts: Texts, noise: Noise | None) -> tuple[Tensor, Rows]:
        """Return a state for each token, [N, width], and how the texts lie in them."""
        ids, rows = self.door(texts.tokens)
        features = None if texts.features is None else torch.from_numpy(texts.features).to(self.device())
        return self.encoder(ids, rows, features, noise), rows
