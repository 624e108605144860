"""The recurrent encoder–decoder: from the last state alone (Sutskever et al. 2014; Cho et al. 2014), or with attention.

Attention follows Bahdanau et al. (2015; `attention` additive, `input_feeding` context) or Luong et al. (2015; dot,
bilinear or concat, `input_feeding` none or output), soft or hard (Xu et al. 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.cache import CrossKeyValues
from regard.attention.dropout import Noise
from regard.attention.masks import BoundMask, Mask, monotonic_window, padding
from regard.attention.packed_batch import PackedBatch
from regard.attention.trace import trace
from regard.config.rnn_models import Seq2SeqConfig
from regard.models.base import EncoderDecoder, sentences_of_rows, to_arrays, top_candidates
from regard.models.layers.loop_attention import DECODER_ATTENTION_SITE
from regard.models.layers.losses import target_logprobs, vocabulary_loss
from regard.models.layers.recurrent import (
    DecoderOutput,
    DecoderState,
    RecurrentDecoder,
    RecurrentEncoder,
)
from regard.packed_tokens import Candidates, Tokens


@dataclass
class Seq2SeqState:
    """State of decoding: the decoder's cells by row, the keys and values of the source by sentence."""

    decoder: DecoderState
    source: CrossKeyValues | None
    lengths: Tensor  # [S], of the source sentences
    num_rows: int  # all sentences have equally many rows, which are adjacent
    attention_window: int = 0  # source tokens on each side that a step attends to; 0: all
    should_keep_attention: bool = False
    last_attention: NDArray[np.float32] | None = None  # [R, S], attention of the last step

    @cached_property
    def mask(self) -> BoundMask | None:
        """Mask of the source, the same for all rows of a sentence; None without attention."""
        if self.source is None:
            return None
        positions = torch.arange(self.source.key.shape[2], device=self.lengths.device)
        return source_mask(self.lengths, self.attention_window).bind(positions[None, :1], positions[None])

    def select(self, rows: NDArray[np.int64]) -> Seq2SeqState:
        """State of these rows in this order; the keys and values of unused sentences are dropped."""
        row_indices = np.asarray(rows, dtype=np.int64)
        num_sentences = len(self.lengths)
        device = self.lengths.device
        sentences = sentences_of_rows(row_indices, self.num_rows, num_sentences)
        source = self.source
        lengths = self.lengths
        if not np.array_equal(sentences, np.arange(num_sentences)):
            sentence_indices = torch.from_numpy(sentences).to(device)
            source = None if source is None else source.select(sentence_indices)
            lengths = lengths.index_select(0, sentence_indices)
        decoder = self.decoder.select(torch.from_numpy(row_indices).to(device))
        return Seq2SeqState(
            decoder,
            source,
            lengths=lengths,
            num_rows=len(row_indices),
            attention_window=self.attention_window,
            should_keep_attention=self.should_keep_attention,
        )


def source_mask(lengths: Tensor, attention_window: int) -> Mask:
    """Which source tokens a target token may attend to: those of the sentence, or with a window those near its own."""
    return monotonic_window(lengths, attention_window) if attention_window else padding(lengths)


class Seq2Seq(EncoderDecoder):
    """Encoder–decoder of recurrent layers.

    >>> config = Seq2SeqConfig(source_vocab_size=11, target_vocab_size=11, embedding_size=4, hidden_size=6)
    >>> model = Seq2Seq(config)
    >>> model(Tokens.from_rows([[5, 6, 1]]), Tokens.from_rows([[3, 7]])).shape
    torch.Size([2, 4])
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        output_size = config.embedding_size if config.tie_embeddings else config.hidden_size
        self.build_embeddings(config, config.embedding_size, output_size)
        self.encoder = RecurrentEncoder(config)
        self.decoder = RecurrentDecoder(config, output_size)

    def cross_attention_sites(self) -> dict[str, int]:
        """The site that attends to the source, with its number of heads; empty without attention."""
        return {} if self.config.attention == "none" else {DECODER_ATTENTION_SITE: 1}

    def attention_sites(self) -> dict[str, int]:
        """Attention sites of the model, with their number of heads: the decoder's, if it has attention."""
        return self.cross_attention_sites()

    def _embed(self, ids: Tensor, side: str, noise: Noise | None) -> Tensor:
        return self.embedding_dropout(self.embed_tokens(ids, side), side, noise)

    def encode(
        self, source: Tokens, noise: Noise | None = None
    ) -> tuple[DecoderState, CrossKeyValues | None, PackedBatch]:
        """Initial state of the decoder, keys and values of the source, and the source's layout."""
        ids, batch = self.to_tensors(source, self.token_multiple(noise))
        hidden, last_states = self.encoder(self._embed(ids, "source", noise), batch, noise)
        return self.decoder.initial_state(last_states), self.decoder.precompute_keys_values(hidden, batch), batch

    @torch.inference_mode()
    def layer_states(self, source: Tokens) -> list[NDArray[np.float32]]:
        """Embeddings of all source tokens and the encoder's hidden states after each layer, each [N, ·]."""
        ids, batch = self.to_tensors(source)
        embedded = self._embed(ids, "source", None)
        hidden_states, _ = self.encoder.run_layers(embedded, batch, None)
        return to_arrays([embedded, *hidden_states])

    def forward(self, source: Tokens, target: Tokens, noise: Noise | None = None) -> Tensor:
        """Hidden states of the target tokens, [N, O]."""
        return self._decode(source, target, noise).hidden

    def _decode(self, source: Tokens, target: Tokens, noise: Noise | None) -> DecoderOutput:
        state, keys_values, source_batch = self.encode(source, noise)
        ids, batch = self.to_tensors(target, self.token_multiple(noise))
        queries = batch if self.config.input_feeding == "none" else PackedBatch(np.ones(1, np.int64), self.device())
        mask = source_mask(source_batch.lengths, self.config.attention_window)
        bound_mask = mask.bind(queries.padded_positions, source_batch.padded_positions)
        return self.decoder(self._embed(ids, "target", noise), batch, state, keys_values, bound_mask, noise)

    def loss(
        self, source: Tokens, target: Tokens, *, smoothing: float = 0.0, noise: Noise | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sums of the label-smoothed and of the plain cross-entropy over all target tokens and eos."""
        decoder_input, labels = self.shift_targets(target)
        output = self._decode(source, decoder_input, noise)
        targets, batch = self.to_tensors(labels, self.token_multiple(noise))
        smoothed, plain = vocabulary_loss(
            output.hidden, self.output_weight, self.lm_head_bias, targets, smoothing, batch.num_tokens
        )
        if output.sample_log_prob is not None:
            smoothed = smoothed + self._reinforce_loss(output.hidden, output.sample_log_prob, targets, batch)
        return smoothed, plain

    def _reinforce_loss(self, hidden: Tensor, log_prob: Tensor, targets: Tensor, batch: PackedBatch) -> Tensor:
        """Zero, with the REINFORCE gradient for the sampled keys (Williams 1992).

        The reward of a key is the log-probability of the token predicted with it and, with input feeding, of all later
        tokens. The baseline is the mean reward of the batch's other sequences at the same step.
        """
        with torch.no_grad():
            logprobs = target_logprobs(hidden, self.output_weight, self.lm_head_bias, targets)
            reward = batch.pad(logprobs)  # [B, T]
            if self.config.input_feeding != "none":
                reward = reward.flip(1).cumsum(1).flip(1)
            is_token = batch.pad(torch.ones_like(logprobs))
            num_others = (is_token.sum(0) - is_token).clamp_min(1)
            baseline = (reward.sum(0) - reward) / num_others
            advantage = (reward - baseline) * is_token
        loss = -(advantage * batch.pad(log_prob)).sum()
        return loss - loss.detach()

    @torch.inference_mode()
    def start(self, source: Tokens, max_length: int) -> Seq2SeqState:
        """State before the first token: one row per source sentence."""
        state, keys_values, batch = self.encode(source)
        return Seq2SeqState(
            state,
            keys_values,
            lengths=batch.lengths,
            num_rows=len(source),
            attention_window=self.config.attention_window,
        )

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int32], state: Seq2SeqState, k: int) -> tuple[Candidates, Seq2SeqState]:
        """Append one token to each row; return the top-k next tokens, with k = 0 all log-probabilities."""
        batch = PackedBatch(np.ones(len(tokens), dtype=np.int64), self.device())
        ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64)).to(self.device())
        hidden = self._embed(ids, "target", None)
        if state.should_keep_attention:
            with trace(DECODER_ATTENTION_SITE, full_precision=True) as captured:
                output = self.decoder(hidden, batch, state.decoder, state.source, state.mask)
            weights = captured[DECODER_ATTENTION_SITE].weights  # one head: [S, 1, rows of a sentence, K]
            state.last_attention = weights.reshape(len(tokens), -1)
        else:
            output = self.decoder(hidden, batch, state.decoder, state.source, state.mask)
        state.decoder = output.state
        return top_candidates(self.output_logits(output.hidden), k, self.vocab_size, self.eos_id), state
