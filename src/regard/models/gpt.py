"""The causal Transformer (Radford et al. 2018, 2019): every token is told from those before it.

Training reads whole rows at once; generation reads what is given at once and then steps, with the translator's caches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.cache import KeyValueCache
from regard.attention.dropout import Noise, apply_dropout
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import build_positions
from regard.config.models import GptConfig
from regard.errors import UsageError
from regard.models.base import TOKEN_MULTIPLE, Packable, output_product, top_candidates
from regard.models.elmo import drop_first_tokens, drop_last_tokens
from regard.models.layers.block import BlockConfig, Encoder, LayerMask
from regard.models.layers.losses import vocabulary_loss
from regard.models.layers.packed import PackedStack
from regard.tokens import Candidates, Ids, Tokens

MIN_LOGIT = -1e4  # the logit of an end that does not exist: it is not drawn, but a limit can still use it
CACHE_CAPACITY = 64  # tokens that a new cache has places for beyond those it starts with


class GptInference:
    """The parts as generation uses them."""

    def __init__(self, model: Gpt, pack: bool) -> None:
        self.stack = PackedStack(model.stack, model.positions, pack)
        self.output = output_product(model.output_weight, None, pack)


@dataclass
class GptState:
    """What generation remembers: keys and values by row, and the last tokens themselves."""

    used: GptInference
    cache: KeyValueCache
    tokens: Ids  # [R, T], the last ones read or written, as many as the model takes
    has_pending_token: bool  # whether the last of them is still to be read

    @torch.inference_mode()
    def select(self, rows: NDArray[np.int64]) -> GptState:
        """Return the rows with these numbers, in this order."""
        numbers = torch.from_numpy(np.asarray(rows, dtype=np.int64)).to(self.cache.values.device)
        return replace(self, cache=self.cache.select(numbers), tokens=self.tokens[rows])


class Gpt(Packable):
    """Tells the next token of each text.

    >>> from regard.config.models import StackConfig
    >>> stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=8)
    >>> model = Gpt(GptConfig(vocab_size=11, hidden_size=4, stack=stack))
    >>> model.logits(Tokens.from_rows([[5, 6, 7], [8]])).shape
    torch.Size([4, 11])
    """

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = build_positions(config.positions, config.max_positions, config.hidden_size)
        self.stack = Encoder(config.stack.num_layers, _shape(config), "decoder")
        if not config.tie_embeddings:
            self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    # the generator's face: what a search needs to know
    @property
    def vocab_size(self) -> int:
        """Token numbers; a model without an end has one more, which is never likely."""
        return self.config.vocab_size + (self.config.eos_id < 0)

    @property
    def eos_id(self) -> int:
        return self.config.eos_id if self.config.eos_id >= 0 else self.config.vocab_size

    @property
    def bos_id(self) -> int:
        return self.eos_id

    @property
    def pad_id(self) -> int:
        return self.eos_id

    @property
    def output_weight(self) -> Tensor:
        """The matrix that turns hidden states into logits, [V, D]."""
        return self.words.weight if self.config.tie_embeddings else self.output.weight

    def prepare_for_inference(self, pack: bool) -> GptInference:
        """Return the parts that generation uses; packed, they keep the weights of the moment."""
        return GptInference(self, pack)

    def _embed(self, ids: Tensor, at: Tensor, noise: Noise | None) -> Tensor:
        return apply_dropout(self.positions.embed(self.words(ids), at), self.config.dropout, noise, "embedding")

    # whole rows at once
    def forward(self, tokens: Tokens, noise: Noise | None = None) -> Tensor:
        """Return the hidden states [N, D] at each token of each row."""
        ids, rows = self.to_tensors(tokens, TOKEN_MULTIPLE if noise is not None else 1)
        return self.stack(self._embed(ids, rows.positions, noise), rows, self._views(rows), noise)

    def _views(self, batch: PackedBatch) -> list[LayerMask]:
        return self.stack.same_for_all_layers(batch.causal_mask(), self.positions)

    @torch.no_grad()
    def logits(self, tokens: Tokens) -> Tensor:
        """Return the logits of what follows each token, [N, V]."""
        return nn.functional.linear(self(tokens), self.output_weight)

    def loss(self, rows: Tokens, *, smoothing: float = 0.0, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
        """Return the sums of the smoothed and of the plain loss over every token of a row but the first."""
        hidden = self(drop_last_tokens(rows), noise)
        targets, layout = self.to_tensors(drop_first_tokens(rows), TOKEN_MULTIPLE if noise is not None else 1)
        return vocabulary_loss(hidden, self.output_weight, None, targets, smoothing, layout.num_tokens)

    # one token after another
    @torch.inference_mode()
    def start(self, source: Tokens, room: int) -> GptState:
        """Return the state before the first token to be written: the source texts are what is continued.

        All have equally many tokens, at least one; of more than the model takes, the last are read.
        """
        if len(set(source.lengths.tolist())) != 1 or not len(source.ids):
            raise UsageError("texts that are continued together must have equally many tokens, at least one")
        tokens = source.ids.reshape(len(source), -1)
        if tokens.shape[1] > self.config.max_positions:
            tokens = self._sliding_window(tokens)
        used: GptInference = self.used()
        return GptState(used, self._prefill(tokens[:, :-1], used, room), tokens, has_pending_token=True)

    def _sliding_window(self, tokens: Ids) -> Ids:
        """Return the tokens that are read again where there is no place for one more: half of what the model takes."""
        return tokens[:, -max(1, self.config.max_positions // 2) :]

    def _prefill(self, tokens: Ids, used: GptInference, room: int) -> KeyValueCache:
        """Return keys and values of tokens [R, T], read at once."""
        count, length = tokens.shape
        stack = self.config.stack
        places = min(length + min(room, CACHE_CAPACITY) + 1, self.config.max_positions)
        cache = KeyValueCache.empty(
            stack.num_layers, count, stack.num_heads, places, self.config.hidden_size // stack.num_heads, self.device()
        )
        if length:
            ids = torch.from_numpy(tokens.reshape(-1).astype(np.int64)).to(self.device())
            rows = PackedBatch(np.full(count, length), self.device())
            used.stack.encode(self._embed(ids, rows.positions, None), rows, self._views(rows), cache)
        return cache

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int32], state: GptState, k: int) -> tuple[Candidates, GptState]:
        """Return the best next tokens for each row, given one more token of each; k = 0: all log-probabilities.

        The first step reads the last token of what is continued instead of the start that it is given.
        """
        if state.has_pending_token:
            state.has_pending_token = False
        else:
            state.tokens = np.concatenate([state.tokens, tokens[:, None]], axis=1)[:, -self.config.max_positions :]
        if state.cache.length == self.config.max_positions:
            state.tokens = self._sliding_window(state.tokens)
            state.cache = self._prefill(state.tokens[:, :-1], state.used, CACHE_CAPACITY)
        ids = torch.from_numpy(state.tokens[:, -1].astype(np.int64)).to(self.device())
        states = self._embed(ids, torch.full_like(ids, state.cache.length), None)
        logits = state.used.output(state.used.stack.step(states, state.cache, [], None))
        if self.config.eos_id < 0:
            logits = nn.functional.pad(logits[:, : self.config.vocab_size], (0, 1), value=MIN_LOGIT)
        return top_candidates(logits, k, self.vocab_size, self.eos_id), state


def _shape(config: GptConfig) -> BlockConfig:
    return BlockConfig(
        hidden_size=config.hidden_size,
        heads=config.stack.num_heads,
        feedforward=config.stack.feed_forward_size,
        activation=config.activation,
        norm_before=True,
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=0.0,
    )
