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

from regard.attention.cache import Memory
from regard.attention.masks import PlacedMask, padding
from regard.attention.noise import Noise
from regard.attention.rows import Rows
from regard.attention.trace import trace
from regard.blocks.heads import target_log_probabilities, vocabulary_loss
from regard.blocks.packed import Product
from regard.blocks.recurrent import SITE, DecoderState, RecurrentDecoder, RecurrentEncoder, Written
from regard.config.model import RecurrentConfig
from regard.models.base import candidates
from regard.models.writer import Writer, rows_by_sentence
from regard.tokens import Candidates, Tokens


@dataclass
class RecurrentState:
    """What the decoder remembers: its cells by row, the source once per sentence."""

    inner: DecoderState
    memory: Memory | None
    lengths: Tensor  # [S], of the source sentences
    rows: int  # rows in all; each sentence has the same number of them, side by side
    watched: bool = False  # whether each step keeps where it looked
    looked: NDArray[np.float32] | None = None  # [R, S], in the last step

    @cached_property
    def mask(self) -> PlacedMask | None:
        """Which places of its source a row may look at; the same for all rows of a sentence."""
        if self.memory is None:
            return None
        slots = torch.arange(self.memory.key.shape[2], device=self.lengths.device)
        return padding(self.lengths).place(slots[None, :1], slots[None])

    def select(self, rows: NDArray[np.int64]) -> RecurrentState:
        """Return the rows with these numbers, in this order; a sentence that no row needs is forgotten."""
        sentences, numbers = len(self.lengths), np.asarray(rows, dtype=np.int64)
        kept = rows_by_sentence(numbers, self.rows, sentences)
        memory, lengths, device = self.memory, self.lengths, self.lengths.device
        if not np.array_equal(kept, np.arange(sentences)):
            chosen = torch.from_numpy(kept).to(device)
            memory, lengths = memory and memory.select(chosen), lengths.index_select(0, chosen)
        inner = self.inner.select(torch.from_numpy(numbers).to(device))
        return RecurrentState(inner, memory, lengths, len(numbers), self.watched)


class Recurrent(Writer):
    """Reads a source text, writes a target text.

    >>> config = RecurrentConfig(source_vocabulary=11, target_vocabulary=11, embedding=4, width=6)
    >>> model = Recurrent(config)
    >>> model(Tokens.from_rows([[5, 6, 1]]), Tokens.from_rows([[3, 7]])).shape
    torch.Size([2, 4])
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        written = config.embedding if config.tied else config.width
        self.make_words(config, config.embedding, written)
        self.encoder = RecurrentEncoder(config)
        self.decoder = RecurrentDecoder(config, written)

    def looks(self) -> dict[str, int]:
        """Return the site where what is written looks at the source; none without attention."""
        return {} if self.config.attention == "none" else {SITE: 1}

    def sites(self) -> dict[str, int]:
        """Return every place where this model looks: the source, if any."""
        return self.looks()

    def in_use(self, pack: bool) -> Product:
        """Return the output; packed, it keeps the weights of the moment."""
        return self.output_product(pack)

    def _embed(self, ids: Tensor, side: str, noise: Noise | None) -> Tensor:
        return self.dropped(self.embedded(ids, side), side, noise)

    def encode(self, source: Tokens, noise: Noise | None = None) -> tuple[DecoderState, Memory | None, Rows]:
        """Return how the decoder starts, what it may look at, and the source's layout."""
        ids, rows = self.door(source, self.block(noise))
        states, last = self.encoder(self._embed(ids, "source", noise), rows, noise)
        return self.decoder.begin(last), self.decoder.remember(states, rows), rows

    def forward(self, source: Tokens, target: Tokens, noise: Noise | None = None) -> Tensor:
        """Return the hidden states [N, O] at each target token."""
        return self._write(source, target, noise).hidden

    def _write(self, source: Tokens, target: Tokens, noise: Noise | None) -> Written:
        state, memory, source_rows = self.encode(source, noise)
        ids, rows = self.door(target, self.block(noise))
        mask = source_rows.seen_from(rows if self.config.input_feeding == "none" else Rows(np.ones(1, np.int64)))
        return self.decoder(self._embed(ids, "target", noise), rows, state, memory, mask, noise)

    def loss(
        self, source: Tokens, target: Tokens, *, smoothing: float = 0.0, noise: Noise | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of the smoothed and of the plain loss over all target tokens and the end."""
        given, wanted = self.shifted(target)
        written = self._write(source, given, noise)
        targets, rows = self.door(wanted, self.block(noise))
        smoothed, plain = vocabulary_loss(
            written.hidden, self.output_weight, self.output_bias, targets, smoothing, rows.filled
        )
        if written.told is not None:
            smoothed = smoothed + self._rewards(written.hidden, written.told, targets, rows)
        return smoothed, plain

    def _rewards(self, hidden: Tensor, told: Tensor, targets: Tensor, rows: Rows) -> Tensor:
        """Return zero, with the gradient that makes places likelier the better what follows (Williams 1992).

        What follows a place is the log-probability of the token that it helped to tell, and of all later ones where
        what was seen goes into the cell. The baseline is the mean over the batch's other rows at the same step.
        """
        with torch.no_grad():
            found = target_log_probabilities(hidden, self.output_weight, self.output_bias, targets)
            reward = rows.pad(found)  # [B, T]
            if self.config.input_feeding != "none":
                reward = reward.flip(1).cumsum(1).flip(1)
            here = rows.pad(torch.ones_like(found))
            others = (here.sum(0) - here).clamp_min(1)
            better = (reward - (reward.sum(0) - reward) / others) * here
        surprise = -(better * rows.pad(told)).sum()
        return surprise - surprise.detach()

    @torch.inference_mode()
    def start(self, source: Tokens, room: int) -> RecurrentState:
        """Return the state before the first token: one row for each source sentence."""
        state, memory, rows = self.encode(source)
        return RecurrentState(state, memory, rows.lengths, len(source))

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int32], state: RecurrentState, k: int) -> tuple[Candidates, RecurrentState]:
        """Return the best next tokens for each row, given one more token of each; k = 0: all log-probabilities."""
        rows = Rows(np.ones(len(tokens), dtype=np.int64), self.device())
        ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64)).to(self.device())
        states = self._embed(ids, "target", None)
        if state.watched:
            with trace(SITE, exact=True) as seen:
                written = self.decoder(states, rows, state.inner, state.memory, state.mask)
            state.looked = seen[SITE].weights.reshape(len(tokens), -1)  # one head: [S, 1, rows of a sentence, K]
        else:
            written = self.decoder(states, rows, state.inner, state.memory, state.mask)
        state.inner = written.state
        output: Product = self.used()
        return candidates(output(written.hidden), k, self.vocabulary, self.end_token), state
