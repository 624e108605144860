"""A contestant as those who ask see it: a process that is started, asked for turns, and ended with all it started."""

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
from regard.bench.child import Job
from regard.bench.measure import OURS
from regard.errors import RegardError
from regard.machine import LIBGOMP_SPIN_COUNT, SPIN_COUNT, cores

READY_SECONDS, TURN_SECONDS = 600.0, 900.0  # that a contestant may take at most


class Failed(RegardError):
    """A contestant cannot go on; the message is its one line in the report."""


@dataclass(frozen=True)
class Entry:
    """A contestant as the programme lists it."""

    library: str
    job: Job
    format: str = "float32"

    @property
    def peer(self) -> str:
        """Its name in the report."""
        return f"{self.library} {self.job.variant}".strip()


class Contestant:
    """A process that waits for its turns."""

    def __init__(self, entry: Entry) -> None:
        self.entry, self.tasks, self.setting, self.memory = entry, list[str](), "", 0
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed in close()
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from regard.bench.child import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            encoding="utf-8",
            env=_environment(entry.job.threads, ours=entry.library == OURS),
            start_new_session=True,  # so that whatever it starts ends with it
        )
        self._send(entry.job.dumps())

    def ready(self, seconds: float) -> None:
        """Wait until it is prepared."""
        self.tasks = list(self._answer(seconds, "preparing")["tasks"])

    def ask(self, task: str) -> None:
        """Let it take a turn."""
        self._send(task)

    def answer(self, seconds: float = TURN_SECONDS) -> float:
        """Return what the turn gave."""
        found = self._answer(seconds, "its turn")
        self.setting, self.memory = found["setting"], max(self.memory, int(found["memory"]))
        return float(found["value"])

    def turn(self, task: str) -> float:
        """Let it take a turn and return what it gave."""
        self.ask(task)
        return self.answer()

    def close(self) -> None:
        """End the process and all that it started."""
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
        with suppress(OSError):  # its answer, or the lack of one, says why
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def _answer(self, seconds: float, doing: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self._kill()

        watch = threading.Timer(seconds, end)
        watch.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watch.cancel()
        if late.is_set():
            raise Failed(f"{self.entry.peer}: {doing} took more than {seconds:.0f} s")
        if not line:
            raise Failed(f"{self.entry.peer}: its process ended: {self._last_words()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise Failed(f"{self.entry.peer}: {_one_line(found['error'])}")
        return found

    def _last_words(self) -> str:
        self.log.seek(0)
        lines = [line.strip() for line in self.log if line.strip()]
        if lines:
            return _one_line(lines[-1])
        killed = self.process.wait() == -9
        return "killed, as happens when memory runs out: fewer --peers need less" if killed else "without a word"


@contextmanager
def starting(entries: Sequence[Entry], seconds: float, missing: list[str]) -> Iterator[list[Contestant]]:
    """Start contestants, a few at a time, and yield those that are ready within so long; end all of them afterwards."""
    running: list[Contestant] = []
    good: list[Contestant] = []
    at_once = max(1, cores())
    try:
        for first in range(0, len(entries), at_once):
            fresh = [Contestant(entry) for entry in entries[first : first + at_once]]
            running += fresh
            for one in fresh:
                try:
                    one.ready(min(READY_SECONDS, seconds))
                    good.append(one)
                except Failed as error:
                    missing.append(f"failed: {one.entry.job.contest}: {error}")
        yield good
    finally:
        for one in running:
            one.close()


def _environment(threads: int, *, ours: bool) -> dict[str, str]:
    """Return what a contestant finds in its environment: the same for all, but torch's own limits for peers."""
    made = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(regard.__file__).parent.parent), *_python_path()]),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    if not ours:  # what regard sets for itself when it is imported
        made |= {"LRU_CACHE_CAPACITY": "1024", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024"}
        if made.get("GOMP_SPINCOUNT") == SPIN_COUNT:
            made["GOMP_SPINCOUNT"] = LIBGOMP_SPIN_COUNT
    return made


def _python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def _one_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[0][:200]
