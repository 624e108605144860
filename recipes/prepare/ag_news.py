"""AG News, four classes: title and description, tab, label, split 90, 5 and 5 percent (from the test file alone)."""

import csv
from collections.abc import Iterator
from pathlib import Path

from dataset_io import parse_folders, read_lines, write_splits


def read_articles(folder: Path) -> Iterator[tuple[str, str]]:
    label_names = list(read_lines(folder / "classes.txt"))
    for label, title, description in csv.reader(read_lines(folder / "test.csv.gz"), strict=True):
        yield f"{title} {description}".replace("\\", " "), label_names[int(label) - 1]


if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    write_splits(target, read_articles(source))
