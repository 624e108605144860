"""Bar: a translation does not depend on what is translated beside it.

    python -m benchmarks.bars.same_answers runs/en-de test.en

Batch sizes 1, 7 and 64, and the sentences in another order with others among them, must give the same translations and
alignments, and scores equal to 1e-4 (at most two sentences may differ, each a tie within 1e-4); the first of an n-best
list is the best; `score` gives the search's own score to 1e-4.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bars.command import regard_json

CLOSE = 1e-4


def differing(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> tuple[int, int, float]:
    """Return how many differ in text or alignment, how many of these are no tie, and the largest gap of scores."""
    differ = [
        abs(one["score"] - other["score"])
        for one, other in zip(some, others, strict=True)
        if (one["translation"], one["alignment"]) != (other["translation"], other["alignment"])
    ]
    gap = max(abs(one["score"] - other["score"]) for one, other in zip(some, others, strict=True))
    return len(differ), sum(by > CLOSE for by in differ), gap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=5)
    arguments = parser.parse_args()
    texts = arguments.texts.read_text("utf-8").splitlines()[: arguments.count]
    common = ("--align", "--no-split", "--beam", arguments.beam, "--precision", "float32")
    holds = True
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "given.txt")

        def translated(lines: list[str], *options: object) -> list[dict[str, Any]]:
            given.write_text("".join(f"{line}\n" for line in lines), "utf-8")
            return regard_json("translate", arguments.model, "--in", given, *common, *options)

        plain = translated(texts, "--batch-size", 64)
        order = list(range(len(texts)))
        random.Random(1).shuffle(order)
        mixed = translated([line for place in order for line in (texts[place], texts[-place] + " and more")])
        among: list[dict[str, Any]] = [{}] * len(texts)
        for place, row in zip(order, mixed[::2], strict=True):
            among[place] = row
        cases = {
            "batch size 1": translated(texts, "--batch-size", 1),
            "batch size 7": translated(texts, "--batch-size", 7),
            "other neighbours": among,
        }
        for name, found in cases.items():
            differ, real, gap = differing(plain, found)
            fine = differ <= 2 and real == 0 and gap <= CLOSE
            holds &= fine
            print(json.dumps({"case": name, "differ": differ, "no_tie": real, "score_gap": gap, "holds": fine}))
        several = translated(texts, "--nbest", arguments.beam)
        sorted_best = all(
            row["score"] >= max((one["score"] for one in row["alternatives"]), default=-1e9) for row in several
        )
        equal = sum(row["translation"] == one["translation"] for row, one in zip(several, plain, strict=True))
        print(json.dumps({"case": "n-best", "first_is_best": sorted_best, "first_equals_single": equal}))
        pairs = Path(folder, "pairs.tsv")
        pairs.write_text(
            "".join(f"{text}\t{row['translation']}\n" for text, row in zip(texts, plain, strict=True)), "utf-8"
        )
        scored = regard_json("score", arguments.model, pairs)
        gaps = [abs(one["score"] - row["score"]) for one, row in zip(scored, plain, strict=True)]
        far = sum(gap > CLOSE for gap in gaps)
        print(json.dumps({"case": "score", "largest_gap": max(gaps), "beyond": far}))
        holds &= sorted_best and equal >= len(texts) - 2
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
