"""Training, translation and encoding on a quiet machine: this version against an earlier one, in interleaved rounds.

    python -m benchmarks.before_after DATA --before TREE/src [--workload NAME]… [--encoder FOLDER] [--translator FOLDER]

DATA is a folder with multi30k/ and sst2/ as they are published. The encoder has MiniLM's sizes, the translator those of
the preset `small`; both folders are in Hugging Face's format, which every version reads. A round runs
every workload once in each version, in a process of its own (benchmarks/steady_rate.py); the versions take turns in
coming first. Both have their default settings: threads, precision, how OpenMP threads wait. Before the first round
this version trains once uncounted: it measures and stores its choice of threads and precision.

A workload passes where the ratio of the medians reaches its bar, or the ratio's 95 % bootstrap interval reaches 1.0.
Results are in benchmarks/results/before_after.json; a workload measured again gets another attempt there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.busy_machine import ROOT, unpack
from regard.hardware import processor_identity

RESULTS = ROOT / "benchmarks/results/before_after.json"
STEADY_RATE = ROOT / "benchmarks/steady_rate.py"
PAIRS, TEXTS = 6000, 256
RESAMPLES, CONFIDENCE, SEED = 10_000, 0.95, 1
SETTING_PREFIXES = ("OMP", "GOMP", "KMP", "MKL")  # of variables that would change a default


@dataclass(frozen=True)
class Workload:
    """What is measured, and the ratio of medians, after to before, that it must reach."""

    unit: str
    bar: float
    command: str  # of steady_rate.py
    arguments: Sequence[str]  # after the folder
    texts: str = ""  # the file that inference reads


REPEATED = ("--warm-up", "2", "--seconds", "6")
WORKLOADS = {
    "training tiny": Workload("updates/s", 0.90, "training", ("tiny", "1024", "--warm-up", "30", "--updates", "100")),
    "training small": Workload("updates/s", 0.97, "training", ("small", "4096", "--warm-up", "4", "--updates", "14")),
    "training base": Workload("updates/s", 0.97, "training", ("base", "2048", "--warm-up", "2", "--updates", "4")),
    "batch translation": Workload("texts/s", 0.97, "translation", REPEATED, texts="val.en"),
    "single sentence": Workload("texts/s", 0.97, "translation", ("--single", *REPEATED), texts="val.en"),
    "torch encoding": Workload("texts/s", 0.97, "encoding", ("--backend", "torch", *REPEATED), texts="texts.txt"),
    "engine encoding": Workload("texts/s", 0.97, "encoding", ("--backend", "engine", *REPEATED), texts="texts.txt"),
}


def write_inputs(data: Path, folder: Path) -> None:
    """Write the files that the workloads read."""
    for part, count in (("train", PAIRS), ("val", 200)):
        for language in ("en", "de"):
            unpack(data / f"multi30k/{part}.{language}.gz", folder / f"{part}.{language}", count)
    rows = (data / "sst2/train.tsv").read_text("utf-8").splitlines()[:TEXTS]
    (folder / "texts.txt").write_text("".join(row.split("\t")[0] + "\n" for row in rows), "utf-8")


def measure_rate(source: Path, name: str, folder: Path, models: dict[str, str]) -> dict[str, Any]:
    """Measure a workload in a new process of the version in `source`."""
    workload = WORKLOADS[name]
    inputs = [models[workload.command], str(folder / workload.texts)] if workload.texts else [str(folder)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(SETTING_PREFIXES)}
    environment |= {"PYTHONPATH": str(source), "REGARD_CACHE": str(folder / "cache")}
    process = subprocess.run(
        [sys.executable, str(STEADY_RATE), workload.command, *inputs, *workload.arguments],
        capture_output=True,
        text=True,
        env=environment,
    )
    if process.returncode:
        raise SystemExit(f"{name}: {process.stderr[-2000:]}")
    measured: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    if Path(measured.pop("package")) != source / "regard":
        raise SystemExit(f"{name}: another package than {source} was measured")
    return measured


def measure_rounds(
    names: Sequence[str], sources: dict[str, Path], folder: Path, models: dict[str, str], count: int
) -> dict[str, list[dict[str, Any]]]:
    """Measure every workload in both versions, round by round."""
    for name in names:
        if not WORKLOADS[name].texts:  # store the choice of threads and precision
            measure_rate(sources["after"], name, folder, models)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for index in range(count):
        versions = list(reversed(sources)) if index % 2 else list(sources)
        for name in names:
            rates = {version: measure_rate(sources[version], name, folder, models) for version in versions}
            print(json.dumps({"round": index + 1, "workload": name, **rates}), flush=True)
            rounds[name].append(rates)
    return rounds


def compare_rates(rounds: Sequence[dict[str, Any]], workload: Workload) -> dict[str, Any]:
    """Compare the medians of both versions; rounds are resampled as pairs, because both share the machine's drift."""
    rates = np.array([[row[version]["rate"] for version in ("before", "after")] for row in rounds])
    samples = np.random.default_rng(SEED).integers(len(rates), size=(RESAMPLES, len(rates)))
    tail = (1 - CONFIDENCE) / 2
    interval = np.quantile(median_ratio(rates[samples]), [tail, 1 - tail])
    ratio = float(median_ratio(rates))
    before, after = np.median(rates, axis=0)
    return {
        "median": {"before": float(before), "after": float(after)},
        "ratio": ratio,
        "interval": interval.tolist(),
        "holds": bool(ratio >= workload.bar or interval[1] >= 1),
        "rounds": list(rounds),
    }


def median_ratio(rates: NDArray[np.float64]) -> NDArray[np.float64]:  # […, rounds, 2] → […]
    """Divide the median rate after by the one before."""
    before, after = np.moveaxis(np.median(rates, axis=-2), -1, 0)
    return np.asarray(after / before)


def store_attempt(name: str, attempt: dict[str, Any]) -> None:
    """Add an attempt to those of this workload on this processor."""
    RESULTS.parent.mkdir(exist_ok=True)
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    if results.get("processor") != processor_identity():
        results = {"processor": processor_identity(), "workloads": {}}
    workload = WORKLOADS[name]
    entry = results["workloads"].setdefault(name, {"unit": workload.unit, "bar": workload.bar, "attempts": []})
    entry["attempts"].append(attempt)
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--before", type=Path, required=True, help="src/ of the earlier version, its engine built")
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    parser.add_argument("--encoder", default="", help="without it, encoding is left out")
    parser.add_argument("--translator", default="", help="without it, translation is left out")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    models = {"training": "-", "encoding": options.encoder, "translation": options.translator}
    names = [name for name in options.workload or WORKLOADS if models[WORKLOADS[name].command]]
    sources = {"before": options.before.resolve(), "after": ROOT / "src"}
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(options.data, Path(folder))
        rounds = measure_rounds(names, sources, Path(folder), models, options.rounds)
    for name in names:
        attempt = compare_rates(rounds[name], WORKLOADS[name])
        store_attempt(name, attempt)
        low, high = attempt["interval"]
        print(f"{name}: {attempt['ratio']:.3f} ({low:.3f}–{high:.3f}), holds: {attempt['holds']}")


if __name__ == "__main__":
    main()
