"""A run from its config to its model: prepare, train, save, and resume after an interruption."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch

from regard.checkpoint.run_dir import RunDirectory, folder_kind
from regard.config.runs import RunConfig, read_run
from regard.config.settings import flatten
from regard.config.story_run import MEMORY_NETWORK, StoryQARun
from regard.config.task_runs import FineTunedRun
from regard.errors import CheckpointError, ConfigError, InterruptedTrainingError, TrainingError, UsageError
from regard.hardware import SPINNING_IS_LIMITED, is_out_of_memory
from regard.registry import TASKS, resolve
from regard.tasks.scoring import Scoring
from regard.training.batch_procedure import BatchProcedure
from regard.training.distributed import Distributed, synchronize_run_directory
from regard.training.experiments.story_qa import MemoryNetworkProcedure
from regard.training.launcher import train_with_workers
from regard.training.listeners import Listener, TensorBoardListener, notify
from regard.training.multi_seed import MultiSeedProcedure, RestartProcedure
from regard.training.procedure import ModelSummary, ModelSummaryDict, RunContext, TrainingProcedure
from regard.training.run_inputs import check_digests, find_missing_files, find_missing_models
from regard.training.throughput import default_threads
from regard.training.verdict import Verdict, VerdictDict

# settings of `training` that may differ when a run is resumed
RESUMABLE_SETTINGS = (
    *("threads", "workers", "worker_timeout", "save_every", "max_checkpoints", "device", "tensorboard"),
    "log_gradients",
)
SPINNING_NOTE = (
    "torch was imported before regard, so idle threads keep spinning: import regard first where other programs use the "
    "processor, too"
)
FINISHED_BEFORE = "finished before"
READY = 1.0  # status that rank 0 broadcasts before training
FINISHED = 2.0
_sent_notes: set[str] = set()  # by this process


class RunResultDict(TypedDict):
    """JSON form of a `RunResult`."""

    folder: str
    step: int
    unit: str  # of `step`: step, epoch or seed
    reason: str  # "plan done", "patience", "target reached", "finished before", or the signal that stopped it
    seconds: float
    metric: str  # that selected the model; empty for an unfinished run
    metrics: dict[str, Any]
    verdict: VerdictDict | None  # null for an unfinished run
    summary: ModelSummaryDict | None  # what was trained; null for an unfinished run


class ReportEvent(RunResultDict):
    """The last line: how the run ended."""

    event: Literal["report"]


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: Path
    step: int
    reason: str  # "plan done", "patience", "target reached", "finished before", or the signal that stopped it
    seconds: float
    metrics: dict[str, Any]
    metric: str = ""  # name of the metric that selected the model; empty for an unfinished run
    unit: str = "step"  # of `step`
    is_rank_zero: bool = True  # whether this process is rank 0, which reports
    verdict: Verdict | None = None  # None for an unfinished run
    summary: ModelSummary | None = None  # what was trained; None for an unfinished run

    @property
    def is_finished(self) -> bool:
        """Whether the training is complete."""
        return not self.reason.startswith("SIG")

    def to_dict(self) -> RunResultDict:
        """Convert to JSON values."""
        return {
            "folder": str(self.folder),
            "step": self.step,
            "unit": self.unit,
            "reason": self.reason,
            "seconds": self.seconds,
            "metric": self.metric,
            "metrics": self.metrics,
            "verdict": self.verdict.to_dict() if self.verdict is not None else None,
            "summary": self.summary.to_dict() if self.summary is not None else None,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> RunResult:
        """Build from the values of `to_dict`."""
        folder = Path(fields["folder"])
        verdict = Verdict.from_dict(fields["verdict"])
        summary = ModelSummary.from_dict(fields["summary"])
        return cls(**{**fields, "folder": folder, "verdict": verdict, "summary": summary})


def train_run(
    config: RunConfig,
    out: Path,
    *,
    listeners: Sequence[Listener] = (),
    started: float | None = None,
    pinned: Mapping[str, Any] | None = None,
) -> RunResult:
    """Train, or resume, the run in the run directory `out`; the same call resumes it.

    A time budget counts from `started`, by `time.monotonic()`, or from this call. `pinned` are resolved settings of
    another run (precision, threads, batch size), which are then not chosen by measurement.
    """
    started = time.monotonic() if started is None else started
    Scoring.for_run(config.task, config.training.metric).check()
    distributed = Distributed.from_environment(config.training.worker_timeout)
    if distributed.world_size == 1 and config.training.workers > 1:
        threads = default_threads(config.training, config.training.workers)
        report = train_with_workers(config, out, listeners, started=started, threads=threads, pinned=pinned)
        return RunResult.from_dict(report)
    torch.set_num_threads(default_threads(config.training, distributed.local_world_size))
    torch.use_deterministic_algorithms(True)
    # filling uninitialised memory costs time, and no code reads it
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    with distributed:
        train = _train_rank_zero if distributed.is_rank_zero else _train_other_rank
        try:
            return train(config, out, listeners, distributed, started, pinned or {})
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise _memory_error(error, distributed) from error


def train_to_end(config: RunConfig, out: Path, *, name: str, listeners: Sequence[Listener] = ()) -> RunResult:
    """Train, or resume, one run of several; raise `InterruptedTrainingError` where a signal stopped it."""
    run_result = train_run(config, out, listeners=listeners)
    if not run_result.is_finished:
        raise InterruptedTrainingError(
            f"{run_result.reason} stopped {name} at {run_result.unit} {run_result.step}: the same command resumes"
        )
    return run_result


def _memory_error(error: Exception, distributed: Distributed) -> TrainingError:
    """Name the process that ran out of memory, and what to do."""
    process = f"rank {distributed.rank} ran" if distributed.world_size > 1 else "the training ran"
    reason = (str(error).splitlines() or ["no reason given"])[0]
    return TrainingError(
        f"{process} out of memory ({reason:.200}): free memory and repeat the command to resume from the last "
        "checkpoint, or lower --batch-tokens or --data.max_length in a new run"
    )


def build_seed_procedure(context: RunContext) -> TrainingProcedure:
    """Train one model, or one for each of several seeds."""
    assert isinstance(context.config, FineTunedRun)
    if context.config.fine_tuning.seeds == 1:
        return BatchProcedure(context)
    return MultiSeedProcedure(context, train_run)


def build_story_procedure(context: RunContext) -> TrainingProcedure:
    """Train a memory network with all restarts in parallel, or another model with one restart after another."""
    config = context.config
    assert isinstance(config, StoryQARun)
    if config.architecture == MEMORY_NETWORK:
        return MemoryNetworkProcedure(context)
    return BatchProcedure(context) if config.training.restarts == 1 else RestartProcedure(context, train_run)


def _train_rank_zero(
    config: RunConfig,
    out: Path,
    listeners: Sequence[Listener],
    distributed: Distributed,
    started: float,
    pinned: Mapping[str, Any],
) -> RunResult:
    """Train as rank 0, which decides, reports and writes."""
    _check_out(out)
    directory = RunDirectory(
        out,
        notify=lambda message: notify(listeners, "note", text=message),
        max_checkpoints=config.training.max_checkpoints,
    )
    with directory.lock():
        if config.training.tensorboard:
            listeners = [*listeners, TensorBoardListener(out)]
        run_state = directory.read_run()
        if run_state:
            _check_same_settings(run_state["config"], config, out)
        execution = _RunExecution(RunContext(config, directory, listeners, distributed, started), run_state, pinned)
        if run_state.get("result"):
            run_result = _finished_result(out, run_state)
            execution.check_inputs()
            distributed.broadcast([FINISHED, run_result.step])
            notify(listeners, "note", text=f"{out} is finished: nothing to do (choose another --out to train anew)")
            return run_result
        if run_state and directory.was_interrupted:
            unit = run_state.get("unit", "step")
            text = f"the previous run was interrupted at {unit} {directory.last_step()}; resuming"
            notify(listeners, "note", text=text)
        if not SPINNING_IS_LIMITED and not config.training.threads:
            _notify_once(listeners, SPINNING_NOTE)
        execution.prepare()
        distributed.broadcast([READY, 0.0])
        synchronize_run_directory(directory, distributed)
        return execution.train()


def _finished_result(out: Path, run_state: dict[str, Any]) -> RunResult:
    result = run_state["result"]
    where = f"{out / 'run.json'}: result"
    return RunResult(
        out,
        result["step"],
        reason=FINISHED_BEFORE,
        seconds=result["seconds"],
        metrics=result["metrics"],
        metric=result["metric"],
        unit=run_state.get("unit", "step"),
        verdict=Verdict.from_dict(result.get("verdict"), where=where),
        summary=ModelSummary.from_dict(result.get("summary"), where=where),
    )


def _notify_once(listeners: Sequence[Listener], note: str) -> None:
    if note not in _sent_notes:
        _sent_notes.add(note)
        notify(listeners, "note", text=note)


def _train_other_rank(
    config: RunConfig,
    out: Path,
    listeners: Sequence[Listener],
    distributed: Distributed,
    started: float,
    pinned: Mapping[str, Any],
) -> RunResult:
    """Train as another rank, with the files that rank 0 has prepared."""
    status, step = distributed.broadcast([0.0, 0.0])
    if status == FINISHED:
        return RunResult(out, int(step), reason=FINISHED_BEFORE, seconds=0.0, metrics={}, is_rank_zero=False)
    if distributed.is_multi_node and distributed.is_local_rank_zero:
        notify(listeners, "note", text="training with rank 0, whose machine reports and saves the model")
    directory = RunDirectory(out, max_checkpoints=config.training.max_checkpoints)
    synchronize_run_directory(directory, distributed)
    context = RunContext(config, directory, listeners=[], distributed=distributed, start_time=started)
    execution = _RunExecution(context, directory.read_run(), pinned)
    execution.prepare()
    return execution.train()


def _check_out(out: Path) -> None:
    """Raise `UsageError` where `out` is neither new, empty nor a run directory."""
    kind = folder_kind(out)
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: choose an empty or new folder for --out")
    if kind == "other":
        raise UsageError(f"{out} holds other files: choose an empty or new folder for --out")
    if kind == "model":
        raise UsageError(f"{out} holds a model that is not a run: pass it to --from and choose a new folder for --out")


def _check_same_settings(saved_config: dict[str, Any], config: RunConfig, out: Path) -> None:
    """Raise `ConfigError` where a resumed run has other settings than it began with, with those that differ."""
    # parsed first: a setting that a later version added gets its default
    saved = flatten(read_run(saved_config, where=str(out / "run.json")).to_dict())
    current = flatten(config.to_dict())
    differences = [
        f"{path}: {saved.get(path)!r} there, {current.get(path)!r} now"
        for path in sorted(saved.keys() | current.keys())
        if saved.get(path) != current.get(path) and path.removeprefix("training.") not in RESUMABLE_SETTINGS
    ]
    if differences:
        raise ConfigError(
            f"{out} holds a run with other settings ({'; '.join(differences)}): "
            "repeat its own command to resume it, or choose another --out"
        )


class _RunExecution:
    """Executes a run, from its start or its last checkpoint to its end or an interruption."""

    def __init__(self, context: RunContext, run_state: dict[str, Any], pinned: Mapping[str, Any]) -> None:
        self.context = context
        self.run_state = run_state
        self.pinned = pinned
        self.procedure: TrainingProcedure = resolve(TASKS[context.config.task].procedure)(context)

    def prepare(self) -> None:
        """Prepare the data and resolve the settings; a new run writes both to run.json, a resumed one checks them."""
        context = self.context
        run_state = self.run_state
        if run_state:
            context.directory.check_inputs(run_state["files"])
        self.procedure.prepare()
        if run_state:
            check_digests(run_state["data_digests"], self.procedure.digests, context.config, context.directory.path)
        is_new = not run_state
        resolved = self._resolve_settings() if is_new else run_state["resolved"]
        missing = sorted(self.procedure.resolved_names - resolved.keys())
        if missing:
            path = context.directory.path / "run.json"
            raise CheckpointError(
                f"{path}: resolved.{missing[0]} is missing: restore it, or start anew with another --out"
            )
        if "threads" in resolved and not context.config.training.threads and context.distributed.world_size == 1:
            torch.set_num_threads(resolved["threads"])
        if is_new:
            self.run_state = {
                "config": context.config.to_dict(),
                "data_digests": self.procedure.digests,
                "files": context.directory.digest_inputs(),
                "unit": self.procedure.unit,
                "resolved": resolved,
                "environment": _environment(context.distributed),
            }
            context.directory.write_run(self.run_state)

    def check_inputs(self) -> None:
        """Check a finished run against its data and models; of those that are gone, only say that they are."""
        config = self.context.config
        folder = self.context.directory.path
        recorded = self.run_state["data_digests"]
        missing_files = find_missing_files(config)
        missing_models = find_missing_models(config)
        unchecked = {*missing_models, *(recorded.keys() - config.models.keys() if missing_files else ())}
        digests = {name: digest for name, digest in recorded.items() if name not in unchecked}
        check_digests(digests, self.procedure.compute_digests(digests), config, folder)
        missing = [*missing_files, *missing_models.values()]
        if missing:
            self.context.notify(
                f"{folder} was trained with what is no longer there ({', '.join(missing)}): that it is unchanged was "
                "not checked"
            )

    def _resolve_settings(self) -> dict[str, Any]:
        """Settings that are fixed when a run starts: pinned ones, and where these are incomplete, measured ones."""
        if self.procedure.resolved_names <= set(self.pinned):
            return dict(self.pinned)
        return {**self.procedure.resolve_settings(), **self.pinned}

    def train(self) -> RunResult:
        """Train until the plan is done or a signal arrives."""
        folder = self.context.directory.path
        listeners = self.context.listeners
        is_rank_zero = self.context.distributed.is_rank_zero
        unit = self.procedure.unit
        self._announce_plan()
        training = self.procedure.train(self.run_state["resolved"])
        if training.reason.startswith("SIG") or not is_rank_zero:
            notify(listeners, "stop", reason=training.reason, step=training.step, unit=unit, resumable=True)
            return RunResult(
                folder,
                training.step,
                reason=training.reason,
                seconds=training.seconds,
                metrics={},
                unit=unit,
                is_rank_zero=is_rank_zero,
            )
        verdict = training.verdict.to_dict() if training.verdict is not None else None
        result = {
            "step": training.step,
            "seconds": training.seconds,
            **training.metadata,
            "metric": training.metric,
            "metrics": training.metrics,
            "verdict": verdict,
            "summary": training.summary.to_dict() if training.summary is not None else None,
        }
        self.context.directory.write_run({**self.run_state, "result": result})
        notify(
            listeners,
            "done",
            folder=str(folder),
            step=training.step,
            unit=unit,
            metrics=training.metrics,
            seconds=training.seconds,
            reason=training.reason,
            verdict=verdict,
        )
        return RunResult(
            folder,
            training.step,
            reason=training.reason,
            seconds=training.seconds,
            metrics=training.metrics,
            metric=training.metric,
            unit=unit,
            verdict=training.verdict,
            summary=training.summary,
        )

    def _announce_plan(self) -> None:
        """Send the plan event, with a warning where a resumed run cannot promise the same bits."""
        plan = self.procedure.plan(self.run_state["resolved"])
        before = self.run_state["environment"]
        changes = [
            f"{name} {before.get(name)} → {version}"
            for name, version in _environment(self.context.distributed).items()
            if before.get(name) != version
        ]
        lines = [*plan.lines]
        if changes:
            lines.append(f"the same bits as without the interruption are not promised: {', '.join(changes)}")
        notify(self.context.listeners, "plan", lines=lines, parameters=plan.num_parameters, seconds=plan.seconds)


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
