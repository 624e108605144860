"""Stanford sentiment, five classes: text, tab, label."""

from dataset_io import parse_folders, parse_labelled_lines, read_lines, write_tsv

LABEL_NAMES = ("very negative", "negative", "neutral", "positive", "very positive")
SPLITS = {"train": "train", "dev": "valid", "test": "test"}  # name of the published file → ours

if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    for published_split, split in SPLITS.items():
        lines = read_lines(source / f"stsa.fine.{published_split}")
        write_tsv(target / f"{split}.tsv", parse_labelled_lines(lines, LABEL_NAMES))
