"""Check a claim: train its models, measure each in the same way, and decide its rules."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from recipes.claims.claim import DATA, ClaimConfig
from recipes.claims.data import ClaimData, check_data, prepare_data
from recipes.claims.measure import Measurement, Subject
from recipes.claims.result import ClaimResult, RuleResult
from recipes.claims.rules import Interval, Rule
from recipes.datasets import find_minilm
from regard import __version__
from regard.checkpoint.atomic import json_bytes, make_folder, read_json, write_file
from regard.checkpoint.native import STORY_TASK
from regard.config.architecture import parse_architecture
from regard.config.runs import RunConfig, build_run, run_config_class
from regard.config.story_run import MEMORY_NETWORK
from regard.errors import ConfigError, nearest
from regard.formatting import format_duration
from regard.hardware import processor_name
from regard.training.listeners import Listener
from regard.training.run import train_to_end

MEASURED = "measured.json"  # what is measured so far, in the folder of a claim's runs
REFERENCE = "@"  # before the name of a base, or of MiniLM, in a setting
MINILM = "minilm"
DEFAULT_TASK = "translate"
THREADS = "training.threads"
DEFAULT_PRECISION = "float32"  # the same bits everywhere, and no time for measuring another
QUICK_SETTINGS = {"training.epochs": 0, "training.minutes": 0, "training.stop_at": 0}
QUICK_MEMORY_SETTINGS = {"training.epochs": 1, "training.linear_start_epochs": 1, "training.restarts": 1}
Report = Callable[[str], object]


@dataclass(frozen=True)
class CheckContext:
    """What the checks of all claims share: folders, threads, listeners."""

    out: Path  # of the runs
    data_root: Path | None = None  # of named data sets
    threads: int = 1
    is_quick: bool = False  # a short trial: tiny data and two updates
    listeners: Sequence[Listener] = ()
    report: Report = field(default=lambda text: None)


class ClaimCheck:
    """Check of one claim. Its folder keeps data, runs and finished measurements, so that a check can resume.

    Runs with another number of threads have a folder of their own: it decides what is reached within a time limit.
    """

    def __init__(self, name: str, config: ClaimConfig, context: CheckContext) -> None:
        self.name = name
        self.config = config
        self.context = context
        trial = "-quick" if context.is_quick else ""
        self.folder = context.out / f"{name}-{config.run_digest()[:8]}-threads{context.threads}{trial}"
        self.models = {model: {**config.settings, **entry} for model, entry in config.models.items()}

    def run(self) -> ClaimResult:
        """Train and measure what is not measured yet, one seed after another; then judge."""
        self.check()
        report = self.context.report
        for seed in self.seeds:
            for model in self.config.models:
                if self._key(model, seed) in self.measured:
                    continue
                start = time.monotonic()
                report(f"{self.name}: {model}, seed {seed}")
                measurement, earlier_seconds = self._measure(model, seed)
                seconds = time.monotonic() - start + earlier_seconds
                self._save(self._key(model, seed), {**measurement.to_dict(), "seconds": round(seconds, 2)})
                numbers = ", ".join(f"{name} {value:.4g}" for name, value in measurement.numbers.items())
                report(f"{self.name}: {model}, seed {seed}: {numbers} ({format_duration(seconds)})")
        return self.judge()

    def check(self) -> None:
        """Check data, parameters of the measure and numbers of the rules, and build the configs of all runs.

        Nothing is trained before.
        """
        row = self.config.measure_row
        row.check(self.config.parameters)
        for rule in self.config.rules:
            rule.check_numbers(row.number_names(self.config.parameters))
        for settings in (*self.config.bases.values(), *self.models.values()):
            check_data(settings.get(DATA, self.config.data))
        if not row.trains:
            return
        for settings in (*self.config.bases.values(), *self.models.values()):
            self.build_config(settings, ClaimData(train=("train",), test=("test",)), self.seeds[0])

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the claim; of a short trial, the first one that is needed."""
        return self.config.seeds[:1] if self.context.is_quick else self.config.seeds

    @cached_property
    def measured(self) -> dict[str, Any]:
        """What is measured so far, by model and seed."""
        path = self.folder / MEASURED
        return read_json(path) if path.exists() else {}

    def _key(self, model: str, seed: int) -> str:
        return f"{model}-{seed}"

    def _save(self, key: str, values: Mapping[str, Any]) -> None:
        self.measured[key] = dict(values)
        make_folder(self.folder)
        write_file(self.folder / MEASURED, json_bytes(self.measured))

    def _measure(self, model: str, seed: int) -> tuple[Measurement, float]:
        """Measure one model with one seed; also return seconds of training before an interruption."""
        row = self.config.measure_row
        data = self._prepare_data(self.models[model], seed)
        settings = self._resolve_bases(self.models[model], seed)
        parameters = {**self.config.parameters, **(row.quick if self.context.is_quick else {})}
        folder = self.folder / self._key(model, seed)
        run = None
        earlier_seconds = 0.0
        if row.trains:
            run = self.build_config(settings, data, seed)
            earlier_seconds = self._train(run, folder)
        else:
            torch.set_num_threads(self.context.threads)
        subject = Subject(settings, seed, threads=self.context.threads, folder=folder, data=data, run=run)
        return row.resolve()(subject, **parameters), earlier_seconds

    def _train(self, run: RunConfig, folder: Path) -> float:
        """Train or resume a run; return the seconds that it took before this process."""
        start = time.monotonic()
        training = train_to_end(run, folder, name=str(folder), listeners=self.context.listeners)
        return max(0.0, training.seconds - (time.monotonic() - start))

    def _prepare_data(self, settings: Mapping[str, Any], seed: int) -> ClaimData:
        """Data of a model or base: its own, or those of the claim."""
        context = self.context
        return prepare_data(
            settings.get(DATA, self.config.data),
            context.data_root,
            context.out / "data",
            seed=seed,
            is_quick=context.is_quick,
        )

    def build_config(self, settings: Mapping[str, Any], data: ClaimData, seed: int) -> RunConfig:
        """Config of one run, of a model or of a base."""
        settings = {name: value for name, value in settings.items() if name != DATA}
        if isinstance(settings.get("model"), str):
            settings |= parse_architecture(settings.pop("model"))
        if THREADS in settings:
            raise ConfigError(f"{THREADS} is no setting of a claim: --threads applies to all of its models alike")
        task = str(settings.pop("task", DEFAULT_TASK))
        known = {setting.path for setting in run_config_class(task).knobs()}
        defaults: dict[str, Any] = {THREADS: self.context.threads}
        is_memory_network = task == STORY_TASK and settings.get("architecture", MEMORY_NETWORK) == MEMORY_NETWORK
        if "training.precision" in known and not is_memory_network:
            defaults["training.precision"] = DEFAULT_PRECISION
        if "fine_tuning.test" in known and data.test:
            defaults["fine_tuning.test"] = data.test[0]
        if "fine_tuning.baseline" in known and data.test:
            defaults["fine_tuning.baseline"] = False
        settings = {**defaults, **settings, "training.seed": seed}
        settings |= {"data.train": list(data.train), "data.valid": list(data.valid)}
        if self.context.is_quick:
            quick_settings = {**QUICK_SETTINGS, "training.steps": self.config.measure_row.quick_steps}
            settings |= QUICK_MEMORY_SETTINGS if is_memory_network else quick_settings
        return build_run(task, settings)

    def _resolve_bases(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Replace references to bases by the folders of their runs, which are trained first, with the same seed."""
        resolved = dict(settings)
        for name, value in settings.items():
            if isinstance(value, str) and value.startswith(REFERENCE):
                resolved[name] = str(self._train_base(value.removeprefix(REFERENCE), seed))
        return resolved

    def _train_base(self, name: str, seed: int) -> Path:
        if name == MINILM:
            return find_minilm(self.context.data_root)
        if name not in self.config.bases:
            raise ConfigError(f"unknown base @{name}{nearest(name, [*self.config.bases, MINILM])}")
        folder = self.folder / f"base-{self._key(name, seed)}"
        settings = self.config.bases[name]
        self.context.report(f"{self.name}: base {name}, seed {seed}")
        self._train(self.build_config(settings, self._prepare_data(settings, seed), seed), folder)
        return folder

    def judge(self) -> ClaimResult:
        """Decide every rule by what was measured."""
        measurements = {
            model: [Measurement.from_dict(self.measured[self._key(model, seed)]) for seed in self.seeds]
            for model in self.config.models
        }
        seconds = sum(values["seconds"] for values in self.measured.values())
        return ClaimResult(
            name=self.name,
            config=self.config,
            seeds=self.seeds,
            rules=tuple(judge_rule(rule, measurements) for rule in self.config.rules),
            measurements=measurements,
            machine=describe_machine(self.context.threads),
            minutes=seconds / 60,
        )


def judge_rule(rule: Rule, measurements: Mapping[str, Sequence[Measurement]]) -> RuleResult:
    """Decide a rule by the interval of its quantity over seeds; with one seed, over the examples that have samples.

    >>> from recipes.claims.measure import Measurement
    >>> runs = {"a": [Measurement({"value": value}) for value in (5.0, 6.0, 7.0)]}
    >>> judge_rule(Rule.parse("a > 2"), runs).verdict
    'holds'
    """
    num_seeds = len(next(iter(measurements.values())))
    values = [
        rule.compute({model: runs[index].numbers for model, runs in measurements.items()}) for index in range(num_seeds)
    ]
    unit = "seeds"
    if num_seeds == 1 and all(name in measurements[model][0].samples for model, name in rule.references()):
        samples = {model: runs[0].samples for model, runs in measurements.items()}
        num_examples = len(next(samples[model][name] for model, name in rule.references()))
        values = [
            rule.compute({model: {name: row[index] for name, row in rows.items()} for model, rows in samples.items()})
            for index in range(num_examples)
        ]
        unit = "examples"
    interval = Interval.from_values(values)
    return RuleResult(
        rule.text,
        interval,
        verdict=rule.decide(interval),
        count=len(values),
        unit=unit,
    )


def describe_machine(threads: int) -> dict[str, Any]:
    """Machine and versions that a result was measured with."""
    return {
        "processor": processor_name(),
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "regard": __version__,
    }
