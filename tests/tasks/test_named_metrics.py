"""Metrics by name: the same values as scikit-learn and sacrebleu, or as counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from regard.data.squad import SquadExample
from regard.errors import UsageError
from regard.metric_table import METRICS, metrics_of
from regard.registry import TASKS, resolve
from regard.tasks.predictions import (
    PredictedBothDirections,
    PredictedEntities,
    PredictedLabels,
    PredictedLabelSets,
    PredictedMaskedTokens,
    PredictedNextTokens,
    PredictedStoryAnswers,
    PredictedTags,
    PredictedTranslations,
)
from regard.tasks.question_answering import PredictedAnswers
from regard.tasks.scoring import Scoring, compute_metric, translation_scores

LABELS = ("a", "b", "c", "d", "e")
HYPOTHESES = ["the cat sat on a mat", "two dogs ran home", "It rains ."]
REFERENCES = ["the cat sat on the mat", "two dogs ran home", "it is raining ."]


def random_labels(seed: int, *, num_labels: int = 5, count: int = 97) -> PredictedLabels:
    """Predictions that are right about half of the time; the last label never occurs as a reference."""
    rng = np.random.default_rng(seed)
    references = rng.integers(0, num_labels - 1, count)
    guesses = rng.integers(0, num_labels, count)
    predictions = np.where(rng.random(count) < 0.5, references, guesses)
    return PredictedLabels(predictions=predictions, references=references, labels=LABELS[:num_labels])


@pytest.mark.parametrize("num_labels", [2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_labels_are_those_of_scikit_learn(seed: int, num_labels: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    labels = random_labels(seed, num_labels=num_labels)
    truth = (labels.references, labels.predictions)
    expected = {
        "accuracy": metrics.accuracy_score(*truth),
        "macro_f1": metrics.f1_score(*truth, average="macro", zero_division=0),
        "micro_f1": metrics.f1_score(*truth, average="micro"),
        "weighted_f1": metrics.f1_score(*truth, average="weighted", zero_division=0),
        "mcc": metrics.matthews_corrcoef(*truth),
    }
    for name, value in expected.items():
        assert compute_metric(name, labels) == pytest.approx(100 * value), name


def test_matthews_correlation_is_zero_where_all_predictions_are_the_same() -> None:
    labels = PredictedLabels(predictions=np.zeros(4, int), references=np.array([0, 1, 1, 0]), labels=LABELS[:2])
    assert compute_metric("mcc", labels) == 0


@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_label_sets_are_those_of_scikit_learn(seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    references = rng.random((53, 5)) < 0.3
    predictions = references ^ (rng.random((53, 5)) < 0.2)
    sets = PredictedLabelSets(predictions=predictions, references=references, labels=LABELS)
    for average in ("micro", "macro", "weighted"):
        expected = metrics.f1_score(references, predictions, average=average, zero_division=0)
        assert compute_metric(f"{average}_f1", sets) == pytest.approx(100 * expected)
    assert compute_metric("exact_match", sets) == pytest.approx(100 * metrics.accuracy_score(references, predictions))


def test_metrics_of_translations_are_those_of_sacrebleu() -> None:
    import sacrebleu

    scores = translation_scores(HYPOTHESES, REFERENCES)
    references = [REFERENCES]
    expected = {
        "bleu": sacrebleu.corpus_bleu(HYPOTHESES, references),
        "bleu_lowercase": sacrebleu.corpus_bleu(HYPOTHESES, references, lowercase=True),
        "chrf": sacrebleu.corpus_chrf(HYPOTHESES, references),
        "ter": sacrebleu.corpus_ter(HYPOTHESES, references),
    }
    for name, score in expected.items():
        assert scores[name] == pytest.approx(score.score), name
    assert scores["exact_match"] == pytest.approx(100 / 3)
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed|")
    assert scores["bleu_lowercase_signature"].startswith("nrefs:1|case:lc|")
    assert "nc:6" in scores["chrf_signature"] and "tok:tercom" in scores["ter_signature"]


def test_metrics_of_entities_and_tags() -> None:
    references = [["B-x", "I-x", "O", "B-y"], ["O", "B-x"]]
    predictions = [["B-x", "I-x", "O", "B-x"], ["B-y", "B-x"]]  # 2 of 4 predicted entities, 2 of 3 references
    entities = PredictedEntities(predictions=predictions, references=references)
    assert compute_metric("precision", entities) == pytest.approx(50)
    assert compute_metric("recall", entities) == pytest.approx(200 / 3)
    assert compute_metric("f1", entities) == pytest.approx(400 / 7)
    assert compute_metric("accuracy", entities) == pytest.approx(400 / 6)
    tags = PredictedTags(predictions=[["N", "V"]], references=[["N", "N"]])
    assert compute_metric("accuracy", tags) == 50


def test_metrics_of_answers() -> None:
    examples = [SquadExample("Who?", "Denver Broncos won.", ((0, "Denver Broncos"),)), SquadExample("When?", "x")]
    answers = PredictedAnswers(predictions=["Denver", ""], references=examples)
    assert compute_metric("exact_match", answers) == 50
    assert compute_metric("f1", answers) == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert compute_metric("answerable_f1", answers) == pytest.approx(200 / 3)
    assert compute_metric("no_answer_f1", answers) == 100
    answered = PredictedAnswers(predictions=["Denver"], references=examples[:1])
    assert compute_metric("no_answer_f1", answered) is None


def test_every_task_of_stories_has_the_same_weight() -> None:
    stories = PredictedStoryAnswers(predictions=list("aaab"), references=list("abbb"), tasks=list("1112"))
    assert compute_metric("error", stories) == pytest.approx(100 / 3)
    assert compute_metric("accuracy", stories) == pytest.approx(200 / 3)


def test_metrics_of_tokens() -> None:
    text = PredictedNextTokens(loss=np.log(8), loss_per_character=0.7)
    assert compute_metric("perplexity", text) == pytest.approx(8)
    assert compute_metric("loss_per_character", text) == 0.7
    both = PredictedBothDirections(loss=2.0, forward_loss=np.log(3), backward_loss=np.log(5))
    assert compute_metric("perplexity_forward", both) == pytest.approx(3)
    assert compute_metric("perplexity_backward", both) == pytest.approx(5)
    ids = np.array([3, 5, 7, 11])
    masked = PredictedMaskedTokens(
        loss=1.0, references=ids, predict=lambda: np.array([3, 5, 7, 2]), unigram_loss=np.log(13)
    )
    assert compute_metric("accuracy", masked) == 75
    assert compute_metric("perplexity_unigram", masked) == pytest.approx(13)
    assert compute_metric("next_accuracy", masked) is None


def test_a_baseline_is_reported_but_selects_no_model() -> None:
    assert "perplexity_unigram" in TASKS["masked-lm"].metrics["masked tokens"].reported
    assert not [name for task in TASKS for name in metrics_of(task) if METRICS[name].is_baseline]
    for kind in ("", "masked tokens"):
        with pytest.raises(UsageError, match="perplexity_unigram is that of a baseline.*: choose one of loss, perpl"):
            Scoring("masked-lm", ("perplexity_unigram",)).check(kind)


def test_every_row_has_functions_and_every_default_of_a_task_is_a_row() -> None:
    for metric in METRICS.values():
        functions = [resolve(function) for function in metric.functions.values()]
        assert functions and all(callable(function) for function in functions)
        assert metric.format.format(1.5)
    for task in TASKS.values():
        for kind, names in task.metrics.items():
            assert set(names.ranking) <= {*names.reported}
            for name in (*names.reported, *names.final):
                assert kind in METRICS[name].functions, (kind, name)


def test_translations_need_as_many_references() -> None:
    from regard.errors import UsageError

    with pytest.raises(UsageError, match="3 translations cannot be compared with 2 references"):
        translation_scores(HYPOTHESES, REFERENCES[:2])
    assert PredictedTranslations(predictions=HYPOTHESES, references=REFERENCES).loss is None
