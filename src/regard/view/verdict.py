"""What came of a claim: the measures, what was expected of them, and a sentence that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any


@dataclass(frozen=True)
class Found:
    """One expectation and what was found instead."""

    expected: str
    value: float  # of the means over seeds
    margin: float  # its distance from the bound
    holds: bool
    alone: int  # seeds with which it holds by themselves
    seeds: int

    def text(self) -> str:
        """Say it in a line.

        >>> Found("plain < 20", 3.0, 17.0, True, 1, 2).text()
        'plain < 20: found 3, holds by 17 (1 of 2 seeds alone)'
        """
        alone = f" ({self.alone} of {self.seeds} seeds alone)" if 0 < self.alone < self.seeds else ""
        how = "holds" if self.holds else "fails"
        return f"{self.expected}: found {self.value:.3g}, {how} by {self.margin:.3g}{alone}"


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds here, and by how much."""

    claim: str
    said_by: str
    about: str
    unit: str
    measured: Mapping[str, Sequence[float]]  # model → one number a seed
    seeds: Sequence[int]
    found: Sequence[Found]

    @property
    def holds(self) -> bool:
        """Whether everything came out as expected."""
        return all(one.holds for one in self.found)

    def sentence(self) -> str:
        """Return the verdict in a sentence.

        >>> Verdict("c", "", "", "%", {"a": [1.0]}, [1], [Found("a < 2", 1.0, 1.0, True, 1, 1)]).sentence()
        'holds here: a < 2: found 1, holds by 1'
        """
        return f"{'holds' if self.holds else 'does not hold'} here: {'; '.join(one.text() for one in self.found)}"

    def table(self) -> list[list[str]]:
        """Return the measures, a row for each model, the head first."""
        head = ["model", *(f"seed {seed}" for seed in self.seeds), f"mean ({self.unit})"]
        rows = [[name, *(f"{one:.4g}" for one in some), f"{mean(some):.4g}"] for name, some in self.measured.items()]
        return [head, *rows]

    def markdown(self) -> str:
        """Return the whole as Markdown."""
        head, *rows = self.table()
        shown = [f"| {' | '.join(row)} |" for row in (head, ["---"] + ["---:"] * (len(head) - 1), *rows)]
        said = [f"Said by: {self.said_by}", ""] if self.said_by else []
        return "\n".join([f"# {self.claim}", "", f"**{self.sentence()}**", "", *said, self.about, "", *shown, ""])

    def to_dict(self) -> dict[str, Any]:
        """Return the whole as plain values."""
        return {
            "claim": self.claim,
            "said_by": self.said_by,
            "holds": self.holds,
            "verdict": self.sentence(),
            "unit": self.unit,
            "seeds": list(self.seeds),
            "measured": {name: list(some) for name, some in self.measured.items()},
            "found": [asdict(one) for one in self.found],
        }
