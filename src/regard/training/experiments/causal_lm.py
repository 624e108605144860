"""Train a causal language model on documents: data, tokenizer, model size, evaluation and saving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.trace import trace
from regard.checkpoint.causal_dir import load_causal_lm, save_causal_lm
from regard.checkpoint.source import CausalSource
from regard.checkpoint.weights import to_arrays
from regard.config.language_model_runs import CausalLMRun
from regard.config.models import GPT_PRESETS, GptConfig
from regard.data.documents import Documents
from regard.errors import ConfigError, UsageError
from regard.models import build_model
from regard.models.gpt import Gpt
from regard.packed_tokens import Ids, Tokens
from regard.tasks.causal_lm import CausalLMObjective, predict_next_tokens
from regard.tasks.predictions import Predictions
from regard.tasks.scoring import Scoring
from regard.tasks.token_stream import TokenStream
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer
from regard.training.evaluation import ModelEvaluator, Samples
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.language_model import LanguageModelExperiment
from regard.training.experiments.presets import PresetTable
from regard.training.snapshots import SNAPSHOT_LENGTH, AttentionSnapshot, SnapshotText
from regard.training.trainable import check_adapter_fits
from regard.training.vocabulary import extend_tables

HELD_OUT_FRACTION = 0.1  # of each file
MAX_HELD_OUT_CHARACTERS = 200_000  # of all files
BATCH_TOKENS = 4096
PRESETS = PresetTable(GPT_PRESETS, ((200_000, "micro"), (800_000, "tiny")), largest="small")
MAX_DOCUMENT_ROW = 1024  # tokens of a document up to which each document is a row


class CausalLMExperiment(LanguageModelExperiment[GptConfig, "CausalLMEvaluator"]):
    """Train a GPT on documents."""

    config: CausalLMRun
    presets = PRESETS
    # set by `prepare`
    pretrained: CausalSource | None = None
    num_valid_characters: int
    objective: CausalLMObjective

    # ---- data and model size

    @property
    def document_boundary(self) -> str:
        """What separates documents; by default, each file is one."""
        boundary = self.config.documents.document_boundary
        return "file" if boundary == "auto" else boundary

    def hold_out(self, documents: Documents) -> tuple[Documents, Documents]:
        """Split off validation documents, or the ends of files."""
        return split_off_ends(documents) if self.document_boundary == "file" else super().hold_out(documents)

    def describe_held_out(self, valid: Documents) -> str:
        """Describe the held-out documents, or ends of files, for the user."""
        if self.document_boundary != "file":
            return super().describe_held_out(valid)
        return f"the last {_count_characters(valid):,} characters are held out"

    def load_pretrained(self) -> CausalSource:
        """Load the pretrained model."""
        pretrained = load_causal_lm(self.config.pretrained)
        check_adapter_fits(self.config.lora, self.config.pretrained, pretrained.hf_config)
        return pretrained

    def build_tokenizer(self, texts: list[str]) -> Tokenizer:
        """Take the tokenizer of the pretrained model, maybe extended, or train one on the training texts."""
        if self.pretrained is not None:
            return self.extend_vocabulary(self.pretrained.tokenizer, texts)
        return train_tokenizer(texts, self.config.tokenizer).without_special_tokens()

    def prepare_objective(self, documents: DataSplits[Documents]) -> None:
        """Tokenize the documents into rows, or each into its own row where all are equally long."""
        if self.pretrained is not None and self.config.tokenizer.extend:
            self.pretrained = self._extend_pretrained(self.pretrained)
        self.num_valid_characters = _count_characters(documents.valid)
        max_length = self._max_row_length()
        train = TokenStream.from_documents(documents.train, self.tokenizer, max_length)
        self.valid = TokenStream.from_documents(documents.valid, self.tokenizer, max_length)
        document_length = 0
        if not self.config.documents.sequence_length:
            document_length = _common_document_length(train.ids, self.tokenizer.eos_id)
        if document_length:
            train = TokenStream(train.ids, document_length, train.digest)
            self.valid = TokenStream(self.valid.ids, document_length, self.valid.digest)
        self.objective = CausalLMObjective(train, seed=self.config.training.seed, whole_documents=document_length > 0)
        self.tokens_per_epoch = len(train.ids)
        self.model_config, self.reason = self.choose_config(self.tokens_per_epoch)
        self.hidden_size = self.model_config.hidden_size
        self.preferred_settings = {"batch_tokens": max(BATCH_TOKENS, train.length)}

    def _extend_pretrained(self, pretrained: CausalSource) -> CausalSource:
        """Extend the token tables of the pretrained model to the extended vocabulary."""
        return replace(
            pretrained,
            tokenizer=self.tokenizer,
            config=pretrained.config.override({"vocab_size": self.tokenizer.vocab_size}),
            arrays=to_arrays(extend_tables(pretrained.weights, pretrained.tokenizer, self.tokenizer)),
        )

    def _max_row_length(self) -> int:
        if self.config.documents.sequence_length:
            return self.config.documents.sequence_length
        if self.pretrained is not None:
            return self.pretrained.config.max_positions
        return self.config.gpt.max_positions

    def pretrained_config(self, pretrained: CausalSource) -> tuple[GptConfig, str]:
        """Config of the pretrained model, which must have enough positions for a row."""
        row_length = self.objective.train.length
        max_positions = pretrained.config.max_positions
        if row_length > max_positions:
            raise ConfigError(
                f"documents.sequence_length ({row_length}) exceeds the {max_positions} positions "
                f"of {self.config.pretrained}"
            )
        return super().pretrained_config(pretrained)

    def fresh_config(self, sizes: Mapping[str, Any]) -> GptConfig:
        """Config of a model with random weights, with a position for each token of a row."""
        data_settings = {
            "vocab_size": self.tokenizer.vocab_size,
            "eos_id": self.tokenizer.eos_id,
            "max_positions": max(2, self.objective.train.length),
        }
        return self.config.gpt.override({**sizes, **data_settings})

    # ---- interface of a run

    def limit_validation(self, fraction: float) -> None:
        """Validate on the first part of the validation text only."""
        super().limit_validation(fraction)
        self.num_valid_characters = len(self.tokenizer.decode(self.valid.ids.tolist()))

    def evaluator(self, device: str) -> CausalLMEvaluator:
        """Build the evaluator on validation data."""
        return CausalLMEvaluator(
            self.model_config,
            self.tokenizer,
            valid=self.valid,
            num_characters=self.num_valid_characters,
            device=device,
            scoring=self.scoring,
        )

    @property
    def data_summary(self) -> str:
        """Size of the training data in a few words."""
        return f"{self.num_documents:,} documents, {self.tokens_per_epoch:,} tokens"

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        rows = "each a row" if self.objective.whole_documents else f"in rows of {self.objective.train.length}"
        return [
            f"data: {self.data_summary}, {rows}; "
            f"validation {self.num_valid_documents:,} documents, "
            f"{len(self.valid.ids):,} tokens of {self.num_valid_characters:,} characters",
            self.describe_tokenizer(),
            self.describe_model(num_parameters),
        ]

    def metadata(self, evaluator: CausalLMEvaluator) -> dict[str, Any]:
        """Entry of task.json on what separates documents."""
        return {"document": self.document_boundary}

    def save(self, weights: Mapping[str, Tensor], metadata: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        save_causal_lm(
            self.folder,
            self.model_config,
            weights,
            tokenizer=self.tokenizer,
            metadata=metadata,
            card=card,
            original_config=self.pretrained.hf_config if self.pretrained is not None else None,
        )

    def load_saved(self) -> CausalSource:
        """Load the run's model."""
        return load_causal_lm(self.folder)


class CausalLMEvaluator(ModelEvaluator[Gpt]):
    """Evaluates next-token prediction on held-out text."""

    def __init__(
        self,
        config: GptConfig,
        tokenizer: Tokenizer,
        valid: TokenStream,
        num_characters: int,
        device: str,
        scoring: Scoring,
    ) -> None:
        super().__init__(build_model(config), device, scoring)
        self.tokenizer = tokenizer
        self.valid = valid
        self.num_characters = num_characters

    def predict(self) -> tuple[Predictions, Samples]:
        """Compute the loss of held-out text, per token and per character."""
        return predict_next_tokens(self.model, self.valid, self.num_characters), []

    @torch.no_grad()
    def attention_snapshot(self) -> AttentionSnapshot | None:
        """Attention over the first tokens of the held-out text."""
        ids = self.valid.ids[: min(self.model.config.max_positions, SNAPSHOT_LENGTH)].tolist()
        with trace() as attention:
            self.model(Tokens.from_rows([ids]))
        text = SnapshotText.from_ids(self.tokenizer, self.tokenizer.decode(ids), ids)
        return AttentionSnapshot.from_trace(attention, self.model.config, text)


def split_off_ends(documents: Documents) -> tuple[Documents, Documents]:
    """Hold out the end of each document, at a line break where there is one.

    >>> train, held_out = split_off_ends(Documents.from_texts(["a line\\n" * 20]))
    >>> len(train.texts[0]), len(held_out.texts[0])
    (126, 14)
    """
    fraction = min(HELD_OUT_FRACTION, MAX_HELD_OUT_CHARACTERS / _count_characters(documents))
    train_texts: list[str] = []
    held_out_texts: list[str] = []
    for text in documents.texts:
        offset = len(text) - max(1, round(fraction * len(text)))
        line_start = text.rfind("\n", 0, offset) + 1
        if line_start:
            offset = line_start
        train_texts.append(text[:offset])
        held_out_texts.append(text[offset:])
    if not any(train_texts):
        raise UsageError("the text is too short to hold some of it out: give validation text with --valid")
    return documents.from_texts([text for text in train_texts if text]), documents.from_texts(held_out_texts)


def _count_characters(documents: Documents) -> int:
    return sum(len(text) for text in documents.texts)


def _common_document_length(ids: Ids, eos_id: int) -> int:
    """Length shared by all documents, in tokens with eos; 0 if they differ or are too long for a row."""
    lengths = np.diff(np.flatnonzero(ids == eos_id), prepend=-1)
    if len(lengths) < 2:
        return 0
    shortest = int(lengths.min())
    longest = int(lengths.max())
    return longest if shortest == longest <= MAX_DOCUMENT_ROW else 0
