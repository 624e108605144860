"""The causal language model (Radford et al. 2018, 2019): every token is predicted from those before it.

Training reads whole sequences at once. Generation prefills the key–value cache with the prompt and then decodes token
by token.
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
from regard.attention.positions import build_positions, position_codes
from regard.backends import PositionCodes
from regard.config.description import gpt_stack
from regard.config.models import GptConfig
from regard.errors import UsageError
from regard.models.base import TOKEN_MULTIPLE, Packable, prepack_output_projection, to_arrays, top_candidates
from regard.models.elmo import drop_first_tokens, drop_last_tokens
from regard.models.layers.layer_spec import build_layers
from regard.models.layers.losses import vocabulary_loss
from regard.models.layers.prepacked import PrepackedLinear
from regard.models.layers.stack import TransformerStack
from regard.packed_tokens import Candidates, Ids, Tokens

MIN_LOGIT = (
    -1e4
)  # logit of the eos that a model lacks: never sampled, but finite, so that a length limit can end a text
CACHE_CAPACITY = 64  # capacity of a new cache beyond the prompt, in tokens


@dataclass
class GptState:
    """State of generation: the key–value cache and the latest tokens."""

    cache: KeyValueCache
    tokens: Ids  # [R, T], the latest tokens, at most `max_positions`
    has_pending_token: bool  # whether the last of them is not in the cache yet

    @torch.inference_mode()
    def select(self, rows: NDArray[np.int64]) -> GptState:
        """State of these rows in this order."""
        row_indices = torch.from_numpy(np.asarray(rows, dtype=np.int64)).to(self.cache.buffer.device)
        return replace(self, cache=self.cache.select(row_indices), tokens=self.tokens[rows])


class Gpt(Packable):
    """Causal language model of Transformer blocks.

    >>> from regard.config.models import StackConfig
    >>> stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=8)
    >>> model = Gpt(GptConfig(vocab_size=11, hidden_size=4, stack=stack))
    >>> model.logits(Tokens.from_rows([[5, 6, 7], [8]])).shape
    torch.Size([4, 11])
    """

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = build_positions(
            config.positions,
            config.max_positions,
            config.hidden_size,
            num_heads=config.stack.num_heads,
            is_causal=True,
        )
        stack = gpt_stack(config)
        self.decoder = TransformerStack(stack.block, build_layers(stack.layers, self.positions), "decoder")
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    # what a search needs (`decoding.generator.Generator`)
    def generator(self, *, with_attention: bool = False) -> Gpt:
        """The model itself."""
        return self

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary; a model without eos has one more token, which is never likely."""
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

    def position_codes(self, count: int) -> PositionCodes | None:
        """Scheme and codes of the first positions, [positions, width]; of rotary ones, width of a head."""
        block = self.decoder.config
        return position_codes(self.positions, range(count), hidden_size=block.hidden_size, head_size=block.key_dim)

    @property
    def output_weight(self) -> Tensor:
        """Matrix of the output projection, [V, D]."""
        return self.token_embedding.weight if self.config.tie_embeddings else self.lm_head.weight

    def pack_output(self) -> PrepackedLinear | None:
        """Prepack the projection from hidden states to logits."""
        return prepack_output_projection(self.output_weight, None)

    def _output_logits(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states in generation, [R, V]; padded columns may follow."""
        if self.packed_output is not None:
            return self.packed_output(hidden)
        return nn.functional.linear(hidden, self.output_weight)

    def _embed(self, ids: Tensor, positions: Tensor, noise: Noise | None) -> Tensor:
        hidden = self.positions.embed(self.token_embedding(ids), positions)
        return apply_dropout(hidden, self.config.dropout, noise, "embedding")

    # whole sequences at once
    def forward(self, tokens: Tokens, noise: Noise | None = None) -> Tensor:
        """Hidden states of all tokens, [N, D]."""
        ids, batch = self.to_tensors(tokens, _token_multiple(noise))
        return self.decode(ids, batch, noise)

    def decode(self, ids: Tensor, batch: PackedBatch, noise: Noise | None = None) -> Tensor:
        """Hidden states of token ids [N] in the layout of a batch, [N, D]."""
        hidden = self._embed(ids, batch.positions, noise)
        return self.decoder(hidden, batch, noise)

    @torch.no_grad()
    def logits(self, tokens: Tokens) -> Tensor:
        """Logits of the token after each token, [N, V]."""
        return nn.functional.linear(self(tokens), self.output_weight)

    @torch.inference_mode()
    def layer_states(self, tokens: Tokens) -> list[NDArray[np.float32]]:
        """Embeddings of all tokens and hidden states after each layer, each [N, D]."""
        ids, batch = self.to_tensors(tokens)
        return to_arrays(self.decoder.layer_states(self._embed(ids, batch.positions, None), batch))

    @torch.no_grad()
    def read(self, tokens: Tokens) -> None:
        """Read sequences for the traces that are open."""
        self(tokens)

    @torch.no_grad()
    def next_token_logprobs(self, tokens: Tokens) -> NDArray[np.float32]:
        """Log-probabilities of the vocabulary after each token, [N, V]."""
        return self.logits(tokens).float().log_softmax(-1).cpu().numpy()

    @torch.no_grad()
    def summed_loss(self, tokens: Tokens) -> float:
        """Cross-entropy of all tokens but the first of each sequence, in nats."""
        return float(self.loss(tokens)[1])

    def loss(self, tokens: Tokens, *, smoothing: float = 0.0, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
        """Sums of the label-smoothed and of the plain cross-entropy over all tokens but the first of each sequence."""
        hidden = self(drop_last_tokens(tokens), noise)
        targets, batch = self.to_tensors(drop_first_tokens(tokens), _token_multiple(noise))
        return vocabulary_loss(hidden, self.output_weight, None, targets, smoothing, batch.num_tokens)

    # token by token
    @torch.inference_mode()
    def start(self, source: Tokens, max_length: int) -> GptState:
        """Prefill the prompts, of which all have the same length of at least one token.

        Of a prompt longer than `max_positions`, only the end is read.
        """
        if len(set(source.lengths.tolist())) != 1 or not len(source.ids):
            raise UsageError("texts that are continued together must have equally many tokens, at least one")
        tokens = source.ids.reshape(len(source), -1)
        if tokens.shape[1] > self.config.max_positions:
            tokens = self._sliding_window(tokens)
        cache = self._prefill(tokens[:, :-1], max_length)
        return GptState(cache, tokens, has_pending_token=True)

    def _sliding_window(self, tokens: Ids) -> Ids:
        """Tokens that are read again when positions run out: the last `max_positions` / 2."""
        return tokens[:, -max(1, self.config.max_positions // 2) :]

    def _prefill(self, tokens: Ids, max_length: int) -> KeyValueCache:
        """Cache with the keys and values of tokens [R, T]."""
        num_rows, length = tokens.shape
        capacity = min(length + min(max_length, CACHE_CAPACITY) + 1, self.config.max_positions)
        cache = self.decoder.empty_cache(num_rows, capacity)
        if length:
            ids = torch.from_numpy(tokens.reshape(-1).astype(np.int64)).to(self.device())
            batch = PackedBatch(np.full(num_rows, length), self.device())
            hidden = self._embed(ids, batch.positions, None)
            self.decoder(hidden, batch, cache=cache)
        return cache

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int32], state: GptState, k: int) -> tuple[Candidates, GptState]:
        """Append one token to each row; return the top-k next tokens, with k = 0 all log-probabilities.

        The first step reads the last token of the prompt and ignores `tokens`.
        """
        if state.has_pending_token:
            state.has_pending_token = False
        else:
            state.tokens = np.concatenate([state.tokens, tokens[:, None]], axis=1)[:, -self.config.max_positions :]
        if state.cache.length == self.config.max_positions:
            state.tokens = self._sliding_window(state.tokens)
            state.cache = self._prefill(state.tokens[:, :-1], CACHE_CAPACITY)
        ids = torch.from_numpy(state.tokens[:, -1].astype(np.int64)).to(self.device())
        batch = PackedBatch(np.ones(len(ids), np.int64), self.device(), position_offset=state.cache.length)
        hidden = self._embed(ids, batch.positions, None)
        logits = self._output_logits(self.decoder(hidden, batch, cache=state.cache))
        if self.config.eos_id < 0:
            logits = nn.functional.pad(logits[:, : self.config.vocab_size], (0, 1), value=MIN_LOGIT)
        return top_candidates(logits, k, self.vocab_size, self.eos_id), state


def _token_multiple(noise: Noise | None) -> int:
    """Multiple to which training rounds token counts up."""
    return 1 if noise is None else TOKEN_MULTIPLE
