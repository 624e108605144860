"""Texts as rows that an encoder reads: special tokens around them, long ones in overlapping windows, nothing silent.

What classifying, tagging and answering share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.dropout import Noise
from regard.attention.packed_batch import PackedBatch, SelectedTokens
from regard.config.models import BertConfig
from regard.data.batching import epoch_batches, length_sorted_batches
from regard.errors import UsageError
from regard.hardware import WorkerPool
from regard.models.bert import Bert
from regard.text.special_tokens import SpecialTokens, TruncationReport
from regard.tokens import Ids, Tokens

Numbers = NDArray[np.int64]
Floats = NDArray[np.float32]
BUDGET = 4096  # tokens that are read together where nothing is learned
TOKEN_MULTIPLE = 64  # where something is, their number is rounded up to a multiple: products are prepared for few sizes
OVERLAP = 4  # windows of a long text share a fourth of their tokens
SMALLEST = {"stack.num_layers": 1, "stack.num_heads": 1, "stack.feed_forward_size": 1}


@dataclass
class EncodedTexts:
    """Rows that an encoder reads; several may belong to one text."""

    rows: list[Ids] = field(default_factory=list)
    token_types: list[Ids] = field(default_factory=list)
    text_indices: list[int] = field(default_factory=list)  # the text that each row is of
    account: TruncationReport = field(default_factory=TruncationReport)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, ids: Sequence[int] | Ids, token_types: Sequence[int] | Ids, owner: int) -> None:
        """Add a row."""
        self.rows.append(np.asarray(ids, dtype=np.int32))
        self.token_types.append(np.asarray(token_types, dtype=np.int32))
        self.text_indices.append(owner)

    @cached_property
    def lengths(self) -> Numbers:
        """[rows, 1], in tokens."""
        return np.array([len(row) for row in self.rows], dtype=np.int64).reshape(-1, 1)

    def batch(self, numbers: Numbers) -> Tokens:
        """Return some of the rows."""
        packed = Tokens.from_rows([self.rows[number] for number in numbers])
        return Tokens(packed.ids, packed.offsets, np.concatenate([self.token_types[number] for number in numbers]))

    def epoch(self, *, max_tokens: int, seed: int, epoch: int, digest: str) -> list[Numbers]:
        """Return the row numbers of each batch of an epoch, in order; a pure function."""
        return epoch_batches(self.lengths, max_tokens=max_tokens, seed=seed, epoch=epoch, digest=digest)

    def iter_logits(self, model: Bert) -> Iterator[tuple[Numbers, Tokens, Floats]]:
        """Yield some rows at a time: their numbers, their tokens and the scores of the model's head."""
        for numbers in length_sorted_batches(self.lengths, max_tokens=BUDGET):
            tokens = self.batch(numbers)
            yield numbers, tokens, model.logits(tokens)

    @cached_property
    def row_weights(self) -> Floats:
        """One for a text that is one row; the windows of a text share it, [rows]."""
        owners = np.asarray(self.text_indices, dtype=np.int64)
        return (1 / np.bincount(owners)[owners]).astype(np.float32)


def window_spans(count: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """Return where windows of at most `room` tokens begin and end, each sharing at least `overlap` with the next.

    >>> window_spans(10, 6, 2), window_spans(5, 6, 2)
    ([(0, 6), (4, 10)], [(0, 5)])
    """
    made, first = [], 0
    while first + size < count:
        made.append((first, first + size))
        first += size - overlap
    return [*made, (max(0, min(first, count - size)) if made else 0, count)]


def encode_texts(
    special_tokens: SpecialTokens, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int
) -> EncodedTexts:
    """Return texts as rows of at most `longest` tokens: a long one in windows, a long pair cut."""
    if pairs is not None:
        tokens, cut = special_tokens.encode_batch(texts, pairs, max_length=max_length)
        made = EncodedTexts(account=cut)
        assert tokens.token_types is not None
        for number, row in enumerate(tokens):
            made.add(row, tokens.token_types[tokens.offsets[number] : tokens.offsets[number + 1]], number)
        return made
    room = max_length - special_tokens.num_special()
    if room < 2:
        raise UsageError(f"rows of {max_length} tokens have no room for a text: see --max-length")
    made = EncodedTexts(account=TruncationReport(texts=len(texts), max_length=max_length))
    for number, ids in enumerate(special_tokens.tokenizer.encode_batch(texts)):
        found = window_spans(len(ids), room, room // OVERLAP)
        made.account.tokens += len(ids)
        made.account.windowed += len(found) > 1
        for first, last in found:
            made.add(*special_tokens.add(ids[first:last]), number)
    made.account.windows = len(made)
    return made


def text_logits(model: Bert, read: EncodedTexts, texts: int) -> Floats:
    """Return the scores of each text, [texts, labels]: the mean over its windows."""
    made = np.zeros((texts, model.config.num_outputs), dtype=np.float32)
    owners = np.asarray(read.text_indices, dtype=np.int64)
    for numbers, _, scores in read.iter_logits(model):
        np.add.at(made, owners[numbers], scores * read.row_weights[numbers, None])
    return made


def encode_for_training(
    model: Bert,
    tokens: Tokens,
    noise: Noise | None,
    states: Tensor | None = None,
    positions: Numbers | None = None,
) -> tuple[Tensor, PackedBatch]:
    """Return a state for each token, to be learned from, and the layout of the rows; or the states that are given.

    Where only some places among the packed tokens are needed, the states are theirs alone, and the layout, too.
    """
    block = TOKEN_MULTIPLE if noise is not None and states is None else 1
    ids, rows = model.to_tensors(tokens, block)
    if states is not None:
        return states.to(model.device(), model.words.weight.dtype), rows
    chosen = None if positions is None else SelectedTokens(rows, positions, block)
    made = model(ids, rows, model.token_type_tensor(tokens, rows.num_padding), noise, chosen)
    layout = rows if chosen is None else chosen
    return made[: layout.num_tokens], layout


class CachedStates:
    """States of an encoder that does not change, made once: of chosen places of each row."""

    def __init__(self, model: Bert, read: EncodedTexts, places: Sequence[Numbers] | None = None) -> None:
        self.offsets = np.zeros(len(read) + 1, dtype=np.int64)
        chosen = [np.zeros(1, dtype=np.int64)] * len(read) if places is None else places  # usually the first token
        np.cumsum([len(one) for one in chosen], out=self.offsets[1:])
        self.states = torch.zeros(int(self.offsets[-1]), model.config.hidden_size, dtype=torch.float16)
        batches = length_sorted_batches(read.lengths, max_tokens=BUDGET)

        def encode(indices: Numbers) -> list[Tensor]:
            tokens = read.batch(indices)
            states = torch.from_numpy(model.encode(tokens))
            rows = [chosen[index] + int(start) for index, start in zip(indices, tokens.offsets, strict=False)]
            return [states[torch.from_numpy(row)].half() for row in rows]

        # a batch for each thread, as they become free: a core that others use delays nothing but its own batch
        for indices, selected in zip(batches, WorkerPool(torch.get_num_threads()).map(encode, batches), strict=True):
            for index, states in zip(indices, selected, strict=True):
                self.states[self.offsets[index] : self.offsets[index + 1]] = states

    def get(self, indices: Numbers) -> Tensor:
        """Return the states of some rows, one row behind the other."""
        return torch.cat([self.states[self.offsets[number] : self.offsets[number + 1]] for number in indices])


def head_only_config(config: BertConfig) -> BertConfig:
    """Return the config of a model that has no more than the head of another, for states that are kept."""
    return config.override(
        {"vocab_size": 1, "max_positions": 1, "position_offset": 0, "num_token_types": 0, **SMALLEST}
    )
