"""Subjects of head studies: the protocol, and translation, causal language models and memory networks.

A subject is a pipeline with data to measure its heads on. It yields attention over examples and scores the
model on them. It does not know of ablation: the caller sets that around the call. Subjects of encoders are in
`encoder_subjects`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.attention.trace import Trace, trace
from regard.config.data import ReadConfig
from regard.data.batching import length_sorted_batches
from regard.data.documents import Documents, read_documents
from regard.data.pairs import ParallelTexts, read_pairs
from regard.errors import UsageError
from regard.interpret.head_statistics import AttentionBatch, pad_ids
from regard.packed_tokens import Ids, Tokens
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tasks.metrics import bleu
from regard.tasks.translation import TokenizedPairs, TokenizerPair

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]
ATTENTION_BATCH_TOKENS = 1024  # whose weights are in memory at a time, padding included
SCORE_BATCH_TOKENS = 4096
MIN_PROBABILITY = 1e-12  # before the logarithm
NO_MATCH_OFFSET = 10**9  # added to the token ids of another vocabulary, so that none match
SiteAttention = tuple[str, NDArray[np.float32], AttentionBatch]  # site, weights [rows, heads, queries, keys], tokens


@dataclass(frozen=True)
class SubjectScore:
    """Metric of a model, and what each example contributes to it where that can be separated."""

    value: float
    per_example: Floats | None = None

    @classmethod
    def from_losses(cls, losses: Sequence[float] | NDArray[np.floating], count: float) -> SubjectScore:
        """Sum of the losses of examples, divided by the number of units that they are a mean over."""
        per_example = np.asarray(losses, dtype=np.float64) / max(count, 1)
        return cls(float(per_example.sum()), per_example)


class StudiedModel(Protocol):
    """A backend with heads."""

    def attention_sites(self) -> dict[str, int]:
        """Attention sites of the model, first layer first, with their number of heads."""
        ...


class StudySubject(Protocol):
    """A model and data to measure its heads on."""

    unit: ClassVar[str]  # what examples are called
    metrics: ClassVar[Mapping[str, bool]]  # name → whether higher is better; the first is the default

    @property
    def model(self) -> StudiedModel:
        """The model whose heads are studied: the backend that answers."""
        ...

    def __len__(self) -> int: ...

    def attention(self, indices: Indices) -> Iterator[list[SiteAttention]]:
        """Yield the attention of all sites over these examples, batch by batch."""
        ...

    def score(self, metric: str, indices: Indices) -> SubjectScore:
        """Score the model on these examples."""
        ...


def site_attention(captured: Trace, site: str, tokens: AttentionBatch) -> SiteAttention:
    """Captured weights of a site, and the tokens with the numbers of keys that its mask allows."""
    site_trace = captured[site]
    return site, site_trace.weights, replace(tokens, num_visible=site_trace.num_visible)


def find_special(ids: Indices, special_ids: Collection[int]) -> NDArray[np.bool_]:
    """Which token ids of a padded array are special; padding is not."""
    return np.isin(ids, sorted(special_ids)) & (ids >= 0)


class TranslationSubject:
    """Sentence pairs: loss of the references, or BLEU of greedy translations."""

    unit: ClassVar[str] = "sentences"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "bleu": True}

    def __init__(self, pipeline: TranslationPipeline, pairs: ParallelTexts) -> None:
        if len(pipeline.backends) > 1:
            raise UsageError("heads are studied in one model at a time: give one folder")
        self.pipeline = pipeline
        self.pairs = pairs
        (self.model,) = pipeline.models_of()

    @classmethod
    def read(cls, pipeline: TranslationPipeline, files: Sequence[str], config: ReadConfig) -> TranslationSubject:
        """Read files of sentence pairs; pairs that are too long for the model are left out."""
        subject = cls(pipeline, read_pairs(files, config))
        fitting = [
            index
            for index, (source_length, target_length) in enumerate(subject.examples.lengths)
            if source_length <= pipeline.max_source_length and target_length <= pipeline.max_target_length
        ]
        if not fitting:
            raise UsageError(f"{files[0]}: all pairs are longer than the model reads")
        return cls(pipeline, subject.pairs.select(fitting)) if len(fitting) < len(subject) else subject

    def __len__(self) -> int:
        return len(self.pairs)

    @cached_property
    def examples(self) -> TokenizedPairs:
        return TokenizerPair(self.pipeline.source, self.pipeline.target).tokenize(self.pairs)

    def attention(self, indices: Indices) -> Iterator[list[SiteAttention]]:
        """Yield the attention of all sites while the model reads sources and references."""
        source_tokenizer = self.pipeline.source
        target_tokenizer = self.pipeline.target
        offset = 0 if source_tokenizer.digest == target_tokenizer.digest else NO_MATCH_OFFSET
        for rows in length_sorted_batches(self.examples.lengths[indices], max_tokens=ATTENTION_BATCH_TOKENS):
            batch = self.examples.batch(indices[rows])
            with trace() as captured:
                self.model.target_logprobs(batch.source, batch.target)
            decoder_inputs, labels = self.model.shift_targets(batch.target)
            source_ids = pad_ids([*batch.source])
            input_ids = pad_ids([*decoder_inputs])
            label_ids = pad_ids([*labels])
            label_ids = np.where(label_ids < 0, label_ids, label_ids + offset)
            is_source_special = find_special(source_ids, source_tokenizer.special_ids)
            is_input_special = find_special(input_ids, target_tokenizer.special_ids)
            encoder_self = AttentionBatch(source_ids, source_ids, is_source_special, is_self=True)
            decoder_self = AttentionBatch(input_ids, input_ids, is_input_special, is_self=True)
            cross = AttentionBatch(label_ids, source_ids, is_source_special, is_self=False)
            attention = []
            for site in captured:
                if site.startswith("encoder."):
                    tokens = encoder_self
                elif site.endswith(".self"):
                    tokens = decoder_self
                else:
                    tokens = cross
                attention.append(site_attention(captured, site, tokens))
            yield attention

    def cross_weights(self, indices: Indices) -> dict[str, NDArray[np.float32]]:
        """Cross-attention weights by site, each [rows, heads, queries, keys]."""
        batch = self.examples.batch(indices)
        with trace(",".join(self.model.cross_attention_sites()), full_precision=True) as captured:
            self.model.target_logprobs(batch.source, batch.target)
        return {site: captured[site].weights for site in captured}

    def score(self, metric: str, indices: Indices) -> SubjectScore:
        """Loss per target token, or BLEU of greedy translations."""
        if metric == "bleu":
            pairs = self.pairs.select(indices)
            translations = self.pipeline.translate(pairs.source, split=False, beam=1, nbest=1, batch_size=128)
            return SubjectScore(bleu(translations, pairs.target))
        losses = np.zeros(len(indices))
        num_predictions = 0
        for rows in length_sorted_batches(self.examples.lengths[indices], max_tokens=SCORE_BATCH_TOKENS):
            batch = self.examples.batch(indices[rows])
            logprobs = self.model.target_logprobs(batch.source, batch.target)
            losses[rows] = [-row_logprobs.sum(dtype=np.float64) for row_logprobs in logprobs]
            num_predictions += batch.num_predictions
        return SubjectScore.from_losses(losses, num_predictions)


class CausalSubject:
    """Running text: loss of each token given those before it."""

    unit: ClassVar[str] = "documents"
    metrics: ClassVar[Mapping[str, bool]] = {"loss": False}

    def __init__(self, pipeline: GenerationPipeline, documents: Documents) -> None:
        self.pipeline = pipeline
        self.documents = documents
        self.model = pipeline.model.generator()

    @classmethod
    def read(cls, pipeline: GenerationPipeline, files: Sequence[str], config: ReadConfig) -> CausalSubject:
        """Read files of running text."""
        unit = pipeline.task.get("document", "file")
        return cls(pipeline, read_documents(files, config, "auto" if unit == "file" else unit))

    def __len__(self) -> int:
        return len(self.documents)

    def attention(self, indices: Indices) -> Iterator[list[SiteAttention]]:
        """Yield the attention of all sites over the documents, in rows as long as the model reads."""
        max_positions = self.pipeline.model.config.max_positions
        tokenizer = self.pipeline.tokenizer
        rows: list[Ids] = []
        for ids in tokenizer.encode_batch(self.documents.select(indices).texts):
            document_ids = np.asarray(ids, dtype=np.int32)
            for start in range(0, len(document_ids), max_positions):
                rows.append(document_ids[start : start + max_positions])
        lengths = np.array([[len(row)] for row in rows], dtype=np.int64).reshape(-1, 1)
        for batch in length_sorted_batches(lengths, max_tokens=ATTENTION_BATCH_TOKENS):
            tokens = Tokens.from_rows([rows[index] for index in batch])
            with trace() as captured:
                self.model.read(tokens)
            padded = pad_ids([*tokens])
            is_special = find_special(padded, tokenizer.special_ids)
            attention_batch = AttentionBatch(padded, padded, is_special, is_self=True)
            yield [site_attention(captured, site, attention_batch) for site in captured]

    def score(self, metric: str, indices: Indices) -> SubjectScore:
        """Loss per token."""
        return SubjectScore(float(self.pipeline.evaluate(self.documents.select(indices))["loss"]))
