"""One run for each of several seeds: mean and standard deviation of the metrics, and the best run's model.

RUN/seeds/N/    run directory of seed N
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from regard.checkpoint import atomic
from regard.checkpoint.feature_dir import FEATURES, copy_features
from regard.checkpoint.locate import TASK_FILE
from regard.config.runs import RunConfig
from regard.config.task_runs import FineTunedRun
from regard.errors import UsageError
from regard.metric_table import METRICS
from regard.registry import TASKS, resolve
from regard.tasks.feature_models import load_frozen_features
from regard.training.listeners import Listener, notify
from regard.training.procedure import ModelSummary, RunContext, RunPlan, TrainingResult
from regard.training.verdict import Verdict

SUPPRESSED_EVENTS = ("plan", "done", "stop")  # of the run of one seed; the run of all seeds sends its own


class FinishedRun(Protocol):
    """How the run of one seed ended."""

    @property
    def step(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def metric(self) -> str: ...
    @property
    def metrics(self) -> dict[str, Any]: ...
    @property
    def is_finished(self) -> bool: ...
    @property
    def verdict(self) -> Verdict | None: ...
    @property
    def summary(self) -> ModelSummary | None: ...


class Train(Protocol):
    """Trains the run of one seed."""

    def __call__(
        self, config: RunConfig, out: Path, *, listeners: Sequence[Listener] = (), started: float | None = None
    ) -> FinishedRun: ...


class MultiSeedProcedure:
    """Trains a model from several seeds, one after another."""

    unit = "seed"
    resolved_names = frozenset(("seeds",))

    # set by `prepare`
    digests: dict[str, str]  # of the data

    def __init__(self, context: RunContext, train: Train) -> None:
        assert isinstance(context.config, FineTunedRun)
        self.context = context
        self.config = context.config
        self.train_seed = train
        first_seed = context.config.training.seed
        self.seeds = range(first_seed, first_seed + context.config.fine_tuning.seeds)

    def prepare(self) -> None:
        """Read the data for its digests; the run of each seed reads it again."""
        config = self.config
        if self.context.distributed.world_size > 1:
            raise UsageError("several seeds are trained one after another by one process: start it without torchrun")
        splits = {"train": config.data.train, "valid": config.data.valid, "test": config.test_files}
        read = resolve(TASKS[config.task].read_examples)
        self.digests = {split: read(files, config.data.read).digest for split, files in splits.items() if files}
        if config.fine_tuning.features:
            self.digests["features"] = load_frozen_features(config.fine_tuning.features).digest

    def resolve_settings(self) -> dict[str, Any]:
        """List the seeds; the run of each seed resolves its own settings."""
        return {"seeds": [*self.seeds]}

    def plan(self, resolved: Mapping[str, Any]) -> RunPlan:
        """Describe the number of runs and their seeds."""
        return RunPlan([f"plan: {len(self.seeds)} runs, seeds {self.seeds[0]} to {self.seeds[-1]}"], 0, 0.0)

    def train(self, resolved: Mapping[str, Any]) -> TrainingResult:
        """Train the remaining seeds, then save the best one's model."""
        listeners: list[Listener] = [NestedRunListener(self.context.listeners)]
        metrics: dict[int, dict[str, Any]] = {}  # by seed
        verdicts: dict[int, Verdict | None] = {}
        seconds = 0.0
        for seed in self.seeds:
            self.context.notify(f"seed {seed} ({seed - self.seeds[0] + 1} of {len(self.seeds)})")
            minutes = self.config.training.minutes / len(self.seeds)  # the time budget is for all seeds
            overrides = {"training.seed": seed, "fine_tuning.seeds": 1, "training.minutes": minutes}
            config = self.config.override(overrides)
            started = self.context.start_time if seed == self.seeds[0] else None
            run = self.train_seed(config, self._folder(seed), listeners=listeners, started=started)
            seconds += run.seconds
            if not run.is_finished:
                return TrainingResult(len(metrics), run.reason, seconds)
            metrics[seed] = run.metrics
            verdicts[seed] = run.verdict
        summary = mean_and_std(list(metrics.values()))
        best = _best_seed(metrics, run.metric)
        verdict = verdicts[best]
        seeds = {"best": best, "each": [{"seed": seed, **scores} for seed, scores in metrics.items()]}
        self._publish(best, {**seeds, **summary})
        return TrainingResult(
            len(metrics),
            "plan done",
            seconds=seconds,
            metric=run.metric,
            metrics=summary,
            metadata={"seeds": seeds},
            verdict=verdict.for_all_seeds(len(self.seeds)) if verdict is not None else None,
            summary=run.summary,
        )

    def _folder(self, seed: int) -> Path:
        return self.context.directory.path / "seeds" / str(seed)

    def _publish(self, seed: int, seeds: Mapping[str, Any]) -> None:
        """Publish the model of one seed, with the metrics of all, as the run's model."""
        source = self._folder(seed)
        folder = self.context.directory.path
        if (source / FEATURES).exists():
            copy_features(source / FEATURES, folder)
        path = atomic.published_path(source)
        atomic.verify_folder(path)
        contents: dict[str, atomic.Content] = {name: (path / name).read_bytes() for name in atomic.read_manifest(path)}
        contents[TASK_FILE] = atomic.json_bytes({**atomic.read_json(path / TASK_FILE), "seeds": dict(seeds)})
        atomic.publish(folder, contents)


def _best_seed(metrics: Mapping[int, Mapping[str, Any]], name: str) -> int:
    """Seed with the best validation metric of this name; ties go to the lower loss, then to the lower seed.

    >>> runs = {1: {"valid_accuracy": 80.0, "valid_loss": 0.5}, 2: {"valid_accuracy": 80.0, "valid_loss": 0.4}}
    >>> _best_seed(runs, "accuracy")
    2
    """
    sign = 1 if METRICS[name].larger_is_better else -1

    def rank(seed: int) -> tuple[float, ...]:
        scores = metrics[seed]
        return sign * scores[f"valid_{name}"], -scores.get("valid_loss", 0.0), -seed

    return max(metrics, key=rank)


class NestedRunListener:
    """Forwards the events of the run of one seed, except those that the run of all seeds sends itself."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        """Forward the event: the lines of a plan as notes, an evaluation without its samples."""
        if event == "plan":
            for line in data["lines"]:
                notify(self.listeners, "note", text=f"  {line}")
        elif event == "evaluate":
            notify(self.listeners, event, **{**data, "samples": []})
        elif event not in SUPPRESSED_EVENTS:
            notify(self.listeners, event, **data)


def mean_and_std(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean of each metric over the runs, and its standard deviation as `<metric>_deviation`.

    >>> mean_and_std([{"accuracy": 80.0}, {"accuracy": 84.0}])
    {'accuracy': 82.0, 'accuracy_deviation': 2.8284271247461903}
    """
    summary: dict[str, float] = {}
    for name, value in metrics[0].items():
        if isinstance(value, str):  # the signature of a metric
            continue
        scores = [float(run_metrics[name]) for run_metrics in metrics]
        summary[name] = statistics.fmean(scores)
        summary[f"{name}_deviation"] = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return summary
