"""The process that a contestant lives in: it prepares, says that it is ready, and takes one turn whenever it is asked.

`main` reads its job from the first line of standard input and then one task a line; it answers
each with a line of JSON. What libraries print goes to standard error.
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

from regard.bench.memory import family_memory

S = TypeVar("S")


@dataclass(frozen=True)
class Job:
    """What one contestant is to do."""

    module: str  # below regard.bench; it has a function named as the contest
    contest: str
    variant: str  # a number format, or another way to run
    threads: int
    facts: dict[str, Any] = field(default_factory=dict)  # sizes, folders: whatever the contest needs

    def dumps(self) -> str:
        """Return the job as one line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Value:
    """What a turn gave, and the setting it was reached with where the contestant chose one."""

    value: float
    setting: str = ""


class Turns:
    """The contestant's side of the game."""

    def __init__(self, asked: IO[str], answers: IO[str]) -> None:
        self.asked, self.answers = asked, answers

    def ready(self, tasks: Iterable[str]) -> None:
        """Say that all is prepared, and which tasks can be asked for."""
        self._say({"tasks": list(tasks)})

    def wait(self) -> str | None:
        """Return the task that is asked for next; None when nothing more is."""
        return self.asked.readline().strip() or None

    def tell(self, value: Value, memory: int = 0) -> None:
        """Answer with what a turn gave; `memory` is the peak of another process that did the work."""
        self._say({**asdict(value), "memory": memory or family_memory()})

    def serve(self, tasks: Mapping[str, Callable[[], float | Value]]) -> None:
        """Take turns until nothing more is asked for."""
        self.ready(tasks)
        while (task := self.wait()) is not None:
            found = tasks[task]()
            self.tell(found if isinstance(found, Value) else Value(found))

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        self._say({"error": f"{type(error).__name__}: {error}"})

    def _say(self, facts: dict[str, Any]) -> None:
        self.answers.write(json.dumps(facts) + "\n")
        self.answers.flush()


class Pace:
    """Holds a library's own loop where it reports, until the next turn is asked for."""

    def __init__(self, turns: Turns, task: str) -> None:
        self.turns, self.task = turns, task
        self.began: float | None = None

    def report(self, tokens: float, taken: float | None = None, *, memory: int = 0) -> None:
        """Take note that so many tokens were done since the last turn began, in `taken` seconds where that is known.

        The first report ends the loop's own warm-up. `SystemExit` ends the loop when nothing more is asked for.
        """
        now = time.perf_counter()
        if self.began is None:
            self.turns.ready([self.task])
        else:
            self.turns.tell(Value(tokens / (taken or now - self.began)), memory)
        if self.turns.wait() is None:
            raise SystemExit
        self.began = time.perf_counter()


class Best(Generic[S]):
    """A task that tries several settings in its first turn, which is not counted, and keeps the best.

    >>> task = Best(lambda size: float(size), {"batch 8": 8, "batch 32": 32})
    >>> task()
    Value(value=32.0, setting='batch 32')
    """

    def __init__(self, run: Callable[[S], float], settings: Mapping[str, S], *, less: bool = False) -> None:
        """Take what gives a value for a setting, and the settings by name; `less`: smaller values are better."""
        self.run, self.settings, self.less = run, dict(settings), less
        self.chosen = next(iter(settings)) if len(settings) == 1 else ""

    def __call__(self) -> Value:
        if not self.chosen:
            self.run(next(iter(self.settings.values())))  # the very first run prepares kernels
            tried = {name: self.run(setting) for name, setting in self.settings.items()}
            self.chosen = (min if self.less else max)(tried, key=lambda name: tried[name])
            return Value(tried[self.chosen], self.chosen)
        return Value(self.run(self.settings[self.chosen]), self.chosen)


def seconds(work: Callable[[], object]) -> float:
    """Return how long some work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Play one contestant."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    turns = Turns(sys.stdin, answers)
    try:
        job = Job(**json.loads(sys.stdin.readline()))
        play = getattr(importlib.import_module(f"regard.bench.{job.module}"), job.contest)
        play(job, turns)
    except Exception as error:
        traceback.print_exc()
        turns.fail(error)
    finally:
        sys.stderr.flush()
        os._exit(0)  # threads and finalizers of foreign libraries are not waited for
