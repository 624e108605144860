"""Rows of several pairs joined: texts of many lengths from texts of one."""

from __future__ import annotations

from collections.abc import Iterator

from regard.data.order import chance, order
from regard.data.sources import Pairs

SIZES = 4  # the purpose of chance; others have lower numbers


def joined(pairs: Pairs, *, most: int, passes: int = 1, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yield rows of one to `most` pairs, each number of them as often as any other; a pass uses every pair once.

    >>> rows = list(joined(Pairs.of(["a", "b", "c", "d"], ["A", "B", "C", "D"]), most=3))
    >>> sorted(" ".join(source for source, _ in rows).split()), all(s.upper() == t for s, t in rows)
    (['a', 'b', 'c', 'd'], True)
    """
    for number in range(passes):
        arranged = order(len(pairs), seed=seed, epoch=number, digest=pairs.digest)
        draw = chance(seed=seed, epoch=number, digest=pairs.digest, purpose=SIZES)
        first = 0
        while first < len(arranged):
            last = first + int(draw.integers(1, most + 1))
            some = arranged[first:last]
            yield " ".join(pairs.source[one] for one in some), " ".join(pairs.target[one] for one in some)
            first = last
