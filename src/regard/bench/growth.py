"""How cost grows: time and memory against length, batch, vocabulary, size of the corpus and workers.

Each point of a curve is measured in a process of its own, so that its memory is its own, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from regard.bench import training, translation
from regard.bench.contest import LEAST_SECONDS, Clock, Tell, hold, together
from regard.bench.contestant import Entry, Failed, starting
from regard.bench.measure import OURS, Measured, Row, Task, rows
from regard.bench.ours import WORKERS
from regard.bench.programme import entry, fast_format
from regard.bench.settings import SIZES, BenchConfig, Size

ROUNDS = 3
MOST_WORKERS = 8


@dataclass(frozen=True)
class Point:
    """One point of a curve: how much of what, and who is measured on it."""

    axis: str
    at: int
    task: Task
    entries: list[Entry]
    rounds: int = ROUNDS
    scale: float = 1.0  # a rate becomes the seconds of this many; 0: values stay as they are
    at_once: bool = False  # all take their turns together and are added up


def growth(config: BenchConfig, room: Path, clock: Clock, missing: list[str], tell: Tell) -> list[Row]:
    """Return the points of all curves; what there is no time for is named in `missing`."""
    size = SIZES["tiny" if config.size == "tiny" else "small"]
    made: list[Row] = []
    late: list[str] = []
    for point in points(config, size, room):
        if clock.left() <= 0:
            late.append(f"{point.task.bench} {point.at:,}")
            continue
        tell(f"{point.task.bench}: {point.at:,}")
        made += _measured(point, config, clock, missing)
    if late:
        missing.append(f"left out for want of time: {', '.join(late)}")
    return made


def points(config: BenchConfig, size: Size, room: Path) -> Iterator[Point]:
    """Yield the points of all curves; a quick run has the ends of the cheap ones."""
    few, tiny = config.quick, config.size == "tiny"

    def along(*values: int) -> Sequence[int]:
        return values[:2] if tiny else (values[0], values[2]) if few else values

    for length in along(32, 64, 128, 256, 512):
        yield _updating("length", length, [length] * 8, size, config)
    for count in along(16, 64, 256, 1024):
        yield _updating("batch", count, [16] * count, size, config)
    for vocabulary in along(1000, 4000, 16_000, 64_000):
        yield _updating("vocabulary", vocabulary, [16] * 128, replace(size, vocabulary=vocabulary), config)
    for length in along(8, 32, 128, 480):
        yield _translating(length, size, config, room)
    for pairs in along(1000, 10_000, 30_000, 100_000, 300_000):
        yield _preparing("corpus", "corpus", "corpus", pairs, {"size": asdict(size), "pairs": pairs}, config)
    for task in ("tokenise", "split"):
        for letters in along(125_000, 250_000, 500_000, 1_000_000):
            yield _preparing("text", task, "characters", letters, {"letters": letters}, config)
    yield from _working(size, config, room)


def _updating(axis: str, at: int, lengths: list[int], size: Size, config: BenchConfig) -> Point:
    """An update of small on one batch; a full run has torch beside it."""
    bench = f"growth: training by {axis}"
    facts = {"size": asdict(size), "lengths": [[lengths, lengths]]}
    named = [(OURS, "ours"), ("torch", "peers.torch")]
    named = named[:1] if config.quick or "torch" not in config.libraries() else named
    made = [entry(name, module, "training", fast_format(), config, facts) for name, module in named]
    return Point(axis, at, Task("training", bench, "s/update", less=True), made, scale=sum(lengths) + len(lengths))


def _translating(length: int, size: Size, config: BenchConfig, room: Path) -> Point:
    """A lone sentence, greedily."""
    facts = {"size": asdict(size), "folder": str(room), "tasks": ["lone greedy"], "lone": [length]}
    task = Task("lone greedy", "growth: translation by length", "ms/sentence", less=True)
    return Point("length", length, task, [entry(OURS, "ours", "translation", "float32", config, facts)], scale=0.0)


def _preparing(contest: str, task: str, axis: str, at: int, facts: dict[str, Any], config: BenchConfig) -> Point:
    """What happens before the first update."""
    names = {"corpus": "preparing", "tokenise": "tokenising", "split": "splitting"}
    made = Task(task, f"growth: {names[task]} by {axis}", "s", less=True)
    return Point(axis, at, made, [entry(OURS, "preparing", contest, "", config, facts)], rounds=1, scale=0.0)


def _working(size: Size, config: BenchConfig, room: Path) -> Iterator[Point]:
    """Several processes of one thread each: that train together, and that translate side by side."""
    alone = replace(config, threads=1)
    counts = [count for count in (1, 2, 4, MOST_WORKERS) if count <= max(2, config.processors)]
    for count in counts:
        facts = {**training.facts(size), "workers": count}
        task = Task("training", "growth: training by workers", "target tokens/s")
        made = [entry(OURS, "ours", "training", f"{fast_format()} {WORKERS}", alone, facts)]
        yield Point("workers", count, task, made, scale=0.0)
    for count in counts:
        facts = translation.facts(size, room, ["greedy"])
        task = Task("greedy", "growth: translation by workers", "sentences/s")
        made = [entry(OURS, "ours", "translation", "float32", alone, facts) for _ in range(count)]
        yield Point("workers", count, task, made, scale=0.0, at_once=True)


def _measured(point: Point, config: BenchConfig, clock: Clock, missing: list[str]) -> list[Row]:
    rounds = 1 if config.quick else point.rounds
    found: list[Measured] = []
    if point.at_once:
        with starting(point.entries, max(LEAST_SECONDS, clock.left()), missing) as workers:
            if len(workers) < len(point.entries):
                return []
            try:
                values = tuple(together(workers, point.task.name, rounds))
            except Failed as error:
                missing.append(f"failed: {point.task.bench}: {error}")
                return []
            memory = sum(one.memory for one in workers)
            found = [Measured(point.entries[0].peer, OURS, values, memory=memory)]
    else:
        outcome = hold(point.entries, [point.task], rounds, clock=clock, tell=lambda line: None)
        missing += outcome.missing
        for one in outcome.measured[point.task.name]:
            values = tuple(point.scale / value if point.scale else value for value in one.values)
            found.append(replace(one, values=values))
    return [replace(row, axis=point.axis, at=float(point.at)) for row in rows(point.task, found)]
