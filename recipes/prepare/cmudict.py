"""CMU pronouncing dictionary: letters, tab, phones, all space-separated; no word is in two of train, valid and test."""

from collections.abc import Iterator
from pathlib import Path

from dataset_io import parse_folders, read_lines, write_splits


def read_pronunciations(path: Path) -> Iterator[tuple[str, str]]:
    for line in read_lines(path):
        word, _, phones = line.split(" ", 2)  # between them, the index of the pronunciation
        yield " ".join(word), phones


if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    write_splits(target, read_pronunciations(source / "cmudict.gz"))
