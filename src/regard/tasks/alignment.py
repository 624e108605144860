"""Word alignments from attention: which head aligns best, and the links it gives, in Pharaoh form.

A decoder has many heads that look at the source; few of them look at the word that is being translated. Without gold
alignments the head is chosen by what its links tell: a good link is one whose source token lets you guess the target
token. For every head, each target token of a validation set is linked to the source token that it looked at most, and
the head is worth the mean of

    log p(target token | linked source token) / p(target token)

over all links: their pointwise mutual information, where p comes from the counts of all other links (the link itself is
left out, so that rare tokens, which always go together once, count for nothing). A head that looks one word too far, at
the same place of every sentence or at the end mark tells little and is worth little, however sharp it is; sharpness
decides only between equals.

The row in which a token was produced may still look at the word before: a head can also be read one step later, when
the token is the decoder's input (Chen et al. 2020, "Accurate word alignment induction from neural machine
translation"). Both readings of every head are measured; `shift` is how many rows later it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError
from regard.tokens import Tokens

Weights = NDArray[np.float32]
SHARE = 1.0  # how many unseen links stand behind every guess
SHARPNESS = 1e-3  # what sharpness may add to a head's worth


@dataclass(frozen=True)
class HeadChoice:
    """The head that aligns best, and what its links tell, in nats a target token."""

    site: str
    head: int
    score: float
    shift: int = 0  # rows later that the head is read


def choose_head(weights: Mapping[str, Weights], source: Tokens, target: Tokens) -> HeadChoice:
    """Return the best aligning head of cross-attention weights, each site's [B, H, Q, K].

    Source rows have their end, target rows have not; the Q rows of weights are the target tokens and the end.

    >>> source = Tokens.from_rows([[5, 6, 1], [6, 5, 1]] * 3)
    >>> target = Tokens.from_rows([[8, 9], [9, 8]] * 3)
    >>> straight = np.eye(3, dtype=np.float32)  # each row looks at the source token of its own place
    >>> beside = np.roll(straight, 1, axis=1)
    >>> weights = {"decoder.0.cross": np.broadcast_to(np.stack([beside, straight]), (6, 2, 3, 3))}
    >>> choice = choose_head(weights, source, target)
    >>> choice.site, choice.head, choice.shift
    ('decoder.0.cross', 1, 0)
    """
    found = [
        HeadChoice(site, head, worth(heads[:, head], source, target, shift), shift)
        for site, heads in weights.items()
        for head in range(heads.shape[1])
        for shift in (0, 1)
    ]
    if not found:
        raise UsageError("no cross-attention to choose an aligning head from")
    return max(found, key=lambda choice: choice.score)


def worth(weights: Weights, source: Tokens, target: Tokens, shift: int) -> float:
    """Return what the links of one head [B, Q, K] tell about the target tokens, in nats a token."""
    links: list[tuple[int, int]] = []
    sharpness = 0.0
    for number, (read, written) in enumerate(zip(source, target, strict=True)):
        seen = weights[number, shift : shift + len(written), : len(read) - 1]  # the end mark is no word
        if not seen.size:
            continue
        best = seen.argmax(axis=1)
        links += zip(read[best].tolist(), written.tolist(), strict=True)
        sharpness += float(seen.max(axis=1).sum())
    if not links:
        return 0.0
    return _information(links) + SHARPNESS * sharpness / len(links)


def _information(links: list[tuple[int, int]]) -> float:
    """Return the mean pointwise mutual information of the links, each by the counts of all others."""
    pairs, reads, writes = Counter(links), Counter(s for s, _ in links), Counter(t for _, t in links)
    count, kinds, told = len(links), len(writes), 0.0
    for (read, written), times in pairs.items():
        alone = (writes[written] - 1 + SHARE) / (count - 1 + SHARE * kinds)
        given = (times - 1 + SHARE * alone) / (reads[read] - 1 + SHARE)
        told += times * float(np.log(given / alone))
    return told / count


def links(weights: NDArray[np.floating]) -> list[tuple[int, int]]:
    """Return the hard alignment of words' weights [target words, source words]: the best source word of each.

    >>> links(np.array([[0.7, 0.3], [0.2, 0.8]]))
    [(0, 0), (1, 1)]
    """
    if not weights.size:
        return []
    return sorted((int(source), target) for target, source in enumerate(weights.argmax(axis=1)))


def pharaoh(pairs: Iterable[tuple[int, int]]) -> str:
    """Return links as Pharaoh writes them, source word first.

    >>> pharaoh([(0, 0), (1, 2)])
    '0-0 1-2'
    """
    return " ".join(f"{source}-{target}" for source, target in pairs)
