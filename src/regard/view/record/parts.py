"""Parts of a record beside texts and weights: decoding steps, predictions, attributions, positions, Q/K/V of a head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.errors import UsageError
from regard.view.codec import Weights, array_from_json, array_to_json, decode_f16, encode_f16
from regard.view.record.json_form import (
    AttributionDict,
    LabelProbabilitiesDict,
    OmissionDict,
    PositionsDict,
    QkvDict,
    SpanProbabilitiesDict,
    StepDict,
)

METHODS = ("gradient×input", "integrated gradients", "occlusion")


class Ranking(tuple[tuple[str, float], ...]):
    """Candidates with their probabilities, most probable first; calling it with k returns the first k.

    >>> Ranking([("too", 0.8), ("very", 0.1)])(1)
    [('too', 0.8)]
    """

    __slots__ = ()

    def __call__(self, count: int) -> list[tuple[str, float]]:
        """The `count` most probable candidates."""
        return list(self[:count])


@dataclass(frozen=True)
class DecodingStep:
    """One generated token: its probability, the alternatives, and the hypotheses of the beam."""

    token: str
    probability: float
    entropy: float  # of the whole distribution, in bits
    top: Ranking = Ranking()  # the most probable tokens of the vocabulary
    beams: tuple[tuple[int, str, float], ...] = ()  # after this step: (index of the parent, token, score)

    def __post_init__(self) -> None:
        object.__setattr__(self, "top", Ranking((str(token), float(probability)) for token, probability in self.top))

    def to_dict(self) -> StepDict:
        """Convert to the JSON form."""
        return {
            "token": self.token,
            "probability": _round(self.probability),
            "entropy": _round(self.entropy),
            "top": [(token, _round(probability)) for token, probability in self.top],
            "beams": [(parent, token, _round(score)) for parent, token, score in self.beams],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DecodingStep:
        """Read the JSON form."""
        top = Ranking((token, probability) for token, probability in values.get("top", ()))
        beams = tuple((int(parent), token, float(score)) for parent, token, score in values.get("beams", ()))
        return cls(values["token"], values["probability"], entropy=values["entropy"], top=top, beams=beams)


@dataclass(frozen=True)
class LabelProbabilities:
    """Probability of each label.

    >>> LabelProbabilities(("bad", "good"), (0.25, 0.75)).best
    ('good', 0.75)
    """

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.probabilities):
            raise UsageError(f"{len(self.labels)} labels need as many probabilities, not {len(self.probabilities)}")

    @property
    def best(self) -> tuple[str, float]:
        """The most probable label and its probability."""
        return max(zip(self.labels, self.probabilities, strict=True), key=lambda pair: pair[1])

    def to_dict(self) -> LabelProbabilitiesDict:
        """Convert to the JSON form."""
        probabilities = [_round(probability) for probability in self.probabilities]
        return {"labels": list(self.labels), "probabilities": probabilities}


@dataclass(frozen=True)
class SpanProbabilities:
    """Probabilities that an answer starts, and ends, at each token of the text `source`."""

    start: tuple[float, ...]
    end: tuple[float, ...]
    answers: tuple[tuple[int, int, str, float], ...]  # first token, last token, text, score; best first
    no_answer: float | None = None  # probability of no answer, where the model predicts it

    def to_dict(self) -> SpanProbabilitiesDict:
        """Convert to the JSON form."""
        return {
            "start": [_round(probability) for probability in self.start],
            "end": [_round(probability) for probability in self.end],
            "answers": [(first, last, text, _round(score)) for first, last, text, score in self.answers],
            "none": None if self.no_answer is None else _round(self.no_answer),
        }


def prediction_from_dict(values: Mapping[str, Any]) -> LabelProbabilities | SpanProbabilities:
    """Read the JSON form of either kind of prediction."""
    if "labels" in values:
        return LabelProbabilities(tuple(values["labels"]), tuple(values["probabilities"]))
    answers = tuple((int(first), int(last), text, float(score)) for first, last, text, score in values["answers"])
    return SpanProbabilities(
        tuple(values["start"]), tuple(values["end"]), answers=answers, no_answer=values.get("none")
    )


@dataclass(frozen=True)
class Attribution:
    """How much an output depends on each token of a text, and how far attention agrees."""

    method: str  # one of METHODS
    target: str  # the explained output: a label, a generated token
    text_name: str  # name of the text
    values: tuple[float, ...]
    agreement: float | None = None  # rank correlation with attention
    backend: str = ""  # that computed the values
    difference: float = 0.0  # of its log-probability from the answer's

    def to_dict(self) -> AttributionDict:
        """Convert to the JSON form."""
        return {
            "method": self.method,
            "target": self.target,
            "side": self.text_name,
            "values": [_round(value) for value in self.values],
            "agreement": None if self.agreement is None else _round(self.agreement),
            "backend": self.backend,
            "difference": _round(self.difference),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Attribution:
        """Read the JSON form."""
        return cls(
            values["method"],
            values["target"],
            text_name=values.get("side", "source"),
            values=tuple(values["values"]),
            agreement=values.get("agreement"),
            backend=str(values.get("backend", "")),
            difference=float(values.get("difference", 0.0)),
        )


@dataclass(frozen=True)
class PositionEncodings:
    """Positional encodings of a model: added, rotated by, or scored with."""

    kind: str  # name of the scheme, as in `POSITIONS`
    encodings: Weights  # [positions, dims]

    def to_dict(self) -> PositionsDict:
        """Convert to the JSON form."""
        return {"kind": self.kind, "shape": list(self.encodings.shape), "data": encode_f16(self.encodings)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PositionEncodings:
        """Read the JSON form."""
        return cls(values["kind"], decode_f16(values["data"], values["shape"]))


@dataclass(frozen=True)
class HeadQKV:
    """Queries, keys, values and scores of one head."""

    attention: str
    layer: int
    head: int
    query: Weights  # [Q, d]
    key: Weights  # [K, d]
    value: Weights  # [K, v]
    scores: Weights  # [Q, K], before the softmax; -inf where masked

    def to_dict(self) -> QkvDict:
        """Convert to the JSON form."""
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
        """Read the JSON form."""
        query, key, value, scores = (array_from_json(values[name]) for name in ("q", "k", "v", "scores"))
        scores = np.where(scores <= np.finfo(np.float16).min, -np.inf, scores).astype(np.float32)
        return cls(
            values["attention"],
            values["layer"],
            head=values["head"],
            query=query,
            key=key,
            value=value,
            scores=scores,
        )


@dataclass(frozen=True)
class Omission:
    """What a record leaves out, and why."""

    reason: str
    omitted: str

    def to_dict(self) -> OmissionDict:
        """Convert to the JSON form."""
        return {"reason": self.reason, "dropped": self.omitted}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Omission:
        """Read the JSON form."""
        return cls(values["reason"], values["dropped"])


def concatenate_steps(parts: Sequence[Sequence[DecodingStep]]) -> tuple[DecodingStep, ...]:
    """Concatenate the steps of the sentences of one text."""
    return tuple(step for steps in parts for step in steps)


def _round(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else 0.0
