"""Intervals and paired tests: hand-computed values, exact enumerations and scipy; scores are those of the metrics."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from regard.data.squad import SquadExample
from regard.errors import UsageError
from regard.metric_table import METRICS
from regard.registry import resolve
from regard.tasks.example_statistics import collect_statistics
from regard.tasks.predictions import (
    PredictedEntities,
    PredictedLabels,
    PredictedLabelSets,
    PredictedNextTokens,
    PredictedStoryAnswers,
    PredictedTags,
    PredictedTranslations,
    Predictions,
    TokenBlocks,
)
from regard.tasks.question_answering import PredictedAnswers
from regard.tasks.scoring import compute_metric
from regard.tasks.significance import (
    ExampleStatistics,
    adjust_p_values,
    compare_with,
    mean_ratio,
    paired_test,
    score_interval,
)

TAGS = ("O", "B-x", "I-x", "B-y", "I-y")
WORDS = "the a cat dog sat ran on mat home . it rains".split()


def random_predictions(seed: int, count: int = 61) -> list[Predictions]:
    """Predictions of every kind that has statistics, right more often than not."""
    rng = np.random.default_rng(seed)

    def distort(values: Any, choices: Any) -> Any:
        return [rng.choice(choices) if rng.random() < 0.3 else value for value in values]

    losses = rng.random(count) * 90
    tokens = rng.integers(1, 40, count)
    labels = rng.integers(0, 4, count)
    label_sets = rng.random((count, 5)) < 0.3
    tags = [[str(tag) for tag in rng.choice(TAGS, rng.integers(1, 9))] for _ in range(count)]
    texts = [" ".join(rng.choice(WORDS, rng.integers(4, 12))) for _ in range(count)]
    answers = [str(answer) for answer in rng.choice(WORDS, count)]
    tagged: dict[str, Any] = {"predictions": [distort(sentence, TAGS) for sentence in tags], "references": tags}
    return [
        PredictedNextTokens(
            loss=float(losses.sum() / tokens.sum()), loss_per_character=0.5, blocks=TokenBlocks(losses, tokens)
        ),
        PredictedLabels(predictions=np.array(distort(labels, range(5))), references=labels, labels="abcde"),
        PredictedLabelSets(
            predictions=label_sets ^ (rng.random((count, 5)) < 0.2), references=label_sets, labels="abcde"
        ),
        PredictedTags(**tagged),
        PredictedEntities(**tagged),
        PredictedAnswers(
            predictions=distort(answers, [*WORDS, ""]),
            references=[SquadExample("?", text, ((0, word),)) for text, word in zip(texts, answers, strict=True)],
        ),
        PredictedStoryAnswers(
            predictions=distort(answers, WORDS), references=answers, tasks=list(rng.choice(["one", "two"], count))
        ),
        PredictedTranslations(
            predictions=[" ".join(distort(text.split(), WORDS)).capitalize() for text in texts], references=texts
        ),
    ]


def test_the_statistics_of_all_examples_give_the_value_of_the_metric() -> None:
    checked = set()
    for seed in range(3):
        for predictions in random_predictions(seed):
            for name, metric in METRICS.items():
                if predictions.kind in metric.statistics:
                    statistics = collect_statistics(name, [predictions])
                    assert statistics.mean == pytest.approx(compute_metric(name, predictions)), (name, predictions.kind)
                    checked.add((name, predictions.kind))
    rows = {(name, kind) for name, metric in METRICS.items() for kind in metric.statistics}
    assert checked == rows
    assert all(
        METRICS[name].functions[kind] and callable(resolve(METRICS[name].statistics[kind])) for name, kind in rows
    )


def test_bleu_of_some_sentences_is_that_of_their_corpus() -> None:
    predictions = random_predictions(5)[-1]
    assert isinstance(predictions, PredictedTranslations)
    chosen = np.array([3, 7, 7, 20])  # as a bootstrap sample, a sentence may occur twice
    corpus = PredictedTranslations(
        predictions=[predictions.predictions[index] for index in chosen],
        references=[predictions.references[index] for index in chosen],
    )
    statistics = collect_statistics("bleu", [predictions]).select(chosen)
    assert statistics.mean == pytest.approx(compute_metric("bleu", corpus))


def test_models_may_number_the_labels_differently() -> None:
    first = PredictedLabels(predictions=np.array([0, 1, 1]), references=np.array([0, 1, 0]), labels=["no", "yes"])
    second = PredictedLabels(predictions=np.array([1, 0, 0]), references=np.array([1, 0, 1]), labels=["yes", "no"])
    statistics = [collect_statistics("macro_f1", [predictions]) for predictions in (first, second)]
    assert np.array_equal(statistics[0].values, statistics[1].values)


def test_a_metric_without_statistics_is_refused_with_those_that_have_them() -> None:
    with pytest.raises(UsageError, match=r"mcc of predictions that are labels .* choose one of accuracy, macro_f1"):
        collect_statistics("mcc", [random_predictions(1)[1]])


def test_a_loss_of_the_whole_text_alone_has_no_interval() -> None:
    with pytest.raises(UsageError, match="predict it in blocks"):
        collect_statistics("loss", [PredictedNextTokens(loss=1.0, loss_per_character=0.5)])


def test_the_interval_of_an_accuracy_is_that_of_scipy_s_bootstrap() -> None:
    stats = pytest.importorskip("scipy.stats")
    right = np.random.default_rng(1).random(211) < 0.8
    interval = score_interval(ExampleStatistics.from_ratios(right, np.ones(211)))
    expected = stats.bootstrap((100.0 * right,), np.mean, method="percentile", n_resamples=4000, rng=1)
    assert interval.mean == pytest.approx(100 * right.mean())
    assert interval.low == pytest.approx(expected.confidence_interval.low, abs=0.8)
    assert interval.high == pytest.approx(expected.confidence_interval.high, abs=0.8)


def test_an_interval_includes_the_differences_between_seeds() -> None:
    examples = np.ones(50)
    seeds = [ExampleStatistics.from_ratios(examples * share, examples) for share in (0.2, 0.5, 0.8)]
    model = ExampleStatistics.stack(seeds)
    assert model.seed_scores.tolist() == pytest.approx([20, 50, 80])
    assert model.mean == pytest.approx(50)
    assert model.deviation == pytest.approx(30)
    interval = score_interval(model)
    # all examples are equal, so that only seeds vary: 1 draw in 27 takes the worst one three times
    assert (interval.low, interval.high) == (pytest.approx(20), pytest.approx(80))
    single = score_interval(seeds[0])
    assert (single.low, single.high) == (pytest.approx(20), pytest.approx(20))


def test_the_p_value_is_that_of_an_exact_randomization_test() -> None:
    first = np.array([1, 1, 1, 1, 1, 1, 0, 1, 1.0])
    second = np.array([0, 1, 0, 0, 1, 0, 1, 0, 0.0])
    ones = np.ones(9)
    differences = first - second
    signs = np.array(list(product([1, -1], repeat=9)))
    exact = np.mean(np.abs(signs @ differences) >= abs(differences.sum()))
    test = paired_test(ExampleStatistics.from_ratios(first, ones), ExampleStatistics.from_ratios(second, ones))
    assert test.difference == pytest.approx(100 * differences.mean())
    assert test.p_value == pytest.approx(exact, abs=0.02)
    mirrored = paired_test(ExampleStatistics.from_ratios(second, ones), ExampleStatistics.from_ratios(first, ones))
    assert mirrored.p_value == pytest.approx(test.p_value, abs=0.02)
    assert mirrored.difference == -test.difference


def test_the_p_value_of_a_corpus_metric_is_exact_too() -> None:
    """F1 of entities: exchanging a sentence exchanges its predicted and its right entities together."""
    first = np.array([[4, 4], [2, 3], [0, 1], [2, 2], [4, 5], [2, 4]], dtype=float)  # 2 × right, predicted + true
    second = np.array([[2, 4], [0, 2], [2, 3], [0, 2], [2, 4], [2, 3]], dtype=float)
    observed = mean_ratio(first.sum(0)) - mean_ratio(second.sum(0))
    count = 0
    for exchange in product([False, True], repeat=6):
        mask = np.array(exchange)[:, None]
        difference = mean_ratio(np.where(mask, second, first).sum(0)) - mean_ratio(np.where(mask, first, second).sum(0))
        count += abs(difference) >= abs(observed) - 1e-9
    test = paired_test(ExampleStatistics(first[None]), ExampleStatistics(second[None]))
    assert test.p_value == pytest.approx(count / 64, abs=0.02)


def test_equal_models_do_not_differ_and_noise_rarely_does() -> None:
    rng = np.random.default_rng(3)
    ones = np.ones(83)
    same = ExampleStatistics.from_ratios(rng.random(83) < 0.5, ones)
    assert paired_test(same, same).p_value == 1
    assert not paired_test(same, same).is_significant
    pairs = [[ExampleStatistics.from_ratios(rng.random(83) < 0.5, ones) for _ in range(2)] for _ in range(60)]
    tests = [paired_test(*pair, samples=300, randomizations=300) for pair in pairs]
    assert sum(test.is_significant for test in tests) <= 8  # 3 are expected


def test_seeds_that_disagree_make_a_difference_insignificant() -> None:
    """On its examples each model surely differs, but another seed could turn the difference round."""
    ones = np.ones(100)
    reference = ExampleStatistics.from_ratios(np.arange(100) < 50, ones)
    unstable = ExampleStatistics.stack(
        [ExampleStatistics.from_ratios(np.arange(100) < share, ones) for share in (30, 90, 90)]
    )
    test = paired_test(unstable, reference)
    assert test.difference == pytest.approx(20)
    assert test.p_value < 0.05
    assert test.low < 0 < test.high
    assert not test.is_significant


def test_a_single_seed_is_compared_with_each_of_several() -> None:
    ones = np.ones(40)
    baseline = ExampleStatistics.from_ratios(np.arange(40) % 2, ones)
    model = ExampleStatistics.stack([ExampleStatistics.from_ratios(np.arange(40) % 4 > 0, ones)] * 3)
    assert paired_test(model, baseline).difference == pytest.approx(25)
    repeated = ExampleStatistics.stack([baseline] * 3)
    assert paired_test(model, repeated).p_value == paired_test(model, baseline).p_value


def test_holm_s_adjustment_is_that_of_its_definition() -> None:
    assert adjust_p_values([]) == []
    assert adjust_p_values([0.2]) == [0.2]
    assert adjust_p_values([0.5, 0.001, 0.02, 0.6]) == pytest.approx([1.0, 0.004, 0.06, 1.0])
    reference = ExampleStatistics.from_ratios(np.arange(30) < 20, np.ones(30))
    others = [ExampleStatistics.from_ratios(np.arange(30) < count, np.ones(30)) for count in (13, 19)]
    single = paired_test(others[0], reference)
    adjusted = compare_with(reference, others)
    assert adjusted[0].p_value == pytest.approx(2 * single.p_value)
    assert adjusted[0].difference == single.difference


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ((1, 5), (1, 6), "5 examples cannot be compared with 6"),
        ((2, 5), (3, 5), "2 seeds cannot be compared with 3"),
        ((1, 0), (1, 0), "nothing to compare"),
    ],
)
def test_models_with_different_examples_or_seeds_are_refused(
    first: tuple[int, int], second: tuple[int, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        paired_test(*(ExampleStatistics(np.ones((*size, 2))) for size in (first, second)))
