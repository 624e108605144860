"""A Transformer encoder (Devlin et al. 2019): a state for each token of a text, seen from both sides.

DistilBERT (no types, no pooler), RoBERTa and XLM-R (places from 2, other heads), BigBird (long rows in blocks), ELECTRA
(narrow tables of words), ALBERT (layers that share weights besides) and ModernBERT (turned places, layers that look
near, gates) are configs of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.masks import PlacedMask
from regard.attention.multihead import SelfAttention
from regard.attention.noise import Noise, drop
from regard.attention.positions import Learned, Positions, Rotary, sinusoids
from regard.attention.rows import Chosen, Rows
from regard.attention.sparse import BlockMask, big_bird
from regard.blocks.packed import PackedStack
from regard.blocks.reading import Pooling
from regard.blocks.transformer import ACTIVATIONS, BlockShape, FeedForward, View
from regard.blocks.transformer import Encoder as EncoderStack
from regard.config.model import EncoderConfig
from regard.errors import UsageError
from regard.models.packing import Packable
from regard.tokens import Ids, Tokens

NEARNESS = 2 * 2**0.5  # of places: twice the deviation that words begin with
USUAL_SIZE = 0.02  # deviation that the words of published models begin with
TINY = 1e-6  # added to a variance: next to nothing beside that of words of the usual size
NOWHERE = Positions()  # places are in the states, attention needs no more of them


class MaskedWords(nn.Module):
    """Turns states into ones that the table of words can score, or any head of a model with `transform`."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.dense = nn.Linear(config.width, config.inner, bias=config.biases)
        self.norm = nn.LayerNorm(config.inner, config.epsilon, bias=config.biases)

    def forward(self, states: Tensor) -> Tensor:  # [M, D]
        made: Tensor = self.norm(ACTIVATIONS[self.activation](self.dense(states)))
        return made


class Encoder(Packable):
    """Reads texts, gives a state for each token; a head makes scores of them.

    >>> from regard.config.model import StackConfig
    >>> stack = StackConfig(layers=1, heads=2, feedforward=8)
    >>> model = Encoder(EncoderConfig(vocabulary=11, width=4, stack=stack, head="label", labels=3))
    >>> model.encode(Tokens.from_rows([[5, 6, 7], [8]])).shape, model.scores(Tokens.from_rows([[5, 6, 7], [8]])).shape
    ((4, 4), (2, 3))
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        width, inner, layers = config.width, config.inner, config.stack.layers
        self.words = nn.Embedding(config.vocabulary, inner)
        learned = config.positions == "learned"
        self.places = Learned(config.first_place + config.places, inner) if learned else NOWHERE
        self.far, self.near = (NOWHERE, NOWHERE) if learned else (Rotary(config.base), Rotary(config.near_base))
        self.types = nn.Embedding(config.types, inner) if config.types else None
        self.norm = nn.LayerNorm(inner, config.epsilon, bias=config.biases)
        self.widening = nn.Linear(inner, width) if config.embedding else None
        shared = [config.block_of(layer) for layer in range(layers)] if config.groups else []
        self.stack = EncoderStack(layers, _shape(config), shared=shared)
        self.pooler = nn.Linear(width, width) if config.pools else None
        masked = config.head in ("masked", "pretraining")
        self.masked = MaskedWords(config) if masked or (config.transform and config.head != "plain") else None
        self.masked_bias = nn.Parameter(torch.zeros(config.vocabulary)) if masked else None
        self.masked_output = nn.Linear(inner, config.vocabulary, bias=False) if masked and not config.tied else None
        self.next = nn.Linear(width, 2) if config.head in ("next", "pretraining") else None
        spans = config.head == "span" and config.span_feedforward
        self.span = FeedForward(_shape(config)) if spans else None
        self.span_norm = nn.LayerNorm(width, config.epsilon) if spans else None
        self.output = nn.Linear(width, config.outputs) if config.outputs else None

    def forward(
        self,
        ids: Tensor,  # [N]
        rows: Rows,
        types: Tensor | None = None,  # [N]
        noise: Noise | None = None,
        chosen: Chosen | None = None,
    ) -> Tensor:
        """Return a state for each token, [N, D], or for each chosen one, [M, D]; types are 0 where none are given."""
        return self.stack(self.embed(ids, rows, types, noise), rows, self.views(rows), noise, chosen)

    def layers(
        self, ids: Tensor, rows: Rows, types: Tensor | None = None, noise: Noise | None = None
    ) -> list[Tensor]:  # ids and types [N]
        """Return the states after each layer, each [N, D]; the last are those that the model gives."""
        *made, last = self.stack.layers(self.embed(ids, rows, types, noise), rows, self.views(rows), noise)
        return [*made, self.stack.norm(last)]

    def embed(self, ids: Tensor, rows: Rows, types: Tensor | None, noise: Noise | None) -> Tensor:
        """Return the states before the first block: word, place and type, normed."""
        config, words = self.config, self.words(ids)
        if config.scale_embedding:
            words = words * math.sqrt(config.width)
        states = self.places.embed(words, rows.positions + config.first_place)
        if self.types is not None:
            states = states + (self.types.weight[0] if types is None else self.types(types))
        if config.drop_first:
            states = self.norm(drop(states, config.dropout, noise, "embedding"))
        else:
            states = drop(self.norm(states), config.dropout, noise, "embedding")
        return states if self.widening is None else self.widening(states)

    def views(self, rows: Rows) -> list[View]:
        """Return what each layer is told of who may look at whom: at whole rows, or at what is near."""
        config, far = self.config, View(self._sight(rows), self.far)
        if not config.reach:
            return self.stack.alike(*far)
        close = rows.longest <= config.reach + 1  # nothing is farther away
        near = View(far.mask if close else rows.nearby(config.reach), self.near)
        return [near if config.looks_near(layer) else far for layer in range(config.stack.layers)]

    def _sight(self, rows: Rows) -> PlacedMask:
        """Return who may look at whom: everybody at its whole row, or in long rows blocks at few blocks."""
        config = self.config
        if config.attention == "full" or rows.longest <= config.longest_full:
            return rows.everywhere()
        drawn, repeats = (config.random_blocks, 0) if config.drawn else (0, config.random_blocks)
        return BlockMask(big_bird(drawn), config.block, rows.lengths, longest_full=config.longest_full, repeats=repeats)

    @property
    def scheme(self) -> tuple[Positions, int]:
        """How places are told, and the width of what tells them: of the table, or of a head that is turned."""
        turned = self.config.positions == "rotary"
        return (self.far, self.config.width // self.config.stack.heads) if turned else (self.places, self.config.inner)

    # heads: states in, scores out; which of them a model has, `config.head` says
    def pooled(self, states: Tensor, rows: Rows, noise: Noise | None = None) -> Tensor:
        """Return one state for each text, made of its first token's or of their mean, [B, D]."""
        config = self.config
        if self.pooler is None:
            return self.masked_states(_pooled("cls" if config.pooling == "first" else config.pooling, states, rows))
        first = drop(states[rows.firsts], config.pooler_dropout, noise, "pooler")
        return ACTIVATIONS[config.pooler_activation](self.pooler(first))

    def masked_states(self, states: Tensor) -> Tensor:  # [M, D]
        """Return what is multiplied with `output_weight`, plus `output_bias`, to score words at chosen places."""
        assert self.masked is not None
        made: Tensor = self.masked(states)
        return made

    @property
    def output_weight(self) -> Tensor:
        """The matrix that scores words at masked places, [V, D]."""
        return self.words.weight if self.masked_output is None else self.masked_output.weight

    @property
    def output_bias(self) -> Tensor:
        """What is added to those scores, [V]."""
        assert self.masked_bias is not None
        return self.masked_bias

    def next_scores(self, states: Tensor, rows: Rows, noise: Noise | None = None) -> Tensor:
        """Return for each pair the scores of: the second text follows, it does not, [B, 2]."""
        assert self.next is not None
        made: Tensor = self.next(self.pooled(states, rows, noise))
        return made

    def label_scores(self, states: Tensor, rows: Rows, noise: Noise | None = None) -> Tensor:
        """Return the scores of the labels: of each text with a label head, [B, labels]; else of each token, [N, …]."""
        assert self.output is not None
        if self.config.head == "label":
            states = self.pooled(states, rows, noise)
        elif self.config.transform:
            states = self.masked_states(states)
        if self.span is not None and self.span_norm is not None:
            states = self.span_norm(states + self.span(states, noise))
        made: Tensor = self.output(drop(states, self.config.head_dropout, noise, "head"))
        return made

    # NumPy in, NumPy out
    @torch.inference_mode()
    def encode(self, tokens: Tokens, types: Ids | None = None) -> NDArray[np.float32]:
        """Return a state for each token, [N, D]; types are the tokens' segments where none are given."""
        return self._states(tokens, types)[0].float().cpu().numpy()

    @torch.inference_mode()
    def vectors(self, tokens: Tokens, pooling: Sequence[str] = ("mean",)) -> NDArray[np.float32]:
        """Return one vector for each text, [B, D · poolings]: the mean or maximum of its states, or the first one."""
        states, rows = self._states(tokens, None)
        states = states.float()
        made = [_pooled(kind, states, rows) for kind in pooling]
        return (made[0] if len(made) == 1 else torch.cat(made, dim=1)).cpu().numpy()

    @torch.inference_mode()
    def pool(self, tokens: Tokens, types: Ids | None = None) -> NDArray[np.float32]:
        """Return one state for each text, [B, D], of a model that has them."""
        return self.pooled(*self._states(tokens, types)).float().cpu().numpy()

    @torch.inference_mode()
    def scores(self, tokens: Tokens, types: Ids | None = None) -> NDArray[np.float32]:
        """Return the head's scores: of texts [B, …] for label and next, of tokens [N, …] for token, span, masked."""
        states, rows = self._states(tokens, types)
        match self.config.head:
            case "plain":
                raise UsageError("a model without a head gives states, not scores")
            case "masked" | "pretraining":
                made = nn.functional.linear(self.masked_states(states), self.output_weight, self.output_bias)
            case "next":
                made = self.next_scores(states, rows)
            case _:
                made = self.label_scores(states, rows)
        return made.float().cpu().numpy()

    def _states(self, tokens: Tokens, types: Ids | None) -> tuple[Tensor, Rows]:
        ids, rows = self.door(tokens)
        if rows.longest > self.config.places:
            raise UsageError(f"a row has {rows.longest} tokens but the model takes {self.config.places}: split it")
        kinds = self.door_types(tokens if types is None else Tokens(tokens.ids, tokens.offsets, types))
        used: PackedStack = self.used()
        return used.encode(self.embed(ids, rows, kinds, None), rows, self.views(rows)), rows

    def door_types(self, tokens: Tokens, spare: int = 0) -> Tensor | None:
        """Return the segments of tokens as a tensor, [N + spare]; nothing where there are none."""
        if tokens.segments is None or self.config.types < 2:
            return None
        segments = np.append(tokens.segments.astype(np.int64), np.zeros(spare, dtype=np.int64))
        return torch.from_numpy(segments).to(self.device())

    def sites(self) -> dict[str, int]:
        """Return every place where this model looks; layers that share their weights look each for itself."""
        stack = self.config.stack
        return {f"encoder.{layer}.self": stack.heads for layer in range(stack.layers)}

    def in_use(self, pack: bool) -> PackedStack:
        """Return the stack as it is used; packed, it keeps the weights of the moment."""
        return PackedStack(self.stack, NOWHERE, pack, by_length=True)

    def state_matrices(self) -> dict[str, tuple[int, int]]:
        """Return the weights that map states to states; what scores words, pairs or labels is not among them."""
        scoring = ("masked_output.weight", "next.weight", "output.weight")
        return {name: shape for name, shape in super().state_matrices().items() if name not in scoring}


def _shape(config: EncoderConfig) -> BlockShape:
    return BlockShape(
        width=config.width,
        heads=config.stack.heads,
        feedforward=config.stack.feedforward,
        activation=config.activation,
        norm_before=config.norm == "before",
        epsilon=config.epsilon,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=0.0,
        gated=config.gated,
        biases=config.biases,
        first_norm=config.first_norm,
    )


def _pooled(kind: str, states: Tensor, rows: Rows) -> Tensor:
    """Return one state of all states of a row, [B, D]."""
    return states[rows.firsts] if kind == "cls" else Pooling(kind, states.shape[1])(states, rows)


def start_encoder(model: Encoder, seed: int, deviation: float = USUAL_SIZE) -> None:
    """Fill all matrices and tables with normal numbers, biases with 0, norms with 1; a function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:
                parameter.normal_(0, deviation, generator=generator)
            elif name.endswith("norm.weight"):
                parameter.fill_(1)
            else:
                parameter.zero_()


def start_near(model: Encoder) -> None:
    """Let a new model look at what is near from its first update on; it is the same for all seeds.

    Learned places begin as sines and cosines, so that near ones are alike, and queries as keys, so that a token looks
    at those like it: at its neighbours. From chance alone a model tells words by their counts for many updates before
    it finds that their neighbours say more.
    """
    with torch.no_grad():
        if isinstance(model.places, Learned):
            places, width = model.places.weight.shape
            model.places.weight.copy_(sinusoids(torch.arange(places), width) * NEARNESS * width**-0.5)
        for module in model.modules():
            if isinstance(module, SelfAttention):
                query, key, _ = module.qkv.weight.chunk(3)
                key.copy_(query)


def with_usual_tables(weights: Mapping[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Return the same model with tables of words, places and types that are no larger than usual.

    They are normed before anything looks at them, so their size means nothing to the model, but it decides how much an
    update of given size changes them: of a model that learned at high rates they are so large that fine-tuning would
    hardly move them. Where words are scored by the same table, the norm before it makes up for the size; where other
    heads read that norm, too, or where what is added to the variance would count, the model stays as it is.

    >>> config = EncoderConfig(vocabulary=9, width=4, head="masked")
    >>> model = Encoder(config)
    >>> made = with_usual_tables({name: 1 + tensor for name, tensor in model.state_dict().items()}, config)
    >>> round(made["words.weight"].square().mean().sqrt().item(), 3), made["norm.weight"][0].item()
    (0.02, 2.0)
    """
    made = dict(weights)
    size = float(made["words.weight"].float().square().mean().sqrt())
    if config.transform or config.epsilon > TINY or size <= USUAL_SIZE:
        return made
    share = USUAL_SIZE / size
    for table in ("words", "places", "types"):
        if f"{table}.weight" in made:
            made[f"{table}.weight"] = made[f"{table}.weight"] * share
    if config.tied:
        for name in ("masked.norm.weight", "masked.norm.bias"):
            if name in made:
                made[name] = made[name] / share
    return made
