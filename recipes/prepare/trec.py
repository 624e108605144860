"""TREC questions, six classes: question, tab, label. The files are in ISO-8859-1."""

from dataset_io import parse_folders, parse_labelled_lines, read_lines, write_tsv

LABEL_NAMES = ("description", "entity", "abbreviation", "human", "location", "number")

if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    for split in ("train", "test"):
        lines = read_lines(source / f"TREC.{split}.all", "latin-1")
        write_tsv(target / f"{split}.tsv", parse_labelled_lines(lines, LABEL_NAMES))
