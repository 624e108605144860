"""What experiments on running text share: documents, tokenizer, validation text and its unigram baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.config.data import ReadConfig
from regard.config.language_model_runs import LanguageModelRun
from regard.data.documents import Documents, hold_out_documents, read_documents
from regard.tasks.token_stream import StreamObjective, TokenStream
from regard.text.tokenizer import Tokenizer
from regard.training.experiments.base import BaseExperiment, ConfigT, EvaluatorT
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.presets import PresetTable
from regard.training.experiments.pretrained import PretrainedModel, digest_pretrained
from regard.training.trivial_baselines import token_frequencies, unigram_perplexity
from regard.training.verdict import TrivialBaseline
from regard.training.vocabulary import load_or_train_tokenizer


class LanguageModelExperiment(BaseExperiment[ConfigT, EvaluatorT]):
    """Train a language model on documents.

    Subclasses define the tokenizer, in `prepare_objective` how documents become rows, and the model config.
    """

    config: LanguageModelRun
    presets: PresetTable
    has_final_evaluation = False

    # set by `prepare`
    tokenizer: Tokenizer
    num_documents: int  # of the training split
    num_valid_documents: int
    valid: TokenStream
    objective: StreamObjective

    # ---- data

    def prepare(self) -> None:
        """Read the documents, load or train the tokenizer, build the objective, and choose the model config."""
        documents = self.read_splits()
        self.notes += documents.notes
        self.digests |= documents.digests
        if self.config.pretrained:
            self.pretrained = self.load_pretrained()
            self.digests["start"] = digest_pretrained(self.pretrained)
        self.tokenizer = load_or_train_tokenizer(self.folder, lambda: self.build_tokenizer(documents.train.texts))
        self.num_documents = len(documents.train)
        self.num_valid_documents = len(documents.valid)
        self.prepare_objective(documents)

    @property
    def document_boundary(self) -> str:
        """What separates documents."""
        return self.config.documents.document_boundary

    def read_splits(self) -> DataSplits[Documents]:
        """Read training and validation documents; hold some out where there are no validation files."""

        def read(files: Sequence[str], config: ReadConfig) -> Documents:
            return read_documents(files, config, self.document_boundary)

        return DataSplits.read(self.config, read, self.hold_out, describe_held_out=self.describe_held_out)

    def hold_out(self, documents: Documents) -> tuple[Documents, Documents]:
        """Split off validation documents."""
        return hold_out_documents(documents, self.config.training.seed)

    def describe_held_out(self, valid: Documents) -> str:
        """Describe the held-out documents for the user."""
        return f"{len(valid):,} of the documents are held out (chosen by the seed)"

    def load_pretrained(self) -> PretrainedModel:
        """Load the pretrained model."""
        raise NotImplementedError

    def digest_model(self, name: str) -> str:
        """Digest the pretrained model."""
        return digest_pretrained(self.load_pretrained())

    def build_tokenizer(self, texts: list[str]) -> Tokenizer:
        """Take the tokenizer of the pretrained model, or train one on the training texts."""
        raise NotImplementedError

    def prepare_objective(self, documents: DataSplits[Documents]) -> None:
        """Tokenize the documents, build the objective, and choose the model config and the preferred settings."""
        raise NotImplementedError

    # ---- model size

    def choose_config(self, amount: int) -> tuple[ConfigT, str]:
        """Choose the model config, the pretrained model's or one that suits the amount of data, and say why."""
        if self.pretrained is not None:
            return self.pretrained_config(self.pretrained)
        sizes, reason = self.presets.choose(self.config.preset, amount, f"for {self.name}")
        return self.fresh_config(sizes), reason

    def pretrained_config(self, pretrained: Any) -> tuple[ConfigT, str]:
        """Config of the pretrained model, and where it is from."""
        return pretrained.config, f"as in {self.config.pretrained}"

    def fresh_config(self, sizes: Mapping[str, Any]) -> ConfigT:
        """Config of a model with random weights: the run's, with these sizes and what the data decide."""
        raise NotImplementedError

    # ---- interface of a run

    def limit_validation(self, fraction: float) -> None:
        """Validate on the first part of the validation text only."""
        self.valid = self.valid.take(fraction)

    def validation_tokens(self) -> int:
        """Count the tokens that one evaluation reads."""
        return len(self.valid.ids)

    @property
    def data_summary(self) -> str:
        """Size of the training data in a few words."""
        return f"{self.num_documents:,} documents, {len(self.objective.train.ids):,} tokens"

    def describe_documents(self, num_special: int = 0) -> str:
        """Describe the data for the user; `num_special` special tokens are added to each row."""
        train = self.objective.train
        row_length = train.length + num_special
        return (
            f"data: {self.data_summary} in rows of {row_length}; "
            f"validation {self.num_valid_documents:,} documents, {len(self.valid.ids):,} tokens"
        )

    def describe_tokenizer(self) -> str:
        """Describe the tokenizer for the user."""
        kind = f"those of {self.config.pretrained}" if self.config.pretrained else self.config.tokenizer.kind
        return f"tokens: {kind}, vocabulary of {self.tokenizer.vocab_size:,}"

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Perplexity of validation tokens by their training frequencies."""
        perplexity = unigram_perplexity([self.objective.train.ids], [self.valid.ids], self.tokenizer.vocab_size)
        return [token_frequencies(perplexity)]
