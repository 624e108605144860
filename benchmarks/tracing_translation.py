"""What a trace costs: one sentence translated in the engine, without a trace and with each store.

python -m benchmarks.tracing_translation

The model has the sizes of the preset `small`, random weights and 8,000 subwords; the sentence has 14 tokens. Rounds
with and without a trace take turns, so that a busy machine delays all alike; the median of each is written to
benchmarks/results/tracing_translation.json.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.peers import workload
from benchmarks.random_models import save_random_translator
from regard.attention.trace import STORES, trace
from regard.config.inference import DecodingConfig
from regard.config.models import TRANSFORMER_PRESETS
from regard.hardware import processor_identity
from regard.pipeline.load import load_translator
from regard.pipeline.translation import TranslationPipeline

RESULT = Path(__file__).parent / "results" / "tracing_translation.json"
VOCAB_SIZE = 8000
ROUNDS = 40
(SENTENCE,) = workload.draw_texts([13], VOCAB_SIZE)


def save_random_model(folder: Path) -> None:
    """Write a translator with random weights."""
    config = TRANSFORMER_PRESETS["small"].override({"source_vocab_size": VOCAB_SIZE, "target_vocab_size": VOCAB_SIZE})
    save_random_translator(folder, config, DecodingConfig(max_length_a=1.0, max_length_b=0))


def time_call(pipeline: TranslationPipeline, store: str, beam: int) -> float:
    """Milliseconds of one call; an empty store: without a trace."""
    start = time.perf_counter()
    with trace(store=store) if store else nullcontext():
        pipeline.translate([SENTENCE], beam=beam)
    return 1000 * (time.perf_counter() - start)


def measure(folder: Path, precision: str, beam: int) -> dict[str, float]:
    """Median milliseconds of a sentence, by store."""
    pipeline = load_translator(folder, precision=precision, threads=1)
    times: dict[str, list[float]] = {case: [] for case in ("", *STORES)}
    for _ in range(ROUNDS):
        for case, seconds in times.items():
            seconds.append(time_call(pipeline, case, beam))
    return {case or "no trace": round(statistics.median(seconds), 3) for case, seconds in times.items()}


def main() -> None:
    results: dict[str, Any] = {"processor": processor_identity(), "threads": 1, "rounds": ROUNDS}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "model"
        save_random_model(folder)
        for precision in ("float32", "int8"):
            results[precision] = {f"beam {beam}": measure(folder, precision, beam) for beam in (1, 5)}
    RESULT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
