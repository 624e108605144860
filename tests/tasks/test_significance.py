"""Intervals and paired tests: hand-computed values, exact enumerations and scipy; scores are those of the metrics."""

from __future__ import annotations

from dataclasses import replace
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
    compare_pairs,
    compare_with,
    compare_with_best,
    mean_ratio,
    paired_test,
    score_interval,
)
from tests.scale import scaled

TAGS = ("O", "B-x", "I-x", "B-y", "I-y")
WORDS = "the a cat dog sat ran on mat home . it rains".split()


def accuracy(num_right: int, size: int = 100) -> ExampleStatistics:
    """Statistics of an accuracy with so many right examples."""
    return ExampleStatistics.from_ratios(np.arange(size) < num_right, np.ones(size))


def constant_seeds(scores: Any, size: int = 2000) -> ExampleStatistics:
    """Seeds with these shares of every example, so that only seeds vary."""
    examples = np.ones(size)
    return ExampleStatistics.stack([ExampleStatistics.from_ratios(examples * score, examples) for score in scores])


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
            predictions=distort(answers, WORDS),
            references=answers,
            tasks=list(rng.choice(["one", "two"], count)),
            stories=[f"story {index // 3}" for index in range(count)],
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


def test_bleu_without_matches_of_an_order_is_that_of_sacrebleu() -> None:
    for hypothesis, reference in [
        ("the cat sat on a mat", "a cat ran on the mat"),
        ("a b c d e", "v w x y z"),
        ("the cat", "the cat"),
    ]:
        predictions = PredictedTranslations(predictions=[hypothesis], references=[reference])
        expected = compute_metric("bleu", predictions)
        assert collect_statistics("bleu", [predictions]).mean == pytest.approx(expected), hypothesis


@pytest.mark.parametrize("num_right", [0, 1, 7, 50, 90, 100])
def test_the_interval_of_a_proportion_is_that_of_clopper_and_pearson(num_right: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    interval = score_interval(accuracy(num_right))
    low, high = stats.binomtest(num_right, 100).proportion_ci(method="exact")
    assert interval.mean == pytest.approx(num_right)
    assert interval.low == pytest.approx(100 * low, abs=0.5)
    assert interval.high == pytest.approx(100 * high, abs=0.5)


def test_two_faultless_models_may_differ_as_much_as_their_examples_allow() -> None:
    test = paired_test(accuracy(100), accuracy(100))
    assert (test.low, test.high) == (pytest.approx(-3.6, abs=0.2), pytest.approx(3.6, abs=0.2))


def test_an_interval_of_seeds_is_that_of_student_s_t() -> None:
    model = constant_seeds([0.45, 0.5, 0.55])
    assert model.seed_scores.tolist() == pytest.approx([45, 50, 55])
    assert model.deviation == pytest.approx(5)
    interval = score_interval(model)
    margin = 4.303 * 5 / 3**0.5  # the quantile for 2 degrees of freedom
    assert (interval.low, interval.high) == (pytest.approx(50 - margin, rel=0.02), pytest.approx(50 + margin, rel=0.02))
    single = score_interval(constant_seeds([0.45]))
    assert (single.low, single.high) == (pytest.approx(45, abs=0.2), pytest.approx(45, abs=0.3))
    wide = score_interval(constant_seeds([0.2, 0.5, 0.8]))
    assert (wide.low, wide.high) == (0, 100)  # no accuracy lies beyond


@pytest.mark.parametrize("num_seeds", [3, 5])
def test_intervals_of_scores_and_differences_cover_the_truth_where_seeds_vary_most(num_seeds: int) -> None:
    rng = np.random.default_rng(1)
    num_simulations = scaled(1000, 120)
    covered = np.zeros(2)
    for _ in range(num_simulations):
        first, second = (constant_seeds(0.5 + 0.03 * rng.standard_normal(num_seeds), 500) for _ in range(2))
        interval = score_interval(first, samples=50)
        test = paired_test(first, second, samples=50, randomizations=1)
        covered += (interval.low <= 50 <= interval.high, test.low <= 0 <= test.high)
    assert (covered / num_simulations).min() >= scaled(0.93, 0.88)  # resampled seeds cover 75 % of three


def test_intervals_cover_the_truth_where_examples_and_seeds_vary() -> None:
    rng = np.random.default_rng(2)
    num_simulations = scaled(1000, 120)
    ones = np.ones(300)
    num_covered = 0
    for _ in range(num_simulations):
        difficulty = rng.beta(4, 1, size=300)  # of each example, for all seeds
        right = [rng.random(300) < difficulty + 0.02 * rng.standard_normal() for _ in range(3)]
        interval = score_interval(
            ExampleStatistics.stack([ExampleStatistics.from_ratios(seed, ones) for seed in right]), samples=100
        )
        num_covered += interval.low <= 80 <= interval.high
    assert num_covered / num_simulations >= scaled(0.93, 0.88)


def test_the_questions_about_a_story_count_as_one_example() -> None:
    is_right = np.random.default_rng(1).random(60) < 0.7
    of_stories = ExampleStatistics.from_ratios(is_right, np.ones(60))
    of_questions = replace(
        ExampleStatistics.from_ratios(np.repeat(is_right, 5), np.ones(300)), clusters=np.repeat(np.arange(60), 5)
    )
    interval = score_interval(of_questions)
    expected = score_interval(of_stories)
    assert (interval.low, interval.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    naive = score_interval(replace(of_questions, clusters=None))
    assert interval.high - interval.low > 2 * (naive.high - naive.low)
    worse = replace(of_questions, values=of_questions.values * [0.9, 1])
    worse_stories = replace(of_stories, values=of_stories.values * [0.9, 1])
    assert paired_test(of_questions, worse).p_value == paired_test(of_stories, worse_stories).p_value
    halves = of_questions.select(np.arange(300) < 150)
    assert halves.sum_clusters().num_examples == 30


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
    reference = accuracy(20, size=30)
    others = [accuracy(13, size=30), accuracy(19, size=30)]
    single = paired_test(others[0], reference)
    adjusted = compare_with(reference, others)
    assert adjusted[0].p_value == pytest.approx(2 * single.p_value)
    assert adjusted[0].difference == single.difference
    assert compare_with(reference, []) == []


def test_tests_against_the_best_are_adjusted_for_all_pairs() -> None:
    models = [accuracy(num_right) for num_right in (80, 71, 76, 90)]
    tests = compare_with_best(models, 3)
    assert [(index, test.difference) for index, test in tests.items()] == [(0, -10), (1, -19), (2, -14)]
    pairs = [(0, 3), (1, 3), (2, 3), (0, 1), (0, 2), (1, 2)]
    adjusted = adjust_p_values([paired_test(models[first], models[second]).p_value for first, second in pairs])
    assert [test.p_value for test in tests.values()] == pytest.approx(adjusted[:3])


def test_one_of_twelve_models_can_be_significantly_better() -> None:
    models = [accuracy(50)] * 11 + [accuracy(90)]
    tests = compare_with_best(models, 11)
    assert all(test.is_significant and test.p_value < 0.01 for test in tests.values())


@pytest.mark.slow
@pytest.mark.parametrize("is_verdict", [False, True])
def test_a_false_difference_from_the_best_is_found_in_at_most_5_percent_of_comparisons(is_verdict: bool) -> None:
    """Twelve equally good models, of which the best, or the best without attention, is chosen on the test data."""
    rng = np.random.default_rng(1)
    num_simulations = 300
    num_false = 0
    for _ in range(num_simulations):
        models = [ExampleStatistics.from_ratios(rng.random(150) < 0.7, np.ones(150)) for _ in range(12)]
        means = [model.mean for model in models]
        sizes = {"samples": 100, "randomizations": 4000}
        if is_verdict:
            pairs = [(0, plain) for plain in range(1, 12)]
            tests = [compare_pairs(models, pairs, **sizes)[int(np.argmax(means[1:]))]]
        else:
            tests = [*compare_with_best(models, int(np.argmax(means)), **sizes).values()]
        num_false += any(test.is_significant for test in tests)
    assert (
        num_false <= 24
    )  # 15 are 5 %; there are 34 where pairs with the best alone count, 37 in an unadjusted verdict


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
