"""Target: half an hour of pretraining beats token counts by a factor of three in perplexity, and helps classifiers.

    python -m benchmarks.targets.pretraining DATA --minutes 30 --seeds 3 --out runs [--encoder runs/encoder]

DATA contains gutenberg/*.txt.gz and wikitext2/*.raw.gz for the encoder; sst2/{train,dev,test}.tsv, trec/TREC.train.all
and TREC.test.all for the classifiers. Only public commands are used. The encoder is trained on the books and on
WikiText-2's validation text and evaluated on its test text. Classifiers start from it, and from random weights of the
same size; nothing else differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.targets.command import run_regard_json, train
from benchmarks.targets.datasets import SPLIT_FILES, convert_trec

MIN_IMPROVEMENT = 3.0  # unigram perplexity / perplexity of the model


def train_classifiers(
    name: str, files: Mapping[str, Path], arguments: argparse.Namespace, *, is_random: bool
) -> dict[str, Any]:
    """Metrics of classifiers that start from the encoder, or from random weights of its size."""
    options: list[object] = ["--from", arguments.encoder, "--fine_tuning.random_init", "true" if is_random else "false"]
    options += ["--test", files["test"], "--seeds", arguments.seeds, "--threads", arguments.threads]
    if "valid" in files:
        options += ["--valid", files["valid"]]
    if arguments.epochs:
        options += ["--epochs", arguments.epochs]
    report = train("classify", files["train"], *options, "--out", arguments.out / name)
    return dict(report["metrics"])


def pretrain(arguments: argparse.Namespace) -> Path:
    """Pretrain an encoder and return its folder."""
    encoder = Path(arguments.out / "encoder")
    texts = [*sorted(arguments.data.glob("gutenberg/*.txt.gz")), arguments.data / "wikitext2/wiki.valid.raw.gz"]
    model = ("--preset", arguments.preset, "--threads", arguments.threads)
    report = train("masked-lm", *texts, *model, "--minutes", arguments.minutes, "--out", encoder)
    print(json.dumps({"model": "pretrained", "seconds": report["seconds"], **report["metrics"]}), flush=True)
    return encoder


def check_perplexity(arguments: argparse.Namespace) -> bool:
    """Compare the perplexity of masked tokens with that of token counts."""
    test_file = arguments.data / "wikitext2/wiki.test.raw.gz"
    (scores,) = run_regard_json("evaluate", arguments.encoder, test_file, "--threads", arguments.threads)
    print(json.dumps({"text": "WikiText-2 test", **scores}), flush=True)
    improvement = scores["times_better"]
    print(
        f"\nmasked tokens of WikiText-2 test: perplexity {scores['perplexity']:.1f}, by counts alone "
        f"{scores['perplexity_unigram']:.1f}: {improvement:.2f} times better (target: {MIN_IMPROVEMENT:g})\n"
    )
    return bool(improvement >= MIN_IMPROVEMENT)


def check_classifiers(arguments: argparse.Namespace) -> bool:
    """Whether classifiers of both data sets gain from pretraining."""
    datasets = {
        "sst2": {split: arguments.data / f"sst2/{name}.tsv" for split, name in SPLIT_FILES.items()},
        "trec": {
            split: convert_trec(arguments.data / f"trec/TREC.{split}.all", arguments.out / f"trec-{split}.tsv")
            for split in ("train", "test")
        },
    }
    print(f"{arguments.seeds} seeds, test accuracy, mean ± deviation in percent")
    print("| data | random weights | pretrained | gain |\n| --- | ---: | ---: | ---: |")
    is_met = True
    for name, files in datasets.items():
        random = train_classifiers(f"{name}-random", files, arguments, is_random=True)
        pretrained = train_classifiers(f"{name}-pretrained", files, arguments, is_random=False)
        cells = [
            f"{metrics['test_accuracy']:.2f} ± {metrics['test_accuracy_deviation']:.2f}"
            for metrics in (random, pretrained)
        ]
        gain = pretrained["test_accuracy"] - random["test_accuracy"]
        print(f"| {name} | {' | '.join(cells)} | {gain:+.2f} |", flush=True)
        is_met = is_met and gain > 0
    return is_met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--minutes", type=float, default=30.0, help="of pretraining")
    parser.add_argument("--encoder", type=Path, help="an encoder that is pretrained already")
    parser.add_argument("--preset", default="mini", help="size of the encoder")
    parser.add_argument("--epochs", type=float, default=0.0, help="of the classifiers; 0: their default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--without-classifiers", action="store_true", help="only pretrain and measure perplexity")
    arguments = parser.parse_args()
    if arguments.encoder is None:
        arguments.encoder = pretrain(arguments)
    is_met = check_perplexity(arguments)
    if not arguments.without_classifiers:
        is_met = check_classifiers(arguments) and is_met
    print(json.dumps({"target": "pretraining", "met": is_met}))
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
