"""Texts as input of an encoder, shared by classification, tagging and question answering.

Special tokens surround every text; long texts are read in overlapping windows, and whatever is truncated is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from regard.backends import EncoderBackend
from regard.config.models import BertConfig
from regard.data.batching import epoch_batches, length_sorted_batches
from regard.errors import UsageError
from regard.packed_tokens import Ids, Tokens
from regard.text.special_tokens import SpecialTokens, TruncationReport

Indices = NDArray[np.int64]
FloatArray = NDArray[np.float32]
BATCH_TOKENS = 4096  # tokens of a batch in inference
OVERLAP_DIVISOR = 4  # neighbouring windows share a fourth of their tokens


@dataclass
class EncodedTexts:
    """Sequences of an encoder; several windows may belong to one text."""

    row_fields: ClassVar[tuple[str, ...]] = ("rows", "token_types", "text_indices")  # with an entry for each row

    rows: list[Ids] = field(default_factory=list)
    token_types: list[Ids] = field(default_factory=list)
    text_indices: list[int] = field(default_factory=list)  # text of each row
    truncation: TruncationReport = field(default_factory=TruncationReport)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, ids: Sequence[int] | Ids, token_types: Sequence[int] | Ids, text_index: int) -> None:
        """Append a row."""
        self.rows.append(np.asarray(ids, dtype=np.int32))
        self.token_types.append(np.asarray(token_types, dtype=np.int32))
        self.text_indices.append(text_index)

    def select_rows(self, rows: Sequence[int]) -> Self:
        """The rows with these indices, of the same texts."""
        columns: dict[str, Any] = {name: [getattr(self, name)[row] for row in rows] for name in self.row_fields}
        return replace(self, **columns)

    def select(self, texts: Indices) -> Self:
        """All rows of the texts at these indices, with the indices of the texts among those selected."""
        new_indices = {text: index for index, text in enumerate(texts.tolist())}
        selected = self.select_rows([row for row, text in enumerate(self.text_indices) if text in new_indices])
        return replace(selected, text_indices=[new_indices[text] for text in selected.text_indices])

    @cached_property
    def lengths(self) -> Indices:
        """[rows, 1], in tokens."""
        return np.array([len(row) for row in self.rows], dtype=np.int64).reshape(-1, 1)

    def batch(self, indices: Indices) -> Tokens:
        """Pack rows by index."""
        packed = Tokens.from_rows([self.rows[index] for index in indices])
        token_types = np.concatenate([self.token_types[index] for index in indices])
        return Tokens(packed.ids, packed.offsets, token_types=token_types)

    def epoch(self, *, max_tokens: int, seed: int, epoch: int, digest: str) -> list[Indices]:
        """Row indices of each batch of an epoch, in order; a pure function."""
        return epoch_batches(self.lengths, max_tokens=max_tokens, seed=seed, epoch=epoch, digest=digest)

    def iter_logits(self, model: EncoderBackend) -> Iterator[tuple[Indices, Tokens, FloatArray]]:
        """Yield the row indices, tokens and head logits of each batch."""
        for indices in length_sorted_batches(self.lengths, max_tokens=BATCH_TOKENS):
            tokens = self.batch(indices)
            yield indices, tokens, model.logits(tokens)

    @cached_property
    def row_weights(self) -> FloatArray:
        """Weight of each row, [rows]: the windows of a text share a weight of 1."""
        text_indices = np.asarray(self.text_indices, dtype=np.int64)
        return (1 / np.bincount(text_indices)[text_indices]).astype(np.float32)


def window_spans(count: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """Start and stop of windows of at most `size` tokens; neighbours share at least `overlap` tokens.

    >>> window_spans(10, 6, 2), window_spans(5, 6, 2)
    ([(0, 6), (4, 10)], [(0, 5)])
    """
    spans = []
    start = 0
    while start + size < count:
        spans.append((start, start + size))
        start += size - overlap
    last_start = max(0, min(start, count - size)) if spans else 0
    return [*spans, (last_start, count)]


def encode_texts(
    special_tokens: SpecialTokens, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int
) -> EncodedTexts:
    """Encode texts as rows of at most `max_length` tokens: a long text in windows, a long pair truncated."""
    if pairs is not None:
        return _encode_pairs(special_tokens, texts, pairs, max_length)
    capacity = max_length - special_tokens.num_special()
    if capacity < 2:
        raise UsageError(f"rows of {max_length} tokens leave no room for a text: raise --max-length")
    encoded = EncodedTexts(truncation=TruncationReport(texts=len(texts), max_length=max_length))
    for text_index, ids in enumerate(special_tokens.tokenizer.encode_batch(texts)):
        spans = window_spans(len(ids), capacity, capacity // OVERLAP_DIVISOR)
        encoded.truncation.tokens += len(ids)
        encoded.truncation.windowed += len(spans) > 1
        for start, stop in spans:
            row, token_types = special_tokens.add(ids[start:stop])
            encoded.add(row, token_types, text_index)
    encoded.truncation.windows = len(encoded)
    return encoded


def _encode_pairs(
    special_tokens: SpecialTokens, texts: Sequence[str], pairs: Sequence[str], max_length: int
) -> EncodedTexts:
    tokens, report = special_tokens.encode_batch(texts, pairs, max_length=max_length)
    encoded = EncodedTexts(truncation=report)
    assert tokens.token_types is not None
    for index, row in enumerate(tokens):
        token_types = tokens.token_types[tokens.offsets[index] : tokens.offsets[index + 1]]
        encoded.add(row, token_types, index)
    return encoded


def text_logits(model: EncoderBackend, texts: EncodedTexts, num_texts: int) -> FloatArray:
    """Logits of each text, [texts, labels]: the mean over its windows."""
    means = np.zeros((num_texts, model.config.num_outputs), dtype=np.float32)
    text_indices = np.asarray(texts.text_indices, dtype=np.int64)
    for indices, _, logits in texts.iter_logits(model):
        np.add.at(means, text_indices[indices], logits * texts.row_weights[indices, None])
    return means


def head_only_config(config: BertConfig) -> BertConfig:
    """Smallest config with the same head, for training a head on cached states."""
    has_span_layer = config.head == "span" and config.span_feed_forward  # of the stack's size
    return config.override(
        {
            **dict.fromkeys(("vocab_size", "max_positions", "stack.num_layers", "stack.num_heads"), 1),
            **dict.fromkeys(("position_offset", "num_token_types", "attention_window", "layer_groups"), 0),
            "stack.feed_forward_size": config.stack.feed_forward_size if has_span_layer else 1,
        }
    )
