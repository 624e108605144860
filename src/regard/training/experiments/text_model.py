"""What training text models with a vocabulary of their own has in common: tokenizer, truncation, saving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

from regard.checkpoint.native import LoadedTextModel, TextModelConfig, load_text_model, save_text_model
from regard.config.task_runs import EncoderRun
from regard.config.text_classifier import TextClassifierRun
from regard.tasks.text_model import TextPreprocessor
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer
from regard.training.experiments.base import EvaluatorT
from regard.training.experiments.supervised import SplitT, SupervisedExperiment
from regard.training.vocabulary import load_or_train_tokenizer

ConfigT = TypeVar("ConfigT", bound=TextModelConfig)


class TextModelExperiment(SupervisedExperiment[ConfigT, EvaluatorT, SplitT]):
    """Train a classifier or tagger of any family from scratch. A subclass chooses the model config."""

    config: EncoderRun | TextClassifierRun
    default_epochs = 20.0
    default_batch_rows = 32

    # set by `prepare`
    preprocessor: TextPreprocessor

    def prepare(self) -> None:
        """Read and encode the data, build the objective, and choose the model config."""
        super().prepare()
        self.model_config, self.reason = self.choose_config()
        self.hidden_size = self.model_config.hidden_size

    def prepare_encoding(self, train: Any) -> None:
        """Train a tokenizer on the training texts."""
        self.preprocessor = TextPreprocessor(self.load_tokenizer(train), self.config.data.max_length)

    def load_tokenizer(self, train: Any) -> Tokenizer:
        """The tokenizer of a run that is resumed, or one that is trained on the training texts."""
        return load_or_train_tokenizer(
            self.folder, lambda: train_tokenizer(self.tokenizer_texts(train), self.config.tokenizer)
        )

    def tokenizer_texts(self, examples: Any) -> list[str]:
        """Texts of examples, on which a tokenizer is trained."""
        raise NotImplementedError

    def choose_config(self) -> tuple[ConfigT, str]:
        """Choose the model config for this data, and say why."""
        raise NotImplementedError

    # ---- interface of a run

    def describe_tokenizer(self) -> str:
        """Describe the tokenizer for the user."""
        return f"tokens: {self.config.tokenizer.kind}, vocabulary of {self.preprocessor.tokenizer.vocab_size:,}"

    def metadata(self, evaluator: EvaluatorT) -> dict[str, Any]:
        """Entries of task.json that inference needs."""
        return {"labels": list(self.labels), "max_length": self.config.data.max_length}

    def save(self, weights: Mapping[str, Tensor], metadata: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        save_text_model(
            self.folder,
            self.model_config,
            weights,
            tokenizer=self.preprocessor.tokenizer,
            task=self.name,
            metadata=metadata,
            card=card,
        )

    def load_saved(self) -> LoadedTextModel[ConfigT]:
        """Load the run's model."""
        return load_text_model(self.folder, type(self.model_config), self.name)
