"""Trivial baselines: validation scores of rules that use only training statistics and ignore the input."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.squad import SquadExample
from regard.tasks.calibration import multi_label_f1, multi_label_loss
from regard.tasks.entities import entity_scores
from regard.tasks.metrics import bleu, confusion_matrix, exact_match, label_scores, perplexity
from regard.tasks.question_answering import answer_scores
from regard.training.verdict import POOR_BLEU, TrivialBaseline

LOSS_MARGIN = 0.02  # share of the baseline's loss by which a model must be better
PERPLEXITY_MARGIN = 0.05  # the same for perplexity
BLEU_MARGIN = 2.0
Integers = NDArray[np.int64]


def token_frequencies(unigram: float, *, is_translation: bool = False) -> TrivialBaseline:
    """Predict tokens by their training frequencies; `unigram` is the resulting perplexity.

    A translation model may also beat it by BLEU: an overconfident one has a high perplexity.
    """
    scores = {"perplexity": unigram}
    margins = {"perplexity": PERPLEXITY_MARGIN * unigram}
    if is_translation:
        scores["bleu"] = 0.0
        margins["bleu"] = POOR_BLEU
    return TrivialBaseline("token frequencies", scores, margins)


def unigram_perplexity(train: Iterable[NDArray[Any]], valid: Iterable[NDArray[Any]], vocab_size: int) -> float:
    """Perplexity of validation tokens by add-one smoothed training counts.

    >>> tokens = [np.array([0, 1, 0, 1])]
    >>> round(unigram_perplexity(tokens, tokens, 2), 3)
    2.0
    """
    counts = np.bincount(np.concatenate([*train]), minlength=vocab_size) + 1.0
    losses = -np.log(counts / counts.sum())
    return perplexity(float(losses[np.concatenate([*valid])].mean()), 1)


def constant_target(train: Sequence[str], valid: Sequence[str]) -> TrivialBaseline:
    """Translate everything as the most frequent training target.

    >>> constant_target(["yes", "yes", "no"], ["yes", "no"]).scores["exact_match"]
    50.0
    """
    target = _most_common(Counter(train))
    predictions = [target] * len(valid)
    scores = {"bleu": bleu(predictions, valid), "exact_match": exact_match(predictions, valid)}
    one_match = 100 / len(valid)
    match_error = sampling_error(max(scores["exact_match"], one_match), len(valid))
    margins = {"bleu": BLEU_MARGIN, "exact_match": 2 * match_error}
    return TrivialBaseline("the most frequent target for every source", scores, margins)


def majority_label(
    train: Integers, valid: Integers, labels: Sequence[str], *, is_balanced: bool = False
) -> TrivialBaseline:
    """Predict the most frequent training label for every text; the loss is that of label frequencies.

    With balanced class weights, macro-F1 counts, too: such a model trades accuracy for it.
    """
    counts = np.bincount(train, minlength=len(labels))
    majority = int(counts.argmax())
    metrics = label_scores(confusion_matrix(valid, np.full_like(valid, majority), len(labels)))
    probabilities = (counts + 1.0) / (counts + 1.0).sum()
    loss = float(-np.log(probabilities[valid]).mean())
    scores = {"accuracy": metrics["accuracy"], "loss": loss}
    margins = {"accuracy": sampling_error(metrics["accuracy"], len(valid)), "loss": LOSS_MARGIN * loss}
    if is_balanced:
        uniform = 100 / len(labels)
        scores["macro_f1"] = max(uniform, metrics["macro_f1"])
        margins["macro_f1"] = sampling_error(uniform, len(valid))
    return TrivialBaseline(f"always “{labels[majority]}”", scores, margins)


def constant_labels(train: NDArray[Any], valid: NDArray[Any]) -> TrivialBaseline:
    """Predict the same labels for every multi-label text: as many of the most frequent ones as score best.

    The loss is that of label frequencies.

    >>> constant_labels(np.array([[1, 0], [1, 1], [1, 0]]), np.array([[1, 0], [1, 0]])).scores["micro_f1"]
    100.0
    """
    counts = (train > 0).sum(0)
    by_frequency = np.argsort(-counts, kind="stable")
    best = 0.0
    for num_labels in range(1, len(counts) + 1):
        predictions = np.zeros(valid.shape, dtype=bool)
        predictions[:, by_frequency[:num_labels]] = True
        best = max(best, multi_label_f1(predictions, valid)["micro_f1"])
    probabilities = (counts + 1.0) / (len(train) + 2.0)
    logits = np.log(probabilities / (1 - probabilities))
    loss = multi_label_loss(np.broadcast_to(logits, valid.shape), valid)
    margins = {"micro_f1": sampling_error(best, len(valid)), "loss": LOSS_MARGIN * loss}
    return TrivialBaseline("the most frequent labels for every text", {"micro_f1": best, "loss": loss}, margins)


def constant_tag(train: Sequence[Integers], valid: Sequence[Integers], labels: Sequence[str]) -> TrivialBaseline:
    """Predict one tag for every word: the most frequent one, or with BIO tags the one with the best F1."""
    if not any(label.startswith("B-") for label in labels):
        return majority_label(np.concatenate(train), np.concatenate(valid), labels)
    references = [[labels[tag] for tag in tags] for tags in valid]
    scores = {}
    for label in labels:
        if label.startswith(("B-", "O")):
            predictions = [[label] * len(tags) for tags in references]
            scores[label] = entity_scores(predictions, references)["f1"]
    best = max(scores, key=lambda label: scores[label])
    rule = f"“{best}” for every word" if scores[best] else "no entities at all"
    return TrivialBaseline(rule, {"f1": scores[best]})


def constant_span(examples: Sequence[SquadExample]) -> TrivialBaseline:
    """Answer no question, or each with the whole passage, whichever has the better F1.

    >>> constant_span([SquadExample("Where?", "In Paris.", ((3, "Paris"),))]).rule
    'the whole passage as the answer'
    """
    rules = {
        "no answer at all": [""] * len(examples),
        "the whole passage as the answer": [example.passage for example in examples],
    }
    scores = {rule: answer_scores(answers, examples) for rule, answers in rules.items()}
    best = max(scores, key=lambda rule: scores[rule]["f1"])
    f1 = scores[best]["f1"]
    exact = scores[best]["exact_match"]
    one_match = 100 / len(examples)
    margins = {
        "f1": sampling_error(f1, len(examples)),
        "exact_match": 2 * sampling_error(max(exact, one_match), len(examples)),
    }
    return TrivialBaseline(best, {"f1": f1, "exact_match": exact}, margins)


def majority_answer(
    train: Sequence[tuple[str, str]], valid: Sequence[tuple[str, str]], *, metric: str = "valid_error"
) -> TrivialBaseline:
    """Answer with the most frequent training answer of each task; examples are (task, answer), tasks count equally.

    `metric` is the name of the error in the evaluations of a run.
    """
    answers = most_frequent_answers(train)
    wrong: dict[str, list[bool]] = {}
    for task, answer in valid:
        wrong.setdefault(task, []).append(answers.get(task, answers[""]) != answer)
    error = 100 * float(np.mean([np.mean(mistakes) for mistakes in wrong.values()]))
    margin = sampling_error(error, len(valid))
    return TrivialBaseline("the most frequent answer", {metric: error}, {metric: margin})


def most_frequent_answers(examples: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Most frequent answer of each task, and under "" that of all tasks, from pairs (task, answer).

    >>> most_frequent_answers([("1", "hall"), ("1", "hall"), ("2", "yes")])
    {'': 'hall', '1': 'hall', '2': 'yes'}
    """
    counts: dict[str, Counter[str]] = {"": Counter()}
    for task, answer in examples:
        counts[""][answer] += 1
        counts.setdefault(task, Counter())[answer] += 1
    return {task: _most_common(answers) for task, answers in counts.items()}


def _most_common(counts: Counter[str]) -> str:
    ((element, _),) = counts.most_common(1)
    return element


def sampling_error(percent: float, count: int) -> float:
    """Standard error of a percentage of `count` examples, in percentage points.

    >>> round(sampling_error(50.0, 100), 3)
    5.0
    """
    fraction = min(1.0, max(0.0, percent / 100))
    return 100 * math.sqrt(fraction * (1 - fraction) / max(1, count))
