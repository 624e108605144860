"""Movie reviews: text, tab, label; reviews cv800 to cv899 validate, cv900 to cv999 test, the others train."""

import zipfile
from pathlib import PurePath

from dataset_io import parse_folders, write_tsv

LABEL_NAMES = {"pos": "positive", "neg": "negative"}
SPLIT_OF_HUNDRED = {"8": "valid", "9": "test"}  # by the first digit of the review's number

if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    splits: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    with zipfile.ZipFile(source / "movie_reviews.zip") as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".txt") and "/cv" in name:
                path = PurePath(name)
                split = SPLIT_OF_HUNDRED.get(path.name[2], "train")
                splits[split].append((archive.read(name).decode(), LABEL_NAMES[path.parent.name]))
    for split, reviews in splits.items():
        write_tsv(target / f"{split}.tsv", reviews)
