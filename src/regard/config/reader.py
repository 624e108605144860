"""Recurrent readers with words of their own, and what is made of their states: a label for a text, a tag for a word."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob
from regard.config.recurrent import CELLS
from regard.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(Config):
    """Words of a text, with frozen features beside them where there are any, read both ways by recurrent layers."""

    vocabulary: int = knob(0, "token numbers; 0: from the tokenizer", low=0)
    embedding: int = knob(128, "width of the embeddings", low=1)
    cell: str = knob("lstm", "what remembers from token to token", choices=CELLS)
    width: int = knob(128, "width of a cell's state, in each direction", low=1)
    layers: int = knob(1, "cells above one another, in each direction", low=1, high=16)
    dropout: float = knob(0.3, "dropout on what goes in and between cells", low=0, high=0.95)
    feature_layers: int = knob(0, "layers of frozen features, which are mixed; 0: from --features, if given", low=0)
    feature_width: int = knob(0, "width of those layers; 0: from --features, if given", low=0)

    def check(self) -> None:
        if bool(self.feature_layers) != bool(self.feature_width):
            raise ConfigError("feature_layers and feature_width are both 0, or both are not")

    def summary(self) -> str:
        """Say what it is in a few words."""
        words = f"words of {self.embedding}"
        if self.feature_layers:
            words += f" and {self.feature_layers} frozen layers of {self.feature_width}"
        layers = f"{self.layers} layer{'s' if self.layers > 1 else ''} of {self.width} over {words}"
        return f"{self.cell} both ways, {layers}"


READER_PRESETS: dict[str, ReaderConfig] = {
    "tiny": ReaderConfig(embedding=64, width=64),
    "small": ReaderConfig(embedding=128, width=128),
    "base": ReaderConfig(embedding=256, width=256),
}


POOLINGS = ("attention", "mean", "max")


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(Config):
    """An encoder that gives a state for each token, one state made of them all, and a score for each label."""

    family: str = knob("classifier", "which model this is", choices=("classifier",))
    labels: int = knob(0, "labels to choose from; 0: from the data", low=0)
    pooling: str = knob("attention", "how the states of all tokens become one", choices=POOLINGS)
    dropout: float = knob(0.3, "dropout on that one state", low=0, high=0.95)
    encoder: ReaderConfig = knob(ReaderConfig, "what reads the text")

    def summary(self) -> str:
        """Say what it is in a few words."""
        return f"{self.encoder.summary()}, {self.pooling} pooling, {self.labels} labels"


@dataclass(frozen=True, kw_only=True)
class TaggerConfig(Config):
    """A reader that gives a state for each token, and a score for each tag at the first token of a word."""

    family: str = knob("tagger", "which model this is", choices=("tagger",))
    labels: int = knob(0, "tags to choose from; 0: from the data", low=0)
    dropout: float = knob(0.3, "dropout on the states of words", low=0, high=0.95)
    encoder: ReaderConfig = knob(ReaderConfig, "what reads the sentence")

    @property
    def outputs(self) -> int:
        """How many scores a word has."""
        return self.labels

    def summary(self) -> str:
        """Say what it is in a few words."""
        return f"{self.encoder.summary()}, {self.labels} tags"
