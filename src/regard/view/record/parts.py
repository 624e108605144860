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
    """Queries, keys, values, scores and weights of one head."""

    attention: str
    layer: int
    head: int
    query: Weights  # [Q, d]
    key: Weights  # [K, d], prepared by the score
    value: Weights  # [K, v]
    scores: Weights  # [Q, K], as they are normalised; -inf where masked
    weights: Weights  # [Q, K]
    scale: float | None  # factor of q · k in the scores, before the temperature; None: they are no dot products
    temperature: float = 1.0
    has_bias: bool = False  # whether a bias is added to the scores
    normalization: str = "softmax"  # name of what turns scores into weights

    @property
    def is_dot_product(self) -> bool:
        """Whether the score is the dot product of query and key, scaled or not."""
        return self.scale is not None

    @property
    def scaling(self) -> str:
        """What is done to dot products, or to other scores, before they are normalised.

        >>> from dataclasses import replace
        >>> head = HeadQKV("encoder.self", 0, 0, *[np.ones((1, 4))] * 3, *[np.ones((1, 1))] * 2, scale=0.5)
        >>> head.scaling, replace(head, scale=1.0).scaling, replace(head, temperature=2.0, has_bias=True).scaling
        ('÷ √4', 'no scaling', '× 0.25 + bias')
        """
        head_size = self.key.shape[1]
        factor = (1.0 if self.scale is None else self.scale) / self.temperature
        if self.is_dot_product and math.isclose(factor, head_size**-0.5, rel_tol=1e-6):
            name = f"÷ √{head_size}"
        else:
            name = "no scaling" if math.isclose(factor, 1, rel_tol=1e-6) else f"× {factor:.3g}"
        return f"{name} + bias" if self.is_dot_product and self.has_bias else name

    def unscaled_scores(self, row: int) -> Weights:
        """Scores of one query before they are scaled: dot products, or those of another score, [K]."""
        if self.is_dot_product:
            return np.asarray(self.key @ self.query[row], dtype=np.float32)
        return np.asarray(self.scores[row] * self.temperature, dtype=np.float32)

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
            "weights": array_to_json(self.weights),
            "scale": self.scale,
            "temperature": self.temperature,
            "has_bias": self.has_bias,
            "normalization": self.normalization,
            "scaling": self.scaling,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HeadQKV:
        """Read the JSON form."""
        scores = array_from_json(values["scores"])
        return cls(
            values["attention"],
            values["layer"],
            head=values["head"],
            query=array_from_json(values["q"]),
            key=array_from_json(values["k"]),
            value=array_from_json(values["v"]),
            scores=np.where(scores <= np.finfo(np.float16).min, -np.inf, scores).astype(np.float32),
            weights=array_from_json(values["weights"]),
            scale=None if values["scale"] is None else float(values["scale"]),
            temperature=float(values["temperature"]),
            has_bias=bool(values["has_bias"]),
            normalization=str(values["normalization"]),
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
