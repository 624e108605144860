"""Measure the rate of one workload in this process, after warm-up, with the settings that a user gets by default.

    python benchmarks/steady_rate.py training FOLDER PRESET BATCH_TOKENS --warm-up N --updates N
    python benchmarks/steady_rate.py encoding FOLDER TEXTS --warm-up N --seconds S

`training` runs `regard train translate` on train.en and train.de of FOLDER and ends after the timed updates.
`encoding` embeds the lines of TEXTS with the encoder of FOLDER in torch, again and again. The result is a line of JSON.
The version of Regard is the first one on PYTHONPATH; benchmarks/before_after.py compares two of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import regard  # before torch: a version may set how OpenMP threads wait

NEVER = 1_000_000  # updates: more than any run here makes


def measure_training(folder: Path, preset: str, batch_tokens: int, *, warm_up: int, updates: int) -> None:
    """Train a translator by the command line; report the updates per second that follow the warm-up."""
    import torch

    from regard.cli import main as regard_main
    from regard.training.trainer import Trainer

    train_step = Trainer.step
    warm: tuple[float, int] = (0.0, 0)  # when the warm-up ended, and the target tokens until then

    def timed_step(trainer: Trainer, progress: float) -> None:
        nonlocal warm
        train_step(trainer, progress)
        counters = trainer.state
        if counters.step == warm_up:
            warm = (time.perf_counter(), counters.tokens)
        if counters.step == warm_up + updates:
            report(
                rate=updates / (time.perf_counter() - warm[0]),
                tokens=counters.tokens - warm[1],
                precision=str(trainer.weights.compute.dtype).removeprefix("torch."),
                threads=torch.get_num_threads(),
            )

    Trainer.step = timed_step  # type: ignore[method-assign, assignment]
    with tempfile.TemporaryDirectory() as out:
        files = [str(folder / name) for name in ("train.en", "train.de", "val.en", "val.de")]
        sys.argv = ["regard", "train", "translate", *files[:2], "--valid", *files[2:], "--preset", preset]
        sys.argv += ["--batch-tokens", str(batch_tokens), "--steps", str(NEVER), "--evaluate-every", str(NEVER)]
        sys.argv += ["--out", str(Path(out, "run"))]
        regard_main()


def measure_encoding(folder: Path, texts: Path, *, warm_up: int, seconds: float) -> None:
    """Embed texts in torch; report the texts per second that follow the warm-up."""
    import torch

    from regard.pipeline.load import load_embedder

    lines = texts.read_text("utf-8").splitlines()
    pipeline = load_embedder(folder, backend="torch")
    for _ in range(warm_up):
        pipeline.embed(lines)
    count = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        pipeline.embed(lines)
        count += len(lines)
    report(rate=count / elapsed, threads=torch.get_num_threads())


def report(**measured: Any) -> None:
    """Print the result and end the process: a run of training has more to do that is not measured."""
    print(json.dumps({**measured, "package": str(Path(regard.__file__).parent)}), flush=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    workloads = parser.add_subparsers(dest="workload", required=True)
    training = workloads.add_parser("training")
    training.add_argument("folder", type=Path)
    training.add_argument("preset")
    training.add_argument("batch_tokens", type=int)
    training.add_argument("--warm-up", type=int, required=True)
    training.add_argument("--updates", type=int, required=True)
    encoding = workloads.add_parser("encoding")
    encoding.add_argument("folder", type=Path)
    encoding.add_argument("texts", type=Path)
    encoding.add_argument("--warm-up", type=int, required=True)
    encoding.add_argument("--seconds", type=float, required=True)
    options = vars(parser.parse_args())
    measures: dict[str, Callable[..., None]] = {"training": measure_training, "encoding": measure_encoding}
    measures[options.pop("workload")](**options)


if __name__ == "__main__":
    main()
