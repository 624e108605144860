"""Confidence intervals of scores, and paired tests of two models on the same examples, over one or several seeds.

A metric of a whole test set, such as accuracy, F1 or BLEU, is a function of sums over its examples: of right answers,
of predicted entities, of n-grams. `ExampleStatistics` holds what is summed, so that the metric is computed again on
thousands of resampled test sets without any prediction (`regard.tasks.example_statistics` has those of each metric):

    statistics = collect_statistics("f1", predictions_of_each_seed)
    score_interval(statistics)                 # the mean over the seeds, and its 95 % interval
    paired_test(statistics, other_statistics)  # their difference, its interval and its p-value

- An interval is a percentile bootstrap over the examples (Efron 1979; for corpus metrics, Koehn 2004) and over the
  seeds, where there are several: each sample draws both with replacement. With one seed it does not
  include what another seed would change.
- A p-value comes from approximate randomization (Noreen 1989; Yeh 2000): how often a difference at least as large
  arises where both models' predictions for random examples are exchanged, for all seeds of an example together. It is
  about the models as they were trained.
- So a difference is significant if its p-value is below 0.05 and its interval, which varies the seeds too, excludes 0.
- `adjust_p_values` corrects p-values of several comparisons (Holm 1979).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError

FloatArray = NDArray[np.float64]
SIGNIFICANCE_LEVEL = 0.05
CONFIDENCE = (2.5, 97.5)  # percentiles of an interval
BOOTSTRAP_SAMPLES = 2000
RANDOMIZATION_SAMPLES = 5000
MAX_BLOCK = 1 << 21  # random numbers at a time


def mean_ratio(sums: FloatArray) -> FloatArray:
    """Mean of 100 × numerator / denominator over groups, from sums [..., 2 × groups]: numerators, then denominators.

    Groups whose denominator is 0 do not count: labels that do not occur, tasks without questions.

    >>> mean_ratio(np.array([3.0, 1.0, 0.0, 4.0, 2.0, 0.0])).item()  # 75 % and 50 %
    62.5
    """
    num_groups = sums.shape[-1] // 2
    numerators = sums[..., :num_groups]
    denominators = sums[..., num_groups:]
    occurs = denominators > 0
    ratios = np.divide(numerators, denominators, out=np.zeros_like(numerators), where=occurs)
    return np.asarray(100.0 * ratios.sum(-1) / np.maximum(1, occurs.sum(-1)))


@dataclass(frozen=True)
class ExampleStatistics:
    """What a metric sums over examples, and the metric as a function of the sums.

    >>> right = ExampleStatistics.from_ratios([1, 0, 1, 1], [1, 1, 1, 1])
    >>> right.seed_scores.tolist(), right.select(np.array([True, True, False, False])).mean
    ([75.0], 50.0)
    """

    values: FloatArray  # [seeds, examples, statistics]
    score: Callable[[FloatArray], FloatArray] = mean_ratio  # sums [..., statistics] → scores [...]

    @classmethod
    def from_ratios(
        cls, numerators: NDArray[np.generic] | Sequence[float], denominators: NDArray[np.generic] | Sequence[float]
    ) -> ExampleStatistics:
        """Statistics of a metric that is a ratio of sums, or the mean of such ratios over groups.

        Both are [examples] or [examples, groups].
        """
        columns = [np.asarray(column, dtype=np.float64) for column in (numerators, denominators)]
        tables = [column if column.ndim == 2 else column[:, None] for column in columns]
        return cls(np.concatenate(tables, axis=1)[None])

    @classmethod
    def stack(cls, statistics: Sequence[ExampleStatistics]) -> ExampleStatistics:
        """Statistics of several seeds as those of one model."""
        return cls(np.concatenate([seed.values for seed in statistics]), statistics[0].score)

    @property
    def num_seeds(self) -> int:
        """Number of trained models."""
        return int(self.values.shape[0])

    @property
    def num_examples(self) -> int:
        """Number of test examples."""
        return int(self.values.shape[1])

    @property
    def seed_scores(self) -> FloatArray:  # [seeds]
        """Score of each seed."""
        return self.score(self.values.sum(1))

    @property
    def mean(self) -> float:
        """Mean score over the seeds."""
        return float(self.seed_scores.mean())

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the score over the seeds; None for a single one."""
        return float(self.seed_scores.std(ddof=1)) if self.num_seeds > 1 else None

    def select(self, examples: NDArray[np.bool_] | NDArray[np.int64]) -> ExampleStatistics:
        """Statistics of some of the examples."""
        return replace(self, values=self.values[:, examples])


@dataclass(frozen=True)
class ScoreInterval:
    """Mean score over the seeds, with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedTest:
    """Difference of two models' scores, with its 95 % interval, and the p-value of no difference."""

    difference: float
    low: float
    high: float
    p_value: float

    @property
    def is_significant(self) -> bool:
        """Whether the p-value is below 0.05 and the interval, over examples and seeds, excludes 0."""
        return self.p_value < SIGNIFICANCE_LEVEL and not self.low <= 0 <= self.high


def score_interval(statistics: ExampleStatistics, *, samples: int = BOOTSTRAP_SAMPLES) -> ScoreInterval:
    """Mean score, with its 95 % interval by bootstrap over examples and seeds.

    >>> score_interval(ExampleStatistics.from_ratios([1] * 9, [1] * 9))
    ScoreInterval(mean=100.0, low=100.0, high=100.0)
    """
    rng = _new_rng()
    scores = []
    for weights in _bootstrap_weights(rng, statistics.num_examples, samples):
        scores.append(_resampled_scores(rng, weights, statistics))
    low, high = np.percentile(np.concatenate(scores), CONFIDENCE)
    return ScoreInterval(statistics.mean, float(low), float(high))


def paired_test(
    first: ExampleStatistics,
    second: ExampleStatistics,
    *,
    samples: int = BOOTSTRAP_SAMPLES,
    randomizations: int = RANDOMIZATION_SAMPLES,
) -> PairedTest:
    """Test whether two models differ: first minus second, on the same examples in the same order.

    A model with one seed, such as a baseline without random numbers, is compared with every seed of the other.

    >>> better = ExampleStatistics.from_ratios([1] * 40, [1] * 40)
    >>> worse = ExampleStatistics.from_ratios([1, 0] * 20, [1] * 40)
    >>> paired_test(better, worse).difference, paired_test(better, worse).is_significant
    (50.0, True)
    """
    first_values, second_values = _align_seeds(first, second)
    rng = _new_rng()
    differences = []
    for weights in _bootstrap_weights(rng, first.num_examples, samples):
        first_scores = _resampled_scores(rng, weights, first)
        differences.append(first_scores - _resampled_scores(rng, weights, second))
    low, high = np.percentile(np.concatenate(differences), CONFIDENCE)
    observed = first.mean - second.mean
    advantage = first_values - second_values  # [seeds, examples, statistics]
    first_sums = first_values.sum(1)
    second_sums = second_values.sum(1)
    num_as_large = 0
    for size in _block_sizes(randomizations, first.num_examples):
        is_exchanged = rng.random((size, first.num_examples)) < 0.5
        exchanged = np.tensordot(is_exchanged.astype(np.float64), advantage, axes=([1], [1]))  # [size, seeds, …]
        scores = first.score(first_sums - exchanged).mean(1) - second.score(second_sums + exchanged).mean(1)
        num_as_large += int((np.abs(scores) >= abs(observed) - 1e-9).sum())
    p_value = (1 + num_as_large) / (1 + randomizations)
    return PairedTest(observed, float(low), high=float(high), p_value=p_value)


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several comparisons, so that any false one has a chance of at most 5 % (Holm 1979).

    >>> adjust_p_values([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = largest
    return adjusted


def compare_with(
    reference: ExampleStatistics, others: Sequence[ExampleStatistics], *, samples: int = BOOTSTRAP_SAMPLES
) -> list[PairedTest]:
    """Test several models against a reference: model minus reference, with p-values adjusted for their number."""
    tests = [paired_test(statistics, reference, samples=samples) for statistics in others]
    adjusted = adjust_p_values([test.p_value for test in tests])
    return [replace(test, p_value=p_value) for test, p_value in zip(tests, adjusted, strict=True)]


def _new_rng() -> np.random.Generator:
    """Generator of fixed numbers: the same predictions have the same interval."""
    return np.random.Generator(np.random.Philox(1))


def _align_seeds(first: ExampleStatistics, second: ExampleStatistics) -> tuple[FloatArray, FloatArray]:
    """Values with equal numbers of seeds; a single one is repeated."""
    if first.num_examples != second.num_examples:
        raise UsageError(
            f"{first.num_examples} examples cannot be compared with {second.num_examples}: predict the same test data"
        )
    num_seeds = max(first.num_seeds, second.num_seeds)
    if {first.num_seeds, second.num_seeds} - {1, num_seeds}:
        raise UsageError(
            f"{first.num_seeds} seeds cannot be compared with {second.num_seeds}: train both from the same seeds"
        )
    shape = (num_seeds, *first.values.shape[1:])
    return np.broadcast_to(first.values, shape), np.broadcast_to(second.values, shape)


def _block_sizes(samples: int, num_examples: int) -> Iterator[int]:
    """Numbers of samples that are drawn together."""
    block = max(1, MAX_BLOCK // max(1, num_examples))
    for start in range(0, samples, block):
        yield min(block, samples - start)


def _bootstrap_weights(rng: np.random.Generator, num_examples: int, samples: int) -> Iterator[FloatArray]:
    """How often each example is in each bootstrap sample, [block, examples]."""
    if not num_examples:
        raise UsageError("there is nothing to compare: the test set is empty")
    for size in _block_sizes(samples, num_examples):
        yield _draw_counts(rng, size, num_examples)


def _draw_counts(rng: np.random.Generator, samples: int, size: int) -> FloatArray:
    """Counts of `size` draws with replacement, [samples, size]."""
    draws = rng.integers(size, size=(samples, size)) + size * np.arange(samples)[:, None]
    counts = np.bincount(draws.ravel(), minlength=samples * size)
    return counts.reshape(samples, size).astype(np.float64)


def _resampled_scores(rng: np.random.Generator, weights: FloatArray, statistics: ExampleStatistics) -> FloatArray:
    """Mean score over resampled seeds, for each row of example weights."""
    sums = np.tensordot(weights, statistics.values, axes=([1], [1]))  # [samples, seeds, statistics]
    seed_counts = _draw_counts(rng, len(weights), statistics.num_seeds)
    scores = statistics.score(sums)  # [samples, seeds]
    return np.asarray((scores * seed_counts).sum(1) / statistics.num_seeds)
