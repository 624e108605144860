"""Measure the rate of one workload in this process, after warm-up, with the settings that a user gets by default.

    python benchmarks/steady_rate.py training FOLDER PRESET BATCH_TOKENS --warm-up N --updates N
    python benchmarks/steady_rate.py encoding FOLDER TEXTS --backend NAME --warm-up N --seconds S
    python benchmarks/steady_rate.py translation FOLDER TEXTS [--single] --warm-up N --seconds S

`training` runs `regard train translate` on train.en and train.de of FOLDER and ends after the timed updates.
`encoding` embeds the lines of TEXTS with the encoder of FOLDER, again and again; `translation` translates them, all in
one call or, with `--single`, each in a call of its own. The result is a line of JSON.
The version of Regard is the first one on PYTHONPATH; benchmarks/before_after.py compares two of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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
        state: Any = vars(trainer).get("state") or vars(trainer)["counters"]  # the name in versions before the rename
        if state.step == warm_up:
            warm = (time.perf_counter(), state.tokens)
        if state.step == warm_up + updates:
            report(
                rate=updates / (time.perf_counter() - warm[0]),
                tokens=state.tokens - warm[1],
                precision=str(next(trainer.model.parameters()).dtype).removeprefix("torch."),
                threads=torch.get_num_threads(),
            )

    Trainer.step = timed_step  # type: ignore[method-assign, assignment]
    with tempfile.TemporaryDirectory() as out:
        files = [str(folder / name) for name in ("train.en", "train.de", "val.en", "val.de")]
        sys.argv = ["regard", "train", "translate", *files[:2], "--valid", *files[2:], "--preset", preset]
        sys.argv += ["--batch-tokens", str(batch_tokens), "--steps", str(NEVER), "--evaluate-every", str(NEVER)]
        sys.argv += ["--out", str(Path(out, "run"))]
        regard_main()


def measure_encoding(folder: Path, texts: Path, *, backend: str, warm_up: int, seconds: float) -> None:
    """Embed texts; report the texts per second that follow the warm-up."""
    pipeline: Any = regard.load(str(folder), backend=backend)
    lines = texts.read_text("utf-8").splitlines()
    report(rate=measure_calls(pipeline.embed, [lines], warm_up=warm_up, seconds=seconds))


def measure_translation(folder: Path, texts: Path, *, single: bool, warm_up: int, seconds: float) -> None:
    """Translate texts with default settings; report the texts per second that follow the warm-up."""
    pipeline: Any = regard.load(str(folder))
    lines = texts.read_text("utf-8").splitlines()
    calls = [[line] for line in lines] if single else [lines]
    report(rate=measure_calls(pipeline, calls, warm_up=warm_up, seconds=seconds))


def measure_calls(
    run: Callable[[list[str]], Any], calls: Sequence[list[str]], *, warm_up: int, seconds: float
) -> float:
    """Run all calls `warm_up` times, then for `seconds`; return the texts per second of the second part."""
    for _ in range(warm_up):
        for texts in calls:
            run(texts)
    count = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for texts in calls:
            run(texts)
            count += len(texts)
    return count / elapsed


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
    encoding.add_argument("--backend", required=True)
    translation = workloads.add_parser("translation")
    translation.add_argument("--single", action="store_true")
    for inference in (encoding, translation):
        inference.add_argument("folder", type=Path)
        inference.add_argument("texts", type=Path)
        inference.add_argument("--warm-up", type=int, required=True)
        inference.add_argument("--seconds", type=float, required=True)
    options = vars(parser.parse_args())
    measures: dict[str, Callable[..., None]] = {
        "training": measure_training,
        "encoding": measure_encoding,
        "translation": measure_translation,
    }
    measures[options.pop("workload")](**options)


if __name__ == "__main__":
    main()
