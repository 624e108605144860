"""Train ELMo, a bidirectional recurrent language model, on documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.checkpoint.native import LoadedRnnText, load_rnn_text, save_rnn_text
from regard.config.rnn_models import ELMO_PRESETS, ElmoConfig
from regard.models import build_model
from regard.models.elmo import Elmo
from regard.tasks.elmo import DEFAULT_SEQUENCE_LENGTH, ElmoObjective, elmo_scores
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
)
from regard.training.experiments.data_splits import DocumentSplits, read_document_splits
from regard.training.trivial_baselines import token_frequencies, unigram_perplexity
from regard.training.verdict import TrivialBaseline

TASK = "language"
BATCH_TOKENS = 2048  # long rows are slow, whatever the batch size: many small updates teach more
PRESET_SIZES = ((100_000, "micro"), (1_000_000, "tiny"), (20_000_000, "small"))  # tokens below which one is chosen


class ElmoExperiment(BaseExperiment[ElmoConfig, "ElmoEvaluator"]):
    """Train the two recurrent language models of ELMo on documents."""

    name = TASK
    has_final_evaluation = False

    # set by `prepare`
    documents: DocumentSplits
    pretrained: LoadedRnnText[ElmoConfig] | None
    tokenizer: Tokenizer
    valid: TokenStream
    objective: ElmoObjective

    def prepare(self) -> None:
        """Read the documents, load or train the tokenizer, build the objective, and choose the model config."""
        config = self.config
        self.documents = read_document_splits(config)
        self.notes = self.documents.notes
        self.digests = self.documents.digests
        self.pretrained = None
        if config.pretrained:
            self.pretrained = load_rnn_text(config.pretrained, ElmoConfig, TASK)
        self.tokenizer = load_or_train_tokenizer(self.folder, self._build_tokenizer)
        row_length = config.documents.sequence_length or DEFAULT_SEQUENCE_LENGTH
        train = TokenStream.from_documents(self.documents.train, self.tokenizer, row_length)
        self.valid = TokenStream.from_documents(self.documents.valid, self.tokenizer, row_length)
        self.objective = ElmoObjective(train, seed=config.training.seed)
        self.tokens_per_epoch = len(train.ids)
        self.model_config, self.reason = self._choose_config()
        self.hidden_size = self.model_config.hidden_size
        self.preferred_settings = {"batch_tokens": max(BATCH_TOKENS, row_length)}

    def _build_tokenizer(self) -> Tokenizer:
        if self.pretrained is not None:
            return self.pretrained.tokenizer
        return train_tokenizer(self.documents.train.texts, self.config.tokenizer)

    def _choose_config(self) -> tuple[ElmoConfig, str]:
        """Choose the model config for this data, and say why."""
        if self.pretrained is not None:
            return self.pretrained.config, f"as in {self.config.pretrained}"
        config = self.config.elmo
        preset, reason = choose_preset(
            self.config.preset,
            ELMO_PRESETS,
            amount=self.tokens_per_epoch,
            sizes=PRESET_SIZES,
            largest="base",
            where="with --arch elmo",
        )
        if preset is not None:
            config = config.override({"hidden_size": preset.hidden_size})
        return config.override({"vocab_size": self.tokenizer.vocab_size, "boundary_id": self.tokenizer.eos_id}), reason

    # ---- interface of a run

    def model(self) -> Elmo:
        """Build the model with its initial weights."""
        weights = self.pretrained.weights if self.pretrained is not None else None
        return initialize_model(build_model(self.model_config), self.config.training.seed, weights)

    def limit_validation(self, fraction: float) -> None:
        """Validate on the first part of the validation text only."""
        self.valid = self.valid.take(fraction)

    def validation_tokens(self) -> int:
        """Count the tokens that one evaluation reads."""
        return len(self.valid.ids)

    def evaluator(self, device: str) -> ElmoEvaluator:
        """Build the evaluator on validation data."""
        return ElmoEvaluator(self.model_config, self.valid, device)

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        return [
            self.documents.describe(self.objective.train, self.valid),
            f"tokens: {self.config.tokenizer.kind}, vocabulary of {self.tokenizer.vocab_size:,}",
            f"model: {num_parameters / 1e6:.2f} M parameters, {self.model_config.summary()} ({self.reason})",
        ]

    def metadata(self, evaluator: ElmoEvaluator) -> dict[str, Any]:
        """Entry of task.json on the row length of training."""
        return {"row": self.objective.train.length}

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Perplexity of validation tokens by their training frequencies."""
        perplexity = unigram_perplexity([self.objective.train.ids], [self.valid.ids], self.tokenizer.vocab_size)
        return [token_frequencies(perplexity)]

    def save(self, weights: Mapping[str, Tensor], metadata: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        save_rnn_text(
            self.folder,
            self.model_config,
            weights,
            tokenizer=self.tokenizer,
            task=TASK,
            metadata=metadata,
            card=card,
        )

    def load_saved(self) -> LoadedRnnText[ElmoConfig]:
        """Load the run's model."""
        return load_rnn_text(self.folder, ElmoConfig, TASK)


class ElmoEvaluator(ModelEvaluator[Elmo]):
    """Evaluates both language models on held-out text."""

    def __init__(self, config: ElmoConfig, valid: TokenStream, device: str) -> None:
        super().__init__(build_model(config), device)
        self.valid = valid

    def compute_metrics(self) -> EvaluationResult:
        """Compute loss and perplexity, forward and backward."""
        metrics = elmo_scores(self.model, self.valid)
        return metrics, (-metrics["loss"],), []
