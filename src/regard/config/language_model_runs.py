"""The run configs of language models on running text: masked, causal, and bidirectional recurrent (ELMo)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from regard.config.data import DocumentConfig, MaskingConfig, TokenizerConfig
from regard.config.models import BERT_PRESETS, GPT_PRESETS, STACK_SIZES, BertConfig, GptConfig
from regard.config.rnn_models import ELMO_PRESETS, ElmoConfig
from regard.config.runs import BatchRun
from regard.config.settings import knob
from regard.config.task_runs import (
    EXTENSION,
    LABEL_COLUMNS,
    LORA_SETTINGS,
    ONE_LANGUAGE,
    PAIR_COLUMNS,
    TABLE_SETTINGS,
    TEXT_COLUMNS,
    layers_and_sizes,
    preset_knob,
    without_label_smoothing,
)
from regard.config.training import TrainingConfig
from regard.errors import ConfigError

TEXT_ONLY = (  # what language models do not read
    *(*PAIR_COLUMNS, *TEXT_COLUMNS, *LABEL_COLUMNS, *TABLE_SETTINGS),
    *("data.max_length", *ONE_LANGUAGE),
)


@dataclass(frozen=True, kw_only=True)
class LanguageModelRun(BatchRun):
    """A language model on running text."""

    excluded: ClassVar[tuple[str, ...]] = TEXT_ONLY

    training: TrainingConfig = knob(without_label_smoothing, "Training.")
    documents: DocumentConfig = knob(DocumentConfig, "Documents of running text.")


def _lower_case_wordpiece() -> TokenizerConfig:
    return TokenizerConfig(kind="wordpiece", lowercase=True)


@dataclass(frozen=True, kw_only=True)
class MaskedLMRun(LanguageModelRun):
    """A masked language model."""

    excluded: ClassVar[tuple[str, ...]] = (*TEXT_ONLY, "bert.pooling", "bert.pooler")  # of label heads alone
    preset_sizes: ClassVar[tuple[str, ...]] = tuple(f"bert.{name}" for name in STACK_SIZES)
    model_settings: ClassVar[tuple[str, ...]] = ("preset", "bert.")

    task: str = knob("masked-lm", "Task to train.", choices=("masked-lm",))
    preset: str = preset_knob({"bert": layers_and_sizes(BERT_PRESETS)})
    tokenizer: TokenizerConfig = knob(_lower_case_wordpiece, "Tokenizer.")
    bert: BertConfig = knob(BertConfig, "Encoder; the preset sets its sizes unless it is custom.")
    masking: MaskingConfig = knob(MaskingConfig, "Masked language modelling.")

    @property
    def is_tokenizer_trained(self) -> bool:
        """Whether the run trains a tokenizer, or the subwords that extend one."""
        return super().is_tokenizer_trained or self.masking.new_vocabulary

    def check(self) -> None:
        super().check()
        if self.bert.causal and self.masking.next_sentence:
            raise ConfigError(
                "next-sentence prediction (--next-sentence) reads the first token, which attends to itself alone in a "
                "causal encoder: leave out --causal, or --next-sentence"
            )
        if self.tokenizer.extend and self.masking.new_vocabulary:
            raise ConfigError("a new vocabulary (--new-vocabulary) is not extended: leave out --extend-vocabulary")


@dataclass(frozen=True, kw_only=True)
class CausalLMRun(LanguageModelRun):
    """A causal language model."""

    preset_sizes: ClassVar[tuple[str, ...]] = tuple(f"gpt.{name}" for name in STACK_SIZES)
    model_settings: ClassVar[tuple[str, ...]] = ("preset", "gpt.")
    descriptions: ClassVar[Mapping[str, str]] = {
        "documents.document_boundary": "What one document is; a boundary token follows each. Documents are held out "
        "whole, except files, whose ends are held out; auto: file.",
    }

    task: str = knob("causal-lm", "Task to train.", choices=("causal-lm",))
    preset: str = preset_knob({"gpt": layers_and_sizes(GPT_PRESETS)})
    gpt: GptConfig = knob(GptConfig, "Causal language model; the preset sets its sizes unless it is custom.")


@dataclass(frozen=True, kw_only=True)
class ElmoRun(LanguageModelRun):
    """An ELMo language model."""

    excluded: ClassVar[tuple[str, ...]] = (
        *(*TEXT_ONLY, EXTENSION, *LORA_SETTINGS),
        *("elmo.vocab_size", "elmo.boundary_id"),  # the tokenizer decides them
    )
    preset_sizes: ClassVar[tuple[str, ...]] = ("elmo.hidden_size",)
    model_settings: ClassVar[tuple[str, ...]] = ("preset", "elmo.")

    task: str = knob("elmo", "Task to train.", choices=("elmo",))
    preset: str = preset_knob(
        {"elmo": {name: (size.num_layers, size.hidden_size) for name, size in ELMO_PRESETS.items()}}
    )
    elmo: ElmoConfig = knob(ElmoConfig, "ELMo language model; the preset sets its sizes unless it is custom.")
