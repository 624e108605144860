"""The run configs of the tasks, one class per task: each has only the settings that mean something to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from regard.config.data import DataConfig, DocumentConfig, MaskingConfig, TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import (
    BERT_PRESETS,
    GPT_PRESETS,
    TRANSFORMER_PRESETS,
    BertConfig,
    GptConfig,
    TransformerConfig,
)
from regard.config.rnn_models import (
    ELMO_PRESETS,
    RNN_TEXT_PRESETS,
    ElmoConfig,
    MemoryNetworkConfig,
    RnnClassifierConfig,
    RnnTaggerConfig,
    Seq2SeqConfig,
)
from regard.config.runs import BatchRun, RunConfig
from regard.config.settings import flatten, knob
from regard.config.training import (
    DistillationConfig,
    FineTuningConfig,
    LoraConfig,
    MemoryTrainingConfig,
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
TEXT_ONLY = (  # what language models do not read
    *(*PAIR_COLUMNS, *TEXT_COLUMNS, *LABEL_COLUMNS, *TABLE_SETTINGS),
    *("data.max_length", *ONE_LANGUAGE),
)
STACK_SIZES = ("hidden_size", "stack.num_layers", "stack.num_heads", "stack.feed_forward_size")
FINE_TUNING_DEFAULTS: dict[str, Any] = {  # of a model that starts from a pretrained encoder
    "data.max_length": 512,
    "training.optimizer": "adamw",
    "training.weight_decay": 0.01,
    "training.adam_beta2": 0.999,
    "training.label_smoothing": 0.0,
    "training.ema_decay": 0.0,
}


def preset_knob(sizes: Mapping[str, tuple[int, int]], *, family: str, unit: str = "layers × hidden size") -> Any:
    """Declare the setting of the model size, from the sizes of each preset; `custom` takes those of the family."""
    table = ", ".join(f"{name} {num_layers}×{hidden_size}" for name, (num_layers, hidden_size) in sizes.items())
    return knob(
        "auto",
        f"Model size; {unit}: {table}; auto: by the size of the data; custom: by --{family}.NAME, see --help-all.",
        choices=("auto", *sizes, "custom"),
    )


def without_label_smoothing() -> TrainingConfig:
    """Default training of all tasks but translation."""
    return TrainingConfig(label_smoothing=0.0)


@dataclass(frozen=True, kw_only=True)
class TranslateRun(BatchRun):
    """A translation model."""

    excluded: ClassVar[tuple[str, ...]] = (*TEXT_COLUMNS, *LABEL_COLUMNS)
    descriptions: ClassVar[Mapping[str, str]] = {
        "training.batch_tokens": "Tokens per batch on the longer side, source or target, without padding; auto: by the "
        "size of the data.",
        "data.max_length": "Maximum tokens of a source or target text; longer pairs are left out and counted.",
    }

    task: str = knob("translate", "Task to train.", choices=("translate",))
    architecture: str = knob("transformer", "Model architecture.", choices=("transformer", "rnn"))
    preset: str = preset_knob(
        {name: (preset.encoder.num_layers, preset.hidden_size) for name, preset in TRANSFORMER_PRESETS.items()},
        family="model",
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


@dataclass(frozen=True, kw_only=True)
class LabelledRun(FineTunedRun):
    """A classifier or tagger: an RNN, or with --from a fine-tuned Transformer."""

    architecture_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pretrained": FINE_TUNING_DEFAULTS}
    # prefix of settings → the architecture that alone reads them
    architecture_settings: ClassVar[Mapping[str, str]] = {
        "fine_tuning.freeze_encoder": "pretrained",
        "trainable.layer_lr_decay": "pretrained",
        "fine_tuning.random_init": "pretrained",
        EXTENSION: "pretrained",
        "rnn_": "rnn",
    }

    architecture: str = knob(
        "rnn",
        "Model architecture; pretrained: a pretrained Transformer, implied by --from.",
        choices=("rnn", "pretrained"),
    )
    training: TrainingConfig = knob(without_label_smoothing, "Training.")

    @classmethod
    def choose_architecture(cls, settings: Mapping[str, Any]) -> str:
        """Architecture that these settings request: pretrained where they name a pretrained model."""
        return str(settings.get("architecture") or ("pretrained" if settings.get("pretrained") else "rnn"))

    @classmethod
    def build(cls, settings: Mapping[str, Any], recipe: Mapping[str, Any] | None = None, *, where: str = "") -> Self:
        """Build from settings by dotted path; the pretrained model decides the architecture if none is set.

        >>> ClassifyRun.build({"pretrained": "a/model"}).training.optimizer
        'adamw'
        """
        architecture = cls.choose_architecture({**(recipe or {}), **settings})
        return super().build({"architecture": architecture, **settings}, recipe, where=where)

    def check(self) -> None:
        super().check()
        if (self.architecture == "pretrained") != bool(self.pretrained):
            raise ConfigError(
                "--from is for pretrained Transformers (--arch pretrained), and they need it: "
                f"arch is {self.architecture}, --from is {self.pretrained or 'not set'}"
            )
        if self.fine_tuning.features and self.architecture == "pretrained":
            raise ConfigError("frozen features (--features) are for RNN text encoders (--arch rnn): leave out --from")
        for path, value in self.changed_settings().items():
            matches = (required for prefix, required in self.architecture_settings.items() if path.startswith(prefix))
            required = next(matches, self.architecture)
            if required != self.architecture:
                raise ConfigError(
                    f"{path} ({value}) means nothing to --arch {self.architecture}: it is for --arch {required}"
                )


def _rnn_text_preset(family: str) -> Any:
    sizes = {name: (preset.num_layers, preset.hidden_size) for name, preset in RNN_TEXT_PRESETS.items()}
    return preset_knob(sizes, family=family, unit="layers × hidden size of the RNN")


@dataclass(frozen=True, kw_only=True)
class ClassifyRun(LabelledRun):
    """A text classifier."""

    excluded: ClassVar[tuple[str, ...]] = (*PAIR_COLUMNS, *ONE_LANGUAGE)
    preset_sizes: ClassVar[tuple[str, ...]] = (
        "rnn_classifier.encoder.embedding_size",
        "rnn_classifier.encoder.hidden_size",
    )

    task: str = knob("classify", "Task to train.", choices=("classify",))
    preset: str = _rnn_text_preset("rnn_classifier")
    rnn_classifier: RnnClassifierConfig = knob(
        RnnClassifierConfig, "RNN classifier; the preset sets its sizes unless it is custom."
    )


@dataclass(frozen=True, kw_only=True)
class TagRun(LabelledRun):
    """A token classifier."""

    excluded: ClassVar[tuple[str, ...]] = (*PAIR_COLUMNS, *LABEL_COLUMNS, *TABLE_SETTINGS, *ONE_LANGUAGE)
    descriptions: ClassVar[Mapping[str, str]] = {
        "fine_tuning.test": "Test file in CoNLL columns, scored at the end; with --seeds, once per seed.",
    }
    preset_sizes: ClassVar[tuple[str, ...]] = ("rnn_tagger.encoder.embedding_size", "rnn_tagger.encoder.hidden_size")

    task: str = knob("tag", "Task to train.", choices=("tag",))
    preset: str = _rnn_text_preset("rnn_tagger")
    rnn_tagger: RnnTaggerConfig = knob(RnnTaggerConfig, "RNN tagger; the preset sets its sizes unless it is custom.")


def _passage_data() -> DataConfig:
    return DataConfig(max_length=384)


def _fine_tuning_config() -> TrainingConfig:
    settings = {path: value for path, value in FINE_TUNING_DEFAULTS.items() if path.startswith("training.")}
    return TrainingConfig(**{path.removeprefix("training."): value for path, value in settings.items()})


@dataclass(frozen=True, kw_only=True)
class AnswerRun(FineTunedRun):
    """An extractive question-answering model."""

    excluded: ClassVar[tuple[str, ...]] = (
        *(*PAIR_COLUMNS, *TEXT_COLUMNS, *LABEL_COLUMNS, *TABLE_SETTINGS),
        *(*ONE_LANGUAGE, *TRAINED_TOKENIZER, "fine_tuning.features", "fine_tuning.class_weights"),
    )
    descriptions: ClassVar[Mapping[str, str]] = {
        "data.max_length": "Maximum tokens of question and passage, special tokens included; a longer passage is cut "
        "into windows.",
        "fine_tuning.test": "Test file in SQuAD format, scored at the end; with --seeds, once per seed.",
    }

    task: str = knob("answer", "Task to train.", choices=("answer",))
    data: DataConfig = knob(_passage_data, "Data files.")
    training: TrainingConfig = knob(_fine_tuning_config, "Training.")
    passages: PassageConfig = knob(PassageConfig, "Passages of question answering.")

    def check(self) -> None:
        super().check()
        if not self.pretrained:
            raise ConfigError("question answering starts from an encoder: add --from MODEL")


@dataclass(frozen=True, kw_only=True)
class LanguageModelRun(BatchRun):
    """A language model on running text."""

    excluded: ClassVar[tuple[str, ...]] = TEXT_ONLY

    training: TrainingConfig = knob(without_label_smoothing, "Training.")
    documents: DocumentConfig = knob(DocumentConfig, "Documents of running text.")


def _stack_sizes(presets: Mapping[str, BertConfig] | Mapping[str, GptConfig]) -> dict[str, tuple[int, int]]:
    return {name: (preset.stack.num_layers, preset.hidden_size) for name, preset in presets.items()}


def _lower_case_wordpiece() -> TokenizerConfig:
    return TokenizerConfig(kind="wordpiece", lowercase=True)


@dataclass(frozen=True, kw_only=True)
class MaskedLMRun(LanguageModelRun):
    """A masked language model."""

    preset_sizes: ClassVar[tuple[str, ...]] = tuple(f"bert.{name}" for name in STACK_SIZES)

    task: str = knob("masked-lm", "Task to train.", choices=("masked-lm",))
    preset: str = preset_knob(_stack_sizes(BERT_PRESETS), family="bert")
    tokenizer: TokenizerConfig = knob(_lower_case_wordpiece, "Tokenizer.")
    bert: BertConfig = knob(BertConfig, "Encoder; the preset sets its sizes unless it is custom.")
    masking: MaskingConfig = knob(MaskingConfig, "Masked language modelling.")

    def check(self) -> None:
        super().check()
        if self.tokenizer.extend and self.masking.new_vocabulary:
            raise ConfigError("a new vocabulary (--new-vocabulary) is not extended: leave out --extend-vocabulary")


@dataclass(frozen=True, kw_only=True)
class CausalLMRun(LanguageModelRun):
    """A causal language model."""

    preset_sizes: ClassVar[tuple[str, ...]] = tuple(f"gpt.{name}" for name in STACK_SIZES)
    descriptions: ClassVar[Mapping[str, str]] = {
        "documents.document_boundary": "What one document is; a boundary token follows each. Documents are held out "
        "whole, except files, whose ends are held out; auto: file.",
    }

    task: str = knob("causal-lm", "Task to train.", choices=("causal-lm",))
    preset: str = preset_knob(_stack_sizes(GPT_PRESETS), family="gpt")
    gpt: GptConfig = knob(GptConfig, "Causal language model; the preset sets its sizes unless it is custom.")


@dataclass(frozen=True, kw_only=True)
class ElmoRun(LanguageModelRun):
    """An ELMo language model."""

    excluded: ClassVar[tuple[str, ...]] = (
        *(*TEXT_ONLY, EXTENSION, *LORA_SETTINGS),
        *("elmo.vocab_size", "elmo.boundary_id"),  # the tokenizer decides them
    )
    preset_sizes: ClassVar[tuple[str, ...]] = ("elmo.hidden_size",)

    task: str = knob("elmo", "Task to train.", choices=("elmo",))
    preset: str = preset_knob(
        {name: (preset.num_layers, preset.hidden_size) for name, preset in ELMO_PRESETS.items()}, family="elmo"
    )
    elmo: ElmoConfig = knob(ElmoConfig, "ELMo language model; the preset sets its sizes unless it is custom.")


@dataclass(frozen=True, kw_only=True)
class StoryQARun(RunConfig):
    """A memory network for questions about stories."""

    excluded: ClassVar[tuple[str, ...]] = (
        *PAIR_COLUMNS,
        *TEXT_COLUMNS,
        *LABEL_COLUMNS,
        *TABLE_SETTINGS,
        "data.max_length",
    )

    task: str = knob("story-qa", "Task to train.", choices=("story-qa",))
    training: MemoryTrainingConfig = knob(MemoryTrainingConfig, "Training of memory networks.")
    memory_network: MemoryNetworkConfig = knob(
        MemoryNetworkConfig, "Memory network that answers questions about stories."
    )
