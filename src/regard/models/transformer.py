"""The Transformer encoder–decoder (Vaswani et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.cache import CrossKeyValues, KeyValueCache
from regard.attention.dropout import Noise
from regard.attention.masks import BoundMask, padding
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import Positions, build_positions
from regard.attention.trace import trace
from regard.config.models import StackConfig, TransformerConfig
from regard.models.base import EncoderDecoder, sentences_of_rows, top_candidates
from regard.models.layers.block import BlockConfig, Decoder, Encoder, LayerContext, LayerMask
from regard.models.layers.packed import PackedStack
from regard.tokens import Candidates, Tokens


@dataclass
class TransformerState:
    """What the decoder remembers: its own keys and values by row, the source's once per sentence."""

    used: TransformerInference
    cache: KeyValueCache
    memories: list[CrossKeyValues]
    lengths: Tensor  # [S], of the source sentences
    rows: int  # rows in all; each sentence has the same number of them, side by side
    watched: bool = False  # whether each step keeps where it looked
    last_attention: NDArray[np.float32] | None = None  # [R, S], in the last step

    @cached_property
    def mask(self) -> BoundMask:
        """Which places of its source a row may look at; the same for all rows of a sentence."""
        slots = torch.arange(self.memories[0].key.shape[2], device=self.lengths.device)
        return padding(self.lengths).bind(slots[None, :1], slots[None])

    @torch.inference_mode()
    def select(self, rows: NDArray[np.int64]) -> TransformerState:
        """Return the rows with these numbers, in this order; a sentence that no row needs is forgotten."""
        numbers, sentences = np.asarray(rows, dtype=np.int64), len(self.lengths)
        kept = sentences_of_rows(numbers, self.rows, sentences)
        cache = self.cache.select(torch.from_numpy(numbers).to(self.lengths.device))
        if np.array_equal(kept, np.arange(sentences)):
            made = replace(self, cache=cache, rows=len(rows))
            made.__dict__["mask"] = self.mask
            return made
        chosen = torch.from_numpy(kept).to(self.lengths.device)
        memories, lengths = [memory.select(chosen) for memory in self.memories], self.lengths.index_select(0, chosen)
        return replace(self, cache=cache, memories=memories, lengths=lengths, rows=len(rows))


class TransformerInference:
    """A translator's parts as decoding uses them."""

    def __init__(self, model: Transformer, pack: bool) -> None:
        self.encoder = PackedStack(model.encoder, model.source_positions, pack)
        self.decoder = PackedStack(model.decoder, model.target_positions, pack)
        self.output = model.output_product(pack)


class Transformer(EncoderDecoder):
    """Reads a source text, writes a target text.

    >>> stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=8)
    >>> config = TransformerConfig(source_vocab_size=11, target_vocab_size=11, hidden_size=4, encoder=stack, decoder=stack)
    >>> model = Transformer(config)
    >>> model(Tokens.from_rows([[5, 6, 1]]), Tokens.from_rows([[3, 7]])).shape
    torch.Size([2, 4])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.build_embeddings(config, config.hidden_size, config.hidden_size)
        self.source_positions = build_positions(config.positions, config.max_positions, config.hidden_size)
        self.target_positions = build_positions(config.positions, config.max_positions, config.hidden_size)
        self.encoder = Encoder(config.encoder.num_layers, _shape(config, config.encoder))
        self.decoder = Decoder(config.decoder.num_layers, _shape(config, config.decoder))

    def cross_attention_sites(self) -> dict[str, int]:
        """Return the sites where what is written looks at the source, first layer first, each with its heads."""
        stack = self.config.decoder
        return {f"decoder.{layer}.cross": stack.num_heads for layer in range(stack.num_layers)}

    def prepare_for_inference(self, pack: bool) -> TransformerInference:
        """Return the parts that decoding uses; packed, they keep the weights of the moment."""
        return TransformerInference(self, pack)

    def _embed(self, ids: Tensor, at: Tensor, side: str, scheme: Positions, noise: Noise | None) -> Tensor:
        return self.embedding_dropout(scheme.embed(self.embed_tokens(ids, side), at), side, noise)

    def encode(self, source: Tokens, noise: Noise | None = None) -> tuple[Tensor, PackedBatch]:
        """Return the source's hidden states [N, D] and their layout."""
        ids, rows = self.to_tensors(source, self.token_multiple(noise))
        states = self._embed(ids, rows.positions, "source", self.source_positions, noise)
        return self.encoder(states, rows, self._views(rows), noise), rows

    def _views(self, batch: PackedBatch) -> list[LayerMask]:
        return self.encoder.same_for_all_layers(batch.full_mask(), self.source_positions)

    def forward(self, source: Tokens, target: Tokens, noise: Noise | None = None) -> Tensor:
        """Return the hidden states [N, D] at each target token; the whole target at once."""
        states, source_rows = self.encode(source, noise)
        ids, rows = self.to_tensors(target, self.token_multiple(noise))
        view = LayerContext(rows, rows.causal_mask(), self.target_positions, source_rows.cross_mask(rows))
        memories = self.decoder.precompute_keys_values(states, source_rows)
        states = self._embed(ids, rows.positions, "target", self.target_positions, noise)
        return self.decoder(states, view, memories, noise=noise)

    @torch.inference_mode()
    def start(self, source: Tokens, max_length: int) -> TransformerState:
        """Return the state before the first token: one row for each source sentence."""
        used: TransformerInference = self.used()
        ids, rows = self.to_tensors(source)
        states = self._embed(ids, rows.positions, "source", self.source_positions, None)
        states = used.encoder.encode(states, rows, self._views(rows))
        stack = self.config.decoder
        width = self.config.hidden_size // stack.num_heads
        cache = KeyValueCache.empty(
            stack.num_layers, len(source), stack.num_heads, min(max_length, 64), width, self.device()
        )
        return TransformerState(used, cache, used.decoder.remember(states, rows), rows.lengths, len(source))

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int32], state: TransformerState, k: int) -> tuple[Candidates, TransformerState]:
        """Return the best next tokens for each row, given one more token of each; k = 0: all log-probabilities."""
        ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64)).to(self.device())
        at = torch.full_like(ids, state.cache.length)
        states = self._embed(ids, at, "target", self.target_positions, None)
        if state.watched:
            site = [*self.cross_attention_sites()][-1]
            with trace(site, full_precision=True) as seen:
                hidden = state.used.decoder.step(states, state.cache, state.memories, state.mask)
            heads = seen[site].weights.mean(1)  # [S, rows of a sentence, K]
            state.last_attention = heads.reshape(len(tokens), -1)
        else:
            hidden = state.used.decoder.step(states, state.cache, state.memories, state.mask)
        return top_candidates(state.used.output(hidden), k, self.vocab_size, self.eos_id), state


def _shape(config: TransformerConfig, stack: StackConfig) -> BlockConfig:
    return BlockConfig(
        hidden_size=config.hidden_size,
        heads=stack.num_heads,
        feedforward=stack.feed_forward_size,
        activation=config.activation,
        norm_before=config.norm == "before",
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
    )
