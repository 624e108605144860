"""A claim as a recipe file states it: the models to compare, their data, the metric and the expected outcome."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.config.settings import Config, knob
from regard.errors import ConfigError, nearest

METRICS = {  # metric → its unit, as results print it
    "exact_match": "% exactly right",
    "bleu_lowercase": "BLEU, lower-cased",
    "error": "% wrong answers",
    "heads_apart": "mean distance between heads of a layer, 0–1",
    "minutes_to_bleu": "minutes to the validation BLEU asked for",
}
_EXPECTATION = re.compile(r"(\w+)(?:\s*([-/])\s*(\w+))?\s*(<=|>=|<|>)\s*(-?\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Expectation:
    """A bound on the metric of one model, or on the difference or ratio of two models' metrics."""

    text: str
    model: str
    operator: str  # "", "-" or "/"
    other_model: str  # empty without an operator
    relation: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Expectation:
        """Parse an expectation such as `attending - plain >= 30`.

        >>> expectation = Expectation.parse("plain < 20")
        >>> expectation.holds(expectation.evaluate({"plain": 3.0}))
        True
        """
        match = _EXPECTATION.fullmatch(text.strip())
        if not match:
            raise ConfigError(f"expect: {text!r} must be like 'plain < 20' or 'attending - plain >= 30'")
        model, operator, other_model, relation, bound = match.groups()
        return cls(
            text.strip(),
            model,
            operator=operator or "",
            other_model=other_model or "",
            relation=relation,
            bound=float(bound),
        )

    def evaluate(self, scores: Mapping[str, float]) -> float:
        """Compute the side left of the relation from each model's score."""
        score = scores[self.model]
        other_score = scores.get(self.other_model, 0.0)
        if self.operator == "/":
            return score / other_score if other_score else float("inf")
        return score - other_score

    def holds(self, value: float) -> bool:
        """Whether a value satisfies the bound."""
        return {
            "<": value < self.bound,
            "<=": value <= self.bound,
            ">": value > self.bound,
            ">=": value >= self.bound,
        }[self.relation]


@dataclass(frozen=True, kw_only=True)
class ClaimConfig(Config):
    """A claim, as read from its JSON file."""

    claim: str = knob("", "the claim in one sentence")
    said_by: str = knob("", "who makes it, and where")
    about: str = knob("", "how it is checked here")
    measure: str = knob("exact_match", "metric on the test data", choices=tuple(METRICS))
    bleu: float = knob(0.0, "with minutes_to_bleu: the validation BLEU to reach", low=0)
    expect: tuple[str, ...] = knob((), "expected outcomes: 'plain < 20', 'attending - plain >= 30'")
    models: dict[str, Any] = knob(dict, "the models by name, each with the settings of its run")
    settings: dict[str, Any] = knob(dict, "settings that all runs share")
    seeds: tuple[int, ...] = knob((1, 2), "every model is trained once with each seed")
    make: dict[str, Any] = knob(dict, "synthetic data: kind, count, tested, lengths; empty: files are needed")

    def check(self) -> None:
        """Reject an incomplete claim and expectations of unknown models."""
        for name in ("models", "settings", "make"):
            if not isinstance(getattr(self, name), dict):
                raise ConfigError(f"{name} must be an object of names and values")
        if not (self.claim and self.models and self.expect and self.seeds):
            raise ConfigError("a claim needs claim, models, expect and seeds")
        for expectation in self.expectations:
            for name in filter(None, (expectation.model, expectation.other_model)):
                if name not in self.models:
                    suggestion = nearest(name, self.models)
                    raise ConfigError(
                        f"expect: {expectation.text!r} names {name!r}, which is no model here{suggestion}"
                    )

    @property
    def expectations(self) -> list[Expectation]:
        """The expected outcomes, parsed."""
        return [Expectation.parse(text) for text in self.expect]
