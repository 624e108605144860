"""Target: frozen features of an ELMo language model improve a classifier of questions that is otherwise the same.

    python -m benchmarks.targets.elmo_features DATA --minutes 20 --seeds 5 --out runs

DATA contains gutenberg/*.txt.gz and wikitext2/*.raw.gz for the language model, and trec/TREC.train.all and
TREC.test.all for the classifier. Only public commands are used. The classifier is trained from the same seeds with
features and without; it is selected on held-out training questions.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.targets.command import train
from benchmarks.targets.datasets import convert_trec

METRICS = ("valid_accuracy", "valid_macro_f1", "test_accuracy", "test_macro_f1")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--minutes", type=float, default=20.0, help="of training the language model")
    parser.add_argument("--preset", default="auto", help="size of the language model")
    parser.add_argument("--epochs", type=float, default=0.0, help="of the classifier; 0: its default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes that train the language model")
    return parser.parse_args()


def train_language_model(arguments: argparse.Namespace, out: Path) -> None:
    gutenberg = sorted(arguments.data.glob("gutenberg/*.txt.gz"))
    wikitext = sorted(arguments.data.glob("wikitext2/*.raw.gz"))
    options = ("--minutes", arguments.minutes, "--preset", arguments.preset, "--workers", arguments.workers)
    threads = ("--threads", arguments.threads)
    report = train("elmo", *gutenberg, *wikitext, *options, *threads, "--out", out)
    print(json.dumps({"model": "elmo", "seconds": report["seconds"], **report["metrics"]}), flush=True)


def train_classifier(arguments: argparse.Namespace, name: str, options: tuple[object, ...]) -> dict[str, Any]:
    files = {
        split: convert_trec(arguments.data / f"trec/TREC.{split}.all", arguments.out / f"trec-{split}.tsv")
        for split in ("train", "test")
    }
    common = ("--test", files["test"], "--seeds", arguments.seeds, "--threads", arguments.threads)
    epochs = ("--epochs", arguments.epochs) if arguments.epochs else ()
    out = arguments.out / f"trec-{name}-features"
    report = train("classify", files["train"], *common, *options, *epochs, "--out", out)
    print(json.dumps({"model": f"{name} features", "seconds": report["seconds"], **report["metrics"]}))
    return dict(report["metrics"])


def main() -> None:
    arguments = parse_arguments()
    elmo = arguments.out / "elmo"
    train_language_model(arguments, elmo)
    baseline = train_classifier(arguments, "without", ())
    with_features = train_classifier(arguments, "with", ("--features", elmo))
    print(f"\n{arguments.seeds} seeds, mean ± deviation in percent")
    print("| measure | without features | with features | gain |\n| --- | ---: | ---: | ---: |")
    for metric in METRICS:
        cells = [
            f"{metrics[metric]:.2f} ± {metrics[metric + '_deviation']:.2f}" for metrics in (baseline, with_features)
        ]
        gain = with_features[metric] - baseline[metric]
        print(f"| {metric.replace('_', ' ')} | {' | '.join(cells)} | {gain:+.2f} |")
    is_met = with_features["test_accuracy"] > baseline["test_accuracy"]
    print(json.dumps({"target": "elmo_features", "met": is_met}))
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
