"""Tatoeba English–French: train, valid and test as English, tab, French; no English sentence is in two of them."""

from folders import folders, lines_of, write_splits

if __name__ == "__main__":
    source, target = folders(__doc__)
    write_splits(target, (line.split("\t")[:2] for line in lines_of(source / "fra.txt.gz")))
