"""Universal NER, English EWT: token, tab, BIO tag; the development file trains, the test file tests."""

from dataset_io import parse_folders, parse_tagged_lines, read_lines, write_conll

SPLITS = {"dev": "train", "test": "test"}  # name of the published file → ours

if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    for published_split, split in SPLITS.items():
        lines = read_lines(source / f"en_ewt-ud-{published_split}.iob2.gz")
        without_comments = (line for line in lines if not line.startswith("#"))
        write_conll(target / f"{split}.conll", parse_tagged_lines(without_comments, token_column=1))
