"""Run the benchmarks one after another and collect their rows in a report."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import gemm, tasks
from benchmarks.peers.config import QUICK_SECONDS, TRANSLATOR_SIZES, BenchmarkConfig, TranslatorSize
from benchmarks.peers.libraries import load_library
from benchmarks.peers.report import PeerReport
from benchmarks.peers.rounds import Deadline, Log, run_rounds
from benchmarks.peers.scaling import measure_scaling
from benchmarks.peers.schedule import schedule_runners
from benchmarks.peers.statistics import Metric, Row, build_rows
from regard.report.doctor import diagnose

TIME_SHARES = {  # of a quick run
    "training": 3.0,
    "recurrent": 1.5,
    "masked": 2.0,
    "fine-tuning": 2.0,
    "translation": 5.0,
    "encoding": 2.5,
    "growth": 2.0,
}


@dataclass(frozen=True)
class Step:
    """One benchmark of a run."""

    benchmark: str
    run: Callable[[Deadline], list[Row]]


class BenchmarkRun:
    """What the steps of one run share: options, folder, messages and the measured peaks."""

    def __init__(self, config: BenchmarkConfig, folder: Path, log: Log) -> None:
        self.config = config
        self.folder = folder
        self.log = log
        self.missing: list[str] = []
        self.peaks: dict[str, list[float]] = {}  # precision → FLOP/s, of all rounds

    def steps(self) -> list[Step]:
        """Requested benchmarks in order."""
        requested = self.config.benchmarks()
        sizes = self.config.translator_sizes()
        modes = [
            name
            for name, mode in tasks.TRANSLATION_MODES.items()
            if ("latency" if mode.is_single else "translation") in requested
        ]
        single_steps = {
            "recurrent": self.run_recurrent,
            "masked": self.run_masked_lm,
            "fine-tuning": self.run_fine_tuning,
            "encoding": self.run_encoding,
            "growth": self.run_scaling,
        }
        steps: list[Step] = []
        for benchmark in TIME_SHARES:
            if benchmark == "translation":
                steps += [Step(benchmark, partial(self.run_translation, size, modes)) for size in sizes if modes]
            elif benchmark not in requested:
                continue
            elif benchmark == "training":
                steps += [Step(benchmark, partial(self.run_training, size)) for size in sizes]
            else:
                steps.append(Step(benchmark, single_steps[benchmark]))
        return steps

    def run_training(self, size: TranslatorSize, deadline: Deadline) -> list[Row]:
        """Train a Transformer."""
        settings = tasks.training_settings(size)
        return self._run("training", settings, tasks.training_metrics(size, settings), deadline)

    def run_recurrent(self, deadline: Deadline) -> list[Row]:
        """Train RNNs."""
        size = tasks.recurrent_size(self.config)
        return self._run("recurrent", tasks.recurrent_settings(size), tasks.recurrent_metrics(size), deadline)

    def run_masked_lm(self, deadline: Deadline) -> list[Row]:
        """Train a masked language model."""
        size = self.config.masked_lm_size()
        return self._run("masked", tasks.masked_lm_settings(size), tasks.masked_lm_metrics(size), deadline)

    def run_fine_tuning(self, deadline: Deadline) -> list[Row]:
        """Fine-tune an encoder."""
        size = self.config.fine_tuning_size()
        return self._run("fine_tuning", tasks.fine_tuning_settings(size), tasks.fine_tuning_metrics(size), deadline)

    def run_translation(self, size: TranslatorSize, modes: list[str], deadline: Deadline) -> list[Row]:
        """Translate in batches and one sentence at a time."""
        settings = tasks.translation_settings(size, self._translators(size), modes)
        return self._run("translation", settings, tasks.translation_metrics(size, settings), deadline)

    def run_encoding(self, deadline: Deadline) -> list[Row]:
        """Embed texts."""
        size = self.config.embedding_size()
        settings = tasks.encoding_settings(size, with_single_texts=not self.config.quick)
        return self._run("encoding", settings, tasks.encoding_metrics(size, settings), deadline)

    def run_scaling(self, deadline: Deadline) -> list[Row]:
        """Measure how cost grows."""
        size = TRANSLATOR_SIZES["tiny" if self.config.size == "tiny" else "small"]
        return measure_scaling(self.config, self._translators(size), deadline, missing=self.missing, log=self.log)

    def _translators(self, size: TranslatorSize) -> Path:
        """Folder of the translators of a size, written on first use."""
        folder = self.folder / size.name
        if not folder.exists():
            self.log(f"writing a {size.name} translator with random weights")
            installed = [name for name in self.config.libraries() if load_library(name)[1].is_installed()]
            tasks.write_translators(folder, size, installed)
        return folder

    def _run(self, benchmark: str, settings: dict[str, Any], metrics: list[Metric], deadline: Deadline) -> list[Row]:
        specs = schedule_runners(benchmark, self.config, settings, self.missing)
        self.log(f"{metrics[0].benchmark}: starting {', '.join(spec.name for spec in specs)}")
        outcome = run_rounds(specs, metrics, self.config.rounds, deadline=deadline, log=self.log)
        self.missing += outcome.missing
        for peaks in outcome.peaks.values():
            for precision, flops in peaks.items():
                self.peaks.setdefault(precision, []).extend(flops)
        return [
            row
            for metric in metrics
            for row in build_rows(metric, outcome.measurements[metric.name], outcome.peaks[metric.name])
        ]


def run(config: BenchmarkConfig, log: Log) -> PeerReport:
    """Run the requested benchmarks; `log` receives progress messages."""
    deadline = Deadline.after(QUICK_SECONDS) if config.quick else Deadline()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        benchmark_run = BenchmarkRun(config, Path(folder), log)
        steps = benchmark_run.steps()
        for index, step in enumerate(steps):
            remaining_shares = sum(TIME_SHARES[later.benchmark] for later in steps[index:])
            rows += step.run(deadline.share(remaining_shares / TIME_SHARES[step.benchmark]))
    for precision, flops in benchmark_run.peaks.items():
        rows.append(Row(gemm.NAME, f"torch {precision}", median(flops) / 1e9, "GFLOP/s", rounds=tuple(flops)))
    missing = list(dict.fromkeys(benchmark_run.missing))
    return PeerReport(rows, missing, machine=describe_machine(config), settings=config.to_dict())


def describe_machine(config: BenchmarkConfig) -> dict[str, Any]:
    """Processor, memory and versions that the figures were measured with."""
    diagnosis = diagnose(quick=True)
    versions = dict(diagnosis.versions)
    for name in config.libraries():
        library = load_library(name)[1]
        if library.is_installed():
            versions |= {package: importlib.metadata.version(package) for package in library.requirements.values()}
    return {
        "processor": diagnosis.processor,
        "cores": diagnosis.cores,
        "threads": config.num_threads,
        "memory": diagnosis.memory,
        "instructions": diagnosis.instructions,
        "allocator": diagnosis.allocator or "the system's own",
        "versions": versions,
    }
