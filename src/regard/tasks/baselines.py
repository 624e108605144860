"""What attention must beat: words counted and weighed by one linear layer, trained in seconds, and by how much it does.

Words and neighbouring words of a text, weighed by how rare they are (TF-IDF), then logistic regression.

What a model gives over a baseline, told and kept as measures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, embedding_bag

Numbers = NDArray[np.int64]
Floats = NDArray[np.floating]
STRENGTHS = (1.0, 4.0, 16.0)  # how freely the weights may grow; the one that suits validation texts best is taken
ROUNDS = 40
RARE = 2  # a pair of neighbouring words must occur in so many texts …
MANY = 1000  # … where there are more texts than this
SAMPLES = 400
_WORD = re.compile(r"\w+|[^\w\s]")


def ngram_counts(text: str, second: str | None = None) -> Counter[str]:
    """Return the words of a text and its pairs of neighbours; of a pair of texts also what they share.

    >>> sorted(ngram_counts("A good film"))
    ['a', 'a good', 'film', 'good', 'good film']
    """
    words = _WORD.findall(text.lower())
    found = Counter(words) + Counter(map(" ".join, pairwise(words)))
    if second is not None:
        others = _WORD.findall(second.lower())
        found += Counter(f"2 {word}" for word in others)
        found += Counter(f"& {word}" for word in {*words} & {*others})
        found += Counter({"& many": len({*words} & {*others})})
    return found


@dataclass(frozen=True)
class TfidfFeatures:
    """Texts as weighed words: the features of each end to end."""

    features: Tensor  # [N] int64
    weights: Tensor  # [N] float32
    offsets: Tensor  # [texts] int64

    def times(self, matrix: Tensor) -> Tensor:
        """Return the sum of the matrix's weighed rows for each text, [texts, labels]."""
        if not len(self.features):
            return matrix.new_zeros(len(self.offsets), matrix.shape[1])
        return embedding_bag(self.features, matrix, self.offsets, mode="sum", per_sample_weights=self.weights)


class BagOfWordsBaseline:
    """Weighed words and one linear layer.

    >>> base = BagOfWordsBaseline.fit(["good film", "bad film"] * 9, np.array([0, 1] * 9), 2)
    >>> base.scores(["a good one", "a bad one"]).argmax(1).tolist()
    [0, 1]
    """

    def __init__(self, known: dict[str, int], rarity: NDArray[np.float32], weight: Tensor, bias: Tensor) -> None:
        self.known, self.rarity, self.weight, self.bias = known, rarity, weight, bias

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        targets: Numbers | Floats,
        num_labels: int,
        *,
        pairs: Sequence[str] | None = None,
        valid: tuple[Sequence[str], Sequence[str] | None, Numbers | Floats] | None = None,
    ) -> BagOfWordsBaseline:
        """Return the layer that fits texts to labels [N], or to marks [N, labels] where a text may have several.

        With `valid` – texts, second texts, labels – the strength is chosen by the loss there.
        """
        found = [*_counted(texts, pairs)]
        spread: Counter[str] = Counter()
        for words in found:
            spread.update(words.keys())
        least = RARE if len(texts) > MANY else 1
        known = {word: place for place, word in enumerate(sorted(w for w, count in spread.items() if count >= least))}
        counts = np.array([spread[word] for word in known], dtype=np.float64)
        rarity = (np.log((1 + len(texts)) / (1 + counts)) + 1).astype(np.float32)
        base = cls(known, rarity, torch.zeros(len(known), num_labels), torch.zeros(num_labels))
        bags, aim = base._bags(found), torch.from_numpy(targets)
        if valid is None:
            base._fit(bags, aim, STRENGTHS[-2])
            return base
        best = None
        held = base._bags([*_counted(valid[0], valid[1])])
        for strength in STRENGTHS:
            base._fit(bags, aim, strength)
            loss = float(_loss(held.times(base.weight) + base.bias, torch.from_numpy(valid[2])))
            if best is None or loss < best[0]:
                best = loss, base.weight.clone(), base.bias.clone()
        assert best is not None
        _, base.weight, base.bias = best
        return base

    def scores(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> NDArray[np.float32]:
        """Return how well each label fits each text, [texts, labels]; softmax or sigmoid makes chances of it."""
        return (self._bags([*_counted(texts, pairs)]).times(self.weight) + self.bias).numpy()

    def _bags(self, found: Sequence[Counter[str]]) -> TfidfFeatures:
        features, weights, offsets = list[int](), list[NDArray[np.float32]](), np.zeros(len(found), dtype=np.int64)
        for number, words in enumerate(found):
            offsets[number] = len(features)
            here = [(self.known[word], count) for word, count in words.items() if word in self.known]
            places = [place for place, _ in here]
            values = (1 + np.log([float(count) for _, count in here])) * self.rarity[places] if here else np.zeros(0)
            features += places
            weights.append((values / max(1e-9, float(np.linalg.norm(values)))).astype(np.float32))
        packed = np.concatenate(weights) if weights else np.zeros(0, np.float32)
        return TfidfFeatures(
            torch.tensor(features, dtype=torch.int64), torch.from_numpy(packed), torch.from_numpy(offsets)
        )

    def _fit(self, bags: TfidfFeatures, wanted: Tensor, strength: float) -> None:
        """Find the best layer from where it is, by quasi-Newton steps."""
        weight, bias = self.weight.clone().requires_grad_(), self.bias.clone().requires_grad_()
        steps = torch.optim.LBFGS([weight, bias], max_iter=ROUNDS, history_size=8, line_search_fn="strong_wolfe")

        def closure() -> float:
            with torch.enable_grad():
                steps.zero_grad()
                size = weight.square().sum() / (2 * strength * len(bags.offsets))
                loss = _loss(bags.times(weight) + bias, wanted) + size
                loss.backward()  # type: ignore[no-untyped-call]
                return float(loss.detach())

        steps.step(closure)  # type: ignore[no-untyped-call]
        self.weight, self.bias = weight.detach(), bias.detach()


def _counted(texts: Sequence[str], pairs: Sequence[str] | None) -> Iterable[Counter[str]]:
    return map(ngram_counts, texts) if pairs is None else map(ngram_counts, texts, pairs)


def _loss(scores: Tensor, wanted: Tensor) -> Tensor:
    if wanted.dim() == 1:
        return cross_entropy(scores, wanted)
    return binary_cross_entropy_with_logits(scores, wanted.float()) * wanted.shape[1]


@dataclass(frozen=True)
class ScoreGain:
    """How much better one is than the other on the same examples, in points, with half of its 95 % interval."""

    points: float
    interval: float

    def describe(self, source: str = "attention") -> str:
        """Say it of what made the difference.

        >>> ScoreGain(3.21, 1.4).describe(), ScoreGain(-0.4, 1.4).describe()
        ('attention helped by 3.2 ± 1.4 points', 'attention made no difference that shows: -0.4 ± 1.4 points')
        """
        span = f"{self.points:.1f} ± {self.interval:.1f} points"
        if self.points > self.interval:
            return f"{source} helped by {span}"
        if self.points < -self.interval:
            return f"{source} did harm, by {span}: the baseline is better"
        return f"{source} made no difference that shows: {span}"


def paired_gain(ours: Floats | NDArray[np.bool_], theirs: Floats | NDArray[np.bool_]) -> ScoreGain:
    """Return the gain in a measure that is a mean over examples, each between 0 and 1.

    >>> paired_gain(np.array([1.0, 1.0, 1.0, 0.0]), np.array([1.0, 0.0, 1.0, 0.0])).points
    25.0
    """
    differences = 100.0 * (np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64))
    spread = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    return ScoreGain(float(differences.mean()), 1.96 * spread / max(1, len(differences)) ** 0.5)


def f1_gain(ours: Numbers, theirs: Numbers) -> ScoreGain:
    """Return the gain in F1; each is [examples, groups, 3]: right, given and wanted ones; the mean over groups counts.

    The interval is a bootstrap's over the examples.
    """
    draw = np.random.Generator(np.random.Philox(1))
    count = len(ours)

    def score(counts: NDArray[np.float64]) -> float:
        both, sums = counts[:, 0], counts[:, 1] + counts[:, 2]
        return 100 * float((2 * both[sums > 0] / sums[sums > 0]).mean()) if (sums > 0).any() else 0.0

    found = []
    for turn in range(SAMPLES + 1):
        weights = np.ones(count) if not turn else np.bincount(draw.integers(count, size=count), minlength=count)
        found.append(score(np.tensordot(weights, ours, 1)) - score(np.tensordot(weights, theirs, 1)))
    low, high = np.percentile(found[1:], [2.5, 97.5])
    return ScoreGain(found[0], float(high - low) / 2)
