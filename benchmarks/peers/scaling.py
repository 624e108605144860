"""How cost grows: time and memory by length, batch, vocabulary, corpus size and number of workers.

Each point of a curve is measured in a process of its own, so that its memory is its own as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers import tasks
from benchmarks.peers.config import TRANSLATOR_SIZES, BenchmarkConfig, TranslatorSize
from benchmarks.peers.regard_runner import WORKERS
from benchmarks.peers.rounds import MIN_PREPARE_SECONDS, Deadline, Log, run_rounds, run_simultaneously
from benchmarks.peers.runner import RunnerError, RunnerSpec, start_runners
from benchmarks.peers.schedule import build_spec, fast_torch_precision
from benchmarks.peers.statistics import REGARD, Measurement, Metric, Row, build_rows

ROUNDS = 3
MAX_WORKERS = 8
PREPARATIONS = {"corpus": "preparing", "tokenise": "tokenising", "split": "splitting"}  # metric → title


@dataclass(frozen=True)
class CurvePoint:
    """One point of a curve: the value of its axis, and the runners measured there."""

    axis: str
    at: int
    metric: Metric
    specs: list[RunnerSpec]
    rounds: int = ROUNDS
    tokens: int = 0  # turns a rate into the seconds of this many tokens; 0: values stay as they are
    is_simultaneous: bool = False  # runners measure at the same time and their values are added


def measure_scaling(
    config: BenchmarkConfig, folder: Path, deadline: Deadline, *, missing: list[str], log: Log
) -> list[Row]:
    """Rows of all curves; points for which there is no time are named in `missing`."""
    size = TRANSLATOR_SIZES["tiny" if config.size == "tiny" else "small"]
    rows: list[Row] = []
    late: list[str] = []
    for point in list_points(config, size, folder):
        title = point.metric.benchmark
        if deadline.remaining() <= 0:
            late.append(f"{title} {point.at:,}")
            continue
        log(f"{title}: {point.at:,}")
        rows += _measure_point(point, config, deadline, missing)
    if late:
        missing.append(f"left out for want of time: {', '.join(late)}")
    return rows


def list_points(config: BenchmarkConfig, size: TranslatorSize, folder: Path) -> Iterator[CurvePoint]:
    """Points of all curves; a quick run has two of each."""

    def select(*values: int) -> Sequence[int]:
        if config.size == "tiny":
            return values[:2]
        return (values[0], values[2]) if config.quick else values

    for length in select(32, 64, 128, 256, 512):
        yield _training_point("length", length, [length] * 8, size, config)
    for batch_size in select(16, 64, 256, 1024):
        yield _training_point("batch", batch_size, [16] * batch_size, size, config)
    for vocab_size in select(1000, 4000, 16_000, 64_000):
        yield _training_point("vocabulary", vocab_size, [16] * 128, replace(size, vocab_size=vocab_size), config)
    for length in select(8, 32, 128, 480):
        yield _translation_point(length, size, config, folder)
    for pairs in select(1000, 10_000, 30_000, 100_000, 300_000):
        settings = {"size": asdict(size), "pairs": pairs}
        yield _preparation_point("corpus", "corpus", "corpus", pairs, settings, config)
    for metric in ("tokenise", "split"):
        for characters in select(125_000, 250_000, 500_000, 1_000_000):
            settings = {"characters": characters}
            yield _preparation_point("text", metric, "characters", characters, settings, config)
    yield from _worker_points(size, config, folder)


def _training_point(
    axis: str, at: int, lengths: list[int], size: TranslatorSize, config: BenchmarkConfig
) -> CurvePoint:
    """An update on one batch; a full run measures torch as well."""
    settings = {"size": asdict(size), "lengths": [[lengths, lengths]]}
    modules = {REGARD: "regard_runner"}
    if not config.quick and "torch" in config.libraries():
        modules["torch"] = "libraries.torch"
    specs = [
        build_spec(library, module, "training", fast_torch_precision(), config, settings)
        for library, module in modules.items()
    ]
    metric = Metric("training", f"growth: training by {axis}", "s/update", lower_is_better=True)
    return CurvePoint(axis, at, metric, specs, tokens=sum(lengths) + len(lengths))


def _translation_point(length: int, size: TranslatorSize, config: BenchmarkConfig, folder: Path) -> CurvePoint:
    """A single sentence, translated greedily."""
    settings = {
        "size": asdict(size),
        "folder": str(folder),
        "modes": ["single greedy"],
        "single_lengths": [length],
    }
    metric = Metric("single greedy", "growth: translation by length", "ms/sentence", lower_is_better=True)
    spec = build_spec(REGARD, "regard_runner", "translation", "float32", config, settings)
    return CurvePoint("length", length, metric, [spec])


def _preparation_point(
    benchmark: str, metric_name: str, axis: str, at: int, settings: dict[str, Any], config: BenchmarkConfig
) -> CurvePoint:
    """Work before the first update."""
    metric = Metric(metric_name, f"growth: {PREPARATIONS[metric_name]} by {axis}", "s", lower_is_better=True)
    spec = build_spec(REGARD, "regard_runner", benchmark, "", config, settings)
    return CurvePoint(axis, at, metric, [spec], rounds=1)


def _worker_points(size: TranslatorSize, config: BenchmarkConfig, folder: Path) -> Iterator[CurvePoint]:
    """Several processes of one thread each: training together, and translating independently."""
    single_threaded = replace(config, threads=1)
    counts = [count for count in (1, 2, 4, MAX_WORKERS) if count <= max(2, config.num_threads)]
    for count in counts:
        settings = {**tasks.training_settings(size), "workers": count}
        variant = f"{fast_torch_precision()} {WORKERS}"
        spec = build_spec(REGARD, "regard_runner", "training", variant, single_threaded, settings)
        metric = Metric("training", "growth: training by workers", "target tokens/s")
        yield CurvePoint("workers", count, metric, [spec])
    for count in counts:
        settings = tasks.translation_settings(size, folder, ["greedy"])
        spec = build_spec(REGARD, "regard_runner", "translation", "float32", single_threaded, settings)
        metric = Metric("greedy", "growth: translation by workers", "sentences/s")
        yield CurvePoint("workers", count, metric, [spec] * count, is_simultaneous=True)


def _measure_point(point: CurvePoint, config: BenchmarkConfig, deadline: Deadline, missing: list[str]) -> list[Row]:
    rounds = 1 if config.quick else point.rounds
    if point.is_simultaneous:
        measurements = _measure_simultaneously(point, rounds, deadline, missing)
    else:
        outcome = run_rounds(point.specs, [point.metric], rounds, deadline=deadline, log=lambda line: None)
        missing += outcome.missing
        measurements = [
            _to_seconds(measurement, point.tokens) for measurement in outcome.measurements[point.metric.name]
        ]
    rows = build_rows(point.metric, measurements)
    return [replace(row, axis=point.axis, at=float(point.at)) for row in rows]


def _to_seconds(measurement: Measurement, tokens: int) -> Measurement:
    """Seconds of this many tokens instead of tokens per second; 0 leaves the values as they are."""
    if not tokens:
        return measurement
    return replace(measurement, values=tuple(tokens / value for value in measurement.values))


def _measure_simultaneously(
    point: CurvePoint, rounds: int, deadline: Deadline, missing: list[str]
) -> list[Measurement]:
    """One measurement with the sum of all runners; none where a runner fails."""
    with start_runners(point.specs, max(MIN_PREPARE_SECONDS, deadline.remaining()), missing) as runners:
        if len(runners) < len(point.specs):
            return []
        try:
            values = tuple(run_simultaneously(runners, point.metric.name, rounds))
        except RunnerError as error:
            missing.append(f"failed: {point.metric.benchmark}: {error}")
            return []
        peak_memory = sum(runner.peak_memory for runner in runners)
        return [Measurement(point.specs[0].name, REGARD, values, peak_memory=peak_memory)]
