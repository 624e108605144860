"""The causal Transformer (Radford et al. 2018, 2019): every token is told from those before it.

Training reads whole rows at once; generation reads what is given at once and then steps, with the translator's caches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.cache import KeyValues
from regard.attention.noise import Noise, drop
from regard.attention.positions import positions
from regard.attention.rows import Rows
from regard.blocks.heads import vocabulary_loss
from regard.blocks.packed import PackedStack
from regard.blocks.transformer import BlockShape, Encoder, View
from regard.config.gpt import GptConfig
from regard.errors import UsageError
from regard.models.base import candidates
from regard.models.elmo import without_first, without_last
from regard.models.packing import Packable, output_product
from regard.models.writer import BLOCK
from regard.tokens import Candidates, Ids, Tokens

NEVER = -1e4  # the logit of an end that does not exist: it is not drawn, but a limit can still use it
ROOM = 64  # tokens that a new cache has places for beyond those it starts with


class InUse:
    """The parts as generation uses them."""

    def __init__(self, model: Gpt, pack: bool) -> None:
        self.stack = PackedStack(model.stack, model.positions, pack)
        self.output = output_product(model.output_weight, None, pack)


@dataclass
class GptState:
    """What generation remembers: keys and values by row, and the last tokens themselves."""

    used: InUse
    cache: KeyValues
    tokens: Ids  # [R, T], the last ones read or written, as many as the model takes
    waiting: bool  # whether the last of them is still to be read

    @torch.inference_mode()
    def select(self, rows: NDArray[np.int64]) -> GptState:
        """Return the rows with these numbers, in this order."""
        numbers = torch.from_numpy(np.asarray(rows, dtype=np.int64)).to(self.cache.values.device)
        return replace(self, cache=self.cache.select(numbers), tokens=self.tokens[rows])


class Gpt(Packable):
    """Tells the next token of each text.

    >>> from regard.config.model import StackConfig
    >>> stack = StackConfig(layers=1, heads=2, feedforward=8)
    >>> model = Gpt(GptConfig(vocabulary=11, width=4, stack=stack))
    >>> model.logits(Tokens.from_rows([[5, 6, 7], [8]])).shape
    torch.Size([4, 11])
    """

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.positions = positions(config.positions, config.places, config.width)
        self.stack = Encoder(config.stack.layers, _shape(config), "decoder")
        if not config.tied:
            self.output = nn.Linear(config.width, config.vocabulary, bias=False)

    # the generator's face: what a search needs to know
    @property
    def vocabulary(self) -> int:
        """Token numbers; a model without an end has one more, which is never likely."""
        return self.config.vocabulary + (self.config.end < 0)

    @property
    def end_token(self) -> int:
        return self.config.end if self.config.end >= 0 else self.config.vocabulary

    @property
    def start_token(self) -> int:
        return self.end_token

    @property
    def pad_token(self) -> int:
        return self.end_token

    @property
    def output_weight(self) -> Tensor:
        """The matrix that turns hidden states into logits, [V, D]."""
        return self.words.weight if self.config.tied else self.output.weight

    def in_use(self, pack: bool) -> InUse:
        """Return the parts that generation uses; packed, they keep the weights of the moment."""
        return InUse(self, pack)

    def _embed(self, ids: Tensor, at: Tensor, noise: Noise | None) -> Tensor:
        return drop(self.positions.embed(self.words(ids), at), self.config.dropout, noise, "embedding")

    # whole rows at once
    def forward(self, tokens: Tokens, noise: Noise | None = None) -> Tensor:
        """Return the hidden states [N, D] at each token of each row."""
        ids, rows = self.door(tokens, BLOCK if noise is not None else 1)
        return self.stack(self._embed(ids, rows.positions, noise), rows, self._views(rows), noise)

    def _views(self, rows: Rows) -> list[View]:
        return self.stack.alike(rows.backwards(), self.positions)

    @torch.no_grad()
    def logits(self, tokens: Tokens) -> Tensor:
        """Return the logits of what follows each token, [N, V]."""
        return nn.functional.linear(self(tokens), self.output_weight)

    def loss(self, rows: Tokens, *, smoothing: float = 0.0, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
        """Return the sums of the smoothed and of the plain loss over every token of a row but the first."""
        hidden = self(without_last(rows), noise)
        targets, layout = self.door(without_first(rows), BLOCK if noise is not None else 1)
        return vocabulary_loss(hidden, self.output_weight, None, targets, smoothing, layout.filled)

    # one token after another
    @torch.inference_mode()
    def start(self, source: Tokens, room: int) -> GptState:
        """Return the state before the first token to be written: the source texts are what is continued.

        All have equally many tokens, at least one; of more than the model takes, the last are read.
        """
        if len(set(source.lengths.tolist())) != 1 or not len(source.ids):
            raise UsageError("texts that are continued together must have equally many tokens, at least one")
        tokens = source.ids.reshape(len(source), -1)
        if tokens.shape[1] > self.config.places:
            tokens = self._last(tokens)
        used: InUse = self.used()
        return GptState(used, self._read(tokens[:, :-1], used, room), tokens, waiting=True)

    def _last(self, tokens: Ids) -> Ids:
        """Return the tokens that are read again where there is no place for one more: half of what the model takes."""
        return tokens[:, -max(1, self.config.places // 2) :]

    def _read(self, tokens: Ids, used: InUse, room: int) -> KeyValues:
        """Return keys and values of tokens [R, T], read at once."""
        count, length = tokens.shape
        stack = self.config.stack
        places = min(length + min(room, ROOM) + 1, self.config.places)
        cache = KeyValues.empty(
            stack.layers, count, stack.heads, places, self.config.width // stack.heads, self.device()
        )
        if length:
            ids = torch.from_numpy(tokens.reshape(-1).astype(np.int64)).to(self.device())
            rows = Rows(np.full(count, length), self.device())
            used.stack.encode(self._embed(ids, rows.positions, None), rows, self._views(rows), cache)
        return cache

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int32], state: GptState, k: int) -> tuple[Candidates, GptState]:
        """Return the best next tokens for each row, given one more token of each; k = 0: all log-probabilities.

        The first step reads the last token of what is continued instead of the start that it is given.
        """
        if state.waiting:
            state.waiting = False
        else:
            state.tokens = np.concatenate([state.tokens, tokens[:, None]], axis=1)[:, -self.config.places :]
        if state.cache.length == self.config.places:
            state.tokens = self._last(state.tokens)
            state.cache = self._read(state.tokens[:, :-1], state.used, ROOM)
        ids = torch.from_numpy(state.tokens[:, -1].astype(np.int64)).to(self.device())
        states = self._embed(ids, torch.full_like(ids, state.cache.length), None)
        logits = state.used.output(state.used.stack.step(states, state.cache, [], None))
        if self.config.end < 0:
            logits = nn.functional.pad(logits[:, : self.config.vocabulary], (0, 1), value=NEVER)
        return candidates(logits, k, self.vocabulary, self.end_token), state


def _shape(config: GptConfig) -> BlockShape:
    return BlockShape(
        width=config.width,
        heads=config.stack.heads,
        feedforward=config.stack.feedforward,
        activation=config.activation,
        norm_before=True,
        epsilon=config.epsilon,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=0.0,
    )
