"""Tables of heads: formatted cells, and a self-contained page that sorts by a click on a title."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from regard.view.csp import csp_hash

Row = TypeVar("Row")
Column = tuple[str, Callable[[Row], Any], str]  # title, value of a row, number format; without one, a text
MISSING = "–"
_NUMBER_CLASS = ' class="number"'


@dataclass(frozen=True)
class HeadTableRow:
    """Base of the rows of a report: one head of an attention site."""

    site: str
    head: int

    @property
    def label(self) -> str:
        """The head as `--ablate` takes it: `encoder.3.self:2`."""
        return f"{self.site}:{self.head}"


class HeadTable(Generic[Row]):
    """A report with a row for each head."""

    all_columns: ClassVar[Sequence[Column[Any]]]
    rows: tuple[Row, ...]

    def summary(self) -> list[str]:
        """Describe what was measured."""
        raise NotImplementedError

    def columns(self) -> list[Column[Row]]:
        """Columns that have a value in any row."""
        return [column for column in self.all_columns if any(column[1](row) is not None for row in self.rows)]

    def table(self, most: int = 0) -> list[list[str]]:
        """Titles and formatted rows, at most `most` of them; 0: all."""
        return format_table(self.columns(), self.rows[:most] if most else self.rows)

    def lines(self, shown: Callable[[Sequence[Sequence[str]]], list[str]], most: int = 0) -> list[str]:
        """Lines for a terminal; `shown` aligns a table."""
        lines = [*self.summary(), "", *shown(self.table(most))]
        num_hidden = len(self.rows) - most
        if num_hidden > 0 and most:
            lines.append(f"… and {num_hidden} more heads: --all shows them, --out writes them")
        return lines

    def tsv(self) -> Iterable[str]:
        """Lines of tab-separated values."""
        return ("\t".join(row) for row in self.table())


def format_cell(row: Row, column: Column[Row]) -> str:
    """Value of a column as text; a dash where there is none."""
    _, get_value, number_format = column
    value = get_value(row)
    return MISSING if value is None else f"{value:{number_format}}"


def format_table(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> list[list[str]]:
    """Titles and formatted rows.

    >>> format_table([("head", str, ""), ("square", lambda row: row * row, ".1f")], [2, 3])
    [['head', 'square'], ['2', '4.0'], ['3', '9.0']]
    """
    return [[title for title, _, _ in columns], *([format_cell(row, column) for column in columns] for row in rows)]


def sortable_page(
    title: str, paragraphs: Sequence[str], columns: Sequence[Column[Row]], rows: Sequence[Row], *, sorted_by: str
) -> str:
    """A page with a table, whose cells of the column `sorted_by` have bars."""
    policy = f"default-src 'none'; style-src 'sha256-{csp_hash(_STYLE)}'; script-src 'sha256-{csp_hash(_SCRIPT)}'"
    titles = "".join(_render_title(column, sorted_by) for column in columns)
    sorted_values = [get_value(row) for name, get_value, _ in columns if name == sorted_by for row in rows]
    largest = max((abs(value) for value in sorted_values if value is not None), default=0.0)
    body = "\n".join(f"<tr>{''.join(_cells(row, columns, sorted_by, largest))}</tr>" for row in rows)
    summary = "".join(f"<p>{html.escape(line)}</p>" for line in paragraphs)
    heading = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><title>{heading}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{heading}</h1>{summary}"
        f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
        f"<script>{_SCRIPT}</script></body></html>"
    )


def _cells(row: Row, columns: Sequence[Column[Row]], sorted_by: str, largest: float) -> Iterator[str]:
    for column in columns:
        name, get_value, number_format = column
        value = get_value(row)
        text = html.escape(format_cell(row, column))
        sort_key = html.escape(str(value if value is not None else ""), quote=True)
        css_class = _NUMBER_CLASS if number_format else ""
        meter = ""
        if name == sorted_by and value is not None and largest:
            meter = f'<meter value="{max(value, 0.0) / largest:.4f}"></meter> '
        yield f'<td{css_class} data-value="{sort_key}">{meter}{text}</td>'


def _render_title(column: Column[Any], sorted_by: str) -> str:
    name, _, number_format = column
    css_class = _NUMBER_CLASS if number_format else ""
    order = "descending" if name == sorted_by else "none"
    button = f'<button type="button">{html.escape(name)}</button>'
    return f'<th scope="col"{css_class} aria-sort="{order}">{button}</th>'


_STYLE = """
:root { color-scheme: light dark; }
body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } p { color: GrayText; max-width: 55rem; margin: .4rem 0; }
table { border-collapse: collapse; margin-top: 1.2rem; width: 100%; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid #8884; white-space: nowrap; }
thead th { position: sticky; top: 0; background: Canvas; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
th.number { text-align: right; } meter { width: 5rem; }
meter::-webkit-meter-optimum-value { background: #0072b2; } meter::-moz-meter-bar { background: #0072b2; }
th button { font: inherit; font-weight: 600; border: 0; background: none; padding: 0; cursor: pointer; color: inherit; }
th[aria-sort="descending"] button::after { content: " ▾" / ""; }
th[aria-sort="ascending"] button::after { content: " ▴" / ""; }
"""
_SCRIPT = """
"use strict";
const body = document.querySelector("tbody"), titles = [...document.querySelectorAll("th")];
titles.forEach((title, column) => title.firstChild.addEventListener("click", () => {
  const down = title.getAttribute("aria-sort") !== "descending";
  for (const other of titles) other.setAttribute("aria-sort", "none");
  title.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = row => row.cells[column].dataset.value;
  const compare = (one, two) => {
    if (key(one) === "" || key(two) === "") return (key(one) === "") - (key(two) === "");
    const words = isNaN(key(one));
    const order = words ? key(one).localeCompare(key(two), undefined, { numeric: true }) : key(one) - key(two);
    return down ? -order : order;
  };
  body.append(...[...body.rows].sort(compare));
}));
"""
