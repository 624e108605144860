"""`TranslatorEngine`: a Transformer in the engine, as a generator for the search, and with a search of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.cancellation import active_cancellation, check_cancelled
from regard.config.models import TransformerConfig
from regard.engine import layout
from regard.engine.base import EngineDecoder, EngineState, contiguous_ids, unsupported_stack_reason
from regard.engine.forced_decoding import label_logprobs, vocabulary_logprobs
from regard.engine.library import CSearchRequest, CSearchResult, pointer
from regard.engine.shortlist import Shortlist
from regard.engine.sites import AttentionOptions
from regard.errors import UsageError
from regard.packed_tokens import Candidates, Ids, Tokens

PRECISIONS = layout.PRECISIONS
MAX_BEAM = 1024


def unsupported_transformer_reason(config: TransformerConfig) -> str:
    """Why the engine cannot run a Transformer; empty where it can.

    >>> unsupported_transformer_reason(TransformerConfig(positions="alibi"))
    ''
    """
    stacks = (config.encoder, config.decoder)
    reasons = (unsupported_stack_reason(stack, config.positions) for stack in stacks)
    return next(filter(None, reasons), "")


class TranslatorEngine(EngineDecoder[TransformerConfig]):
    """A Transformer in the engine."""

    def __init__(
        self,
        config: TransformerConfig,
        arrays: Sequence[layout.Array],
        precision: str = "float32",
        instructions: str = "",
    ) -> None:
        """Create the model from arrays in the order of `array_specs`; `instructions` names an instruction set."""
        super().__init__(config, arrays, precision, instructions)
        self.shortlist: Shortlist | None = None  # target tokens that `search` may use

    # ---- interface of a generator

    @property
    def bos_id(self) -> int:
        return self.config.bos_id

    @property
    def eos_id(self) -> int:
        return self.config.eos_id

    @property
    def pad_id(self) -> int:
        return self.config.pad_id

    def start(self, source: Tokens, max_length: int) -> EngineState:
        """Encode source sentences; the state has one row for each."""
        ids, offsets = self._source_ids(source)
        return self.start_state(ids, offsets)

    def step(self, tokens: Ids, state: EngineState, k: int) -> tuple[Candidates, EngineState]:
        """Append one token to each row; return its `k` best next tokens, or for k = 0 the whole vocabulary."""
        candidates, _ = self.run_step(tokens, state, min(k, self.vocab_size), None)
        return candidates, state

    def cross_attention_sites(self) -> dict[str, int]:
        """Sites that attend to the source, first layer first, with their number of heads."""
        return {site.name: site.num_heads for site in self.sites if site.kind == "decoder_cross"}

    def encode(self, source: Tokens) -> NDArray[np.float32]:  # [tokens, hidden]
        """Hidden states of the source."""
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
        """Search in the library, as `decoding.search` without rules and constraints; it is never traced.

        Returns the best hypotheses of each source: ids, score, logprob, and whether the model ended it.
        """
        ids, offsets = self._source_ids(source)
        if not 1 <= nbest <= beam <= MAX_BEAM:
            raise UsageError(f"beam must be from 1 to {MAX_BEAM} and nbest from 1 to beam, not {beam} and {nbest}")
        max_lengths = self._max_lengths(limits, len(source))
        max_length = int(max_lengths.max())
        length_norms = np.array([length**length_penalty for length in range(max_length + 3)], np.float64)
        forbidden = np.array(sorted({self.pad_id, self.bos_id} - {self.eos_id}), np.int32)
        request = CSearchRequest(
            beam=beam,
            nbest=nbest,
            bos_id=self.bos_id,
            max_lengths=pointer(max_lengths),
            num_max_lengths=len(max_lengths),
            length_norms=pointer(length_norms),
            num_length_norms=len(length_norms),
            forbidden=pointer(forbidden),
            num_forbidden=len(forbidden),
        )
        if use_shortlist and self.shortlist is not None:
            request.always_allowed = pointer(self.shortlist.always_allowed)
            request.num_always_allowed = len(self.shortlist.always_allowed)
            request.lexicon_offsets = pointer(self.shortlist.offsets)
            request.num_lexicon_offsets = len(self.shortlist.offsets)
            request.lexicon = pointer(self.shortlist.lexicon)
            request.lexicon_size = len(self.shortlist.lexicon)
        options = AttentionOptions(self.sites)
        cancellation = active_cancellation()
        if cancellation is not None:
            request.cancelled = cancellation.address
        results = _SearchResults(len(source), nbest, max_length)
        try:
            self.library.call(
                self.library.handle.regard_search,
                self.handle,
                pointer(ids),
                pointer(offsets),
                len(source),
                ctypes.byref(request),
                ctypes.byref(results.pointers()),
                options.argument,
            )
        except UsageError:
            check_cancelled()
            raise
        return [results.hypotheses(row) for row in range(len(source))]

    def _source_ids(self, source: Tokens) -> tuple[Ids, Ids]:
        """Ids and offsets of source sentences that the model can read."""
        ids, offsets = contiguous_ids(source)
        max_length = int(source.lengths.max())
        if max_length > self.config.max_positions:
            raise UsageError(
                f"a source has {max_length} tokens but the model takes {self.config.max_positions}: split it"
            )
        return ids, offsets

    def _max_lengths(self, limits: NDArray[np.int64], num_sources: int) -> Ids:
        """Longest translation of each source; limits below 1 count as 1."""
        max_lengths = np.asarray(limits)
        if max_lengths.shape != (num_sources,):
            raise UsageError(f"{num_sources} sources have {max_lengths.size} limits: each needs one")
        if int(max_lengths.max()) > self.config.max_positions:
            raise UsageError(
                f"a translation may have {self.config.max_positions} tokens, the limit is {int(max_lengths.max())}"
            )
        return np.maximum(max_lengths, 1).astype(np.int32)

    def target_logprobs(self, source: Tokens, target: Tokens) -> list[NDArray[np.float32]]:
        """Log-probability of each target token and of the end, by sentence; what an open trace captures."""
        inputs, labels = self.shift_targets(target)
        return label_logprobs(self, inputs, labels, source)

    def next_token_logprobs(self, source: Tokens, target: Tokens) -> NDArray[np.float32]:  # [tokens, vocabulary]
        """Log-probabilities of the vocabulary before each target token and the end; what an open trace captures."""
        inputs, _ = self.shift_targets(target)
        return vocabulary_logprobs(self, inputs, source)

    def shift_targets(self, target: Tokens) -> tuple[Tokens, Tokens]:
        """Decoder input (bos in front of each sequence) and labels (eos at its end)."""
        inputs = [[self.bos_id, *ids] for ids in target]
        labels = [[*ids, self.eos_id] for ids in target]
        return Tokens.from_rows(inputs), Tokens.from_rows(labels)


class _SearchResults:
    """Arrays that the library writes the hypotheses of a search to."""

    def __init__(self, num_sources: int, nbest: int, max_length: int) -> None:
        shape = (num_sources, nbest)
        self.ids = np.empty((*shape, max_length), np.int32)
        self.lengths = np.empty(shape, np.int32)  # negative: there is no such hypothesis
        self.scores = np.empty(shape, np.float64)
        self.logprobs = np.empty(shape, np.float64)
        self.finished = np.empty(shape, np.int32)

    def pointers(self) -> CSearchResult:
        """Addresses of the arrays."""
        return CSearchResult(
            ids=pointer(self.ids),
            lengths=pointer(self.lengths),
            scores=pointer(self.scores),
            logprobs=pointer(self.logprobs),
            finished=pointer(self.finished),
        )

    def hypotheses(self, row: int) -> list[tuple[list[int], float, float, bool]]:
        """Hypotheses of one source: ids, score, logprob, and whether the model ended it."""
        columns = zip(
            self.ids[row].tolist(),
            self.lengths[row].tolist(),
            self.scores[row].tolist(),
            self.logprobs[row].tolist(),
            self.finished[row].tolist(),
            strict=True,
        )
        return [
            (ids[:length], score, logprob, bool(is_finished))
            for ids, length, score, logprob, is_finished in columns
            if length >= 0
        ]
