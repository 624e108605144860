"""Pretrain an encoder with masked language modelling (Devlin et al., 2019) on documents.

A pretrained encoder can get a new vocabulary: the embedding of each new token is the mean of those of the old tokens
that its text consists of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.trace import trace
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.source import EncoderSource
from regard.config.language_model_runs import MaskedLMRun
from regard.config.models import BERT_PRESETS, BertConfig
from regard.data.documents import Documents
from regard.errors import ConfigError, DataError, UsageError
from regard.models import build_model
from regard.models.bert import Bert, initialize_local_attention, rescale_embeddings
from regard.packed_tokens import Ids, Tokens
from regard.tasks.masked_lm import (
    TOKEN_COUNTS_FILE,
    FilledToken,
    MaskedLMObjective,
    MaskedRowLayout,
    evaluation_batches,
    mask_context,
    predict_masked_tokens,
    token_counts,
    top_tokens_at,
    unigram_loss,
)
from regard.tasks.metrics import perplexity
from regard.tasks.predictions import Predictions
from regard.tasks.scoring import Scoring
from regard.tasks.token_stream import TokenStream, equal_rows
from regard.text.special_tokens import SpecialTokens
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_masked_tokenizer
from regard.training.evaluation import ModelEvaluator, Samples
from regard.training.experiments.base import initialize_model
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.language_model import LanguageModelExperiment
from regard.training.experiments.presets import PresetTable
from regard.training.snapshots import SNAPSHOT_LENGTH, AttentionSnapshot, SnapshotText
from regard.training.trivial_baselines import token_frequencies
from regard.training.verdict import TrivialBaseline
from regard.training.vocabulary import TOKEN_TABLES, extend_tables

DEFAULT_ROW_LENGTH = 128  # in tokens
BATCH_TOKENS = 4096
# Of the token embedding: learned faster, it keeps the model from attending to the context.
MAX_EMBEDDING_RATE = 0.01
EMBEDDING_RATE_SCALE = 0.5  # over the hidden size
MAX_TRAINING_TOKENS = 40_000_000  # over all epochs, by default
PRESETS = PresetTable(  # by characters, about four per token: the size is chosen before the text is tokenized
    BERT_PRESETS,
    ((1_200_000, "tiny"), (120_000_000, "mini"), (1_200_000_000, "small")),
    largest="base",
    unit="characters",
)
NUM_SAMPLES = 3  # masked tokens shown at each evaluation
TOP_K = 3  # predictions shown for each
TRANSFORM_PREFIXES = ("mlm_head.", "pooler", "next_sentence")  # of the head's weights without the vocabulary's


class MaskedLMExperiment(LanguageModelExperiment[BertConfig, "MaskedLMEvaluator"]):
    """Pretrain an encoder on documents with masked language modelling."""

    config: MaskedLMRun
    presets = PRESETS
    # set by `prepare`
    pretrained: EncoderSource | None = None
    layout: MaskedRowLayout
    counts: NDArray[np.int64]  # of tokens in the training split
    objective: MaskedLMObjective

    # ---- data and model size

    @property
    def head(self) -> str:
        """Head of the encoder."""
        return "pretraining" if self.config.masking.next_sentence else "masked"

    def load_pretrained(self) -> EncoderSource:
        """Load the pretrained encoder, and note which of its weights are used."""
        pretrained = load_encoder(self.config.pretrained, head=self.head, seed=self.config.training.seed)
        self.notes += pretrained.report.format_lines()
        return pretrained

    def build_tokenizer(self, texts: list[str]) -> Tokenizer:
        """Take the tokenizer of the pretrained model, or train one on the training texts."""
        config = self.config.tokenizer
        if self.pretrained is None or self.config.masking.new_vocabulary:
            return train_masked_tokenizer(texts, config)
        return self.extend_vocabulary(self.pretrained.tokenizer, texts)

    @property
    def trained_beside_lora(self) -> tuple[str, ...]:
        """Beginnings of the names of weights that are trained besides LoRA: the head, and an extended vocabulary.

        Otherwise the output bias stays as it is: an adapter of peft holds modules, and its module is tied to the
        embedding.
        """
        return super().trained_beside_lora if self.config.tokenizer.extend else TRANSFORM_PREFIXES

    def prepare_objective(self, documents: DataSplits[Documents]) -> None:
        """Tokenize the documents into rows with special tokens; the model limits their length."""
        self.layout = MaskedRowLayout.from_tokenizer(self.tokenizer, self.config.masking)
        self.model_config, self.reason = self.choose_config(sum(map(len, documents.train.texts)))
        self.hidden_size = self.model_config.hidden_size
        train = self._tokenize(documents.train)
        self.valid = self._tokenize(documents.valid)
        self.counts = token_counts(train, self.tokenizer.vocab_size)
        self.objective = MaskedLMObjective(train, self.layout, seed=self.config.training.seed)
        self.tokens_per_epoch = max(1, round(self.config.masking.mask_rate * len(train.ids)))
        self.preferred_settings = {
            "batch_tokens": max(BATCH_TOKENS, train.length),
            "base_learning_rate": min(MAX_EMBEDDING_RATE, EMBEDDING_RATE_SCALE / self.hidden_size),
            "epochs": max(3, min(40, round(MAX_TRAINING_TOKENS / len(train.ids)))),
        }

    def _tokenize(self, documents: Documents) -> TokenStream:
        num_special = self.layout.num_special
        max_positions = self.model_config.max_positions
        row_length = self.config.documents.sequence_length or min(DEFAULT_ROW_LENGTH, max_positions)
        if not num_special + 2 <= row_length <= max_positions:
            raise ConfigError(
                f"documents.sequence_length ({row_length}) must be between {num_special + 2} and {max_positions}, "
                "the positions of the model"
            )
        stream = TokenStream.from_documents(documents, self.tokenizer, row_length - num_special)
        if not self.layout.masker.is_maskable[stream.ids].any():
            raise DataError("no word in it is known to the tokenizer", advice="give text in the model's own language")
        return stream

    def pretrained_config(self, pretrained: EncoderSource) -> tuple[BertConfig, str]:
        """Config of the pretrained model, with the new vocabulary where there is one."""
        if self.config.masking.next_sentence and pretrained.config.num_token_types < 2:
            raise UsageError(
                f"{self.config.pretrained} has no token types for pairs of texts: train it without next-sentence pairs"
            )
        config, reason = super().pretrained_config(pretrained)
        if self.tokenizer.digest == pretrained.tokenizer.digest:
            return config, reason
        return config.override(self._vocabulary_settings()), f"{reason}, new vocabulary"

    def fresh_config(self, sizes: Mapping[str, Any]) -> BertConfig:
        """Config of a model with random weights, for the vocabulary of the tokenizer."""
        return self.config.bert.override({**sizes, **self._vocabulary_settings()})

    def _vocabulary_settings(self) -> dict[str, Any]:
        return {"vocab_size": self.tokenizer.vocab_size, "head": self.head, "pad_id": self.tokenizer.pad_id}

    # ---- interface of a run

    def model(self) -> Bert:
        """Build the model with its initial weights, and with the dropout of pretraining."""
        dropout = self.config.masking.pretraining_dropout
        config = self.model_config.override({"dropout": dropout, "attention_dropout": dropout})
        weights = self._pretrained_weights()
        model: Bert = initialize_model(build_model(config), self.config.training.seed, weights)
        if weights is None:
            initialize_local_attention(model)
        return model

    def _pretrained_weights(self) -> Mapping[str, Tensor] | None:
        if self.pretrained is None:
            return None
        if self.tokenizer.digest == self.pretrained.tokenizer.digest:
            return self.pretrained.weights
        transfer = extend_tables if self.config.tokenizer.extend else transfer_embeddings
        return transfer(self.pretrained.weights, self.pretrained.tokenizer, self.tokenizer)

    def evaluator(self, device: str) -> MaskedLMEvaluator:
        """Build the evaluator on validation data."""
        return MaskedLMEvaluator(
            self.model_config,
            self.tokenizer,
            layout=self.layout,
            valid=self.valid,
            counts=self.counts,
            device=device,
            scoring=self.scoring,
        )

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        masking = self.config.masking
        unit = "words" if masking.whole_word_masking else "tokens"
        data = self.describe_documents(self.layout.num_special)
        return [
            f"{data}; {100 * masking.mask_rate:.3g} % of the {unit} are masked",
            f"tokens: vocabulary of {self.tokenizer.vocab_size:,}",
            self.describe_model(num_parameters),
        ]

    def metadata(self, evaluator: MaskedLMEvaluator) -> dict[str, Any]:
        """Entry of task.json on the row length of training."""
        return {"row": self.objective.train.length + self.layout.num_special}

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Perplexity of masked tokens by their training frequencies."""
        return [token_frequencies(perplexity(unigram_loss(self.counts, self.valid, self.layout), 1))]

    def save(self, weights: Mapping[str, Tensor], metadata: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        origin: dict[str, Any] = {}
        if self.pretrained is None:
            weights = rescale_embeddings(weights, self.model_config)
        else:
            origin = {"preferred_type": self.pretrained.model_type, "original_config": self.pretrained.hf_config}
        save_encoder(
            self.folder,
            self.model_config,
            weights,
            tokenizer=self.tokenizer,
            task=self.name,
            metadata=metadata,
            card=card,
            extra_files={TOKEN_COUNTS_FILE: json.dumps(self.counts.tolist()).encode()},
            **origin,
        )

    def load_saved(self) -> EncoderSource:
        """Load the run's model."""
        return load_encoder(self.folder)


class MaskedLMEvaluator(ModelEvaluator[Bert]):
    """Evaluates the prediction of masked tokens on held-out text."""

    def __init__(
        self,
        config: BertConfig,
        tokenizer: Tokenizer,
        layout: MaskedRowLayout,
        valid: TokenStream,
        counts: NDArray[np.int64],
        device: str,
        scoring: Scoring,
    ) -> None:
        super().__init__(build_model(config), device, scoring)
        self.tokenizer = tokenizer
        self.layout = layout
        self.valid = valid
        self.unigram_loss = unigram_loss(counts, valid, layout)
        self.sample_rows = _choose_samples(valid, layout)

    def predict(self) -> tuple[Predictions, Samples]:
        """Predict the masked tokens of held-out text."""
        predictions = predict_masked_tokens(self.model, self.valid, self.layout, unigram_loss=self.unigram_loss)
        return predictions, self._predict_samples()

    def attention_snapshot(self) -> AttentionSnapshot | None:
        """Attention over the first tokens of the held-out text, without masks."""
        text_ids = self.valid.ids[:SNAPSHOT_LENGTH].tolist()
        ids, token_types = SpecialTokens(self.tokenizer).add(text_ids)
        with trace() as attention:
            self.model.encode(Tokens.from_rows([ids]), np.array(token_types, dtype=np.int32))
        text = SnapshotText.from_ids(self.tokenizer, self.tokenizer.decode(text_ids).strip(), ids)
        return AttentionSnapshot.from_trace(attention, self.model.config, text)

    def _predict_samples(self) -> list[tuple[str, str, str]]:
        """Predict one masked token in each sample row: its context, the token, and the most probable predictions."""
        mask_id = self.layout.masker.mask_id
        samples = []
        for row, position in self.sample_rows:
            masked_row = row.copy()
            masked_row[0, position] = mask_id
            top_ids, probabilities = top_tokens_at(self.model, equal_rows(masked_row), np.array([position]), TOP_K)
            predictions = [
                f"{self._token_text(token_id)} {100 * probability:.0f} %"
                for token_id, probability in zip(top_ids[0], probabilities[0], strict=True)
            ]
            context = mask_context(self.tokenizer, row[0].tolist(), position, mask_id)
            samples.append((context, self._token_text(row[0, position]), ", ".join(predictions)))
        return samples

    def _token_text(self, token_id: np.int32) -> str:
        return FilledToken.from_id(self.tokenizer, int(token_id)).text


def _choose_samples(stream: TokenStream, layout: MaskedRowLayout) -> list[tuple[Ids, int]]:
    """Rows without masks, each [1, length], with the position of a one-token word in the middle of each."""
    batch = next(evaluation_batches(stream, layout))
    ids = batch.rows.ids.copy()
    ids[batch.positions] = batch.targets
    row_length = int(batch.rows.lengths[0])
    samples = []
    for index in range(min(NUM_SAMPLES, len(batch.rows))):
        row = ids[index * row_length : (index + 1) * row_length]
        continues = layout.masker.continues_word[row]
        is_whole_word = layout.masker.is_maskable[row] & ~continues & ~np.roll(continues, -1)
        positions = np.flatnonzero(is_whole_word)
        if len(positions):
            samples.append((row[None], int(positions[len(positions) // 2])))
    return samples


# ---- a new vocabulary for pretrained weights


def source_tokens(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """For each new token, the old token ids that its embedding is initialised from: itself, or its old subwords.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_wordpiece
    >>> old, new = (train_wordpiece([text] * 9, TokenizerConfig()) for text in ("ab c", "abc ab"))
    >>> sources = source_tokens(old, new)
    >>> [old.subwords(sources[new.backend.token_to_id(token)]) for token in ("[MASK]", "ab", "abc", "##b")]
    [['[MASK]'], ['ab'], ['ab', '##c'], ['##b']]
    """
    old_special = SpecialTokens(old)
    new_special = SpecialTokens(new)
    roles = ("pad_id", "unk_id", "bos_id", "eos_id", "mask_id")
    old_ids_by_role = {getattr(new_special, role): getattr(old_special, role) for role in roles}
    token_texts = [FilledToken.from_id(new, token_id).text for token_id in range(new.vocab_size)]
    subword_ids = old.encode_batch(token_texts)
    sources = []
    for token_id in range(new.vocab_size):
        same_token = old.backend.token_to_id(str(new.backend.id_to_token(token_id)))
        if old_ids_by_role.get(token_id, -1) >= 0:
            same_token = old_ids_by_role[token_id]
        if same_token is not None:
            sources.append([same_token])
        else:
            sources.append(subword_ids[token_id] or [max(old.unk_id, 0)])
    return sources


def transfer_embeddings(weights: Mapping[str, Tensor], old: Tokenizer, new: Tokenizer) -> dict[str, Tensor]:
    """Replace the rows of token tables by rows for the new tokens, each the mean of the rows of its source tokens."""
    sources = source_tokens(old, new)
    lengths = torch.tensor([len(source_ids) for source_ids in sources])
    flat_sources = torch.tensor(list(chain.from_iterable(sources)))
    new_ids = torch.arange(len(sources)).repeat_interleave(lengths)

    def average_rows(table: Tensor) -> Tensor:
        flat = table.reshape(len(table), -1).float()
        sums = torch.zeros(len(sources), flat.shape[1]).index_add_(0, new_ids, flat[flat_sources])
        return (sums / lengths[:, None]).reshape(len(sources), *table.shape[1:])

    return {name: average_rows(weight) if name in TOKEN_TABLES else weight for name, weight in weights.items()}
