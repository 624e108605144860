"""One run for each of several seeds, and the best run's model: to measure the spread of metrics, or as restarts.

RUN/seeds/N/    run directory of seed N
RUN/features/   model of the frozen features that all seeds read, if there are any
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from regard.checkpoint import atomic
from regard.checkpoint.feature_dir import FEATURES, copy_features
from regard.checkpoint.locate import TASK_FILE
from regard.checkpoint.model_files import folder_digest
from regard.checkpoint.run_dir import RunDirectory
from regard.config.runs import RunConfig
from regard.config.task_runs import FineTunedRun
from regard.errors import UsageError
from regard.metric_table import METRICS
from regard.registry import TASKS, resolve
from regard.tasks.feature_models import find_feature_loader
from regard.training.batch_procedure import BatchProcedure
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


@dataclass(frozen=True)
class SeedSummary:
    """What the runs of all seeds amount to."""

    metrics: dict[str, Any]
    verdict: Verdict | None
    metadata: dict[str, Any]  # for run.json
    task_changes: dict[str, Any]  # entries of the best model's task.json


class MultiSeedProcedure:
    """Trains a model from several seeds, one after another: mean and standard deviation of their metrics."""

    unit = "seed"
    count_setting = "fine_tuning.seeds"
    resolved_names = frozenset(("seeds",))

    # set by `prepare`
    digests: dict[str, str]  # of the data

    def __init__(self, context: RunContext, train: Train) -> None:
        assert isinstance(context.config, FineTunedRun)
        self.context = context
        self.config = context.config
        self.train_seed = train
        first_seed = context.config.training.seed
        self.seeds = range(first_seed, first_seed + attrgetter(self.count_setting)(context.config))

    def prepare(self) -> None:
        """Digest the data and the models; the run of each seed reads them again."""
        if self.context.distributed.world_size > 1:
            raise UsageError(
                f"several {self.unit}s are trained one after another by one process: start it without torchrun"
            )
        features = self.config.fine_tuning.features
        models = self.config.models.keys() - {"features"}
        self.digests = self.compute_digests((*self.config.files, *models))
        if features:
            self.digests["features"] = self._copy_features(features)

    def compute_digests(self, names: Collection[str]) -> dict[str, str]:
        """Digest the data files and the models of these names as they are now, without preparing anything."""
        config = self.config
        read = resolve(TASKS[config.task].read_examples)
        files = {split: paths for split, paths in config.files.items() if split in names}
        digests = {split: read(paths, config.data.read).digest for split, paths in files.items()}
        models = config.models.keys() & {*names}
        return {**digests, **(BatchProcedure(self.context).compute_digests(models) if models else {})}

    def _copy_features(self, source: str) -> str:
        """Copy the model of the features into a new run, where all seeds read it; return the digest of the copy."""
        folder = self.context.directory.path
        if not self.context.directory.read_run():
            find_feature_loader(source)  # refuses other folders before anything is copied
            copy_features(source, folder)
        return folder_digest(folder / FEATURES)

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
            self.context.notify(self.describe_run(seed))
            minutes = self.config.training.minutes / len(self.seeds)  # the time budget is for all seeds
            overrides: dict[str, Any] = {
                "training.seed": seed,
                self.count_setting: 1,
                "training.minutes": minutes,
            }
            if self.config.fine_tuning.features:
                overrides["fine_tuning.features"] = str(self.context.directory.path / FEATURES)
            config = self.config.override(overrides)
            started = self.context.start_time if seed == self.seeds[0] else None
            folder = _seed_folder(self.context.directory, seed)
            run = self.train_seed(config, folder, listeners=listeners, started=started)
            seconds += run.seconds
            if not run.is_finished:
                return TrainingResult(len(metrics), run.reason, seconds)
            metrics[seed] = run.metrics
            verdicts[seed] = run.verdict
        best = _best_seed(metrics, run.metric)
        summary = self.summarize(best, metrics, verdicts[best])
        self._publish(best, summary.task_changes)
        return TrainingResult(
            len(metrics),
            "plan done",
            seconds=seconds,
            metric=run.metric,
            metrics=summary.metrics,
            metadata=summary.metadata,
            verdict=summary.verdict,
            summary=run.summary,
        )

    def describe_run(self, seed: int) -> str:
        """Announce the run of a seed."""
        return f"seed {seed} ({seed - self.seeds[0] + 1} of {len(self.seeds)})"

    def summarize(self, best: int, metrics: Mapping[int, dict[str, Any]], verdict: Verdict | None) -> SeedSummary:
        """Mean and standard deviation of the metrics, which are by seed; `verdict` is that of the best run."""
        summary = mean_and_std(list(metrics.values()))
        seeds = {"best": best, "each": [{"seed": seed, **scores} for seed, scores in metrics.items()]}
        return SeedSummary(
            summary,
            verdict.for_all_seeds(len(self.seeds)) if verdict is not None else None,
            metadata={"seeds": seeds},
            task_changes={"seeds": {**seeds, **summary}},
        )

    def _publish(self, seed: int, task_changes: Mapping[str, Any]) -> None:
        """Publish the model of one seed as the run's model, with these entries of its task.json."""
        source = _seed_folder(self.context.directory, seed)
        folder = self.context.directory.path
        path = atomic.published_path(source)
        atomic.verify_folder(path)
        contents: dict[str, atomic.Content] = {name: (path / name).read_bytes() for name in atomic.read_manifest(path)}
        contents[TASK_FILE] = atomic.json_bytes({**atomic.read_json(path / TASK_FILE), **task_changes})
        atomic.publish(folder, contents)


class RestartProcedure(MultiSeedProcedure):
    """Trains restarts of a model, one after another; the metrics are those of the best one on validation data."""

    unit = "restart"
    count_setting = "training.restarts"

    def describe_run(self, seed: int) -> str:
        """Announce a restart."""
        return f"restart {seed - self.seeds[0] + 1} of {len(self.seeds)} (seed {seed})"

    def summarize(self, best: int, metrics: Mapping[int, dict[str, Any]], verdict: Verdict | None) -> SeedSummary:
        """Metrics of the best restart, with the validation metrics of all."""
        names = [name for name, value in metrics[best].items() if name.startswith("valid_") and _is_number(value)]
        each = [{"seed": seed} | {name: scores[name] for name in names} for seed, scores in metrics.items()]
        summary = {**metrics[best], "restarts": {"best": best - self.seeds[0], "each": each}}
        return SeedSummary(summary, verdict, metadata={}, task_changes={"metrics": summary})


def find_published_run(directory: RunDirectory) -> RunDirectory:
    """Run directory whose model a finished run published: that of its best seed or restart, or its own."""
    run = directory.read_run()
    seeds = run["resolved"].get("seeds")
    if not seeds:
        return directory
    result = run["result"]
    best = result["seeds"]["best"] if "seeds" in result else seeds[result["metrics"]["restarts"]["best"]]
    return RunDirectory(_seed_folder(directory, best))


def _seed_folder(directory: RunDirectory, seed: int) -> Path:
    return directory.path / "seeds" / str(seed)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


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
