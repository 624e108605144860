"""Report on coreference links of heads: as table, TSV, JSON and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict

from regard.interpret.sortable_page import Column, HeadTable, HeadTableRow, sortable_page
from regard.tasks.significance import ScoreInterval


class LinkRowDict(TypedDict):
    """JSON form of a `LinkRow`."""

    head: str  # as `--ablate` takes it: encoder.3.self:2
    accuracy: float  # percent of the sentences
    low: float  # of its 95 % interval, by bootstrap over pairs
    high: float
    both: float | None  # percent of the pairs with both sentences right; null without pairs
    nearest: float  # percent of the sentences in which the head prefers the nearest noun
    weight: float  # mean attention from the pronoun to both nouns


class ChosenHeadDict(TypedDict):
    """JSON form of a `ChosenHead`."""

    heads: list[str]  # the best head of each half of the scenarios or pairs
    chosen_accuracy: float  # percent on the halves that they were chosen on
    accuracy: float  # percent on the other halves
    low: float  # of its 95 % interval, by bootstrap over pairs
    high: float
    both: float | None  # percent of the pairs with both sentences right; null without pairs
    p_value: float  # of no difference from the nearest noun
    beats_baseline: bool


class BaselineDict(TypedDict):
    """JSON form of the baseline."""

    accuracy: float  # percent of the sentences whose nearest noun is right
    low: float
    high: float


class LinkReportDict(TypedDict):
    """JSON form of a `LinkReport`."""

    model: str
    data: str
    backend: str  # what computed the attention, and in which precision
    sentences: int
    pairs: int  # of sentences that differ in one word
    scenarios: int  # that the halves consist of; 0: of pairs
    left_out: int  # sentences whose antecedent a model that reads from left to right cannot know
    nearest_noun: BaselineDict
    chosen: ChosenHeadDict
    heads: list[LinkRowDict]  # the best first


@dataclass(frozen=True)
class LinkRow(HeadTableRow):
    """How often one head attends more to the antecedent than to the other noun."""

    accuracy: float  # percent of the sentences
    low: float
    high: float
    both: float | None
    nearest: float
    weight: float

    def to_dict(self) -> LinkRowDict:
        """Convert to plain values."""
        return {
            "head": self.label,
            "accuracy": round(self.accuracy, 3),
            "low": round(self.low, 3),
            "high": round(self.high, 3),
            "both": None if self.both is None else round(self.both, 3),
            "nearest": round(self.nearest, 3),
            "weight": round(self.weight, 5),
        }


@dataclass(frozen=True)
class ChosenHead:
    """The best head of each half of the scenarios or pairs, scored on the other half."""

    heads: tuple[str, str]
    chosen_accuracy: float
    accuracy: float
    low: float
    high: float
    both: float | None
    p_value: float
    beats_baseline: bool

    def to_dict(self) -> ChosenHeadDict:
        """Convert to plain values."""
        return {
            "heads": [*self.heads],
            "chosen_accuracy": round(self.chosen_accuracy, 3),
            "accuracy": round(self.accuracy, 3),
            "low": round(self.low, 3),
            "high": round(self.high, 3),
            "both": None if self.both is None else round(self.both, 3),
            "p_value": round(self.p_value, 6),
            "beats_baseline": self.beats_baseline,
        }


COLUMNS: tuple[Column[LinkRow], ...] = (  # title, value of a row, number format
    ("head", lambda row: row.label, ""),
    ("accuracy", lambda row: row.accuracy, ".1f"),
    ("low", lambda row: row.low, ".1f"),
    ("high", lambda row: row.high, ".1f"),
    ("both", lambda row: row.both, ".1f"),
    ("nearest", lambda row: row.nearest, ".1f"),
    ("weight", lambda row: row.weight, ".3f"),
)


@dataclass(frozen=True)
class LinkReport(HeadTable[LinkRow]):
    """All heads of a model on sentences with a pronoun, the best first."""

    all_columns: ClassVar[Sequence[Column[LinkRow]]] = COLUMNS
    model: str
    data: str
    backend: str
    num_sentences: int
    num_pairs: int
    num_scenarios: int  # that the halves consist of; 0: of pairs
    num_left_out: int
    baseline: ScoreInterval  # of the nearest noun
    chosen: ChosenHead
    rows: tuple[LinkRow, ...]

    def to_dict(self) -> LinkReportDict:
        """Convert to plain values."""
        return {
            "model": self.model,
            "data": self.data,
            "backend": self.backend,
            "sentences": self.num_sentences,
            "pairs": self.num_pairs,
            "scenarios": self.num_scenarios,
            "left_out": self.num_left_out,
            "nearest_noun": {
                "accuracy": round(self.baseline.mean, 3),
                "low": round(self.baseline.low, 3),
                "high": round(self.baseline.high, 3),
            },
            "chosen": self.chosen.to_dict(),
            "heads": [row.to_dict() for row in self.rows],
        }

    def summary(self) -> list[str]:
        """Describe what was measured, and whether a head beats the nearest noun."""
        chosen = self.chosen
        names = " and ".join(dict.fromkeys(chosen.heads))
        units = f"{self.num_scenarios} scenarios" if self.num_scenarios else "pairs"
        verdict = "better" if chosen.beats_baseline else "not significantly better"
        lines = [
            f"{len(self.rows)} heads of {self.model} on {self.num_sentences:,} sentences of {self.data} "
            f"({self.num_pairs:,} pairs)",
            "accuracy: how often the pronoun attends more to the right noun than to the wrong one, in percent, and its "
            "95 % interval; both: pairs with both sentences right; nearest: how often the nearest noun gets more; "
            "weight: mean attention to both nouns",
            f"nearest noun: {self.baseline.mean:.1f} % right",
            f"best head, chosen on one half of the {units} and scored on the other: {chosen.accuracy:.1f} % "
            f"({chosen.low:.1f} to {chosen.high:.1f}), where it was chosen {chosen.chosen_accuracy:.1f} % ({names}): "
            f"{verdict} than the nearest noun (p = {chosen.p_value:.2g})",
        ]
        if self.num_left_out:
            lines.append(
                f"{self.num_left_out:,} sentences are left out: the model reads from left to right, and in these the "
                "nouns or the deciding word follow the pronoun"
            )
        return lines

    def page(self) -> str:
        """A self-contained page with a table that sorts by a click on a title."""
        paragraphs = [*self.summary(), "A click on a title sorts."]
        return sortable_page(
            f"Coreference links of {self.model}", paragraphs, self.columns(), self.rows, sorted_by="accuracy"
        )
