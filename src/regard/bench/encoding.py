"""Encoding: texts of mixed length in, one vector each out, tokenisation included; and lone texts of two lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from regard.bench import cost, work
from regard.bench.child import Job, seconds
from regard.bench.measure import Task
from regard.bench.settings import ReadSize

LONE = {"lone 16": 16, "lone 128": 128}  # tokens, with the marks at both ends
AGAIN = 20  # times that a lone text is read in a turn


def facts(size: ReadSize, *, lone: bool) -> dict[str, object]:
    """Return what contestants need to know."""
    lengths = work.text_lengths(size.texts, seed=5).tolist()
    return {"size": asdict(size), "lengths": lengths, "lone": list(LONE) if lone else []}


def tasks(size: ReadSize, given: dict[str, object]) -> list[Task]:
    """Return what is measured: texts a second, and milliseconds of a lone text."""
    lengths: list[int] = given["lengths"]  # type: ignore[assignment]
    alone: list[str] = given["lone"]  # type: ignore[assignment]
    tokens = sum(length + 2 for length in lengths) / len(lengths)
    made = [Task("encoding", f"encoding {size.name}", "texts/s", tokens=tokens, work=cost.encoding(size, lengths))]
    return made + [
        Task(name, f"latency {size.name} {LONE[name]} tokens", "ms/text", True, LONE[name]) for name in alone
    ]


def lone_texts(job: Job) -> dict[str, str]:
    """Return the text of each task that is about a lone one."""
    return {name: work.texts([LONE[name] - 2], job.facts["size"]["vocabulary"])[0] for name in job.facts["lone"]}


def lone_value(read: Callable[[], object]) -> float:
    """Return how many milliseconds it takes to read a lone text."""
    return 1000 * seconds(lambda: [read() for _ in range(AGAIN)]) / AGAIN
