"""Target: training RNNs 1.5 to 2.5 times as fast as a step-by-step loop, on its own batches, in interleaved rounds.

    python -m benchmarks.targets.rnn_training_speed PEER.py --repeats 5 --threads 2

PEER.py is a script with `BATCHES` (lists of pairs of token ids) and `loop(hoist, bf16)` (returns a function that trains
once over them and returns target tokens per second). Each runner is a process of its own, or several that train
together. Regard trains two models: the RNN of Bahdanau et al. with the context fed into the cell (the loop's model),
and one whose attention follows the recurrence (another model).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType

import numpy as np

from benchmarks.peers.regard_runner import WORKERS, build_updates, measure_rate
from benchmarks.peers.tasks import INPUT_FEEDING, RECURRENT_CLIP, RECURRENT_SIZES
from benchmarks.peers.workload import EOS_ID
from regard.hardware import end_with_parent
from regard.packed_tokens import PairBatch, Tokens
from regard.training.distributed import Distributed
from regard.training.launcher import run_ranks

MIN_RATIOS = {"fed": 1.5, "following": 2.5}  # to the fastest loop
VARIANTS = ("float32", "bf16", f"bf16 {WORKERS}")
LOOPS = {  # runner → hoist, bf16
    "loop_fp32": (False, False),
    "loop_bf16": (False, True),
    "loop_hoisted_fp32": (True, False),
    "loop_hoisted_bf16": (True, True),
}
REGARD_RUNNERS = {  # runner → metric, variant
    f"regard {metric} {variant}": (metric, variant) for variant in VARIANTS for metric in INPUT_FEEDING
}
MODULE = "benchmarks.targets.rnn_training_speed"

Measure = Callable[[], float]


def load_peer(path: Path, threads: int) -> ModuleType:
    """Import the peer's script without running its measurements."""
    sys.argv = [str(path), "--peers", "none", "--threads", str(threads)]
    spec = importlib.util.spec_from_file_location("recurrent_peer", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not a Python script")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def convert_batches(module: ModuleType) -> list[PairBatch]:
    """The peer's batches as Regard's."""
    batches = []
    for pairs in module.BATCHES:
        source = Tokens.from_rows([np.array([*source_ids, EOS_ID], np.int32) for source_ids, _ in pairs])
        target = Tokens.from_rows([np.array(target_ids, np.int32) for _, target_ids in pairs])
        batches.append(PairBatch(source, target))
    return batches


def build_measure(name: str, module: ModuleType, distributed: Distributed) -> Measure:
    """Build a runner's measurement: training once over the batches, in target tokens per second."""
    if name in LOOPS:
        hoist, bf16 = LOOPS[name]
        loop: Measure = module.loop(hoist, bf16)
        return loop
    metric, variant = REGARD_RUNNERS[name]
    batches = convert_batches(module)
    tokens = sum(batch.num_predictions for batch in batches)  # with end tokens, as the script counts
    config = RECURRENT_SIZES["small"].config(INPUT_FEEDING[metric])
    precision = variant.split()[0]
    updates = build_updates(config, precision, batches, distributed, clip=RECURRENT_CLIP, smoothing=0.0)
    return partial(measure_rate, tokens, updates)


def serve(path: Path, threads: int, name: str) -> None:
    """Run one runner: measure once for each line of standard input and print the rate."""
    has_workers = threads > 1 and name.endswith(WORKERS)
    command = ["-m", MODULE, str(path), "--threads", str(threads), "--serve", name]
    is_rank = "RANK" in os.environ
    if has_workers and not is_rank:
        run_ranks(threads, command)
        return
    if is_rank:
        end_with_parent(os.getppid())
    module = load_peer(path, 1 if has_workers else threads)
    with Distributed.from_environment() as distributed:
        measure = build_measure(name, module, distributed)
        while distributed.broadcast([bool(sys.stdin.readline()) if distributed.is_rank_zero else False])[0]:
            rate = measure()
            if distributed.is_rank_zero:
                print(rate, flush=True)


def start_runner(arguments: argparse.Namespace, name: str) -> subprocess.Popen[str]:
    threads = str(arguments.threads)
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, str(arguments.peer), "--serve", name, "--threads", threads],
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": threads},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def measure_rates(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Rates of all runners in interleaved rounds; the first round is not counted."""
    names = [*LOOPS, *REGARD_RUNNERS]
    rates: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        runners = {name: stack.enter_context(start_runner(arguments, name)) for name in names}
        for index in range(arguments.repeats + 1):
            for name, runner in runners.items():
                assert runner.stdin is not None
                assert runner.stdout is not None
                runner.stdin.write("\n")
                runner.stdin.flush()
                rate = float(runner.stdout.readline())
                if index > 0:
                    rates[name].append(rate)
        for runner in runners.values():
            assert runner.stdin is not None
            runner.stdin.close()
    return rates


def check_rates(rates: dict[str, list[float]]) -> bool:
    """Print rates and ratios; return whether the targets are met."""
    for name, values in rates.items():
        print(f"{name:38} {median(values):8.0f} tokens/s  ({min(values):.0f}–{max(values):.0f})")

    def fastest(names: list[str]) -> str:
        return max(names, key=lambda name: median(rates[name]))

    best_loop = fastest([name for name in rates if name not in REGARD_RUNNERS])
    is_met = True
    for metric, min_ratio in MIN_RATIOS.items():
        best = fastest([name for name in rates if name.startswith(f"regard {metric}")])
        ratios = sorted(rate / loop for rate, loop in zip(rates[best], rates[best_loop], strict=False))
        is_met &= median(ratios) >= min_ratio
        result = {
            "bench": metric,
            "ours": best,
            "peer": best_loop,
            "ratio": round(median(ratios), 2),
            "target": min_ratio,
            "low": round(ratios[0], 2),
            "high": round(ratios[-1], 2),
        }
        print(json.dumps(result))
    return is_met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--joeynmt", action="store_true", help="train JoeyNMT's RNN too, after the rest")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.peer, arguments.threads, arguments.serve)
        return
    rates = measure_rates(arguments)
    if arguments.joeynmt:
        rates["joeynmt"] = load_peer(arguments.peer, arguments.threads).joey()
    sys.exit(0 if check_rates(rates) else 1)


if __name__ == "__main__":
    main()
