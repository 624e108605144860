"""Synthetic stories in bAbI format: people move between rooms, and a question asks where someone is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

PEOPLE = ("Mary", "John", "Sandra")
ROOMS = ("kitchen", "garden", "office", "hallway")


def walks(count: int, seed: int) -> str:
    """Generate stories with one question each, and the sentence that supports its answer."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        moves = [(str(rng.choice(PEOPLE)), str(rng.choice(ROOMS))) for _ in range(rng.integers(1, 6))]
        person = moves[int(rng.integers(len(moves)))][0]
        last = max(index for index, (walker, _) in enumerate(moves) if walker == person)
        lines += [f"{index} {walker} went to the {room}." for index, (walker, room) in enumerate(moves, 1)]
        lines.append(f"{len(moves) + 1} Where is {person}?\t{moves[last][1]}\t{last + 1}")
    return "".join(f"{line}\n" for line in lines)


def write(folder: Path, name: str, count: int, seed: int) -> Path:
    """Write stories to a file."""
    path = folder / name
    path.write_text(walks(count, seed), "utf-8")
    return path
