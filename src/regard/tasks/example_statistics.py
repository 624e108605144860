"""What each metric of the table sums over examples: predictions of one kind in, statistics of one seed out.

The functions stand in the rows of `METRICS`, beside those that compute the metrics; for all examples together, their
sums give the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError
from regard.metric_table import METRICS
from regard.registry import resolve
from regard.tasks.entities import entity_counts
from regard.tasks.metrics import MAX_PERPLEXITY
from regard.tasks.predictions import (
    PredictedLabels,
    PredictedLabelSets,
    PredictedNextTokens,
    PredictedStoryAnswers,
    PredictedTags,
    PredictedTranslations,
    Predictions,
)
from regard.tasks.significance import ExampleStatistics, FloatArray

if TYPE_CHECKING:
    from regard.tasks.question_answering import PredictedAnswers

Counts = NDArray[np.int64]


def collect_statistics(metric: str, predictions: Sequence[Predictions]) -> ExampleStatistics:
    """Statistics of a metric for the predictions of one model, one element for each seed.

    >>> labels = PredictedLabels(predictions=np.array([0, 1]), references=np.array([0, 0]), labels=["no", "yes"])
    >>> collect_statistics("accuracy", [labels, labels]).seed_scores.tolist()
    [50.0, 50.0]
    """
    kind = predictions[0].kind
    function = resolve(METRICS[metric].statistics.get(kind))
    if function is None:
        names = [name for name, row in METRICS.items() if kind in row.statistics]
        raise UsageError(
            f"the metric {metric} of predictions that are {kind} says nothing of single examples, so it has no "
            f"confidence interval: choose one of {', '.join(names) or 'another task'}"
        )
    return ExampleStatistics.stack([function(seed) for seed in predictions])


# ---- losses


def token_loss(predictions: PredictedNextTokens) -> ExampleStatistics:
    """Loss and number of the tokens of each block."""
    return _blocks(predictions, mean_loss)


def perplexity(predictions: PredictedNextTokens) -> ExampleStatistics:
    """Loss and number of the tokens of each block."""
    return _blocks(predictions, _perplexity)


def _blocks(predictions: PredictedNextTokens, score: Callable[[FloatArray], FloatArray]) -> ExampleStatistics:
    blocks = predictions.blocks
    if blocks is None:
        raise UsageError("these predictions have a loss of the whole text alone: predict it in blocks")
    return ExampleStatistics(np.stack([blocks.losses, blocks.tokens], axis=1)[None], score)


def mean_loss(sums: FloatArray) -> FloatArray:
    """Loss per token, from sums [..., 2]."""
    return np.asarray(sums[..., 0] / np.maximum(1, sums[..., 1]))


def _perplexity(sums: FloatArray) -> FloatArray:
    return np.exp(np.minimum(mean_loss(sums), np.log(MAX_PERPLEXITY)))


# ---- labels


def label_accuracy(predictions: PredictedLabels) -> ExampleStatistics:
    """Right labels, of all texts."""
    return _share(predictions.predictions == predictions.references)


def label_macro_f1(predictions: PredictedLabels) -> ExampleStatistics:
    """Twice the right labels, of all predicted and all true ones, by label."""
    one_hot = np.eye(len(predictions.labels), dtype=np.int64)
    return _f1_by_label(one_hot[predictions.predictions], one_hot[predictions.references], predictions.labels)


def label_set_macro_f1(predictions: PredictedLabelSets) -> ExampleStatistics:
    """Twice the right labels, of all predicted and all true ones, by label."""
    counts = (predictions.predictions.astype(np.int64), predictions.references.astype(np.int64))
    return _f1_by_label(*counts, predictions.labels)


def label_set_micro_f1(predictions: PredictedLabelSets) -> ExampleStatistics:
    """Twice the right labels, of all predicted and all true ones."""
    num_correct = (predictions.predictions & predictions.references).sum(1)
    return ExampleStatistics.from_ratios(
        2 * num_correct, predictions.predictions.sum(1) + predictions.references.sum(1)
    )


def label_set_exact_match(predictions: PredictedLabelSets) -> ExampleStatistics:
    """Texts with exactly the right labels, of all."""
    return _share((predictions.predictions == predictions.references).all(1))


def _share(is_right: NDArray[np.bool_] | FloatArray) -> ExampleStatistics:
    return ExampleStatistics.from_ratios(is_right, np.ones(len(is_right)))


def _f1_by_label(predicted: Counts, references: Counts, labels: Sequence[str]) -> ExampleStatistics:
    """Statistics from tables [examples, labels]; their columns are sorted, as models may number labels differently."""
    order = np.argsort(list(labels))
    predicted = predicted[:, order]
    references = references[:, order]
    return ExampleStatistics.from_ratios(2 * predicted * references, predicted + references)


# ---- tags and entities


def tag_accuracy(predictions: PredictedTags) -> ExampleStatistics:
    """Words with the right tag, of all words."""
    pairs = [*zip(predictions.predictions, predictions.references, strict=True)]
    num_correct = [sum(tag == reference for tag, reference in zip(*pair, strict=True)) for pair in pairs]
    return ExampleStatistics.from_ratios(num_correct, [len(references) for _, references in pairs])


def entity_f1(predictions: PredictedTags) -> ExampleStatistics:
    """Twice the right entities, of all predicted and all true ones."""
    correct, predicted, references = _entities(predictions)
    return ExampleStatistics.from_ratios(2 * correct, predicted + references)


def entity_precision(predictions: PredictedTags) -> ExampleStatistics:
    """Right entities, of the predicted ones."""
    correct, predicted, _ = _entities(predictions)
    return ExampleStatistics.from_ratios(correct, predicted)


def entity_recall(predictions: PredictedTags) -> ExampleStatistics:
    """Right entities, of the true ones."""
    correct, _, references = _entities(predictions)
    return ExampleStatistics.from_ratios(correct, references)


def _entities(predictions: PredictedTags) -> Counts:  # [3, sentences]
    counts: Counts = entity_counts(predictions.predictions, predictions.references)[:, 0].T
    return counts


# ---- answers


def answer_exact_match(predictions: PredictedAnswers) -> ExampleStatistics:
    """Answers that equal a reference, of all."""
    return _share(_answer_matches(predictions)[0])


def answer_f1(predictions: PredictedAnswers) -> ExampleStatistics:
    """F1 of each answer's words."""
    return _share(_answer_matches(predictions)[1])


def _answer_matches(predictions: PredictedAnswers) -> tuple[FloatArray, FloatArray]:
    from regard.tasks.question_answering import answer_matches

    return answer_matches(predictions.predictions, predictions.references)


def story_accuracy(predictions: PredictedStoryAnswers) -> ExampleStatistics:
    """Right answers, of the questions of each task; the questions about a story are a cluster."""
    return _count_by_task(predictions, np.array(predictions.predictions) == np.array(predictions.references))


def story_error(predictions: PredictedStoryAnswers) -> ExampleStatistics:
    """Wrong answers, of the questions of each task; the questions about a story are a cluster."""
    return _count_by_task(predictions, np.array(predictions.predictions) != np.array(predictions.references))


def _count_by_task(predictions: PredictedStoryAnswers, is_counted: NDArray[np.bool_]) -> ExampleStatistics:
    in_task = _task_table(predictions)
    statistics = ExampleStatistics.from_ratios(is_counted[:, None] * in_task, in_task)
    return replace(statistics, clusters=np.array(predictions.stories) if predictions.stories else None)


def _task_table(predictions: PredictedStoryAnswers) -> NDArray[np.bool_]:  # [questions, tasks]
    """Which task each question belongs to."""
    tasks = list(dict.fromkeys(predictions.tasks))
    return np.array([[task == name for name in tasks] for task in predictions.tasks])


# ---- translations


def bleu(predictions: PredictedTranslations) -> ExampleStatistics:
    """Lengths, and right and predicted n-grams of each order."""
    return _bleu(predictions, lowercase=False)


def bleu_lowercase(predictions: PredictedTranslations) -> ExampleStatistics:
    """The same of lower-cased texts."""
    return _bleu(predictions, lowercase=True)


def _bleu(predictions: PredictedTranslations, *, lowercase: bool) -> ExampleStatistics:
    from sacrebleu.metrics import BLEU

    metric = BLEU(lowercase=lowercase, effective_order=True)  # as sentences need it; their n-grams are the same
    rows = []
    for hypothesis, reference in zip(predictions.predictions, predictions.references, strict=True):
        score = metric.sentence_score(hypothesis, [reference])
        rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
    return ExampleStatistics(np.array(rows, dtype=np.float64)[None], _corpus_bleu)


def _corpus_bleu(sums: FloatArray) -> FloatArray:
    """BLEU of sums [..., 2 + 2 × orders], as `bleu` of `named_metrics` computes it, for many sums at once.

    Like sacrebleu, it counts ½, ¼, … of an n-gram as right for the orders in which none is.
    """
    lengths = sums[..., :2]
    correct, total = np.split(sums[..., 2:], 2, axis=-1)
    num_without_match = np.cumsum(correct == 0, axis=-1)
    precisions = np.where(correct > 0, correct, 0.5**num_without_match) / np.maximum(total, 1e-9)
    brevity = np.exp(np.minimum(0.0, 1 - lengths[..., 1] / np.maximum(lengths[..., 0], 1e-9)))
    is_zero = (total == 0).any(-1) | (correct == 0).all(-1)
    return np.asarray(np.where(is_zero, 0.0, 100 * brevity * np.exp(np.log(precisions).mean(-1))))


def ter(predictions: PredictedTranslations) -> ExampleStatistics:
    """Edits, of the words of the references."""
    from sacrebleu.metrics import TER

    metric = TER()
    scores = [
        metric.sentence_score(hypothesis, [reference])
        for hypothesis, reference in zip(predictions.predictions, predictions.references, strict=True)
    ]
    edits = [score.num_edits for score in scores]
    return ExampleStatistics.from_ratios(edits, [score.ref_length for score in scores], is_share=False)


def translation_exact_match(predictions: PredictedTranslations) -> ExampleStatistics:
    """Translations that equal their reference, of all."""
    return _share(np.array(predictions.predictions) == np.array(predictions.references))
