"""Scores, tests and conclusion of a comparison, of predictions whose scores are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from regard.report.comparison.evaluation import Example, ModelEvaluation
from regard.report.comparison.report import ComparisonReport, build_report
from regard.tasks.predictions import PredictedStoryAnswers
from regard.tasks.significance import adjust_p_values
from tests.report.comparison.models import COUNT, model


def report(*models: ModelEvaluation, lengths: list[int] | None = None, **settings: Any) -> ComparisonReport:
    defaults: dict[str, Any] = {"task": "classify", "metric": "accuracy", "title": "t", "seeds": (1, 2, 3)}
    return build_report(list(models), lengths or [5] * COUNT, **{**defaults, **settings})


def test_the_score_is_the_mean_over_the_seeds_and_the_interval_contains_it() -> None:
    compared = report(model("a", [80, 84, 88]), model("b", [50, 50, 50])).models[0]
    assert compared.mean == pytest.approx(84)
    assert compared.statistics.deviation == pytest.approx(4)
    assert compared.interval.low < 80 < 88 < compared.interval.high
    assert compared.scores["accuracy"] == pytest.approx([80, 84, 88])
    assert set(compared.scores) >= {"accuracy", "macro_f1"}


def test_the_best_model_is_the_reference_of_every_test() -> None:
    comparison = report(model("worse", [40]), model("best", [90]), model("close", [89]))
    worse, best, close = comparison.models
    assert comparison.best is best
    assert best.test is None
    assert worse.test is not None and worse.test.difference == pytest.approx(-50) and worse.test.is_significant
    assert close.test is not None and close.test.difference == pytest.approx(-1) and not close.test.is_significant
    assert comparison.paired_test("best", "worse").difference == pytest.approx(50)


def test_the_conclusion_names_significant_differences_and_others() -> None:
    comparison = report(model("worse", [40]), model("best", [90]), model("close", [89]))
    assert comparison.conclusion.startswith("Best: best, accuracy 90.00 % (95 % interval 82.")
    sentence = "It is significantly better than worse; the difference from close is not significant."
    assert sentence in comparison.conclusion
    alone = report(model("a", [90]), model("b", [89]))
    assert "The difference from b is not significant." in alone.conclusion
    level = report(model("a", [90]), model("b", [89]), model("RNN, mean", [88]))
    assert "The differences from b and “RNN, mean” are not significant." in level.conclusion
    seeds = report(model("a", [90, 92, 94]), model("b", [40]), model("c", [41, 42, 43]))
    assert "mean of 3 seeds). It is significantly better than b and c." in seeds.conclusion


@pytest.mark.parametrize(
    ("attending", "plain", "first", "expected"),
    [
        (90, 50, 0, "attend (the best with attention) beats plain (the best without) by 40.0 points (2"),
        (50, 90, 0, "plain (the best without) beats attend (the best with attention) by 40.0 points"),
        (60, 60, 40, "do not differ significantly: 0.0 points"),
    ],
)
def test_the_conclusion_says_whether_attention_wins(attending: int, plain: int, first: int, expected: str) -> None:
    comparison = report(model("attend", [attending], has_attention=True), model("plain", [plain], first=first))
    assert expected in comparison.conclusion
    assert ("attention does not win here" in comparison.conclusion) == (plain > attending)


def test_pretrained_models_are_no_evidence_about_attention() -> None:
    tuned = model("tuned", [99], has_attention=True, is_pretrained=True)
    unknown = model("other", [98], has_attention=True, is_pretrained=None)
    assert report(tuned, unknown, model("plain", [90])).attention is None
    verdict = report(tuned, model("rnn", [80], has_attention=True), model("plain", [90])).attention
    assert verdict is not None
    assert (verdict.attending, verdict.plain) == ("rnn", "plain")


def test_the_verdict_names_a_baseline_and_is_adjusted_for_all_of_its_pairs() -> None:
    models = [
        model("attend", [60], has_attention=True),
        model("attend too", [55], has_attention=True),
        model("plain", [50]),
        model("word counts", [75], is_baseline=True),
    ]
    comparison = report(*models)
    verdict = comparison.attention
    assert verdict is not None and verdict.is_plain_baseline
    assert "word counts (a baseline, the best without) beats attend (the best with attention)" in comparison.conclusion
    pairs = [("attend", "plain"), ("attend too", "plain"), ("attend too", "word counts")]
    p_values = [comparison.paired_test(*pair).p_value for pair in (("attend", "word counts"), *pairs)]
    assert verdict.test.p_value == pytest.approx(adjust_p_values(p_values)[0])
    assert verdict.test.p_value > p_values[0]


def test_pairs_that_were_chosen_beforehand_are_adjusted_for_their_number() -> None:
    comparison = report(model("a", [80]), model("b", [71]), model("c", [60]))
    pairs = [("a", "b"), ("b", "c")]
    tests = comparison.paired_tests(pairs)
    p_values = adjust_p_values([comparison.paired_test(*pair).p_value for pair in pairs])
    assert [test.p_value for test in tests] == pytest.approx(p_values)
    assert [test.difference for test in tests] == pytest.approx([9, 11])


def test_the_smaller_error_is_the_better_one() -> None:
    def answers(num_right: int) -> PredictedStoryAnswers:
        predictions = ["hall" if index < num_right else "garden" for index in range(40)]
        return PredictedStoryAnswers(predictions=predictions, references=["hall"] * 40, tasks=["one"] * 40)

    def story_model(name: str, num_right: int, *, has_attention: bool) -> ModelEvaluation:
        example = Example("hall", has_attention=has_attention)
        return ModelEvaluation(name, "", 1, [answers(num_right)], 1.0, is_pretrained=False, example=example)

    models = [story_model("counts", 10, has_attention=False), story_model("memory", 38, has_attention=True)]
    comparison = build_report(models, [5] * 40, task="story-qa", metric="error", title="t")
    assert comparison.best.name == "memory"
    assert comparison.models[0].test is not None and comparison.models[0].test.difference == pytest.approx(70)
    assert "memory (the best with attention) beats counts (the best without) by 70.0 points" in comparison.conclusion


def test_scores_by_length_are_those_of_the_texts_of_each_length() -> None:
    lengths = [5] * 40 + [15] * 20 + [70] * 40
    comparison = report(model("early", [40]), model("all", [90]), lengths=lengths)
    early, everywhere = comparison.models
    assert [(group.words, group.examples, group.score) for group in early.by_length] == [
        ("1–10", 40, 100.0),
        ("11–20", 20, 0.0),
        ("over 60", 40, 0.0),
    ]
    assert [group.score for group in everywhere.by_length] == pytest.approx([100, 100, 75])
    assert early.retained_on_long == 0
    assert everywhere.retained_on_long == pytest.approx(0.75)
    assert comparison.conclusion.endswith(
        "On texts of over 40 words all keeps 75 % of its accuracy on those of up to 20, early 0 %."
    )


def test_few_long_texts_are_no_reason_for_a_conclusion() -> None:
    comparison = report(model("a", [40]), model("b", [90]), lengths=[5] * 90 + [70] * 10)
    assert comparison.models[0].retained_on_long is None
    assert "words" not in comparison.conclusion


def test_the_json_form_has_plain_values_alone() -> None:
    values = report(model("a", [80, 84]), model("b", [50, 52], has_attention=True), text="x", reference="y").to_dict()
    assert values["models"][0]["test"] is None
    test = values["models"][1]["test"]
    assert test is not None and test["significant"] is True
    assert values["models"][1]["scores"]["accuracy"] == [50.0, 52.0]
    assert values["attention"] is not None and values["attention"]["plain"] == "a"
    assert isinstance(values["models"][0]["low"], float)
    assert not isinstance(values["models"][0]["score"], np.floating)
