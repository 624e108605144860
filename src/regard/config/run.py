"""A whole run: what a recipe file holds and what a run folder remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from regard.config.data import DataConfig, LanguageConfig, MaskingConfig, TokenizerConfig
from regard.config.decoding import DecodingConfig
from regard.config.gpt import GptConfig
from regard.config.knob import Config, knob
from regard.config.model import (
    TRANSLATOR_PRESETS,
    ClassifierConfig,
    ElmoConfig,
    EncoderConfig,
    MemoryConfig,
    MemoryTrainingConfig,
    RecurrentConfig,
    TaggerConfig,
    TranslatorConfig,
)
from regard.config.tasks import OFFERED, TUNED, refuse
from regard.config.training import AnswerConfig, ClassifyConfig, DistilConfig, TrainingConfig
from regard.errors import ConfigError

TASKS = ("translate", "stories", "language", "classify", "tag", "answer")
ARCHITECTURES = ("transformer", "rnn", "elmo", "bert", "gpt")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """A whole run; `train --recipe FILE` reads it as JSON."""

    task: str = knob("translate", "what is learned", choices=TASKS)
    preset: str = knob(
        "auto",
        "model size; auto: by the size of the data",
        choices=("auto", "micro", "tiny", "mini", "small", "medium", "base", "big", "large", "custom"),
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
    gpt: GptConfig = knob(GptConfig, "the causal language model; the preset gives its sizes unless it is custom")
    bert: EncoderConfig = knob(EncoderConfig, "the encoder; the preset gives its sizes unless it is custom")
    masking: MaskingConfig = knob(MaskingConfig, "which words an encoder learns to tell")
    language: LanguageConfig = knob(LanguageConfig, "how running text becomes rows of tokens")
    classifier: ClassifierConfig = knob(
        ClassifierConfig, "the classifier; the preset gives its sizes unless it is custom"
    )
    tagger: TaggerConfig = knob(TaggerConfig, "the tagger; the preset gives its sizes unless it is custom")
    classify: ClassifyConfig = knob(ClassifyConfig, "how classifiers, taggers and answerers are trained and scored")
    answer: AnswerConfig = knob(AnswerConfig, "how passages are read that questions are answered from")
    distil: DistilConfig = knob(DistilConfig, "a student with fewer layers: what it learns from its teacher")

    def changed(self, given: Mapping[str, Any]) -> RunConfig:
        """Return it with settings by dotted path; those of a translator change its named preset, and none is lost.

        >>> run = RunConfig().changed({"preset": "tiny", "model.decoder.layers": 1})
        >>> run.preset, run.model.decoder.layers, run.model.width
        ('custom', 1, 128)
        """
        inner = {path.removeprefix("model."): value for path, value in given.items() if path.startswith("model.")}
        preset = given.get("preset", self.preset)
        if inner and preset == "auto":
            raise ConfigError(
                "model settings change a preset that must be named: add --preset "
                f"{', '.join(TRANSLATOR_PRESETS)}, or custom for the listed defaults"
            )
        if not inner or preset not in TRANSLATOR_PRESETS:
            return self.override(given)
        others = {path: value for path, value in given.items() if not path.startswith("model.")}
        model = TRANSLATOR_PRESETS[preset].override(inner)
        return self.override({**others, "preset": "custom", "model": model.to_dict()})

    def check(self) -> None:
        values = {known: attrgetter(known.path)(self) for known in self.knobs()}
        refuse(self.task, {known.path: value for known, value in values.items() if value != known.default})
        offered = OFFERED.get(self.task, ARCHITECTURES)
        if self.arch not in offered:
            raise ConfigError(f"arch must be {' or '.join(offered)} for the task {self.task}, not {self.arch}")
        if self.classify.seeds > 1 and self.training.workers > 1:
            raise ConfigError("several seeds are trained one after the other by one process: leave out --workers")
        if self.task in TUNED and (self.arch == "bert") != bool(self.start_from):
            raise ConfigError(
                f"{self.task} with --from is for encoders (--arch bert), and they start from a folder: "
                f"arch is {self.arch}, --from is {self.start_from or 'not given'}"
            )
        if self.distil.layers and not self.start_from:
            raise ConfigError("a student starts from its teacher: regard distil FOLDER DATA --layers N --out FOLDER")
        if self.distil.layers and (self.classify.frozen or self.classify.fresh):
            raise ConfigError(
                "a student learns in all its layers, from its teacher's: no --frozen, no --classify.fresh"
            )
        if self.task == "stories" and self.training.precision == "bf16":
            raise ConfigError("memory networks are trained in float32: leave out --precision bf16")
