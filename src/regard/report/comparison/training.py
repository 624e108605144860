"""Entries of `--arch` to finished runs: one run for each seed, all on the same data and within the same time.

OUT/NAME/seed-N/    run directory of an architecture and a seed
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from regard.checkpoint.hub import resolve_model
from regard.checkpoint.model_dir import folder_task
from regard.checkpoint.run_dir import RunDirectory
from regard.config.architecture import Architecture, find_architecture
from regard.config.data import DataConfig
from regard.config.runs import RunConfig, build_run, read_run
from regard.data.lines import open_bytes
from regard.errors import UsageError, nearest
from regard.formatting import format_count, format_duration
from regard.registry import TASKS
from regard.report.info import describe_folder
from regard.training.listeners import Listener
from regard.training.run import train_to_end

Notify = Callable[[str], object]
SHARED_SETTINGS = {  # beginnings of settings that all runs of a comparison share → what sets them
    "training.seed": "--seeds",
    "training.minutes": "--minutes",
    "data.train": "FILES",
    "data.valid": "--valid",
    "data.read.": "the options for reading files, such as --text and --label",
}
_UNSAFE = re.compile(r"[^\w.+-]+")  # in names of folders


@dataclass(frozen=True)
class Candidate:
    """An architecture that takes part in a comparison, with the settings of its runs."""

    name: str
    architecture: Architecture
    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted path; they override those of the architecture
    minutes: float | None = None  # of each run; None: as all of them

    @property
    def folder_name(self) -> str:
        """Folder of its runs.

        >>> Candidate("tuned:runs/bert", Architecture()).folder_name
        'tuned-runs-bert'
        """
        return _UNSAFE.sub("-", self.name).strip("-")

    def run_settings(self, shared: Mapping[str, Any], *, preset: str, minutes: float) -> dict[str, Any]:
        """Settings of its runs: those that all share, those of the architecture, its own."""
        settings: dict[str, Any] = {**shared}
        if preset and self.architecture.model_setting != "pretrained":  # a pretrained model has its size
            settings["preset"] = preset
        limit = minutes if self.minutes is None else self.minutes
        if limit and self.architecture.is_timed:
            settings["training.minutes"] = limit
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
        _check_setting(setting, name, path, candidates)
        trained = [candidate for candidate in candidates.values() if not candidate.architecture.is_baseline]
        for candidate in [candidates[name]] if name else trained:
            candidates[candidate.name] = replace(candidate, settings={**candidate.settings, path: value})
    _check_folders(list(candidates.values()))
    return list(candidates.values())


def _check_setting(setting: str, name: str, path: str, candidates: Mapping[str, Candidate]) -> None:
    """Raise for a setting of an unknown architecture or of a baseline, and for one that all runs share."""
    if name and name not in candidates:
        raise UsageError(
            f"{setting!r}: no architecture is named {name!r}{nearest(name, candidates)}: "
            f"there are {', '.join(candidates)}"
        )
    if name and candidates[name].architecture.is_baseline:
        raise UsageError(f"{setting!r}: {name} is a baseline, which has no settings: leave it out")
    for prefix, option in SHARED_SETTINGS.items():
        if path == prefix or (prefix.endswith(".") and path.startswith(prefix)):
            raise UsageError(f"{setting!r}: all runs of a comparison have the same {path}: set it by {option}")


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
        for path, argument in {"training.seed": "seeds", "training.minutes": "minutes"}.items():
            if path in self.settings:
                raise UsageError(f"{path} has no effect here: pass {argument} to the plan instead")

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

    def run_minutes(self) -> dict[str, float]:
        """Time limit of each run by architecture, as its config has it, without those that have none."""
        minutes = {name: configs[0].training.minutes for name, configs in self.run_configs().items() if configs}
        return {name: limit for name, limit in minutes.items() if limit}

    def describe(self) -> str:
        """Number of runs, and how long they take at most."""
        num_trained = sum(not candidate.architecture.is_baseline for candidate in self.candidates)
        minutes = self.run_minutes()
        counts = format_count(num_trained, "architecture")
        if len(self.seeds) > 1:
            counts += f" × {len(self.seeds)} seeds"
        if not minutes:
            return f"{counts} to train"
        bounds = dict.fromkeys((min(minutes.values()), max(minutes.values())))
        each = " to ".join(format_duration(60 * bound) for bound in bounds)
        total = format_duration(60 * sum(minutes.values()) * len(self.seeds))
        untimed = "" if len(minutes) == num_trained else "; the others train their number of epochs"
        return f"{counts} to train, {each} each, {total} in all{untimed}"

    def train(self, out: Path, listeners: Sequence[Listener], notify: Notify) -> list[ComparedRuns]:
        """Train the runs that are not finished; the same call resumes an interrupted one."""
        configs = self.run_configs()  # all of them first: a wrong setting costs no time
        self._check_inputs(configs)
        notify(self.describe())
        compared = []
        for index, candidate in enumerate(self.candidates, 1):
            folders = []
            for config in configs[candidate.name]:
                folder = out / candidate.folder_name / f"seed-{config.training.seed}"
                caption = f"{index} of {len(self.candidates)}: {candidate.name}, seed {config.training.seed}"
                _train_unless_finished(config, folder, caption, listeners, notify)
                folders.append(folder)
            is_pretrained = any(config.models for config in configs[candidate.name])
            compared.append(ComparedRuns(candidate.name, folders, is_pretrained=is_pretrained))
        return compared

    def _check_inputs(self, configs: Mapping[str, Sequence[RunConfig]]) -> None:
        """Raise for a folder that is no model, and for a data file that does not exist."""
        models = (config.models.values() for config in chain.from_iterable(configs.values()))
        for model in dict.fromkeys(chain.from_iterable(models)):
            describe_folder(model)
        for file in (*self.data.train, *self.data.valid):
            with open_bytes(file):
                pass


def _train_unless_finished(
    config: RunConfig, folder: Path, caption: str, listeners: Sequence[Listener], notify: Notify
) -> None:
    """Train a run, or resume it; raise where a signal stopped it."""
    is_finished = bool(RunDirectory(folder).read_run().get("result"))
    notify(f"{caption}: {'finished before' if is_finished else 'training'} ({folder})")
    train_to_end(config, folder, name=caption, listeners=[] if is_finished else listeners)


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
        config = read_run_config(path)
        compared.append(ComparedRuns(folder, [path], is_pretrained=None if config is None else bool(config.models)))
    return compared


def read_run_config(folder: Path) -> RunConfig | None:
    """Config of a run; None for a folder that is no run."""
    config = RunDirectory(folder).read_run().get("config")
    return None if config is None else read_run(config, where=str(folder / "run.json"))


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
