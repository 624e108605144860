"""A whole run: what a recipe file holds and what a run folder remembers."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from regard.config.data import DataConfig, LanguageConfig, TokenizerConfig
from regard.config.decoding import DecodingConfig
from regard.config.knob import Config, knob
from regard.config.model import (
    ClassifierConfig,
    ElmoConfig,
    MemoryConfig,
    MemoryTrainingConfig,
    RecurrentConfig,
    TranslatorConfig,
)
from regard.config.tasks import OFFERED, refuse
from regard.config.training import ClassifyConfig, TrainingConfig
from regard.errors import ConfigError

TASKS = ("translate", "stories", "language", "classify")
ARCHITECTURES = ("transformer", "rnn", "elmo")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """A whole run; `train --recipe FILE` reads it as JSON."""

    task: str = knob("translate", "what is learned", choices=TASKS)
    preset: str = knob(
        "auto",
        "model size; auto: by the size of the data",
        choices=("auto", "micro", "tiny", "small", "base", "big", "custom"),
    )
    arch: str = knob("transformer", "what kind of model reads and writes", choices=ARCHITECTURES)
    start_from: str = knob("", "a run or model folder to go on from")
    data: DataConfig = knob(DataConfig, "which files")
    tokenizer: TokenizerConfig = knob(TokenizerConfig, "how text becomes tokens")
    model: TranslatorConfig = knob(TranslatorConfig, "the model; used when preset is custom")
    recurrent: RecurrentConfig = knob(
        RecurrentConfig, "the model with --arch rnn; the preset gives its sizes unless it is custom"
    )
    training: TrainingConfig = knob(TrainingConfig, "how it is trained")
    decoding: DecodingConfig = knob(DecodingConfig, "how translations are searched for")
    memory: MemoryConfig = knob(MemoryConfig, "the memory network that answers questions about stories")
    stories: MemoryTrainingConfig = knob(MemoryTrainingConfig, "how memory networks are trained")
    elmo: ElmoConfig = knob(ElmoConfig, "the language model; the preset gives its sizes unless it is custom")
    language: LanguageConfig = knob(LanguageConfig, "how running text becomes rows of tokens")
    classifier: ClassifierConfig = knob(
        ClassifierConfig, "the classifier; the preset gives its sizes unless it is custom"
    )
    classify: ClassifyConfig = knob(ClassifyConfig, "what a classifier has beside its own words")

    def check(self) -> None:
        values = {known: attrgetter(known.path)(self) for known in self.knobs()}
        refuse(self.task, {known.path: value for known, value in values.items() if value != known.default})
        offered = OFFERED.get(self.task, ARCHITECTURES)
        if self.arch not in offered:
            raise ConfigError(f"arch must be {' or '.join(offered)} for the task {self.task}, not {self.arch}")
        if self.classify.seeds > 1 and self.training.workers > 1:
            raise ConfigError("several seeds are trained one after the other by one process: leave out --workers")
        if self.task == "stories" and self.training.precision == "bf16":
            raise ConfigError("memory networks are trained in float32: leave out --precision bf16")
