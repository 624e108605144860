"""WNUT 2017 entities: token, tab, BIO tag; a blank line after each sentence."""

from itertools import groupby

from folders import folders, lines_of, write_tagged

SPLITS = {"train": "train", "dev": "valid", "test": "test"}

if __name__ == "__main__":
    source, target = folders(__doc__)
    for theirs, ours in SPLITS.items():
        groups = groupby(lines_of(source / f"{theirs}.conll"), key=lambda line: bool(line.strip()))
        sentences = ([tuple(line.split("\t")[:2]) for line in lines] for full, lines in groups if full)
        write_tagged(target / f"{ours}.conll", sentences)  # type: ignore[arg-type]
