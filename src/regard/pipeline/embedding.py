"""`EmbeddingPipeline`: texts in, vectors out; how alike texts are, and which are nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard.checkpoint.hf.sentence_transformers import SentenceTransformersConfig
from regard.config.inference import EmbeddingConfig, RecordConfig
from regard.data.batching import length_sorted_batches
from regard.engine.folder import SwitchingEncoder
from regard.errors import UsageError
from regard.hardware import WorkerPool
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.text.special_tokens import SpecialTokens, TruncationReport
from regard.tokens import Tokens
from regard.view.record.parts import Omission
from regard.view.record.record import Record

if TYPE_CHECKING:
    from regard.models.bert import Bert

Vectors = NDArray[np.float32]
_BLOCK = 1 << 22  # similarities that exist at a time


@dataclass(frozen=True)
class Embeddings(PipelineResult):
    """Vectors of texts, and what of the texts was not read."""

    vectors: Vectors  # [texts, D]
    truncation: TruncationReport
    windows: int = 0  # windows that were made of texts that were too long


@dataclass(frozen=True)
class Neighbours:
    """A text's nearest ones, nearest first."""

    indices: NDArray[np.int64]  # [queries, k]
    similarities: NDArray[np.float32]


class EmbeddingPipeline:
    """Makes one vector of a text."""

    def __init__(
        self,
        model: Bert,
        framing: SpecialTokens,
        modules: SentenceTransformersConfig,
        *,
        max_length: int,
        workers: int = 1,
    ) -> None:
        self.model, self.framing, self.modules = model, framing, modules
        self.max_length = min(max_length, modules.max_length or max_length)
        self.max_positions = max_length
        self.workers = WorkerPool(workers)

    @property
    def embedding_size(self) -> int:
        """How many numbers a vector has, as the folder pools."""
        return self.model.config.hidden_size * len(self.modules.pooling)

    def embed(self, texts: Sequence[str], config: EmbeddingConfig | None = None) -> Embeddings:
        """Return the vectors of texts, in their order."""
        if isinstance(texts, str):
            raise UsageError("embed takes a list of texts: put the text into one")
        config = config or EmbeddingConfig()
        longest = config.max_length or self.max_length
        if longest > self.max_positions:
            raise UsageError(
                f"max_length ({longest}) is more than the model reads: {self.max_positions} tokens at most"
            )
        pooling = self.modules.pooling if config.pooling == "folder" else (config.pooling,)
        if config.long_texts == "windows":
            vectors, account, windows = self._windows(texts, longest, pooling, config)
        else:
            tokens, account = self.framing.encode_batch(texts, max_length=longest)
            if config.long_texts == "refuse" and account.truncated_texts:
                raise UsageError(f"{account.format()}: shorten them, or allow --long-texts cut or windows")
            vectors, windows = self._vectors(tokens, pooling, config.batch_tokens), 0
        if config.normalize == "yes" or (config.normalize == "folder" and self.modules.normalize):
            vectors = normalize(vectors)
        recorder = partial(self._recorded, list(texts[:1]), len(texts), longest)
        return attach_recorder(Embeddings(vectors, account, windows), recorder)

    def _recorded(self, first: Sequence[str], count: int, max_length: int, seeing: RecordConfig) -> Record:
        """Return where the model looked while it read the first of so many texts."""
        if not first:
            raise UsageError("no text was embedded: there is nothing to see")
        from regard.pipeline.records.encoder import EncoderRecorder, encode_row

        row = encode_row(self.framing, first[0], max_length=max_length)
        others = (Omission(f"{count:,} texts were embedded", "all but the first"),) if count > 1 else ()
        return EncoderRecorder(self.model, self.framing).record(
            row, seeing, task="embed", more=lambda _: {"cut": others}
        )

    def __call__(self, text: str) -> Vectors:
        """Return the vector of one text."""
        vector: Vectors = self.embed([text]).vectors[0]
        return vector

    def similarity(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        """Return how alike the texts of each pair are: the cosine of their vectors."""
        if len(first) != len(second):
            raise UsageError(f"{len(first)} texts need as many to compare with, not {len(second)}")
        made = normalize(self.embed([*first, *second]).vectors)
        cosines: Vectors = np.einsum("nd,nd->n", made[: len(first)], made[len(first) :])
        return cosines

    def _vectors(self, tokens: Tokens, pooling: Sequence[str], max_tokens: int) -> Vectors:
        """Return the vectors of rows, computed with rows of like length together."""
        if len(tokens) and isinstance(self.model, SwitchingEncoder) and not self.model.uses_torch:
            return self.model.embed_texts(Tokens(tokens.ids, tokens.offsets), pooling)  # it deals them out by itself
        made = np.zeros((len(tokens), self.model.config.hidden_size * len(pooling)), np.float32)
        batches = length_sorted_batches(tokens.lengths[:, None].astype(np.int64), max_tokens=max_tokens)
        found = self.workers.map(lambda numbers: self.model.embed_texts(_rows(tokens, numbers), pooling), batches)
        for numbers, vectors in zip(batches, found, strict=True):
            made[numbers] = vectors
        return made

    def _windows(
        self, texts: Sequence[str], max_length: int, pooling: Sequence[str], config: EmbeddingConfig
    ) -> tuple[Vectors, TruncationReport, int]:
        """Return the mean of the vectors of a text's windows, each counting as much as it has tokens."""
        room = max_length - self.framing.num_special()
        if room < 1:
            raise UsageError(f"rows of {max_length} tokens have no room for a text")
        rows, owners, shares, total = [], [], [], 0
        for number, ids in enumerate(self.framing.tokenizer.encode_batch(texts)):
            total += len(ids)
            for start in range(0, max(len(ids), 1), room):
                rows.append(self.framing.add(ids[start : start + room])[0])
                owners.append(number)
                shares.append(max(len(rows[-1]), 1))
        found = self._vectors(Tokens.from_rows(rows), pooling, config.batch_tokens)
        weights = np.asarray(shares, np.float32)[:, None]
        made = np.zeros((len(texts), found.shape[1]), np.float32)
        whole = np.zeros((len(texts), 1), np.float32)
        np.add.at(made, owners, found * weights)
        np.add.at(whole, owners, weights)
        made /= np.maximum(whole, 1)
        report = TruncationReport(texts=len(texts), tokens=total, max_length=max_length, windows=len(rows))
        return made, report, len(rows) - len(texts)


def normalize(vectors: Vectors) -> Vectors:
    """Return vectors of length 1; one of length 0 stays.

    >>> normalize(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    made: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return made


def nearest_neighbours(queries: Vectors, corpus: Vectors, k: int) -> Neighbours:
    """Return for each query the k known vectors of the largest cosine, in blocks of queries.

    >>> near = nearest_neighbours(np.array([[3.0, 4.0]], np.float32), np.eye(2, dtype=np.float32), k=2)
    >>> near.indices.tolist(), [round(float(cosine), 2) for cosine in near.similarities[0]]
    ([[1, 0]], [0.8, 0.6])
    """
    k = min(k, len(corpus))
    queries, corpus = normalize(queries), normalize(corpus)
    numbers, cosines = [np.zeros((0, k), np.int64)], [np.zeros((0, k), np.float32)]
    size = max(1, _BLOCK // max(1, len(corpus)))
    for first in range(0, len(queries), size):
        scores = queries[first : first + size] @ corpus.T
        best = np.argpartition(-scores, k - 1, axis=1)[:, :k] if k < len(corpus) else np.argsort(-scores, axis=1)
        found = np.take_along_axis(scores, best, axis=1)
        order = np.argsort(-found, axis=1, kind="stable")
        numbers.append(np.take_along_axis(best, order, axis=1))
        cosines.append(np.take_along_axis(found, order, axis=1))
    return Neighbours(np.concatenate(numbers), np.concatenate(cosines))


def _rows(tokens: Tokens, numbers: NDArray[np.int64]) -> Tokens:
    """Return some rows of tokens; segments of single texts are all 0, and are left out."""
    return Tokens.from_rows([tokens.row(int(number)) for number in numbers])
