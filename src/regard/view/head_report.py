"""What each head does on a corpus and what is lost without it: a table for terminals, TSV, JSON, and a page."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard.errors import UsageError, nearest
from regard.view.csp import csp_hash

Value = Callable[["HeadRow"], Any]
Column = tuple[str, Value, str]
SHOWN = 20  # rows of a table in a terminal
NONE = "–"
CHANGE = "change"  # the metric of encoders without a head
SHARES = ("special", "previous", "itself", "next", "same", "diagonal")


@dataclass(frozen=True)
class HeadRow:
    """What is known of one head."""

    site: str
    head: int
    name: str  # what it mostly does, in two words
    numbers: Mapping[str, float]  # entropy (bits), distance (tokens), shares of its attention
    importance: float | None = None  # by how much the metric is worse without it
    error: float | None = None  # standard error of that, where examples can be told apart
    alignment: float | None = None  # what its word links tell, in nats a word
    alignment_error: float | None = None  # share of wrong links, where the right ones are known, 0 to 1

    @property
    def label(self) -> str:
        """The head as `--off` takes it."""
        return f"{self.site}:{self.head}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        made: dict[str, Any] = {"head": self.label, "name": self.name, "importance": _short(self.importance)}
        made |= {"importance_error": _short(self.error)}
        made |= {name: round(value, 4) for name, value in self.numbers.items()}
        return {**made, "alignment": _short(self.alignment), "alignment_error": _short(self.alignment_error)}


@dataclass(frozen=True)
class HeadReport:
    """All heads of a model on a corpus, the most important first."""

    model: str
    data: str
    metric: str
    higher: bool  # whether more of the metric is better
    whole: float  # the metric with all heads
    unit: str  # what examples are called
    available: int  # examples of the corpus
    num_examples: int  # examples that the numbers of heads are means over
    sample: int  # examples that the metric was measured on
    seconds: float
    rows: tuple[HeadRow, ...]
    aligner: Mapping[str, Any] | None = None  # site, head, shift, score; errors where the right links are known

    @property
    def measured(self) -> int:
        """Heads that were switched off once; fewer than there are where time was up."""
        return sum(row.importance is not None for row in self.rows)

    def sorted_by(self, title: str) -> HeadReport:
        """Return the report with its rows in the order of a column: numbers the largest first, names from a to z."""
        _, value, form = find_column(title)
        known = [row for row in self.rows if value(row) is not None]
        missing = [row for row in self.rows if value(row) is None]
        return replace(self, rows=(*sorted(known, key=value, reverse=bool(form)), *missing))

    def importance(self, name: str) -> dict[str, Any] | None:
        """Return what a record's attention of this name says of importance: the metric, and [layers][heads].

        >>> rows = (HeadRow("encoder.1.self", 0, "broad", {}, 0.5), HeadRow("encoder.0.self", 0, "sharp", {}, 0.25))
        >>> HeadReport("m", "d", "loss", False, 1.0, "texts", 9, 9, 9, 1.0, rows).importance("encoder.self")
        {'metric': 'loss', 'by': [[0.25], [0.5]]}
        """
        by: dict[str, dict[int, float]] = {}
        for row in self.rows:
            plain = ".".join(part for part in row.site.split(".") if not part.isdigit())
            if plain == name and row.importance is not None:
                by.setdefault(row.site, {})[row.head] = row.importance
        ordered = sorted(by, key=lambda site: [int(part) for part in site.split(".") if part.isdigit()])
        table = [[by[site][head] for head in sorted(by[site])] for site in ordered]
        return {"metric": self.metric, "by": table} if table else None

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        made = {name: value for name, value in vars(self).items() if name not in ("rows", "aligner")}
        made |= {"whole": _short(self.whole), "seconds": round(self.seconds, 1), "measured": self.measured}
        return {**made, "best_aligning": self.aligner, "heads": [row.to_dict() for row in self.rows]}

    def summary(self) -> list[str]:
        """Say what was measured on what."""
        what = f"what {'is lost' if self.higher else 'is added'}: {self.metric} is {self.whole:.4g} with all heads"
        if self.metric == CHANGE:
            what = "how far vectors turn, 1 − cosine"
        done = (
            f"{self.measured} of {len(self.rows)} heads" if self.measured < len(self.rows) else f"{self.measured} heads"
        )
        lines = [
            f"{done} of {self.model} switched off one by one on {self.sample:,} of {self.available:,} {self.unit} "
            f"of {self.data}; importance is {what}",
            f"what they look at: means over {self.num_examples:,} {self.unit}; entropy in bits, distance in tokens, "
            "the others are shares of attention",
        ]
        if self.measured < len(self.rows):
            lines.append("time was up before the other heads: give more --minutes or a smaller --sample")
        if self.aligner:
            later = ", read one row later" if self.aligner["shift"] else ""
            known = ""
            if "error" in self.aligner:
                known = (
                    f"; alignment error {100 * self.aligner['error']:.1f} %, where the last layer's first head has "
                    f"{100 * self.aligner['last_first_error']:.1f} %"
                )
            lines.append(
                f"best aligning head: {self.aligner['site']}:{self.aligner['head']}{later}, "
                f"{self.aligner['score']:.2f} nats a word{known}"
            )
        return lines

    def columns(self) -> list[Column]:
        """Return the columns that have something to tell: title, value of a row, and how it is written."""
        return [one for one in COLUMNS if any(one[1](row) is not None for row in self.rows)]

    def table(self, most: int = 0) -> list[list[str]]:
        """Return the rows as texts under their titles; the first so many."""
        columns = self.columns()
        rows = self.rows[:most] if most else self.rows
        return [[title for title, _, _ in columns], *([_cell(row, one) for one in columns] for row in rows)]

    def lines(self, shown: Callable[[Sequence[Sequence[str]]], list[str]], most: int = SHOWN) -> list[str]:
        """Return the report for a terminal; `shown` aligns a table."""
        rest = len(self.rows) - most
        more = [f"… and {rest} more heads: --all shows them, --out writes them"] if rest > 0 and most else []
        return [*self.summary(), "", *shown(self.table(most)), *more]

    def tsv(self) -> Iterable[str]:
        """Return the report as lines of tab-separated values."""
        return ("\t".join(row) for row in self.table())

    def page(self) -> str:
        """Return the report as one self-contained page, whose table is sorted by a click on a title."""
        title = html.escape(f"Heads of {self.model}")
        policy = f"default-src 'none'; style-src 'sha256-{csp_hash(_STYLE)}'; script-src 'sha256-{csp_hash(_SCRIPT)}'"
        heads = "".join(
            f'<th scope="col"{_NUMBER if form else ""} aria-sort="{"descending" if name == "importance" else "none"}">'
            f'<button type="button">{html.escape(name)}</button></th>'
            for name, _, form in self.columns()
        )
        largest = max((abs(row.importance) for row in self.rows if row.importance is not None), default=0.0)
        rows = "\n".join(f"<tr>{''.join(self._cells(row, largest))}</tr>" for row in self.rows)
        told = "".join(f"<p>{html.escape(line)}</p>" for line in self.summary())
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
            f"<style>{_STYLE}</style></head><body><h1>{title}</h1>{told}"
            f"<p>A click on a title sorts. Where a head looks is not why the model says what it says: importance is "
            f"what changes without it.</p>"
            f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
            f"<script>{_SCRIPT}</script></body></html>"
        )

    def _cells(self, row: HeadRow, largest: float) -> Iterable[str]:
        for name, value, form in self.columns():
            found, text = value(row), html.escape(_cell(row, (name, value, form)))
            sort = html.escape(str(found if found is not None else ""), quote=True)
            kind = _NUMBER if form else ""
            if name == "importance" and found is not None and largest:
                meter = f'<meter value="{max(found, 0.0) / largest:.4f}"></meter> '
                yield f'<td{kind} data-value="{sort}">{meter}{text}</td>'
            else:
                yield f'<td{kind} data-value="{sort}">{text}</td>'


_NUMBER = ' class="number"'


def _number(name: str) -> Value:
    return lambda row: row.numbers.get(name)


COLUMNS: tuple[Column, ...] = (  # title, value of a row, and how it is written
    ("head", lambda row: row.label, ""),
    ("does", lambda row: row.name, ""),
    ("importance", lambda row: row.importance, "+.4f"),
    ("±", lambda row: row.error, ".4f"),
    ("entropy", _number("entropy"), ".2f"),
    ("distance", _number("distance"), ".1f"),
    *((name, _number(name), ".2f") for name in SHARES),
    ("aligns", lambda row: row.alignment, ".2f"),
    ("errors", lambda row: row.alignment_error, ".3f"),
)


def find_column(title: str) -> Column:
    """Return the column of a title."""
    titles = [name for name, _, _ in COLUMNS]
    if title not in titles:
        raise UsageError(f"no column {title!r}{nearest(title, titles)}: there are {', '.join(titles)}")
    return COLUMNS[titles.index(title)]


def _cell(row: HeadRow, shown: Column) -> str:
    _, value, form = shown
    found = value(row)
    return NONE if found is None else f"{found:{form}}"


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


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
