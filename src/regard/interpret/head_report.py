"""Report on the heads of a model: what each attends to, and its importance; as table, TSV, JSON and page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NotRequired, TypedDict

from regard.errors import UsageError, nearest
from regard.formatting import round_digits
from regard.interpret.sortable_page import Column, HeadTable, HeadTableRow, sortable_page

Value = Callable[["HeadRow"], Any]
CHANGE = "change"  # metric of encoders without a task head
ATTENTION_SHARES = ("special", "previous", "itself", "next", "same", "diagonal")


class HeadDict(TypedDict):
    """JSON form of a `HeadRow`."""

    head: str  # as `--ablate` takes it: encoder.3.self:2
    pattern: str  # what most of its attention is on
    importance: float | None  # how much worse the metric is without it; null where time ran out
    importance_error: float | None  # its standard error, where the metric is a mean over examples
    numbers: dict[str, float]  # entropy (bits), distance (tokens), fractions of its attention
    alignment: float | None  # information of its word alignment, in nats per word
    alignment_error: float | None  # alignment error rate, where references are known


class AlignmentHeadDict(TypedDict):
    """The head with the best word alignment."""

    site: str
    head: int
    shift: int  # rows by which it is read later
    score: float  # nats per word
    error: NotRequired[float]  # alignment error rate, where references are known
    last_first: NotRequired[str]  # first head of the last layer, for comparison
    last_first_error: NotRequired[float]


class HeadReportDict(TypedDict):
    """JSON form of a `HeadReport`."""

    model: str
    data: str
    metric: str
    higher: bool  # whether a higher metric is better
    whole: float | None  # the metric with all heads
    unit: str  # noun for examples
    available: int  # examples of the corpus
    num_examples: int  # examples that statistics are means over
    sample: int  # examples that the metric was computed on
    measured: int  # heads that were ablated
    seconds: float
    alignment_head: AlignmentHeadDict | None
    heads: list[HeadDict]  # the most important first


@dataclass(frozen=True)
class HeadRow(HeadTableRow):
    """Statistics and importance of one head."""

    name: str  # its main pattern
    numbers: Mapping[str, float]  # entropy (bits), distance (tokens), fractions of its attention
    importance: float | None = None  # how much worse the metric is without it
    error: float | None = None  # its standard error, where the metric is a mean over examples
    alignment: float | None = None  # information of its word alignment, in nats per word
    alignment_error: float | None = None  # alignment error rate, where references are known

    def to_dict(self) -> HeadDict:
        """Convert to plain values."""
        return {
            "head": self.label,
            "pattern": self.name,
            "importance": _round(self.importance),
            "importance_error": _round(self.error),
            "numbers": {name: round(value, 4) for name, value in self.numbers.items()},
            "alignment": _round(self.alignment),
            "alignment_error": _round(self.alignment_error),
        }


def _statistic(name: str) -> Value:
    return lambda row: row.numbers.get(name)


COLUMNS: tuple[Column[HeadRow], ...] = (  # title, value of a row, number format
    ("head", lambda row: row.label, ""),
    ("pattern", lambda row: row.name, ""),
    ("importance", lambda row: row.importance, "+.4f"),
    ("±", lambda row: row.error, ".4f"),
    ("entropy", _statistic("entropy"), ".2f"),
    ("distance", _statistic("distance"), ".1f"),
    *((name, _statistic(name), ".2f") for name in ATTENTION_SHARES),
    ("alignment", lambda row: row.alignment, ".2f"),
    ("AER", lambda row: row.alignment_error, ".3f"),
)


@dataclass(frozen=True)
class HeadReport(HeadTable[HeadRow]):
    """All heads of a model on a corpus, the most important first."""

    all_columns: ClassVar[Sequence[Column[HeadRow]]] = COLUMNS
    model: str
    data: str
    metric: str
    higher: bool  # whether a higher metric is better
    whole: float  # the metric with all heads
    unit: str  # noun for examples
    available: int  # examples of the corpus
    num_examples: int  # examples that statistics are means over
    sample: int  # examples that the metric was computed on
    seconds: float
    rows: tuple[HeadRow, ...]
    alignment_head: AlignmentHeadDict | None = None  # site, head, shift, score; errors where references are known

    @property
    def measured(self) -> int:
        """Number of heads that were ablated; fewer than there are where time ran out."""
        return sum(row.importance is not None for row in self.rows)

    def sorted_by(self, title: str) -> HeadReport:
        """Sort the rows by a column: numbers in descending, names in ascending order."""
        _, get_value, number_format = find_column(title)
        present = [row for row in self.rows if get_value(row) is not None]
        missing = [row for row in self.rows if get_value(row) is None]
        present.sort(key=get_value, reverse=bool(number_format))
        return replace(self, rows=(*present, *missing))

    def importance(self, name: str) -> dict[str, Any] | None:
        """Importance for a record's attention of this name: the metric, and values by layer and head.

        >>> rows = (HeadRow("encoder.1.self", 0, "broad", {}, 0.5), HeadRow("encoder.0.self", 0, "peaked", {}, 0.25))
        >>> HeadReport("m", "d", "loss", False, 1.0, "texts", 9, 9, 9, 1.0, rows).importance("encoder.self")
        {'metric': 'loss', 'values': [[0.25], [0.5]]}
        """
        importances: dict[str, dict[int, float]] = {}  # by site and head
        for row in self.rows:
            site_kind = ".".join(part for part in row.site.split(".") if not part.isdigit())
            if site_kind == name and row.importance is not None:
                importances.setdefault(row.site, {})[row.head] = row.importance
        sites = sorted(importances, key=lambda site: [int(part) for part in site.split(".") if part.isdigit()])
        table = [[importances[site][head] for head in sorted(importances[site])] for site in sites]
        return {"metric": self.metric, "values": table} if table else None

    def to_dict(self) -> HeadReportDict:
        """Convert to plain values."""
        return {
            "model": self.model,
            "data": self.data,
            "metric": self.metric,
            "higher": self.higher,
            "whole": _round(self.whole),
            "unit": self.unit,
            "available": self.available,
            "num_examples": self.num_examples,
            "sample": self.sample,
            "measured": self.measured,
            "seconds": round(self.seconds, 1),
            "alignment_head": self.alignment_head,
            "heads": [row.to_dict() for row in self.rows],
        }

    def summary(self) -> list[str]:
        """Describe what was measured, on which examples."""
        change = "falls" if self.higher else "rises"
        importance = f"how much {self.metric} {change} without the head ({self.whole:.4g} with all heads)"
        if self.metric == CHANGE:
            importance = "the change of the embeddings, 1 − cosine similarity"
        is_partial = self.measured < len(self.rows)
        heads = f"{self.measured} of {len(self.rows)} heads" if is_partial else f"{self.measured} heads"
        lines = [
            f"{heads} of {self.model} ablated one by one on {self.sample:,} of {self.available:,} {self.unit} "
            f"of {self.data}",
            f"importance: {importance}, with its standard error",
            f"attention: means over {self.num_examples:,} {self.unit}; entropy in bits, distance in tokens, the others "
            "are shares of the attention weight",
        ]
        if is_partial:
            lines.append(
                "the time limit ended the measurement before the other heads: set --minutes higher or --sample lower"
            )
        best = self.alignment_head
        if best:
            shift = ", read one row later" if best["shift"] else ""
            errors = ""
            if "error" in best:
                errors = (
                    f"; alignment error {100 * best['error']:.1f} %, where the last layer's first head has "
                    f"{100 * best['last_first_error']:.1f} %"
                )
            lines.append(
                f"best alignment head: {best['site']}:{best['head']}{shift}, {best['score']:.2f} nats per word{errors}"
            )
        return lines

    def page(self) -> str:
        """A self-contained page with a table that sorts by a click on a title."""
        paragraphs = [
            *self.summary(),
            "A click on a title sorts. Attention is not an explanation of a prediction: importance is what changes "
            "without the head.",
        ]
        return sortable_page(f"Heads of {self.model}", paragraphs, self.columns(), self.rows, sorted_by="importance")


def find_column(title: str) -> Column[HeadRow]:
    """Look up a column by its title."""
    titles = [name for name, _, _ in COLUMNS]
    if title not in titles:
        raise UsageError(f"no column {title!r}{nearest(title, titles)}: it is one of {', '.join(titles)}")
    return COLUMNS[titles.index(title)]


def _round(value: float | None) -> float | None:
    return None if value is None else round_digits(value)
