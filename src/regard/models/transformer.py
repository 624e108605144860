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
from regard.attention.positions import Positions, build_positions, position_codes
from regard.attention.trace import trace
from regard.backends import PositionCodes
from regard.config.description import transformer_decoder, transformer_encoder
from regard.config.models import TransformerConfig
from regard.models.base import EncoderDecoder, sentences_of_rows, to_arrays, top_candidates
from regard.models.layers.layer_spec import build_layers
from regard.models.layers.stack import TransformerStack
from regard.packed_tokens import Candidates, Tokens

MAX_INITIAL_CAPACITY = 64  # capacity of a new cache in tokens; it grows when more are generated


@dataclass
class TransformerState:
    """State of decoding: the key–value cache by row (hypothesis), the keys and values of the source by sentence."""

    cache: KeyValueCache
    sources: list[CrossKeyValues]  # by layer
    lengths: Tensor  # [S], of the source sentences
    num_rows: int  # all sentences have equally many rows, which are adjacent
    should_keep_attention: bool = False
    last_attention: NDArray[np.float32] | None = None  # [R, S], cross-attention of the last step

    @cached_property
    def mask(self) -> BoundMask:
        """Mask of the source's padding, the same for all rows of a sentence."""
        positions = torch.arange(self.sources[0].key.shape[2], device=self.lengths.device)
        return padding(self.lengths).bind(positions[None, :1], positions[None])

    @torch.inference_mode()
    def select(self, rows: NDArray[np.int64]) -> TransformerState:
        """State of these rows in this order; the keys and values of unused sentences are dropped."""
        row_indices = np.asarray(rows, dtype=np.int64)
        num_sentences = len(self.lengths)
        device = self.lengths.device
        sentences = sentences_of_rows(row_indices, self.num_rows, num_sentences)
        cache = self.cache.select(torch.from_numpy(row_indices).to(device))
        if np.array_equal(sentences, np.arange(num_sentences)):
            selected = replace(self, cache=cache, num_rows=len(rows))
            selected.__dict__["mask"] = self.mask  # cached: the sentences are the same
            return selected
        sentence_indices = torch.from_numpy(sentences).to(device)
        return replace(
            self,
            cache=cache,
            sources=[source.select(sentence_indices) for source in self.sources],
            lengths=self.lengths.index_select(0, sentence_indices),
            num_rows=len(rows),
        )


class Transformer(EncoderDecoder):
    """Encoder–decoder of Transformer blocks.

    >>> from regard.config.models import StackConfig
    >>> stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=8)
    >>> config = TransformerConfig(source_vocab_size=11, target_vocab_size=11, hidden_size=4)
    >>> model = Transformer(config.override({"encoder": stack.to_dict(), "decoder": stack.to_dict()}))
    >>> model(Tokens.from_rows([[5, 6, 1]]), Tokens.from_rows([[3, 7]])).shape
    torch.Size([2, 4])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.build_embeddings(config, config.hidden_size, config.hidden_size)
        self.source_positions = build_positions(
            config.positions, config.max_positions, config.hidden_size, num_heads=config.encoder.num_heads
        )
        self.target_positions = build_positions(
            config.positions,
            config.max_positions,
            config.hidden_size,
            num_heads=config.decoder.num_heads,
            is_causal=True,
        )
        encoder = transformer_encoder(config)
        decoder = transformer_decoder(config)
        self.encoder = TransformerStack(encoder.block, build_layers(encoder.layers, self.source_positions))
        self.decoder = TransformerStack(decoder.block, build_layers(decoder.layers, self.target_positions), "decoder")

    def position_codes(self, count: int) -> PositionCodes | None:
        """Scheme and codes of the decoder's first positions, [positions, width]; of rotary ones, width of a head."""
        block = self.decoder.config
        return position_codes(
            self.target_positions, range(count), hidden_size=block.hidden_size, head_size=block.key_dim
        )

    def cross_attention_sites(self) -> dict[str, int]:
        """Sites that attend to the source, first layer first, with their number of heads."""
        stack = self.config.decoder
        return {f"decoder.{layer}.cross": stack.num_heads for layer in range(stack.num_layers)}

    def _embed(self, ids: Tensor, positions: Tensor, side: str, scheme: Positions, noise: Noise | None) -> Tensor:
        hidden = scheme.embed(self.embed_tokens(ids, side), positions)
        return self.embedding_dropout(hidden, side, noise)

    def encode(self, source: Tokens, noise: Noise | None = None) -> tuple[Tensor, PackedBatch]:
        """Hidden states of the source [N, D] and their layout."""
        ids, batch = self.to_tensors(source, self.token_multiple(noise))
        hidden = self._embed(ids, batch.positions, "source", self.source_positions, noise)
        return self.encoder(hidden, batch, noise), batch

    def forward(self, source: Tokens, target: Tokens, noise: Noise | None = None) -> Tensor:
        """Hidden states of the target tokens, [N, D]."""
        source_hidden, source_batch = self.encode(source, noise)
        ids, batch = self.to_tensors(target, self.token_multiple(noise))
        source_mask = source_batch.cross_mask(batch)
        sources = self.decoder.precompute_keys_values(source_hidden, source_batch)
        hidden = self._embed(ids, batch.positions, "target", self.target_positions, noise)
        return self.decoder(hidden, batch, noise, sources=sources, source_mask=source_mask)

    @torch.inference_mode()
    def layer_states(self, source: Tokens) -> list[NDArray[np.float32]]:
        """Embeddings of all source tokens and the encoder's hidden states after each layer, each [N, D]."""
        ids, batch = self.to_tensors(source)
        embedded = self._embed(ids, batch.positions, "source", self.source_positions, None)
        return to_arrays(self.encoder.layer_states(embedded, batch))

    @torch.inference_mode()
    def decoder_layer_states(self, source: Tokens, target: Tokens) -> list[NDArray[np.float32]]:
        """Embeddings of the decoder's input tokens and its hidden states after each layer, each [N, D].

        The input is bos and the target tokens; each state has read its own token and those before it.
        """
        source_hidden, source_batch = self.encode(source)
        decoder_input, _ = self.shift_targets(target)
        ids, batch = self.to_tensors(decoder_input)
        embedded = self._embed(ids, batch.positions, "target", self.target_positions, None)
        sources = self.decoder.precompute_keys_values(source_hidden, source_batch)
        source_mask = source_batch.cross_mask(batch)
        return to_arrays(self.decoder.layer_states(embedded, batch, sources=sources, source_mask=source_mask))

    @torch.inference_mode()
    def start(self, source: Tokens, max_length: int) -> TransformerState:
        """State before the first token: one row per source sentence."""
        hidden, batch = self.encode(source)
        keys_values = self.decoder.precompute_keys_values(hidden, batch)
        return TransformerState(
            cache=self.decoder.empty_cache(len(source), min(max_length, MAX_INITIAL_CAPACITY)),
            sources=[layer_source.to_contiguous_float() for layer_source in keys_values],
            lengths=batch.lengths,
            num_rows=len(source),
        )

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int32], state: TransformerState, k: int) -> tuple[Candidates, TransformerState]:
        """Append one token to each row; return the top-k next tokens, with k = 0 all log-probabilities."""
        ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64)).to(self.device())
        batch = PackedBatch(np.ones(len(ids), np.int64), self.device(), position_offset=state.cache.length)
        hidden = self._embed(ids, batch.positions, "target", self.target_positions, None)
        if state.should_keep_attention:
            last_site = [*self.cross_attention_sites()][-1]
            with trace(last_site, full_precision=True) as captured:
                hidden = self._decode_step(hidden, batch, state)
            mean_weights = captured[last_site].weights.mean(1)  # [S, rows of a sentence, K]
            state.last_attention = mean_weights.reshape(len(tokens), -1)
        else:
            hidden = self._decode_step(hidden, batch, state)
        return top_candidates(self.output_logits(hidden), k, self.vocab_size, self.eos_id), state

    def _decode_step(self, hidden: Tensor, batch: PackedBatch, state: TransformerState) -> Tensor:
        """Hidden states of the next token of each row, [R, D]."""
        return self.decoder(hidden, batch, cache=state.cache, sources=state.sources, source_mask=state.mask)
