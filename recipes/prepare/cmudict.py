"""CMU pronouncing dictionary: letters, tab, phones, all space-separated; no word is in two of train, valid and test."""

from folders import folders, lines_of, write_splits

if __name__ == "__main__":
    source, target = folders(__doc__)
    entries = (line.split(" ", 2) for line in lines_of(source / "cmudict.gz"))
    write_splits(target, ((" ".join(word), phones) for word, _, phones in entries))
