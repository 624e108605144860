"""Nested brackets: a hierarchy that is known at every word, for probes of depth.

    ( a [ b c ] ) d      depths 1 1 2 2 2 2 1 0

The depth of a bracket is that inside it; of a letter, the number of brackets that are open. It follows from no word by
itself: every bracket and every letter occurs at every depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from regard.data.synthetic import ALPHABET, check_generation, split_of_target
from regard.errors import UsageError

BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))
DEFAULT_COUNT = 1000
LENGTHS = (8, 40)  # fewest and most words of a row
MIN_LENGTH = 4  # words: there must be rows for every split
MAX_DEPTH = 6
OPENING_RATE = 0.3  # of words, where another bracket has room; as many close one, the others are letters


class BracketRow(NamedTuple):
    """Words of one row, and the depth of each."""

    words: tuple[str, ...]
    depths: tuple[int, ...]


def generate_brackets(
    count: int, seed: int = 1, *, split: str = "train", lengths: tuple[int, int] | None = None
) -> Iterator[BracketRow]:
    """Yield rows of balanced brackets, the same for the same arguments; a row belongs to one split.

    >>> next(generate_brackets(1, seed=3, lengths=(8, 8)))
    BracketRow(words=('n', 'n', 'e', '(', '(', ')', ')', 'n'), depths=(0, 0, 0, 1, 2, 2, 1, 0))
    """
    check_generation(count, split)
    low, high = lengths or LENGTHS
    if not MIN_LENGTH <= low <= high:
        raise UsageError(f"lengths {low}-{high}: the first must be at least {MIN_LENGTH} and not above the second")
    random = Random(f"brackets {seed} {split}")
    while count:
        row = _generate_row(random, random.randint(low, high))
        if split in ("all", split_of_target(" ".join(row.words))):
            yield row
            count -= 1


def _generate_row(random: Random, length: int) -> BracketRow:
    words: list[str] = []
    depths: list[int] = []
    closing: list[str] = []  # what closes each open bracket
    for remaining in range(length, 0, -1):
        draw = random.random()
        must_close = len(closing) == remaining
        can_open = len(closing) < MAX_DEPTH and len(closing) + 2 <= remaining
        if closing and (must_close or draw > 1 - OPENING_RATE):
            depths.append(len(closing))
            words.append(closing.pop())
        elif can_open and draw < OPENING_RATE:
            opening, partner = random.choice(BRACKETS)
            closing.append(partner)
            words.append(opening)
            depths.append(len(closing))
        else:
            words.append(random.choice(ALPHABET))
            depths.append(len(closing))
    return BracketRow(tuple(words), tuple(depths))
