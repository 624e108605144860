"""The Transformer encoder–decoder (Vaswani et al. 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.cache import KeyValues, Memory
from regard.attention.masks import PlacedMask, padding
from regard.attention.noise import Noise, drop
from regard.attention.positions import Positions, positions
from regard.attention.rows import Rows
from regard.attention.trace import trace
from regard.blocks.heads import CHUNK, target_log_probabilities, vocabulary_loss
from regard.blocks.packed import PackedStack, Product, can_pack
from regard.blocks.transformer import BlockShape, Decoder, DecoderView, Encoder
from regard.config.model import StackConfig, TranslatorConfig
from regard.errors import UsageError
from regard.models.base import Model, candidates
from regard.tokens import Candidates, Tokens

BLOCK = 128  # training batches have a multiple of this many tokens


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
        sentences = len(self.lengths)
        owner = np.asarray(rows) // (self.rows // sentences) if sentences else np.asarray(rows)
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        counts = np.diff(np.append(first, len(owner)))
        even = len(counts) > 0 and bool((counts == counts[0]).all())
        kept = owner[first] if even else owner
        index = torch.from_numpy(np.asarray(rows, dtype=np.int64)).to(self.lengths.device)
        cache = self.cache.select(index)
        if len(kept) == sentences and not (kept != np.arange(sentences)).any():
            made = replace(self, cache=cache, rows=len(rows))
            made.__dict__["mask"] = self.mask
            return made
        chosen = torch.from_numpy(kept.astype(np.int64)).to(self.lengths.device)
        memories, lengths = [memory.select(chosen) for memory in self.memories], self.lengths.index_select(0, chosen)
        return replace(self, cache=cache, memories=memories, lengths=lengths, rows=len(rows))


class InUse:
    """A translator's parts as decoding uses them; packed, they keep the weights of the moment."""

    def __init__(self, model: Translator, pack: bool) -> None:
        self.encoder = PackedStack(model.encoder, model.source_positions, pack)
        self.decoder = PackedStack(model.decoder, model.target_positions, pack)
        weight: Tensor = model.output_weight
        bias: Tensor | None = model.output_bias
        spare = -len(weight) % CHUNK if pack and can_pack(weight) else 0
        if spare:  # whole chunks; what is added is never likely
            weight = torch.cat([weight, weight.new_zeros(spare, weight.shape[1])])
            given = weight.new_zeros(len(weight) - spare) if bias is None else bias
            bias = torch.cat([given, weight.new_full((spare,), -torch.inf)])
        self.output = Product(weight, bias, pack)


class Translator(Model):
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
        if config.shared:
            self.words = nn.Embedding(config.target_vocabulary, config.width)
        else:
            self.source_words = nn.Embedding(config.source_vocabulary, config.width)
            self.target_words = nn.Embedding(config.target_vocabulary, config.width)
        if not config.tied:
            self.output = nn.Linear(config.width, config.target_vocabulary, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(config.target_vocabulary)) if config.output_bias else None
        self.source_positions = positions(config.positions, config.places, config.width)
        self.target_positions = positions(config.positions, config.places, config.width)
        self.encoder = Encoder(config.encoder.layers, _shape(config, config.encoder))
        self.decoder = Decoder(config.decoder.layers, _shape(config, config.decoder))
        self._packed: InUse | None = None

    def pack(self) -> Self:
        """Lay out the weights for fast decoding on this processor; they must not change by hand from now on."""
        self._packed = None
        with torch.inference_mode(False), torch.no_grad():
            self._packed = InUse(self, pack=True)
        return self

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Take other weights; what was packed is forgotten."""
        self._packed = None
        return super().load_state_dict(*arguments, **options)

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        self._packed = None
        return super()._apply(*arguments, **options)

    # the generator's face: what a search needs to know
    @property
    def vocabulary(self) -> int:
        return self.config.target_vocabulary

    @property
    def start_token(self) -> int:
        return self.config.start

    @property
    def end_token(self) -> int:
        return self.config.end

    @property
    def pad_token(self) -> int:
        return self.config.pad

    @property
    def output_weight(self) -> Tensor:
        """The matrix that turns hidden states into logits, [V, D]."""
        return self._words("target").weight if self.config.tied else self.output.weight

    def _words(self, side: str) -> nn.Embedding:
        if self.config.shared:
            return self.words
        return self.source_words if side == "source" else self.target_words

    def _embed(self, ids: Tensor, at: Tensor, side: str, scheme: Positions, noise: Noise | None) -> Tensor:
        states: Tensor = self._words(side)(ids)
        if self.config.scale_embedding:
            states = states * math.sqrt(self.config.width)
        return drop(scheme.embed(states, at), self.config.dropout, noise, f"{side}.embedding")

    def encode(self, source: Tokens, noise: Noise | None = None) -> tuple[Tensor, Rows]:
        """Return the source's hidden states [N, D] and their layout."""
        ids, rows = self.door(source, self._block(noise))
        states = self._embed(ids, rows.positions, "source", self.source_positions, noise)
        return self.encoder(states, rows, rows.everywhere(), self.source_positions, noise), rows

    def forward(self, source: Tokens, target: Tokens, noise: Noise | None = None) -> Tensor:
        """Return the hidden states [N, D] at each target token; the whole target at once."""
        states, source_rows = self.encode(source, noise)
        ids, rows = self.door(target, self._block(noise))
        view = DecoderView(rows, rows.backwards(), self.target_positions, source_rows.seen_from(rows))
        memories = self.decoder.remember(states, source_rows)
        states = self._embed(ids, rows.positions, "target", self.target_positions, noise)
        return self.decoder(states, view, memories, noise=noise)

    def loss(
        self, source: Tokens, target: Tokens, *, smoothing: float = 0.0, noise: Noise | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of the smoothed and of the plain loss over all target tokens and the end."""
        given, wanted = self._shifted(target)
        hidden = self(source, given, noise)
        targets, rows = self.door(wanted, self._block(noise))
        return vocabulary_loss(hidden, self.output_weight, self.output_bias, targets, smoothing, rows.filled)

    @staticmethod
    def _block(noise: Noise | None) -> int:
        """Training meets thousands of batches: their sizes are rounded so that products are prepared for few."""
        return 1 if noise is None else BLOCK

    @torch.no_grad()
    def score_tokens(self, source: Tokens, target: Tokens) -> list[NDArray[np.float32]]:
        """Return the log-probability of each target token and of the end, row by row."""
        given, wanted = self._shifted(target)
        hidden = self(source, given)
        found = target_log_probabilities(hidden, self.output_weight, self.output_bias, self.door(wanted)[0])
        return np.split(found.cpu().numpy(), wanted.offsets[1:-1])

    def _shifted(self, target: Tokens) -> tuple[Tokens, Tokens]:
        """Return the rows with the start in front, and the rows with the end behind."""
        given = np.insert(target.ids, target.offsets[:-1], self.config.start)
        wanted = np.insert(target.ids, target.offsets[1:], self.config.end)
        offsets = (target.offsets + np.arange(len(target) + 1)).astype(np.int32)
        return Tokens(given, offsets), Tokens(wanted, offsets)

    @torch.inference_mode()
    def start(self, source: Tokens, room: int) -> TranslatorState:
        """Return the state before the first token: one row for each source sentence."""
        used = self._packed or InUse(self, pack=False)
        ids, rows = self.door(source)
        states = self._embed(ids, rows.positions, "source", self.source_positions, None)
        states = used.encoder.encode(states, rows, rows.everywhere())
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
            site = f"decoder.{self.config.decoder.layers - 1}.cross"
            with trace(site) as seen:
                hidden = state.used.decoder.step(states, state.cache, state.memories, state.mask)
            heads = seen[site].weights.mean(1)  # [S, rows of a sentence, K]
            state.looked = heads.reshape(len(tokens), -1)
        else:
            hidden = state.used.decoder.step(states, state.cache, state.memories, state.mask)
        return candidates(state.used.output(hidden), k, self.vocabulary, self.end_token), state

    def watch(self, state: TranslatorState) -> None:
        """Let each following step keep where it looked."""
        state.watched = True

    def attention(self, state: TranslatorState) -> NDArray[np.float32]:
        """Return where each row looked in the last step, [R, S]: the last layer's heads averaged."""
        if state.looked is None:
            raise UsageError("call watch(state) before the step whose attention is asked for")
        return state.looked


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
