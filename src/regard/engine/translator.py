"""`Engine`: a translator in the compiled library, as a generator that a search drives."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.config.models import TransformerConfig
from regard.engine import layout
from regard.engine.base import EngineDecoder, EngineState, check_precision, contiguous_ids
from regard.engine.library import CODES, CModelShape, CSearchRequest, CSearchResult, pointer
from regard.engine.shortlist import Shortlist
from regard.tokens import Candidates, Ids, Tokens

PRECISIONS = layout.PRECISIONS


class TranslatorEngine(EngineDecoder):
    """A translator that computes in the compiled library."""

    def __init__(
        self,
        config: TransformerConfig,
        arrays: Sequence[layout.Array],
        precision: str = "float32",
        instructions: str = "",
    ) -> None:
        """Take a config and the arrays of `layout.slots`; `instructions` chooses an instruction set."""
        super().__init__(config, _shape(config, precision), arrays, precision, instructions)
        self.config = config
        self.shortlist: Shortlist | None = None  # the words that a plain search writes with

    @classmethod
    def of(
        cls, config: TransformerConfig, weights: layout.Weights, precision: str = "float32", instructions: str = ""
    ) -> TranslatorEngine:
        """Return the engine of a translator's weights under our names, float32."""
        check_precision(precision)
        return cls(config, layout.pack_weights(config, weights, precision), precision, instructions)

    # the generator's face
    @property
    def bos_id(self) -> int:
        return self.config.bos_id

    @property
    def eos_id(self) -> int:
        return self.config.eos_id

    @property
    def pad_id(self) -> int:
        return self.config.pad_id

    def start(self, source: Tokens, room: int) -> EngineState:
        """Return the state before the first token: one row for each source sentence."""
        return self.start_state(*contiguous_ids(source))

    def step(self, tokens: Ids, state: EngineState, k: int) -> tuple[Candidates, EngineState]:
        """Return the best next tokens for each row, given one more token of each; k = 0: all log-probabilities."""
        found, _ = self.run_step(tokens, state, min(k, self.vocab_size), None)
        return found, state

    def encode(self, source: Tokens) -> NDArray[np.float32]:
        """Return the source's hidden states [N, D]."""
        return self.run_encoder(source)

    def search(
        self,
        source: Tokens,
        limits: NDArray[np.int64],
        *,
        beam: int,
        nbest: int,
        length_penalty: float,
        use_shortlist: bool = False,
    ) -> list[list[tuple[list[int], float, float, bool]]]:
        """Return the best texts for each source text: ids, score, total, and whether the model ended it.

        The whole search runs in the library, as `decoding.search` would do it without rules and wishes; `use_shortlist` lets
        it write with the words of the shortlist alone, where there is one.
        """
        ids, offsets = contiguous_ids(source)
        most = np.maximum(np.asarray(limits), 1).astype(np.int32)
        longest = int(most.max())
        powers = np.array([length**length_penalty for length in range(longest + 3)], np.float64)
        never = np.array(sorted({self.pad_id, self.bos_id} - {self.eos_id}), np.int32)
        shape = (len(source), nbest)
        found = np.empty((*shape, longest), np.int32)
        lengths, finished = np.empty(shape, np.int32), np.empty(shape, np.int32)
        scores, totals = np.empty(shape, np.float64), np.empty(shape, np.float64)
        words = self.shortlist if use_shortlist else None
        plan = CSearchRequest(
            beam=beam,
            nbest=nbest,
            bos_id=self.bos_id,
            max_lengths=pointer(most),
            length_norms=pointer(powers),
            forbidden=pointer(never),
            num_forbidden=len(never),
        )
        if words is not None:
            plan.always_allowed = pointer(words.common)
            plan.num_always_allowed = len(words.common)
            plan.lexicon_offsets = pointer(words.offsets)
            plan.lexicon = pointer(words.words)
        places = CSearchResult(
            ids=pointer(found),
            lengths=pointer(lengths),
            scores=pointer(scores),
            logprobs=pointer(totals),
            finished=pointer(finished),
        )
        calls = self.library
        calls.call(
            calls.handle.regard_search,
            *(self.handle, pointer(ids), pointer(offsets), len(source), ctypes.byref(plan), ctypes.byref(places)),
        )
        texts = zip(found.tolist(), lengths.tolist(), scores.tolist(), totals.tolist(), finished.tolist(), strict=True)
        return [
            [
                (some[:length], score, total, bool(end))
                for some, length, score, total, end in zip(*several, strict=True)
                if length >= 0
            ]
            for several in texts
        ]

    def target_logprobs(self, source: Tokens, target: Tokens) -> list[NDArray[np.float32]]:
        """Return the log-probability of each target token and of the end, row by row."""
        lengths = target.lengths.astype(np.int64)
        made = [np.empty(length + 1, np.float32) for length in lengths.tolist()]
        state, alive = self.start(source, 0), np.arange(len(target))
        padded = np.full((len(target), int(lengths.max(initial=0)) + 2), self.eos_id, np.int32)
        padded[:, 0] = self.bos_id
        for number, row in enumerate(target):
            padded[number, 1 : len(row) + 1] = row
        for place in range(padded.shape[1] - 1):
            kept = lengths[alive] >= place
            if not kept.all():
                alive, state = alive[kept], state.select(np.flatnonzero(kept))
            wanted = np.ascontiguousarray(padded[alive, place + 1])
            _, told = self.run_step(padded[alive, place], state, 1, wanted)
            for number, value in zip(alive.tolist(), told.tolist(), strict=True):
                made[number][place] = value
        return made


def _shape(config: TransformerConfig, precision: str) -> CModelShape:
    check_precision(precision)
    return CModelShape(
        hidden_size=config.hidden_size,
        encoder_layers=config.encoder.num_layers,
        encoder_heads=config.encoder.num_heads,
        encoder_feed_forward_size=config.encoder.feed_forward_size,
        decoder_layers=config.decoder.num_layers,
        decoder_heads=config.decoder.num_heads,
        decoder_feed_forward_size=config.decoder.feed_forward_size,
        source_vocab_size=config.source_vocab_size,
        target_vocab_size=config.target_vocab_size,
        max_positions=config.max_positions,
        precision=CODES["precision"][precision],
        activation=CODES["activation"][config.activation],
        positions=CODES["positions"][config.positions],
        pre_norm=config.norm == "before",
        share_embeddings=config.share_embeddings,
        eos_id=config.eos_id,
        norm_eps=config.norm_eps,
        embedding_scale=math.sqrt(config.hidden_size) if config.scale_embedding else 1.0,
    )
