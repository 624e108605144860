"""Training a language model on running text: documents, a tokenizer, the model's size, and what is kept in the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.checkpoint.native import LoadedRnnText, load_rnn_text, save_rnn_text
from regard.config.rnn_models import ELMO_PRESETS, ElmoConfig
from regard.config.runs import RunConfig
from regard.models import build_model
from regard.models.elmo import Elmo
from regard.tasks.elmo import ROW, ElmoObjective, elmo_scores
from regard.tasks.token_stream import TokenStream
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer
from regard.training.experiments.base import (
    BaseExperiment,
    EvaluationResult,
    ModelEvaluator,
    choose_preset,
    initialize_model,
    load_or_train_tokenizer,
    read_document_splits,
)
from regard.training.trivial_baselines import token_frequencies, unigram_perplexity
from regard.training.verdict import TrivialBaseline

TASK = "language"
BATCH_TOKENS = 2048  # rows of many steps are slow to read and cheap to put together: many small updates teach more
SIZES = ((100_000, "micro"), (1_000_000, "tiny"), (20_000_000, "small"))  # tokens up to which a preset is chosen


class ElmoExperiment(BaseExperiment[ElmoConfig, "ElmoEvaluator"]):
    """Running text and the recurrent language models that learn it."""

    name, has_final_evaluation = TASK, False

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        texts = read_document_splits(config)
        self.notes, self.digests = texts.notes, texts.digests
        self.start: LoadedRnnText[ElmoConfig] | None = None
        if config.pretrained:
            self.start = load_rnn_text(config.pretrained, ElmoConfig, TASK)
        self.is_pretrained = self.start is not None
        self.tokenizer = load_or_train_tokenizer(folder, lambda: self._tokenizer(texts.train.texts))
        self.texts = texts
        row = config.documents.sequence_length or ROW
        train, self.valid = (TokenStream.of(part, self.tokenizer, row) for part in (texts.train, texts.valid))
        self.task = ElmoObjective(train, seed=config.training.seed)
        self.tokens_per_epoch = len(train.ids)
        self.model_config, self.reason = self._model_config()
        self.hidden_size = self.model_config.hidden_size
        self.preferred_settings: dict[str, float] = {"batch_tokens": max(BATCH_TOKENS, row)}

    def _tokenizer(self, texts: list[str]) -> Tokenizer:
        return train_tokenizer(texts, self.config.tokenizer) if self.start is None else self.start.tokenizer

    def _model_config(self) -> tuple[ElmoConfig, str]:
        """Return the model for this data and why it was chosen."""
        if self.start is not None:
            return self.start.config, f"as in {self.config.pretrained}"
        given = self.config.elmo
        preset, reason = choose_preset(
            self.config.preset,
            ELMO_PRESETS,
            amount=self.tokens_per_epoch,
            sizes=SIZES,
            largest="base",
            where="with --arch elmo",
        )
        if preset is not None:
            given = given.override({"hidden_size": preset.hidden_size})
        return given.override({"vocab_size": self.tokenizer.vocab_size, "boundary_id": self.tokenizer.eos_id}), reason

    # ---- what a run asks

    def model(self) -> Elmo:
        """Return the model with its first weights."""
        weights = self.start.weights if self.start is not None else None
        return initialize_model(build_model(self.model_config), self.config.training.seed, weights)

    def limit_validation(self, share: float) -> None:
        """Validate on the first part of the validation text only."""
        self.valid = self.valid.first(share)

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads."""
        return len(self.valid.ids)

    def evaluator(self, device: str) -> ElmoEvaluator:
        """Return what measures weights."""
        return ElmoEvaluator(self.model_config, self.valid, device)

    def describe(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        return [
            self.texts.line(self.task.train, self.valid),
            f"tokens: {self.config.tokenizer.kind}, {self.tokenizer.vocab_size:,} kinds",
            f"model: {parameters / 1e6:.2f} M parameters, {self.model_config.summary()} ({self.reason})",
        ]

    def metadata(self, evaluator: ElmoEvaluator) -> dict[str, Any]:
        """Return what must be known to read running text as in training."""
        return {"row": self.task.train.length}

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Perplexity of validation tokens by their training frequencies."""
        return [
            token_frequencies(unigram_perplexity([self.task.train.ids], [self.valid.ids], self.tokenizer.vocab_size))
        ]

    def save(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        tokenizer = self.tokenizer
        save_rnn_text(self.folder, self.model_config, weights, tokenizer=tokenizer, task=TASK, facts=facts, card=card)

    def load_saved(self) -> LoadedRnnText[ElmoConfig]:
        """Return the run's model as it was written."""
        return load_rnn_text(self.folder, ElmoConfig, TASK)


class ElmoEvaluator(ModelEvaluator[Elmo]):
    """Measures language models from both ends on held-out text."""

    def __init__(self, config: ElmoConfig, valid: TokenStream, device: str) -> None:
        super().__init__(build_model(config), device)
        self.valid = valid

    def compute_metrics(self) -> EvaluationResult:
        """Return loss and perplexity of held-out text, from the left and from the right."""
        found = elmo_scores(self.model, self.valid)
        return found, (-found["loss"],), []
