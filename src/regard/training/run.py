"""Training batch by batch: what the `Trainer` does in a run, for every task whose batches are counted in tokens.

A run from its config to its model: read, choose, train, keep, and go on where it stopped.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint.run_dir import RunDirectory, folder_kind
from regard.config.runs import RunConfig
from regard.config.training import TrainingConfig
from regard.errors import ConfigError, UsageError
from regard.formatting import format_duration
from regard.hardware import SPINNING_IS_LIMITED
from regard.models.base import Model
from regard.training.auto_config import batch_tokens_for_budget, estimate_updates, resolve_training_config
from regard.training.distributed import Distributed, synchronize_run_directory
from regard.training.experiments.base import Experiment, RunContext, RunPlan, TrainingProcedure, TrainingResult
from regard.training.experiments.causal_lm import CausalLMExperiment
from regard.training.experiments.classification import ClassificationExperiment, RnnClassificationExperiment
from regard.training.experiments.distillation import STUDENTS
from regard.training.experiments.elmo import ElmoExperiment
from regard.training.experiments.fine_tuning import FineTuningExperiment
from regard.training.experiments.masked_lm import MaskedLMExperiment
from regard.training.experiments.question_answering import QuestionAnsweringExperiment
from regard.training.experiments.story_qa import MemoryNetworkProcedure
from regard.training.experiments.tagging import RnnTaggingExperiment, TaggingExperiment
from regard.training.experiments.translation import TranslationExperiment
from regard.training.flat_weights import FlatWeights
from regard.training.launcher import train_with_workers
from regard.training.listeners import Listener, TensorBoardListener, notify
from regard.training.multi_seed import MultiSeedProcedure
from regard.training.throughput import (
    ThreadTuner,
    choose_throughput,
    default_threads,
    measure_throughput,
    thread_counts,
)
from regard.training.trainer import EVALUATION_SHARE, EVALUATIONS, RunTiming, Trainer
from regard.training.verdict import Limit, Verdict, judge

FORWARD_COST = 0.45  # of an update's time a token, for what an evaluation reads or writes
LONGEST_EVALUATION = 0.025  # of a time budget
OPTIMIZER_COST = 1.15  # times the measured forward and backward pass
LANGUAGE: dict[str, Callable[[RunConfig, Path], Experiment]] = {  # by architecture
    "elmo": ElmoExperiment,
    "bert": MaskedLMExperiment,
    "gpt": CausalLMExperiment,
}
CLASSIFY: dict[str, Callable[[RunConfig, Path], Experiment]] = {
    "rnn": RnnClassificationExperiment,
    "bert": ClassificationExperiment,
}
TAG: dict[str, Callable[[RunConfig, Path], Experiment]] = {
    "rnn": RnnTaggingExperiment,
    "bert": TaggingExperiment,
}
JOBS: dict[str, Callable[[RunConfig, Path], Experiment]] = {
    "translate": TranslationExperiment,
    "language": lambda config, folder: LANGUAGE[config.architecture](config, folder),
    "tag": lambda config, folder: TAG[config.architecture](config, folder),
    "answer": QuestionAnsweringExperiment,
    "classify": lambda config, folder: CLASSIFY[config.architecture](config, folder),
}


class BatchProcedure:
    """A job trained by the `Trainer`, in the number format that is faster here."""

    unit = "step"

    def __init__(self, context: RunContext) -> None:
        self.context = context
        jobs = STUDENTS if context.config.distillation.student_layers else JOBS
        self.job = job = jobs[context.config.task](context.config, context.directory.path)
        self.digests = job.digests
        self.training = resolve_training_config(
            context.config.training,
            job.hidden_size,
            job.tokens_per_epoch,
            is_pretrained=job.is_pretrained,
            preferred=job.preferred_settings,
        )

    @cached_property
    def model(self) -> Model:
        """The model with its first weights."""
        return self.job.model()

    def resolve_settings(self) -> dict[str, Any]:
        """Return precision, threads and batch size, and the seconds that updates and evaluations will take."""
        throughput = choose_throughput(
            self.model,
            self.training,
            self.context.distributed.world_size,
            lambda counts: measure_throughput(self.job, self.training, counts),
        )
        seconds, batch = throughput.update_seconds, self.training.batch_tokens
        tokens = int(max(self.job.task.lengths[indices].sum() for indices in self.job.task.epoch_batches(0, batch)))
        if not (self.context.config.training.batch_tokens or "batch_tokens" in self.job.preferred_settings):
            batch = batch_tokens_for_budget(self.training, seconds)
        per_token = FORWARD_COST * throughput.seconds_in("float32") / max(1, tokens)  # evaluations are float32
        evaluation = per_token * self.job.validation_tokens()
        most = LONGEST_EVALUATION * 60 * self.training.minutes
        share = min(1.0, most / evaluation) if most else 1.0
        return {
            "precision": throughput.precision,
            "threads": throughput.threads,
            "throughput": throughput.text(),
            "seconds": seconds * batch / self.training.batch_tokens,
            "evaluation_seconds": share * evaluation,
            "validation_share": share,
            "batch_tokens": batch,
        }

    def _settled(self, chosen: Mapping[str, Any]) -> TrainingConfig:
        """Return the settings with what was chosen by timing."""
        return replace(self.training, batch_tokens=chosen.get("batch_tokens", self.training.batch_tokens))

    def plan(self, chosen: Mapping[str, Any]) -> RunPlan:
        """Describe data, model, precision and threads, and how the time will be spent."""
        training = self._settled(chosen)
        world_size = self.context.distributed.world_size
        if chosen["validation_share"] < 1:
            self.job.limit_validation(chosen["validation_share"])
            self.job.notes.append(
                f"validation: on {100 * chosen['validation_share']:.0f} % of its data, because all of it would take "
                "too much of the time; `regard evaluate` measures on all"
            )
        parameters = self.model.num_parameters()
        an_epoch = len(self.job.task.epoch_batches(0, training.batch_tokens))
        lengths = [
            f"{training.steps:,} updates" if training.steps else "",
            f"{training.epochs:g} passes of about {an_epoch // training.accumulation_steps or 1:,} updates"
            if training.epochs
            else "",
            f"{training.minutes:g} minutes" if training.minutes else "",
        ]
        updates = self._update_seconds(chosen)
        estimate = min(60 * training.minutes or math.inf, updates)
        rate = f"learning rate {training.learning_rate:.2g}"
        if training.optimizer == "muon":
            rate += f" and {training.muon_learning_rate:.2g} for matrices"
        lines = [
            *self.job.describe(parameters),
            f"compute: {f'{world_size} processes, each ' if world_size > 1 else ''}{chosen['throughput']}",
            f"plan: {' or '.join(filter(None, lengths))}, {training.batch_tokens:,} tokens a batch, {rate}; "
            f"about {format_duration(estimate)}",
            *([self._time_line(chosen)] if training.minutes and not self.context.directory.steps() else []),
            *self.job.notes,
        ]
        return RunPlan(lines, parameters, estimate)

    def _update_seconds(self, chosen: Mapping[str, Any]) -> float:
        """Estimate the seconds of all updates of the plan, were it not for a time budget."""
        training = replace(self._settled(chosen), minutes=0.0)
        if not (training.steps or training.epochs):
            return math.inf
        an_epoch = len(self.job.task.epoch_batches(0, training.batch_tokens))
        return (
            estimate_updates(training, an_epoch, 1.0) * training.accumulation_steps * chosen["seconds"] * OPTIMIZER_COST
        )

    def _time_line(self, chosen: Mapping[str, Any]) -> str:
        """Describe how a time budget will be spent."""
        budget = 60 * self.training.minutes
        spent = time.monotonic() - self.context.started
        evaluation = chosen["evaluation_seconds"]
        closing = evaluation + self.job.closing_seconds(evaluation)
        validation = min(EVALUATION_SHARE * budget, EVALUATIONS * evaluation)
        updates = max(0.0, budget - spent - closing - validation)
        return (
            f"time: {format_duration(spent)} until now (start, reading, tokenizer, measuring), then about "
            f"{format_duration(updates)} of updates, {format_duration(validation)} of validation and {format_duration(closing)} to finish"
        )

    def _timing(self, chosen: Mapping[str, Any]) -> RunTiming:
        """Return what the time of evaluations is: at most a tenth of all, also where nothing but updates is limited."""
        evaluation = chosen["evaluation_seconds"]
        total = self._update_seconds(chosen)
        count = EVALUATIONS if math.isinf(total) else int(EVALUATION_SHARE * total / max(1e-9, evaluation))
        return RunTiming(
            started=self.context.started,
            evaluations=max(1, min(EVALUATIONS, count)),
            evaluation_seconds=evaluation,
            closing_seconds=self.job.closing_seconds,
        )

    def train(self, chosen: Mapping[str, Any]) -> TrainingResult:
        """Train until the plan is done, patience ends or a signal comes."""
        sitting = self.context
        weights = FlatWeights(self.model, chosen["precision"], self.training.device)
        evaluator = self.job.evaluator(self.training.device)
        settings = self._settled(chosen)
        tuner = ThreadTuner(
            thread_counts(self.training, sitting.distributed.world_size),
            torch.get_num_threads(),
            may_switch=bool(settings.minutes),
            notify=sitting.notify,
            expected_seconds=chosen["seconds"] * settings.accumulation_steps,
        )
        trainer = Trainer(
            self.model,
            weights,
            self.job.task,
            settings,
            directory=sitting.directory,
            evaluator=evaluator,
            keep_best=self.job.save_best,
            listeners=sitting.listeners,
            distributed=sitting.distributed,
            rates=self.job.learning_rate_scales if isinstance(self.job, FineTuningExperiment) else None,
            timing=self._timing(chosen),
            tuner=tuner,
        )
        trainer.resume()
        reason = trainer.run()
        counters = trainer.counters
        if reason.startswith("SIG") or not sitting.distributed.is_rank_zero:
            return TrainingResult(counters.step, reason, counters.seconds)
        if settings.minutes:
            self.job.deadline = time.monotonic() + 60 * settings.minutes - counters.seconds
        average = (
            weights.split(torch.stack(trainer.recent_weights).mean(0)) if len(trainer.recent_weights) > 1 else None
        )
        verdict = self.job.verdict = self._judge(trainer, reason)
        metrics = self.job.finalize(evaluator, average, counters.step, counters.best_sort_key, sitting.notify)
        facts = {"tokens": counters.tokens, "threads": tuner.threads}
        return TrainingResult(counters.step, reason, counters.seconds, metrics, facts, verdict)

    def _judge(self, trainer: Trainer, reason: str) -> Verdict:
        """Decide from the evaluations in the log, which outlives interruptions."""
        config, counters = trainer.config, trainer.counters
        limit = Limit("--minutes", config.minutes)
        if config.steps and counters.step >= config.steps:
            limit = Limit("--steps", config.steps)
        elif config.epochs and counters.epoch >= config.epochs:
            limit = Limit("--epochs", config.epochs)
        return judge(
            [event for event in self.context.directory.read_log() if event.get("event") == "evaluate"],
            updates=counters.step,
            baselines=self.job.trivial_baselines(),
            limit=limit if reason == "plan done" else None,
            pretrained=self.job.is_pretrained,
        )


RESUMABLE_SETTINGS = (
    "threads",
    "workers",
    "save_every",
    "max_checkpoints",
    "device",
    "tensorboard",
)  # settings of training
TORCH_CAME_FIRST = (
    "torch was imported before regard, so idle threads keep spinning: import regard first where other programs use the "
    "processor, too"
)
_notes_given: set[str] = set()  # by this process
READY, NOTHING_TO_DO = 1.0, 2.0  # what rank 0 tells the other ranks
TRAININGS: dict[str, Callable[[RunContext], TrainingProcedure]] = {
    "translate": BatchProcedure,
    "language": BatchProcedure,
    "classify": lambda sitting: _one_or_several(sitting),
    "tag": lambda sitting: _one_or_several(sitting),
    "answer": lambda sitting: _one_or_several(sitting),
    "stories": MemoryNetworkProcedure,
}


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: Path
    step: int
    reason: str  # "plan done", "patience", "target reached", "finished before", or the signal that stopped it
    seconds: float
    metrics: dict[str, Any]
    unit: str = "step"  # what is counted
    leads: bool = True  # whether this is the process that reports, of several that train together
    verdict: Verdict | None = None  # None for an unfinished run, or one of an earlier version

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return not self.reason.startswith("SIG")

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        verdict = self.verdict.to_dict() if self.verdict is not None else None
        return {**vars(self), "folder": str(self.folder), "verdict": verdict}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> RunResult:
        """The report with these fields."""
        return cls(**{**fields, "folder": Path(fields["folder"]), "verdict": Verdict.from_dict(fields["verdict"])})


def train_run(
    config: RunConfig, out: Path, *, listeners: Sequence[Listener] = (), started: float | None = None
) -> RunResult:
    """Train, or go on training, the run in folder `out`; the same command continues it.

    A time budget counts from `started`, by `time.monotonic()`, or from this call.
    """
    started = time.monotonic() if started is None else started
    distributed = Distributed.from_environment()
    if distributed.world_size == 1 and config.training.workers > 1:
        threads = default_threads(config.training, config.training.workers)
        report = train_with_workers(config, out, listeners, started=started, threads=threads)
        return RunResult.from_dict(report)
    torch.set_num_threads(default_threads(config.training, distributed.local_world_size))
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # what is left uninitialised is never read
    with distributed:
        train = _train_rank_zero if distributed.is_rank_zero else _train_other_rank
        return train(config, out, listeners, distributed, started)


def _one_or_several(context: RunContext) -> TrainingProcedure:
    """Return what trains one model, or one for each of several seeds."""
    if context.config.fine_tuning.seeds == 1:
        return BatchProcedure(context)
    return MultiSeedProcedure(context, train_run)


def _train_rank_zero(
    config: RunConfig, out: Path, listeners: Sequence[Listener], distributed: Distributed, started: float
) -> RunResult:
    """Train as rank 0, which decides, reports and writes."""
    _check_target(out)
    directory = RunDirectory(
        out, notify=lambda message: notify(listeners, "note", text=message), keep=config.training.max_checkpoints
    )
    with directory.lock():
        if config.training.tensorboard:
            listeners = [*listeners, TensorBoardListener(out)]
        known = directory.read_run()
        if known:
            _check_same(known["config"], config, out)
            if known.get("finished"):
                facts = known["finished"]
                distributed.broadcast([NOTHING_TO_DO, facts["step"]])
                notify(listeners, "note", text=f"{out} is finished: nothing to do (choose another --out to train anew)")
                counted = facts["seconds"], facts["metrics"], known.get("unit", "step")
                verdict = Verdict.from_dict(facts.get("verdict"))
                return RunResult(out, facts["step"], "finished before", *counted, verdict=verdict)
        if not SPINNING_IS_LIMITED and not config.training.threads and TORCH_CAME_FIRST not in _notes_given:
            _notes_given.add(TORCH_CAME_FIRST)
            notify(listeners, "note", text=TORCH_CAME_FIRST)
        run = _RunExecution(RunContext(config, directory, listeners, distributed, started), known)
        distributed.broadcast([READY, 0.0])
        synchronize_run_directory(directory, distributed)
        return run.train()


def _train_other_rank(
    config: RunConfig, out: Path, listeners: Sequence[Listener], distributed: Distributed, started: float
) -> RunResult:
    """Train as another rank, on what rank 0 has prepared."""
    status, step = distributed.broadcast([0.0, 0.0])
    if status == NOTHING_TO_DO:
        return RunResult(out, int(step), "finished before", 0.0, {}, leads=False)
    if distributed.is_multi_node and distributed.is_local_rank_zero:
        notify(listeners, "note", text="training along: the first machine reports, and has the model in its folder")
    directory = RunDirectory(out, keep=config.training.max_checkpoints)
    synchronize_run_directory(directory, distributed)
    return _RunExecution(RunContext(config, directory, [], distributed, started), directory.read_run()).train()


def _check_target(out: Path) -> None:
    kind = folder_kind(out)
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: choose an empty or new folder for --out")
    if kind == "other":
        raise UsageError(f"{out} holds other files: choose an empty or new folder for --out")
    if kind == "model":
        raise UsageError(f"{out} holds a model that is not a run: give it to --from and choose a new folder for --out")


def _check_same(before: dict[str, Any], config: RunConfig, out: Path) -> None:
    """Refuse to go on with other settings than the run began with, naming those that differ."""
    # read as a config first: a setting that a later version added has its default there
    old = _flat(RunConfig.from_dict(before, where=str(out / "run.json")).to_dict())
    new = _flat(config.to_dict())
    different = [
        f"{name}: {old.get(name)!r} there, {new.get(name)!r} now"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and name.removeprefix("training.") not in RESUMABLE_SETTINGS
    ]
    if different:
        raise ConfigError(
            f"{out} holds a run with other settings ({'; '.join(different)}): "
            "repeat its own command to go on, or choose another --out"
        )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        made |= _flat(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return made


class _RunExecution:
    """One sitting of a run, whatever it trains."""

    def __init__(self, context: RunContext, known: dict[str, Any]) -> None:
        self.context, self.known = context, known
        self.training = TRAININGS[context.config.task](context)
        digests, path = self.training.digests, context.directory.path
        if known and known["data"] != digests:
            raise UsageError(f"the data changed since {path} began: train on the same files, or anew")
        chosen = known.get("chosen") or self.training.resolve_settings()
        if "seconds" in chosen and "throughput" not in chosen:
            raise UsageError(f"{path} was begun by an earlier version, which cannot be continued: choose another --out")
        if "threads" in chosen and not context.config.training.threads and context.distributed.world_size == 1:
            torch.set_num_threads(chosen["threads"])
        if not known.get("chosen"):
            versions = _environment(context.distributed)
            self.known = {"config": context.config.to_dict(), "data": digests, "unit": self.training.unit}
            self.known |= {"chosen": chosen, "versions": versions}
            context.directory.write_run(self.known)

    def train(self) -> RunResult:
        """Train until the plan is done or a signal comes."""
        folder, watchers, unit = self.context.directory.path, self.context.listeners, self.training.unit
        self._tell_plan()
        ended = self.training.train(self.known["chosen"])
        step, seconds, metrics = ended.step, ended.seconds, ended.metrics
        if ended.reason.startswith("SIG") or not self.context.distributed.is_rank_zero:
            notify(watchers, "stop", reason=ended.reason, step=step, unit=unit, resumable=True)
            return RunResult(folder, step, ended.reason, seconds, {}, unit, self.context.distributed.is_rank_zero)
        verdict = ended.verdict.to_dict() if ended.verdict is not None else None
        finished = {"step": step, "seconds": seconds, **ended.metadata, "metrics": metrics, "verdict": verdict}
        self.context.directory.write_run({**self.known, "finished": finished})
        facts = {"metrics": metrics, "seconds": seconds, "reason": ended.reason, "verdict": verdict}
        notify(watchers, "done", folder=str(folder), step=step, **facts)
        return RunResult(folder, step, ended.reason, seconds, metrics, unit, verdict=ended.verdict)

    def _tell_plan(self) -> None:
        plan, before = self.training.plan(self.known["chosen"]), self.known["versions"]
        changed = [
            f"{name} {before.get(name)} → {value}"
            for name, value in _environment(self.context.distributed).items()
            if before.get(name) != value
        ]
        lines = [*plan.lines]
        if changed:
            lines.append(f"the same bits as without the interruption are not promised: {', '.join(changed)}")
        notify(self.context.listeners, "plan", lines=lines, parameters=plan.parameters, seconds=plan.seconds)


def _environment(distributed: Distributed) -> dict[str, Any]:
    """What the bits of a run depend on besides its settings."""
    return {
        "processes": distributed.world_size,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
