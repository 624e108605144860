"""The recurrent models that read one text and write another, with attention or without."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob
from regard.errors import ConfigError

CELLS = ("lstm", "gru")
HARD = "hard"
SCORES = ("none", "additive", "dot", "bilinear", "concat", HARD)


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(Config):
    """A recurrent encoder–decoder, with attention (Bahdanau et al. 2015; Luong et al. 2015) or without."""

    family: str = knob("seq2seq", "which model this is", choices=("seq2seq",))
    source_vocabulary: int = knob(0, "token numbers of the source side; 0: from the tokenizer", low=0)
    target_vocabulary: int = knob(0, "token numbers of the target side; 0: from the tokenizer", low=0)
    shared: bool = knob(True, "one embedding for both sides")
    tied: bool = knob(True, "the output projection is the target embedding")
    output_bias: bool = knob(False, "a bias on the output projection")
    cell: str = knob("lstm", "what remembers from step to step", choices=CELLS)
    embedding: int = knob(256, "width of the embeddings", low=1)
    width: int = knob(256, "width of a cell's state", low=1)
    layers: int = knob(1, "cells above one another, in the encoder and in the decoder", low=1, high=16)
    directions: str = knob(
        "auto",
        "how the encoder reads: forwards, or both ways; auto: both ways, for dot forwards",
        choices=("auto", "one", "both"),
    )
    bridge: str = knob(
        "dense",
        "how the decoder starts from the encoder's last state: projected or as it is",
        choices=("dense", "copy"),
    )
    attention: str = knob(
        "additive",
        "how the decoder compares its state with the source's; hard: as additive, but one place is chosen",
        choices=SCORES,
    )
    choice: str = knob(
        "soft",
        "mix all places, or choose one: trained as if it were soft, or by rewards",
        choices=("soft", "straight_through", "reinforce"),
    )
    input_feeding: str = knob(
        "none",
        "what goes into the cell beside a token: nothing, what the last state sees (Bahdanau), the last output (Luong)",
        choices=("none", "context", "output"),
        bare="output",
    )
    context: str = knob(
        "start", "without attention: the source is told at the start or at every step", choices=("start", "every")
    )
    places: int = knob(512, "longest row the model takes", low=1)
    scale_embedding: bool = knob(True, "multiply embeddings by the root of their width")
    dropout: float = knob(0.2, "dropout on embeddings, between cells and on the output", low=0, high=0.95)
    pad: int = knob(0, "token number that fills rows; never looked at", low=0)
    end: int = knob(1, "token number that ends a row", low=0)
    start: int = knob(3, "token number that the decoder starts from", low=0)

    def check(self) -> None:
        if self.shared and self.source_vocabulary != self.target_vocabulary:
            raise ConfigError("a shared embedding needs equal vocabularies: set shared to false")
        if self.bridge == "copy" and self.sides == 2:
            raise ConfigError("a state of both directions is too wide to be copied: set bridge to dense")
        if self.attention == "dot" and self.directions == "both":
            raise ConfigError("dot compares states of one width: set directions to one, or attention to bilinear")
        if self.attention == "none":
            for name, none in (("input_feeding", "none"), ("choice", "soft")):
                if getattr(self, name) != none:
                    raise ConfigError(f"{name} ({getattr(self, name)}) needs attention: set it to {none}")
        elif self.context == "every":
            raise ConfigError("context is for a model without attention: drop it, or set attention to none")

    @property
    def sides(self) -> int:
        """From how many sides the encoder reads."""
        return 1 if self.directions == "one" or (self.directions == "auto" and self.attention == "dot") else 2

    @property
    def score(self) -> str:
        """How states are compared, whether places are then mixed or one is chosen."""
        return "additive" if self.attention == HARD else self.attention

    @property
    def look(self) -> str:
        """Whether places are mixed, or how the choice of one is trained."""
        return "straight_through" if self.attention == HARD and self.choice == "soft" else self.choice

    def summary(self) -> str:
        """Say what it is in a few words."""
        looking = "no attention" if self.attention == "none" else f"{self.look} {self.score} attention"
        return f"recurrent, {self.cell}, {self.layers}+{self.layers} layers of {self.width}, {looking}"


def _recurrent(width: int, layers: int, dropout: float) -> RecurrentConfig:
    return RecurrentConfig(embedding=width, width=width, layers=layers, dropout=dropout, input_feeding="context")


RECURRENT_PRESETS: dict[str, RecurrentConfig] = {
    "micro": _recurrent(128, 1, 0.1),
    "tiny": _recurrent(256, 1, 0.3),
    "small": _recurrent(512, 1, 0.3),
    "base": _recurrent(512, 2, 0.3),
}
