"""A claim that can be checked: models that differ in one thing, data to train them on, and what should come out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.config.knob import Config, knob
from regard.errors import ConfigError, nearest

MEASURES = {
    "exact_match": "% exactly right",
    "bleu_lowercase": "BLEU, lower-cased",
    "error": "% wrong answers",
    "heads_apart": "mean distance between heads of a layer, 0–1",
    "minutes_to_bleu": "minutes to the validation BLEU asked for",
}
_SHAPE = re.compile(r"(\w+)(?:\s*([-/])\s*(\w+))?\s*(<=|>=|<|>)\s*(-?\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Expectation:
    """What a claim says of the measures: one model's, or two models' difference or quotient, beside a number."""

    text: str
    left: str
    joint: str  # "", "-" or "/"
    right: str
    relation: str
    bound: float

    @classmethod
    def parsed(cls, text: str) -> Expectation:
        """Return what a text such as `attending - plain >= 30` says.

        >>> Expectation.parsed("plain < 20").holds(Expectation.parsed("plain < 20").value({"plain": 3.0}))
        True
        """
        found = _SHAPE.fullmatch(text.strip())
        if not found:
            raise ConfigError(f"expect: {text!r} must be like 'plain < 20' or 'attending - plain >= 30'")
        left, joint, right, relation, bound = found.groups()
        return cls(text.strip(), left, joint or "", right or "", relation, float(bound))

    def value(self, measured: Mapping[str, float]) -> float:
        """Return what stands left of the relation."""
        left, right = measured[self.left], measured.get(self.right, 0.0)
        if self.joint == "/":
            return left / right if right else float("inf")
        return left - right

    def holds(self, value: float) -> bool:
        """Return whether the value is as expected."""
        return {
            "<": value < self.bound,
            "<=": value <= self.bound,
            ">": value > self.bound,
            ">=": value >= self.bound,
        }[self.relation]


@dataclass(frozen=True, kw_only=True)
class ClaimConfig(Config):
    """A claim; `regard claim FILE` reads it as JSON."""

    claim: str = knob("", "what is said, in one sentence")
    said_by: str = knob("", "who says so, and where")
    about: str = knob("", "what is done here to check it")
    measure: str = knob("exact_match", "what is measured on test data", choices=tuple(MEASURES))
    bleu: float = knob(0.0, "with minutes_to_bleu: the validation BLEU to reach", low=0)
    expect: tuple[str, ...] = knob((), "what should come out: 'plain < 20', 'attending - plain >= 30'")
    models: dict[str, Any] = knob(dict, "the models by name, each with settings of its run")
    settings: dict[str, Any] = knob(dict, "settings that all runs share")
    seeds: tuple[int, ...] = knob((1, 2), "every model is trained once with each")
    make: dict[str, Any] = knob(dict, "made data: kind, count, tested, lengths; without it files are given")

    def check(self) -> None:
        for name, value in (("models", self.models), ("settings", self.settings), ("make", self.make)):
            if not isinstance(value, dict):
                raise ConfigError(f"{name} must be an object of names and values")
        if not (self.claim and self.models and self.expect and self.seeds):
            raise ConfigError("a claim needs claim, models, expect and seeds")
        for wish in self.expectations:
            for name in filter(None, (wish.left, wish.right)):
                if name not in self.models:
                    close = nearest(name, self.models)
                    raise ConfigError(f"expect: {wish.text!r} names {name!r}, which is no model here{close}")

    @property
    def expectations(self) -> list[Expectation]:
        """What should come out."""
        return [Expectation.parsed(text) for text in self.expect]
