"""Rounds: everybody takes a turn at the same task, one after another, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from regard.bench.child import Job
from regard.bench.contestant import Contestant, Entry, Failed, starting
from regard.bench.measure import Measured, Task

Tell = Callable[[str], object]

PAUSE = 0.25  # seconds before each turn: threads of the one before go to sleep first
LEAST_SECONDS = 20.0  # that contestants may take to prepare, however little time there is
YARDSTICK = Job("gemm", "gemm", "torch", 0)


@dataclass
class Clock:
    """How long there is; without an end there is time for everything."""

    end: float = float("inf")

    @classmethod
    def of(cls, seconds: float) -> Clock:
        """Return a clock that ends so many seconds from now."""
        return cls(time.monotonic() + seconds)

    def left(self) -> float:
        """Seconds left, not below zero."""
        return max(0.0, self.end - time.monotonic())

    def share(self, parts: float) -> Clock:
        """Return a clock for the first of so many parts that are still to do.

        >>> Clock().share(3).end
        inf
        """
        return Clock(time.monotonic() + self.left() / max(1, parts))


@dataclass
class Outcome:
    """What came of a contest: values of each task by contestant, peaks by format, and words on who is missing."""

    measured: dict[str, list[Measured]] = field(default_factory=dict)
    peaks: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # task → format → operations/s by round
    missing: list[str] = field(default_factory=list)


def hold(entries: Sequence[Entry], tasks: Sequence[Task], rounds: int, *, clock: Clock, tell: Tell) -> Outcome:
    """Let everybody take turns at each task; who fails is left out with a word and the rest go on.

    The first round of a task prepares and is not counted. Every second round goes backwards. Rounds end early when
    the clock would run out, but there is always one. Where a task's work is known, a large matrix product is measured
    in every round, too.
    """
    outcome = Outcome()
    patience = max(LEAST_SECONDS, clock.left())
    yardstick = Entry("torch", replace(YARDSTICK, threads=entries[0].job.threads))
    with ExitStack() as stack:
        contestants = stack.enter_context(starting(entries, patience, outcome.missing))
        measuring = [yardstick] if any(task.work for task in tasks) else []
        beside = stack.enter_context(starting(measuring, patience, outcome.missing))
        for number, task in enumerate(tasks):
            some = [one for one in contestants if task.name in one.tasks]
            _rounds(task, some, beside, rounds, clock.share(len(tasks) - number), outcome, tell)
    return outcome


def _rounds(
    task: Task,
    contestants: list[Contestant],
    yardstick: Sequence[Contestant],
    rounds: int,
    clock: Clock,
    outcome: Outcome,
    tell: Tell,
) -> None:
    values: dict[Contestant, list[float]] = {one: [] for one in contestants}
    peaks: dict[str, list[float]] = {kind: [] for kind in yardstick[0].tasks} if yardstick and task.work else {}
    longest = 0.0
    for number in range(-1, rounds):
        began = time.monotonic()
        tell(f"{task.bench}: {'warm-up' if number < 0 else f'round {number + 1} of {rounds}'}")
        for one in list(values) if number % 2 else list(values)[::-1]:
            time.sleep(PAUSE)
            try:
                values[one].append(one.turn(task.name))
            except Failed as error:
                outcome.missing.append(f"failed: {task.bench}: {error}")
                del values[one]
                one.tasks = []  # nor is it asked for anything else
        try:
            for kind, found in peaks.items():
                found.append(yardstick[0].turn(kind))
        except Failed as error:
            outcome.missing.append(f"failed: {task.bench}: the peak of matrix products: {error}")
            peaks = {}
        if number < 0:
            for found in (*values.values(), *peaks.values()):
                found.clear()
        else:
            longest = max(longest, time.monotonic() - began)
            if clock.left() < longest and number + 1 < rounds:
                tell(f"{task.bench}: {number + 1} of {rounds} rounds, for want of time")
                break
    outcome.peaks[task.name] = peaks
    outcome.measured[task.name] = [
        Measured(one.entry.peer, one.entry.library, tuple(found), one.entry.format, one.setting, one.memory)
        for one, found in values.items()
    ]


def together(contestants: Sequence[Contestant], task: str, rounds: int) -> list[float]:
    """Return what contestants give in sum when all take their turns at the same time, round by round."""
    sums = []
    for _ in range(rounds + 1):  # the first prepares
        for one in contestants:
            one.ask(task)
        sums.append(sum(one.answer() for one in contestants))
    return sums[1:]
