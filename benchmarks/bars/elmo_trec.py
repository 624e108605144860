"""Bar: frozen features of a language model improve a classifier of questions, the same one otherwise.

    python -m benchmarks.bars.elmo_trec DATA --minutes 20 --seeds 5 --out runs

DATA holds gutenberg/*.txt.gz and wikitext2/*.raw.gz for the language model, trec/TREC.train.all and TREC.test.all for
the classifier. All is done by the public commands; the classifier is trained from the same seeds with features and
without, its choices made on held-out training questions.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.bars.command import regard_json

MEASURES = ("valid_accuracy", "valid_macro_f1", "test_accuracy", "test_macro_f1")


def questions(source: Path, place: Path) -> Path:
    """Write a file of "label question" lines in ISO-8859-1 as text and label in UTF-8."""
    rows = [line.split(" ", 1) for line in source.read_text("iso-8859-1").splitlines()]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("".join(f"{text.strip()}\t{label}\n" for label, text in rows), "utf-8")
    return place


def report(*arguments: object) -> dict[str, Any]:
    """Return the report that ends a training command."""
    return next(event for event in regard_json("train", *arguments) if event["event"] == "report")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--minutes", type=float, default=20.0, help="of training the language model")
    parser.add_argument("--preset", default="auto", help="size of the language model")
    parser.add_argument("--epochs", type=float, default=0.0, help="passes of the classifier; 0: as it chooses")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes that train the language model together")
    arguments = parser.parse_args()
    threads = ("--threads", arguments.threads)
    texts = [*sorted(arguments.data.glob("gutenberg/*.txt.gz")), *sorted(arguments.data.glob("wikitext2/*.raw.gz"))]
    train, test = (
        questions(arguments.data / f"trec/TREC.{name}.all", arguments.out / f"trec-{name}.tsv")
        for name in ("train", "test")
    )
    elmo = arguments.out / "elmo"
    plan = ("--minutes", arguments.minutes, "--preset", arguments.preset, "--workers", arguments.workers)
    language = report("language", *texts, "--arch", "elmo", *plan, *threads, "--out", elmo)
    print(json.dumps({"model": "language", "seconds": language["seconds"], **language["metrics"]}), flush=True)
    found = {}
    for name, more in (("without", ()), ("with", ("--features", elmo))):
        options = ["--test", test, "--seeds", arguments.seeds, *threads, *more]
        options += ["--epochs", arguments.epochs] if arguments.epochs else []
        found[name] = report("classify", train, *options, "--out", arguments.out / f"trec-{name}-features")
        print(json.dumps({"model": f"{name} features", "seconds": found[name]["seconds"], **found[name]["metrics"]}))
    print(f"\n{arguments.seeds} seeds, mean ± deviation in percent")
    print("| measure | without features | with features | gain |\n| --- | ---: | ---: | ---: |")
    for name in MEASURES:
        plain, helped = (found[way]["metrics"] for way in ("without", "with"))
        cells = [f"{one[name]:.2f} ± {one[name + '_deviation']:.2f}" for one in (plain, helped)]
        print(f"| {name.replace('_', ' ')} | {' | '.join(cells)} | {helped[name] - plain[name]:+.2f} |")
    holds = found["with"]["metrics"]["test_accuracy"] > found["without"]["metrics"]["test_accuracy"]
    print(json.dumps({"holds": holds}))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
