"""Interleaved rounds: all runners measure the same metric one after another, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from benchmarks.peers.runner import Runner, RunnerError, RunnerSpec, start_runners
from benchmarks.peers.statistics import Measurement, Metric
from benchmarks.peers.worker import Job

Log = Callable[[str], object]

PAUSE_SECONDS = 0.25  # before each measurement: threads of the runner before it go to sleep
MIN_PREPARE_SECONDS = 20.0  # granted to runners even after the deadline
GEMM_JOB = Job("gemm", "gemm", "torch", threads=0)


@dataclass
class Deadline:
    """Point in time at which a run should end; without one there is no limit."""

    end: float = float("inf")

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """A deadline this many seconds from now."""
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.end - time.monotonic())

    def share(self, parts: float) -> Deadline:
        """Deadline of the first of so many equal parts of the remaining time.

        >>> Deadline().share(3).end
        inf
        """
        return Deadline(time.monotonic() + self.remaining() / max(1, parts))


@dataclass
class Outcome:
    """Measurements by metric, the FLOP/s of matrix products, and messages about missing runners."""

    measurements: dict[str, list[Measurement]] = field(default_factory=dict)
    peaks: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # metric → precision → FLOP/s by round
    missing: list[str] = field(default_factory=list)


def run_rounds(
    specs: Sequence[RunnerSpec], metrics: Sequence[Metric], rounds: int, *, deadline: Deadline, log: Log
) -> Outcome:
    """Measure each metric with all runners in interleaved rounds; a runner that fails is left out with a message.

    The first round of a metric warms up and is not counted. Every other round visits the runners in reverse order.
    Rounds end early when the next one would pass the deadline, but there is always one. Where the FLOPs of a metric are
    known, a large matrix product is measured in every round as well.
    """
    outcome = Outcome()
    seconds = max(MIN_PREPARE_SECONDS, deadline.remaining())
    gemm_spec = RunnerSpec("torch", replace(GEMM_JOB, threads=specs[0].job.threads))
    with ExitStack() as stack:
        runners = stack.enter_context(start_runners(specs, seconds, outcome.missing))
        gemm_specs = [gemm_spec] if any(metric.flops_per_unit for metric in metrics) else []
        gemm_runners = stack.enter_context(start_runners(gemm_specs, seconds, outcome.missing))
        for index, metric in enumerate(metrics):
            _measure_metric(
                metric,
                runners=[runner for runner in runners if metric.name in runner.metrics],
                gemm_runner=gemm_runners[0] if gemm_runners and metric.flops_per_unit else None,
                rounds=rounds,
                deadline=deadline.share(len(metrics) - index),
                outcome=outcome,
                log=log,
            )
    return outcome


def _measure_metric(
    metric: Metric,
    *,
    runners: Sequence[Runner],
    gemm_runner: Runner | None,
    rounds: int,
    deadline: Deadline,
    outcome: Outcome,
    log: Log,
) -> None:
    values: dict[Runner, list[float]] = {runner: [] for runner in runners}
    peaks: dict[str, list[float]] = {precision: [] for precision in gemm_runner.metrics} if gemm_runner else {}
    longest_round = 0.0
    for index in range(-1, rounds):
        start = time.monotonic()
        log(f"{metric.benchmark}: {'warm-up' if index < 0 else f'round {index + 1} of {rounds}'}")
        _measure_round(metric, values, outcome.missing, is_reversed=index % 2 == 0)
        try:
            for precision, flops in peaks.items():
                assert gemm_runner is not None
                flops.append(gemm_runner.measure(precision))
        except RunnerError as error:
            outcome.missing.append(f"failed: {metric.benchmark}: the peak of matrix products: {error}")
            peaks = {}
        if index < 0:
            for samples in (*values.values(), *peaks.values()):
                samples.clear()
            continue
        longest_round = max(longest_round, time.monotonic() - start)
        if deadline.remaining() < longest_round and index + 1 < rounds:
            log(f"{metric.benchmark}: stopped after {index + 1} of {rounds} rounds: no time left")
            break
    outcome.peaks[metric.name] = peaks
    outcome.measurements[metric.name] = [
        Measurement(
            runner=runner.spec.name,
            library=runner.spec.library,
            values=tuple(samples),
            precision=runner.spec.precision,
            setting=runner.setting,
            peak_memory=runner.peak_memory,
        )
        for runner, samples in values.items()
    ]


def _measure_round(metric: Metric, values: dict[Runner, list[float]], missing: list[str], *, is_reversed: bool) -> None:
    """Measure once with every runner; one that fails is removed from `values` and from later metrics."""
    for runner in list(values)[::-1] if is_reversed else list(values):
        time.sleep(PAUSE_SECONDS)
        try:
            values[runner].append(runner.measure(metric.name))
        except RunnerError as error:
            missing.append(f"failed: {metric.benchmark}: {error}")
            del values[runner]
            runner.metrics = []


def run_simultaneously(runners: Sequence[Runner], metric: str, rounds: int) -> list[float]:
    """Sum of the values of all runners measuring at the same time, round by round; a warm-up comes first."""
    sums = []
    for _ in range(rounds + 1):
        for runner in runners:
            runner.request(metric)
        sums.append(sum(runner.receive() for runner in runners))
    return sums[1:]
