"""Measures as pure functions of texts and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError

LENGTHS = (10, 20, 30, 40, 60)  # upper ends, in source words, of the groups reported apart
SHORT, LONG = 20, 40  # words up to which a source is short, and above which it is long


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of hypotheses equal to their reference, in percent.

    >>> exact_match(["a b", "c"], ["a b", "d"])
    50.0
    """
    right = sum(said == wanted for said, wanted in zip(hypotheses, references, strict=True))
    return 100.0 * right / max(1, len(references))


def perplexity(loss: float, count: int) -> float:
    """Return e to the mean loss a token, at most a million."""
    return math.exp(min(loss / max(1, count), math.log(1e6)))


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> float:
    """Return corpus BLEU with 13a tokens (sacrebleu).

    >>> round(bleu(["the cat sat on the mat"], ["the cat sat on the mat"]), 3)
    100.0
    """
    from sacrebleu.metrics import BLEU

    return float(BLEU(lowercase=lowercase).corpus_score(list(hypotheses), [list(references)]).score)


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return BLEU (cased and lower-cased), chrF, TER and exact match, each with its signature."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    if len(hypotheses) != len(references):
        raise UsageError(f"{len(hypotheses)} translations cannot be compared with {len(references)} references")
    if not references:
        raise UsageError("there is nothing to compare: the test set is empty")
    scores: dict[str, Any] = {"sentences": len(references)}
    for name, metric in (("bleu", BLEU()), ("bleu_lowercase", BLEU(lowercase=True)), ("chrf", CHRF()), ("ter", TER())):
        scores[name] = float(metric.corpus_score(list(hypotheses), [list(references)]).score)
        scores[f"{name}_signature"] = str(metric.get_signature())
    scores["exact_match"] = exact_match(hypotheses, references)
    return scores


def paired_bootstrap(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], *, samples: int = 1000
) -> dict[str, dict[str, float | None]]:
    """Return for each system its lower-cased BLEU's 95 % interval and the chance that the best is no better.

    All systems are scored on the same drawn test sets (Koehn 2004), 1,000 of them.
    """
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    metric = BLEU(lowercase=True)
    found = {name: metric.corpus_score(list(said), [list(references)]).score for name, said in systems.items()}
    ordered = sorted(systems, key=lambda name: -found[name])
    named = [(name, list(systems[name])) for name in ordered]
    test = PairedTest(named, {"BLEU": metric}, [list(references)], test_type="bs", n_samples=samples)
    _, results = test()
    made = {}
    for name, result in zip(ordered, results["BLEU"], strict=True):
        made[name] = {"low": result.mean - result.ci, "high": result.mean + result.ci, "chance": result.p_value}
    return made


def scores_by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> list[dict[str, Any]]:
    """Return BLEU for groups of source length in words: how the model holds up on long sentences."""
    ends = (*LENGTHS, 10**9)
    groups = [_of_lengths(low, high, sources, hypotheses, references) for low, high in pairwise((0, *ends))]
    return [group for group in groups if group["sentences"]]


def bleu_short_long(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> tuple[float, float] | None:
    """Return BLEU of the short sources and of the long ones; None where one kind is missing.

    >>> found = bleu_short_long(["ein Hund", "ein " * 41], ["a dog runs home", "cat"], ["a dog runs home", "a dog"])
    >>> found and [round(one) for one in found]
    [100, 0]
    """
    short, long = (_of_lengths(low, high, sources, hypotheses, references) for low, high in ((0, SHORT), (LONG, 10**9)))
    return (short["bleu"], long["bleu"]) if short["sentences"] and long["sentences"] else None


def _of_lengths(
    low: int, high: int, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    """Return what is known of the sources with more words than `low` and at most `high`."""
    chosen = [place for place, text in enumerate(sources) if low < max(1, len(text.split())) <= high]
    said, wanted = ([texts[place] for place in chosen] for texts in (hypotheses, references))
    name = f"{low + 1}–{high}" if high < 10**9 else f"over {low}"
    return {"words": name, "sentences": len(chosen), "bleu": bleu(said, wanted) if chosen else 0.0}


def confusion_matrix(targets: NDArray[np.int64], predictions: NDArray[np.int64], num_labels: int) -> NDArray[np.int64]:
    """Return how many texts of each label were given which label, [labels, labels]: rows are what is right.

    >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    return np.bincount(targets * num_labels + predictions, minlength=num_labels * num_labels).reshape(
        num_labels, num_labels
    )


def label_scores(table: NDArray[np.int64]) -> dict[str, float]:
    """Return accuracy with its 95 % interval (Wilson 1927) and macro-F1, in percent, from a table of confusions.

    Macro-F1 is the mean over the labels that occur, as right ones or as given ones.

    >>> {name: round(value, 1) for name, value in label_scores(np.array([[8, 2], [0, 0]])).items()}
    {'accuracy': 80.0, 'accuracy_low': 49.0, 'accuracy_high': 94.3, 'macro_f1': 44.4}
    """
    count, right = int(table.sum()), int(np.trace(table))
    if not count:
        raise UsageError("there is nothing to compare: the test set is empty")
    share, squared = right / count, 1.959964**2
    middle = (share + squared / (2 * count)) / (1 + squared / count)
    wide = math.sqrt(squared * (share * (1 - share) / count + squared / (4 * count**2))) / (1 + squared / count)
    both = table.sum(0) + table.sum(1)  # texts that have the label, and texts that were given it
    f1 = 2 * np.diag(table)[both > 0] / both[both > 0]
    return {
        "accuracy": 100 * share,
        "accuracy_low": 100 * (middle - wide),
        "accuracy_high": 100 * (middle + wide),
        "macro_f1": 100 * float(f1.mean()),
    }
