"""All benches in turn: from what is asked for to a report."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from regard.bench import encoding, fine_tuning, gemm, masked, recurrent, training, translation
from regard.bench.contest import Clock, Tell, hold
from regard.bench.growth import growth
from regard.bench.measure import Row, Task, rows
from regard.bench.peers import peer
from regard.bench.programme import entries
from regard.bench.report import Report
from regard.bench.settings import QUICK_SECONDS, SIZES, BenchConfig, Size
from regard.doctor import diagnose

WEIGHTS = {
    "training": 3.0,
    "recurrent": 1.5,
    "masked": 2.0,
    "fine-tuning": 2.0,
    "translation": 5.0,
    "encoding": 2.5,
    "growth": 2.0,
}  # shares of a quick run's time
_KINDS = {False: "translation", True: "latency"}  # whether sentences come one by one → bench


@dataclass(frozen=True)
class Part:
    """A piece of the programme."""

    kind: str
    run: Callable[[Clock], list[Row]]


class _Run:
    """What the parts of one run share."""

    def __init__(self, config: BenchConfig, room: Path, tell: Tell) -> None:
        self.config, self.room, self.tell = config, room, tell
        self.missing: list[str] = []
        self.peaks: dict[str, list[float]] = {}  # number format → operations/s, from all rounds

    def parts(self) -> list[Part]:
        """Return the programme."""
        asked, sizes = self.config.benches(), self.config.sizes()
        wanted = [name for name, (_, lone) in translation.TASKS.items() if _KINDS[lone] in asked]
        made = [Part("training", partial(self.train, size)) for size in sizes if "training" in asked]
        made += [Part("recurrent", self.recur)] if "recurrent" in asked else []
        made += [Part("masked", self.mask)] if "masked" in asked else []
        made += [Part("fine-tuning", self.tune)] if "fine-tuning" in asked else []
        made += [Part("translation", partial(self.translate, size, wanted)) for size in sizes if wanted]
        made += [Part("encoding", self.encode)] if "encoding" in asked else []
        made += [Part("growth", self.grow)] if "growth" in asked else []
        return made

    def train(self, size: Size, clock: Clock) -> list[Row]:
        """Run the bench of training."""
        facts = training.facts(size)
        return self._hold("training", facts, training.tasks(size, facts), clock)

    def recur(self, clock: Clock) -> list[Row]:
        """Run the bench of recurrent training."""
        shape = recurrent.shape(self.config)
        return self._hold("recurrent", recurrent.facts(shape), recurrent.tasks(shape), clock)

    def mask(self, clock: Clock) -> list[Row]:
        """Run the bench of telling hidden words."""
        size = self.config.masked()
        return self._hold("masked", masked.facts(size), masked.tasks(size), clock)

    def tune(self, clock: Clock) -> list[Row]:
        """Run the bench of fine-tuning."""
        size = self.config.tuned()
        return self._hold("fine_tuning", fine_tuning.facts(size), fine_tuning.tasks(size), clock)

    def translate(self, size: Size, wanted: list[str], clock: Clock) -> list[Row]:
        """Run the benches of translation, in batches and one by one."""
        facts = translation.facts(size, self._models(size), wanted)
        return self._hold("translation", facts, translation.tasks(size, facts), clock)

    def encode(self, clock: Clock) -> list[Row]:
        """Run the bench of encoding."""
        size = self.config.encoder()
        facts = encoding.facts(size, lone=not self.config.quick)
        return self._hold("encoding", facts, encoding.tasks(size, facts), clock)

    def grow(self, clock: Clock) -> list[Row]:
        """Measure the curves."""
        size = SIZES["tiny" if self.config.size == "tiny" else "small"]
        return growth(self.config, self._models(size), clock, self.missing, self.tell)

    def _models(self, size: Size) -> Path:
        """Return the folder with a size's translators, written once."""
        room = self.room / size.name
        if not room.exists():
            self.tell(f"writing a {size.name} translator with made-up weights")
            present = [name for name in self.config.libraries() if peer(name)[1].present()]
            translation.make_models(room, size, present)
        return room

    def _hold(self, contest: str, facts: Mapping[str, Any], tasks: list[Task], clock: Clock) -> list[Row]:
        who = entries(contest, self.config, facts, self.missing)
        self.tell(f"{tasks[0].bench}: starting {', '.join(one.peer for one in who)}")
        outcome = hold(who, tasks, self.config.rounds, clock=clock, tell=self.tell)
        self.missing += outcome.missing
        for kind, values in ((kind, values) for found in outcome.peaks.values() for kind, values in found.items()):
            self.peaks.setdefault(kind, []).extend(values)
        return [row for task in tasks for row in rows(task, outcome.measured[task.name], outcome.peaks[task.name])]


def run(config: BenchConfig, tell: Tell) -> Report:
    """Run the benches that are asked for; `tell` hears how it goes."""
    clock = Clock.of(QUICK_SECONDS) if config.quick else Clock()
    made: list[Row] = []
    with tempfile.TemporaryDirectory() as room:
        runs = _Run(config, Path(room), tell)
        parts = runs.parts()
        for number, part in enumerate(parts):
            rest = sum(WEIGHTS[other.kind] for other in parts[number:])
            made += part.run(clock.share(rest / WEIGHTS[part.kind]))
    for kind, values in runs.peaks.items():
        made.append(Row(gemm.NAME, f"torch {kind}", median(values) / 1e9, "GFLOP/s", rounds=tuple(values)))
    return Report(made, list(dict.fromkeys(runs.missing)), machine(config), config.to_dict())


def machine(config: BenchConfig) -> dict[str, Any]:
    """Return what the figures were measured on."""
    found = diagnose(quick=True)
    versions = dict(found.versions)
    for name in config.libraries():
        what = peer(name)[1]
        versions |= {one: importlib.metadata.version(one) for one in what.needs.values() if what.present()}
    return {
        "processor": found.processor,
        "cores": found.cores,
        "threads": config.processors,
        "memory": found.memory,
        "instructions": found.instructions,
        "allocator": found.allocator or "the system's own",
        "versions": versions,
    }
