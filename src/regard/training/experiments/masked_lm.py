"""Training an encoder on running text with hidden words: documents, a tokenizer, the model's size, what is kept.

A new vocabulary for a model that knows another: each new token starts from what the old tokens know of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.trace import trace
from regard.checkpoint.encoder_dir import LoadedEncoder, load_encoder, save_encoder
from regard.config.models import BERT_PRESETS, BertConfig
from regard.config.runs import RunConfig
from regard.errors import ConfigError, DataError, UsageError
from regard.models import build_model
from regard.models.bert import Bert, initialize_local_attention, rescale_embeddings
from regard.tasks.masked_lm import (
    COUNTS,
    FilledToken,
    MaskedLMObjective,
    MaskedRowLayout,
    evaluation_batches,
    mask_context,
    masked_scores,
    token_counts,
    top_tokens_at,
    unigram_loss,
)
from regard.tasks.metrics import perplexity
from regard.tasks.token_stream import TokenStream, equal_rows
from regard.text.special_tokens import SpecialTokens
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_masked_tokenizer
from regard.tokens import Tokens
from regard.training.experiments.base import (
    BaseExperiment,
    EvaluationResult,
    ModelEvaluator,
    choose_preset,
    initialize_model,
    load_or_train_tokenizer,
    read_document_splits,
)
from regard.training.snapshots import LENGTH, AttentionSnapshot, SnapshotText
from regard.training.trivial_baselines import token_frequencies
from regard.training.verdict import TrivialBaseline

TASK = "fill"  # what the folder's model does
ROW = 128  # tokens of a row, where the user sets no number
BATCH_TOKENS = 4096
USUAL_RATE, USUAL_WIDTH = 0.01, 0.5  # of the table of words: faster, it keeps a model from looking at what is around
ALL_TOKENS = 40_000_000  # read in all where the user sets no length
SIZES = ((300_000, "tiny"), (30_000_000, "mini"), (300_000_000, "small"))  # tokens up to which a preset is chosen
LETTERS = 4  # of a token, about: the vocabulary is not known yet
SAMPLES, BEST = 3, 3  # gaps that are shown at each evaluation, and words for each


class MaskedLMExperiment(BaseExperiment[BertConfig, "MaskedLMEvaluator"]):
    """Running text and the encoder that learns to tell its hidden words."""

    name, has_final_evaluation = TASK, False

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.texts = read_document_splits(config)
        self.notes, self.digests = self.texts.notes, self.texts.digests
        self.head = "pretraining" if config.masking.next_sentence else "masked"
        self.start: LoadedEncoder | None = None
        if config.pretrained:
            self.start = load_encoder(config.pretrained, head=self.head, seed=config.training.seed)
            self.notes += self.start.report.format_lines()
        self.is_pretrained = self.start is not None
        self.tokenizer = load_or_train_tokenizer(folder, self._tokenizer)
        self.layout = MaskedRowLayout.of(self.tokenizer, config.masking)
        self.model_config, self.reason = self._model_config()
        self.hidden_size = self.model_config.hidden_size
        train, self.valid = (self._stream(part) for part in (self.texts.train, self.texts.valid))
        self.counts = token_counts(train, self.tokenizer.vocab_size)
        self.task = MaskedLMObjective(train, self.layout, seed=config.training.seed)
        self.tokens_per_epoch = max(1, round(config.masking.mask_rate * len(train.ids)))
        self.preferred_settings: dict[str, float] = {
            "batch_tokens": max(BATCH_TOKENS, train.length),
            "usual_rate": min(USUAL_RATE, USUAL_WIDTH / self.hidden_size),
            "epochs": max(3, min(40, round(ALL_TOKENS / len(train.ids)))),
        }

    def _tokenizer(self) -> Tokenizer:
        if self.start is not None and self.config.masking.words == "kept":
            return self.start.tokenizer
        return train_masked_tokenizer(self.texts.train.texts, self.config.tokenizer)

    def _stream(self, documents: Any) -> TokenStream:
        row, most = (
            self.config.documents.sequence_length or min(ROW, self.model_config.max_positions),
            self.model_config.max_positions,
        )
        if not self.layout.num_special + 2 <= row <= most:
            raise ConfigError(
                f"documents.sequence_length ({row}) must be between {self.layout.num_special + 2} and {most}, all it reads"
            )
        made = TokenStream.of(documents, self.tokenizer, row - self.layout.num_special)
        if not self.layout.masking.ordinary[made.ids].any():
            raise DataError("no word in it is known to the tokenizer", advice="give text in the model's own language")
        return made

    def _model_config(self) -> tuple[BertConfig, str]:
        """Return the model for this data, as it is written, and why it was chosen."""
        sizes = {"vocab_size": self.tokenizer.vocab_size, "head": self.head}
        if self.start is not None:
            config = self.start.config
            if self.config.masking.next_sentence and config.num_token_types < 2:
                raise UsageError(f"{self.config.pretrained} does not tell the texts of a pair apart: no next sentences")
            if self.tokenizer.digest == self.start.tokenizer.digest:
                return config, f"as in {self.config.pretrained}"
            return config.override(
                sizes | {"pad_id": self.tokenizer.pad_id}
            ), f"as in {self.config.pretrained}, new words"
        given = self.config.bert
        preset, reason = choose_preset(
            self.config.preset,
            BERT_PRESETS,
            amount=sum(map(len, self.texts.train.texts)),
            sizes=[(LETTERS * most, size) for most, size in SIZES],
            largest="base",
            what="letters",
            where="with --arch bert",
        )
        if preset is not None:
            given = given.override({"hidden_size": preset.hidden_size, "stack": preset.stack.to_dict()})
        return given.override(sizes | {"pad_id": self.tokenizer.pad_id}), reason

    # ---- what a run asks

    def model(self) -> Bert:
        """Return the model with its first weights; while it learns it has a dropout of its own."""
        dropout = self.config.masking.pretraining_dropout
        config = self.model_config.override({"dropout": dropout, "attention_dropout": dropout})
        weights = self._weights()
        made: Bert = initialize_model(build_model(config), self.config.training.seed, weights)
        if weights is None:
            initialize_local_attention(made)
        return made

    def _weights(self) -> Mapping[str, Tensor] | None:
        if self.start is None or self.tokenizer.digest == self.start.tokenizer.digest:
            return None if self.start is None else self.start.weights
        return transfer_embeddings(self.start.weights, self.start.tokenizer, self.tokenizer)

    def limit_validation(self, share: float) -> None:
        """Validate on the first part of the validation text only."""
        self.valid = self.valid.first(share)

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads."""
        return len(self.valid.ids)

    def evaluator(self, device: str) -> MaskedLMEvaluator:
        """Return what measures weights."""
        return MaskedLMEvaluator(self.model_config, self.tokenizer, self.layout, self.valid, self.counts, device)

    def describe(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        masking = self.config.masking
        hidden = (
            f"{100 * masking.mask_rate:.3g} % of the {'words' if masking.whole_word_masking else 'tokens'} are hidden"
        )
        return [
            self.texts.line(self.task.train, self.valid, self.layout.num_special) + f"; {hidden}",
            f"tokens: {self.tokenizer.vocab_size:,} kinds",
            f"model: {parameters / 1e6:.2f} M parameters, {self.model_config.summary()} ({self.reason})",
        ]

    def metadata(self, evaluator: MaskedLMEvaluator) -> dict[str, Any]:
        """Return what must be known to read texts as in training."""
        return {"row": self.task.train.length + self.layout.num_special}

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Perplexity of hidden tokens by their training frequencies."""
        return [token_frequencies(perplexity(unigram_loss(self.counts, self.valid, self.layout), 1))]

    def save(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        origin: dict[str, Any] = (
            {} if self.start is None else {"kind": self.start.model_type, "fields": self.start.hf_config}
        )
        save_encoder(
            self.folder,
            self.model_config,
            weights if self.start is not None else rescale_embeddings(weights, self.model_config),
            tokenizer=self.tokenizer,
            task=TASK,
            facts=facts,
            card=card,
            extra_files={COUNTS: json.dumps(self.counts.tolist()).encode()},
            **origin,
        )

    def load_saved(self) -> LoadedEncoder:
        """Return the run's model as it was written."""
        return load_encoder(self.folder)


class MaskedLMEvaluator(ModelEvaluator[Bert]):
    """Measures how well hidden words of held-out text are told."""

    def __init__(
        self,
        config: BertConfig,
        tokenizer: Tokenizer,
        layout: MaskedRowLayout,
        valid: TokenStream,
        counts: NDArray[np.int64],
        device: str,
    ) -> None:
        super().__init__(build_model(config), device)
        self.tokenizer, self.layout, self.valid = tokenizer, layout, valid
        self.unigram = perplexity(unigram_loss(counts, valid, layout), 1)
        self.gaps = _gaps(valid, layout)

    def compute_metrics(self) -> EvaluationResult:
        """Return loss and perplexity of hidden words of held-out text, beside what their counts alone would give."""
        found = masked_scores(self.model, self.valid, self.layout)
        metrics = {"loss": found.loss, "perplexity": perplexity(found.loss, 1), "perplexity_unigram": self.unigram}
        if found.together is not None:
            metrics["next_accuracy"] = found.together
        return metrics, (-found.loss,), self.samples()

    def attention_snapshot(self) -> AttentionSnapshot | None:
        """Return where the model looks while it reads the beginning of the held-out text, nothing hidden."""
        start = self.valid.ids[:LENGTH].tolist()
        ids, types = SpecialTokens(self.tokenizer).add(start)
        with trace() as seen:
            self.model.encode(Tokens.from_rows([ids]), np.array(types, dtype=np.int32))
        return AttentionSnapshot.from_trace(
            seen, SnapshotText.of(self.tokenizer, self.tokenizer.decode(start).strip(), ids)
        )

    def samples(self) -> list[tuple[str, str, str]]:
        """Return some gaps, what stood there and what the model would put there."""
        made = []
        for row, place in self.gaps:
            ids = row.copy()
            ids[0, place] = self.layout.masking.mask
            found, chances = top_tokens_at(self.model, equal_rows(ids), np.array([place]), BEST)
            said = [
                f"{FilledToken.of(self.tokenizer, int(number)).text} {100 * chance:.0f} %"
                for number, chance in zip(found[0], chances[0], strict=True)
            ]
            wanted = FilledToken.of(self.tokenizer, int(row[0, place])).text
            made.append(
                (
                    mask_context(self.tokenizer, row[0].tolist(), place, self.layout.masking.mask),
                    wanted,
                    ", ".join(said),
                )
            )
        return made


def _gaps(text: TokenStream, layout: MaskedRowLayout) -> list[tuple[NDArray[np.int32], int]]:
    """Return rows without anything hidden, each [1, T], and in the middle of each a word that is one token."""
    batch = next(evaluation_batches(text, layout))
    ids = batch.rows.ids.copy()
    ids[batch.positions] = batch.targets
    width, made = int(batch.rows.lengths[0]), []
    for number in range(min(SAMPLES, len(batch.rows))):
        row = ids[number * width : (number + 1) * width][None]
        inner = layout.masking.continues[row[0]]
        places = np.flatnonzero(layout.masking.ordinary[row[0]] & ~inner & ~np.roll(inner, -1))
        if len(places):
            made.append((row, int(places[len(places) // 2])))
    return made


TABLES = ("words.weight", "masked_output.weight", "masked_bias")  # weights that have a row for each token


def source_tokens(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Return for each new token the old ones that it starts from: itself, or the pieces that its text has there.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_wordpiece
    >>> old, new = (train_wordpiece([text] * 9, TokenizerConfig()) for text in ("ab c", "abc ab"))
    >>> found = source_tokens(old, new)
    >>> [old.subwords(found[new.backend.token_to_id(piece)]) for piece in ("[MASK]", "ab", "abc", "##b")]
    [['[MASK]'], ['ab'], ['ab', '##c'], ['##b']]
    """
    frames = SpecialTokens(old), SpecialTokens(new)
    roles = {getattr(frames[1], role): getattr(frames[0], role) for role in ("pad", "unknown", "start", "end", "mask")}
    written = old.encode_batch([FilledToken.of(new, number).text for number in range(new.vocab_size)])
    found = []
    for number in range(new.vocab_size):
        same = old.backend.token_to_id(str(new.backend.id_to_token(number)))
        same = roles[number] if roles.get(number, -1) >= 0 else same
        found.append([same] if same is not None else written[number] or [max(old.unk_id, 0)])
    return found


def transfer_embeddings(weights: Mapping[str, Tensor], old: Tokenizer, new: Tokenizer) -> dict[str, Tensor]:
    """Return the weights with rows for the new tokens, each the mean of the rows of the old ones it starts from."""
    pieces = source_tokens(old, new)
    lengths = torch.tensor([len(numbers) for numbers in pieces])
    taken = torch.tensor([number for numbers in pieces for number in numbers])
    owner = torch.arange(len(pieces)).repeat_interleave(lengths)

    def moved(table: Tensor) -> Tensor:
        flat = table.reshape(len(table), -1).float()
        summed = torch.zeros(len(pieces), flat.shape[1]).index_add_(0, owner, flat[taken])
        return (summed / lengths[:, None]).reshape(len(pieces), *table.shape[1:])

    return {name: moved(weight) if name in TABLES else weight for name, weight in weights.items()}
