"""A run from its config to its model: read, choose, train, keep, and go on where it stopped."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint.directory import RunDirectory, existing
from regard.config.run import RunConfig
from regard.config.training import TrainingConfig
from regard.errors import ConfigError, UsageError
from regard.machine import cores
from regard.phrases import duration
from regard.training.job import Job
from regard.training.plan import planned_updates, time_formats, training_config
from regard.training.processes import Processes, others
from regard.training.tensorboard import TensorBoardWatcher
from regard.training.trainer import Trainer
from regard.training.translation import TranslationJob
from regard.training.watch import Watcher, tell
from regard.training.weights import FlatWeights

MAY_CHANGE = ("threads", "workers", "save_every", "keep", "device", "tensorboard")  # settings of training
READY, NOTHING_TO_DO = 1.0, 2.0  # what the first process tells the others
JOBS = {"translate": TranslationJob}


@dataclass(frozen=True)
class Report:
    """How a run ended."""

    folder: Path
    step: int
    reason: str  # "plan done", "patience", "finished before", or the signal that stopped it
    seconds: float
    metrics: dict[str, Any]

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return not self.reason.startswith("SIG")


def train_run(config: RunConfig, out: Path, *, watchers: Sequence[Watcher] = ()) -> Report:
    """Train, or go on training, the run in folder `out`; the same command continues it."""
    processes = Processes.started()
    if processes.count == 1 and config.training.workers > 1:
        return _with_others(config, out, watchers)
    torch.set_num_threads(config.training.threads or max(1, cores() // processes.here))
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # what is left uninitialised is never read
    with processes:
        return _first(config, out, watchers, processes) if processes.first else _another(config, out, processes)


def _with_others(config: RunConfig, out: Path, watchers: Sequence[Watcher]) -> Report:
    """Train with several processes on this machine; this one is the first."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "run.json")
        recipe.write_text(json.dumps(config.to_dict()), "utf-8")
        command = ["-m", "regard", "train", "--recipe", str(recipe), "--out", str(out)]
        with others(config.training.workers, command, config.training.threads or 1):
            return train_run(config, out, watchers=watchers)


def _first(config: RunConfig, out: Path, watchers: Sequence[Watcher], processes: Processes) -> Report:
    """Train as the process that decides, reports and writes."""
    _check_target(out)
    directory = RunDirectory(out, tell=lambda message: tell(watchers, "note", text=message), keep=config.training.keep)
    with directory.lock():
        if config.training.tensorboard:
            watchers = [*watchers, TensorBoardWatcher(out)]
        known = directory.read_run()
        if known:
            _check_same(known["config"], config, out)
            if known.get("finished"):
                processes.said_by_first([NOTHING_TO_DO])
                tell(watchers, "note", text=f"{out} is finished: nothing to do (choose another --out to train anew)")
                facts = known["finished"]
                return Report(out, facts["step"], "finished before", facts["seconds"], facts["metrics"])
        run = _Run(config, directory, known, watchers, processes)
        processes.said_by_first([READY])
        return run.train()


def _another(config: RunConfig, out: Path, processes: Processes) -> Report:
    """Train beside the first process, on what it has prepared."""
    (said,) = processes.said_by_first([0.0])
    directory = RunDirectory(out, keep=config.training.keep)
    known = directory.read_run()
    if said == NOTHING_TO_DO:
        return Report(out, known["finished"]["step"], "finished before", 0.0, {})
    return _Run(config, directory, known, [], processes).train()


def _check_target(out: Path) -> None:
    kind = existing(out)
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
        if old.get(name) != new.get(name) and name.removeprefix("training.") not in MAY_CHANGE
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


class _Run:
    """One sitting of a run."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        known: dict[str, Any],
        watchers: Sequence[Watcher],
        processes: Processes,
    ) -> None:
        self.config, self.directory, self.known, self.watchers = config, directory, known, watchers
        self.processes = processes
        self.job: Job = JOBS[config.task](config, directory.path)
        if known and known["data"] != self.job.digests:
            raise UsageError(f"the data changed since {directory.path} began: train on the same files, or anew")
        self.training = self._training()

    def _training(self) -> TrainingConfig:
        """Return the training settings with all that was chosen when the run began."""
        job = self.job
        training = training_config(self.config.training, job.width, job.tokens, goes_on=job.goes_on)
        if not self.known.get("chosen"):
            timing = time_formats(job, training)
            self.known = {
                "config": self.config.to_dict(),
                "data": job.digests,
                "chosen": {
                    "precision": timing.chosen,
                    "precision_text": timing.text(),
                    "seconds": timing.seconds[timing.chosen],
                },
                "versions": _environment(self.processes),
            }
            self.directory.write_run(self.known)
        return training

    def train(self) -> Report:
        """Train until the plan is done or a signal comes."""
        model = self.job.model()
        self._tell_plan(model.parameter_count())
        weights = FlatWeights(model, self.known["chosen"]["precision"], self.training.device)
        evaluator = self.job.evaluator(self.training.device)
        trainer = Trainer(
            model,
            weights,
            self.job.task,
            self.training,
            directory=self.directory,
            evaluator=evaluator,
            keep_best=self.job.keep,
            watchers=self.watchers,
            processes=self.processes,
        )
        trainer.resume()
        reason = trainer.run()
        step, seconds = trainer.counters.step, trainer.counters.seconds
        if reason.startswith("SIG") or not self.processes.first:
            tell(self.watchers, "stop", reason=reason, step=step, resumable=True)
            return Report(self.directory.path, step, reason, seconds, {})
        average = weights.named(torch.stack(trainer.recent).mean(0)) if len(trainer.recent) > 1 else None
        metrics = self.job.finish(evaluator, average, step, trainer.counters.best, self._say)
        finished = {"step": step, "seconds": seconds, "tokens": trainer.counters.tokens, "metrics": metrics}
        self.directory.write_run({**self.known, "finished": finished})
        facts = {"step": step, "metrics": metrics, "seconds": seconds, "reason": reason}
        tell(self.watchers, "done", folder=str(self.directory.path), **facts)
        return Report(self.directory.path, step, reason, seconds, metrics)

    def _say(self, text: str) -> None:
        tell(self.watchers, "note", text=text)

    def _tell_plan(self, parameters: int) -> None:
        training, chosen, processes = self.training, self.known["chosen"], self.processes.count
        an_epoch = len(self.job.task.epoch(0, training.batch_tokens))
        lengths = [
            f"{training.steps:,} updates" if training.steps else "",
            f"{training.epochs:g} passes of about {an_epoch // training.accumulate or 1:,} updates"
            if training.epochs
            else "",
            f"{training.minutes:g} minutes" if training.minutes else "",
        ]
        estimate = 60 * training.minutes or planned_updates(training, an_epoch, 1.0) * chosen["seconds"] * 1.15
        rate = f"learning rate {training.learning_rate:.2g}"
        if training.optimizer == "muon":
            rate += f" and {training.matrix_rate:.2g} for matrices"
        changed = [
            f"{name} {self.known['versions'].get(name)} → {value}"
            for name, value in _environment(self.processes).items()
            if self.known["versions"].get(name) != value
        ]
        lines = [
            *self.job.lines(parameters),
            f"numbers: {chosen['precision_text']}; {f'{processes} processes of ' if processes > 1 else ''}"
            f"{torch.get_num_threads()} threads",
            f"plan: {' or '.join(filter(None, lengths))}, {training.batch_tokens:,} tokens a batch, {rate}; "
            f"about {duration(estimate)}",
            *self.job.notes,
        ]
        if changed:
            lines.append(f"the same bits as without the interruption are not promised: {', '.join(changed)}")
        tell(self.watchers, "plan", lines=lines, parameters=parameters, seconds=estimate)


def _environment(processes: Processes) -> dict[str, Any]:
    """What the bits of a run depend on besides its settings."""
    return {
        "processes": processes.count,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
