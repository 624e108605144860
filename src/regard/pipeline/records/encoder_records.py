"""Records of encoders over a text, a pair or a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.backends import EncoderBackend
from regard.config.inference import RecordConfig
from regard.packed_tokens import Tokens
from regard.pipeline.records.trace_records import Axes, capture_text, collect_attention, collect_qkv, position_encodings
from regard.text.special_tokens import EncodedInput, SpecialTokens, truncate_pair
from regard.view.record.parts import Omission
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

ENCODER_AXES = {"encoder.self": Axes("source", "source")}
RunModel = Callable[[Tokens], NDArray[np.float32]]
BuildParts = Callable[[NDArray[np.float32]], Mapping[str, Any]]


@dataclass(frozen=True)
class EncodedRow:
    """One row as an encoder reads it, and its text."""

    ids: list[int]
    token_types: list[int]
    text: RecordText
    truncated: tuple[Omission, ...] = ()

    @property
    def tokens(self) -> Tokens:
        """The row as a batch of one."""
        packed = Tokens.from_rows([self.ids])
        return Tokens(packed.ids, packed.offsets, np.asarray(self.token_types, dtype=np.int32))


@dataclass(frozen=True)
class VisibleWindow:
    """Token range of a single text, or of the second text of a pair, that is recorded."""

    start: int
    stop: int
    before: int = 0  # tokens of the first text of a pair


def encode_row(
    special_tokens: SpecialTokens,
    text: str,
    pair: str | None = None,
    *,
    max_length: int,
    window: VisibleWindow | None = None,
    parse_special: bool = False,
) -> EncodedRow:
    """Encode the recorded row of a text or a pair: its first window, or the given one.

    A window is one of a single text, or of the second text of a pair. The row lists what is left out.
    """
    encoded = special_tokens.encode(text, pair, parse_special=parse_special)
    max_content = max_length - special_tokens.num_special(pair is not None)
    counts = [encoded.sides.count(0), encoded.sides.count(1)]  # tokens of the first and the second text
    starts = [0, 0]
    lengths = counts
    if window is not None and pair is None:
        starts = [window.start, 0]
        lengths = [window.stop - window.start, 0]
    elif window is not None:
        starts = [0, window.start]
        lengths = [window.before, window.stop - window.start]
    elif sum(counts) > max_content:
        lengths = [max_content, 0] if pair is None else [*truncate_pair(counts[0], counts[1], max_content)]
    positions = _select_positions(encoded, starts, lengths)
    ids = [encoded.ids[position] for position in positions]
    return EncodedRow(
        ids,
        [encoded.token_types[position] for position in positions],
        text=_build_text(special_tokens.tokenizer.subwords(ids), encoded, positions, text, pair),
        truncated=_list_omissions(counts, starts, lengths),
    )


def _select_positions(encoded: EncodedInput, starts: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Positions of special tokens, and of each text's tokens from its start."""
    positions = []
    num_tokens = [0, 0]  # of each text so far
    for position, side in enumerate(encoded.sides):
        if side < 0:
            positions.append(position)
            continue
        if starts[side] <= num_tokens[side] < starts[side] + lengths[side]:
            positions.append(position)
        num_tokens[side] += 1
    return positions


def _build_text(
    subwords: list[str], encoded: EncodedInput, positions: Sequence[int], text: str, pair: str | None
) -> RecordText:
    """Text of a row; that of a pair is both texts, one per line."""
    word_offsets = (0, len(text.split()))
    character_offsets = (0, len(text) + 1)
    word_ids = []
    spans = []
    for position in positions:
        side = encoded.sides[position]
        if side < 0:  # a special token
            word_ids.append(-1)
            spans.append((0, 0))
            continue
        start, end = encoded.spans[position]
        word_ids.append(encoded.word_ids[position] + word_offsets[side])
        spans.append((start + character_offsets[side], end + character_offsets[side]))
    token_types = [encoded.token_types[position] for position in positions] if pair else []
    full_text = text if pair is None else f"{text}\n{pair}"
    return RecordText.from_subwords(full_text, subwords, word_ids, spans=spans, token_types=token_types)


def _list_omissions(counts: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> tuple[Omission, ...]:
    """List what the row leaves out of each text."""
    omissions = []
    for name, count, start, length in zip(("text", "second text"), counts, starts, lengths, strict=True):
        if length < count:
            reason = f"the {name} has {count:,} tokens, more than the model reads at a time"
            omissions.append(Omission(reason, f"all but its tokens {start + 1:,} to {start + length:,}"))
    return tuple(omissions)


@dataclass(frozen=True)
class EncoderRecorder:
    """Records the attention of an encoder over a row."""

    model: EncoderBackend
    special_tokens: SpecialTokens

    def record(
        self,
        row: EncodedRow,
        config: RecordConfig,
        *,
        task: str,
        title: str = "",
        run_model: RunModel | None = None,
        extra_parts: BuildParts | None = None,
    ) -> Record:
        """Record one row; `extra_parts` builds further fields of the record from the output of `run_model`."""
        sites = self.model.attention_sites()
        if config.store_qkv == "best":
            last_head = f"{[*sites][-1]}:0" if sites else ""
            config = config.override({"store_qkv": last_head})
        length = len(row.ids)
        run_model = run_model or self.model.encode
        with capture_text(config, sites, length, length) as captured:
            output = run_model(row.tokens)
        parts = dict(extra_parts(output)) if extra_parts is not None else {}
        return Record(
            title or row.text.text,
            {"source": row.text, **parts.pop("texts", {})},
            collect_attention([captured.trace], ENCODER_AXES, self.model.config),
            task=task,
            positions=position_encodings(self.model, length),
            qkv=collect_qkv(captured),
            omissions=(*row.truncated, *parts.pop("omissions", ())),
            **parts,
        )
