"""The config of a whole run, as recipe files and run directories store it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from regard.config.data import DataConfig, DocumentConfig, MaskingConfig, TokenizerConfig
from regard.config.defaults import FINE_TUNED_TASKS, TASK_ARCHITECTURES, check_relevance
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
    LoraConfig,
    MemoryTrainingConfig,
    PassageConfig,
    TrainableConfig,
    TrainingConfig,
)
from regard.errors import ConfigError

TASKS = ("translate", "stories", "language", "classify", "tag", "answer")
ARCHITECTURES = ("transformer", "rnn", "elmo", "bert", "gpt")
LORA_ARCHITECTURES = ("transformer", "bert", "gpt")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """A whole run; `train --recipe FILE` reads it as JSON."""

    task: str = knob("translate", "Task to train.", choices=TASKS)
    preset: str = knob(
        "auto",
        "Model size; auto: by the size of the data.",
        choices=("auto", "micro", "tiny", "mini", "small", "medium", "base", "big", "large", "custom"),
    )
    architecture: str = knob("transformer", "Model architecture.", choices=ARCHITECTURES)
    pretrained: str = knob("", "Run or model folder whose weights the training starts from.")
    data: DataConfig = knob(DataConfig, "Data files.")
    tokenizer: TokenizerConfig = knob(TokenizerConfig, "Tokenizer.")
    model: TransformerConfig = knob(TransformerConfig, "Transformer; used where the preset is custom.")
    seq2seq: Seq2SeqConfig = knob(
        Seq2SeqConfig, "Model with --arch rnn; the preset sets its sizes unless it is custom."
    )
    training: TrainingConfig = knob(TrainingConfig, "Training.")
    trainable: TrainableConfig = knob(TrainableConfig, "Weights that are trained.")
    lora: LoraConfig = knob(LoraConfig, "Low-rank adaptation (LoRA).")
    decoding: DecodingConfig = knob(DecodingConfig, "Decoding of translations.")
    memory_network: MemoryNetworkConfig = knob(
        MemoryNetworkConfig, "Memory network that answers questions about stories."
    )
    stories: MemoryTrainingConfig = knob(MemoryTrainingConfig, "Training of memory networks.")
    elmo: ElmoConfig = knob(ElmoConfig, "ELMo language model; the preset sets its sizes unless it is custom.")
    gpt: GptConfig = knob(GptConfig, "Causal language model; the preset sets its sizes unless it is custom.")
    bert: BertConfig = knob(BertConfig, "Encoder; the preset sets its sizes unless it is custom.")
    masking: MaskingConfig = knob(MaskingConfig, "Masked language modelling.")
    documents: DocumentConfig = knob(DocumentConfig, "Documents of running text.")
    rnn_classifier: RnnClassifierConfig = knob(
        RnnClassifierConfig, "RNN classifier; the preset sets its sizes unless it is custom."
    )
    rnn_tagger: RnnTaggerConfig = knob(RnnTaggerConfig, "RNN tagger; the preset sets its sizes unless it is custom.")
    fine_tuning: FineTuningConfig = knob(
        FineTuningConfig, "Training and scoring of classifiers, taggers and question-answering models."
    )
    passages: PassageConfig = knob(PassageConfig, "Passages of question answering.")
    distillation: DistillationConfig = knob(DistillationConfig, "Distillation into a student with fewer layers.")

    def with_settings(self, overrides: Mapping[str, Any]) -> RunConfig:
        """Copy with settings replaced by dotted path; those under `model.` change the named Transformer preset.

        >>> run = RunConfig().with_settings({"preset": "tiny", "model.decoder.num_layers": 1})
        >>> run.preset, run.model.decoder.num_layers, run.model.hidden_size
        ('custom', 1, 128)
        """
        run_overrides = {path: value for path, value in overrides.items() if not path.startswith("model.")}
        model_overrides = {
            path.removeprefix("model."): value for path, value in overrides.items() if path.startswith("model.")
        }
        preset = overrides.get("preset", self.preset)
        if model_overrides and preset == "auto":
            raise ConfigError(
                "model settings change a preset that must be named: add --preset "
                f"{', '.join(TRANSFORMER_PRESETS)}, or custom for the listed defaults"
            )
        if not model_overrides or preset not in TRANSFORMER_PRESETS:
            return self.override(overrides)
        model = TRANSFORMER_PRESETS[preset].override(model_overrides)
        return self.override({**run_overrides, "preset": "custom", "model": model.to_dict()})

    def check(self) -> None:
        check_relevance(self.task, self._changed_settings())
        architectures = TASK_ARCHITECTURES.get(self.task, ARCHITECTURES)
        if self.architecture not in architectures:
            allowed = " or ".join(architectures)
            raise ConfigError(f"arch must be {allowed} for the task {self.task}, not {self.architecture}")
        if self.fine_tuning.seeds > 1 and self.training.workers > 1:
            raise ConfigError("several seeds are trained one after another by one process: leave out --workers")
        if self.task in FINE_TUNED_TASKS and (self.architecture == "bert") != bool(self.pretrained):
            raise ConfigError(
                f"{self.task} with --from is for encoders (--arch bert), and they start from a folder: "
                f"arch is {self.architecture}, --from is {self.pretrained or 'not set'}"
            )
        self._check_distillation()
        self._check_adaptation()
        if self.task == "stories" and self.training.precision == "bf16":
            raise ConfigError("memory networks are trained in float32: leave out --precision bf16")

    def _changed_settings(self) -> dict[str, Any]:
        """Settings, by dotted path, that differ from their defaults."""
        values = {setting: attrgetter(setting.path)(self) for setting in self.knobs()}
        return {setting.path: value for setting, value in values.items() if value != setting.default}

    def _check_adaptation(self) -> None:
        """Check LoRA and frozen weights, which need a whole pretrained model."""
        is_head_only = self.fine_tuning.freeze_encoder
        if is_head_only and (self.trainable.freeze or self.trainable.layer_lr_decay < 1):
            raise ConfigError("--frozen trains the head alone: leave out --freeze and --layer-decay, or --frozen")
        if self.tokenizer.extend and not (self.architecture == "bert" and self.task == "language" and self.pretrained):
            raise ConfigError(
                "tokenizer.extend (--extend-vocabulary) is for masked language models that start from a folder: "
                "regard train language FILES… --from FOLDER --extend-vocabulary"
            )
        if self.tokenizer.extend and self.masking.words == "new":
            raise ConfigError("a new vocabulary (--words new) is not extended: leave out --extend-vocabulary")
        if not self.lora.rank:
            return
        if not self.pretrained or self.architecture not in LORA_ARCHITECTURES:
            raise ConfigError(
                f"LoRA (--lora {self.lora.rank}) adapts a pretrained Transformer: add --from FOLDER, or leave it out"
            )
        if is_head_only or self.fine_tuning.random_init or self.distillation.student_layers:
            raise ConfigError(
                f"LoRA (--lora {self.lora.rank}) trains small matrices beside pretrained ones: leave out --frozen, "
                "--fine_tuning.random_init and distillation"
            )

    def _check_distillation(self) -> None:
        if not self.distillation.student_layers:
            return
        if not self.pretrained:
            raise ConfigError("a student starts from its teacher: regard distil FOLDER DATA --layers N --out FOLDER")
        if self.fine_tuning.freeze_encoder or self.fine_tuning.random_init:
            raise ConfigError(
                "a student starts from its teacher's layers and trains them all: leave out --frozen and "
                "--fine_tuning.random_init"
            )
