"""Word alignments from attention: which head aligns best, and the links it gives, in Pharaoh form.

A decoder has many heads that look at the source; few of them look at the word that is being translated. Without gold
alignments the head is chosen by what its links tell: a good link is one whose source word lets you guess the target
word. For every head, each target word of a validation set is linked to the source word that it looked at most, and the
head is worth the mean of

    log p(target word | linked source word) / p(target word)

over all links: their pointwise mutual information, where p comes from the counts of all other links (the link itself is
left out, so that rare words, which always go together once, count for nothing). A head that looks one word too far, at
the same place of every sentence or at the end mark tells little and is worth little, however sharp it is; sharpness
decides only between equals. Pieces of words are put together first: between pieces, the measure prefers heads that
spell over heads that align.

The row in which a token was produced may still look at the word before: a head can also be read one step later, when
the token is the decoder's input (Chen et al. 2020, "Accurate word alignment induction from neural machine
translation"). Both readings of every head are measured; `shift` is how many rows later it is read.
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
SHARE = 1.0  # how many unseen links stand behind every guess
SHARPNESS = 1e-3  # what sharpness may add to a head's worth


@dataclass(frozen=True)
class AlignmentHead:
    """The head that aligns best, and what its links tell, in nats a target word."""

    site: str
    head: int
    score: float
    shift: int = 0  # rows later that the head is read


def best_alignment_head(
    weights: Mapping[str, Weights], source: Sequence[Encoding], target: Sequence[Encoding]
) -> AlignmentHead:
    """Return the best aligning head of cross-attention weights, each site's [B, H, Q, K].

    The rows of the weights are the target tokens and the end, the columns the source tokens and the end.

    >>> texts = [Encoding(ids, ["a", "b"], [(0, 1), (2, 3)], [0, 1]) for ids in ([5, 6], [6, 5])]
    >>> straight = np.eye(3, dtype=np.float32)  # each row looks at the source token of its own place
    >>> beside = np.roll(straight, 1, axis=1)
    >>> weights = {"decoder.0.cross": np.broadcast_to(np.stack([beside, straight]), (6, 2, 3, 3))}
    >>> choice = best_alignment_head(weights, texts * 3, texts * 3)
    >>> choice.site, choice.head, choice.shift
    ('decoder.0.cross', 1, 0)
    """
    found = rank_alignment_heads(weights, source, target)
    if not found:
        raise UsageError("no cross-attention to choose an aligning head from")
    return max(found, key=lambda choice: choice.score)


def rank_alignment_heads(
    weights: Mapping[str, Weights], source: Sequence[Encoding], target: Sequence[Encoding]
) -> list[AlignmentHead]:
    """Return every head in the reading that aligns better."""
    pairs = [(_words(read), _words(written)) for read, written in zip(source, target, strict=True)]
    readings = [
        [AlignmentHead(site, head, _worth(heads[:, head, shift:], pairs), shift) for shift in (0, 1)]
        for site, heads in weights.items()
        for head in range(heads.shape[1])
    ]
    return [max(both, key=lambda choice: choice.score) for both in readings]


Links = Collection[tuple[int, int]]  # (source word, target word), both counted from 0


def alignment_error(found: Iterable[Links], wanted: Iterable[Links]) -> float:
    """Return the alignment error rate of many texts (Och and Ney 2003), all wanted links being sure, 0 to 1.

    >>> alignment_error([[(0, 0), (1, 1)]], [[(0, 0), (1, 2)]])
    0.5
    """
    both = made = known = 0
    for some, right in zip(found, wanted, strict=True):
        both += len(set(some) & set(right))
        made, known = made + len(set(some)), known + len(set(right))
    return 1 - 2 * both / max(1, made + known)


def parse_pharaoh(line: str) -> list[tuple[int, int]]:
    """Return links from Pharaoh form; possible ones (`0p1`) count as any.

    >>> parse_pharaoh("0-0 1-2")
    [(0, 0), (1, 2)]
    """
    try:
        pairs = [link.replace("p", "-").split("-") for link in line.split()]
        return [(int(source), int(target)) for source, target in pairs]
    except ValueError:
        raise UsageError(f"{line[:60]!r} is no alignment: write pairs of word numbers, as in 0-0 1-2") from None


def align_head(weights: Weights, source: Encoding, target: Encoding, shift: int = 0) -> list[tuple[int, int]]:
    """Return the links of one head's weights for one pair, [Q, K], in numbers of words.

    The rows are the target tokens and the end, read `shift` rows later; the columns the source tokens and the end.
    """
    read, written = word_positions(source.word_ids), word_positions(target.word_ids)
    if not read or not written:
        return []
    words = merge_subwords(weights[shift:], list(written.values()), list(read.values()))
    read_words, written_words = list(read), list(written)
    return [(read_words[left], written_words[right]) for left, right in align_words(words)]


def word_positions(word_ids: Sequence[int]) -> dict[int, list[int]]:
    """Return where the pieces of each word stand, words in order.

    >>> word_positions([0, 0, 2])
    {0: [0, 1], 2: [2]}
    """
    found: dict[int, list[int]] = {}
    for place, word in enumerate(word_ids):
        found.setdefault(word, []).append(place)
    return dict(sorted(found.items()))


def merge_subwords(weights: Weights, rows: Iterable[Sequence[int]], columns: Iterable[Sequence[int]]) -> Weights:
    """Return [Q, K] weights between units of several tokens: what a word looks at is added up, who looks is averaged.

    >>> merge_subwords(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]), [[0, 1]], [[0], [1, 2]]).round(2).tolist()
    [[0.3, 0.7]]
    """
    added = np.stack([weights[:, list(members)].sum(axis=1) for members in columns], axis=1)
    return np.stack([added[list(members)].mean(axis=0) for members in rows])


@dataclass(frozen=True)
class _WordSubwords:
    """The words of a text: their pieces, and where these stand."""

    kinds: list[tuple[int, ...]]
    places: list[list[int]]


def _words(text: Encoding) -> _WordSubwords:
    groups = list(word_positions(text.word_ids).values())
    return _WordSubwords([tuple(text.ids[place] for place in group) for group in groups], groups)


def _worth(weights: Weights, pairs: Sequence[tuple[_WordSubwords, _WordSubwords]]) -> float:
    """Return what the links of one head [B, Q, K] tell about the target words, in nats a word."""
    linked: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    sharpness = 0.0
    for looked, (read, written) in zip(weights, pairs, strict=True):
        if read.kinds and written.kinds:
            words = merge_subwords(looked, written.places, read.places)
            linked += [(read.kinds[source], written.kinds[target]) for source, target in align_words(words)]
            sharpness += float(words.max(axis=1).sum())
    return _information(linked) + SHARPNESS * sharpness / len(linked) if linked else 0.0


def _information(linked: Sequence[tuple[Hashable, Hashable]]) -> float:
    """Return the mean pointwise mutual information of links, each by the counts of all others."""
    pairs, reads, writes = Counter(linked), Counter(s for s, _ in linked), Counter(t for _, t in linked)
    count, kinds, told = len(linked), len(writes), 0.0
    for (read, written), times in pairs.items():
        alone = (writes[written] - 1 + SHARE) / (count - 1 + SHARE * kinds)
        given = (times - 1 + SHARE * alone) / (reads[read] - 1 + SHARE)
        told += times * float(np.log(given / alone))
    return told / count


def align_words(weights: NDArray[np.floating]) -> list[tuple[int, int]]:
    """Return the hard alignment of words' weights [target words, source words]: the best source word of each.

    >>> align_words(np.array([[0.7, 0.3], [0.2, 0.8]]))
    [(0, 0), (1, 1)]
    """
    if not weights.size:
        return []
    return sorted((int(source), target) for target, source in enumerate(weights.argmax(axis=1)))


def to_pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """Return links as Pharaoh writes them, source word first.

    >>> to_pharaoh([(0, 0), (1, 2)])
    '0-0 1-2'
    """
    return " ".join(f"{source}-{target}" for source, target in links)
