"""A runner's own process: it prepares, reports that it is ready, and measures a metric on each request.

`main` reads its job from the first line of standard input and then one metric per line; it answers each with a line of
JSON. What libraries print goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import IO, Any, Generic, TypeVar

from benchmarks.peers.peak_memory import family_peak_memory

Setting = TypeVar("Setting")


@dataclass(frozen=True)
class Job:
    """What one worker runs."""

    module: str  # below benchmarks.peers; it defines run_<benchmark>(job, channel)
    benchmark: str
    variant: str  # a precision, or another way to run
    threads: int
    settings: dict[str, Any] = field(default_factory=dict)  # sizes, lengths, folders: what the benchmark needs

    def dumps(self) -> str:
        """The job as one line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Sample:
    """A measured value, and the setting that the runner chose for it."""

    value: float
    setting: str = ""


class Channel:
    """The worker's end of the pipe to the benchmark."""

    def __init__(self, requests: IO[str], answers: IO[str], *, parent_id: int | None = None) -> None:
        """`parent_id`: the process whose memory, with that of its children, is reported; by default this one."""
        self.requests = requests
        self.answers = answers
        self.parent_id = parent_id

    def report_ready(self, metrics: Iterable[str]) -> None:
        """Report that everything is prepared, and which metrics can be measured."""
        self._send({"metrics": list(metrics)})

    def next_request(self) -> str | None:
        """Wait for the next metric to measure; None at the end."""
        return self.requests.readline().strip() or None

    def send(self, sample: Sample, peak_memory: int = 0) -> None:
        """Answer with a sample; `peak_memory` is that of another process which did the work."""
        self._send({**asdict(sample), "memory": peak_memory or family_peak_memory(self.parent_id)})

    def serve(self, measures: Mapping[str, Callable[[], float | Sample]]) -> None:
        """Measure what is requested until there are no more requests."""
        self.report_ready(measures)
        while (metric := self.next_request()) is not None:
            sample = measures[metric]()
            self.send(sample if isinstance(sample, Sample) else Sample(sample))

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        self._send({"error": f"{type(error).__name__}: {error}"})

    def _send(self, message: dict[str, Any]) -> None:
        self.answers.write(json.dumps(message) + "\n")
        self.answers.flush()


class LoopPacer:
    """Pauses a library's own training loop between measurements."""

    def __init__(self, channel: Channel, metric: str) -> None:
        self.channel = channel
        self.metric = metric
        self.start: float | None = None

    def report(self, tokens: float, seconds: float | None = None, *, peak_memory: int = 0) -> None:
        """Report the tokens processed since the last measurement began, and wait for the next request.

        `seconds` is given where the library times itself. The first report ends the loop's warm-up. `SystemExit` ends
        the loop after the last request.
        """
        now = time.perf_counter()
        if self.start is None:
            self.channel.report_ready([self.metric])
        else:
            self.channel.send(Sample(tokens / (seconds or now - self.start)), peak_memory)
        if self.channel.next_request() is None:
            raise SystemExit
        self.start = time.perf_counter()


class BestSetting(Generic[Setting]):
    """A measure that tries several settings in the warm-up, which is not counted, and keeps the best.

    >>> measure = BestSetting(lambda size: float(size), {"batch 8": 8, "batch 32": 32})
    >>> measure()
    Sample(value=32.0, setting='batch 32')
    """

    def __init__(
        self, run: Callable[[Setting], float], settings: Mapping[str, Setting], *, lower_is_better: bool = False
    ) -> None:
        self.run = run
        self.settings = dict(settings)
        self.lower_is_better = lower_is_better
        self.best = next(iter(settings)) if len(settings) == 1 else ""

    def __call__(self) -> Sample:
        if self.best:
            return Sample(self.run(self.settings[self.best]), self.best)
        self.run(next(iter(self.settings.values())))  # the very first run prepares kernels
        values = {name: self.run(setting) for name, setting in self.settings.items()}
        choose = min if self.lower_is_better else max
        self.best = choose(values, key=lambda name: values[name])
        return Sample(values[self.best], self.best)


def time_seconds(function: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    """Run one worker."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    channel = Channel(sys.stdin, answers)
    try:
        job = Job(**json.loads(sys.stdin.readline()))
        run = getattr(importlib.import_module(f"benchmarks.peers.{job.module}"), f"run_{job.benchmark}")
        run(job, channel)
    except Exception as error:
        traceback.print_exc()
        channel.fail(error)
    finally:
        sys.stderr.flush()
        os._exit(0)  # without waiting for threads and finalizers of the libraries
