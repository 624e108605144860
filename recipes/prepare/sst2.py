"""Stanford sentiment, two classes: text, tab, label."""

from collections.abc import Iterator
from pathlib import Path

from dataset_io import parse_folders, read_lines, write_tsv

LABEL_NAMES = ("negative", "positive")
SPLITS = {"train": "train", "dev": "valid", "test": "test"}  # name of the published file → ours


def read_sentences(path: Path) -> Iterator[tuple[str, str]]:
    for line in read_lines(path):
        text, label_index = line.rsplit("\t", 1)
        yield text, LABEL_NAMES[int(label_index)]


if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    for published_split, split in SPLITS.items():
        write_tsv(target / f"{split}.tsv", read_sentences(source / f"{published_split}.tsv"))
