"""WNUT 2017 entities: token, tab, BIO tag; a blank line after each sentence."""

from dataset_io import parse_folders, parse_tagged_lines, read_lines, write_conll

SPLITS = {"train": "train", "dev": "valid", "test": "test"}  # name of the published file → ours

if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    for published_split, split in SPLITS.items():
        lines = read_lines(source / f"{published_split}.conll")
        write_conll(target / f"{split}.conll", parse_tagged_lines(lines))
