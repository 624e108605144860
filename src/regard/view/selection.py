"""What a picture of attention shows: one head of a record, or the mean of a layer's heads, between words or tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.attention.sites import site_name
from regard.errors import UsageError, nearest
from regard.tasks.alignment import merge_subwords
from regard.view.codec import Weights
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

NORMS = {
    "raw": "weight, raw",
    "row": "weight as a share of its row's largest",
    "content": "weight without special tokens, rows made one again",
}


@dataclass(frozen=True)
class AxisUnit:
    """A word, or a token: what a row or a column stands for."""

    label: str
    members: tuple[int, ...]  # its tokens
    special: bool


@dataclass(frozen=True)
class AttentionSelection:
    """A table of weights with the names of its rows and columns."""

    record: Record
    attention: AttentionRecord
    layer: int
    head: int | None  # None: the mean of the layer's heads
    norm: str
    words: bool
    rows: list[AxisUnit]
    columns: list[AxisUnit]
    table: Weights  # [rows, columns]
    later: int = 0  # steps after a row's token was produced that it is read at, as the head aligns best

    @property
    def site(self) -> str:
        """Which head this is, as it is named everywhere."""
        name = site_name(self.attention.name, self.layer)
        if self.attention.heads == 1:
            return name
        return f"{name}:{self.head}" if self.head is not None else f"{name}, mean of {self.attention.heads} heads"

    @property
    def is_best(self) -> bool:
        """Whether this is the head that was measured to align best."""
        return self.record.best == (self.attention.name, self.layer, self.head)

    def find_row(self, row: str | int | None) -> int | None:
        """Return the number of the row that is meant: a number counted from 0, or what stands in it."""
        return find_row(self.rows, row)


def select_attention(
    record: Record,
    attention: str = "",
    layer: int | None = None,
    head: int | None = None,
    *,
    words: bool = False,
    norm: str = "raw",
) -> AttentionSelection:
    """Return what is asked for; by default the best head where one was measured, else the last layer's mean.

    `attention` may be a site with its head: `decoder.2.cross:4`.
    """
    check_norm(norm)
    if not record.attention:
        raise UsageError("the record has no attention to show: choose another view")
    name = attention
    if attention not in [seen.name for seen in record.attention]:
        name, layer, head = parse_site(attention, layer, head)
    best = record.best
    seen = record[name] if name else record[best[0]] if best else record.attention[0]
    if best and seen.name == best[0] and head is None and layer in (None, best[1]):
        layer, head = best[1], best[2]
    chosen = seen.layers[-1] if layer is None else layer
    weights = seen.matrix(chosen, head) if head is not None else mean_head(seen, chosen)
    rows, columns = (axis_units(record.texts[side], words=words) for side in (seen.rows, seen.columns))
    later = int(record.view.get("shift", 0)) if best == (seen.name, chosen, head) and seen.produced else 0
    if later:
        weights = _read_later(weights, record.texts[seen.rows].special, later)
    table = merge_subwords(weights, [unit.members for unit in rows], [unit.members for unit in columns])
    return AttentionSelection(
        record, seen, chosen, head, norm, words, rows, columns, _normed(table, columns, norm), later
    )


def _read_later(weights: Weights, special: Sequence[bool], steps: int) -> Weights:
    """Return rows [Q, K] read when their token is the decoder's input; end marks, which never are, look nowhere."""
    moved = np.concatenate([weights[steps:], np.zeros_like(weights[:steps])])
    return np.where(np.asarray(special)[:, None], 0, moved).astype(np.float32)


def find_row(rows: Sequence[AxisUnit], row: str | int | None) -> int | None:
    """Return the number of the row that is meant: a number counted from 0, or what stands in it."""
    if row is None:
        return None
    labels = [unit.label for unit in rows]
    for names in (labels, [label.strip(" ▁Ġ").removeprefix("##") for label in labels]):
        if str(row) in names:
            return names.index(str(row))
    if str(row).lstrip("-").isdecimal():
        if 0 <= int(row) < len(labels):
            return int(row)
        raise UsageError(f"there is no row {row}: they are 0 to {len(labels) - 1}")
    raise UsageError(f"no row is named {row!r}{nearest(str(row), labels)}: name one of them, or its number from 0")


def check_norm(norm: str) -> None:
    """Raise for a way to normalise that there is not."""
    if norm not in NORMS:
        raise UsageError(f"norm must be one of {', '.join(NORMS)}, not {norm!r}{nearest(norm, NORMS)}")


def mean_head(attention: AttentionRecord, layer: int) -> Weights:
    """Return the mean [Q, K] of a layer's heads."""
    total = np.zeros(attention.shape[2:], dtype=np.float32)
    for head in range(attention.heads):
        total += attention.matrix(layer, head)
    return np.asarray(total / max(1, attention.heads))


def axis_units(text: RecordText, *, words: bool) -> list[AxisUnit]:
    """Return the words of a side, or its tokens."""
    special = text.special
    return [
        AxisUnit(label, tuple(members), all(special[member] for member in members))
        for label, members in text.units(words=words)
    ]


def parse_site(attention: str, layer: int | None, head: int | None) -> tuple[str, int | None, int | None]:
    """Return the parts of a site's name; what is given beside it must say the same."""
    site, colon, number = attention.partition(":")
    found = [part for part in site.split(".") if part.isdigit()]
    if colon and not number.isdigit():
        raise UsageError(f"{attention!r}: after the colon stands the head's number, as in decoder.2.cross:4")
    for what, given, told in (("layer", layer, found[-1] if found else None), ("head", head, number or None)):
        if told is not None and given is not None and int(told) != given:
            raise UsageError(f"{attention!r} names {what} {told}, but {what} {given} is asked for: keep one of them")
    return site, int(found[-1]) if found else layer, int(number) if number else head


def _normed(table: Weights, columns: list[AxisUnit], norm: str) -> Weights:
    if norm == "row":
        return np.asarray(table / np.maximum(table.max(axis=1, keepdims=True), 1e-12))
    if norm == "content":
        kept = np.where([unit.special for unit in columns], 0.0, table)
        total = kept.sum(axis=1, keepdims=True)
        return np.asarray(kept / np.where(total > 1e-6, total, 1.0), dtype=np.float32)
    return table
