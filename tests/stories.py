"""Stories in bAbI's form: people go to places, and someone's last place is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np

PEOPLE, PLACES = ("Mary", "John", "Sandra"), ("kitchen", "garden", "office", "hallway")


def walks(count: int, seed: int) -> str:
    """A file of so many stories, one question each, with the sentence that supports its answer."""
    draw = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        told = [(str(draw.choice(PEOPLE)), str(draw.choice(PLACES))) for _ in range(draw.integers(1, 6))]
        who = told[int(draw.integers(len(told)))][0]
        last = max(place for place, (walker, _) in enumerate(told) if walker == who)
        lines += [f"{number} {walker} went to the {place}." for number, (walker, place) in enumerate(told, 1)]
        lines.append(f"{len(told) + 1} Where is {who}?\t{told[last][1]}\t{last + 1}")
    return "".join(f"{line}\n" for line in lines)


def write(folder: Path, name: str, count: int, seed: int) -> Path:
    path = folder / name
    path.write_text(walks(count, seed), "utf-8")
    return path
