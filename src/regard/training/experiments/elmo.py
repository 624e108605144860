"""Train ELMo, a bidirectional recurrent language model, on documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.checkpoint.native import LoadedTextModel, load_text_model, save_text_model
from regard.config.language_model_runs import ElmoRun
from regard.config.rnn_models import ELMO_PRESETS, ElmoConfig
from regard.data.documents import Documents
from regard.models import build_model
from regard.models.elmo import Elmo
from regard.tasks.elmo import DEFAULT_SEQUENCE_LENGTH, ElmoObjective, predict_both_directions
from regard.tasks.predictions import Predictions
from regard.tasks.scoring import Scoring
from regard.tasks.token_stream import TokenStream
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer
from regard.training.evaluation import ModelEvaluator, Samples
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.language_model import LanguageModelExperiment
from regard.training.experiments.presets import PresetTable

BATCH_TOKENS = 2048  # long rows are slow, whatever the batch size: many small updates teach more
PRESETS = PresetTable(
    ELMO_PRESETS,
    ((100_000, "micro"), (1_000_000, "tiny"), (20_000_000, "small")),
    largest="base",
    sizes=("hidden_size",),
)


class ElmoExperiment(LanguageModelExperiment[ElmoConfig, "ElmoEvaluator"]):
    """Train the two recurrent language models of ELMo on documents."""

    config: ElmoRun
    presets = PRESETS
    # set by `prepare`
    pretrained: LoadedTextModel[ElmoConfig] | None = None
    objective: ElmoObjective

    # ---- data and model size

    def load_pretrained(self) -> LoadedTextModel[ElmoConfig]:
        """Load the pretrained model."""
        return load_text_model(self.config.pretrained, ElmoConfig, self.name)

    def build_tokenizer(self, texts: list[str]) -> Tokenizer:
        """Take the tokenizer of the pretrained model, or train one on the training texts."""
        return train_tokenizer(texts, self.config.tokenizer) if self.pretrained is None else self.pretrained.tokenizer

    def prepare_objective(self, documents: DataSplits[Documents]) -> None:
        """Tokenize the documents into rows."""
        row_length = self.config.documents.sequence_length or DEFAULT_SEQUENCE_LENGTH
        train = TokenStream.from_documents(documents.train, self.tokenizer, row_length)
        self.valid = TokenStream.from_documents(documents.valid, self.tokenizer, row_length)
        self.objective = ElmoObjective(train, seed=self.config.training.seed)
        self.tokens_per_epoch = len(train.ids)
        self.model_config, self.reason = self.choose_config(self.tokens_per_epoch)
        self.hidden_size = self.model_config.hidden_size
        self.preferred_settings = {"batch_tokens": max(BATCH_TOKENS, row_length)}

    def fresh_config(self, sizes: Mapping[str, Any]) -> ElmoConfig:
        """Config of a model with random weights, for the vocabulary of the tokenizer."""
        vocabulary = {"vocab_size": self.tokenizer.vocab_size, "boundary_id": self.tokenizer.eos_id}
        return self.config.elmo.override({**sizes, **vocabulary})

    # ---- interface of a run

    def evaluator(self, device: str) -> ElmoEvaluator:
        """Build the evaluator on validation data."""
        return ElmoEvaluator(self.model_config, self.valid, device=device, scoring=self.scoring)

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        return [
            self.describe_documents(),
            self.describe_tokenizer(),
            self.describe_model(num_parameters),
        ]

    def metadata(self, evaluator: ElmoEvaluator) -> dict[str, Any]:
        """Entry of task.json on the row length of training."""
        return {"row": self.objective.train.length}

    def save(self, weights: Mapping[str, Tensor], metadata: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        save_text_model(
            self.folder,
            self.model_config,
            weights,
            tokenizer=self.tokenizer,
            task=self.name,
            metadata=metadata,
            card=card,
        )

    def load_saved(self) -> LoadedTextModel[ElmoConfig]:
        """Load the run's model."""
        return load_text_model(self.folder, ElmoConfig, self.name)


class ElmoEvaluator(ModelEvaluator[Elmo]):
    """Evaluates both language models on held-out text."""

    def __init__(self, config: ElmoConfig, valid: TokenStream, device: str, scoring: Scoring) -> None:
        super().__init__(build_model(config), device, scoring)
        self.valid = valid

    def predict(self) -> tuple[Predictions, Samples]:
        """Compute the losses of held-out text, forward and backward."""
        return predict_both_directions(self.model, self.valid), []
