"""A runner as the benchmark sees it: a process that is started, asked for measurements and ended with its children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regard
from benchmarks.peers.statistics import REGARD
from benchmarks.peers.worker import Job
from regard.errors import RegardError
from regard.hardware import LIBGOMP_SPIN_COUNT, SPIN_COUNT, available_cores

ROOT = Path(__file__).parents[2]  # where workers find `benchmarks`
PREPARE_SECONDS = 600.0  # limits of a worker
MEASURE_SECONDS = 900.0
MAX_MESSAGE = 200  # characters of an error in the report


class RunnerError(RegardError):
    """A runner cannot continue; the message is its line in the report."""


@dataclass(frozen=True)
class RunnerSpec:
    """A runner to start."""

    library: str
    job: Job
    precision: str = "float32"

    @property
    def name(self) -> str:
        """Name in the report."""
        return f"{self.library} {self.job.variant}".strip()


class Runner:
    """A worker process that waits for requests."""

    def __init__(self, spec: RunnerSpec) -> None:
        self.spec = spec
        self.metrics: list[str] = []
        self.setting = ""
        self.peak_memory = 0
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed in close()
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from benchmarks.peers.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            encoding="utf-8",
            env=_worker_environment(spec.job.threads, is_regard=spec.library == REGARD),
            start_new_session=True,  # so that its children end with it
        )
        self._send(spec.job.dumps())

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until the worker is prepared."""
        self.metrics = list(self._receive(seconds, "preparing")["metrics"])

    def request(self, metric: str) -> None:
        """Let the worker measure a metric."""
        self._send(metric)

    def receive(self, seconds: float = MEASURE_SECONDS) -> float:
        """Wait for the requested value."""
        answer = self._receive(seconds, "a measurement")
        self.setting = answer["setting"]
        self.peak_memory = max(self.peak_memory, int(answer["memory"]))
        return float(answer["value"])

    def measure(self, metric: str) -> float:
        """Measure a metric and return its value."""
        self.request(metric)
        return self.receive()

    def close(self) -> None:
        """End the process and its children."""
        self._kill()
        self.process.communicate()
        self.log.close()

    def _kill(self) -> None:
        if not hasattr(os, "killpg"):
            self.process.kill()
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # the answer, or its absence, tells why
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def _receive(self, seconds: float, activity: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        timed_out = threading.Event()

        def stop() -> None:
            timed_out.set()
            self._kill()

        timer = threading.Timer(seconds, stop)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if timed_out.is_set():
            raise RunnerError(f"{self.spec.name}: {activity} took more than {seconds:.0f} s")
        if not line:
            raise RunnerError(f"{self.spec.name}: its process ended: {self._last_log_line()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunnerError(f"{self.spec.name}: {_first_line(answer['error'])}")
        return answer

    def _last_log_line(self) -> str:
        self.log.seek(0)
        lines = [line.strip() for line in self.log if line.strip()]
        if lines:
            return _first_line(lines[-1])
        is_killed = self.process.wait() == -signal.SIGKILL
        return "killed, as happens when memory runs out: fewer --peers need less" if is_killed else "without a message"


@contextmanager
def start_runners(specs: Sequence[RunnerSpec], seconds: float, missing: list[str]) -> Iterator[list[Runner]]:
    """Start runners, a few at a time, and yield those that are ready within the limit; end all of them afterwards."""
    started: list[Runner] = []
    ready: list[Runner] = []
    batch_size = max(1, available_cores())
    try:
        for first in range(0, len(specs), batch_size):
            batch = [Runner(spec) for spec in specs[first : first + batch_size]]
            started += batch
            for runner in batch:
                try:
                    runner.wait_until_ready(min(PREPARE_SECONDS, seconds))
                    ready.append(runner)
                except RunnerError as error:
                    missing.append(f"failed: {runner.spec.job.benchmark}: {error}")
        yield ready
    finally:
        for runner in started:
            runner.close()


def _worker_environment(threads: int, *, is_regard: bool) -> dict[str, str]:
    """Environment variables of a worker: the same for all libraries, except that peers keep torch's own defaults."""
    package_root = str(Path(regard.__file__).parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([package_root, str(ROOT), *_python_path()]),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    if not is_regard:  # undo what Regard sets on import
        environment |= {"LRU_CACHE_CAPACITY": "1024", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024"}
        if environment.get("GOMP_SPINCOUNT") == SPIN_COUNT:
            environment["GOMP_SPINCOUNT"] = LIBGOMP_SPIN_COUNT
    return environment


def _python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[0][:MAX_MESSAGE]
