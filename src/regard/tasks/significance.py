"""Confidence intervals of scores, and paired tests of two models on the same examples, over one or several seeds.

A metric of a whole test set, such as accuracy, F1 or BLEU, is a function of sums over its examples: of right answers,
of predicted entities, of n-grams. `ExampleStatistics` holds what is summed, so that the metric is computed again on
thousands of resampled test sets without any prediction (`regard.tasks.example_statistics` has those of each metric):

    statistics = collect_statistics("f1", predictions_of_each_seed)
    score_interval(statistics)                 # the mean over the seeds, and its 95 % interval
    paired_test(statistics, other_statistics)  # their difference, its interval and its p-value
    compare_pairs([a, b, c], [(0, 1), (0, 2)])  # the same for several pairs, with p-values adjusted for their number

- An interval is a bootstrap with random weights of the examples (Rubin 1981). The examples of a cluster, such as the
  questions about a story, have one weight. Of scores that are shares, the lower limit counts one more wrong example and
  the upper limit one more right one: for proportions this is the exact interval of Clopper and Pearson (1934), for
  other shares the bound of Gaffke (2005). So an error of 0 % on 100 examples may be one of 3.6 %.
- Where there are several seeds, an interval includes the error of their mean, which has Student's t distribution with
  Welch's degrees of freedom for a difference. With one seed, it does not include what another seed would change.
- A p-value comes from approximate randomization (Noreen 1989; Yeh 2000): how often a difference at least as large
  arises where both models' predictions for random examples are exchanged, for all seeds and for a whole cluster
  together. It is about the models as they were trained.
- So a difference is significant if its p-value is below 0.05 and its interval, which varies the seeds too, excludes 0.
- `compare_pairs` adjusts p-values for the number of pairs (Holm 1979). A model that is chosen on the same examples,
  such as the best one, needs all pairs from which it could have been chosen: `compare_with_best` adjusts for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError

FloatArray = NDArray[np.float64]
SIGNIFICANCE_LEVEL = 0.05
CONFIDENCE = (2.5, 97.5)  # percentiles of an interval
BOOTSTRAP_SAMPLES = 4000
SEED_ERRORS = 10  # drawn for each bootstrap sample
RANDOMIZATION_SAMPLES = 20_000  # so that the p-values of 66 pairs, of 12 models, can be significant after adjustment
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
    is_share: bool = False  # whether the score is a mean ratio and no numerator exceeds its denominator
    clusters: NDArray[Any] | None = None  # cluster of each example; examples of one are not independent; None: all are

    @classmethod
    def from_ratios(
        cls,
        numerators: NDArray[np.generic] | Sequence[float],
        denominators: NDArray[np.generic] | Sequence[float],
        *,
        is_share: bool = True,
    ) -> ExampleStatistics:
        """Statistics of a metric that is a ratio of sums, or the mean of such ratios over groups.

        Both are [examples] or [examples, groups].
        """
        columns = [np.asarray(column, dtype=np.float64) for column in (numerators, denominators)]
        tables = [column if column.ndim == 2 else column[:, None] for column in columns]
        return cls(np.concatenate(tables, axis=1)[None], is_share=is_share)

    @classmethod
    def stack(cls, statistics: Sequence[ExampleStatistics]) -> ExampleStatistics:
        """Statistics of several seeds as those of one model."""
        return replace(statistics[0], values=np.concatenate([seed.values for seed in statistics]))

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
        clusters = None if self.clusters is None else self.clusters[examples]
        return replace(self, values=self.values[:, examples], clusters=clusters)

    def sum_clusters(self) -> ExampleStatistics:
        """Statistics with one example for each cluster.

        >>> stories = replace(ExampleStatistics.from_ratios([1, 0, 1], [1, 1, 1]), clusters=np.array(["a", "a", "b"]))
        >>> stories.sum_clusters().values[0].tolist(), stories.sum_clusters().mean == stories.mean
        ([[1.0, 2.0], [1.0, 1.0]], True)
        """
        if self.clusters is None:
            return self
        names, indices = np.unique(self.clusters, return_inverse=True)
        sums = np.zeros((len(names), self.num_seeds, self.values.shape[2]))
        np.add.at(sums, indices, self.values.swapaxes(0, 1))
        return replace(self, values=sums.swapaxes(0, 1), clusters=None)

    @property
    def extremes(self) -> tuple[FloatArray, FloatArray]:  # [seeds, statistics] each
        """An average example that is wholly wrong, and one that is wholly right; zeros where scores are not shares."""
        average = self.values.mean(1)
        if not self.is_share:
            return np.zeros_like(average), np.zeros_like(average)
        denominators = average[:, average.shape[1] // 2 :]
        wrong = np.concatenate([np.zeros_like(denominators), denominators], axis=1)
        return wrong, np.concatenate([denominators, denominators], axis=1)

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest score that there can be."""
        return (0.0, 100.0) if self.is_share else (-np.inf, np.inf)


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
    """Mean score, with its 95 % interval by bootstrap over examples and the error of the mean over seeds.

    >>> interval = score_interval(ExampleStatistics.from_ratios([1] * 100, [1] * 100))
    >>> interval.mean, round(interval.low), interval.high
    (100.0, 96, 100.0)
    """
    model = statistics.sum_clusters()
    rng = _new_rng()
    (lower, upper) = _resample_scores(rng, [model], samples)[0]
    low, high = _interval(lower, upper, _seed_errors(rng, [model], samples), model.bounds)
    return ScoreInterval(model.mean, low, high)


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
    return compare_pairs([first, second], [(0, 1)], samples=samples, randomizations=randomizations)[0]


def compare_pairs(
    models: Sequence[ExampleStatistics],
    pairs: Sequence[tuple[int, int]],
    *,
    samples: int = BOOTSTRAP_SAMPLES,
    randomizations: int = RANDOMIZATION_SAMPLES,
) -> list[PairedTest]:
    """Test pairs of models by index: first minus second, with p-values adjusted for the number of pairs."""
    for first, second in pairs:
        _check_comparable(models[first], models[second])
    models = [model.sum_clusters() for model in models]
    rng = _new_rng()
    limits = _resample_scores(rng, models, samples)
    p_values = adjust_p_values(_randomize(models, pairs, randomizations))
    tests = []
    for (first, second), p_value in zip(pairs, p_values, strict=True):
        low, high = _interval(
            limits[first][0] - limits[second][1],
            limits[first][1] - limits[second][0],
            _seed_errors(rng, [models[first], models[second]], samples),
            (models[first].bounds[0] - models[second].bounds[1], models[first].bounds[1] - models[second].bounds[0]),
        )
        tests.append(PairedTest(models[first].mean - models[second].mean, low, high=high, p_value=p_value))
    return tests


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
    """Test several models against a reference that was fixed beforehand: model minus reference, adjusted p-values."""
    pairs = [(index, 0) for index in range(1, 1 + len(others))]
    return compare_pairs([reference, *others], pairs, samples=samples)


def compare_with_best(
    models: Sequence[ExampleStatistics],
    best: int,
    *,
    samples: int = BOOTSTRAP_SAMPLES,
    randomizations: int = RANDOMIZATION_SAMPLES,
) -> dict[int, PairedTest]:
    """Test each model against the best one: model minus best, by index.

    The best model is chosen on the same examples, so that p-values are adjusted for all pairs of models.
    """
    others = [index for index in range(len(models)) if index != best]
    pairs = [*((index, best) for index in others), *combinations(others, 2)]
    tests = compare_pairs(models, pairs, samples=samples, randomizations=randomizations)
    return dict(zip(others, tests, strict=False))


def _new_rng() -> np.random.Generator:
    """Generator of fixed numbers: the same predictions have the same interval."""
    return np.random.Generator(np.random.Philox(1))


def _check_comparable(first: ExampleStatistics, second: ExampleStatistics) -> None:
    """Refuse different numbers of examples, and of seeds unless one model has a single one."""
    if first.num_examples != second.num_examples:
        raise UsageError(
            f"{first.num_examples} examples cannot be compared with {second.num_examples}: predict the same test data"
        )
    if first.num_seeds != second.num_seeds and 1 not in (first.num_seeds, second.num_seeds):
        raise UsageError(
            f"{first.num_seeds} seeds cannot be compared with {second.num_seeds}: train both from the same seeds"
        )


def _randomize(
    models: Sequence[ExampleStatistics], pairs: Sequence[tuple[int, int]], randomizations: int
) -> list[float]:
    """P-value of each pair by approximate randomization; all pairs share the exchanges."""
    rng = _new_rng()
    totals = [model.values.sum(1) for model in models]  # [seeds, statistics]
    num_as_large = np.zeros(len(pairs))
    for size in _block_sizes(randomizations, models):
        is_exchanged = (rng.random((size, models[0].num_examples)) < 0.5).astype(np.float64)
        parts = [_weighted_sums(is_exchanged, model) for model in models]  # [size, seeds, statistics]
        for index, (first, second) in enumerate(pairs):
            exchanged = parts[first] - parts[second]
            first_scores = models[first].score(totals[first] - exchanged).mean(1)
            second_scores = models[second].score(totals[second] + exchanged).mean(1)
            observed = abs(models[first].mean - models[second].mean)
            num_as_large[index] += (np.abs(first_scores - second_scores) >= observed - 1e-9).sum()
    p_values: list[float] = ((1 + num_as_large) / (1 + randomizations)).tolist()
    return p_values


def _resample_scores(
    rng: np.random.Generator, models: Sequence[ExampleStatistics], samples: int
) -> list[tuple[FloatArray, FloatArray]]:
    """Mean scores over the seeds with random weights of the examples, [samples]: for lower and for upper limits."""
    if not models[0].num_examples:
        raise UsageError("there is nothing to compare: the test set is empty")
    blocks: list[list[FloatArray]] = [[] for _ in models]  # [2, size] each
    for size in _block_sizes(samples, models):
        weights = rng.standard_exponential((size, models[0].num_examples))
        extra_weight = rng.standard_exponential((size, 1, 1))
        for model, model_blocks in zip(models, blocks, strict=True):
            sums = _weighted_sums(weights, model)
            model_blocks.append(
                np.stack([model.score(sums + extra_weight * extreme).mean(1) for extreme in model.extremes])
            )
    scores = [np.concatenate(model_blocks, axis=1) for model_blocks in blocks]
    return [(lower, upper) for lower, upper in scores]


def _weighted_sums(weights: FloatArray, model: ExampleStatistics) -> FloatArray:
    """Sums over examples for each row of their weights, [rows, seeds, statistics]."""
    return np.tensordot(weights, model.values, axes=([1], [1]))


def _seed_errors(rng: np.random.Generator, models: Sequence[ExampleStatistics], samples: int) -> FloatArray:
    """Random errors of a mean over seeds, or of the difference of two, [samples, errors]; 0 for single seeds."""
    variances = np.array([(model.deviation or 0.0) ** 2 / model.num_seeds for model in models])
    variance = variances.sum()
    if variance <= 0:
        return np.zeros((samples, 1))
    degrees = variance**2 / sum(variances**2 / [max(1, model.num_seeds - 1) for model in models])  # Welch 1947
    return np.asarray(np.sqrt(variance) * rng.standard_t(degrees, (samples, SEED_ERRORS)))


def _interval(
    lower: FloatArray, upper: FloatArray, seed_errors: FloatArray, bounds: tuple[float, float]
) -> tuple[float, float]:
    """Percentiles of resampled scores, [samples] for each limit, with the errors of their seeds."""
    low = np.percentile(lower[:, None] + seed_errors, CONFIDENCE[0])
    high = np.percentile(upper[:, None] + seed_errors, CONFIDENCE[1])
    return max(bounds[0], float(low)), min(bounds[1], float(high))


def _block_sizes(samples: int, models: Sequence[ExampleStatistics]) -> Iterator[int]:
    """Numbers of samples that are drawn together."""
    width = models[0].num_examples + sum(model.num_seeds * model.values.shape[2] for model in models)
    block = max(1, MAX_BLOCK // max(1, width))
    for start in range(0, samples, block):
        yield min(block, samples - start)
