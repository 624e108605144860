"""Word alignment from cross-attention: the choice of the alignment head, and its links in Pharaoh format.

A decoder has many cross-attention heads; few of them attend to the word that is being translated. Without gold
alignments, the head is chosen by the information in its links: a good link is one whose source word predicts the target
word. For every head, each target word of a validation set is linked to the source word with the largest attention
weight, and the score of the head is the mean of

    log p(target word | linked source word) / p(target word)

over all links: their pointwise mutual information. p comes from the counts of all other links; the link itself is left
out, so that rare words, which always co-occur once, contribute nothing. A head that attends to the next word, to the
same position of every sentence or to the end-of-sequence token has a low score, however sharp its weights are.
Sharpness only breaks ties. Subwords are merged into words first: between subwords, the measure prefers heads that spell
to heads that align.

The attention that predicts a token may still be on the previous word. A head can also be read one step later, when the
token is the decoder's input (Chen et al. 2020, "Accurate word alignment induction from neural machine translation").
Every head is scored with both shifts; `shift` is the number of steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError
from regard.text.tokenizer import Encoding

Weights = NDArray[np.float32]
Subwords = tuple[int, ...]  # token ids of a word
PSEUDO_COUNT = 1.0  # added to the counts of links (additive smoothing)
SHARPNESS_WEIGHT = 1e-3  # small enough to break ties only


@dataclass(frozen=True)
class AlignmentHead:
    """A cross-attention head with the information in its links, in nats per target word."""

    site: str
    head: int
    score: float
    shift: int = 0  # decoder steps between predicting a token and reading its attention


def best_alignment_head(
    weights: Mapping[str, Weights], source: Sequence[Encoding], target: Sequence[Encoding]
) -> AlignmentHead:
    """Choose the head that aligns best, by the cross-attention weights of each site, [B, H, Q, K].

    The queries are the target tokens and the end token, the keys the source tokens and the end token.

    >>> texts = [Encoding(ids, ["a", "b"], [(0, 1), (2, 3)], [0, 1]) for ids in ([5, 6], [6, 5])]
    >>> diagonal = np.eye(3, dtype=np.float32)  # each query attends to the source token of its own position
    >>> shifted = np.roll(diagonal, 1, axis=1)
    >>> weights = {"decoder.0.cross": np.broadcast_to(np.stack([shifted, diagonal]), (6, 2, 3, 3))}
    >>> best = best_alignment_head(weights, texts * 3, texts * 3)
    >>> best.site, best.head, best.shift
    ('decoder.0.cross', 1, 0)
    """
    heads = rank_alignment_heads(weights, source, target)
    if not heads:
        raise UsageError("no cross-attention to choose an alignment head from")
    return max(heads, key=_head_score)


def rank_alignment_heads(
    weights: Mapping[str, Weights], source: Sequence[Encoding], target: Sequence[Encoding]
) -> list[AlignmentHead]:
    """Score every head, each with its better shift."""
    pairs = [
        (_group_subwords(source_text), _group_subwords(target_text))
        for source_text, target_text in zip(source, target, strict=True)
    ]
    heads = []
    for site, site_weights in weights.items():
        for head in range(site_weights.shape[1]):
            shifts = [
                AlignmentHead(site, head, score=_score_head(site_weights[:, head, shift:], pairs), shift=shift)
                for shift in (0, 1)
            ]
            heads.append(max(shifts, key=_head_score))
    return heads


def _head_score(head: AlignmentHead) -> float:
    return head.score


Links = Collection[tuple[int, int]]  # (source word, target word), both counted from 0


@dataclass(frozen=True)
class ReferenceLinks:
    """Reference alignment of a text: sure links, and possible ones, which include the sure ones."""

    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]

    @classmethod
    def all_sure(cls, links: Links) -> ReferenceLinks:
        """Reference alignment whose links are all sure."""
        return cls(frozenset(links), frozenset(links))


def alignment_error(predictions: Iterable[Links], references: Iterable[ReferenceLinks]) -> float:
    """Alignment error rate over many texts, 0 to 1: 1 − (|A∩S| + |A∩P|) / (|A| + |S|) (Och and Ney 2003).

    A are the predicted links, S the sure and P the possible links of the references.

    >>> alignment_error([[(0, 0), (1, 1), (1, 2)]], [parse_pharaoh("0-0 1p1")])
    0.25
    """
    num_correct = 0
    num_links = 0
    for predicted, reference in zip(predictions, references, strict=True):
        links = {*predicted}
        num_correct += len(links & reference.sure) + len(links & reference.possible)
        num_links += len(links) + len(reference.sure)
    return 1 - num_correct / max(1, num_links)


def parse_pharaoh(line: str) -> ReferenceLinks:
    """Parse links in Pharaoh format; `0p1` is a possible link.

    >>> links = parse_pharaoh("0-0 1p2")
    >>> sorted(links.sure), sorted(links.possible)
    ([(0, 0)], [(0, 0), (1, 2)])
    """
    try:
        possible = []
        sure = []
        for link in line.split():
            source, target = link.replace("p", "-").split("-")
            possible.append((int(source), int(target)))
            if "p" not in link:
                sure.append(possible[-1])
        return ReferenceLinks(frozenset(sure), frozenset(possible))
    except ValueError:
        raise UsageError(f"{line[:60]!r} is no alignment: write pairs of word indices, as in 0-0 1-2") from None


def align_head(weights: Weights, source: Encoding, target: Encoding, shift: int = 0) -> list[tuple[int, int]]:
    """Link the words of one pair by the weights of one head, [Q, K]; links are pairs of word ids.

    The queries are the target tokens and the end token, read `shift` steps later; the keys are the source tokens and
    the end token.
    """
    source_positions = word_positions(source.word_ids)
    target_positions = word_positions(target.word_ids)
    if not source_positions or not target_positions:
        return []
    word_weights = merge_subwords(weights[shift:], target_positions.values(), source_positions.values())
    links = align_words(word_weights)
    source_words = list(source_positions)
    target_words = list(target_positions)
    return [(source_words[source_index], target_words[target_index]) for source_index, target_index in links]


def word_positions(word_ids: Sequence[int]) -> dict[int, list[int]]:
    """Positions of the subwords of each word, in the order of words.

    >>> word_positions([0, 0, 2])
    {0: [0, 1], 2: [2]}
    """
    positions: dict[int, list[int]] = {}
    for position, word_id in enumerate(word_ids):
        positions.setdefault(word_id, []).append(position)
    return dict(sorted(positions.items()))


def merge_subwords(weights: Weights, rows: Iterable[Sequence[int]], columns: Iterable[Sequence[int]]) -> Weights:
    """Merge attention weights [Q, K] of subwords into those of words: sum over keys, mean over queries.

    >>> merge_subwords(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]), [[0, 1]], [[0], [1, 2]]).round(2).tolist()
    [[0.3, 0.7]]
    """
    key_sums = np.stack([weights[:, list(positions)].sum(axis=1) for positions in columns], axis=1)
    return np.stack([key_sums[list(positions)].mean(axis=0) for positions in rows])


@dataclass(frozen=True)
class _TextWords:
    """The words of a text as subwords, with their positions."""

    subwords: list[Subwords]
    positions: list[list[int]]


def _group_subwords(text: Encoding) -> _TextWords:
    positions = list(word_positions(text.word_ids).values())
    subwords = [tuple(text.ids[position] for position in word) for word in positions]
    return _TextWords(subwords, positions)


def _score_head(weights: Weights, pairs: Sequence[tuple[_TextWords, _TextWords]]) -> float:
    """Information that the links of one head [B, Q, K] carry about the target words, in nats per word."""
    links: list[tuple[Subwords, Subwords]] = []
    sharpness = 0.0
    for pair_weights, (source, target) in zip(weights, pairs, strict=True):
        if source.subwords and target.subwords:
            word_weights = merge_subwords(pair_weights, target.positions, source.positions)
            for source_word, target_word in align_words(word_weights):
                links.append((source.subwords[source_word], target.subwords[target_word]))
            sharpness += float(word_weights.max(axis=1).sum())
    if not links:
        return 0.0
    return _mutual_information(links) + SHARPNESS_WEIGHT * sharpness / len(links)


def _mutual_information(links: Sequence[tuple[Hashable, Hashable]]) -> float:
    """Mean pointwise mutual information of links, each by the counts of all others."""
    link_counts = Counter(links)
    source_counts = Counter(source for source, _ in links)
    target_counts = Counter(target for _, target in links)
    num_links = len(links)
    total = 0.0
    for (source, target), count in link_counts.items():
        prior = (target_counts[target] - 1 + PSEUDO_COUNT) / (num_links - 1 + PSEUDO_COUNT * len(target_counts))
        posterior = (count - 1 + PSEUDO_COUNT * prior) / (source_counts[source] - 1 + PSEUDO_COUNT)
        total += count * float(np.log(posterior / prior))
    return total / num_links


def align_words(weights: NDArray[np.floating]) -> list[tuple[int, int]]:
    """Hard alignment by word weights [target words, source words]: link each target word to its largest weight.

    >>> align_words(np.array([[0.7, 0.3], [0.2, 0.8]]))
    [(0, 0), (1, 1)]
    """
    if not weights.size:
        return []
    return sorted((int(source), target) for target, source in enumerate(weights.argmax(axis=1)))


def to_pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """Format links in Pharaoh format, source word first.

    >>> to_pharaoh([(0, 0), (1, 2)])
    '0-0 1-2'
    """
    return " ".join(f"{source}-{target}" for source, target in links)
