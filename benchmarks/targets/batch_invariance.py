"""Target: a translation does not depend on what is translated beside it.

    python -m benchmarks.targets.batch_invariance runs/en-de test.en

Batch sizes 1, 7 and 64, and sentences in another order with others between them, must give the same translations and
alignments, and scores equal to 1e-4. At most two sentences may differ, each a tie within 1e-4. The first of an n-best
list must be the best, and `regard score` must give the score of the search to 1e-4.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.targets.command import run_regard_json

TOLERANCE = 1e-4  # of scores
MAX_TIES = 2

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """Differences between two lists of translations."""

    different: int  # in text or alignment
    not_ties: int  # of those, with scores that differ by more than the tolerance
    score_gap: float  # largest difference of scores

    @property
    def is_equal(self) -> bool:
        return self.different <= MAX_TIES and self.not_ties == 0 and self.score_gap <= TOLERANCE


def compare(rows: Rows, others: Rows) -> Comparison:
    gaps = [abs(row["score"] - other["score"]) for row, other in zip(rows, others, strict=True)]
    is_different = [
        (row["translation"], row["alignment"]) != (other["translation"], other["alignment"])
        for row, other in zip(rows, others, strict=True)
    ]
    different_gaps = [gap for gap, different in zip(gaps, is_different, strict=True) if different]
    not_ties = sum(gap > TOLERANCE for gap in different_gaps)
    return Comparison(different=len(different_gaps), not_ties=not_ties, score_gap=max(gaps))


class Translator:
    """Translates lines with the command line."""

    def __init__(self, model: str, beam: int, folder: Path) -> None:
        self.model = model
        self.options = ("--align", "--no-split", "--beam", beam, "--precision", "float32")
        self.file = folder / "source.txt"

    def __call__(self, lines: Sequence[str], *options: object) -> Rows:
        self.file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return run_regard_json("translate", self.model, "--in", self.file, *self.options, *options)

    def among_others(self, texts: Sequence[str]) -> Rows:
        """Translate texts in random order with other texts between them; return them in their own order."""
        order = list(range(len(texts)))
        random.Random(1).shuffle(order)
        mixed = [line for index in order for line in (texts[index], texts[-index] + " and more")]
        rows: list[dict[str, Any]] = [{}] * len(texts)
        for index, row in zip(order, self(mixed)[::2], strict=True):
            rows[index] = row
        return rows


def check_nbest(translate: Translator, texts: Sequence[str], rows: Rows, beam: int) -> bool:
    """Whether the first of each n-best list is the best and equals the single translation."""
    nbest = translate(texts, "--nbest", beam)
    first_is_best = all(
        row["score"] >= max((alternative["score"] for alternative in row["alternatives"]), default=-1e9)
        for row in nbest
    )
    equal = sum(first["translation"] == row["translation"] for first, row in zip(nbest, rows, strict=True))
    print(json.dumps({"case": "n-best", "first_is_best": first_is_best, "first_equals_single": equal}))
    return first_is_best and equal >= len(texts) - MAX_TIES


def report_scores(model: str, texts: Sequence[str], rows: Rows, folder: Path) -> None:
    """Print how far the scores of `regard score` are from those of the search."""
    pairs = folder / "pairs.tsv"
    lines = (f"{text}\t{row['translation']}\n" for text, row in zip(texts, rows, strict=True))
    pairs.write_text("".join(lines), "utf-8")
    scored = run_regard_json("score", model, pairs)
    gaps = [abs(score["score"] - row["score"]) for score, row in zip(scored, rows, strict=True)]
    beyond = sum(gap > TOLERANCE for gap in gaps)
    print(json.dumps({"case": "score", "largest_gap": max(gaps), "beyond": beyond}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=5)
    arguments = parser.parse_args()
    texts = arguments.texts.read_text("utf-8").splitlines()[: arguments.count]
    is_met = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        translate = Translator(arguments.model, arguments.beam, folder)
        rows = translate(texts, "--batch-size", 64)
        cases = {
            "batch size 1": translate(texts, "--batch-size", 1),
            "batch size 7": translate(texts, "--batch-size", 7),
            "other neighbours": translate.among_others(texts),
        }
        for name, others in cases.items():
            comparison = compare(rows, others)
            is_met &= comparison.is_equal
            print(json.dumps({"case": name, **vars(comparison), "met": comparison.is_equal}))
        is_met &= check_nbest(translate, texts, rows, arguments.beam)
        report_scores(arguments.model, texts, rows, folder)
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
