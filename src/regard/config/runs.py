"""A whole run: what a recipe file holds and what a run folder remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from regard.config.data import DataConfig, DocumentConfig, MaskingConfig, TokenizerConfig
from regard.config.defaults import FINE_TUNED_TASKS, OFFERED, refuse
from regard.config.inference import DecodingConfig
from regard.config.models import TRANSFORMER_PRESETS, BertConfig, GptConfig, TransformerConfig
from regard.config.rnn_models import (
    ElmoConfig,
    MemoryNetworkConfig,
    RnnClassifierConfig,
    RnnTaggerConfig,
    Seq2SeqConfig,
)
from regard.config.settings import Config, knob
from regard.config.training import (
    DistillationConfig,
    FineTuningConfig,
    MemoryTrainingConfig,
    PassageConfig,
    TrainingConfig,
)
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
    architecture: str = knob("transformer", "what kind of model reads and writes", choices=ARCHITECTURES)
    pretrained: str = knob("", "a run or model folder to go on from")
    data: DataConfig = knob(DataConfig, "which files")
    tokenizer: TokenizerConfig = knob(TokenizerConfig, "how text becomes tokens")
    model: TransformerConfig = knob(TransformerConfig, "the model; used when preset is custom")
    seq2seq: Seq2SeqConfig = knob(
        Seq2SeqConfig, "the model with --arch rnn; the preset gives its sizes unless it is custom"
    )
    training: TrainingConfig = knob(TrainingConfig, "how it is trained")
    decoding: DecodingConfig = knob(DecodingConfig, "how translations are searched for")
    memory_network: MemoryNetworkConfig = knob(
        MemoryNetworkConfig, "the memory network that answers questions about stories"
    )
    stories: MemoryTrainingConfig = knob(MemoryTrainingConfig, "how memory networks are trained")
    elmo: ElmoConfig = knob(ElmoConfig, "the language model; the preset gives its sizes unless it is custom")
    gpt: GptConfig = knob(GptConfig, "the causal language model; the preset gives its sizes unless it is custom")
    bert: BertConfig = knob(BertConfig, "the encoder; the preset gives its sizes unless it is custom")
    masking: MaskingConfig = knob(MaskingConfig, "which words an encoder learns to tell")
    documents: DocumentConfig = knob(DocumentConfig, "how running text becomes rows of tokens")
    rnn_classifier: RnnClassifierConfig = knob(
        RnnClassifierConfig, "the classifier; the preset gives its sizes unless it is custom"
    )
    rnn_tagger: RnnTaggerConfig = knob(RnnTaggerConfig, "the tagger; the preset gives its sizes unless it is custom")
    fine_tuning: FineTuningConfig = knob(
        FineTuningConfig, "how classifiers, taggers and answerers are trained and scored"
    )
    passages: PassageConfig = knob(PassageConfig, "how passages are read that questions are answered from")
    distillation: DistillationConfig = knob(
        DistillationConfig, "a student with fewer layers: what it learns from its teacher"
    )

    def with_settings(self, overrides: Mapping[str, Any]) -> RunConfig:
        """Return it with settings by dotted path; those of a translator change its named preset, and none is lost.

        >>> run = RunConfig().with_settings({"preset": "tiny", "model.decoder.num_layers": 1})
        >>> run.preset, run.model.decoder.num_layers, run.model.hidden_size
        ('custom', 1, 128)
        """
        inner = {path.removeprefix("model."): value for path, value in overrides.items() if path.startswith("model.")}
        preset = overrides.get("preset", self.preset)
        if inner and preset == "auto":
            raise ConfigError(
                "model settings change a preset that must be named: add --preset "
                f"{', '.join(TRANSFORMER_PRESETS)}, or custom for the listed defaults"
            )
        if not inner or preset not in TRANSFORMER_PRESETS:
            return self.override(overrides)
        others = {path: value for path, value in overrides.items() if not path.startswith("model.")}
        model = TRANSFORMER_PRESETS[preset].override(inner)
        return self.override({**others, "preset": "custom", "model": model.to_dict()})

    def check(self) -> None:
        values = {known: attrgetter(known.path)(self) for known in self.knobs()}
        refuse(self.task, {known.path: value for known, value in values.items() if value != known.default})
        offered = OFFERED.get(self.task, ARCHITECTURES)
        if self.architecture not in offered:
            raise ConfigError(f"arch must be {' or '.join(offered)} for the task {self.task}, not {self.architecture}")
        if self.fine_tuning.seeds > 1 and self.training.workers > 1:
            raise ConfigError("several seeds are trained one after the other by one process: leave out --workers")
        if self.task in FINE_TUNED_TASKS and (self.architecture == "bert") != bool(self.pretrained):
            raise ConfigError(
                f"{self.task} with --from is for encoders (--arch bert), and they start from a folder: "
                f"arch is {self.architecture}, --from is {self.pretrained or 'not given'}"
            )
        if self.distillation.student_layers and not self.pretrained:
            raise ConfigError("a student starts from its teacher: regard distil FOLDER DATA --layers N --out FOLDER")
        if self.distillation.student_layers and (self.fine_tuning.freeze_encoder or self.fine_tuning.random_init):
            raise ConfigError(
                "a student learns in all its layers, from its teacher's: no --frozen, no --fine_tuning.random_init"
            )
        if self.task == "stories" and self.training.precision == "bf16":
            raise ConfigError("memory networks are trained in float32: leave out --precision bf16")
