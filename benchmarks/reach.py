"""How far an RNN, an RNN with attention and a Transformer look back, trained on recall over short distances.

    python -m benchmarks.reach [--folder runs/reach] [--seeds 1 2 3] [--sample 1000] [--stage short|longer]

Each model is trained on distances of 0 to 20 letters until it recalls every digit of the validation data, and measured
on distances of 0 to 200: influence by gradients and by occlusion, and exact match, by distance, with their rank
correlations. The models have one size (preset micro) and default settings; encoders of RNNs read forwards only, so that
the distance is the number of steps over which a state has to carry the digit. An interrupted run continues where it
was; finished models are not trained again. The report is written to benchmarks/results/reach.json, its page to the
folder. The stage `longer` trains the RNN without attention for a fixed number of updates, several times as many.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.config.task_runs import TranslateRun
from regard.data.synthetic import generate_pairs
from regard.hardware import processor_identity
from regard.report.reach import ReachReport, measure_reach
from regard.training.run import train_run

RESULT = Path(__file__).parent / "results" / "reach.json"
TRAINED_DISTANCES = (0, 20)
MEASURED_DISTANCES = (0, 200)
COUNTS = {"train": 20_000, "valid": 300, "test": 2_000}
EVALUATE_EVERY = 25  # updates
MAX_UPDATES = 1_000
LONGER_UPDATES = 300
MODELS: dict[str, dict[str, Any]] = {
    "rnn": {"architecture": "rnn", "seq2seq.attention": "none", "seq2seq.directions": "one"},
    "rnn-attention": {"architecture": "rnn", "seq2seq.attention": "additive", "seq2seq.directions": "one"},
    "transformer": {"architecture": "transformer"},
}


def write_data(folder: Path) -> dict[str, Path]:
    """Write the pairs of each split; the same ones every time."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for split, count in COUNTS.items():
        distances = MEASURED_DISTANCES if split == "test" else TRAINED_DISTANCES
        pairs = generate_pairs("recall", count, split=split, distances=distances)
        files[split] = folder / f"{split}.tsv"
        files[split].write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return files


def train(settings: Mapping[str, Any], files: Mapping[str, Path], folder: Path, seed: int, updates: int = 0) -> int:
    """Train a model, or continue its training: for so many updates, or until all digits are recalled.

    Return the number of updates.
    """
    config = TranslateRun.build(
        {
            **settings,
            "preset": "micro",
            "data.train": [str(files["train"])],
            "data.valid": [str(files["valid"])],
            "training.seed": seed,
            "training.steps": updates or MAX_UPDATES,
            "training.evaluate_every": updates or EVALUATE_EVERY,
            "training.metric": "exact_match",
            "training.stop_at": 0.0 if updates else 100.0,
            "training.threads": 1,
            "training.precision": "float32",
        }
    )
    report = train_run(config, folder)
    if not report.is_finished:
        raise SystemExit(f"{report.reason} stopped {folder} at step {report.step}: the same command resumes")
    return report.step


def measure_short(arguments: argparse.Namespace, files: Mapping[str, Path]) -> dict[str, Any]:
    """Train all models until they recall what they are trained on, and measure them."""
    updates = {}
    for name, settings in MODELS.items():
        for seed in arguments.seeds:
            folder = arguments.folder / f"{name}-{seed}"
            updates[folder.name] = train(settings, files, folder, seed)
            print(f"{folder.name}: {updates[folder.name]} updates", flush=True)
    report = measure([arguments.folder / name for name in updates], files, arguments)
    (arguments.folder / "reach.html").write_text(report.page())
    return {
        "updates": updates,
        "trained_distances": TRAINED_DISTANCES,
        "measured_distances": MEASURED_DISTANCES,
        "settings": MODELS,
        "summary": report.summary(),
        **report.to_dict(),
    }


def measure_longer(arguments: argparse.Namespace, files: Mapping[str, Path]) -> dict[str, Any]:
    """Train the RNN without attention for longer, and measure it."""
    folders = [arguments.folder / f"rnn-longer-{seed}" for seed in arguments.seeds]
    for seed, folder in zip(arguments.seeds, folders, strict=True):
        train(MODELS["rnn"], files, folder, seed, LONGER_UPDATES)
    report = measure(folders, files, arguments)
    return {"updates": LONGER_UPDATES, "summary": report.summary(), **report.to_dict()}


def measure(folders: Sequence[Path], files: Mapping[str, Path], arguments: argparse.Namespace) -> ReachReport:
    """Measure the reach of models on the test data."""
    return measure_reach(
        [str(folder) for folder in folders],
        [str(files["test"])],
        sample=arguments.sample,
        minutes=arguments.minutes,
        threads=1,
        notify=print,
    )


STAGES = {"short": measure_short, "longer": measure_longer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/reach"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--sample", type=int, default=1_000, help="predictions to measure")
    parser.add_argument("--minutes", type=float, default=5.0, help="limit of measuring a model")
    parser.add_argument("--stage", choices=STAGES, action="append", help="by default all; may be repeated")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    files = write_data(arguments.folder / "data")
    for stage in arguments.stage or STAGES:
        result = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        result["processor"] = processor_identity()
        result[stage] = STAGES[stage](arguments, files)
        arguments.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        print("\n".join(result[stage]["summary"]))


if __name__ == "__main__":
    main()
