"""Reach: how much a token that was read some steps ago still influences a prediction, by its distance.

The distance of a token is the number of tokens that are read between it and the prediction: of a source token, those
after it in the source and the target tokens before the predicted one. This is the number of steps over which a
recurrent model without attention has to carry it. Special tokens are not counted.

    gradient      norm of the gradient of the reference token's log-probability with respect to the token's embedding,
                  as a share of the sum over all tokens of the row
    occlusion     loss of the reference token's log-probability where another token of the row replaces it: a check
    exact match   share of predictions in which the reference token is the most probable one

Where the reference token occurs exactly once among the tokens that were read, that one has to be recalled. Its distance
is the distance of the prediction: exact match by distance is compared with the influence of the recalled tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError
from regard.formatting import round_digits
from regard.interpret.attribution import rank_correlation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
UNKNOWN = -1  # distance of a prediction that recalls no token
MIN_PREDICTIONS = 5  # of a bin that counts in a rank correlation
BOOTSTRAP_SAMPLES = 500
INTERVAL = (2.5, 97.5)  # percentiles


class CorrelationDict(TypedDict):
    """A rank correlation with its interval."""

    value: float | None  # Spearman's; null where one side is constant, or of fewer than three bins
    low: float | None  # 95 % interval, by bootstrap over predictions
    high: float | None
    bins: int  # that it compares


class ReachPointDict(TypedDict):
    """Means over the tokens and predictions of one range of distances; null where there are none."""

    low: int  # tokens between the token and the prediction, from
    high: int  # to
    gradient: float | None  # share of a token in the gradient norms of its row
    gradient_norm: float | None  # of a token
    occlusion: float | None  # loss of log-probability where a token is replaced, in nats
    recalled: int  # predictions whose token to recall has this distance
    recalled_gradient: float | None  # share of the recalled token
    recalled_occlusion: float | None  # loss of log-probability where the recalled token is replaced, in nats
    exact_match: float | None  # percentage of the predictions


class ReachCurveDict(TypedDict):
    """JSON form of a `ReachCurve`."""

    model: str
    summary: str  # of the model
    predictions: int
    gradient_and_exact_match: CorrelationDict  # shares of recalled tokens with exact match, by distance
    occlusion_and_exact_match: CorrelationDict
    gradient_and_occlusion: CorrelationDict
    points: list[ReachPointDict]  # by distance, the nearest first


@dataclass(frozen=True)
class ReachSample:
    """Measurements of single tokens and predictions."""

    # of every token that was read
    prediction: Ints  # index of the prediction
    distance: Ints
    gradient: Floats  # norm
    occlusion: Floats  # loss of log-probability; NaN where it was not measured
    is_recalled: NDArray[np.bool_]
    # of every prediction
    recalled_distance: Ints  # UNKNOWN where no token is recalled
    is_correct: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.is_correct)

    @property
    def shares(self) -> Floats:
        """Gradient norms as shares of their sum over each row."""
        totals = np.bincount(self.prediction, weights=self.gradient, minlength=len(self))
        return self.gradient / np.maximum(totals, np.finfo(np.float64).tiny)[self.prediction]


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation of two curves, with its 95 % interval; None where ranks do not exist."""

    value: float | None
    low: float | None
    high: float | None
    bins: int

    def to_dict(self) -> CorrelationDict:
        """Convert to plain values."""
        return {"value": _round(self.value), "low": _round(self.low), "high": _round(self.high), "bins": self.bins}

    def __str__(self) -> str:
        if self.value is None:
            return "–"
        interval = "" if self.low is None or self.high is None else f" ({self.low:+.2f} to {self.high:+.2f})"
        return f"{self.value:+.2f}{interval}"


@dataclass(frozen=True)
class ReachPoint:
    """Means over the tokens and predictions of one range of distances; NaN where there are none."""

    low: int
    high: int
    gradient: float
    gradient_norm: float
    occlusion: float
    recalled: int
    recalled_gradient: float
    recalled_occlusion: float
    exact_match: float

    @property
    def distance(self) -> float:
        """Middle of the range."""
        return (self.low + self.high) / 2

    @property
    def label(self) -> str:
        """The range, as `5-9`."""
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"

    def to_dict(self) -> ReachPointDict:
        """Convert to plain values."""
        return {
            "low": self.low,
            "high": self.high,
            "gradient": _round(self.gradient),
            "gradient_norm": _round(self.gradient_norm),
            "occlusion": _round(self.occlusion),
            "recalled": self.recalled,
            "recalled_gradient": _round(self.recalled_gradient),
            "recalled_occlusion": _round(self.recalled_occlusion),
            "exact_match": _round(self.exact_match),
        }


@dataclass(frozen=True)
class ReachCurve:
    """Influence and exact match of one model by distance."""

    model: str
    summary: str
    predictions: int
    points: tuple[ReachPoint, ...]
    gradient_and_exact_match: Correlation
    occlusion_and_exact_match: Correlation
    gradient_and_occlusion: Correlation

    @property
    def has_recalled(self) -> bool:
        """Whether any prediction recalls a token."""
        return any(point.recalled for point in self.points)

    def to_dict(self) -> ReachCurveDict:
        """Convert to plain values."""
        return {
            "model": self.model,
            "summary": self.summary,
            "predictions": self.predictions,
            "gradient_and_exact_match": self.gradient_and_exact_match.to_dict(),
            "occlusion_and_exact_match": self.occlusion_and_exact_match.to_dict(),
            "gradient_and_occlusion": self.gradient_and_occlusion.to_dict(),
            "points": [point.to_dict() for point in self.points],
        }


def distance_bins(max_distance: int, bins: int) -> Ints:
    """First distances of ranges of equal width, at most `bins`, and the end of the last.

    >>> distance_bins(9, 4).tolist(), distance_bins(2, 10).tolist()
    ([0, 3, 6, 9, 12], [0, 1, 2, 3])
    """
    if bins < 3:
        raise UsageError(f"bins ({bins}) must be at least 3")
    width = -(-(max_distance + 1) // bins)
    return np.arange(0, max_distance + 1 + width, width, dtype=np.int64)


def reach_curve(sample: ReachSample, bins: Ints, *, model: str = "", summary: str = "") -> ReachCurve:
    """Average a sample over ranges of distances, and correlate the curves."""
    num_bins = len(bins) - 1
    token_bins = np.searchsorted(bins, sample.distance, side="right") - 1
    shares = sample.shares
    recalled = np.flatnonzero(sample.is_recalled)
    recalled_bins = token_bins[recalled]
    counts = np.bincount(recalled_bins, minlength=num_bins)
    is_occluded = ~np.isnan(sample.occlusion)
    series = {
        "gradient": _bin_means(token_bins, shares, num_bins),
        "gradient_norm": _bin_means(token_bins, sample.gradient, num_bins),
        "occlusion": _bin_means(token_bins[is_occluded], sample.occlusion[is_occluded], num_bins),
    }
    recalled_values: dict[str, Floats] = {
        "recalled_gradient": shares[recalled],
        "recalled_occlusion": sample.occlusion[recalled],
        "exact_match": 100.0 * sample.is_correct[sample.prediction[recalled]].astype(np.float64),
    }
    for name, values in recalled_values.items():
        series[name] = _bin_means(recalled_bins, values, num_bins)
    points = tuple(
        ReachPoint(
            int(bins[index]),
            int(bins[index + 1]) - 1,
            recalled=int(counts[index]),
            **{name: float(values[index]) for name, values in series.items()},
        )
        for index in range(num_bins)
    )

    def correlate(first: str, second: str) -> Correlation:
        return _correlate_bins(recalled_bins, recalled_values[first], recalled_values[second], num_bins)

    return ReachCurve(
        model=model,
        summary=summary,
        predictions=len(sample),
        points=points,
        gradient_and_exact_match=correlate("recalled_gradient", "exact_match"),
        occlusion_and_exact_match=correlate("recalled_occlusion", "exact_match"),
        gradient_and_occlusion=correlate("recalled_gradient", "recalled_occlusion"),
    )


def pooled_correlation(curves: Sequence[ReachCurve], first: str, second: str) -> float | None:
    """Rank correlation of two values over the points of all curves together, such as shares with exact match."""
    points = [point for curve in curves for point in curve.points if point.recalled >= MIN_PREDICTIONS]
    return rank_correlation(*(np.array([getattr(point, name) for point in points]) for name in (first, second)))


def _bin_means(bins: Ints, values: Floats, num_bins: int) -> Floats:
    """Mean of the values in each bin; NaN where there are none."""
    sums = np.bincount(bins, weights=values, minlength=num_bins)
    counts = np.bincount(bins, minlength=num_bins)
    means: Floats = np.divide(sums, counts, out=np.full(num_bins, np.nan), where=counts > 0)
    return means


def _correlate_bins(bins: Ints, first: Floats, second: Floats, num_bins: int) -> Correlation:
    """Rank correlation of the bin means of two values of the same predictions."""
    counts = np.bincount(bins, minlength=num_bins)
    is_filled = counts >= MIN_PREDICTIONS

    def correlation(rows: Ints) -> float | None:
        means = [_bin_means(bins[rows], values[rows], num_bins)[is_filled] for values in (first, second)]
        is_known = ~np.isnan(means[0]) & ~np.isnan(means[1])
        return rank_correlation(means[0][is_known], means[1][is_known])

    rng = np.random.default_rng(0)
    resamples = [correlation(rng.integers(len(bins), size=len(bins))) for _ in range(BOOTSTRAP_SAMPLES) if len(bins)]
    known = [value for value in resamples if value is not None]
    low, high = np.percentile(known, INTERVAL).tolist() if known else (None, None)
    value = correlation(np.arange(len(bins)))
    return Correlation(value, low, high=high, bins=int(is_filled.sum()))


def _round(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else round_digits(value)
