"""Bar: training recurrent models beside a step-by-step loop, on its own batches, in one interleaved run.

    python -m benchmarks.bars.recurrent_speed PEER.py --repeats 5 --threads 2

PEER.py is a script with `BATCHES` (lists of pairs of token numbers) and `loop(hoist, bf16)` (returns what trains once
over them and returns target tokens a second). Each contestant is a process of its own,
or several that train together. Ours is Bahdanau's recurrence
with what is seen fed into the cell (the loop's own model), and the one whose attention follows it (another model).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType

import numpy as np

from regard.bench.ours import WORKERS, rate, updating
from regard.bench.recurrent import CLIP, FEEDING, SHAPES
from regard.bench.work import END
from regard.tokens import PairBatch, Tokens
from regard.training.processes import Processes, others

BARS = {"fed": 1.5, "following": 2.5}  # how many times the fastest loop
WAYS = ("float32", "bf16", f"bf16 {WORKERS}")
LOOPS = {"loop_fp32": (False, False), "loop_bf16": (False, True)}
LOOPS |= {"loop_hoisted_fp32": (True, False), "loop_hoisted_bf16": (True, True)}


def peer(path: Path, threads: int) -> ModuleType:
    """Return the script as a module that has measured nothing yet."""
    sys.argv = [str(path), "--peers", "none", "--threads", str(threads)]
    spec = importlib.util.spec_from_file_location("recurrent_peer", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python script")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def contestants(module: ModuleType, processes: Processes) -> dict[str, Callable[[], Callable[[], float]]]:
    """Return what makes each one's turn: training once over the script's batches, in target tokens a second."""
    made = []
    for batch in module.BATCHES:
        rows = ([np.array([*source, END], np.int32) for source, _ in batch], [np.array(t, np.int32) for _, t in batch])
        made.append(PairBatch(*(Tokens.from_rows(some) for some in rows)))
    tokens = sum(batch.count for batch in made)  # ends counted, as the script does

    def ours(precision: str, feeding: str) -> Callable[[], float]:
        updates = updating(SHAPES["small"].config(feeding), precision, made, processes, clip=CLIP, smoothing=0.0)
        return partial(rate, tokens, updates)

    own = {
        f"regard {name} {how}": partial(ours, how.split()[0], feeding)
        for how in WAYS
        for name, feeding in FEEDING.items()
    }
    return {name: partial(module.loop, *how) for name, how in LOOPS.items()} | own


def serve(path: Path, threads: int, name: str) -> None:
    """Be one contestant: a turn for each line that is read, its rate as the answer."""
    several = threads > 1 and name.endswith(WORKERS)
    command = ["-m", "benchmarks.bars.recurrent_speed", str(path), "--threads", str(threads), "--serve", name]
    alone = "RANK" not in os.environ
    with others(threads, command, 1) if several and alone else nullcontext():
        module = peer(path, 1 if several else threads)
        with Processes.started() as processes:
            turn = contestants(module, processes)[name]()
            while processes.said_by_first([bool(sys.stdin.readline())] if alone else [0.0])[0]:
                value = turn()
                if alone:
                    print(value, flush=True)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("peer", type=Path)
    given.add_argument("--repeats", type=int, default=5)
    given.add_argument("--threads", type=int, default=2)
    given.add_argument("--joeynmt", action="store_true", help="train JoeyNMT's recurrent model too, after the rest")
    given.add_argument("--serve", help=argparse.SUPPRESS)
    options = given.parse_args()
    if options.serve:
        serve(options.peer, options.threads, options.serve)
        return
    names = [*LOOPS, *(f"regard {name} {how}" for how in WAYS for name in FEEDING)]
    with ExitStack() as open_ones:
        children = {name: open_ones.enter_context(_child(options, name)) for name in names}
        found: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(-1, options.repeats):  # the first warms up
            for name, child in children.items():
                assert child.stdin and child.stdout
                child.stdin.write("\n")
                child.stdin.flush()
                value = float(child.stdout.readline())
                if turn >= 0:
                    found[name].append(value)
        for child in children.values():
            assert child.stdin
            child.stdin.close()
    if options.joeynmt:
        found["joeynmt"] = peer(options.peer, options.threads).joey()
    sys.exit(0 if told(found) else 1)


def _child(options: argparse.Namespace, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.bars.recurrent_speed", str(options.peer), "--serve", name]
    threads = str(options.threads)
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([*command, "--threads", threads], text=True, env=environment, **pipes)


def told(found: dict[str, list[float]]) -> bool:
    """Print the rates and the ratios; return whether the bars hold."""
    for name, rates in found.items():
        print(f"{name:38} {median(rates):8.0f} tokens/s  ({min(rates):.0f}–{max(rates):.0f})")
    best = max((name for name in found if not name.startswith("regard")), key=lambda name: median(found[name]))
    held = True
    for name, bar in BARS.items():
        mine = max((one for one in found if one.startswith(f"regard {name}")), key=lambda one: median(found[one]))
        ratios = sorted(ahead / behind for ahead, behind in zip(found[mine], found[best], strict=False))
        held &= median(ratios) >= bar
        row = {"bench": name, "ours": mine, "peer": best, "ratio": round(median(ratios), 2), "bar": bar}
        print(json.dumps({**row, "low": round(ratios[0], 2), "high": round(ratios[-1], 2)}))
    return held


if __name__ == "__main__":
    main()
