"""What an encoder with the head of a task starts from: config, tokenizer and initial weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from regard.checkpoint.model_files import folder_digest
from regard.checkpoint.source import EncoderSource
from regard.config.models import BertConfig
from regard.models.bert import Bert, initialize_bert
from regard.text.special_tokens import with_delimiters
from regard.text.tokenizer import Tokenizer
from regard.training.experiments.base import initialize_model
from regard.training.vocabulary import extend_tables


@dataclass(frozen=True, kw_only=True)
class EncoderStart:
    """Config, tokenizer and initial weights of an encoder with the head of a task."""

    config: BertConfig
    tokenizer: Tokenizer
    weights: Mapping[str, Tensor]
    max_length: int  # tokens of a sequence with its special tokens
    reason: str  # where config and weights come from, for the user
    digest: str = ""  # of the folder that they come from
    model_type: str = "bert"  # preferred in config.json
    hf_config: Mapping[str, Any] = field(default_factory=dict)  # config.json of the folder, to be written back
    has_new_tokens: bool = False  # whether token tables have rows that those of the folder lack

    @classmethod
    def from_scratch(
        cls, config: BertConfig, tokenizer: Tokenizer, *, max_length: int, reason: str, seed: int
    ) -> EncoderStart:
        """Start from random weights; the vocabulary is that of a tokenizer which the run trained."""
        config = config.override({"vocab_size": tokenizer.vocab_size, "pad_id": tokenizer.pad_id})
        model = initialize_model(Bert(config), seed)
        weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        return cls(config=config, tokenizer=tokenizer, weights=weights, max_length=max_length, reason=reason)

    @classmethod
    def from_folder(cls, source: EncoderSource, reason: str) -> EncoderStart:
        """Start from the weights of a pretrained encoder."""
        return cls(
            config=source.config,
            tokenizer=source.tokenizer,
            weights=source.weights,
            max_length=source.max_length,
            reason=reason,
            digest=folder_digest(source.path),
            model_type=source.model_type,
            hf_config=source.hf_config,
        )

    def with_vocabulary(self, tokenizer: Tokenizer) -> EncoderStart:
        """The same with an extended tokenizer, and token tables that fit it."""
        return replace(
            self,
            tokenizer=tokenizer,
            config=self.config.override({"vocab_size": tokenizer.vocab_size}),
            weights=extend_tables(self.weights, self.tokenizer, tokenizer),
            has_new_tokens=True,
        )

    def with_delimiters(self) -> EncoderStart:
        """The same with a tokenizer that ends texts, and pads rows, as causal models need it."""
        if not self.config.causal:
            return self
        tokenizer = with_delimiters(self.tokenizer)
        has_row = tokenizer.vocab_size <= self.config.vocab_size  # tables may be longer than the vocabulary
        start = replace(self, tokenizer=tokenizer) if has_row else self.with_vocabulary(tokenizer)
        return replace(start, config=start.config.override({"pad_id": tokenizer.pad_id}))

    def with_random_weights(self, seed: int) -> EncoderStart:
        """The same with random weights."""
        model = Bert(self.config)
        initialize_bert(model, seed)
        return replace(self, weights={name: tensor.detach() for name, tensor in model.state_dict().items()})
