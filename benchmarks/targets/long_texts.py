"""Target: block-sparse attention (BigBird) takes as long per token of long texts as of shorter ones.

    python -m benchmarks.targets.long_texts [--width 256 --layers 4]

Texts of 1,024, 2,048 and 4,096 tokens are embedded with the pipeline of `regard embed`, by an encoder with
block-sparse attention and by one with full attention, in turn; peak memory is that of a separate process each.
Training is measured likewise: a forward and a backward pass over one text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers import workload
from benchmarks.peers.peak_memory import peak_memory
from regard.attention.packed_batch import PackedBatch
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.config.models import BertConfig, StackConfig
from regard.models.bert import Bert, initialize_bert
from regard.pipeline.load import load_embedder

LENGTHS = (1024, 2048, 4096)
MAX_RATIO = 1.5  # of the seconds per token at 4,096 tokens to those at 1,024
MIN_LENGTH = 64  # whose memory is subtracted: that of a loaded model
VOCAB_SIZE = 1000
HEAD_SIZE = 64
ATTENTIONS = ("blocks", "full")

Case = tuple[str, int]  # attention, length


def write_encoder(folder: Path, attention: str, hidden_size: int, layers: int) -> None:
    """Write an encoder with random weights."""
    stack = StackConfig(num_layers=layers, num_heads=hidden_size // HEAD_SIZE, feed_forward_size=4 * hidden_size)
    tokenizer = workload.build_encoder_tokenizer(VOCAB_SIZE + 1)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=hidden_size,
        stack=stack,
        max_positions=max(LENGTHS),
        attention=attention,
    )
    model = Bert(config)
    initialize_bert(model, 1)
    save_encoder(folder, config, model.state_dict(), tokenizer=tokenizer, task="", metadata={}, card="")


def build_inference(folder: Path, length: int) -> Callable[[], object]:
    """Build a function that embeds one text."""
    pipeline = load_embedder(folder, threads=torch.get_num_threads(), backend="torch")
    texts = workload.draw_texts([length - 2], VOCAB_SIZE)
    return lambda: pipeline.embed(texts)


def build_training(folder: Path, length: int) -> Callable[[], object]:
    """Build a function that runs a forward and a backward pass over one text."""
    model = load_encoder(folder).model()
    ids = torch.randint(10, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(1))
    rows = PackedBatch(np.array([length]))
    return lambda: model(ids, rows).sum().backward()


BUILDERS = {"inference": build_inference, "training": build_training}


def measure_memory(folder: Path, work: str, length: int, threads: int) -> float:
    """Peak memory of a process that computes one text, in megabytes beyond that of one with a short text."""
    command = [sys.executable, "-m", "benchmarks.targets.long_texts", "--folder", str(folder), "--only", work]
    peaks = []
    for tokens in (MIN_LENGTH, length):
        completed = subprocess.run(
            [*command, str(tokens), "--threads", str(threads)], capture_output=True, text=True, check=True
        )
        peaks.append(float(completed.stdout))
    return (peaks[1] - peaks[0]) / 1e6


def measure_seconds(functions: Mapping[Case, Callable[[], object]], rounds: int) -> dict[Case, list[float]]:
    """Seconds per token of each case in interleaved rounds; the first round is not counted."""
    seconds: dict[Case, list[float]] = {case: [] for case in functions}
    for index in range(rounds + 1):
        for case, function in functions.items():
            start = time.perf_counter()
            function()
            if index > 0:
                seconds[case].append((time.perf_counter() - start) / case[1])
    return seconds


def measure_work(work: str, folders: Mapping[str, Path], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Figures of inference or training for each kind of attention."""
    build = BUILDERS[work]
    functions = {
        (attention, length): build(folder, length) for attention, folder in folders.items() for length in LENGTHS
    }
    seconds = measure_seconds(functions, arguments.rounds)
    results = []
    for attention, folder in folders.items():
        shortest = seconds[attention, LENGTHS[0]]
        longest = seconds[attention, LENGTHS[-1]]
        ratios = [long / short for short, long in zip(shortest, longest, strict=True)]
        medians = [statistics.median(seconds[attention, length]) for length in LENGTHS]
        memory = [measure_memory(folder, work, length, arguments.threads) for length in LENGTHS]
        results.append(
            {
                "work": work,
                "attention": attention,
                "microseconds_per_token": [round(1e6 * median, 1) for median in medians],
                "ratio": round(statistics.median(ratios), 2),
                "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
                "megabytes": [round(megabytes, 1) for megabytes in memory],
            }
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256, help="hidden size")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.only:
        work, length = arguments.only
        BUILDERS[work](arguments.folder, int(length))()
        print(peak_memory())
        return
    is_met = True
    with tempfile.TemporaryDirectory() as temporary:
        folders = {attention: Path(temporary, attention) for attention in ATTENTIONS}
        for attention, folder in folders.items():
            write_encoder(folder, attention, arguments.width, arguments.layers)
        for work in BUILDERS:
            for result in measure_work(work, folders, arguments):
                print(json.dumps(result), flush=True)
                is_met = is_met and (result["attention"] == "full" or result["ratio"] <= MAX_RATIO)
    print(json.dumps({"target": "long texts", "met": is_met}))
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
