"""Universal NER, English EWT: token, tab, BIO tag; the development file trains, the test file tests."""

from itertools import groupby

from folders import folders, lines_of, write_tagged

SPLITS = {"dev": "train", "test": "test"}

if __name__ == "__main__":
    source, target = folders(__doc__)
    for theirs, ours in SPLITS.items():
        lines = (line for line in lines_of(source / f"en_ewt-ud-{theirs}.iob2.gz") if not line.startswith("#"))
        groups = groupby(lines, key=lambda line: bool(line.strip()))
        sentences = ([tuple(line.split("\t")[1:3]) for line in found] for full, found in groups if full)
        write_tagged(target / f"{ours}.conll", sentences)  # type: ignore[arg-type]
