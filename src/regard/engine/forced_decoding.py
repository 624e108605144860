"""Forced decoding: a decoder reads given tokens, with the bits of a search that generates them, and for open traces.

Results do not depend on how many rows or tokens are computed together, so that the attention of a generated text is
that of the search, though the search itself was not traced.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.cancellation import check_cancelled
from regard.engine.base import EngineDecoder, EngineState, store_encoder_captures
from regard.engine.capture import RowHeads, RowMask, store_call
from regard.engine.sites import EngineSite, SiteArrays, group_sites, traced_sites
from regard.packed_tokens import Ids, Tokens

MAX_BATCH_ROWS = 64  # that share a decoder state
MAX_STEP_TOKENS = 1024  # that are appended at once
MAX_STEP_LOGPROBS = 8 << 20  # that a step returns
NO_SOURCE = Tokens(np.zeros(0, np.int32), np.zeros(1, np.int32))  # of a causal language model


@dataclass(frozen=True)
class ForcedStep:
    """Predictions after some tokens of some rows; what lies behind a row's end is undefined."""

    first_row: int
    first_position: int
    logprobs: NDArray[np.float32]  # [rows, tokens, k], or the vocabulary's
    label_logprobs: NDArray[np.float32]  # [rows, tokens]

    def pieces(self, lengths: Ids) -> Iterator[tuple[int, slice, int]]:
        """Row, positions and their number, of all rows that have tokens in this step."""
        for index in range(len(self.logprobs)):
            row = self.first_row + index
            count = min(self.logprobs.shape[1], int(lengths[row]) - self.first_position)
            if count > 0:
                yield index, slice(self.first_position, self.first_position + count), count


def force_decode(
    engine: EngineDecoder[Any], inputs: Tokens, *, source: Tokens = NO_SOURCE, labels: Tokens | None = None, k: int = 1
) -> Iterator[ForcedStep]:
    """Read the tokens of each row, after its source; yield what follows each token, then fill the open traces.

    `labels` are the tokens whose log-probability is wanted, as many as inputs. `k` = 0 yields that of all tokens.
    """
    num_tokens = len(inputs.ids) + len(source.ids)
    for index, group in enumerate(group_sites(traced_sites(engine.sites), num_tokens)):
        reader = _Reader(engine, inputs, source, labels, k, group)
        for step in reader.steps():
            if not index:
                yield step
        reader.fill_traces()


class _Reader:
    """Reads all rows once, and captures queries, keys and values of some sites."""

    def __init__(
        self,
        engine: EngineDecoder[Any],
        inputs: Tokens,
        source: Tokens,
        labels: Tokens | None,
        k: int,
        sites: Sequence[EngineSite],
    ) -> None:
        self.engine = engine
        self.inputs = inputs
        self.source = source
        self.labels = labels
        self.k = k
        self.captures = [
            SiteArrays(
                site,
                len(source.ids) if site.kind == "encoder_self" else len(inputs.ids),
                len(inputs.ids) if site.kind == "decoder_self" else len(source.ids),
            )
            for site in sites
        ]

    def steps(self) -> Iterator[ForcedStep]:
        """Read batches of rows."""
        max_tokens = max(1, min(MAX_STEP_TOKENS, MAX_STEP_LOGPROBS // (self.k or self.engine.vocab_size)))
        for first_row in range(0, len(self.inputs), MAX_BATCH_ROWS):
            last_row = min(first_row + MAX_BATCH_ROWS, len(self.inputs))
            num_rows = last_row - first_row
            input_ids = self._pad(self.inputs, first_row, last_row)
            label_ids = None if self.labels is None else self._pad(self.labels, first_row, last_row)
            state = self._start(first_row, last_row)
            tokens_per_row = max(1, max_tokens // num_rows)
            for position in range(0, input_ids.shape[1], tokens_per_row):
                check_cancelled()
                columns = slice(position, position + tokens_per_row)
                step_ids = np.ascontiguousarray(input_ids[:, columns])
                step_labels = None if label_ids is None else np.ascontiguousarray(label_ids[:, columns])
                arrays = [self._step_arrays(capture, step_ids.size) for capture in self.captures]
                candidates, label_logprobs = self.engine.run_step(
                    step_ids, state, self.k, step_labels, [array for array in arrays if array is not None]
                )
                shape = step_ids.shape
                step = ForcedStep(
                    first_row,
                    position,
                    logprobs=candidates.logprobs.reshape(*shape, -1),
                    label_logprobs=label_logprobs.reshape(shape),
                )
                self._copy_step(arrays, step)
                yield step

    def _pad(self, tokens: Tokens, first_row: int, last_row: int) -> Ids:
        """Token ids of some rows, [rows, tokens]."""
        rows = [tokens.row(row) for row in range(first_row, last_row)]
        padded = np.full((len(rows), max(map(len, rows))), self.engine.eos_id, np.int32)
        for row, ids in zip(padded, rows, strict=True):
            row[: len(ids)] = ids
        return padded

    def _start(self, first_row: int, last_row: int) -> EngineState:
        """State after the sources of some rows, whose attention it captures."""
        if not len(self.source):
            return self.engine.start_state(NO_SOURCE.ids, np.zeros(last_row - first_row + 1, np.int32))
        tokens = slice(int(self.source.offsets[first_row]), int(self.source.offsets[last_row]))
        offsets = self.source.offsets[first_row : last_row + 1] - tokens.start
        num_tokens = tokens.stop - tokens.start
        captures = [capture for capture in self.captures if capture.site.kind != "decoder_self"]
        arrays = []
        for capture in captures:
            num_queries = num_tokens if capture.site.kind == "encoder_self" else 0
            arrays.append(SiteArrays(capture.site, num_queries, num_tokens))
        state = self.engine.start_state(
            np.ascontiguousarray(self.source.ids[tokens], np.int32), offsets.astype(np.int32), arrays
        )
        for capture, array in zip(captures, arrays, strict=True):
            capture.key[tokens] = array.key
            if len(array.query):
                capture.query[tokens] = array.query
            if capture.value is not None and array.value is not None:
                capture.value[tokens] = array.value
        return state

    @staticmethod
    def _step_arrays(capture: SiteArrays, num_tokens: int) -> SiteArrays | None:
        """Arrays of a site for one step; None where a step has nothing to capture."""
        if capture.site.kind == "encoder_self":
            return None
        return SiteArrays(capture.site, num_tokens, num_tokens if capture.site.kind == "decoder_self" else 0)

    def _copy_step(self, arrays: Sequence[SiteArrays | None], step: ForcedStep) -> None:
        """Copy what a step captured, without its padding."""
        num_rows, num_tokens = step.label_logprobs.shape
        lengths = self.inputs.lengths
        for capture, array in zip(self.captures, arrays, strict=True):
            if array is None:
                continue
            pairs = [(capture.query, array.query)]
            if capture.site.kind == "decoder_self":
                pairs.append((capture.key, array.key))
                if capture.value is not None and array.value is not None:
                    pairs.append((capture.value, array.value))
            for target, captured in pairs:
                by_row = captured.reshape(num_rows, num_tokens, *captured.shape[1:])
                for index, positions, count in step.pieces(lengths):
                    start = int(self.inputs.offsets[step.first_row + index])
                    target[start + positions.start : start + positions.stop] = by_row[index, :count]

    def fill_traces(self) -> None:
        """Give the open traces what the pass captured."""
        store_encoder_captures(
            [capture for capture in self.captures if capture.site.kind == "encoder_self"], self.source.offsets
        )
        input_ranges = _row_slices(self.inputs)
        source_ranges = _row_slices(self.source)
        masks: dict[tuple[str, int], RowMask] = {}  # by kind of site and window: layers share them
        for capture in self.captures:
            site = capture.site
            if site.kind == "encoder_self":
                continue
            key_ranges = input_ranges if site.is_causal else source_ranges
            ranges = [*zip(input_ranges, key_ranges, strict=True)]
            if (site.kind, site.settings.window) not in masks:
                sizes = [(queries.stop - queries.start, keys.stop - keys.start, 0) for queries, keys in ranges]
                mask = RowMask(sizes, window=site.settings.window, is_causal=site.is_causal)
                masks[site.kind, site.settings.window] = mask
            rows = [
                RowHeads(
                    capture.query[queries], capture.key[keys], None if capture.value is None else capture.value[keys]
                )
                for queries, keys in ranges
            ]
            store_call(site, rows, masks[site.kind, site.settings.window])


def _row_slices(tokens: Tokens) -> list[slice]:
    """Where the tokens of each row are."""
    return [slice(start, stop) for start, stop in itertools.pairwise(tokens.offsets.tolist())]


def label_logprobs(
    engine: EngineDecoder[Any], inputs: Tokens, labels: Tokens, source: Tokens = NO_SOURCE
) -> list[NDArray[np.float32]]:
    """Log-probability of each label after the token that it follows, by row."""
    lengths = inputs.lengths
    logprobs = [np.empty(length, np.float32) for length in lengths.tolist()]
    for step in force_decode(engine, inputs, source=source, labels=labels):
        for index, positions, count in step.pieces(lengths):
            logprobs[step.first_row + index][positions] = step.label_logprobs[index, :count]
    return logprobs


def vocabulary_logprobs(
    engine: EngineDecoder[Any], inputs: Tokens, source: Tokens = NO_SOURCE
) -> NDArray[np.float32]:  # [tokens, vocabulary]
    """Log-probabilities of the vocabulary after each token."""
    logprobs = np.empty((len(inputs.ids), engine.vocab_size), np.float32)
    for step in force_decode(engine, inputs, source=source, k=0):
        for index, positions, count in step.pieces(inputs.lengths):
            start = int(inputs.offsets[step.first_row + index])
            logprobs[start + positions.start : start + positions.stop] = step.logprobs[index, :count]
    return logprobs
