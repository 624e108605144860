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
from regard.models.layers.block import BlockConfig, Decoder, Encoder, LayerMask
from regard.models.layers.packed import PackedStack
from regard.packed_tokens import Candidates, Tokens

MAX_INITIAL_CAPACITY = 64  # capacity of a new cache in tokens; it grows when more are generated


@dataclass
class TransformerState:
    """State of decoding: the key–value cache by row (hypothesis), the keys and values of the source by sentence."""

    inference: TransformerInference
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


class TransformerInference:
    """The layers of a Transformer for decoding."""

    def __init__(self, model: Transformer, pack: bool) -> None:
        self.encoder = PackedStack(model.encoder, model.source_positions, pack)
        self.decoder = PackedStack(model.decoder, model.target_positions, pack)
        self.output = model.output_projection(pack)


class Transformer(EncoderDecoder):
    """Encoder–decoder of Transformer blocks.

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
        self.source_positions = build_positions(config.positions, config.max_positions, config.hidden_size)
        self.target_positions = build_positions(config.positions, config.max_positions, config.hidden_size)
        self.encoder = Encoder(config.encoder.num_layers, _block_config(config, config.encoder))
        self.decoder = Decoder(config.decoder.num_layers, _block_config(config, config.decoder))

    def cross_attention_sites(self) -> dict[str, int]:
        """Sites that attend to the source, first layer first, with their number of heads."""
        stack = self.config.decoder
        return {f"decoder.{layer}.cross": stack.num_heads for layer in range(stack.num_layers)}

    def prepare_for_inference(self, pack: bool) -> TransformerInference:
        """Build the layers for decoding; packed, they keep the current weights."""
        return TransformerInference(self, pack)

    def _embed(self, ids: Tensor, positions: Tensor, side: str, scheme: Positions, noise: Noise | None) -> Tensor:
        hidden = scheme.embed(self.embed_tokens(ids, side), positions)
        return self.embedding_dropout(hidden, side, noise)

    def encode(self, source: Tokens, noise: Noise | None = None) -> tuple[Tensor, PackedBatch]:
        """Hidden states of the source [N, D] and their layout."""
        ids, batch = self.to_tensors(source, self.token_multiple(noise))
        hidden = self._embed(ids, batch.positions, "source", self.source_positions, noise)
        return self.encoder(hidden, batch, self._encoder_masks(batch), noise), batch

    def _encoder_masks(self, batch: PackedBatch) -> list[LayerMask]:
        return self.encoder.same_for_all_layers(batch.full_mask(), self.source_positions)

    def forward(self, source: Tokens, target: Tokens, noise: Noise | None = None) -> Tensor:
        """Hidden states of the target tokens, [N, D]."""
        source_hidden, source_batch = self.encode(source, noise)
        ids, batch = self.to_tensors(target, self.token_multiple(noise))
        causal_mask = LayerMask(batch.causal_mask(), self.target_positions)
        source_mask = source_batch.cross_mask(batch)
        sources = self.decoder.precompute_keys_values(source_hidden, source_batch)
        hidden = self._embed(ids, batch.positions, "target", self.target_positions, noise)
        return self.decoder(hidden, batch, causal_mask, sources, source_mask, noise)

    @torch.inference_mode()
    def start(self, source: Tokens, max_length: int) -> TransformerState:
        """State before the first token: one row per source sentence."""
        inference: TransformerInference = self.inference_layers()
        ids, batch = self.to_tensors(source)
        hidden = self._embed(ids, batch.positions, "source", self.source_positions, None)
        hidden = inference.encoder.encode(hidden, batch, self._encoder_masks(batch))
        stack = self.config.decoder
        cache = KeyValueCache.empty(
            layers=stack.num_layers,
            rows=len(source),
            heads=stack.num_heads,
            capacity=min(max_length, MAX_INITIAL_CAPACITY),
            head_size=self.config.hidden_size // stack.num_heads,
            device=self.device(),
        )
        return TransformerState(
            inference,
            cache,
            sources=inference.decoder.precompute_keys_values(hidden, batch),
            lengths=batch.lengths,
            num_rows=len(source),
        )

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int32], state: TransformerState, k: int) -> tuple[Candidates, TransformerState]:
        """Append one token to each row; return the top-k next tokens, with k = 0 all log-probabilities."""
        ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64)).to(self.device())
        positions = torch.full_like(ids, state.cache.length)
        hidden = self._embed(ids, positions, "target", self.target_positions, None)
        decoder = state.inference.decoder
        if state.should_keep_attention:
            last_site = [*self.cross_attention_sites()][-1]
            with trace(last_site, full_precision=True) as captured:
                hidden = decoder.step(hidden, state.cache, state.sources, state.mask)
            mean_weights = captured[last_site].weights.mean(1)  # [S, rows of a sentence, K]
            state.last_attention = mean_weights.reshape(len(tokens), -1)
        else:
            hidden = decoder.step(hidden, state.cache, state.sources, state.mask)
        logits = state.inference.output(hidden)
        return top_candidates(logits, k, self.vocab_size, self.eos_id), state


def _block_config(config: TransformerConfig, stack: StackConfig) -> BlockConfig:
    return BlockConfig(
        hidden_size=config.hidden_size,
        num_heads=stack.num_heads,
        feed_forward_size=stack.feed_forward_size,
        activation=config.activation,
        pre_norm=config.norm == "before",
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
    )
