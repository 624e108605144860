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
from typing import TYPE_CHECKING, Any, BinaryIO

from regard import errors
from regard.config.runs import RunConfig
from regard.errors import RegardError, TrainingError
from regard.training.distributed import LostRankError
from regard.training.listeners import Listener, notify
from regard.training.trainer import StopRequest, catch_stop_signals
from regard.training.worker import EVENTS_FILE, INTERRUPTED, LAUNCH_FILE, pid_file

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

POLL_SECONDS = 0.05
ADDRESS = "127.0.0.1"  # ranks of one machine need no other
AGENT_LOGGER = "torch.distributed.elastic"
SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL


class RankGroup:
    """The ranks of one Python command on this machine, supervised in a thread until all have ended.

    Only rank 0 writes to the console. When one rank fails, the agent ends the others.
    """

    def __init__(self, world_size: int, arguments: Sequence[str], folder: str) -> None:
        """`arguments` follow the interpreter; `folder` receives the errors of failing ranks."""
        self.world_size = world_size
        self.arguments = arguments
        self.folder = folder
        self.failures: dict[int, ProcessFailure] = {}  # by rank
        self._agent_error: Exception | None = None
        self._thread = threading.Thread(target=self._supervise, name="launcher", daemon=True)

    def start(self) -> None:
        """Start the ranks and return at once."""
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all ranks have ended, at most so long; return whether they have."""
        self._thread.join(seconds)
        if self._agent_error is not None:
            raise TrainingError(f"the workers could not be started: {self._agent_error}") from self._agent_error
        return not self._thread.is_alive()

    def _supervise(self) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self.world_size,
            logs_specs=DefaultLogsSpecs(log_dir=self.folder, local_ranks_filter={0}),
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint=f"{ADDRESS}:0",
            max_restarts=0,
            monitor_interval=2 * POLL_SECONDS,
            local_addr=ADDRESS,
        )
        try:
            with _silenced(AGENT_LOGGER):
                elastic_launch(config, sys.executable)(*self.arguments)
        except ChildFailedError as error:
            self.failures = error.failures
        except Exception as error:
            self._agent_error = error

    def cause(self) -> Exception:
        """The error that ended the ranks; those of ranks that only lost another one come last."""
        rank = min(self.failures, key=lambda rank: (_is_consequence(self.failures[rank]), rank))
        return _to_exception(rank, self.failures[rank])


def run_ranks(world_size: int, arguments: Sequence[str]) -> None:
    """Run a Python command in several ranks on this machine until all have ended; raise the error of a failing one."""
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        group = RankGroup(world_size, arguments, folder)
        group.start()
        group.wait()
        if group.failures:
            raise group.cause()


def train_with_workers(
    config: RunConfig, out: Path, listeners: Sequence[Listener], *, started: float, threads: int
) -> dict[str, Any]:
    """Train a run in `config.training.workers` ranks with so many threads each; return the report of rank 0."""
    launch = {
        "config": config.to_dict(),
        "out": str(out),
        "started": started,
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
    """Run the ranks: events to the watchers, a request to stop to rank 0; return what rank 0 reports at its end."""
    report = None
    is_stop_sent = False
    has_ended = False
    group.start()
    try:
        with open(folder / EVENTS_FILE, "rb") as events:
            while not has_ended:
                has_ended = group.wait(POLL_SECONDS)
                for event in _read_events(events):
                    kind = event.pop("event")
                    if kind == "report":
                        report = event
                    else:
                        notify(listeners, kind, **event)
                if stop and not is_stop_sent:
                    is_stop_sent = _send_signal(folder, 0, signal.Signals[stop.name])
    finally:
        while not has_ended:  # a watcher raised: nobody is left to train for
            for rank in range(group.world_size):
                _send_signal(folder, rank, SIGKILL)
            has_ended = group.wait(POLL_SECONDS)
    return report


def _read_events(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Events that were written since the last call; an unfinished line is left for the next one."""
    while True:
        start = file.tell()
        line = file.readline()
        if not line.endswith(b"\n"):
            file.seek(start)
            return
        yield json.loads(line)


def _send_signal(folder: Path, rank: int, number: int) -> bool:
    """Send a signal to a rank; return whether it has started and can have received it."""
    try:
        os.kill(int(pid_file(folder, rank).read_text()), number)
    except (OSError, ValueError):  # not yet started, or already ended
        return False
    return True


def _is_interrupted(failures: Mapping[int, ProcessFailure]) -> bool:
    """Whether rank 0 ended by the signal it was sent before the training loop could note it."""
    return 0 in failures and failures[0].exitcode in (INTERRUPTED, -signal.SIGINT, -signal.SIGTERM)


def _is_consequence(failure: ProcessFailure) -> bool:
    """Whether a rank failed because another one had: it lost its peer, or the agent ended it."""
    return failure.exitcode == -signal.SIGTERM or _recorded(failure)[0] == LostRankError.__name__


def _recorded(failure: ProcessFailure) -> tuple[str, str, str]:
    """Class name, message and traceback of the exception that a rank recorded; empty where it recorded none."""
    record = failure.error_file_data["message"]
    if isinstance(record, str):
        return "", "", ""
    kind, _, message = record["message"].partition(": ")
    return kind, message, record["extraInfo"]["py_callstack"]


def _to_exception(rank: int, failure: ProcessFailure) -> Exception:
    kind, message, traceback = _recorded(failure)
    if not kind:
        how = f"was ended by {failure.signal_name()}" if failure.exitcode < 0 else f"ended with code {failure.exitcode}"
        reason = ", as happens when memory runs out" if failure.exitcode == -SIGKILL else ""
        return TrainingError(f"rank {rank} {how}{reason}: the same command goes on from the last save")
    known = {**vars(errors), LostRankError.__name__: LostRankError}.get(kind)
    if isinstance(known, type) and issubclass(known, RegardError):
        return known(message)
    error = RuntimeError(f"rank {rank}: {kind}: {message}")
    error.add_note(traceback)
    return error


@contextlib.contextmanager
def _silenced(name: str) -> Iterator[None]:
    """Discard the records of a logger and those below it for a while."""
    logger = logging.getLogger(name)
    discard = logging.NullHandler()
    logger.addHandler(discard)
    propagated = logger.propagate
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagated
        logger.removeHandler(discard)
