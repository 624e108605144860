"""One run for each of several seeds: mean and spread of their scores, and the best of them as the run's model.

RUN/seeds/N/    the whole run of seed N
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from regard.checkpoint import atomic
from regard.checkpoint.locate import TASK_FILE
from regard.checkpoint.native import FEATURES, copy_features
from regard.config.data import ReadConfig
from regard.config.runs import RunConfig
from regard.data.conll import read_tagged
from regard.data.labelled import read_labelled
from regard.data.squad import read_squad
from regard.errors import UsageError
from regard.tasks.elmo import ElmoFeatures
from regard.training.experiments.base import RunContext, RunPlan, TrainingResult
from regard.training.listeners import Listener, notify
from regard.training.verdict import Verdict

QUIET = ("plan", "done", "stop")  # what a single run tells and the run of all of them tells itself


class HasDigest(Protocol):
    """Data that was read."""

    @property
    def digest(self) -> str: ...


READERS: dict[str, Callable[[Sequence[str], ReadConfig], HasDigest]] = {
    "classify": read_labelled,
    "tag": read_tagged,
    "answer": read_squad,
}
RANKED = ("valid_f1", "valid_accuracy", "valid_micro_f1")  # what decides which seed's model is kept


class FinishedRun(Protocol):
    """How a single run ended."""

    @property
    def step(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def metrics(self) -> dict[str, Any]: ...
    @property
    def finished(self) -> bool: ...
    @property
    def verdict(self) -> Verdict | None: ...


class Train(Protocol):
    """Trains a single run."""

    def __call__(
        self, config: RunConfig, out: Path, *, listeners: Sequence[Listener] = (), started: float | None = None
    ) -> FinishedRun: ...


class MultiSeedProcedure:
    """A model trained from several seeds, one after the other."""

    unit = "seed"

    def __init__(self, context: RunContext, train: Train) -> None:
        self.context, self.single = context, train
        config = context.config
        if context.distributed.world_size > 1:
            raise UsageError("several seeds are trained one after the other by one process: start it without torchrun")
        test = (config.fine_tuning.test,) if config.fine_tuning.test else ()
        parts = {"train": config.data.train, "valid": config.data.valid, "test": test}
        read = READERS[config.task]
        self.digests = {name: read(found, config.data.read).digest for name, found in parts.items() if found}
        if config.fine_tuning.features:
            self.digests["features"] = ElmoFeatures.load(config.fine_tuning.features).digest
        first = config.training.seed
        self.seeds = range(first, first + config.fine_tuning.seeds)

    def resolve_settings(self) -> dict[str, Any]:
        """Return nothing: every single run chooses for itself."""
        return {"seeds": [*self.seeds]}

    def plan(self, chosen: Mapping[str, Any]) -> RunPlan:
        """Say how many runs there will be."""
        return RunPlan([f"plan: {len(self.seeds)} runs, seeds {self.seeds[0]} to {self.seeds[-1]}"], 0, 0.0)

    def train(self, chosen: Mapping[str, Any]) -> TrainingResult:
        """Train what is left to train, then keep the best."""
        watchers: list[Listener] = [NestedRunListener(self.context.listeners)]
        found: dict[int, dict[str, Any]] = {}
        verdicts: dict[int, Verdict | None] = {}
        seconds = 0.0
        for seed in self.seeds:
            self.context.notify(f"seed {seed} ({seed - self.seeds[0] + 1} of {len(self.seeds)})")
            minutes = self.context.config.training.minutes / len(self.seeds)  # a time budget is for all of them
            changes = {"training.seed": seed, "fine_tuning.seeds": 1, "training.minutes": minutes}
            config = self.context.config.override(changes)
            started = self.context.started if seed == self.seeds[0] else None
            ended = self.single(config, self._folder(seed), listeners=watchers, started=started)
            seconds += ended.seconds
            if not ended.finished:
                return TrainingResult(len(found), ended.reason, seconds)
            found[seed], verdicts[seed] = ended.metrics, ended.verdict
        metrics = mean_and_std(list(found.values()))
        measure = next(name for name in RANKED if name in metrics)
        best = max(found, key=lambda seed: (found[seed][measure], -found[seed].get("valid_loss", 0.0), -seed))
        facts = {"best": best, "each": [{"seed": seed, **one} for seed, one in found.items()]}
        self._keep(best, {**facts, **metrics})
        return TrainingResult(len(found), "plan done", seconds, metrics, {"seeds": facts}, verdicts[best])

    def _folder(self, seed: int) -> Path:
        return self.context.directory.path / "seeds" / str(seed)

    def _keep(self, seed: int, facts: Mapping[str, Any]) -> None:
        """Put the model of one seed, with what is known of all, in place as the run's own."""
        source, folder = self._folder(seed), self.context.directory.path
        if (source / FEATURES).exists():
            copy_features(source / FEATURES, folder)
        path = atomic.published_path(source)
        contents: dict[str, atomic.Content] = {name: (path / name).read_bytes() for name in atomic.read_manifest(path)}
        contents[TASK_FILE] = atomic.json_bytes({**atomic.read_json(path / TASK_FILE), "seeds": dict(facts)})
        atomic.publish(folder, contents)


class NestedRunListener:
    """Passes on what a single run tells, but for what the run of all of them tells itself."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners

    def on_event(self, kind: str, facts: dict[str, Any]) -> None:
        """Pass the event on; a plan's lines as notes, an evaluation without its samples."""
        if kind == "plan":
            for line in facts["lines"]:
                notify(self.listeners, "note", text=f"  {line}")
        elif kind not in QUIET:
            notify(self.listeners, kind, **({**facts, "samples": []} if kind == "evaluate" else facts))


def mean_and_std(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each measure, and its standard deviation over the runs.

    >>> mean_and_std([{"accuracy": 80.0}, {"accuracy": 84.0}])
    {'accuracy': 82.0, 'accuracy_deviation': 2.8284271247461903}
    """
    made: dict[str, float] = {}
    for name in metrics[0]:
        values = [float(one[name]) for one in metrics]
        made[name] = statistics.fmean(values)
        made[f"{name}_deviation"] = statistics.stdev(values) if len(values) > 1 else 0.0
    return made
