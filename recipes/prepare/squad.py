"""Question answering in SQuAD JSON (SQuAD, XQuAD, PolicyQA): decompress every *.json.gz."""

import gzip
import json

from dataset_io import parse_folders, write_json

if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    for path in sorted(source.glob("*.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            write_json(target / path.name.removesuffix(".gz"), json.load(file))
