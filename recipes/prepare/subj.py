"""Subjective or objective sentences: text, tab, label, split 90, 5 and 5 percent. The file is Windows-1252."""

from folders import folders, labelled, lines_of, write_splits

NAMES = ("subjective", "objective")

if __name__ == "__main__":
    source, target = folders(__doc__)
    write_splits(target, labelled(lines_of(source / "subj.all.gz", "cp1252"), NAMES))
