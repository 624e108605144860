"""Heartbeats of the ranks: a rank that is frozen, rather than dead, ends the run too.

A dead rank closes its connections, so the next collective of the others fails at once. A frozen one keeps them open:
the others would wait as long as they wait for an evaluation of rank 0. So every rank counts up in the store through
which the ranks have met, in a thread that runs whatever the rank computes, and watches the counts of the others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from datetime import timedelta
from typing import Protocol

from regard.errors import TrainingError

BEATS = 10  # in the time after which a rank counts as frozen
MAX_INTERVAL = 5.0  # seconds between beats
END_SECONDS = 10.0  # that this rank has to end by itself, once another is frozen
SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL
_COUNT_KEY = "regard/heartbeat/{}"
_END_KEY = "regard/end/{}"


class FrozenRankError(TrainingError):
    """Another rank has stopped to respond."""


class Store(Protocol):
    """The operation of a `torch.distributed.Store` that heartbeats need."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a number and return it; a number that nobody has set is 0."""
        ...


class Heartbeat:
    """Beats for one rank, and watches all others; `message` is set once one of them is frozen.

    Ranks of this machine are then killed, so that collectives with them fail in the main thread, which ends the
    process with `message`. Where they do not fail in time, `end` is called.
    """

    def __init__(self, rank: int, local_pids: dict[int, int], *, world_size: int, seconds: float, store: Store) -> None:
        """Watch ranks that do not beat for `seconds`; `local_pids` are the process ids of the ranks of this machine."""
        self.rank = rank
        self.local_pids = local_pids
        self.seconds = seconds
        self.store = store
        self.interval = min(MAX_INTERVAL, seconds / BEATS)
        self.message = ""
        self.others = [other for other in range(world_size) if other != rank]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat and to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; the other ranks do not wait for this one any more."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            with contextlib.suppress(RuntimeError):  # the store may have ended before this rank
                self.store.add(_END_KEY.format(self.rank), 1)

    def end(self) -> None:
        """End this process: it is blocked, or waits for a rank of another machine."""
        os.write(2, f"regard: {self.message}\n".encode())
        os._exit(FrozenRankError.exit_code)

    def _run(self) -> None:
        frozen = self._watch()
        if not frozen:
            return
        self._record_error()  # first: the death of a killed rank may end this process before it reports the reason
        for rank in frozen:
            if rank in self.local_pids:
                os.kill(self.local_pids[rank], SIGKILL)
        if not self._stopped.wait(END_SECONDS):
            self.end()

    def _record_error(self) -> None:
        """Record the error where the agent of `torch.distributed.run` reads it."""
        from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

        ErrorHandler().record_exception(FrozenRankError(self.message))

    def _watch(self) -> list[int]:
        """Beat until stopped, or until other ranks are frozen; return these."""
        counts = dict.fromkeys(self.others, -1)
        now = time.monotonic()
        last_beats = dict.fromkeys(self.others, now)
        while not self._stopped.wait(self.interval):
            previous = now
            now = time.monotonic()
            if now - previous > self.seconds / 2:  # this process was stopped itself: the others get their time again
                last_beats = dict.fromkeys(last_beats, now)
            try:
                self.store.add(_COUNT_KEY.format(self.rank), 1)
                for other in self.others:
                    count = self.store.add(_COUNT_KEY.format(other), 0)
                    has_ended = self.store.add(_END_KEY.format(other), 0) > 0
                    if count != counts[other] or has_ended:
                        counts[other] = count
                        last_beats[other] = now
            except RuntimeError:
                pass  # no answer counts as no beat
            frozen = [other for other, last_beat in last_beats.items() if now - last_beat > self.seconds]
            if frozen:
                names = f"rank {frozen[0]} has" if len(frozen) == 1 else f"ranks {', '.join(map(str, frozen))} have"
                self.message = (
                    f"{names} not responded for {self.seconds:g} s (--training.worker_timeout): the process is frozen, "
                    "or its machine cannot be reached; repeat the command to resume from the last checkpoint"
                )
                return frozen
        return []


def connect_to_store(seconds: float) -> Store:
    """Connect once more to the store through which the ranks have met, for the heartbeat's own use."""
    import torch.distributed as dist

    address = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    timeout = timedelta(seconds=seconds)
    store: Store = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=False, timeout=timeout, wait_for_workers=False
    )
    return store
