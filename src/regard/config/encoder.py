"""The Transformer encoder, BERT and its relatives, with its heads."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob
from regard.config.stack import ACTIVATIONS, StackConfig, check_heads
from regard.errors import ConfigError

SIGHTS = ("full", "blocks")
PLACES = ("learned", "rotary")
POOLINGS = ("first", "mean")
ENCODER_HEADS = ("plain", "masked", "next", "pretraining", "label", "token", "span")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """A Transformer encoder that reads a text from both sides (Devlin et al. 2019); its relatives are settings."""

    family: str = knob("bert", "which model this is", choices=("bert",))
    vocabulary: int = knob(0, "token numbers; 0: from the tokenizer", low=0)
    width: int = knob(256, "width of the hidden states", low=2)
    stack: StackConfig = knob(StackConfig, "the stack of blocks")
    groups: int = knob(0, "sets of weights that the layers share, in order (ALBERT); 0: each has its own", low=0)
    embedding: int = knob(0, "width of words, places and types, which are then widened; 0: as the states", low=0)
    norm: str = knob("after", "layer norm before or after each part", choices=("before", "after"))
    activation: str = knob("gelu", "activation of the feed-forward part", choices=ACTIVATIONS)
    gated: bool = knob(False, "the feed-forward part multiplies what is activated with as much that is not")
    biases: bool = knob(True, "linear layers and norms add a bias; the last one before scores always does")
    first_norm: bool = knob(True, "the first block norms what it looks around with, where norms come before")
    positions: str = knob("learned", "how places are told: by a table, or by turning queries and keys", choices=PLACES)
    base: float = knob(10_000.0, "what the wavelengths of turns grow with, in layers that look at whole rows", low=1)
    near_base: float = knob(10_000.0, "what they grow with in layers that look near", low=1)
    reach: int = knob(0, "tokens to either side that layers look at which look near; 0: all look at whole rows", low=0)
    far_every: int = knob(3, "of so many layers the first looks at whole rows, the others near", low=1)
    places: int = knob(512, "longest row the model takes", low=1)
    first_place: int = knob(0, "row of the table of places that a text's first token has", low=0)
    types: int = knob(2, "kinds of tokens told apart, such as the two texts of a pair; 0: none", low=0)
    epsilon: float = knob(1e-12, "added to the variance in layer norm", low=0)
    dropout: float = knob(0.1, "dropout on embeddings and on each part's result", low=0, high=0.95)
    attention_dropout: float = knob(0.1, "dropout on attention weights", low=0, high=0.95)
    attention: str = knob(
        "full", "who looks at whom in long texts: all at all, or blocks at few blocks (BigBird)", choices=SIGHTS
    )
    block: int = knob(64, "tokens of a block", low=1)
    random_blocks: int = knob(3, "blocks that a block looks at besides its neighbours, the first and the last", low=0)
    drawn: bool = knob(True, "those are drawn once for all; else the first block counts so often more, as published")
    scale_embedding: bool = knob(False, "multiply words by the root of the width")
    drop_first: bool = knob(False, "dropout on embeddings comes before their norm")
    span_feedforward: bool = knob(False, "a feed-forward part before the scores of a span head")
    head: str = knob("plain", "what is made of the states", choices=ENCODER_HEADS)
    labels: int = knob(0, "labels of a label or token head", low=0)
    tied: bool = knob(True, "masked words are scored by the table of words itself")
    transform: bool = knob(False, "every head scores states that went through one more layer, as masked words do")
    pooling: str = knob(
        "first", "what that layer makes a label's state of: a text's first, their mean", choices=POOLINGS
    )
    pooler: bool = knob(True, "a plain model has a state for the whole text too, made of the first token's")
    pooler_activation: str = knob("tanh", "activation of that state", choices=ACTIVATIONS)
    pooler_dropout: float = knob(0.0, "dropout on the first token before that state is made", low=0, high=0.95)
    head_dropout: float = knob(0.1, "dropout on what the head scores", low=0, high=0.95)
    pad: int = knob(0, "token number that fills rows; never looked at", low=0)

    def check(self) -> None:
        check_heads("stack.heads", self.width, self.stack.heads, rotary=self.positions == "rotary")
        if self.reach and self.attention != "full":
            raise ConfigError(f"reach ({self.reach}) is for attention 'full', not {self.attention!r}")
        if self.groups > self.stack.layers:
            raise ConfigError(f"groups ({self.groups}) must be at most stack.layers ({self.stack.layers})")

    @property
    def inner(self) -> int:
        """Width of the table of words."""
        return self.embedding or self.width

    def block_of(self, layer: int) -> int:
        """Return the number of the block whose weights a layer has.

        >>> [EncoderConfig(groups=2, stack=StackConfig(layers=5)).block_of(layer) for layer in range(5)]
        [0, 0, 0, 1, 1]
        """
        return layer * self.groups // self.stack.layers if self.groups else layer

    def looks_near(self, layer: int) -> bool:
        """Whether a layer looks at what is near alone.

        >>> [EncoderConfig(reach=4, far_every=3).looks_near(layer) for layer in range(4)]
        [False, True, True, False]
        """
        return self.reach > 0 and layer % self.far_every > 0

    @property
    def longest_full(self) -> int:
        """Up to how many tokens of a row everybody looks at everybody."""
        return (5 + 2 * self.random_blocks) * self.block if self.attention == "blocks" else self.places

    @property
    def pools(self) -> bool:
        """Whether there is a state for the whole text."""
        made = self.head in ("next", "pretraining") or (self.head == "label" and not self.transform)
        return made or (self.head == "plain" and self.pooler)

    @property
    def scores_firsts(self) -> bool:
        """Whether the head scores a text by its first token's state, and needs no others."""
        return self.head == "label" and (self.pools or self.pooling == "first")

    @property
    def outputs(self) -> int:
        """How many scores a label, token or span head gives."""
        return {"label": self.labels, "token": self.labels, "span": 2}.get(self.head, 0)

    def summary(self) -> str:
        """Say what it is in a few words."""
        stack = self.stack
        what = {"plain": "no head", "label": f"{self.labels} labels", "token": f"{self.labels} token labels"}
        return (
            f"Transformer encoder, {stack.layers} layers of {self.width}, {stack.heads} heads, feed-forward "
            f"{stack.feedforward}, norm {self.norm}, {what.get(self.head, f'{self.head} head')}"
        )


def _encoder(layers: int, width: int, heads: int) -> EncoderConfig:
    stack = StackConfig(layers=layers, heads=heads, feedforward=4 * width)
    return EncoderConfig(width=width, stack=stack, dropout=0.0, attention_dropout=0.0)


ENCODER_PRESETS: dict[str, EncoderConfig] = {
    "tiny": _encoder(2, 128, 2),
    "mini": _encoder(4, 256, 4),
    "small": _encoder(4, 512, 8),
    "medium": _encoder(8, 512, 8),
    "base": _encoder(12, 768, 12),
    "large": _encoder(24, 1024, 16),
}
