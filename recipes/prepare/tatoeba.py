"""Tatoeba English–French: train, valid and test as English, tab, French; no English sentence is in two of them."""

from dataset_io import parse_folders, read_lines, write_splits

if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    write_splits(target, (line.split("\t")[:2] for line in read_lines(source / "fra.txt.gz")))
