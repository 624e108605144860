"""A run from its config to its model: read, choose, train, keep, and go on where it stopped."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint.directory import RunDirectory, existing
from regard.config.run import RunConfig
from regard.errors import ConfigError, UsageError
from regard.machine import SPINNING_IS_LIMITED
from regard.training.batchwise import BatchTraining
from regard.training.distributed import Distributed, synchronize_run_directory
from regard.training.job import Sitting, Training
from regard.training.launcher import train_with_workers
from regard.training.seeds import SeveralSeeds
from regard.training.story_run import StoryTraining
from regard.training.tensorboard import TensorBoardWatcher
from regard.training.throughput import default_threads
from regard.training.verdict import Verdict
from regard.training.watch import Watcher, tell

MAY_CHANGE = ("threads", "workers", "save_every", "keep", "device", "tensorboard")  # settings of training
TORCH_CAME_FIRST = (
    "torch was imported before regard, so idle threads keep spinning: import regard first where other programs use the "
    "processor, too"
)
_notes_given: set[str] = set()  # by this process
READY, NOTHING_TO_DO = 1.0, 2.0  # what rank 0 tells the other ranks
TRAININGS: dict[str, Callable[[Sitting], Training]] = {
    "translate": BatchTraining,
    "language": BatchTraining,
    "classify": lambda sitting: _one_or_several(sitting),
    "tag": lambda sitting: _one_or_several(sitting),
    "answer": lambda sitting: _one_or_several(sitting),
    "stories": StoryTraining,
}


@dataclass(frozen=True)
class Report:
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
    def from_dict(cls, fields: dict[str, Any]) -> Report:
        """The report with these fields."""
        return cls(**{**fields, "folder": Path(fields["folder"]), "verdict": Verdict.from_dict(fields["verdict"])})


def train_run(
    config: RunConfig, out: Path, *, watchers: Sequence[Watcher] = (), started: float | None = None
) -> Report:
    """Train, or go on training, the run in folder `out`; the same command continues it.

    A time budget counts from `started`, by `time.monotonic()`, or from this call.
    """
    started = time.monotonic() if started is None else started
    distributed = Distributed.from_environment()
    if distributed.world_size == 1 and config.training.workers > 1:
        threads = default_threads(config.training, config.training.workers)
        report = train_with_workers(config, out, watchers, started=started, threads=threads)
        return Report.from_dict(report)
    torch.set_num_threads(default_threads(config.training, distributed.local_world_size))
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # what is left uninitialised is never read
    with distributed:
        train = _train_rank_zero if distributed.is_rank_zero else _train_other_rank
        return train(config, out, watchers, distributed, started)


def _one_or_several(sitting: Sitting) -> Training:
    """Return what trains one model, or one for each of several seeds."""
    if sitting.config.classify.seeds == 1:
        return BatchTraining(sitting)
    return SeveralSeeds(sitting, train_run)


def _train_rank_zero(
    config: RunConfig, out: Path, watchers: Sequence[Watcher], distributed: Distributed, started: float
) -> Report:
    """Train as rank 0, which decides, reports and writes."""
    _check_target(out)
    directory = RunDirectory(out, tell=lambda message: tell(watchers, "note", text=message), keep=config.training.keep)
    with directory.lock():
        if config.training.tensorboard:
            watchers = [*watchers, TensorBoardWatcher(out)]
        known = directory.read_run()
        if known:
            _check_same(known["config"], config, out)
            if known.get("finished"):
                facts = known["finished"]
                distributed.broadcast([NOTHING_TO_DO, facts["step"]])
                tell(watchers, "note", text=f"{out} is finished: nothing to do (choose another --out to train anew)")
                counted = facts["seconds"], facts["metrics"], known.get("unit", "step")
                verdict = Verdict.from_dict(facts.get("verdict"))
                return Report(out, facts["step"], "finished before", *counted, verdict=verdict)
        if not SPINNING_IS_LIMITED and not config.training.threads and TORCH_CAME_FIRST not in _notes_given:
            _notes_given.add(TORCH_CAME_FIRST)
            tell(watchers, "note", text=TORCH_CAME_FIRST)
        run = _Run(Sitting(config, directory, watchers, distributed, started), known)
        distributed.broadcast([READY, 0.0])
        synchronize_run_directory(directory, distributed)
        return run.train()


def _train_other_rank(
    config: RunConfig, out: Path, watchers: Sequence[Watcher], distributed: Distributed, started: float
) -> Report:
    """Train as another rank, on what rank 0 has prepared."""
    status, step = distributed.broadcast([0.0, 0.0])
    if status == NOTHING_TO_DO:
        return Report(out, int(step), "finished before", 0.0, {}, leads=False)
    if distributed.is_multi_node and distributed.is_local_rank_zero:
        tell(watchers, "note", text="training along: the first machine reports, and has the model in its folder")
    directory = RunDirectory(out, keep=config.training.keep)
    synchronize_run_directory(directory, distributed)
    return _Run(Sitting(config, directory, [], distributed, started), directory.read_run()).train()


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
    """One sitting of a run, whatever it trains."""

    def __init__(self, sitting: Sitting, known: dict[str, Any]) -> None:
        self.sitting, self.known = sitting, known
        self.training = TRAININGS[sitting.config.task](sitting)
        digests, path = self.training.digests, sitting.directory.path
        if known and known["data"] != digests:
            raise UsageError(f"the data changed since {path} began: train on the same files, or anew")
        chosen = known.get("chosen") or self.training.choose()
        if "seconds" in chosen and "throughput" not in chosen:
            raise UsageError(f"{path} was begun by an earlier version, which cannot be continued: choose another --out")
        if "threads" in chosen and not sitting.config.training.threads and sitting.distributed.world_size == 1:
            torch.set_num_threads(chosen["threads"])
        if not known.get("chosen"):
            versions = _environment(sitting.distributed)
            self.known = {"config": sitting.config.to_dict(), "data": digests, "unit": self.training.unit}
            self.known |= {"chosen": chosen, "versions": versions}
            sitting.directory.write_run(self.known)

    def train(self) -> Report:
        """Train until the plan is done or a signal comes."""
        folder, watchers, unit = self.sitting.directory.path, self.sitting.watchers, self.training.unit
        self._tell_plan()
        ended = self.training.train(self.known["chosen"])
        step, seconds, metrics = ended.step, ended.seconds, ended.metrics
        if ended.reason.startswith("SIG") or not self.sitting.distributed.is_rank_zero:
            tell(watchers, "stop", reason=ended.reason, step=step, unit=unit, resumable=True)
            return Report(folder, step, ended.reason, seconds, {}, unit, self.sitting.distributed.is_rank_zero)
        verdict = ended.verdict.to_dict() if ended.verdict is not None else None
        finished = {"step": step, "seconds": seconds, **ended.facts, "metrics": metrics, "verdict": verdict}
        self.sitting.directory.write_run({**self.known, "finished": finished})
        facts = {"metrics": metrics, "seconds": seconds, "reason": ended.reason, "verdict": verdict}
        tell(watchers, "done", folder=str(folder), step=step, **facts)
        return Report(folder, step, ended.reason, seconds, metrics, unit, verdict=ended.verdict)

    def _tell_plan(self) -> None:
        plan, before = self.training.plan(self.known["chosen"]), self.known["versions"]
        changed = [
            f"{name} {before.get(name)} → {value}"
            for name, value in _environment(self.sitting.distributed).items()
            if before.get(name) != value
        ]
        lines = [*plan.lines]
        if changed:
            lines.append(f"the same bits as without the interruption are not promised: {', '.join(changed)}")
        tell(self.sitting.watchers, "plan", lines=lines, parameters=plan.parameters, seconds=plan.seconds)


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
