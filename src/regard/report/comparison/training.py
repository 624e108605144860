"""Entries of `--arch` to finished runs: one run for each seed, all on the same data and within the same time.

OUT/NAME/seed-N/    run directory of an architecture and a seed
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regard.checkpoint.hub import resolve_model
from regard.checkpoint.model_dir import folder_task
from regard.checkpoint.run_dir import RunDirectory
from regard.config.architecture import Architecture, find_architecture
from regard.config.data import DataConfig
from regard.config.runs import RunConfig, build_run
from regard.errors import UsageError, nearest
from regard.formatting import format_count, format_duration
from regard.registry import TASKS
from regard.report.info import describe_folder
from regard.training.listeners import Listener
from regard.training.run import train_run

Notify = Callable[[str], object]
_UNSAFE = re.compile(r"[^\w.+-]+")  # in names of folders


@dataclass(frozen=True)
class Candidate:
    """An architecture that takes part in a comparison, with the settings of its runs."""

    name: str
    architecture: Architecture
    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted path; they override those of the architecture

    @property
    def folder_name(self) -> str:
        """Folder of its runs.

        >>> Candidate("tuned:runs/bert", Architecture()).folder_name
        'tuned-runs-bert'
        """
        return _UNSAFE.sub("-", self.name).strip("-")

    @property
    def is_pretrained(self) -> bool:
        """Whether it starts from another model, or reads the features of one."""
        return bool(self.architecture.model_setting)

    def run_settings(self, shared: Mapping[str, Any], *, preset: str, minutes: float) -> dict[str, Any]:
        """Settings of its runs: those that all share, those of the architecture, its own."""
        settings: dict[str, Any] = {**shared}
        if preset and self.architecture.model_setting != "pretrained":  # a pretrained model has its size
            settings["preset"] = preset
        if minutes and self.architecture.has_time_budget:
            settings["training.minutes"] = minutes
        return {**settings, **self.architecture.settings, **self.settings}


@dataclass(frozen=True)
class ComparedRuns:
    """A model of a comparison: its finished runs, one for each seed; without runs, the baseline."""

    name: str
    folders: Sequence[Path]
    is_pretrained: bool | None = None  # None: unknown, as of a folder that is no run


def parse_candidates(entries: Sequence[str], task: str, settings: Sequence[str] = ()) -> list[Candidate]:
    """Parse entries `ARCH` or `NAME=ARCH`, and their settings: `NAME:PATH=VALUE`, or `PATH=VALUE` for all.

    >>> candidates = parse_candidates(["rnn:mean", "small=rnn:mean"], "classify", ["small:preset=tiny"])
    >>> [(candidate.name, candidate.settings) for candidate in candidates]
    [('rnn:mean', {}), ('small', {'preset': 'tiny'})]
    """
    candidates: dict[str, Candidate] = {}
    for entry in entries:
        name, is_named, kind = entry.partition("=")
        kind = kind.strip() if is_named else name.strip()
        candidate = Candidate(name.strip(), find_architecture(kind, task))
        if candidate.name in candidates:
            raise UsageError(f"the architecture {candidate.name} is named twice: write NAME={kind} to train both")
        candidates[candidate.name] = candidate
    for setting in settings:
        path, has_value, value = setting.partition("=")
        name, _, path = path.rpartition(":")
        if not has_value or not path:
            raise UsageError(f"{setting!r} must be PATH=VALUE, or NAME:PATH=VALUE for one architecture")
        if name and name not in candidates:
            raise UsageError(
                f"{setting!r}: no architecture is named {name!r}{nearest(name, candidates)}: "
                f"there are {', '.join(candidates)}"
            )
        for changed in [name] if name else candidates:
            overrides = {**candidates[changed].settings, path: value}
            candidates[changed] = replace(candidates[changed], settings=overrides)
    _check_folders(list(candidates.values()))
    return list(candidates.values())


def _check_folders(candidates: Sequence[Candidate]) -> None:
    """Raise where two architectures would write to one folder."""
    names: dict[str, str] = {}
    for candidate in candidates:
        other = names.setdefault(candidate.folder_name, candidate.name)
        if other != candidate.name or not candidate.folder_name:
            raise UsageError(
                f"{candidate.name!r} and {other!r} would have one folder, {candidate.folder_name!r}: write NAME=… to "
                "name one of them"
            )


@dataclass(frozen=True)
class TrainingPlan:
    """Which models are trained, on which data, with which seeds, and for how long."""

    task: str
    candidates: Sequence[Candidate]
    settings: Mapping[str, Any]  # that all runs share, by dotted path: the data, and others
    seeds: Sequence[int] = (1,)
    minutes: float = 10.0  # of each run; 0: as many as its settings say
    preset: str = ""

    def __post_init__(self) -> None:
        if not self.data.train:
            raise UsageError("the training data are missing: name FILES before the options")
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise UsageError(f"each seed counts once, as in --seeds 1,2,3: {', '.join(map(str, self.seeds)) or 'none'}")

    @property
    def data(self) -> DataConfig:
        """Training and validation files, and how all files are read."""
        prefix = "data."
        paths = {path: value for path, value in self.settings.items() if path.startswith(prefix)}
        return DataConfig().override({path.removeprefix(prefix): value for path, value in paths.items()})

    def run_configs(self) -> dict[str, list[RunConfig]]:
        """Configs of all runs by architecture, one for each seed; of the baseline, none."""
        configs: dict[str, list[RunConfig]] = {}
        for candidate in self.candidates:
            settings = candidate.run_settings(self.settings, preset=self.preset, minutes=self.minutes)
            seeds = () if candidate.architecture.is_baseline else self.seeds
            configs[candidate.name] = [build_run(self.task, {**settings, "training.seed": seed}) for seed in seeds]
        return configs

    def describe(self) -> str:
        """Number of runs, and how long they take at most."""
        trained = [candidate for candidate in self.candidates if not candidate.architecture.is_baseline]
        timed = [candidate for candidate in trained if candidate.architecture.has_time_budget]
        counts = format_count(len(trained), "architecture")
        if len(self.seeds) > 1:
            counts += f" × {len(self.seeds)} seeds"
        if not timed or not self.minutes:
            return f"{counts} to train"
        total = format_duration(60 * self.minutes * len(timed) * len(self.seeds))
        untimed = "" if len(timed) == len(trained) else "; the others train their number of epochs"
        return f"{counts} to train, {format_duration(60 * self.minutes)} each, {total} in all{untimed}"

    def train(self, out: Path, listeners: Sequence[Listener], notify: Notify) -> list[ComparedRuns]:
        """Train the runs that are not finished; the same call resumes an interrupted one."""
        configs = self.run_configs()  # all of them first: a wrong setting costs no time
        for candidate in self.candidates:
            if candidate.is_pretrained:  # raises for a folder that is no model
                describe_folder(candidate.architecture.settings[candidate.architecture.model_setting])
        notify(self.describe())
        compared = []
        for index, candidate in enumerate(self.candidates, 1):
            folders = []
            for seed, config in zip(self.seeds, configs[candidate.name], strict=False):
                folder = out / candidate.folder_name / f"seed-{seed}"
                caption = f"{index} of {len(self.candidates)}: {candidate.name}, seed {seed}"
                _train_unless_finished(config, folder, caption, listeners, notify)
                folders.append(folder)
            compared.append(ComparedRuns(candidate.name, folders, is_pretrained=candidate.is_pretrained))
        return compared


def _train_unless_finished(
    config: RunConfig, folder: Path, caption: str, listeners: Sequence[Listener], notify: Notify
) -> None:
    """Train a run, or resume it; raise where a signal stopped it."""
    is_finished = bool(RunDirectory(folder).read_run().get("result"))
    notify(f"{caption}: {'finished before' if is_finished else 'training'} ({folder})")
    report = train_run(config, folder, listeners=[] if is_finished else listeners)
    if not report.is_finished:
        raise UsageError(f"{report.reason} stopped {caption} at {report.unit} {report.step}: the same command resumes")


def finished_task(folders: Sequence[str], task: str = "") -> str:
    """Task of finished models; it must be one, and `task` where that is given."""
    tasks = {folder: folder_task(folder) for folder in folders}
    if len(set(tasks.values())) > 1:
        described = ", ".join(f"{folder} is for {name}" for folder, name in tasks.items())
        raise UsageError(f"models of one task are compared: {described}")
    model_task = next(iter(tasks.values()))
    if task and model_task != task:
        raise UsageError(
            f"--task {task}: these models are for {model_task}: leave it out, or add --arch to train others"
        )
    return model_task


def finished_runs(folders: Sequence[str]) -> list[ComparedRuns]:
    """Finished models by the names of their folders."""
    if len(set(folders)) != len(folders):
        raise UsageError("a model is named twice: name each once")
    compared = []
    for folder in folders:
        path = resolve_model(folder)
        config = RunDirectory(path).read_run().get("config")
        compared.append(ComparedRuns(folder, [path], is_pretrained=_is_pretrained(config) if config else None))
    return compared


def _is_pretrained(config: Mapping[str, Any]) -> bool:
    """Whether a run started from another model, or read the features of one, by its config."""
    fine_tuning = config.get("fine_tuning") or {}
    return bool(config.get("pretrained") or fine_tuning.get("features"))


def check_task(task: str) -> str:
    """Return the name of a task whose models are compared; raise for any other."""
    names = compared_tasks()
    if task not in names:
        raise UsageError(
            f"models of the task {task!r} are not compared{nearest(task, names)}: one of {', '.join(names)}"
        )
    return task


def compared_tasks() -> list[str]:
    """Names of the tasks whose models are compared."""
    return [name for name, task in TASKS.items() if task.comparison is not None]
