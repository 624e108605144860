"""LoRA compared with full fine-tuning of an encoder: accuracy over several seeds, memory, and time of an update.

python -m benchmarks.lora ENCODER TRAIN.tsv --valid VALID.tsv --test TEST.tsv [--texts 2000] [--epochs 3]

Each run is a process of its own, so that its peak memory can be read. The results of the measured methods are replaced
in benchmarks/results/lora.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from regard.hardware import processor_identity

RESULT = Path(__file__).parent / "results" / "lora.json"


def train(arguments: argparse.Namespace, out: Path, options: list[str]) -> dict[str, Any]:
    """Fine-tune in a process of its own; return accuracy, memory and time."""
    command = [sys.executable, "-m", "regard", "train", "classify", str(arguments.train), "--from", arguments.encoder]
    command += ["--valid", arguments.valid, "--test", arguments.test, "--epochs", str(arguments.epochs)]
    command += ["--out", str(out), "--json", *arguments.settings.split(), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    checkpoint = max((out / "checkpoints").iterdir(), key=lambda folder: int(folder.name.partition("-")[2]))
    counters = json.loads((checkpoint / "counters.json").read_text())
    metrics = json.loads(lines[-1])["metrics"]
    return {
        "options": options,
        "test_accuracy": metrics["test_accuracy"],
        "valid_accuracy": metrics["valid_accuracy"],
        "updates": counters["step"],
        "update_seconds": (counters["seconds"] - counters["evaluation_seconds"]) / counters["step"],
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "peak_memory_mb": usage.ru_maxrss / 1024,
        "checkpoint_mb": sum(file.stat().st_size for file in checkpoint.iterdir()) / 2**20,
    }


def summarize(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Mean accuracy and its standard deviation over the seeds, and medians of memory and time."""
    accuracies = [run["test_accuracy"] for run in runs]
    medians = {
        name: round(statistics.median(run[name] for run in runs), 3)
        for name in ("update_seconds", "processor_seconds", "peak_memory_mb", "checkpoint_mb")
    }
    deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    return {"test_accuracy": round(statistics.mean(accuracies), 2), "deviation": round(deviation, 2), **medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("train", type=Path)
    parser.add_argument("--valid", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--texts", type=int, default=0, help="first training texts to use; 0: all")
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--settings", default="--threads 1 --precision float32", help="of all runs")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--methods", nargs="+", choices=("full", "lora"), default=["full", "lora"])
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    options = {"full": [], "lora": ["--lora", str(arguments.rank)]}
    runs: dict[str, list[dict[str, Any]]] = {method: [] for method in arguments.methods}
    with tempfile.TemporaryDirectory() as temporary:
        lines = arguments.train.read_text("utf-8").splitlines(keepends=True)
        arguments.train = Path(temporary, arguments.train.name)
        arguments.train.write_text("".join(lines[: arguments.texts or None]), "utf-8")
        for seed in arguments.seeds:
            for method in runs:
                run = train(arguments, Path(temporary, f"{method}-{seed}"), ["--seed", str(seed), *options[method]])
                runs[method].append(run)
                print(json.dumps(run), flush=True)
    result = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for method, method_runs in runs.items():
        result[method] = {
            "processor": processor_identity(),
            "texts": min(len(lines), arguments.texts or len(lines)),
            "epochs": arguments.epochs,
            "settings": arguments.settings,
            **summarize(method_runs),
            "runs": method_runs,
        }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
