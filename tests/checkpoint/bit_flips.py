"""Flips single bits in the files of a folder, and finds the flips that change what it answers without a message."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path

from regard.errors import CheckpointWarning, RegardError

Answer = Callable[[Path], object]


def folder_files(folder: Path) -> list[Path]:
    """All files of a folder and its subfolders, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def random_flips(folder: Path, count: int, seed: int) -> list[tuple[Path, int]]:
    """Files and bits in them; every file is as likely as any other."""
    rng = random.Random(seed)
    files = folder_files(folder)
    flips = []
    for _ in range(count):
        file = rng.choice(files)
        flips.append((file, rng.randrange(8 * file.stat().st_size)))
    return flips


def flip_bit(file: Path, bit: int) -> None:
    """Flip one bit in place."""
    with open(file, "r+b") as opened:
        opened.seek(bit // 8)
        byte = opened.read(1)[0]
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ (1 << (bit % 8))]))


def answer_or_message(answer: Answer, folder: Path) -> tuple[object, str]:
    """What a folder answers, or None and the message; a warning is a message, too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = answer(folder)
        except RegardError as error:
            return None, str(error)
    messages = [str(warning.message) for warning in caught if issubclass(warning.category, CheckpointWarning)]
    return result, "; ".join(messages)


def find_silent_changes(folder: Path, flips: list[tuple[Path, int]], answer: Answer) -> list[str]:
    """Flips, as text, after which the folder answers something else without an error or a warning."""
    expected, message = answer_or_message(answer, folder)
    assert not message, message
    silent = []
    for file, bit in flips:
        flip_bit(file, bit)
        try:
            result, message = answer_or_message(answer, folder)
        finally:
            flip_bit(file, bit)
        if result != expected and not message:
            silent.append(f"bit {bit % 8} of byte {bit // 8} of {file.relative_to(folder)}: {result!r:.200}")
    return silent
