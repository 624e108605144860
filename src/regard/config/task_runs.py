"""The run configs of the tasks, one class per task: each has only the settings that mean something to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Self

from regard.config.data import DataConfig
from regard.config.inference import DecodingConfig
from regard.config.models import (
    FRESH_ENCODER_PRESETS,
    STACK_SIZES,
    TRANSFORMER_PRESETS,
    BertConfig,
    GptConfig,
    TransformerConfig,
)
from regard.config.rnn_models import (
    RNN_TEXT_PRESETS,
    RnnClassifierConfig,
    RnnTaggerConfig,
    Seq2SeqConfig,
)
from regard.config.runs import BatchRun
from regard.config.settings import flatten, knob
from regard.config.training import (
    DistillationConfig,
    FineTuningConfig,
    LoraConfig,
    PassageConfig,
    TrainingConfig,
)
from regard.errors import ConfigError

PAIR_COLUMNS = ("data.read.source", "data.read.target")
TEXT_COLUMNS = ("data.read.text", "data.read.label")
LABEL_COLUMNS = ("data.read.pair", "data.read.label_separator")
TABLE_SETTINGS = ("data.read.format", "data.read.header", "data.read.delimiter")
EXTENSION = "tokenizer.extend"
TRAINED_TOKENIZER = tuple(f"tokenizer.{name}" for name in ("kind", "normalization", "lowercase"))
LORA_SETTINGS = tuple(f"lora.{setting.path}" for setting in LoraConfig.knobs())
ONE_LANGUAGE = ("tokenizer.joint", "tokenizer.bpe_dropout", "training.tune_length_penalty")
FINE_TUNING_DEFAULTS: dict[str, Any] = {  # of a model that starts from a pretrained encoder
    "data.max_length": 512,
    "training.optimizer": "adamw",
    "training.weight_decay": 0.01,
    "training.adam_beta2": 0.999,
    "training.label_smoothing": 0.0,
    "training.ema_decay": 0.0,
}
FRESH_ENCODER_DEFAULTS: dict[str, Any] = {  # of a Transformer that is trained on labelled texts from scratch
    "tokenizer.kind": "wordpiece",
    "tokenizer.lowercase": True,
    "training.optimizer": "adamw",
    "training.weight_decay": 0.1,
    "training.adam_beta2": 0.98,
    "training.label_smoothing": 0.1,
    "training.ema_decay": 0.999,
}
FEATURES = ("fine_tuning.features", "fine_tuning.feature_layers")
ENCODER_OF_THE_DATA = tuple(  # what data and task decide
    f"transformer.{name}" for name in ("vocab_size", "pad_id", "head", "num_labels", "tie_embeddings")
)
SPAN_HEAD = "transformer.span_feed_forward"
MAX_POSITIONS = "transformer.max_positions"
LABEL_HEAD = tuple(f"transformer.{name}" for name in ("pooling", "pooler", "pooler_activation", "pooler_dropout"))


def preset_knob(sizes: Mapping[str, Mapping[str, tuple[int, int]]], unit: str = "layers × hidden size") -> Any:
    """Declare the setting of the model size, from the sizes of each family's presets; `custom` takes those set."""
    tables = {
        family: ", ".join(f"{name} {num_layers}×{hidden_size}" for name, (num_layers, hidden_size) in presets.items())
        for family, presets in sizes.items()
    }
    table = "; ".join(tables.values() if len(tables) == 1 else (f"{family} {text}" for family, text in tables.items()))
    custom = " or ".join(f"--{family}.NAME" for family in sizes)
    names = dict.fromkeys(chain.from_iterable(sizes.values()))
    return knob(
        "auto",
        f"Model size; {unit}: {table}; auto: by the size of the data; custom: by {custom}, see --help-all.",
        choices=("auto", *names, "custom"),
    )


def without_label_smoothing() -> TrainingConfig:
    """Default training of all tasks but translation."""
    return TrainingConfig(label_smoothing=0.0)


@dataclass(frozen=True, kw_only=True)
class TranslateRun(BatchRun):
    """A translation model."""

    excluded: ClassVar[tuple[str, ...]] = (*TEXT_COLUMNS, *LABEL_COLUMNS)
    model_settings: ClassVar[tuple[str, ...]] = ("preset", "model.", "seq2seq.")
    descriptions: ClassVar[Mapping[str, str]] = {
        "training.batch_tokens": "Tokens per batch on the longer side, source or target, without padding; auto: by the "
        "size of the data.",
        "data.max_length": "Maximum tokens of a source or target text; longer pairs are left out and counted.",
    }

    task: str = knob("translate", "Task to train.", choices=("translate",))
    architecture: str = knob("transformer", "Model architecture.", choices=("transformer", "rnn"))
    preset: str = preset_knob(
        {"model": {name: (size.encoder.num_layers, size.hidden_size) for name, size in TRANSFORMER_PRESETS.items()}}
    )
    model: TransformerConfig = knob(TransformerConfig, "Transformer; used where the preset is custom.")
    seq2seq: Seq2SeqConfig = knob(
        Seq2SeqConfig, "Model with --arch rnn; the preset sets its sizes unless it is custom."
    )
    decoding: DecodingConfig = knob(DecodingConfig, "Decoding of translations.")

    @classmethod
    def build(cls, settings: Mapping[str, Any], recipe: Mapping[str, Any] | None = None, *, where: str = "") -> Self:
        """Build from settings by dotted path; those under `model.` change the named Transformer preset.

        >>> run = TranslateRun.build({"preset": "tiny", "model.decoder.num_layers": 1})
        >>> run.preset, run.model.decoder.num_layers, run.model.hidden_size
        ('custom', 1, 128)
        """
        model_settings = {path: value for path, value in flatten(settings).items() if path.startswith("model.")}
        run = super().build(settings, recipe, where=where)
        if model_settings and run.preset == "auto":
            raise ConfigError(
                "model settings change a preset that must be named: add --preset "
                f"{', '.join(TRANSFORMER_PRESETS)}, or custom for the listed defaults"
            )
        if not model_settings or run.preset not in TRANSFORMER_PRESETS:
            return run
        sizes = flatten(TRANSFORMER_PRESETS[run.preset].to_dict(), "model.")
        return run.override({"preset": "custom", **sizes, **model_settings})


@dataclass(frozen=True, kw_only=True)
class FineTunedRun(BatchRun):
    """A classifier, tagger or question-answering model."""

    data: DataConfig = knob(DataConfig, "Data files.")
    fine_tuning: FineTuningConfig = knob(FineTuningConfig, "Fine-tuning and scoring.")
    distillation: DistillationConfig = knob(DistillationConfig, "Distillation into a student with fewer layers.")

    @property
    def test_files(self) -> tuple[str, ...]:
        """Files that are scored at the end."""
        return (self.fine_tuning.test,) if self.fine_tuning.test else ()

    @property
    def models(self) -> dict[str, str]:
        """Models that the run starts from or reads, by the name of their digest."""
        features = self.fine_tuning.features
        return {**super().models, **({"features": features} if features else {})}

    @property
    def is_distillation(self) -> bool:
        """Whether a student is trained."""
        return self.distillation.student_layers > 0

    def check(self) -> None:
        super().check()
        if self.fine_tuning.seeds > 1 and self.training.workers > 1:
            raise ConfigError("several seeds are trained one after another by one process: leave out --workers")
        if self.fine_tuning.freeze_encoder and (self.trainable.freeze or self.trainable.layer_lr_decay < 1):
            raise ConfigError(
                "--freeze-encoder trains the head alone: leave out --freeze and --layer-lr-decay, or --freeze-encoder"
            )
        has_other_start = self.fine_tuning.freeze_encoder or self.fine_tuning.random_init or self.is_distillation
        if self.lora.rank and has_other_start:
            raise ConfigError(
                f"LoRA (--lora {self.lora.rank}) trains small matrices beside pretrained ones: leave out "
                "--freeze-encoder, --fine_tuning.random_init and distillation"
            )
        if self.tokenizer.extend and self.fine_tuning.freeze_encoder:
            raise ConfigError(
                "--extend-vocabulary adds embeddings that have to be trained: leave out --freeze-encoder, or use --lora"
            )
        if self.fine_tuning.lm_weight and (self.fine_tuning.freeze_encoder or self.is_distillation):
            raise ConfigError(
                f"--lm-weight ({self.fine_tuning.lm_weight:g}) trains the whole model on the texts, too: leave out "
                "--freeze-encoder and distillation"
            )
        if self.is_distillation:
            self._check_distillation()

    def _check_distillation(self) -> None:
        if self.tokenizer.extend:
            raise ConfigError("a student has the vocabulary of its teacher: leave out --extend-vocabulary")
        if not self.pretrained:
            raise ConfigError(
                "a student starts from its teacher: regard distil MODEL DATA --student-layers N --out FOLDER"
            )
        if self.fine_tuning.freeze_encoder or self.fine_tuning.random_init:
            raise ConfigError(
                "a student starts from its teacher's layers and trains them all: leave out --freeze-encoder and "
                "--fine_tuning.random_init"
            )


def _fresh_encoder() -> BertConfig:
    return BertConfig(norm_placement="pre", pooling="mean", pooler=False, dropout=0.2)


@dataclass(frozen=True, kw_only=True)
class EncoderRun(FineTunedRun):
    """A model of a chosen architecture: one that is trained from scratch, or with --from a fine-tuned Transformer."""

    architecture_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pretrained": FINE_TUNING_DEFAULTS,
        "transformer": FRESH_ENCODER_DEFAULTS,
    }
    architecture_settings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("fine_tuning.freeze_encoder", "fine_tuning.random_init", EXTENSION), ("pretrained",)),
        "trainable.layer_lr_decay": ("pretrained",),
        "fine_tuning.lm_weight": ("pretrained", "transformer"),
        **dict.fromkeys(FEATURES, ("rnn",)),
        "fine_tuning.feature_cache_mb": ("rnn", "pretrained"),
        "rnn_": ("rnn",),
        "transformer.": ("transformer",),
        **dict.fromkeys(("preset", *TRAINED_TOKENIZER), ("rnn", "transformer")),
    }
    descriptions: ClassVar[Mapping[str, str]] = {
        MAX_POSITIONS: "Longest sequence that the model accepts, in tokens; the default stands for --max-length.",
    }
    preset_sizes: ClassVar[tuple[str, ...]] = tuple(f"transformer.{name}" for name in STACK_SIZES)

    architecture: str = knob(
        "rnn",
        "Model architecture; rnn, transformer: trained from scratch; pretrained: a Transformer, implied by --from.",
        choices=("rnn", "transformer", "pretrained"),
    )
    preset: str = knob("auto", "Model size.", choices=("auto", "custom"))
    transformer: BertConfig = knob(
        _fresh_encoder, "Model with --arch transformer; the preset sets its sizes unless it is custom."
    )

    @classmethod
    def choose_architecture(cls, settings: Mapping[str, Any]) -> str:
        """Architecture that these settings request: pretrained where they name a pretrained model."""
        requested = settings.get("architecture") or ("pretrained" if settings.get("pretrained") else cls.architecture)
        return str(requested)

    @classmethod
    def build(cls, settings: Mapping[str, Any], recipe: Mapping[str, Any] | None = None, *, where: str = "") -> Self:
        """Build from settings by dotted path; the pretrained model decides the architecture if none is set.

        >>> ClassifyRun.build({"pretrained": "a/model"}).training.optimizer
        'adamw'
        """
        architecture = cls.choose_architecture({**(recipe or {}), **settings})
        return super().build({"architecture": architecture, **settings}, recipe, where=where)

    @property
    def max_positions(self) -> int:
        """Positions of a Transformer from scratch: as many as a row has tokens, unless the run sets more."""
        return int(self.changed_settings().get(MAX_POSITIONS, self.data.max_length))

    def check(self) -> None:
        super().check()
        if (self.architecture == "pretrained") != bool(self.pretrained):
            raise ConfigError(
                "--from is for pretrained Transformers (--arch pretrained), and they need it: "
                f"arch is {self.architecture}, --from is {self.pretrained or 'not set'}"
            )
        if self.fine_tuning.lm_weight and self.architecture == "transformer":
            self._check_language_model()
        self.transformer.check_pooling()
        self._check_positions()

    def _check_positions(self) -> None:
        max_length = self.data.max_length
        if self.max_positions < max_length:
            raise ConfigError(
                f"{MAX_POSITIONS} ({self.max_positions}) is less than the tokens of a row: raise it, or lower "
                f"--max-length ({max_length})"
            )
        if self.max_positions > max_length and self.transformer.positions == "learned":
            raise ConfigError(
                f"{MAX_POSITIONS} ({self.max_positions}) exceeds the tokens of a row, and learned positions beyond "
                f"them would stay random: raise --max-length ({max_length}), leave it out, or set "
                "transformer.positions to another kind"
            )

    def _check_language_model(self) -> None:
        option = f"--lm-weight ({self.fine_tuning.lm_weight:g})"
        if not self.transformer.causal:
            raise ConfigError(
                f"{option} is for causal models, which predict the next token: add --causal, or leave it out"
            )
        if self.transformer.embedding_size:
            raise ConfigError(
                f"{option} needs the token embedding as output projection: leave out --transformer.embedding_size "
                f"({self.transformer.embedding_size}), or --lm-weight"
            )


@dataclass(frozen=True, kw_only=True)
class LabelledRun(EncoderRun):
    """A classifier or tagger."""

    training: TrainingConfig = knob(without_label_smoothing, "Training.")


def layers_and_sizes(presets: Mapping[str, BertConfig] | Mapping[str, GptConfig]) -> dict[str, tuple[int, int]]:
    """Number of layers and hidden size of each preset, for `preset_knob`."""
    return {name: (size.stack.num_layers, size.hidden_size) for name, size in presets.items()}


def _labelled_preset(family: str) -> Any:
    rnn_sizes = {name: (size.num_layers, size.hidden_size) for name, size in RNN_TEXT_PRESETS.items()}
    return preset_knob({family: rnn_sizes, "transformer": layers_and_sizes(FRESH_ENCODER_PRESETS)})


@dataclass(frozen=True, kw_only=True)
class ClassifyRun(LabelledRun):
    """A text classifier."""

    architecture_settings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **LabelledRun.architecture_settings,
        **dict.fromkeys(LABEL_COLUMNS, ("transformer", "pretrained")),
    }
    excluded: ClassVar[tuple[str, ...]] = (*PAIR_COLUMNS, *ONE_LANGUAGE, *ENCODER_OF_THE_DATA, SPAN_HEAD)
    preset_sizes: ClassVar[tuple[str, ...]] = (
        *EncoderRun.preset_sizes,
        *("rnn_classifier.encoder.embedding_size", "rnn_classifier.encoder.hidden_size"),
    )

    task: str = knob("classify", "Task to train.", choices=("classify",))
    preset: str = _labelled_preset("rnn_classifier")
    rnn_classifier: RnnClassifierConfig = knob(
        RnnClassifierConfig, "RNN classifier; the preset sets its sizes unless it is custom."
    )


@dataclass(frozen=True, kw_only=True)
class TagRun(LabelledRun):
    """A token classifier."""

    architecture_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pretrained": FINE_TUNING_DEFAULTS,
        "transformer": {**FRESH_ENCODER_DEFAULTS, "tokenizer.lowercase": False},  # names have capitals
    }
    excluded: ClassVar[tuple[str, ...]] = (
        *(*PAIR_COLUMNS, *LABEL_COLUMNS, *TABLE_SETTINGS, *ONE_LANGUAGE),
        *(*ENCODER_OF_THE_DATA, *LABEL_HEAD, SPAN_HEAD),
    )
    descriptions: ClassVar[Mapping[str, str]] = {
        **EncoderRun.descriptions,
        "fine_tuning.test": "Test file in CoNLL columns, scored at the end; with --seeds, once per seed.",
    }
    preset_sizes: ClassVar[tuple[str, ...]] = (
        *EncoderRun.preset_sizes,
        *("rnn_tagger.encoder.embedding_size", "rnn_tagger.encoder.hidden_size"),
    )

    task: str = knob("tag", "Task to train.", choices=("tag",))
    preset: str = _labelled_preset("rnn_tagger")
    rnn_tagger: RnnTaggerConfig = knob(RnnTaggerConfig, "RNN tagger; the preset sets its sizes unless it is custom.")


def _passage_data() -> DataConfig:
    return DataConfig(max_length=384)


def _fine_tuning_config() -> TrainingConfig:
    settings = {path: value for path, value in FINE_TUNING_DEFAULTS.items() if path.startswith("training.")}
    return TrainingConfig(**{path.removeprefix("training."): value for path, value in settings.items()})


@dataclass(frozen=True, kw_only=True)
class AnswerRun(EncoderRun):
    """An extractive question-answering model."""

    architecture_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"transformer": FRESH_ENCODER_DEFAULTS}
    excluded: ClassVar[tuple[str, ...]] = (
        *(*PAIR_COLUMNS, *TEXT_COLUMNS, *LABEL_COLUMNS, *TABLE_SETTINGS, *ONE_LANGUAGE),
        *(*FEATURES, "fine_tuning.class_weights", *ENCODER_OF_THE_DATA, *LABEL_HEAD),
    )
    descriptions: ClassVar[Mapping[str, str]] = {
        **EncoderRun.descriptions,
        "data.max_length": "Maximum tokens of question and passage, special tokens included; a longer passage is cut "
        "into windows.",
        "fine_tuning.test": "Test file in SQuAD format, scored at the end; with --seeds, once per seed.",
    }

    task: str = knob("answer", "Task to train.", choices=("answer",))
    architecture: str = knob(
        "pretrained",
        "Model architecture; transformer: trained from scratch; pretrained: fine-tuned, and needs --from.",
        choices=("transformer", "pretrained"),
    )
    preset: str = preset_knob({"transformer": layers_and_sizes(FRESH_ENCODER_PRESETS)})
    data: DataConfig = knob(_passage_data, "Data files.")
    training: TrainingConfig = knob(_fine_tuning_config, "Training.")
    passages: PassageConfig = knob(PassageConfig, "Passages of question answering.")

    def check(self) -> None:
        if self.architecture == "pretrained" and not self.pretrained:
            raise ConfigError(
                "question answering needs a Transformer: add --from MODEL to fine-tune one, or --arch transformer to "
                "train one from scratch"
            )
        super().check()
