"""Selecting what a view shows: one head of a record or the mean of a layer, between words or tokens."""

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
    "raw": "raw weight",
    "row": "weight relative to the largest of its row",
    "content": "weight without special tokens, rows renormalized",
}


@dataclass(frozen=True)
class AxisUnit:
    """A word or a token: the label of a row or column."""

    label: str
    members: tuple[int, ...]  # indices of its tokens
    special: bool


@dataclass(frozen=True)
class AttentionSelection:
    """A table of weights with its row and column labels."""

    record: Record
    attention: AttentionRecord
    layer: int
    head: int | None  # None: the mean of the layer's heads
    norm: str
    words: bool
    rows: list[AxisUnit]
    columns: list[AxisUnit]
    table: Weights  # [rows, columns]
    later: int = 0  # shift of the alignment head: a row is read so many steps after its token was generated

    @property
    def site(self) -> str:
        """Name of the head, or of the mean."""
        name = site_name(self.attention.name, self.layer)
        if self.attention.num_heads == 1:
            return name
        return f"{name}:{self.head}" if self.head is not None else f"{name}, mean of {self.attention.num_heads} heads"

    @property
    def is_best(self) -> bool:
        """Whether this is the best alignment head."""
        return self.record.best == (self.attention.name, self.layer, self.head)

    def find_row(self, row: str | int | None) -> int | None:
        """Index of a row, given by its index or its label."""
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
    """Select a table of weights; by default the best alignment head, else the mean of the last layer.

    `attention` may be a site with its head: `decoder.2.cross:4`.
    """
    check_norm(norm)
    if not record.attention:
        raise UsageError("the record has no attention to show: choose another view")
    selected, layer, head = _choose_head(record, attention, layer, head)
    weights = selected.matrix(layer, head) if head is not None else mean_head(selected, layer)
    has_shift = record.best == (selected.name, layer, head) and selected.is_generated
    shift = int(record.view.get("shift", 0)) if has_shift else 0
    if shift:
        weights = _shift_rows(weights, record.texts[selected.rows].special, shift)
    rows = axis_units(record.texts[selected.rows], words=words)
    columns = axis_units(record.texts[selected.columns], words=words)
    table = merge_subwords(weights, [unit.members for unit in rows], [unit.members for unit in columns])
    return AttentionSelection(
        record,
        selected,
        layer=layer,
        head=head,
        norm=norm,
        words=words,
        rows=rows,
        columns=columns,
        table=_normalize(table, columns, norm),
        later=shift,
    )


def _choose_head(
    record: Record, attention: str, layer: int | None, head: int | None
) -> tuple[AttentionRecord, int, int | None]:
    """Attention, layer and head of a selection; without a head, their mean is selected."""
    name = attention
    if attention not in [available.name for available in record.attention]:
        name, layer, head = parse_site(attention, layer, head)
    best = record.best
    if not name and best:
        name = best[0]
    selected = record[name] if name else record.attention[0]
    if best and selected.name == best[0] and head is None and layer in (None, best[1]):
        _, layer, head = best
    return selected, selected.layers[-1] if layer is None else layer, head


def _shift_rows(weights: Weights, special: Sequence[bool], steps: int) -> Weights:
    """Rows [Q, K] of the step at which their token is the decoder's input; end tokens have none and become zero."""
    shifted = np.concatenate([weights[steps:], np.zeros_like(weights[:steps])])
    return np.where(np.asarray(special)[:, None], 0, shifted).astype(np.float32)


def find_row(rows: Sequence[AxisUnit], row: str | int | None) -> int | None:
    """Index of a row, given by its index or its label."""
    if row is None:
        return None
    labels = [unit.label for unit in rows]
    plain_labels = [label.strip(" ▁Ġ").removeprefix("##") for label in labels]
    for candidates in (labels, plain_labels):
        if str(row) in candidates:
            return candidates.index(str(row))
    if str(row).lstrip("-").isdecimal():
        if 0 <= int(row) < len(labels):
            return int(row)
        raise UsageError(f"there is no row {row}: they are 0 to {len(labels) - 1}")
    raise UsageError(f"no row is labelled {row!r}{nearest(str(row), labels)}: give a label, or an index from 0")


def check_norm(norm: str) -> None:
    """Raise for an unknown normalization."""
    if norm not in NORMS:
        raise UsageError(f"norm must be one of {', '.join(NORMS)}, not {norm!r}{nearest(norm, NORMS)}")


def mean_head(attention: AttentionRecord, layer: int) -> Weights:
    """Mean [Q, K] of a layer's heads."""
    total = np.zeros(attention.shape[2:], dtype=np.float32)
    for head in range(attention.num_heads):
        total += attention.matrix(layer, head)
    return np.asarray(total / max(1, attention.num_heads))


def axis_units(text: RecordText, *, words: bool) -> list[AxisUnit]:
    """Words or tokens of a text."""
    special = text.special
    return [
        AxisUnit(label, tuple(members), all(special[member] for member in members))
        for label, members in text.units(words=words)
    ]


def parse_site(attention: str, layer: int | None, head: int | None) -> tuple[str, int | None, int | None]:
    """Split a site into name, layer and head; a layer or head that is passed beside it must agree."""
    site, colon, head_text = attention.partition(":")
    if colon and not head_text.isdigit():
        raise UsageError(f"{attention!r}: the index of a head follows the colon, as in decoder.2.cross:4")
    layers = [int(part) for part in site.split(".") if part.isdigit()]
    site_layer = layers[-1] if layers else None
    site_head = int(head_text) if head_text else None
    for level, in_site, requested in (("layer", site_layer, layer), ("head", site_head, head)):
        if in_site is not None and requested is not None and in_site != requested:
            raise UsageError(f"{attention!r} names {level} {in_site}, but {level} {requested} is requested: keep one")
    return site, layer if site_layer is None else site_layer, head if site_head is None else site_head


def _normalize(table: Weights, columns: list[AxisUnit], norm: str) -> Weights:
    if norm == "row":
        return np.asarray(table / np.maximum(table.max(axis=1, keepdims=True), 1e-12))
    if norm == "content":
        content = np.where([unit.special for unit in columns], 0.0, table)
        total = content.sum(axis=1, keepdims=True)
        return np.asarray(content / np.where(total > 1e-6, total, 1.0), dtype=np.float32)
    return table
