"""The config of a whole run, one class per task, as recipe files and run directories store it.

A task's class has only the settings that mean something to it. `build_run` builds the config of a new run, `read_run`
reads one from its JSON values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Self

from regard.config.data import DataConfig, TokenizerConfig
from regard.config.settings import Config, flatten, knob, nest
from regard.config.training import (
    ComputeConfig,
    LoraConfig,
    TrainableConfig,
    TrainingConfig,
)
from regard.errors import ConfigError, nearest
from regard.registry import TASKS, resolve

LORA_ARCHITECTURES = ("transformer", "pretrained", "bert", "gpt")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """What the runs of all tasks share."""

    architecture_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # architecture → settings by dotted path
    # prefix of settings → the architectures that read them; the first match counts, other settings are for all
    architecture_settings: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    task: str = knob("", "Task to train.")
    data: DataConfig = knob(DataConfig, "Data files.")
    training: ComputeConfig = knob(ComputeConfig, "Training.")

    @property
    def architecture(self) -> str:
        """Model architecture; the only one of the task, unless it is a setting."""
        return next(iter(TASKS[self.task].experiments))

    @property
    def test_files(self) -> tuple[str, ...]:
        """Files that are scored at the end."""
        return ()

    @property
    def files(self) -> dict[str, tuple[str, ...]]:
        """Data files by split, without splits that have none."""
        files = {"train": self.data.train, "valid": self.data.valid, "test": self.test_files}
        return {split: paths for split, paths in files.items() if paths}

    @property
    def models(self) -> dict[str, str]:
        """Models that the run starts from or reads, by the name of their digest."""
        return {}

    @property
    def is_distillation(self) -> bool:
        """Whether a student is trained."""
        return False

    def check(self) -> None:
        for path, value in self.changed_settings().items():
            matches = (names for prefix, names in self.architecture_settings.items() if path.startswith(prefix))
            architectures = next(matches, (self.architecture,))
            if self.architecture not in architectures:
                own_architectures = [name for name in architectures if name in TASKS[self.task].experiments]
                raise ConfigError(
                    f"{path} ({value}) means nothing to --arch {self.architecture}: it is for --arch "
                    f"{' or '.join(own_architectures)}"
                )

    @classmethod
    def build(cls, settings: Mapping[str, Any], recipe: Mapping[str, Any] | None = None, *, where: str = "") -> Self:
        """Build from settings by dotted path, on top of a recipe, on top of the defaults of the architecture.

        `where` is the recipe's name in messages.
        """
        paths = [setting.path for setting in cls.knobs()]
        settings = flatten(settings)  # a whole group may be a mapping
        for path in settings:
            if path not in paths:
                raise cls.unknown_setting(path, paths)
        chosen = {**flatten(recipe or {}), **settings}
        defaults = cls.architecture_defaults.get(cls.choose_architecture(chosen), {})
        return cls.from_dict(nest({**defaults, **chosen}), where=where)

    @classmethod
    def choose_architecture(cls, settings: Mapping[str, Any]) -> str:
        """Architecture that these settings request."""
        return str(settings.get("architecture", ""))

    @classmethod
    def unknown_setting(cls, path: str, known: Iterable[str]) -> ConfigError:
        """Error about a setting that this task does not have, with the tasks that have it."""
        task = next(setting.default for setting in cls.knobs(deep=False) if setting.path == "task")
        owners = tasks_with(path)
        hint = f": it is a setting of {', '.join(owners)}" if owners else nearest(path, known)
        return ConfigError(f"unknown setting {path!r} of the task {task}{hint}")

    def changed_settings(self) -> dict[str, Any]:
        """Settings, by dotted path, that differ from their defaults."""
        values = {setting: attrgetter(setting.path)(self) for setting in self.knobs()}
        return {setting.path: value for setting, value in values.items() if value != setting.default}


@dataclass(frozen=True, kw_only=True)
class BatchRun(RunConfig):
    """A run that trains in batches of tokens, possibly from pretrained weights."""

    preset_sizes: ClassVar[tuple[str, ...]] = ()  # settings that a preset decides
    model_settings: ClassVar[tuple[str, ...]] = ()  # prefixes of settings that a pretrained model decides

    pretrained: str = knob(
        "", "Pretrained model that training starts from: a run, a model folder, or a name on the hub.", metavar="MODEL"
    )
    allow_unused: bool = knob(False, "Start from a pretrained model although whole layers of its weights are not used.")
    training: TrainingConfig = knob(TrainingConfig, "Training.")
    tokenizer: TokenizerConfig = knob(TokenizerConfig, "Tokenizer.")
    trainable: TrainableConfig = knob(TrainableConfig, "Weights that are trained.")
    lora: LoraConfig = knob(LoraConfig, "Low-rank adaptation (LoRA).")

    @property
    def preset(self) -> str:
        """Model size; that of the pretrained model, unless it is a setting."""
        return "auto"

    @property
    def models(self) -> dict[str, str]:
        """Models that the run starts from or reads, by the name of their digest."""
        return {"start": self.pretrained} if self.pretrained else {}

    @property
    def is_tokenizer_trained(self) -> bool:
        """Whether the run trains a tokenizer, or the subwords that extend one."""
        return not self.pretrained or bool(self.tokenizer.extend)

    def check(self) -> None:
        if self.lora.rank:
            self._check_lora()
        if self.tokenizer.extend:
            self._check_extension()
        super().check()
        for path, value in self.changed_settings().items():
            if self.pretrained and path.startswith(self.model_settings):
                raise ConfigError(
                    f"{path} ({value}) is for a model from scratch, and --from {self.pretrained} is one with its own "
                    "settings: leave out one of the two"
                )
            if path in self.preset_sizes and self.preset != "custom":
                raise ConfigError(f"{path} ({value}) is a size that the preset gives: add --preset custom")
        if self.tokenizer.vocab_size and not self.is_tokenizer_trained:
            alternative = "" if "tokenizer.extend" in self.excluded else ", or add --extend-vocabulary"
            raise ConfigError(
                f"tokenizer.vocab_size ({self.tokenizer.vocab_size}) is for a new vocabulary, and --from "
                f"{self.pretrained} has its own: leave it out{alternative}"
            )

    def _check_lora(self) -> None:
        if not self.pretrained:
            raise ConfigError(
                f"LoRA (--lora {self.lora.rank}) adapts a pretrained Transformer: add --from MODEL, or leave it out"
            )
        if self.architecture not in LORA_ARCHITECTURES:
            raise ConfigError(
                f"LoRA (--lora {self.lora.rank}) adapts Transformers, not --arch {self.architecture}: leave out one of "
                "the two"
            )

    def _check_extension(self) -> None:
        if not self.pretrained:
            raise ConfigError("tokenizer.extend (--extend-vocabulary) extends that of a model: add --from MODEL")
        if self.lora.rank and self.lora.keep_adapter:
            raise ConfigError(
                "an adapter fits the vocabulary of its base model, not an extended one: leave out --lora.keep_adapter, "
                "or --extend-vocabulary"
            )


# ---- runs by the name of their task


def run_config_class(task: str) -> type[RunConfig]:
    """Config class of a task's runs.

    >>> run_config_class("tag").__name__
    'TagRun'
    """
    run_config: type[RunConfig] | None = resolve(TASKS[task].run_config)
    if run_config is None:
        names = ", ".join(trained_tasks())
        raise ConfigError(f"no model is trained for the task {task}: one of {names} is needed")
    return run_config


def trained_tasks() -> list[str]:
    """Names of the tasks that models are trained for."""
    return [name for name, task in TASKS.items() if task.run_config is not None]


def tasks_with(path: str) -> list[str]:
    """Names of the tasks that have a setting.

    >>> tasks_with("masking.mask_rate"), tasks_with("passages")
    (['masked-lm'], ['answer'])
    """
    owners = []
    for name in trained_tasks():
        config = run_config_class(name)
        if path in {setting.path for deep in (True, False) for setting in config.knobs(deep=deep)}:
            owners.append(name)
    return owners


def build_run(
    task: str, settings: Mapping[str, Any], recipe: Mapping[str, Any] | None = None, *, where: str = ""
) -> RunConfig:
    """Build the config of a new run from settings by dotted path, on top of a recipe.

    >>> build_run("elmo", {"training.steps": 5}).training.label_smoothing
    0.0
    """
    return run_config_class(task).build(settings, recipe, where=where)


def read_run(values: Mapping[str, Any], *, where: str = "") -> RunConfig:
    """Read the config of a run from its JSON values, which name its task."""
    if not isinstance(values.get("task"), str):
        raise ConfigError(f'{where}: it names no task: add "task": one of {", ".join(trained_tasks())}')
    return run_config_class(values["task"]).from_dict(values, where=where)
