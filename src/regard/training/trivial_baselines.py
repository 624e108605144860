"""Trivial baselines: what validation data gives by training statistics alone, without looking at any input."""

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

LOSS_MARGIN = 0.02  # share of the baseline's loss or perplexity by which a model must be better
PERPLEXITY_MARGIN = 0.05
BLEU_MARGIN = 2.0
Integers = NDArray[np.int64]


def token_frequencies(unigram: float, *, translation: bool = False) -> TrivialBaseline:
    """Tokens predicted by their training frequencies; `unigram` is the perplexity that this gives.

    A translator may also prove itself by BLEU: one that is too sure of itself has a high perplexity.
    """
    scores, margins = {"perplexity": unigram}, {"perplexity": PERPLEXITY_MARGIN * unigram}
    if translation:
        scores["bleu"], margins["bleu"] = 0.0, POOR_BLEU
    return TrivialBaseline("token frequencies", scores, margins)


def unigram_perplexity(train: Iterable[NDArray[Any]], valid: Iterable[NDArray[Any]], vocabulary: int) -> float:
    """Perplexity of validation tokens by add-one smoothed training counts.

    >>> tokens = [np.array([0, 1, 0, 1])]
    >>> round(unigram_perplexity(tokens, tokens, 2), 3)
    2.0
    """
    counts = np.bincount(np.concatenate([*train]), minlength=vocabulary) + 1.0
    losses = -np.log(counts / counts.sum())
    return perplexity(float(losses[np.concatenate([*valid])].mean()), 1)


def constant_target(train: Sequence[str], valid: Sequence[str]) -> TrivialBaseline:
    """The most frequent training target as the translation of everything.

    >>> constant_target(["yes", "yes", "no"], ["yes", "no"]).scores["exact_match"]
    50.0
    """
    ((target, _),) = Counter(train).most_common(1)
    answers = [target] * len(valid)
    scores = {"bleu": bleu(answers, valid), "exact_match": exact_match(answers, valid)}
    at_least_one = max(scores["exact_match"], 100 / len(valid))
    margins = {"bleu": BLEU_MARGIN, "exact_match": 2 * sampling_error(at_least_one, len(valid))}
    return TrivialBaseline("the most frequent target for every source", scores, margins)


def majority_label(
    train: Integers, valid: Integers, names: Sequence[str], *, balanced: bool = False
) -> TrivialBaseline:
    """The most frequent training label for every text; the loss is that of label frequencies.

    Where labels are weighted, macro-F1 counts, too: such a model gives accuracy away for it.
    """
    counts = np.bincount(train, minlength=len(names))
    majority = int(counts.argmax())
    found = label_scores(confusion_matrix(valid, np.full_like(valid, majority), len(names)))
    chances = (counts + 1.0) / (counts + 1.0).sum()
    loss = float(-np.log(chances[valid]).mean())
    scores = {"accuracy": found["accuracy"], "loss": loss}
    margins = {"accuracy": sampling_error(found["accuracy"], len(valid)), "loss": LOSS_MARGIN * loss}
    if balanced:
        chance = 100 / len(names)
        scores["macro_f1"] = max(chance, found["macro_f1"])
        margins["macro_f1"] = sampling_error(chance, len(valid))
    return TrivialBaseline(f"always “{names[majority]}”", scores, margins)


def constant_labels(train: NDArray[Any], valid: NDArray[Any]) -> TrivialBaseline:
    """Multi-label: the same labels for every text, as many of the most frequent ones as score best.

    The loss is that of label frequencies.

    >>> constant_labels(np.array([[1, 0], [1, 1], [1, 0]]), np.array([[1, 0], [1, 0]])).scores["micro_f1"]
    100.0
    """
    counts = (train > 0).sum(0)
    by_frequency = np.argsort(-counts, kind="stable")
    best = 0.0
    for count in range(1, len(counts) + 1):
        marks = np.zeros(valid.shape, dtype=bool)
        marks[:, by_frequency[:count]] = True
        best = max(best, multi_label_f1(marks, valid)["micro_f1"])
    rates = (counts + 1.0) / (len(train) + 2.0)
    loss = multi_label_loss(np.broadcast_to(np.log(rates / (1 - rates)), valid.shape), valid)
    margins = {"micro_f1": sampling_error(best, len(valid)), "loss": LOSS_MARGIN * loss}
    return TrivialBaseline("the most frequent labels for every text", {"micro_f1": best, "loss": loss}, margins)


def constant_tag(train: Sequence[Integers], valid: Sequence[Integers], names: Sequence[str]) -> TrivialBaseline:
    """One tag for every word: the most frequent one, or where tags mark entities the one with the best F1."""
    wanted = [[names[tag] for tag in tags] for tags in valid]
    if any(name.startswith("B-") for name in names):
        rules = [name for name in names if name.startswith(("B-", "O"))]
        scores = {tag: entity_scores([[tag] * len(tags) for tags in wanted], wanted)["f1"] for tag in rules}
        best = max(scores, key=lambda tag: scores[tag])
        rule = "no entities at all" if not scores[best] else f"“{best}” for every word"
        return TrivialBaseline(rule, {"f1": scores[best]})
    return majority_label(np.concatenate(train), np.concatenate(valid), names)


def constant_span(asked: Sequence[SquadExample]) -> TrivialBaseline:
    """No answer to any question, or the whole passage to each, whichever has the better F1.

    >>> constant_span([SquadExample("Where?", "In Paris.", ((3, "Paris"),))]).rule
    'the whole passage as the answer'
    """
    rules = {
        "no answer at all": [""] * len(asked),
        "the whole passage as the answer": [question.passage for question in asked],
    }
    scores = {rule: answer_scores(answers, asked) for rule, answers in rules.items()}
    best = max(scores, key=lambda rule: scores[rule]["f1"])
    f1, exact = scores[best]["f1"], scores[best]["exact"]
    margins = {
        "f1": sampling_error(f1, len(asked)),
        "exact": 2 * sampling_error(max(exact, 100 / len(asked)), len(asked)),
    }
    return TrivialBaseline(best, {"f1": f1, "exact": exact}, margins)


def frequent_answers(train: Sequence[tuple[str, str]], valid: Sequence[tuple[str, str]]) -> TrivialBaseline:
    """The most frequent training answer of each task; both are (task, answer), and every task counts alike."""
    overall = Counter(answer for _, answer in train)
    by_task: dict[str, Counter[str]] = {}
    for task, answer in train:
        by_task.setdefault(task, Counter())[answer] += 1
    wrong: dict[str, list[bool]] = {}
    for task, answer in valid:
        ((usual, _),) = by_task.get(task, overall).most_common(1)
        wrong.setdefault(task, []).append(usual != answer)
    error = 100 * float(np.mean([np.mean(missed) for missed in wrong.values()]))
    margin = sampling_error(error, len(valid))
    return TrivialBaseline("the most frequent answer", {"valid_error": error}, {"valid_error": margin})


def sampling_error(percent: float, count: int) -> float:
    """Standard error of a share of `count` examples, in per cent.

    >>> round(sampling_error(50.0, 100), 3)
    5.0
    """
    share = min(1.0, max(0.0, percent / 100))
    return 100 * math.sqrt(share * (1 - share) / max(1, count))
