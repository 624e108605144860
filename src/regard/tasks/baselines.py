"""Baselines that attention is compared with, and the gain over them.

`BagOfWordsBaseline` is logistic regression on the TF-IDF weights of words and bigrams; it trains in seconds.
`ScoreGain` is the difference of two scores on the same examples, with its confidence interval.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, embedding_bag

Indices = NDArray[np.int64]
FloatArray = NDArray[np.floating]
INVERSE_PENALTIES = (1.0, 4.0, 16.0)  # inverse strengths of the L2 penalty; the validation loss decides
DEFAULT_INVERSE_PENALTY = 4.0  # without validation texts
LBFGS_ITERATIONS = 40
MIN_DOCUMENTS = 2  # an n-gram must occur in so many texts …
MIN_TEXTS_TO_FILTER = 1000  # … where there are more texts than this
BOOTSTRAP_SAMPLES = 400
_WORD = re.compile(r"\w+|[^\w\s]")


def ngram_counts(text: str, second: str | None = None) -> Counter[str]:
    """Count the words and bigrams of a text; of a pair of texts also the words that both contain.

    >>> sorted(ngram_counts("A good film"))
    ['a', 'a good', 'film', 'good', 'good film']
    """
    words = _WORD.findall(text.lower())
    counts = Counter(words) + Counter(map(" ".join, pairwise(words)))
    if second is not None:
        second_words = _WORD.findall(second.lower())
        shared = {*words} & {*second_words}
        counts += Counter(f"2 {word}" for word in second_words)
        counts += Counter(f"& {word}" for word in shared)
        counts += Counter({"& many": len(shared)})
    return counts


@dataclass(frozen=True)
class TfidfFeatures:
    """TF-IDF weights of texts; the features of all texts lie end to end."""

    features: Tensor  # [N] int64
    weights: Tensor  # [N] float32
    offsets: Tensor  # [texts] int64

    def matmul(self, matrix: Tensor) -> Tensor:
        """Product of the sparse features with a matrix, [texts, labels]."""
        if not len(self.features):
            return matrix.new_zeros(len(self.offsets), matrix.shape[1])
        return embedding_bag(self.features, matrix, self.offsets, mode="sum", per_sample_weights=self.weights)


class BagOfWordsBaseline:
    """Logistic regression on TF-IDF features.

    >>> baseline = BagOfWordsBaseline.fit(["good film", "bad film"] * 9, np.array([0, 1] * 9), 2)
    >>> baseline.logits(["a good one", "a bad one"]).argmax(1).tolist()
    [0, 1]
    """

    def __init__(self, vocabulary: dict[str, int], idf: NDArray[np.float32], weight: Tensor, bias: Tensor) -> None:
        self.vocabulary = vocabulary
        self.idf = idf
        self.weight = weight
        self.bias = bias

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        targets: Indices | FloatArray,
        num_labels: int,
        *,
        pairs: Sequence[str] | None = None,
        valid: tuple[Sequence[str], Sequence[str] | None, Indices | FloatArray] | None = None,
    ) -> BagOfWordsBaseline:
        """Fit texts to labels [N], or to a label matrix [N, labels] where a text may have several.

        With `valid` – texts, second texts, targets – the L2 penalty is the one with the lowest loss there.
        """
        text_counts = _count_ngrams(texts, pairs)
        baseline = cls._with_vocabulary(text_counts, num_labels)
        features = baseline._weigh(text_counts)
        train_targets = torch.from_numpy(targets)
        if valid is None:
            baseline._fit(features, train_targets, DEFAULT_INVERSE_PENALTY)
            return baseline
        valid_texts, valid_pairs, valid_targets = valid
        valid_features = baseline._weigh(_count_ngrams(valid_texts, valid_pairs))
        best_loss = None
        best_weight = baseline.weight
        best_bias = baseline.bias
        for inverse_penalty in INVERSE_PENALTIES:
            baseline._fit(features, train_targets, inverse_penalty)
            logits = valid_features.matmul(baseline.weight) + baseline.bias
            loss = float(_loss(logits, torch.from_numpy(valid_targets)))
            if best_loss is None or loss < best_loss:
                best_loss = loss
                best_weight = baseline.weight.clone()
                best_bias = baseline.bias.clone()
        baseline.weight = best_weight
        baseline.bias = best_bias
        return baseline

    @classmethod
    def _with_vocabulary(cls, text_counts: Sequence[Counter[str]], num_labels: int) -> BagOfWordsBaseline:
        """Untrained baseline with the n-grams of the training texts."""
        num_texts = len(text_counts)
        document_counts: Counter[str] = Counter()
        for counts in text_counts:
            document_counts.update(counts.keys())
        min_documents = MIN_DOCUMENTS if num_texts > MIN_TEXTS_TO_FILTER else 1
        ngrams = sorted(ngram for ngram, count in document_counts.items() if count >= min_documents)
        frequencies = np.array([document_counts[ngram] for ngram in ngrams], dtype=np.float64)
        idf = (np.log((1 + num_texts) / (1 + frequencies)) + 1).astype(np.float32)
        return cls(
            vocabulary={ngram: index for index, ngram in enumerate(ngrams)},
            idf=idf,
            weight=torch.zeros(len(ngrams), num_labels),
            bias=torch.zeros(num_labels),
        )

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> NDArray[np.float32]:
        """Logits of each text, [texts, labels]."""
        features = self._weigh(_count_ngrams(texts, pairs))
        return (features.matmul(self.weight) + self.bias).numpy()

    def _weigh(self, text_counts: Sequence[Counter[str]]) -> TfidfFeatures:
        """TF-IDF weights of the n-grams in the vocabulary, of length 1 per text."""
        features: list[int] = []
        weights: list[NDArray[np.float32]] = []
        offsets = np.zeros(len(text_counts), dtype=np.int64)
        for row, counts in enumerate(text_counts):
            offsets[row] = len(features)
            indices = [self.vocabulary[ngram] for ngram in counts if ngram in self.vocabulary]
            frequencies = [float(count) for ngram, count in counts.items() if ngram in self.vocabulary]
            tfidf = (1 + np.log(frequencies)) * self.idf[indices] if indices else np.zeros(0)
            features += indices
            weights.append((tfidf / max(1e-9, float(np.linalg.norm(tfidf)))).astype(np.float32))
        all_weights = np.concatenate(weights) if weights else np.zeros(0, np.float32)
        return TfidfFeatures(
            torch.tensor(features, dtype=torch.int64), torch.from_numpy(all_weights), offsets=torch.from_numpy(offsets)
        )

    def _fit(self, features: TfidfFeatures, targets: Tensor, inverse_penalty: float) -> None:
        """Minimise the penalised loss by L-BFGS, starting from the current weights."""
        weight = self.weight.clone().requires_grad_()
        bias = self.bias.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [weight, bias], max_iter=LBFGS_ITERATIONS, history_size=8, line_search_fn="strong_wolfe"
        )

        def closure() -> float:
            with torch.enable_grad():
                optimizer.zero_grad()
                penalty = weight.square().sum() / (2 * inverse_penalty * len(features.offsets))
                loss = _loss(features.matmul(weight) + bias, targets) + penalty
                loss.backward()  # type: ignore[no-untyped-call]
                return float(loss.detach())

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        self.weight = weight.detach()
        self.bias = bias.detach()


def _count_ngrams(texts: Sequence[str], pairs: Sequence[str] | None) -> list[Counter[str]]:
    if pairs is None:
        return [ngram_counts(text) for text in texts]
    return list(map(ngram_counts, texts, pairs))


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    if targets.dim() == 1:
        return cross_entropy(logits, targets)
    return binary_cross_entropy_with_logits(logits, targets.float()) * targets.shape[1]


@dataclass(frozen=True)
class ScoreGain:
    """Difference of two scores on the same examples, in points, with half the width of its 95 % interval."""

    points: float
    interval: float

    def describe(self, source: str = "attention") -> str:
        """The gain in words; `source` is what makes the difference between the two.

        >>> ScoreGain(3.21, 1.4).describe(), ScoreGain(-0.4, 1.4).describe()
        ('attention helped by 3.2 ± 1.4 points', 'attention made no significant difference: -0.4 ± 1.4 points')
        """
        gain = f"{self.points:.1f} ± {self.interval:.1f} points"
        if self.points > self.interval:
            return f"{source} helped by {gain}"
        if self.points < -self.interval:
            return f"{source} did harm, by {gain}: the baseline is better"
        return f"{source} made no significant difference: {gain}"


def paired_gain(scores: FloatArray | NDArray[np.bool_], baseline_scores: FloatArray | NDArray[np.bool_]) -> ScoreGain:
    """Gain in a metric that is a mean over examples, each between 0 and 1.

    >>> paired_gain(np.array([1.0, 1.0, 1.0, 0.0]), np.array([1.0, 0.0, 1.0, 0.0])).points
    25.0
    """
    differences = 100.0 * (np.asarray(scores, dtype=np.float64) - np.asarray(baseline_scores, dtype=np.float64))
    deviation = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    return ScoreGain(float(differences.mean()), 1.96 * deviation / max(1, len(differences)) ** 0.5)


def f1_gain(counts: Indices, baseline_counts: Indices) -> ScoreGain:
    """Gain in F1, averaged over groups; counts are [examples, groups, 3]: correct, predicted and target ones.

    The interval is a bootstrap over the examples.
    """
    rng = np.random.Generator(np.random.Philox(1))
    num_examples = len(counts)
    gain = _gain_in_f1(np.ones(num_examples), counts, baseline_counts)
    resampled = []
    for _ in range(BOOTSTRAP_SAMPLES):
        weights = np.bincount(rng.integers(num_examples, size=num_examples), minlength=num_examples)
        resampled.append(_gain_in_f1(weights, counts, baseline_counts))
    low, high = np.percentile(resampled, [2.5, 97.5])
    return ScoreGain(gain, float(high - low) / 2)


def _gain_in_f1(example_weights: NDArray[Any], counts: NDArray[Any], baseline_counts: NDArray[Any]) -> float:
    f1 = _mean_f1(np.tensordot(example_weights, counts, 1))
    baseline_f1 = _mean_f1(np.tensordot(example_weights, baseline_counts, 1))
    return f1 - baseline_f1


def _mean_f1(counts: NDArray[np.float64]) -> float:  # [groups, 3]
    """Mean F1 in percent over the groups that occur."""
    correct = counts[:, 0]
    sums = counts[:, 1] + counts[:, 2]
    occurs = sums > 0
    if not occurs.any():
        return 0.0
    return 100 * float((2 * correct[occurs] / sums[occurs]).mean())
