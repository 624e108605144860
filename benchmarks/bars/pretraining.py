"""Bar: half an hour of pre-training tells hidden words far better than their counts do, and helps classifiers.

    python -m benchmarks.bars.pretraining DATA --minutes 30 --seeds 3 --out runs [--encoder runs/encoder]

DATA holds gutenberg/*.txt.gz and wikitext2/*.raw.gz for the encoder; sst2/{train,dev,test}.tsv, trec/TREC.train.all and
TREC.test.all for the classifiers. All is done by the public commands. The encoder learns the books and WikiText-2's
validation text and is measured on its test text, which it never saw. Classifiers start from it, and from fresh weights
of the same sizes; nothing else differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.bars.command import regard_json
from benchmarks.bars.elmo_trec import questions, report

PARTS = ("train", "valid", "test")
LEAST = 3.0  # times that the perplexity of counts is to be that of the model


def classified(name: str, fresh: bool, files: dict[str, Path], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the measures of classifiers trained from the encoder, or from fresh weights of its sizes."""
    options: list[object] = ["--from", arguments.encoder, "--classify.fresh", "true" if fresh else "false"]
    options += ["--test", files["test"], "--seeds", arguments.seeds, "--threads", arguments.threads]
    options += ["--valid", files["valid"]] if "valid" in files else []
    options += ["--epochs", arguments.epochs] if arguments.epochs else []
    found = report("classify", files["train"], *options, "--out", arguments.out / name)
    return dict(found["metrics"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--minutes", type=float, default=30.0, help="of pre-training")
    parser.add_argument("--encoder", type=Path, help="one that was pre-trained before")
    parser.add_argument("--preset", default="mini", help="size of the encoder")
    parser.add_argument("--epochs", type=float, default=0.0, help="passes of the classifiers; 0: as they choose")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--without-classifiers", action="store_true", help="pre-train and measure perplexity only")
    arguments = parser.parse_args()
    data, out = arguments.data, arguments.out
    texts = [*sorted(data.glob("gutenberg/*.txt.gz")), data / "wikitext2/wiki.valid.raw.gz"]
    model = ("--arch", "bert", "--preset", arguments.preset, "--threads", arguments.threads)
    if arguments.encoder is None:
        arguments.encoder = out / "encoder"
        learned = report("language", *texts, *model, "--minutes", arguments.minutes, "--out", arguments.encoder)
        print(json.dumps({"model": "pre-trained", "seconds": learned["seconds"], **learned["metrics"]}), flush=True)
    text = data / "wikitext2/wiki.test.raw.gz"
    (measured,) = regard_json("evaluate", arguments.encoder, text, "--threads", arguments.threads)
    print(json.dumps({"text": "WikiText-2 test", **measured}), flush=True)
    holds = measured["times_better"] >= LEAST
    print(
        f"\nhidden words of WikiText-2 test: perplexity {measured['perplexity']:.1f}, by counts alone "
        f"{measured['perplexity_unigram']:.1f}: {measured['times_better']:.2f} times better (wanted: {LEAST:g})\n"
    )
    if not arguments.without_classifiers:
        sets = {
            "sst2": {
                part: data / f"sst2/{name}.tsv" for part, name in zip(PARTS, ("train", "dev", "test"), strict=True)
            },
            "trec": {
                name: questions(data / f"trec/TREC.{name}.all", out / f"trec-{name}.tsv") for name in ("train", "test")
            },
        }
        print(f"{arguments.seeds} seeds, test accuracy, mean ± deviation in percent")
        print("| data | fresh weights | pre-trained | gain |\n| --- | ---: | ---: | ---: |")
        for name, files in sets.items():
            plain = classified(f"{name}-fresh", True, files, arguments)
            helped = classified(f"{name}-pre-trained", False, files, arguments)
            cells = [f"{one['test_accuracy']:.2f} ± {one['test_accuracy_deviation']:.2f}" for one in (plain, helped)]
            gain = helped["test_accuracy"] - plain["test_accuracy"]
            print(f"| {name} | {' | '.join(cells)} | {gain:+.2f} |", flush=True)
            holds = holds and gain > 0
    print(json.dumps({"holds": holds}))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
