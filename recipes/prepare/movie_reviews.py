"""Movie reviews: text, tab, label; reviews cv800 to cv899 validate, cv900 to cv999 test, the others train."""

import zipfile
from pathlib import PurePath

from folders import folders, write_rows

NAMES = {"pos": "positive", "neg": "negative"}

if __name__ == "__main__":
    source, target = folders(__doc__)
    rows: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    with zipfile.ZipFile(source / "movie_reviews.zip") as archive:
        for name in sorted(name for name in archive.namelist() if name.endswith(".txt") and "/cv" in name):
            path = PurePath(name)
            split = {"8": "valid", "9": "test"}.get(path.name[2], "train")
            rows[split].append((archive.read(name).decode(), NAMES[path.parent.name]))
    for split, found in rows.items():
        write_rows(target / f"{split}.tsv", found)
