"""Train a causal language model on documents: data, tokenizer, model size, evaluation and saving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.trace import trace
from regard.checkpoint.causal_dir import TASK, LoadedCausalLM, load_causal_lm, save_causal_lm
from regard.config.models import GPT_PRESETS, GptConfig
from regard.data.documents import Documents, hold_out_documents, read_documents
from regard.errors import ConfigError, UsageError
from regard.models import build_model
from regard.models.gpt import Gpt
from regard.tasks.causal_lm import CausalLMObjective, causal_lm_scores
from regard.tasks.token_stream import TokenStream
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer
from regard.tokens import Ids, Tokens
from regard.training.experiments.base import (
    BaseExperiment,
    EvaluationResult,
    ModelEvaluator,
    choose_preset,
    initialize_model,
    load_or_train_tokenizer,
)
from regard.training.experiments.data_splits import rejection_notes
from regard.training.snapshots import SNAPSHOT_LENGTH, AttentionSnapshot, SnapshotText
from regard.training.trivial_baselines import token_frequencies, unigram_perplexity
from regard.training.verdict import TrivialBaseline

HELD_OUT_FRACTION = 0.1  # of each file
MAX_HELD_OUT_CHARACTERS = 200_000  # of all files
BATCH_TOKENS = 4096
PRESET_SIZES = ((200_000, "micro"), (800_000, "tiny"))  # tokens below which a preset is chosen; above, small
MAX_DOCUMENT_ROW = 1024  # tokens of a document up to which each document is a row


class CausalLMExperiment(BaseExperiment[GptConfig, "CausalLMEvaluator"]):
    """Train a GPT on documents."""

    name = TASK
    has_final_evaluation = False

    # set by `prepare`
    pretrained: LoadedCausalLM | None
    tokenizer: Tokenizer
    num_documents: int  # of the training split
    num_valid_documents: int
    num_valid_characters: int
    valid: TokenStream
    objective: CausalLMObjective

    def prepare(self) -> None:
        """Read the documents, load or train the tokenizer, build the objective, and choose the model config."""
        config = self.config
        train_documents, valid_documents = self._read_splits()
        self.digests = {"train": train_documents.digest, "valid": valid_documents.digest}
        self.pretrained = load_causal_lm(config.pretrained) if config.pretrained else None
        self.tokenizer = load_or_train_tokenizer(self.folder, lambda: self._build_tokenizer(train_documents.texts))
        self.num_documents = len(train_documents)
        self.num_valid_documents = len(valid_documents)
        self.num_valid_characters = sum(len(text) for text in valid_documents.texts)
        max_length = self._max_row_length()
        train = TokenStream.from_documents(train_documents, self.tokenizer, max_length)
        self.valid = TokenStream.from_documents(valid_documents, self.tokenizer, max_length)
        document_length = 0
        if not config.documents.sequence_length:
            document_length = _common_document_length(train.ids, self.tokenizer.eos_id)
        if document_length:
            train = TokenStream(train.ids, document_length, train.digest)
            self.valid = TokenStream(self.valid.ids, document_length, self.valid.digest)
        self.objective = CausalLMObjective(train, seed=config.training.seed, whole_documents=document_length > 0)
        self.tokens_per_epoch = len(train.ids)
        self.model_config, self.reason = self._choose_config(train.length)
        self.hidden_size = self.model_config.hidden_size
        self.preferred_settings = {"batch_tokens": max(BATCH_TOKENS, train.length)}

    # ---- data and model size

    @property
    def document_boundary(self) -> str:
        """What separates documents; by default, each file is one."""
        boundary = self.config.documents.document_boundary
        return "file" if boundary == "auto" else boundary

    def _read_splits(self) -> tuple[Documents, Documents]:
        """Read training and validation documents; hold out some, or the ends of files, where there are no others."""
        config = self.config
        train = self._read(config.data.train, "training")
        if config.data.valid:
            return train, self._read(config.data.valid, "validation")
        if self.document_boundary != "file":
            train, valid = hold_out_documents(train, config.training.seed)
            self.notes.append(f"validation: {len(valid):,} of the documents are held out (chosen by the seed)")
            return train, valid
        train, valid = split_off_ends(train)
        num_characters = sum(len(text) for text in valid.texts)
        self.notes.append(f"validation: the last {num_characters:,} characters are held out")
        return train, valid

    def _read(self, files: Sequence[str], split: str) -> Documents:
        documents = read_documents(files, self.config.data.read, self.document_boundary)
        self.notes += rejection_notes(documents, split)
        return documents

    def _build_tokenizer(self, texts: list[str]) -> Tokenizer:
        if self.pretrained is not None:
            return self.pretrained.tokenizer
        return train_tokenizer(texts, self.config.tokenizer).without_special_tokens()

    def _max_row_length(self) -> int:
        if self.config.documents.sequence_length:
            return self.config.documents.sequence_length
        if self.pretrained is not None:
            return self.pretrained.config.max_positions
        return self.config.gpt.max_positions

    def _choose_config(self, row_length: int) -> tuple[GptConfig, str]:
        """Choose the model config for rows of this length, and say why."""
        if self.pretrained is not None:
            config = self.pretrained.config
            if row_length > config.max_positions:
                raise ConfigError(
                    f"documents.sequence_length ({row_length}) exceeds the {config.max_positions} positions "
                    f"of {self.config.pretrained}"
                )
            return config, f"as in {self.config.pretrained}"
        config = self.config.gpt
        preset, reason = choose_preset(
            self.config.preset,
            GPT_PRESETS,
            amount=self.tokens_per_epoch,
            sizes=PRESET_SIZES,
            largest="small",
            where="with --arch gpt",
        )
        if preset is not None:
            config = config.override({"hidden_size": preset.hidden_size, "stack": preset.stack.to_dict()})
        data_settings = {
            "vocab_size": self.tokenizer.vocab_size,
            "eos_id": self.tokenizer.eos_id,
            "max_positions": max(2, row_length),
        }
        return config.override(data_settings), reason

    # ---- interface of a run

    def model(self) -> Gpt:
        """Build the model with its initial weights."""
        weights = self.pretrained.weights if self.pretrained is not None else None
        return initialize_model(build_model(self.model_config), self.config.training.seed, weights)

    def limit_validation(self, fraction: float) -> None:
        """Validate on the first part of the validation text only."""
        self.valid = self.valid.take(fraction)
        self.num_valid_characters = len(self.tokenizer.decode(self.valid.ids.tolist()))

    def validation_tokens(self) -> int:
        """Count the tokens that one evaluation reads."""
        return len(self.valid.ids)

    def evaluator(self, device: str) -> CausalLMEvaluator:
        """Build the evaluator on validation data."""
        return CausalLMEvaluator(
            self.model_config,
            self.tokenizer,
            valid=self.valid,
            num_characters=self.num_valid_characters,
            device=device,
        )

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        rows = "each a row" if self.objective.whole_documents else f"in rows of {self.objective.train.length}"
        return [
            f"data: {self.num_documents:,} documents, {self.tokens_per_epoch:,} tokens, {rows}; "
            f"validation {self.num_valid_documents:,} documents, "
            f"{len(self.valid.ids):,} tokens of {self.num_valid_characters:,} characters",
            f"tokens: {self.config.tokenizer.kind}, vocabulary of {self.tokenizer.vocab_size:,}",
            f"model: {num_parameters / 1e6:.2f} M parameters, {self.model_config.summary()} ({self.reason})",
        ]

    def metadata(self, evaluator: CausalLMEvaluator) -> dict[str, Any]:
        """Entry of task.json on what separates documents."""
        return {"document": self.document_boundary}

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Perplexity of validation tokens by their training frequencies."""
        perplexity = unigram_perplexity([self.objective.train.ids], [self.valid.ids], self.tokenizer.vocab_size)
        return [token_frequencies(perplexity)]

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

    def load_saved(self) -> LoadedCausalLM:
        """Load the run's model."""
        return load_causal_lm(self.folder)


class CausalLMEvaluator(ModelEvaluator[Gpt]):
    """Evaluates next-token prediction on held-out text."""

    def __init__(
        self, config: GptConfig, tokenizer: Tokenizer, valid: TokenStream, num_characters: int, device: str
    ) -> None:
        super().__init__(build_model(config), device)
        self.tokenizer = tokenizer
        self.valid = valid
        self.num_characters = num_characters

    def compute_metrics(self) -> EvaluationResult:
        """Compute the loss in nats per token and per character, and the perplexity per token."""
        metrics = causal_lm_scores(self.model, self.valid, self.num_characters)
        return metrics, (-metrics["loss"],), []

    @torch.no_grad()
    def attention_snapshot(self) -> AttentionSnapshot | None:
        """Attention over the first tokens of the held-out text."""
        ids = self.valid.ids[: min(self.model.config.max_positions, SNAPSHOT_LENGTH)].tolist()
        with trace() as attention:
            self.model(Tokens.from_rows([ids]))
        text = SnapshotText.from_ids(self.tokenizer, self.tokenizer.decode(ids), ids)
        return AttentionSnapshot.from_trace(attention, text)


def split_off_ends(documents: Documents) -> tuple[Documents, Documents]:
    """Hold out the end of each document, at a line break where there is one.

    >>> train, held_out = split_off_ends(Documents.from_texts(["a line\\n" * 20]))
    >>> len(train.texts[0]), len(held_out.texts[0])
    (126, 14)
    """
    num_characters = sum(len(text) for text in documents.texts)
    fraction = min(HELD_OUT_FRACTION, MAX_HELD_OUT_CHARACTERS / num_characters)
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


def _common_document_length(ids: Ids, eos_id: int) -> int:
    """Length of the documents in tokens, with the boundary, where all are equally long and short enough; else 0."""
    lengths = np.diff(np.flatnonzero(ids == eos_id), prepend=-1)
    if len(lengths) < 2:
        return 0
    shortest = int(lengths.min())
    longest = int(lengths.max())
    return longest if shortest == longest <= MAX_DOCUMENT_ROW else 0
