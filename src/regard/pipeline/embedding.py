"""`EmbeddingPipeline`: embeds texts, measures their similarity and finds nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from regard.attention.trace import is_tracing
from regard.backends import EncoderBackend
from regard.checkpoint.hf.sentence_transformers import SentenceTransformersConfig
from regard.config.inference import EmbeddingConfig, RecordConfig
from regard.data.batching import length_sorted_batches
from regard.errors import UsageError
from regard.hardware import WorkerPool
from regard.packed_tokens import Tokens
from regard.pipeline.pickling import PicklablePipeline
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.text.special_tokens import SpecialTokens, TruncationReport
from regard.view.record.parts import Omission
from regard.view.record.record import Record

TASK = "embed"

Vectors = NDArray[np.float32]
MAX_SIMILARITIES = 1 << 22  # that are in memory at a time


@dataclass(frozen=True)
class Embeddings(PipelineResult):
    """Embeddings of texts, and how much of the texts was truncated."""

    vectors: Vectors  # [texts, embedding]
    truncation: TruncationReport
    windows: int = 0  # windows beyond the first of each text


class EmbeddingDict(TypedDict):
    """JSON form of the embedding of one text."""

    text: str
    vector: list[float]


class EmbeddingFileDict(TypedDict):
    """JSON form of embeddings that are written to a file."""

    out: str
    texts: int
    embedding_size: int
    windows: int  # windows beyond the first of each text
    truncation: TruncationReport | None  # null without texts


class SimilarPairDict(TypedDict):
    """JSON form of a pair of texts."""

    first: int  # index of the text
    second: int
    similarity: float  # cosine of the embeddings


class SimilarityDict(TypedDict):
    """JSON form of texts compared with each other."""

    texts: list[str]
    pairs: list[SimilarPairDict]  # the most similar first


class NeighbourDict(TypedDict):
    """JSON form of a line of a corpus."""

    line: int  # number of the line, from 1
    text: str
    similarity: float  # cosine of the embeddings


class NeighboursDict(TypedDict):
    """JSON form of a text and its nearest neighbours in a corpus."""

    text: str
    neighbours: list[NeighbourDict]  # nearest first


@dataclass(frozen=True)
class Neighbours:
    """Nearest neighbours of each query, nearest first."""

    indices: NDArray[np.int64]  # [queries, top_k]
    similarities: NDArray[np.float32]  # [queries, top_k]


class EmbeddingPipeline(PicklablePipeline):
    """Embeds texts: one vector per text."""

    task_name = TASK

    def __init__(
        self,
        model: EncoderBackend,
        special_tokens: SpecialTokens,
        modules: SentenceTransformersConfig,
        *,
        max_length: int,
        workers: int = 1,
    ) -> None:
        self.model = model
        self.special_tokens = special_tokens
        self.modules = modules
        self.max_length = min(max_length, modules.max_length or max_length)
        self.max_positions = max_length
        self.workers = WorkerPool(workers)

    @property
    def embedding_size(self) -> int:
        """Size of an embedding with the folder's own pooling."""
        return self.model.config.hidden_size * len(self.modules.pooling)

    def embed(self, texts: Sequence[str], config: EmbeddingConfig | None = None) -> Embeddings:
        """Embed texts, in order."""
        if isinstance(texts, str):
            raise UsageError("embed takes a list of texts: put the text into a list")
        config = config or EmbeddingConfig()
        max_length = config.max_length or self.max_length
        if max_length > self.max_positions:
            raise UsageError(
                f"max_length ({max_length}) is more than the model reads: {self.max_positions} tokens at most"
            )
        pooling = self.modules.pooling if config.pooling == "auto" else (config.pooling,)
        num_windows = 0
        if config.long_texts == "window":
            vectors, truncation, num_windows = self._embed_windows(texts, max_length, pooling, config.batch_tokens)
        else:
            tokens, truncation = self.special_tokens.encode_batch(texts, max_length=max_length)
            if config.long_texts == "error" and truncation.truncated_texts:
                raise UsageError(f"{truncation.format()}: shorten them, or pass --long-texts truncate or window")
            vectors = self._embed_tokens(tokens, pooling, config.batch_tokens)
        if config.normalize == "yes" or (config.normalize == "auto" and self.modules.normalize):
            vectors = normalize(vectors)
        recorder = partial(self._build_record, list(texts[:1]), len(texts), max_length)
        embeddings = Embeddings(vectors, truncation, windows=num_windows)
        return attach_recorder(embeddings, recorder, self.model.backend_name)

    def _build_record(self, first_text: Sequence[str], num_texts: int, max_length: int, config: RecordConfig) -> Record:
        """Record the attention over the first text."""
        if not first_text:
            raise UsageError("no text was embedded: there is no attention to show")
        from regard.pipeline.records.encoder_records import EncoderRecorder, encode_row

        omissions: tuple[Omission, ...] = ()
        if num_texts > 1:
            omissions = (Omission(f"{num_texts:,} texts were embedded", "all but the first"),)
        row = encode_row(self.special_tokens, first_text[0], max_length=max_length)
        recorder = EncoderRecorder(self.model, self.special_tokens)
        return recorder.record(row, config, task=TASK, extra_parts=lambda _: {"omissions": omissions})

    def __call__(self, text: str) -> Vectors:
        """Embed one text."""
        vector: Vectors = self.embed([text]).vectors[0]
        return vector  # [embedding]

    def similarity(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        """Cosine similarity of the texts of each pair."""
        if len(first) != len(second):
            raise UsageError(f"{len(first)} texts need as many to compare with, not {len(second)}")
        vectors = normalize(self.embed([*first, *second]).vectors)
        cosines: Vectors = np.einsum("nd,nd->n", vectors[: len(first)], vectors[len(first) :])
        return cosines  # [pairs]

    def _embed_tokens(self, tokens: Tokens, pooling: Sequence[str], max_tokens: int) -> Vectors:
        """Embed sequences, in batches of similar length."""
        if len(tokens) and self.model.makes_batches:
            return self.model.embed_texts(Tokens(tokens.ids, tokens.offsets), pooling)
        vectors = np.zeros((len(tokens), self.model.config.hidden_size * len(pooling)), np.float32)
        batches = length_sorted_batches(tokens.lengths[:, None].astype(np.int64), max_tokens=max_tokens)

        def embed_batch(indices: NDArray[np.int64]) -> Vectors:
            return self.model.embed_texts(_select_sequences(tokens, indices), pooling)

        # batches of a trace are captured in order, and never several at a time
        results = map(embed_batch, batches) if is_tracing() else self.workers.map(embed_batch, batches)
        for indices, batch_vectors in zip(batches, results, strict=True):
            vectors[indices] = batch_vectors
        return vectors

    def _embed_windows(
        self, texts: Sequence[str], max_length: int, pooling: Sequence[str], batch_tokens: int
    ) -> tuple[Vectors, TruncationReport, int]:
        """Embed each text as the mean of its windows, weighted by their tokens; also return the extra windows."""
        max_content = max_length - self.special_tokens.num_special()
        if max_content < 1:
            raise UsageError(f"rows of {max_length} tokens are too short for a text and its special tokens")
        rows: list[list[int]] = []
        text_indices: list[int] = []
        row_weights: list[int] = []
        num_tokens = 0
        for text_index, ids in enumerate(self.special_tokens.tokenizer.encode_batch(texts)):
            num_tokens += len(ids)
            for start in range(0, max(len(ids), 1), max_content):
                row, _ = self.special_tokens.add(ids[start : start + max_content])
                rows.append(row)
                text_indices.append(text_index)
                row_weights.append(max(len(row), 1))
        row_vectors = self._embed_tokens(Tokens.from_rows(rows), pooling, batch_tokens)
        weights = np.asarray(row_weights, np.float32)[:, None]
        vectors = np.zeros((len(texts), row_vectors.shape[1]), np.float32)
        weight_sums = np.zeros((len(texts), 1), np.float32)
        np.add.at(vectors, text_indices, row_vectors * weights)
        np.add.at(weight_sums, text_indices, weights)
        vectors /= np.maximum(weight_sums, 1)
        truncation = TruncationReport(texts=len(texts), tokens=num_tokens, max_length=max_length, windows=len(rows))
        return vectors, truncation, len(rows) - len(texts)


def normalize(vectors: Vectors) -> Vectors:
    """Scale vectors to unit length; a zero vector stays zero.

    >>> normalize(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    unit_vectors: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit_vectors


def nearest_neighbours(queries: Vectors, corpus: Vectors, top_k: int) -> Neighbours:
    """Find the `top_k` corpus vectors of the largest cosine similarity to each query, in blocks of queries.

    >>> neighbours = nearest_neighbours(np.array([[3.0, 4.0]], np.float32), np.eye(2, dtype=np.float32), top_k=2)
    >>> neighbours.indices.tolist(), [round(float(cosine), 2) for cosine in neighbours.similarities[0]]
    ([[1, 0]], [0.8, 0.6])
    """
    top_k = min(top_k, len(corpus))
    queries = normalize(queries)
    corpus = normalize(corpus)
    indices = [np.zeros((0, top_k), np.int64)]
    similarities = [np.zeros((0, top_k), np.float32)]
    block_size = max(1, MAX_SIMILARITIES // max(1, len(corpus)))
    for start in range(0, len(queries), block_size):
        cosines = queries[start : start + block_size] @ corpus.T  # [block, corpus]
        if top_k < len(corpus):
            nearest = np.argpartition(-cosines, top_k - 1, axis=1)[:, :top_k]
        else:
            nearest = np.argsort(-cosines, axis=1)
        nearest_cosines = np.take_along_axis(cosines, nearest, axis=1)
        order = np.argsort(-nearest_cosines, axis=1, kind="stable")
        indices.append(np.take_along_axis(nearest, order, axis=1))
        similarities.append(np.take_along_axis(nearest_cosines, order, axis=1))
    return Neighbours(np.concatenate(indices), np.concatenate(similarities))


def _select_sequences(tokens: Tokens, indices: NDArray[np.int64]) -> Tokens:
    """Select sequences of a packed batch; token types are left out, as those of single texts are all 0."""
    return Tokens.from_rows([tokens.row(int(index)) for index in indices])
