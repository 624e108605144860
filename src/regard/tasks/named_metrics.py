"""The functions of the table of metrics: predictions of one kind in, a number out; None where the data has none.

Shares are in percent; the Matthews correlation is times 100.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard.tasks import metrics
from regard.tasks.calibration import multi_label_f1
from regard.tasks.predictions import (
    PredictedBothDirections,
    PredictedLabels,
    PredictedLabelSets,
    PredictedMaskedTokens,
    PredictedNextTokens,
    PredictedStoryAnswers,
    PredictedTags,
    PredictedTranslations,
    Predictions,
)

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacrebleuMetric

    from regard.tasks.question_answering import PredictedAnswers

Counts = NDArray[np.int64]  # [labels]


# ---- losses


def loss(predictions: Predictions) -> float | None:
    """Mean loss, in nats."""
    return predictions.loss


def perplexity(predictions: Predictions) -> float | None:
    """Exponential of the mean loss, at most a million."""
    return _perplexity(predictions.loss)


def loss_per_character(predictions: PredictedNextTokens) -> float:
    """Loss of the text over its number of characters, in nats."""
    return predictions.loss_per_character


def forward_perplexity(predictions: PredictedBothDirections) -> float | None:
    """Perplexity from left to right."""
    return _perplexity(predictions.forward_loss)


def backward_perplexity(predictions: PredictedBothDirections) -> float | None:
    """Perplexity from right to left."""
    return _perplexity(predictions.backward_loss)


def unigram_perplexity(predictions: PredictedMaskedTokens) -> float | None:
    """Perplexity of token frequencies at the same masks."""
    return _perplexity(predictions.unigram_loss)


def _perplexity(mean_loss: float | None) -> float | None:
    return None if mean_loss is None else metrics.perplexity(mean_loss, 1)


def masked_accuracy(predictions: PredictedMaskedTokens) -> float:
    """Share of the masks whose most probable token is the original one."""
    return 100 * float((predictions.predictions == predictions.references).mean())


def next_sentence_accuracy(predictions: PredictedMaskedTokens) -> float | None:
    """Accuracy of next-sentence prediction, where there are pairs of sentences."""
    return predictions.next_sentence_accuracy


# ---- labels


def label_accuracy(predictions: PredictedLabels) -> float:
    """Share of the texts with the right label."""
    return metrics.label_scores(predictions.confusion)["accuracy"]


def label_macro_f1(predictions: PredictedLabels) -> float:
    """Mean F1 over the labels that occur, as reference or as prediction."""
    return metrics.label_scores(predictions.confusion)["macro_f1"]


def label_micro_f1(predictions: PredictedLabels) -> float:
    """F1 over all pairs of text and label; with one label per text, the accuracy."""
    return label_accuracy(predictions)


def label_weighted_f1(predictions: PredictedLabels) -> float:
    """Mean F1 over the labels, weighted by the number of their references.

    >>> labels = PredictedLabels(predictions=np.array([0, 0, 1]), references=np.array([0, 1, 1]), labels=["a", "b"])
    >>> round(label_weighted_f1(labels), 2)
    66.67
    """
    confusion = predictions.confusion
    return _weighted_f1(np.diag(confusion), confusion.sum(0), confusion.sum(1))


def matthews_correlation(predictions: PredictedLabels) -> float:
    """Correlation of predictions and references (Matthews 1975; several labels: Gorodkin 2004), times 100.

    0 where all predictions or all references are the same.

    >>> labels = PredictedLabels(predictions=np.array([0, 0, 1]), references=np.array([0, 1, 1]), labels=["a", "b"])
    >>> matthews_correlation(labels)
    50.0
    """
    confusion = predictions.confusion.astype(np.float64)
    predicted = confusion.sum(0)
    references = confusion.sum(1)
    count = confusion.sum()
    covariance = count * np.trace(confusion) - predicted @ references
    variances = (count**2 - predicted @ predicted) * (count**2 - references @ references)
    return 100 * float(covariance / math.sqrt(variances)) if variances else 0.0


def label_set_micro_f1(predictions: PredictedLabelSets) -> float:
    """F1 over all pairs of text and label."""
    return multi_label_f1(predictions.predictions, predictions.references)["micro_f1"]


def label_set_macro_f1(predictions: PredictedLabelSets) -> float:
    """Mean F1 over the labels that occur, as reference or as prediction."""
    return multi_label_f1(predictions.predictions, predictions.references)["macro_f1"]


def label_set_weighted_f1(predictions: PredictedLabelSets) -> float:
    """Mean F1 over the labels, weighted by the number of their references."""
    correct = (predictions.predictions & predictions.references).sum(0)
    return _weighted_f1(correct, predictions.predictions.sum(0), predictions.references.sum(0))


def label_set_exact_match(predictions: PredictedLabelSets) -> float:
    """Share of the texts with exactly the right labels."""
    return multi_label_f1(predictions.predictions, predictions.references)["exact_match"]


def _weighted_f1(correct: Counts, predicted: Counts, references: Counts) -> float:
    f1 = 2 * correct / np.maximum(1, predicted + references)
    return 100 * float(f1 @ references) / max(1, int(references.sum()))


# ---- tags and entities


def tag_accuracy(predictions: PredictedTags) -> float:
    """Share of the words with the right tag."""
    return predictions.scores["accuracy"]


def entity_f1(predictions: PredictedTags) -> float:
    """Strict F1: an entity is right if its words and its label are."""
    return predictions.scores["f1"]


def entity_precision(predictions: PredictedTags) -> float:
    """Share of the predicted entities that are right."""
    return predictions.scores["precision"]


def entity_recall(predictions: PredictedTags) -> float:
    """Share of the reference entities that are predicted."""
    return predictions.scores["recall"]


# ---- answers


def answer_exact_match(predictions: PredictedAnswers) -> float:
    """Share of the answers that equal a reference, after SQuAD's normalization."""
    return predictions.scores["exact_match"]


def answer_f1(predictions: PredictedAnswers) -> float:
    """Mean F1 of the words of each answer and its nearest reference."""
    return predictions.scores["f1"]


def answerable_f1(predictions: PredictedAnswers) -> float | None:
    """F1 of the questions with an answer, where others have none."""
    return predictions.scores.get("answerable_f1")


def no_answer_f1(predictions: PredictedAnswers) -> float | None:
    """F1 of the questions without an answer, where others have one."""
    return predictions.scores.get("no_answer_f1")


def story_error(predictions: PredictedStoryAnswers) -> float:
    """Share of wrong answers, the mean over the tasks.

    >>> story_error(PredictedStoryAnswers(predictions=list("aab"), references=list("abb"), tasks=list("112")))
    25.0
    """
    is_wrong = np.array(predictions.predictions) != np.array(predictions.references)
    tasks = np.array(predictions.tasks)
    return float(np.mean([100 * float(is_wrong[tasks == task].mean()) for task in dict.fromkeys(predictions.tasks)]))


def story_accuracy(predictions: PredictedStoryAnswers) -> float:
    """Share of right answers, the mean over the tasks."""
    return 100 - story_error(predictions)


# ---- translations


def bleu(predictions: PredictedTranslations) -> float:
    """Corpus BLEU (Papineni et al. 2002; sacrebleu)."""
    return metrics.bleu(predictions.predictions, predictions.references)


def bleu_lowercase(predictions: PredictedTranslations) -> float:
    """Corpus BLEU of lower-cased texts."""
    return metrics.bleu(predictions.predictions, predictions.references, lowercase=True)


def chrf(predictions: PredictedTranslations) -> float:
    """Character F-score (chrF2, Popović 2015; sacrebleu)."""
    from sacrebleu.metrics import CHRF

    return metrics.corpus_score(CHRF(), predictions.predictions, predictions.references)


def ter(predictions: PredictedTranslations) -> float:
    """Translation edit rate (Snover et al. 2006; sacrebleu)."""
    from sacrebleu.metrics import TER

    return metrics.corpus_score(TER(), predictions.predictions, predictions.references)


def translation_exact_match(predictions: PredictedTranslations) -> float:
    """Share of the translations that equal their reference."""
    return metrics.exact_match(predictions.predictions, predictions.references)


def bleu_signature() -> str:
    """Version and settings of BLEU."""
    from sacrebleu.metrics import BLEU

    return _signature(BLEU())


def bleu_lowercase_signature() -> str:
    """Version and settings of lower-cased BLEU."""
    from sacrebleu.metrics import BLEU

    return _signature(BLEU(lowercase=True))


def chrf_signature() -> str:
    """Version and settings of chrF."""
    from sacrebleu.metrics import CHRF

    return _signature(CHRF())


def ter_signature() -> str:
    """Version and settings of TER."""
    from sacrebleu.metrics import TER

    return _signature(TER())


def _signature(metric: SacrebleuMetric) -> str:
    metric.num_refs = 1
    return str(metric.get_signature())
