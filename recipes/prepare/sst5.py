"""Stanford sentiment, five classes: text, tab, label."""

from folders import folders, labelled, lines_of, write_rows

NAMES = ("very negative", "negative", "neutral", "positive", "very positive")
SPLITS = {"train": "train", "dev": "valid", "test": "test"}

if __name__ == "__main__":
    source, target = folders(__doc__)
    for theirs, ours in SPLITS.items():
        write_rows(target / f"{ours}.tsv", labelled(lines_of(source / f"stsa.fine.{theirs}"), NAMES))
