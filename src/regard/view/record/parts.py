"""What a record holds beside texts and weights: steps, verdicts, attributions, places, the inside of a head, cuts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.errors import UsageError
from regard.view.codec import Weights, array_from_json, array_to_json, decode_f16, encode_f16

METHODS = ("gradient×input", "integrated gradients", "occlusion")
KINDS_OF_PLACES = ("sinusoidal", "learned", "rotary", "relative")


class Ranking(tuple[tuple[str, float], ...]):
    """Candidates with their probabilities, the likeliest first; called with a number, the first so many.

    >>> Ranking([("too", 0.8), ("very", 0.1)])(1)
    [('too', 0.8)]
    """

    __slots__ = ()

    def __call__(self, count: int) -> list[tuple[str, float]]:
        """Return the `count` likeliest."""
        return list(self[:count])


@dataclass(frozen=True)
class DecodingStep:
    """One token that was produced: how likely it was, and what else was thought of."""

    token: str
    probability: float
    entropy: float  # of the whole distribution, in bits
    top: Ranking = Ranking()  # the likeliest tokens of the vocabulary
    beams: tuple[tuple[int, str, float], ...] = ()  # alive after this step: (place in the step before, token, score)

    def __post_init__(self) -> None:
        object.__setattr__(self, "top", Ranking((str(token), float(share)) for token, share in self.top))

    def to_dict(self) -> dict[str, Any]:
        """Return the step's JSON form."""
        return {
            "token": self.token,
            "p": _short(self.probability),
            "entropy": _short(self.entropy),
            "top": [[token, _short(share)] for token, share in self.top],
            "beams": [[parent, token, _short(score)] for parent, token, score in self.beams],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DecodingStep:
        """Return the step read from its JSON form."""
        top = Ranking((token, share) for token, share in values.get("top", ()))
        beams = tuple((int(parent), token, float(score)) for parent, token, score in values.get("beams", ()))
        return cls(values["token"], values["p"], values["entropy"], top, beams)


@dataclass(frozen=True)
class LabelProbabilities:
    """How likely each label is.

    >>> LabelProbabilities(("bad", "good"), (0.25, 0.75)).best
    ('good', 0.75)
    """

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.probabilities):
            raise UsageError(f"{len(self.labels)} labels and {len(self.probabilities)} probabilities must be as many")

    @property
    def best(self) -> tuple[str, float]:
        """The likeliest label and its probability."""
        return max(zip(self.labels, self.probabilities, strict=True), key=lambda pair: pair[1])

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict's JSON form."""
        return {"labels": list(self.labels), "p": [_short(share) for share in self.probabilities]}


@dataclass(frozen=True)
class SpanProbabilities:
    """Where in the source an answer begins and ends: a probability for each token of the side `source`."""

    start: tuple[float, ...]
    end: tuple[float, ...]
    answers: tuple[tuple[int, int, str, float], ...]  # first token, last token, text, score; the best first
    none: float | None = None  # probability that there is no answer, where the model can say so

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict's JSON form."""
        return {
            "start": [_short(share) for share in self.start],
            "end": [_short(share) for share in self.end],
            "answers": [[first, last, text, _short(score)] for first, last, text, score in self.answers],
            "none": None if self.none is None else _short(self.none),
        }


def prediction_from_dict(values: Mapping[str, Any]) -> LabelProbabilities | SpanProbabilities:
    """Return either kind of verdict from its JSON form."""
    if "labels" in values:
        return LabelProbabilities(tuple(values["labels"]), tuple(values["p"]))
    answers = tuple((int(first), int(last), text, float(score)) for first, last, text, score in values["answers"])
    return SpanProbabilities(tuple(values["start"]), tuple(values["end"]), answers, values.get("none"))


@dataclass(frozen=True)
class Attribution:
    """How much each token of a side counted for one output, and how far attention agrees with that."""

    method: str  # one of METHODS
    of: str  # what was explained: a label, a produced token
    side: str
    values: tuple[float, ...]
    agreement: float | None = None  # rank correlation with where attention looked

    def to_dict(self) -> dict[str, Any]:
        """Return the attribution's JSON form."""
        return {
            "method": self.method,
            "of": self.of,
            "side": self.side,
            "values": [_short(value) for value in self.values],
            "agreement": None if self.agreement is None else _short(self.agreement),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Attribution:
        """Return the attribution read from its JSON form."""
        side = values.get("side", "source")
        return cls(values["method"], values["of"], side, tuple(values["values"]), values.get("agreement"))


@dataclass(frozen=True)
class PositionCodes:
    """The position codes that a model adds, turns by or scores with."""

    kind: str  # one of KINDS_OF_PLACES
    codes: Weights  # [positions, dims]

    def to_dict(self) -> dict[str, Any]:
        """Return the places' JSON form."""
        return {"kind": self.kind, "shape": list(self.codes.shape), "data": encode_f16(self.codes)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PositionCodes:
        """Return the places read from their JSON form."""
        return cls(values["kind"], decode_f16(values["data"], values["shape"]))


@dataclass(frozen=True)
class HeadQKV:
    """The numbers inside one head: what its weights and its output are made of."""

    attention: str
    layer: int
    head: int
    query: Weights  # [Q, d]
    key: Weights  # [K, d]
    value: Weights  # [K, v]
    scores: Weights  # [Q, K], before the softmax; places that may not be seen are -inf

    def to_dict(self) -> dict[str, Any]:
        """Return the inside's JSON form."""
        return {
            "attention": self.attention,
            "layer": self.layer,
            "head": self.head,
            "q": array_to_json(self.query),
            "k": array_to_json(self.key),
            "v": array_to_json(self.value),
            "scores": array_to_json(np.maximum(self.scores, np.finfo(np.float16).min)),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HeadQKV:
        """Return the inside read from its JSON form."""
        query, key, value, scores = (array_from_json(values[name]) for name in ("q", "k", "v", "scores"))
        scores = np.where(scores <= np.finfo(np.float16).min, -np.inf, scores).astype(np.float32)
        return cls(values["attention"], values["layer"], values["head"], query, key, value, scores)


@dataclass(frozen=True)
class Omission:
    """What is missing from a record, in words."""

    why: str
    dropped: str

    def to_dict(self) -> dict[str, Any]:
        """Return the cut's JSON form."""
        return {"why": self.why, "dropped": self.dropped}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Omission:
        """Return the cut read from its JSON form."""
        return cls(values["why"], values["dropped"])


def concatenate_steps(parts: Sequence[Sequence[DecodingStep]]) -> tuple[DecodingStep, ...]:
    """Return the steps of several sentences as those of one text."""
    return tuple(step for some in parts for step in some)


def _short(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else 0.0
