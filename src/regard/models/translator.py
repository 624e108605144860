"""The Transformer encoder–decoder (Vaswani et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.cache import KeyValues, Memory
from regard.attention.masks import PlacedMask, padding
from regard.attention.noise import Noise
from regard.attention.positions import Positions, positions
from regard.attention.rows import Rows
from regard.attention.trace import trace
from regard.blocks.packed import PackedStack
from regard.blocks.transformer import BlockShape, Decoder, DecoderView, Encoder, View
from regard.config.model import StackConfig, TranslatorConfig
from regard.models.base import candidates
from regard.models.writer import Writer, rows_by_sentence
from regard.tokens import Candidates, Tokens


@dataclass
class TranslatorState:
    """What the decoder remembers: its own keys and values by row, the source's once per sentence."""

    used: InUse
    cache: KeyValues
    memories: list[Memory]
    lengths: Tensor  # [S], of the source sentences
    rows: int  # rows in all; each sentence has the same number of them, side by side
    watched: bool = False  # whether each step keeps where it looked
    looked: NDArray[np.float32] | None = None  # [R, S], in the last step

    @cached_property
    def mask(self) -> PlacedMask:
        """Which places of its source a row may look at; the same for all rows of a sentence."""
        slots = torch.arange(self.memories[0].key.shape[2], device=self.lengths.device)
        return padding(self.lengths).place(slots[None, :1], slots[None])

    @torch.inference_mode()
    def select(self, rows: NDArray[np.int64]) -> TranslatorState:
        """Return the rows with these numbers, in this order; a sentence that no row needs is forgotten."""
        numbers, sentences = np.asarray(rows, dtype=np.int64), len(self.lengths)
        kept = rows_by_sentence(numbers, self.rows, sentences)
        cache = self.cache.select(torch.from_numpy(numbers).to(self.lengths.device))
        if np.array_equal(kept, np.arange(sentences)):
            made = replace(self, cache=cache, rows=len(rows))
            made.__dict__["mask"] = self.mask
            return made
        chosen = torch.from_numpy(kept).to(self.lengths.device)
        memories, lengths = [memory.select(chosen) for memory in self.memories], self.lengths.index_select(0, chosen)
        return replace(self, cache=cache, memories=memories, lengths=lengths, rows=len(rows))


class InUse:
    """A translator's parts as decoding uses them."""

    def __init__(self, model: Translator, pack: bool) -> None:
        self.encoder = PackedStack(model.encoder, model.source_positions, pack)
        self.decoder = PackedStack(model.decoder, model.target_positions, pack)
        self.output = model.output_product(pack)


class Translator(Writer):
    """Reads a source text, writes a target text.

    >>> stack = StackConfig(layers=1, heads=2, feedforward=8)
    >>> config = TranslatorConfig(source_vocabulary=11, target_vocabulary=11, width=4, encoder=stack, decoder=stack)
    >>> model = Translator(config)
    >>> model(Tokens.from_rows([[5, 6, 1]]), Tokens.from_rows([[3, 7]])).shape
    torch.Size([2, 4])
    """

    def __init__(self, config: TranslatorConfig) -> None:
        super().__init__()
        self.config = config
        self.make_words(config, config.width, config.width)
        self.source_positions = positions(config.positions, config.places, config.width)
        self.target_positions = positions(config.positions, config.places, config.width)
        self.encoder = Encoder(config.encoder.layers, _shape(config, config.encoder))
        self.decoder = Decoder(config.decoder.layers, _shape(config, config.decoder))

    def looks(self) -> dict[str, int]:
        """Return the sites where what is written looks at the source, first layer first, each with its heads."""
        stack = self.config.decoder
        return {f"decoder.{layer}.cross": stack.heads for layer in range(stack.layers)}

    def in_use(self, pack: bool) -> InUse:
        """Return the parts that decoding uses; packed, they keep the weights of the moment."""
        return InUse(self, pack)

    def _embed(self, ids: Tensor, at: Tensor, side: str, scheme: Positions, noise: Noise | None) -> Tensor:
        return self.dropped(scheme.embed(self.embedded(ids, side), at), side, noise)

    def encode(self, source: Tokens, noise: Noise | None = None) -> tuple[Tensor, Rows]:
        """Return the source's hidden states [N, D] and their layout."""
        ids, rows = self.door(source, self.block(noise))
        states = self._embed(ids, rows.positions, "source", self.source_positions, noise)
        return self.encoder(states, rows, self._views(rows), noise), rows

    def _views(self, rows: Rows) -> list[View]:
        return self.encoder.alike(rows.everywhere(), self.source_positions)

    def forward(self, source: Tokens, target: Tokens, noise: Noise | None = None) -> Tensor:
        """Return the hidden states [N, D] at each target token; the whole target at once."""
        states, source_rows = self.encode(source, noise)
        ids, rows = self.door(target, self.block(noise))
        view = DecoderView(rows, rows.backwards(), self.target_positions, source_rows.seen_from(rows))
        memories = self.decoder.remember(states, source_rows)
        states = self._embed(ids, rows.positions, "target", self.target_positions, noise)
        return self.decoder(states, view, memories, noise=noise)

    @torch.inference_mode()
    def start(self, source: Tokens, room: int) -> TranslatorState:
        """Return the state before the first token: one row for each source sentence."""
        used: InUse = self.used()
        ids, rows = self.door(source)
        states = self._embed(ids, rows.positions, "source", self.source_positions, None)
        states = used.encoder.encode(states, rows, self._views(rows))
        stack = self.config.decoder
        width = self.config.width // stack.heads
        cache = KeyValues.empty(stack.layers, len(source), stack.heads, min(room, 64), width, self.device())
        return TranslatorState(used, cache, used.decoder.remember(states, rows), rows.lengths, len(source))

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int32], state: TranslatorState, k: int) -> tuple[Candidates, TranslatorState]:
        """Return the best next tokens for each row, given one more token of each; k = 0: all log-probabilities."""
        ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64)).to(self.device())
        at = torch.full_like(ids, state.cache.length)
        states = self._embed(ids, at, "target", self.target_positions, None)
        if state.watched:
            site = [*self.looks()][-1]
            with trace(site, exact=True) as seen:
                hidden = state.used.decoder.step(states, state.cache, state.memories, state.mask)
            heads = seen[site].weights.mean(1)  # [S, rows of a sentence, K]
            state.looked = heads.reshape(len(tokens), -1)
        else:
            hidden = state.used.decoder.step(states, state.cache, state.memories, state.mask)
        return candidates(state.used.output(hidden), k, self.vocabulary, self.end_token), state


def _shape(config: TranslatorConfig, stack: StackConfig) -> BlockShape:
    return BlockShape(
        width=config.width,
        heads=stack.heads,
        feedforward=stack.feedforward,
        activation=config.activation,
        norm_before=config.norm == "before",
        epsilon=config.epsilon,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
    )
