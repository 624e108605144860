"""The outcome of checking a claim: every score, every expectation, and a one-sentence verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any


@dataclass(frozen=True)
class ExpectationResult:
    """One expectation and its observed value."""

    expectation: str
    value: float  # from the means over seeds
    margin: float  # distance from the bound
    holds: bool
    seeds_holding: int  # seeds with which it holds by themselves
    num_seeds: int

    def describe(self) -> str:
        """Describe the outcome in one line.

        >>> outcome = ExpectationResult("plain < 20", 3.0, margin=17.0, holds=True, seeds_holding=1, num_seeds=2)
        >>> outcome.describe()
        'plain < 20: found 3, holds by 17 (1 of 2 seeds alone)'
        """
        seeds = ""
        if 0 < self.seeds_holding < self.num_seeds:
            seeds = f" ({self.seeds_holding} of {self.num_seeds} seeds alone)"
        verb = "holds" if self.holds else "fails"
        return f"{self.expectation}: found {self.value:.3g}, {verb} by {self.margin:.3g}{seeds}"

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {
            "expected": self.expectation,
            "value": self.value,
            "margin": self.margin,
            "holds": self.holds,
            "alone": self.seeds_holding,
            "seeds": self.num_seeds,
        }


@dataclass(frozen=True)
class ClaimResult:
    """Whether a claim holds here, and by how much."""

    claim: str
    said_by: str
    about: str
    unit: str
    scores: Mapping[str, Sequence[float]]  # model → one score per seed
    seeds: Sequence[int]
    outcomes: Sequence[ExpectationResult]

    @property
    def holds(self) -> bool:
        """Whether every expectation holds."""
        return all(outcome.holds for outcome in self.outcomes)

    def verdict(self) -> str:
        """Summarise the outcome in one sentence.

        >>> outcome = ExpectationResult("a < 2", 1.0, margin=1.0, holds=True, seeds_holding=1, num_seeds=1)
        >>> ClaimResult("c", "", about="", unit="%", scores={"a": [1.0]}, seeds=[1], outcomes=[outcome]).verdict()
        'holds here: a < 2: found 1, holds by 1'
        """
        outcomes = "; ".join(outcome.describe() for outcome in self.outcomes)
        return f"{'holds' if self.holds else 'does not hold'} here: {outcomes}"

    def table(self) -> list[list[str]]:
        """Tabulate the scores: a header, then one row per model."""
        header = ["model", *(f"seed {seed}" for seed in self.seeds), f"mean ({self.unit})"]
        rows = [
            [name, *(f"{score:.4g}" for score in scores), f"{mean(scores):.4g}"] for name, scores in self.scores.items()
        ]
        return [header, *rows]

    def markdown(self) -> str:
        """Format the whole result as Markdown."""
        header, *rows = self.table()
        alignment = ["---"] + ["---:"] * (len(header) - 1)
        table = [f"| {' | '.join(row)} |" for row in (header, alignment, *rows)]
        source = [f"Said by: {self.said_by}", ""] if self.said_by else []
        return "\n".join([f"# {self.claim}", "", f"**{self.verdict()}**", "", *source, self.about, "", *table, ""])

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {
            "claim": self.claim,
            "said_by": self.said_by,
            "holds": self.holds,
            "verdict": self.verdict(),
            "unit": self.unit,
            "seeds": list(self.seeds),
            "measured": {name: list(scores) for name, scores in self.scores.items()},
            "found": [outcome.to_dict() for outcome in self.outcomes],
        }
