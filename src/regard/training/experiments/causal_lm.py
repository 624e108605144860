"""Training a causal language model: documents, a tokenizer, the model's size, and what is kept in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.trace import trace
from regard.checkpoint.causal_dir import TASK, LoadedCausalLM, load_causal_lm, save_causal_lm
from regard.config.models import GPT_PRESETS, GptConfig
from regard.config.runs import RunConfig
from regard.data.documents import Documents, hold_out_documents, read_documents
from regard.errors import ConfigError, UsageError
from regard.models import build_model
from regard.models.gpt import Gpt
from regard.tasks.causal_lm import CausalLMObjective, causal_lm_scores
from regard.tasks.token_stream import TokenStream
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer
from regard.tokens import Tokens
from regard.training.experiments.base import (
    BaseExperiment,
    EvaluationResult,
    ModelEvaluator,
    choose_preset,
    initialize_model,
    load_or_train_tokenizer,
    rejection_notes,
)
from regard.training.snapshots import LENGTH, AttentionSnapshot, SnapshotText
from regard.training.trivial_baselines import token_frequencies, unigram_perplexity
from regard.training.verdict import TrivialBaseline

HELD_OUT_SHARE, HELD_OUT_MOST = 0.1, 200_000  # of whole files, in characters at most
BATCH_TOKENS = 4096
SIZES = ((200_000, "micro"), (800_000, "tiny"))  # tokens up to which a preset is chosen; above, small
WHOLE = 1024  # tokens of documents that are rows, at most


class CausalLMExperiment(BaseExperiment[GptConfig, "CausalLMEvaluator"]):
    """Running text and the causal models that learn it."""

    name, has_final_evaluation = TASK, False

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.notes: list[str] = []
        documents, valid = self._documents()
        self.digests = {"train": documents.digest, "valid": valid.digest}
        self.start: LoadedCausalLM | None = load_causal_lm(config.pretrained) if config.pretrained else None
        self.is_pretrained = self.start is not None
        self.tokenizer = load_or_train_tokenizer(folder, lambda: self._tokenizer(documents.texts))
        self.documents = len(documents), len(valid)
        self.characters = sum(map(len, valid.texts))
        most = config.documents.sequence_length or (
            self.start.config.max_positions if self.start is not None else config.gpt.max_positions
        )
        train, self.valid = (TokenStream.of(part, self.tokenizer, most) for part in (documents, valid))
        whole = 0 if config.documents.sequence_length else _one_length(train.ids, self.tokenizer.eos_id)
        if whole:
            train, self.valid = (TokenStream(part.ids, whole, part.digest) for part in (train, self.valid))
        self.task = CausalLMObjective(train, seed=config.training.seed, whole=whole > 0)
        self.tokens_per_epoch = len(train.ids)
        self.model_config, self.reason = self._model_config(train.length)
        self.hidden_size = self.model_config.hidden_size
        self.preferred_settings: dict[str, float] = {"batch_tokens": max(BATCH_TOKENS, train.length)}

    # ---- data

    def _documents(self) -> tuple[Documents, Documents]:
        """Return what is learned and what is measured."""
        config = self.config
        train = self._read(config.data.train, "training")
        if config.data.valid:
            return train, self._read(config.data.valid, "validation")
        if self.document != "file":
            train, valid = hold_out_documents(train, config.training.seed)
            self.notes.append(f"validation: {len(valid):,} of the documents are held out (chosen by the seed)")
            return train, valid
        train, valid = split_off_ends(train)
        self.notes.append(f"validation: the last {sum(map(len, valid.texts)):,} characters are held out")
        return train, valid

    @property
    def document(self) -> str:
        """What a document is."""
        asked = self.config.documents.document_boundary
        return "file" if asked == "auto" else asked

    def _read(self, files: Sequence[str], name: str) -> Documents:
        found = read_documents(files, self.config.data.read, self.document)
        self.notes += rejection_notes(found, name)
        return found

    def _tokenizer(self, texts: list[str]) -> Tokenizer:
        if self.start is not None:
            return self.start.tokenizer
        return train_tokenizer(texts, self.config.tokenizer).without_special_tokens()

    def _model_config(self, length: int) -> tuple[GptConfig, str]:
        """Return the model for this data and why it was chosen."""
        if self.start is not None:
            theirs = self.start.config
            if length > theirs.max_positions:
                raise ConfigError(
                    f"documents.sequence_length ({length}) is more than the {theirs.max_positions} tokens of {self.config.pretrained}"
                )
            return theirs, f"as in {self.config.pretrained}"
        given = self.config.gpt
        preset, reason = choose_preset(
            self.config.preset,
            GPT_PRESETS,
            amount=self.tokens_per_epoch,
            sizes=SIZES,
            largest="small",
            where="with --arch gpt",
        )
        if preset is not None:
            given = given.override({"hidden_size": preset.hidden_size, "stack": preset.stack.to_dict()})
        known = {
            "vocab_size": self.tokenizer.vocab_size,
            "eos_id": self.tokenizer.eos_id,
            "max_positions": max(2, length),
        }
        return given.override(known), reason

    # ---- what a run asks

    def model(self) -> Gpt:
        """Return the model with its first weights."""
        weights = self.start.weights if self.start is not None else None
        return initialize_model(build_model(self.model_config), self.config.training.seed, weights)

    def limit_validation(self, share: float) -> None:
        """Validate on the first part of the validation text only."""
        self.valid = self.valid.first(share)
        self.characters = len(self.tokenizer.decode(self.valid.ids.tolist()))

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads."""
        return len(self.valid.ids)

    def evaluator(self, device: str) -> CausalLMEvaluator:
        """Return what measures weights."""
        return CausalLMEvaluator(self.model_config, self.tokenizer, self.valid, self.characters, device)

    def describe(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        train, valid = self.documents
        rows = "each a row" if self.task.whole else f"in rows of {self.task.train.length}"
        return [
            f"data: {train:,} documents, {self.tokens_per_epoch:,} tokens, {rows}; validation {valid:,} documents, "
            f"{len(self.valid.ids):,} tokens of {self.characters:,} characters",
            f"tokens: {self.config.tokenizer.kind}, {self.tokenizer.vocab_size:,} kinds",
            f"model: {parameters / 1e6:.2f} M parameters, {self.model_config.summary()} ({self.reason})",
        ]

    def metadata(self, evaluator: CausalLMEvaluator) -> dict[str, Any]:
        """Return what must be known of the texts that were read."""
        return {"document": self.document}

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Perplexity of validation tokens by their training frequencies."""
        return [
            token_frequencies(unigram_perplexity([self.task.train.ids], [self.valid.ids], self.tokenizer.vocab_size))
        ]

    def save(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        fields, tokenizer = self.start.hf_config if self.start is not None else None, self.tokenizer
        save_causal_lm(
            self.folder, self.model_config, weights, tokenizer=tokenizer, facts=facts, card=card, fields=fields
        )

    def load_saved(self) -> LoadedCausalLM:
        """Return the run's model as it was written."""
        return load_causal_lm(self.folder)


class CausalLMEvaluator(ModelEvaluator[Gpt]):
    """Measures how well each next token of held-out text is told."""

    def __init__(
        self, config: GptConfig, tokenizer: Tokenizer, valid: TokenStream, characters: int, device: str
    ) -> None:
        super().__init__(build_model(config), device)
        self.tokenizer, self.valid, self.characters = tokenizer, valid, characters

    def compute_metrics(self) -> EvaluationResult:
        """Return the loss of held-out text in nats, a token and a character, and the perplexity of a token."""
        found = causal_lm_scores(self.model, self.valid, self.characters)
        return found, (-found["loss"],), []

    @torch.no_grad()
    def attention_snapshot(self) -> AttentionSnapshot | None:
        """Return where the model looks while it reads the beginning of the held-out text."""
        ids = self.valid.ids[: min(self.model.config.max_positions, LENGTH)].tolist()
        with trace() as seen:
            self.model(Tokens.from_rows([ids]))
        return AttentionSnapshot.from_trace(seen, SnapshotText.of(self.tokenizer, self.tokenizer.decode(ids), ids))


def split_off_ends(documents: Documents) -> tuple[Documents, Documents]:
    """Return each document without its last part, and those parts; they are cut between two lines where there are some.

    >>> kept, away = split_off_ends(Documents.of(["a line\\n" * 20]))
    >>> len(kept.texts[0]), len(away.texts[0])
    (126, 14)
    """
    share = min(HELD_OUT_SHARE, HELD_OUT_MOST / sum(map(len, documents.texts)))
    kept, away = [], []
    for text in documents.texts:
        place = len(text) - max(1, round(share * len(text)))
        place = text.rfind("\n", 0, place) + 1 or place
        kept.append(text[:place])
        away.append(text[place:])
    if not any(kept):
        raise UsageError("the text is too short to hold some of it out: give validation text with --valid")
    return documents.of([text for text in kept if text]), documents.of(away)


def _one_length(ids: np.ndarray, end: int) -> int:
    """Return how many tokens each document has, its boundary counted, where all have equally many; else 0."""
    lengths = np.diff(np.flatnonzero(ids == end), prepend=-1)
    same = len(lengths) > 1 and int(lengths.min()) == int(lengths.max()) <= WHOLE
    return int(lengths[0]) if same else 0
