"""`--workers N`: the ranks of a run on this machine, started by the agent of `torch.distributed.run`.

The launching process trains nothing. It passes the events of rank 0 to the listeners and a request to stop to rank 0,
whose next all-reduce spreads it, and raises the error of the rank that failed first.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from regard import errors
from regard.config.runs import RunConfig
from regard.errors import RegardError, TrainingError
from regard.training.distributed import LostRankError
from regard.training.heartbeat import FrozenRankError
from regard.training.listeners import Listener, notify
from regard.training.signals import StopRequest, catch_stop_signals
from regard.training.worker import EVENTS_FILE, INTERRUPTED, LAUNCH_FILE, pid_file

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

POLL_SECONDS = 0.05
LAST_LINES = 20  # of the output of a rank that failed
ADDRESS = "127.0.0.1"  # ranks of one machine need no other
AGENT_LOGGER = "torch.distributed.elastic"
SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL


class RankGroup:
    """The ranks of one Python command on this machine, supervised in a thread until all have ended.

    Only the output of rank 0 is copied to the console. When one rank fails, the agent ends the others; the last output
    of the one that failed is part of the message.
    """

    def __init__(self, world_size: int, arguments: Sequence[str], folder: str) -> None:
        """`arguments` are those of the Python interpreter; `folder` receives the errors of failing ranks."""
        self.world_size = world_size
        self.arguments = arguments
        self.folder = folder
        self.failures: dict[int, ProcessFailure] = {}  # by rank
        self._copied_bytes = {"stdout": 0, "stderr": 0}  # of the output of rank 0
        self._agent_error: Exception | None = None
        self._thread = threading.Thread(target=self._supervise, name="launcher", daemon=True)

    def start(self) -> None:
        """Start the ranks and return at once."""
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all ranks have ended, at most `seconds`; return whether they have."""
        self._thread.join(seconds)
        self._copy_output(sys.stdout, "stdout")
        self._copy_output(sys.stderr, "stderr")
        if self._agent_error is not None:
            raise TrainingError(f"the workers could not be started: {self._agent_error}") from self._agent_error
        return not self._thread.is_alive()

    def _supervise(self) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self.world_size,
            logs_specs=DefaultLogsSpecs(log_dir=self.folder, redirects=Std.ALL),
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint=f"{ADDRESS}:0",  # the store chooses a port, and keeps it
            max_restarts=0,
            monitor_interval=2 * POLL_SECONDS,
            local_addr=ADDRESS,
        )
        try:
            with _silence(AGENT_LOGGER):
                elastic_launch(config, sys.executable)(*self.arguments)
        except ChildFailedError as error:
            self.failures = error.failures
        except Exception as error:
            self._agent_error = error

    def cause(self) -> Exception:
        """The error that ended the ranks; errors that only follow from the loss of another rank come last."""
        rank = min(self.failures, key=lambda rank: (_distance_from_cause(self.failures[rank]), rank))
        return _to_exception(rank, self.failures[rank], self._last_output(rank))

    def _output_file(self, rank: int, stream: str) -> Path | None:
        """File with the output of a rank; None before it was started."""
        return next(Path(self.folder).glob(f"*/attempt_0/{rank}/{stream}.log"), None)

    def _copy_output(self, console: TextIO, stream: str) -> None:
        """Copy what rank 0 has written since the last call to the console."""
        path = self._output_file(0, stream)
        if path is None:
            return
        with open(path, "rb") as file:
            file.seek(self._copied_bytes[stream])
            output = file.read()
        if output:
            self._copied_bytes[stream] += len(output)
            console.write(output.decode(errors="replace"))
            console.flush()

    def _last_output(self, rank: int) -> str:
        """Last lines that a rank has written, to either stream; those of rank 0 are on the console."""
        files = [self._output_file(rank, stream) for stream in ("stdout", "stderr")] if rank else []
        lines: list[str] = []
        for path in filter(None, files):
            lines += path.read_text("utf-8", errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join(f"  {line}" for line in lines)


def run_ranks(world_size: int, arguments: Sequence[str]) -> None:
    """Run a Python command in several ranks on this machine until all have ended; raise the error of a failing one."""
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        group = RankGroup(world_size, arguments, folder)
        group.start()
        group.wait()
        if group.failures:
            raise group.cause()


def train_with_workers(
    config: RunConfig,
    out: Path,
    listeners: Sequence[Listener],
    *,
    started: float,
    threads: int,
    pinned: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train a run in `config.training.workers` ranks with `threads` threads each; return the report of rank 0."""
    launch = {
        "config": config.to_dict(),
        "out": str(out),
        "started": started,
        "pinned": dict(pinned or {}),
        "threads": threads,
        "launcher": os.getpid(),
    }
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        Path(folder, LAUNCH_FILE).write_text(json.dumps(launch), "utf-8")
        Path(folder, EVENTS_FILE).touch()
        group = RankGroup(config.training.workers, ["-m", "regard.training.worker", folder], folder)
        with catch_stop_signals() as stop:
            report = _relay(group, Path(folder), listeners, stop)
        if not group.failures and report is not None:
            return report
        if stop and _is_interrupted(group.failures):
            signal.raise_signal(signal.Signals[stop.name])  # as if this process had been training
            raise TrainingError(f"{stop.name} stopped the run")
        raise group.cause() if group.failures else TrainingError("the workers ended without a report")


def _relay(group: RankGroup, folder: Path, listeners: Sequence[Listener], stop: StopRequest) -> dict[str, Any] | None:
    """Run the ranks: pass events to the listeners and a stop request to rank 0; return the report of rank 0."""
    report = None
    is_stop_sent = False
    has_ended = False
    group.start()
    try:
        with open(folder / EVENTS_FILE, "rb") as events:
            while not has_ended:
                has_ended = group.wait(POLL_SECONDS)
                for event in _read_events(events):
                    name = event.pop("event")
                    if name == "report":
                        report = event
                    else:
                        notify(listeners, name, **event)
                if stop and not is_stop_sent:
                    is_stop_sent = _send_signal(folder, 0, signal.Signals[stop.name])
    finally:
        while not has_ended:  # a listener raised: end the ranks
            for rank in range(group.world_size):
                _send_signal(folder, rank, SIGKILL)
            has_ended = group.wait(POLL_SECONDS)
    return report


def _read_events(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Read the events written since the last call; leave an unfinished line for the next one."""
    while True:
        start = file.tell()
        line = file.readline()
        if not line.endswith(b"\n"):
            file.seek(start)
            return
        yield json.loads(line)


def _send_signal(folder: Path, rank: int, signal_number: int) -> bool:
    """Send a signal to a rank; return whether the rank was running to receive it."""
    try:
        os.kill(int(pid_file(folder, rank).read_text()), signal_number)
    except (OSError, ValueError):  # not yet started, or already ended
        return False
    return True


def _is_interrupted(failures: Mapping[int, ProcessFailure]) -> bool:
    """Whether the signal ended rank 0 before its training loop could handle it."""
    return 0 in failures and failures[0].exitcode in (INTERRUPTED, -signal.SIGINT, -signal.SIGTERM)


def _distance_from_cause(failure: ProcessFailure) -> int:
    """0 for a rank that found another one frozen, 2 for one that lost another or that the agent ended, otherwise 1."""
    class_name = _read_error(failure)[0]
    if class_name == FrozenRankError.__name__:
        return 0
    return 2 if failure.exitcode == -signal.SIGTERM or class_name == LostRankError.__name__ else 1


def _read_error(failure: ProcessFailure) -> tuple[str, str, str]:
    """Class name, message and traceback of the exception that a rank recorded; empty where it recorded none."""
    record = failure.error_file_data["message"]
    if isinstance(record, str):
        return "", "", ""
    class_name, _, message = record["message"].partition(": ")
    return class_name, message, record["extraInfo"]["py_callstack"]


def _to_exception(rank: int, failure: ProcessFailure, last_output: str = "") -> Exception:
    """Rebuild the exception that a rank recorded, or describe how the rank ended."""
    class_name, message, traceback = _read_error(failure)
    if not class_name:
        how = f"was ended by {failure.signal_name()}" if failure.exitcode < 0 else f"ended with code {failure.exitcode}"
        hint = ", as happens when memory runs out" if failure.exitcode == -SIGKILL else ""
        output = f"\nIts last output:\n{last_output}" if last_output else ""
        return TrainingError(f"rank {rank} {how}{hint}: repeat the command to resume from the last checkpoint{output}")
    own_errors = {error.__name__: error for error in (LostRankError, FrozenRankError)}
    error_class = {**vars(errors), **own_errors}.get(class_name)
    if isinstance(error_class, type) and issubclass(error_class, RegardError):
        return error_class(message)
    error = RuntimeError(f"rank {rank}: {class_name}: {message}")
    error.add_note(traceback)
    return error


@contextlib.contextmanager
def _silence(name: str) -> Iterator[None]:
    """Discard the records of a logger and of those below it inside the block."""
    logger = logging.getLogger(name)
    null_handler = logging.NullHandler()
    logger.addHandler(null_handler)
    was_propagating = logger.propagate
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = was_propagating
        logger.removeHandler(null_handler)
