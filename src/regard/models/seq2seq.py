"""The recurrent encoder–decoder: a last state alone (Sutskever et al. 2014; Cho et al. 2014), or attention.

Attention is Bahdanau's (2015; `attention` additive, `input_feeding` context) or Luong's (2015; dot, bilinear or concat,
`input_feeding` none or output), over all places or at one that is chosen (Xu et al. 2015).
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
from regard.attention.masks import BoundMask, padding
from regard.attention.packed_batch import PackedBatch
from regard.attention.trace import trace
from regard.config.rnn_models import Seq2SeqConfig
from regard.models.base import EncoderDecoder, sentences_of_rows, top_candidates
from regard.models.layers.losses import target_logprobs, vocabulary_loss
from regard.models.layers.packed import PackedLinear
from regard.models.layers.recurrent import SITE, DecoderOutput, DecoderState, RecurrentDecoder, RecurrentEncoder
from regard.tokens import Candidates, Tokens


@dataclass
class Seq2SeqState:
    """What the decoder remembers: its cells by row, the source once per sentence."""

    inner: DecoderState
    memory: CrossKeyValues | None
    lengths: Tensor  # [S], of the source sentences
    rows: int  # rows in all; each sentence has the same number of them, side by side
    watched: bool = False  # whether each step keeps where it looked
    last_attention: NDArray[np.float32] | None = None  # [R, S], in the last step

    @cached_property
    def mask(self) -> BoundMask | None:
        """Which places of its source a row may look at; the same for all rows of a sentence."""
        if self.memory is None:
            return None
        slots = torch.arange(self.memory.key.shape[2], device=self.lengths.device)
        return padding(self.lengths).bind(slots[None, :1], slots[None])

    def select(self, rows: NDArray[np.int64]) -> Seq2SeqState:
        """Return the rows with these numbers, in this order; a sentence that no row needs is forgotten."""
        sentences, numbers = len(self.lengths), np.asarray(rows, dtype=np.int64)
        kept = sentences_of_rows(numbers, self.rows, sentences)
        memory, lengths, device = self.memory, self.lengths, self.lengths.device
        if not np.array_equal(kept, np.arange(sentences)):
            chosen = torch.from_numpy(kept).to(device)
            memory, lengths = memory and memory.select(chosen), lengths.index_select(0, chosen)
        inner = self.inner.select(torch.from_numpy(numbers).to(device))
        return Seq2SeqState(inner, memory, lengths, len(numbers), self.watched)


class Seq2Seq(EncoderDecoder):
    """Reads a source text, writes a target text.

    >>> config = Seq2SeqConfig(source_vocab_size=11, target_vocab_size=11, embedding_size=4, hidden_size=6)
    >>> model = Seq2Seq(config)
    >>> model(Tokens.from_rows([[5, 6, 1]]), Tokens.from_rows([[3, 7]])).shape
    torch.Size([2, 4])
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        written = config.embedding_size if config.tie_embeddings else config.hidden_size
        self.build_embeddings(config, config.embedding_size, written)
        self.encoder = RecurrentEncoder(config)
        self.decoder = RecurrentDecoder(config, written)

    def cross_attention_sites(self) -> dict[str, int]:
        """Return the site where what is written looks at the source; none without attention."""
        return {} if self.config.attention == "none" else {SITE: 1}

    def attention_sites(self) -> dict[str, int]:
        """Return every place where this model looks: the source, if any."""
        return self.cross_attention_sites()

    def prepare_for_inference(self, pack: bool) -> PackedLinear:
        """Return the output; packed, it keeps the weights of the moment."""
        return self.output_product(pack)

    def _embed(self, ids: Tensor, side: str, noise: Noise | None) -> Tensor:
        return self.embedding_dropout(self.embed_tokens(ids, side), side, noise)

    def encode(
        self, source: Tokens, noise: Noise | None = None
    ) -> tuple[DecoderState, CrossKeyValues | None, PackedBatch]:
        """Return how the decoder starts, what it may look at, and the source's layout."""
        ids, rows = self.to_tensors(source, self.token_multiple(noise))
        states, last = self.encoder(self._embed(ids, "source", noise), rows, noise)
        return self.decoder.initial_state(last), self.decoder.precompute_keys_values(states, rows), rows

    def forward(self, source: Tokens, target: Tokens, noise: Noise | None = None) -> Tensor:
        """Return the hidden states [N, O] at each target token."""
        return self._write(source, target, noise).hidden

    def _write(self, source: Tokens, target: Tokens, noise: Noise | None) -> DecoderOutput:
        state, memory, source_rows = self.encode(source, noise)
        ids, rows = self.to_tensors(target, self.token_multiple(noise))
        mask = source_rows.cross_mask(
            rows if self.config.input_feeding == "none" else PackedBatch(np.ones(1, np.int64))
        )
        return self.decoder(self._embed(ids, "target", noise), rows, state, memory, mask, noise)

    def loss(
        self, source: Tokens, target: Tokens, *, smoothing: float = 0.0, noise: Noise | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of the smoothed and of the plain loss over all target tokens and the end."""
        given, wanted = self.shift_targets(target)
        written = self._write(source, given, noise)
        targets, rows = self.to_tensors(wanted, self.token_multiple(noise))
        smoothed, plain = vocabulary_loss(
            written.hidden, self.output_weight, self.output_bias, targets, smoothing, rows.num_tokens
        )
        if written.sample_log_prob is not None:
            smoothed = smoothed + self._rewards(written.hidden, written.sample_log_prob, targets, rows)
        return smoothed, plain

    def _rewards(self, hidden: Tensor, told: Tensor, targets: Tensor, rows: PackedBatch) -> Tensor:
        """Return zero, with the gradient that makes places likelier the better what follows (Williams 1992).

        What follows a place is the log-probability of the token that it helped to tell, and of all later ones where
        what was seen goes into the cell. The baseline is the mean over the batch's other rows at the same step.
        """
        with torch.no_grad():
            found = target_logprobs(hidden, self.output_weight, self.output_bias, targets)
            reward = rows.pad(found)  # [B, T]
            if self.config.input_feeding != "none":
                reward = reward.flip(1).cumsum(1).flip(1)
            here = rows.pad(torch.ones_like(found))
            others = (here.sum(0) - here).clamp_min(1)
            better = (reward - (reward.sum(0) - reward) / others) * here
        surprise = -(better * rows.pad(told)).sum()
        return surprise - surprise.detach()

    @torch.inference_mode()
    def start(self, source: Tokens, max_length: int) -> Seq2SeqState:
        """Return the state before the first token: one row for each source sentence."""
        state, memory, rows = self.encode(source)
        return Seq2SeqState(state, memory, rows.lengths, len(source))

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int32], state: Seq2SeqState, k: int) -> tuple[Candidates, Seq2SeqState]:
        """Return the best next tokens for each row, given one more token of each; k = 0: all log-probabilities."""
        rows = PackedBatch(np.ones(len(tokens), dtype=np.int64), self.device())
        ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64)).to(self.device())
        states = self._embed(ids, "target", None)
        if state.watched:
            with trace(SITE, full_precision=True) as seen:
                written = self.decoder(states, rows, state.inner, state.memory, state.mask)
            state.last_attention = seen[SITE].weights.reshape(
                len(tokens), -1
            )  # one head: [S, 1, rows of a sentence, K]
        else:
            written = self.decoder(states, rows, state.inner, state.memory, state.mask)
        state.inner = written.state
        output: PackedLinear = self.used()
        return top_candidates(output(written.hidden), k, self.vocab_size, self.eos_id), state
