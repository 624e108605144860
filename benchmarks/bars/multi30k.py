"""Bar: Multi30k from two raw files to a translator in an hour of training on two cores, all choices on validation data.

    python -m benchmarks.bars.multi30k DATA --minutes 60 --out runs

DATA holds train, val and test_2016_flickr with the endings .en and .de (recipes/prepare/multi30k.py makes it).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.bars.command import regard, regard_json

LEAST = {"en-de": 39.5, "de-en": 39.0}  # lower-cased 13a BLEU


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--directions", nargs="+", default=list(LEAST))
    arguments = parser.parse_args()
    holds = True
    for direction in arguments.directions:
        ends = direction.split("-")
        files = {
            name: [arguments.data / f"{name}.{end}" for end in ends] for name in ("train", "val", "test_2016_flickr")
        }
        out = arguments.out / f"multi30k-{direction}"
        options = ("--valid", *files["val"], "--minutes", arguments.minutes, "--out", out)
        regard("train", "translate", *files["train"], *options)
        scores = regard_json("evaluate", out, *files["test_2016_flickr"])[0]
        holds &= scores["bleu_lowercase"] >= LEAST[direction]
        print(json.dumps({"direction": direction, **scores}), flush=True)
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
