"""AG News, four classes: title and description, tab, label, split 90, 5 and 5 percent (only the test file is here)."""

import csv

from folders import folders, lines_of, write_splits

if __name__ == "__main__":
    source, target = folders(__doc__)
    names = list(lines_of(source / "classes.txt"))
    articles = csv.reader(lines_of(source / "test.csv.gz"), strict=True)
    texts = ((f"{title} {text}".replace("\\", " "), names[int(label) - 1]) for label, title, text in articles)
    write_splits(target, texts)
