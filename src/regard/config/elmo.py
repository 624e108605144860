"""Recurrent language models from both ends of a text, whose layers are features."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob
from regard.config.recurrent import CELLS


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(Config):
    """Two recurrent language models, one from each end, whose layers are features (Peters et al. 2018)."""

    family: str = knob("elmo", "which model this is", choices=("elmo",))
    vocabulary: int = knob(0, "token numbers; 0: from the tokenizer", low=0)
    cell: str = knob("lstm", "what remembers from token to token", choices=CELLS)
    width: int = knob(256, "width of the embeddings and of a cell's state", low=1)
    layers: int = knob(2, "cells above one another, in each direction", low=1, high=16)
    dropout: float = knob(0.1, "dropout on embeddings, between cells and on the output", low=0, high=0.95)
    boundary: int = knob(1, "token number before the first and after the last token of a text", low=0)

    def summary(self) -> str:
        """Say what it is in a few words."""
        return (
            f"two language models, {self.cell}, from the left and from the right, {self.layers} layers of {self.width}"
        )


ELMO_PRESETS: dict[str, ElmoConfig] = {
    "micro": ElmoConfig(width=64),
    "tiny": ElmoConfig(width=128),
    "small": ElmoConfig(width=256),
    "base": ElmoConfig(width=512),
}
