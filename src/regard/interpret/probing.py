"""Linear probes of every layer: how well its frozen hidden states predict something, beside baselines and a control.

    report = probe_layers(reader, "tags", train, test)
    report.layers[3].score, report.layers[3].selectivity, report.word_baseline.mean

A probe shows that information is linearly readable from a layer, not that the model uses it. Scores are accuracy or
macro-F1 in percent for tags, and R² for position and depth: the share of the variance that the probe explains, where
predicting the mean explains 0. Intervals are bootstraps over the test sentences.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.data.conll import TaggedSentences
from regard.errors import DataError, UsageError, nearest
from regard.interpret.layer_readers import LayerReader, States
from regard.interpret.linear_probe import fit_logistic, fit_ridge
from regard.interpret.probe_targets import (
    ProbeTarget,
    build_target,
    constant_baseline,
    control_target,
    word_baseline,
)
from regard.tasks.significance import ExampleStatistics, ScoreInterval, compare_with, paired_test, score_interval
from regard.tasks.tagging import word_spans

Values = NDArray[np.float64]
STATE_BYTES = 512 << 20  # of hidden states that are in memory at a time
METRICS = ("accuracy", "macro_f1")  # of tags
R2 = "R²"
SIGNIFICANCE_LEVEL = 0.05
Notify = Callable[[str], object]


@dataclass(frozen=True)
class LayerProbe:
    """Probe of one layer on the test words."""

    layer: int  # 0: the embeddings
    score: ScoreInterval
    control: ScoreInterval  # of the control task
    selectivity: ScoreInterval  # score minus control
    gain: float  # over the baseline that knows each word
    p_value: float  # of no gain, adjusted for the number of layers
    has_converged: bool

    @property
    def beats_baseline(self) -> bool:
        """Whether the layer is significantly better than the baseline that knows each word."""
        return self.gain > 0 and self.p_value < SIGNIFICANCE_LEVEL


@dataclass(frozen=True)
class ProbeResult:
    """Probes of all layers on the same words."""

    target: str  # tags, position or depth
    metric: str  # accuracy, macro_f1 or R²
    backend: str
    labels: tuple[str, ...]
    num_train_sentences: int
    num_train_words: int
    num_test_sentences: int
    num_test_words: int
    constant_baseline: ScoreInterval  # most frequent label, or mean
    word_baseline: ScoreInterval  # most frequent label, or mean, of each word
    layers: tuple[LayerProbe, ...]

    @property
    def best(self) -> LayerProbe:
        """The layer with the best score."""
        return max(self.layers, key=lambda layer: layer.score.mean)


def probe_layers(
    reader: LayerReader,
    target: str,
    train: TaggedSentences,
    test: TaggedSentences,
    *,
    metric: str = "",
    penalty: float = 1.0,
    seed: int = 0,
    notify: Notify = lambda line: None,
) -> ProbeResult:
    """Train a probe and its control on every layer; the same arguments give the same result.

    `metric` is accuracy (the default) or macro_f1 for tags.
    """
    metric = _metric(target, metric)
    labels = _labels(train, test) if target == "tags" else ()
    train_target = build_target(target, train, labels)
    test_target = build_target(target, test, labels)
    train_control, test_control = (control_target(train_target, part, seed) for part in (train_target, test_target))
    constant = constant_baseline(train_target, test_target)
    by_word = _statistics(word_baseline(train_target, test_target), test_target, constant, metric)
    control_constant = constant_baseline(train_control, test_control)
    scores: list[ExampleStatistics] = []
    controls: list[ExampleStatistics] = []
    converged: list[bool] = []
    for layer, train_states, test_states in _read_layers(reader, train, test):
        task = _fit(train_states, train_target, test_states, penalty)
        control = _fit(train_states, train_control, test_states, penalty)
        scores.append(_statistics(task.predictions, test_target, constant, metric))
        controls.append(_statistics(control.predictions, test_control, control_constant, metric))
        converged.append(task.has_converged and control.has_converged)
        notify(f"layer {layer}: {scores[-1].mean:.4g}, control {controls[-1].mean:.4g}")
    gains = compare_with(by_word, scores)
    layers = [
        LayerProbe(
            layer,
            score=score_interval(scores[layer]),
            control=score_interval(controls[layer]),
            selectivity=_difference(scores[layer], controls[layer]),
            gain=gain.difference,
            p_value=gain.p_value,
            has_converged=converged[layer],
        )
        for layer, gain in enumerate(gains)
    ]
    return ProbeResult(
        target,
        metric,
        backend=reader.backend_name,
        labels=labels,
        num_train_sentences=len(train),
        num_train_words=len(train_target.words),
        num_test_sentences=len(test),
        num_test_words=len(test_target.words),
        constant_baseline=score_interval(_statistics(constant, test_target, constant, metric)),
        word_baseline=score_interval(by_word),
        layers=tuple(layers),
    )


def _metric(target: str, metric: str) -> str:
    """Metric of a target: the requested one, or its default."""
    if target != "tags":
        if metric:
            raise UsageError(f"the metric {metric} is for tags: the target {target} is a number, scored by R²")
        return R2
    if metric and metric not in METRICS:
        raise UsageError(f"no metric {metric!r}{nearest(metric, METRICS)}: tags have {' and '.join(METRICS)}")
    return metric or METRICS[0]


def _labels(train: TaggedSentences, test: TaggedSentences) -> tuple[str, ...]:
    """Tags of the training words, then those that occur in the test words alone, which no probe can predict."""
    labels = tuple(dict.fromkeys([*train.tags, *test.tags]))
    if len(train.tags) < 2:
        raise DataError(f"all words have the tag {train.tags[0]!r:.80}", advice="is --label the right column?")
    return labels


def _read_layers(
    reader: LayerReader, train: TaggedSentences, test: TaggedSentences
) -> Iterator[tuple[int, States, States]]:
    """Yield each layer with its states at the training and the test words; few layers are in memory at a time."""
    sentences = [*train.sentences, *test.sentences]
    texts = [sentence.text for sentence in sentences]
    spans = [word_spans(sentence.words) for sentence in sentences]
    num_train_words = sum(len(sentence.words) for sentence in train.sentences)
    num_words = sum(map(len, spans))
    for group in layer_groups(reader.layer_sizes, num_words, STATE_BYTES):
        for layer, states in zip(group, reader.read(texts, spans, group), strict=True):
            yield layer, states[:num_train_words], states[num_train_words:]


def layer_groups(sizes: Sequence[int], num_words: int, max_bytes: int) -> list[list[int]]:
    """Successive layers of equal width whose states at all words fit into memory together; at least one each.

    >>> layer_groups([7, 9, 9, 9], num_words=10, max_bytes=800)
    [[0], [1, 2], [3]]
    """
    groups: list[list[int]] = []
    for size, layers in itertools.groupby(range(len(sizes)), key=lambda layer: sizes[layer]):
        of_width = list(layers)
        count = max(1, max_bytes // (4 * size * num_words))
        groups += [of_width[start : start + count] for start in range(0, len(of_width), count)]
    return groups


@dataclass(frozen=True)
class _Fit:
    predictions: Values
    has_converged: bool


def _fit(train_states: States, target: ProbeTarget, test_states: States, penalty: float) -> _Fit:
    """Train a probe on the training words and apply it to the test words."""
    if not target.is_classification:
        ridge = fit_ridge(train_states, target.values, penalty=penalty)
        return _Fit(ridge.outputs(test_states)[:, 0].astype(np.float64), has_converged=True)
    labels = target.values.astype(np.int64)
    probe = fit_logistic(train_states, labels, len(target.labels), penalty=penalty)
    return _Fit(probe.outputs(test_states).argmax(1).astype(np.float64), probe.has_converged)


def _statistics(predictions: Values, target: ProbeTarget, constant: Values, metric: str) -> ExampleStatistics:
    """What the score sums over sentences: right words and words, or squared errors of the probe and of the mean."""

    def sum_sentences(values: NDArray[np.generic]) -> Values:  # [words, K] → [sentences, K]
        sums = np.zeros((int(target.sentence_ids.max()) + 1, values.shape[1]))
        np.add.at(sums, target.sentence_ids, values)
        return sums

    if metric == R2:
        errors = np.stack([predictions - target.values, constant - target.values], axis=1)
        return ExampleStatistics(sum_sentences(errors**2)[None], explained_variance)
    if metric == "accuracy":
        is_right = (predictions == target.values)[:, None]
        return ExampleStatistics.from_ratios(sum_sentences(is_right), sum_sentences(np.ones_like(is_right)))
    one_hot = np.eye(len(target.labels))
    predicted, references = (one_hot[values.astype(np.int64)] for values in (predictions, target.values))
    return ExampleStatistics.from_ratios(
        sum_sentences(2 * predicted * references), sum_sentences(predicted + references)
    )


def explained_variance(sums: Values) -> Values:
    """R² of sums [..., 2]: squared errors, and squared distances from the training mean.

    >>> explained_variance(np.array([1.0, 4.0])).item()
    0.75
    """
    return np.asarray(1 - sums[..., 0] / np.maximum(sums[..., 1], 1e-12))


def _difference(first: ExampleStatistics, second: ExampleStatistics) -> ScoreInterval:
    test = paired_test(first, second, randomizations=1)
    return ScoreInterval(test.difference, test.low, test.high)
