"""Throughput and latency of one model on this machine, by backend, precision and number of threads.

All setups are loaded in one process and measured in interleaved rounds, so that a change in the speed of the machine
affects all of them equally. A round runs a batch of texts through each setup, then some of the texts one at a time. The
first round is a warm-up and is not counted.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regard.config.inference import GenerationConfig
from regard.engine.layout import PRECISIONS
from regard.errors import CheckpointError, UsageError, nearest
from regard.formatting import format_count, round_digits
from regard.hardware import available_cores, processor_name
from regard.pipeline.load import load
from regard.report.json_output import ModelBenchmarkDict, SetupResultDict

if TYPE_CHECKING:
    from regard.pipeline.loaders import Pipeline
    from regard.pipeline.translation_result import Translation

BACKENDS = ("engine", "torch")
TORCH_PRECISIONS = ("float32", "bf16")
NEW_TOKENS = 32  # generated for each prompt
QUESTION = "What is this text about?"  # for every passage
WORDS = (
    "the a of and in to is was that for on with as by at from two three small large old young man woman child dog cat "
    "house street river city water snow rain morning people runs walks sits plays reads looks over near while"
).split()
MIN_WORDS = 4
MAX_WORDS = 48

Log = Callable[[str], object]
Run = Callable[[Sequence[str]], int]  # texts → units produced
DIGITS = 5  # of measured figures


@dataclass(frozen=True)
class Effort:
    """Size of a benchmark."""

    texts: int  # per batch
    single_texts: int  # texts whose latency is measured
    rounds: int


FULL = Effort(texts=200, single_texts=20, rounds=5)
QUICK = Effort(texts=32, single_texts=5, rounds=3)


class Workload(NamedTuple):
    """A model's task as a function of texts, and its unit of throughput."""

    unit: str
    run: Run


@dataclass(frozen=True)
class BenchmarkSetup:
    """One way to run the model."""

    backend: str
    precision: str
    threads: int

    def __str__(self) -> str:
        return f"{self.backend} {self.precision}, {format_count(self.threads, 'thread')}"


@dataclass(frozen=True)
class SetupResult:
    """Measurements of one setup."""

    setup: BenchmarkSetup
    throughputs: tuple[float, ...]  # units per second of each round
    latencies: tuple[float, ...]  # milliseconds per single text, all rounds

    def to_dict(self) -> SetupResultDict:
        """Rounded figures for JSON."""
        return {
            "backend": self.setup.backend,
            "precision": self.setup.precision,
            "threads": self.setup.threads,
            "throughput": round_digits(statistics.median(self.throughputs), DIGITS),
            "throughput_range": [round_digits(choose(self.throughputs), DIGITS) for choose in (min, max)],
            "latency_p50_ms": round_digits(self.latency(50), DIGITS),
            "latency_p95_ms": round_digits(self.latency(95), DIGITS),
        }

    def cells(self) -> list[str]:
        """One row of the table."""
        return [
            self.setup.backend,
            self.setup.precision,
            str(self.setup.threads),
            _format_number(statistics.median(self.throughputs)),
            f"{_format_number(min(self.throughputs))}–{_format_number(max(self.throughputs))}",
            _format_number(self.latency(50)),
            _format_number(self.latency(95)),
        ]

    def latency(self, percentile: float) -> float:
        """Milliseconds within which this percentage of single texts is done."""
        return float(np.percentile(self.latencies, percentile))


@dataclass(frozen=True)
class ModelBenchmark:
    """Speed of one model in several setups."""

    model: str
    unit: str  # of throughput
    texts: int
    rounds: int
    results: tuple[SetupResult, ...]
    skipped: tuple[str, ...]  # setups that the model or the machine cannot run, with the reason

    def to_dict(self) -> ModelBenchmarkDict:
        """Everything as plain values."""
        return {
            "model": str(self.model),
            "unit": self.unit,
            "texts": self.texts,
            "rounds": self.rounds,
            "results": [result.to_dict() for result in self.results],
            "skipped": list(self.skipped),
            "processor": processor_name(),
            "cores": available_cores(),
        }

    def table(self) -> list[list[str]]:
        """Header and one row for each setup."""
        header = ["backend", "precision", "threads", self.unit, "range", "ms p50", "ms p95"]
        return [header, *(result.cells() for result in self.results)]


def benchmark_model(
    model: str | Path,
    texts: Sequence[str] = (),
    *,
    backends: Sequence[str] = (),
    precisions: Sequence[str] = (),
    threads: Sequence[int] = (),
    effort: Effort = FULL,
    log: Log = lambda line: None,
) -> ModelBenchmark:
    """Measure a model in every setup that it supports, on `texts` or on synthetic ones.

    Without backends, precisions or threads, all backends and precisions are measured with one thread per core.
    """
    texts = [text for text in texts if text.strip()][: effort.texts] or synthetic_texts(effort.texts)
    pipelines, skipped = _load_setups(model, list_setups(backends, precisions, threads), bool(precisions), log)
    workloads = {setup: _bind(pipeline) for setup, pipeline in pipelines.items()}
    throughputs: dict[BenchmarkSetup, list[float]] = {setup: [] for setup in workloads}
    latencies: dict[BenchmarkSetup, list[float]] = {setup: [] for setup in workloads}
    for index in range(effort.rounds + 1):
        log("warm-up" if index == 0 else f"round {index} of {effort.rounds}")
        for setup in list(workloads) if index % 2 else reversed(list(workloads)):
            _set_torch_threads(setup.threads)
            run = workloads[setup].run
            units, seconds = _time(run, texts)
            single_seconds = [_time(run, [text])[1] for text in texts[: effort.single_texts]]
            if index > 0:
                throughputs[setup].append(units / seconds)
                latencies[setup] += [1000 * seconds for seconds in single_seconds]
    return ModelBenchmark(
        model=str(model),
        unit=next(iter(workloads.values())).unit,
        texts=len(texts),
        rounds=effort.rounds,
        results=tuple(SetupResult(setup, tuple(throughputs[setup]), tuple(latencies[setup])) for setup in workloads),
        skipped=tuple(skipped),
    )


def list_setups(backends: Sequence[str], precisions: Sequence[str], threads: Sequence[int]) -> list[BenchmarkSetup]:
    """All combinations of what is requested; torch has no int8.

    >>> [str(setup) for setup in list_setups(["torch"], [], [1, 2])][:3]
    ['torch float32, 1 thread', 'torch float32, 2 threads', 'torch bf16, 1 thread']
    """
    _check_names("backend", backends, BACKENDS)
    _check_names("precision", precisions, PRECISIONS)
    if any(count < 1 for count in threads):
        raise UsageError(f"threads ({', '.join(map(str, threads))}) must be at least 1")
    combinations = itertools.product(backends or BACKENDS, precisions or PRECISIONS, threads or [available_cores()])
    return [
        BenchmarkSetup(backend, precision, count)
        for backend, precision, count in combinations
        if backend != "torch" or precision in TORCH_PRECISIONS
    ]


def _check_names(option: str, names: Sequence[str], allowed: Sequence[str]) -> None:
    for name in set(names) - set(allowed):
        raise UsageError(f"{option} must be one of {', '.join(allowed)}, not {name!r}{nearest(name, allowed)}")


def synthetic_texts(count: int, seed: int = 1) -> list[str]:
    """Random English words in texts of sentence length, the same for every model.

    >>> lengths = [len(text.split()) for text in synthetic_texts(500)]
    >>> min(lengths) >= MIN_WORDS, max(lengths) <= MAX_WORDS, 12 < sum(lengths) / 500 < 18
    (True, True, True)
    """
    rng = random.Random(seed)
    lengths = [min(max(round(rng.lognormvariate(2.6, 0.45)), MIN_WORDS), MAX_WORDS) for _ in range(count)]
    return [f"{' '.join(rng.choices(WORDS, k=length))}." for length in lengths]


def _load_setups(
    model: str | Path, setups: Sequence[BenchmarkSetup], is_precision_requested: bool, log: Log
) -> tuple[dict[BenchmarkSetup, Pipeline], list[str]]:
    """Pipelines of the setups that can run on this machine, and why the others cannot."""
    pipelines: dict[BenchmarkSetup, Pipeline] = {}
    skipped: list[str] = []
    for setup in setups:
        if not is_precision_requested and setup.backend == "torch" and setup.precision == "bf16" and _is_bf16_slow():
            skipped.append(f"{setup}: bf16 is slow on this processor; --precision bf16 measures it nevertheless")
            continue
        log(f"loading {setup}")
        try:
            pipelines[setup] = load(model, backend=setup.backend, precision=setup.precision, threads=setup.threads)
        except CheckpointError:
            raise
        except UsageError as error:
            skipped.append(f"{setup}: {error}")
    if not pipelines:
        raise UsageError(f"{model} cannot be measured: {'; '.join(skipped) or 'torch has no int8'}")
    return pipelines, skipped


def _is_bf16_slow() -> bool:
    from regard.hardware import BF16_UNUSABLE_SLOWDOWN, bf16_slowdown

    return bf16_slowdown() > BF16_UNUSABLE_SLOWDOWN


def _bind(pipeline: Pipeline) -> Workload:
    """Bind the pipeline's task to a function of texts; a generated text counts its end token."""
    import regard

    match pipeline:
        case regard.TranslationPipeline():
            return Workload("tokens/s", lambda texts: _count_tokens(pipeline.translate(texts, split=False)))
        case regard.GenerationPipeline():
            config = GenerationConfig(max_new_tokens=NEW_TOKENS, greedy=True)
            return Workload("tokens/s", lambda texts: sum(len(s.ids) + 1 for (s,) in pipeline.generate(texts, config)))
        case regard.EmbeddingPipeline():
            return Workload("texts/s", lambda texts: len(pipeline.embed(texts).vectors))
        case regard.ClassificationPipeline():
            return Workload("texts/s", lambda texts: len(pipeline.classify(texts)))
        case regard.TokenClassificationPipeline():
            return Workload("texts/s", lambda texts: len(pipeline.tag(texts)))
        case regard.QuestionAnsweringPipeline():
            return Workload("texts/s", lambda texts: len(pipeline.answer([(QUESTION, text) for text in texts])))
        case regard.FillMaskPipeline():
            return Workload("texts/s", lambda texts: len(pipeline.fill([f"{pipeline.mask} {text}" for text in texts])))
        case regard.FeaturePipeline():
            return Workload("texts/s", lambda texts: len(pipeline.features(texts)))
        case _:
            raise UsageError("this model reads stories, not texts: it cannot be benchmarked")


def _count_tokens(translations: Sequence[Translation]) -> int:
    return sum(len(sentence.ids) + 1 for translation in translations for sentence in translation.sentences)


def _time(run: Run, texts: Sequence[str]) -> tuple[int, float]:
    """Units produced and seconds elapsed."""
    start = time.perf_counter()
    units = run(texts)
    return units, time.perf_counter() - start


def _set_torch_threads(threads: int) -> None:
    """Set the thread count of torch, which is global: loading another setup has changed it."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)


def _format_number(figure: float) -> str:
    """Format with about three significant digits.

    >>> [_format_number(figure) for figure in (12345.6, 123.45, 1.2345)]
    ['12,346', '123', '1.23']
    """
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
