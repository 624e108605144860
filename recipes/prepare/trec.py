"""TREC questions, six classes: question, tab, label. The files are ISO-8859-1."""

from folders import folders, labelled, lines_of, write_rows

NAMES = ("description", "entity", "abbreviation", "human", "location", "number")

if __name__ == "__main__":
    source, target = folders(__doc__)
    for split in ("train", "test"):
        write_rows(target / f"{split}.tsv", labelled(lines_of(source / f"TREC.{split}.all", "latin-1"), NAMES))
