"""Bar: of long texts a BigBird takes as long for each token as of shorter ones, and memory in proportion.

    python -m benchmarks.bars.long_texts [--width 256 --layers 4]

Vectors of texts of 1,024, 2,048 and 4,096 tokens are made by the pipeline of `regard embed`, by an encoder that looks
in blocks and by one that looks everywhere, in turns; memory is that of a process of its own for each. Training is
measured likewise: a forward and a backward pass over one row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from regard.attention.rows import Rows
from regard.bench import work
from regard.bench.memory import peak_memory
from regard.checkpoint.encoder_folder import load_encoder, save_encoder
from regard.config.model import EncoderConfig, StackConfig
from regard.models.encoder import Encoder, start_encoder
from regard.pipeline import load_embedder

LENGTHS = (1024, 2048, 4096)
MOST = 1.5  # times the seconds of a token among 1,024 that one among 4,096 may take
VOCABULARY = 1000
SIGHTS = ("blocks", "full")


def made(folder: Path, sight: str, width: int, layers: int) -> None:
    """Write an encoder with made-up weights."""
    stack = StackConfig(layers=layers, heads=width // 64, feedforward=4 * width)
    words = work.encoder_tokenizer(VOCABULARY + 1)
    config = EncoderConfig(vocabulary=words.size, width=width, stack=stack, places=max(LENGTHS), attention=sight)
    model = Encoder(config)
    start_encoder(model, 1)
    save_encoder(folder, config, model.state_dict(), tokenizer=words, task="", facts={}, card="")


def reading(folder: Path, length: int) -> Callable[[], object]:
    """Return what makes the vector of one text."""
    model = load_embedder(folder, threads=torch.get_num_threads(), backend="torch")
    texts = work.texts([length - 2], VOCABULARY)
    return lambda: model.embed(texts)


def learning(folder: Path, length: int) -> Callable[[], object]:
    """Return what goes forwards and backwards through one row."""
    model = load_encoder(folder).model()
    ids = torch.randint(10, VOCABULARY, (length,), generator=torch.Generator().manual_seed(1))
    rows = Rows(np.array([length]))
    return lambda: model(ids, rows).sum().backward()


WORK = {"reading": reading, "learning": learning}


def memory(folder: Path, what: str, length: int, threads: int) -> float:
    """Return the peak memory of a process that does it once, in megabytes, beyond that of one that only opens it."""
    command = [sys.executable, "-m", "benchmarks.bars.long_texts", "--folder", str(folder), "--only", what]
    found = []
    for tokens in (64, length):
        done = subprocess.run(
            [*command, str(tokens), "--threads", str(threads)], capture_output=True, text=True, check=True
        )
        found.append(float(done.stdout))
    return (found[1] - found[0]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.only:
        what, length = arguments.only
        WORK[what](arguments.folder, int(length))()
        print(peak_memory())
        return
    holds = True
    with tempfile.TemporaryDirectory() as room:
        folders = {sight: Path(room, sight) for sight in SIGHTS}
        for sight, folder in folders.items():
            made(folder, sight, arguments.width, arguments.layers)
        for what, begun in WORK.items():
            tasks = {(sight, length): begun(folder, length) for sight, folder in folders.items() for length in LENGTHS}
            taken: dict[tuple[str, int], list[float]] = {key: [] for key in tasks}
            for turn in range(arguments.rounds + 1):
                for key, task in tasks.items():
                    began = time.perf_counter()
                    task()
                    if turn:  # the first is not counted
                        taken[key].append((time.perf_counter() - began) / key[1])
            for sight in SIGHTS:
                first, last = taken[sight, LENGTHS[0]], taken[sight, LENGTHS[-1]]
                ratios = [late / early for early, late in zip(first, last, strict=True)]
                used = [memory(folders[sight], what, length, arguments.threads) for length in LENGTHS]
                line = {
                    "what": what,
                    "sight": sight,
                    "microseconds_a_token": [
                        round(1e6 * statistics.median(taken[sight, length]), 1) for length in LENGTHS
                    ],
                    "ratio": round(statistics.median(ratios), 2),
                    "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
                    "megabytes": [round(one, 1) for one in used],
                }
                print(json.dumps(line), flush=True)
                holds = holds and (sight == "full" or line["ratio"] <= MOST)
    print(json.dumps({"bar": "long texts", "holds": holds}))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
