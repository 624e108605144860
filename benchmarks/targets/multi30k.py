"""Target: a translator of Multi30k from raw files in an hour on two cores, selected on validation data.

    python -m benchmarks.targets.multi30k DATA --minutes 60 --out runs

DATA contains train, val and test_2016_flickr with the suffixes .en and .de (recipes/prepare/multi30k.py writes it).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.targets.command import run_regard, run_regard_json

MIN_BLEU = {"en-de": 39.5, "de-en": 39.0}  # lower-cased, tokenization 13a
SPLITS = ("train", "val", "test_2016_flickr")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--directions", nargs="+", default=list(MIN_BLEU))
    arguments = parser.parse_args()
    is_met = True
    for direction in arguments.directions:
        source, target = direction.split("-")
        files = {split: [arguments.data / f"{split}.{language}" for language in (source, target)] for split in SPLITS}
        out = arguments.out / f"multi30k-{direction}"
        options = ("--valid", *files["val"], "--minutes", arguments.minutes, "--out", out)
        run_regard("train", "translate", *files["train"], *options)
        scores = run_regard_json("evaluate", out, *files["test_2016_flickr"])[0]
        is_met &= scores["bleu_lowercase"] >= MIN_BLEU[direction]
        print(json.dumps({"direction": direction, **scores}), flush=True)
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
