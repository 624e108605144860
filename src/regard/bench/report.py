"""What was found, for people and for programs: a table, JSON and a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard import __version__
from regard.bench.measure import CAPTION, OURS, Row
from regard.bench.memory import HOW
from regard.checkpoint.files import json_bytes, write_file

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 118
JSON, PLOT = "bench.json", "bench.svg"
PEAK = (
    "of peak: share of the measured speed of a large matrix product in float32; of bf16 and int8, in bf16 where it pays"
)


@dataclass(frozen=True)
class Report:
    """The rows of all benches, in order, and what they were measured on."""

    rows: list[Row]
    missing: list[str]  # who was left out, in a line each
    machine: dict[str, Any]
    settings: dict[str, Any]

    def to_list(self) -> list[dict[str, Any]]:
        """Return the rows as plain values."""
        return [row.to_dict() for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "regard": __version__,
            "caption": [CAPTION, PEAK, f"memory: {HOW}"],
            "machine": self.machine,
            "settings": self.settings,
            "skipped": self.missing,
            "rows": self.to_list(),
        }

    def lines(self) -> list[str]:
        """Return everything for people."""
        made: list[str] = []
        for bench, rows in _benches(self.rows):
            curve = bool(rows[0].axis)
            made += [bench, *_drawn(_curve(rows) if curve else _bench(rows)), *(_verdicts(rows)), ""]
        made += [f"{CAPTION}.", f"{PEAK}.", f"memory: {HOW}."]
        threads, cores = self.machine.get("threads"), self.machine.get("cores")
        made.append(f"measured on {self.machine.get('processor')}, {threads} threads on {cores} cores.")
        return [*made, *([""] if self.missing else []), *self.missing]

    def write(self, folder: Path) -> list[Path]:
        """Write the JSON and the picture; return where they are."""
        from regard.bench.plot import plot

        places = [folder / JSON, folder / PLOT]
        for place, content in zip(places, (json_bytes(self.to_dict()), plot(self.rows).encode()), strict=True):
            write_file(place, content)
        return places


def _benches(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for bench, some in groupby(rows, key=lambda row: row.bench):
        yield bench, list(some)


def _bench(rows: Sequence[Row]) -> Table:
    table = _table("peer", "setting", "value", "unit", "ratio", "low–high", "tokens/s", "of peak", "memory")
    for row in rows:
        spread = "" if row.low is None or row.high is None else f"{row.low:.2f}–{row.high:.2f}"
        table.add_row(
            row.peer,
            row.setting,
            number(row.value),
            row.unit,
            "" if row.ratio is None else f"{row.ratio:.2f}×",
            spread,
            "" if row.tokens_per_second is None else number(row.tokens_per_second),
            "" if row.peak is None else f"{100 * row.peak:.0f} %",
            memory(row.memory),
            style="bold" if row.library == OURS else "",
        )
    return table


def _curve(rows: Sequence[Row]) -> Table:
    table = _table(rows[0].axis, "peer", "value", "unit", "ratio", "memory", "setting")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}×"
        table.add_row(f"{row.at:,.0f}", row.peer, number(row.value), row.unit, ratio, memory(row.memory), row.setting)
    return table


def _verdicts(rows: Sequence[Row]) -> list[str]:
    """Say how our best did against the best of each library, or how fast a curve of ours grows at its end."""
    ours = [row for row in rows if row.library == OURS]
    if not ours:
        return []
    if rows[0].axis:
        return [f"  {power(ours)}"] if len(ours) > 1 else []
    return [f"  {ours[0].peer} is {spread} {name}" for name, spread in ours[0].beside.items()]


def power(points: Sequence[Row]) -> str:
    """Say with which power of its axis a curve grows between its last two points.

    >>> made = ((10, 2.0), (20, 8.0))
    >>> power([Row("b", "regard", value, "s", memory=100, axis="length", at=at) for at, value in made])
    'value grows as length^2.00, memory as length^0.00'
    """
    first, last = points[-2:]
    assert first.at is not None and last.at is not None
    steps = math.log(last.at / first.at)
    said = [f"value grows as {last.axis}^{math.log(last.value / first.value) / steps:.2f}"]
    if first.memory and last.memory:
        said.append(f"memory as {last.axis}^{math.log(last.memory / first.memory) / steps:.2f}")
    return ", ".join(said)


def number(value: float) -> str:
    """Return a number with about three digits that count.

    >>> [number(value) for value in (12345.6, 123.45, 12.345, 1.2345, 0.012345)]
    ['12,346', '123', '12.3', '1.23', '0.0123']
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def memory(size: int | None) -> str:
    """Return bytes as people read them.

    >>> memory(1_234_567_890), memory(None)
    ('1.23 GB', '')
    """
    return "" if not size else f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        words = name in ("peer", "setting", "unit")
        table.add_column(name, justify="left" if words else "right", no_wrap=name != "setting")
    return table


def _drawn(table: Table) -> list[str]:
    from rich.console import Console

    page = StringIO()
    Console(file=page, width=WIDTH, color_system=None).print(table)
    return [f"  {line}".rstrip() for line in page.getvalue().splitlines()]
