"""Stanford sentiment, two classes: text, tab, label."""

from folders import folders, lines_of, write_rows

NAMES = ("negative", "positive")
SPLITS = {"train": "train", "dev": "valid", "test": "test"}

if __name__ == "__main__":
    source, target = folders(__doc__)
    for theirs, ours in SPLITS.items():
        rows = (line.rsplit("\t", 1) for line in lines_of(source / f"{theirs}.tsv"))
        write_rows(target / f"{ours}.tsv", ((text, NAMES[int(label)]) for text, label in rows))
