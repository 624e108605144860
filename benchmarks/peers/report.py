"""Results of a run for people and programs: tables, JSON and a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peak_memory import MEMORY_CAPTION
from benchmarks.peers.statistics import RATIO_CAPTION, REGARD, Row
from regard import __version__
from regard.checkpoint.atomic import json_bytes, write_file

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 118  # characters of a line
JSON_FILE = "bench.json"
PLOT_FILE = "bench.svg"
TEXT_COLUMNS = ("peer", "setting", "unit")
PEAK_CAPTION = (
    "of peak: share of the measured speed of a large matrix product in float32; of bf16 and int8, in bf16 where it pays"
)


@dataclass(frozen=True)
class PeerReport:
    """Rows of all benchmarks in order, and what they were measured on."""

    rows: list[Row]
    missing: list[str]  # one line for each runner that was left out
    machine: dict[str, Any]
    settings: dict[str, Any]

    def to_list(self) -> list[dict[str, Any]]:
        """Rows as plain values."""
        return [row.to_dict() for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "regard": __version__,
            "caption": [RATIO_CAPTION, PEAK_CAPTION, f"memory: {MEMORY_CAPTION}"],
            "machine": self.machine,
            "settings": self.settings,
            "skipped": self.missing,
            "rows": self.to_list(),
        }

    def lines(self) -> list[str]:
        """Tables with captions."""
        lines: list[str] = []
        for benchmark, rows in group_by_benchmark(self.rows):
            table = _curve_table(rows) if rows[0].axis else _benchmark_table(rows)
            lines += [benchmark, *_render(table), *_conclusions(rows), ""]
        lines += [f"{RATIO_CAPTION}.", f"{PEAK_CAPTION}.", f"memory: {MEMORY_CAPTION}."]
        threads = self.machine.get("threads")
        cores = self.machine.get("cores")
        lines.append(f"measured on {self.machine.get('processor')}, {threads} threads on {cores} cores.")
        return [*lines, "", *self.missing] if self.missing else lines

    def write(self, folder: Path) -> list[Path]:
        """Write the JSON and the plot; return their paths."""
        from benchmarks.peers.plot import plot

        contents = {
            folder / JSON_FILE: json_bytes(self.to_dict()),
            folder / PLOT_FILE: plot(self.rows).encode(),
        }
        for path, content in contents.items():
            write_file(path, content)
        return list(contents)


def group_by_benchmark(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Consecutive rows of each benchmark."""
    for benchmark, group in groupby(rows, key=lambda row: row.benchmark):
        yield benchmark, list(group)


def _benchmark_table(rows: Sequence[Row]) -> Table:
    table = _new_table("peer", "setting", "value", "unit", "ratio", "low–high", "tokens/s", "of peak", "memory")
    for row in rows:
        table.add_row(
            row.runner,
            row.setting,
            format_number(row.value),
            row.unit,
            "" if row.ratio is None else f"{row.ratio:.2f}×",
            "" if row.low is None or row.high is None else f"{row.low:.2f}–{row.high:.2f}",
            "" if row.tokens_per_second is None else format_number(row.tokens_per_second),
            "" if row.peak_fraction is None else f"{100 * row.peak_fraction:.0f} %",
            format_memory(row.peak_memory),
            style="bold" if row.library == REGARD else "",
        )
    return table


def _curve_table(rows: Sequence[Row]) -> Table:
    table = _new_table(rows[0].axis, "peer", "value", "unit", "ratio", "memory", "setting")
    for row in rows:
        table.add_row(
            f"{row.at:,.0f}",
            row.runner,
            format_number(row.value),
            row.unit,
            "" if row.ratio is None else f"{row.ratio:.2f}×",
            format_memory(row.peak_memory),
            row.setting,
        )
    return table


def _conclusions(rows: Sequence[Row]) -> list[str]:
    """Regard's best against the best of each library, or the growth at the end of Regard's curve."""
    regard_rows = [row for row in rows if row.library == REGARD]
    if not regard_rows:
        return []
    if rows[0].axis:
        return [f"  {describe_growth(regard_rows)}"] if len(regard_rows) > 1 else []
    best = regard_rows[0]
    return [f"  {best.runner} is {spread} {peer}" for peer, spread in best.peer_ratios.items()]


def describe_growth(points: Sequence[Row]) -> str:
    """Power of the axis with which a curve grows between its last two points.

    >>> values = ((10, 2.0), (20, 8.0))
    >>> describe_growth([Row("b", "regard", y, "s", peak_memory=100, axis="length", at=x) for x, y in values])
    'value grows as length^2.00, memory as length^0.00'
    """
    first, last = points[-2:]
    assert first.at is not None
    assert last.at is not None
    axis_growth = math.log(last.at / first.at)
    parts = [f"value grows as {last.axis}^{math.log(last.value / first.value) / axis_growth:.2f}"]
    if first.peak_memory and last.peak_memory:
        power = math.log(last.peak_memory / first.peak_memory) / axis_growth
        parts.append(f"memory as {last.axis}^{power:.2f}")
    return ", ".join(parts)


def format_number(value: float) -> str:
    """About three significant digits.

    >>> [format_number(value) for value in (12345.6, 123.45, 12.345, 1.2345, 0.012345)]
    ['12,346', '123', '12.3', '1.23', '0.0123']
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_memory(size: int | None) -> str:
    """Bytes in MB or GB.

    >>> format_memory(1_234_567_890), format_memory(None)
    ('1.23 GB', '')
    """
    if not size:
        return ""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _new_table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in TEXT_COLUMNS else "right", no_wrap=name != "setting")
    return table


def _render(table: Table) -> list[str]:
    from rich.console import Console

    output = StringIO()
    Console(file=output, width=WIDTH, color_system=None).print(table)
    return [f"  {line}".rstrip() for line in output.getvalue().splitlines()]
