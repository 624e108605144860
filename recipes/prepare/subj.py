"""Subjective and objective sentences: text, tab, label, split 90, 5 and 5 percent. The file is in Windows-1252."""

from dataset_io import parse_folders, parse_labelled_lines, read_lines, write_splits

LABEL_NAMES = ("subjective", "objective")

if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    lines = read_lines(source / "subj.all.gz", "cp1252")
    write_splits(target, parse_labelled_lines(lines, LABEL_NAMES))
