"""Hidden states of encoders in training, with gradient, or computed once where the encoder is frozen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.dropout import Noise
from regard.attention.packed_batch import PackedBatch, SelectedTokens
from regard.config.models import BertConfig
from regard.data.batching import length_sorted_batches
from regard.hardware import WorkerPool
from regard.models.bert import Bert
from regard.packed_tokens import Tokens
from regard.tasks.windows import BATCH_TOKENS, EncodedTexts

Indices = NDArray[np.int64]
TOKEN_MULTIPLE = 64  # token counts in training are rounded up to a multiple: oneDNN caches few matmul shapes


def encode_for_training(
    model: Bert,
    tokens: Tokens,
    noise: Noise | None,
    cached_states: Tensor | None = None,
    positions: Indices | None = None,
) -> tuple[Tensor, PackedBatch]:
    """Hidden states of all tokens, with gradient, and the layout of the batch; or the cached states.

    With `positions`, token indices of the packed batch, both are of these tokens only.
    """
    multiple = TOKEN_MULTIPLE if noise is not None and cached_states is None else 1
    ids, packed = model.to_tensors(tokens, multiple)
    if cached_states is not None:
        return cached_states.to(model.device(), model.token_embedding.weight.dtype), packed
    selected = None if positions is None else SelectedTokens(packed, positions, multiple)
    hidden = model(ids, packed, model.token_type_tensor(tokens, packed.num_padding), noise, selected)
    layout = packed if selected is None else selected
    return hidden[: layout.num_tokens], layout


def pooled_indices(config: BertConfig, tokens: Tokens) -> Indices | None:
    """Token indices of a packed batch whose hidden states a label head needs; None where it needs all of them."""
    starts = tokens.offsets.astype(np.int64)
    return {"first": starts[:-1], "last": starts[1:] - 1}.get(config.pooled_token)


def pooled_positions(config: BertConfig, texts: EncodedTexts) -> list[Indices]:
    """Positions of each row whose hidden states a label head needs.

    >>> texts = EncodedTexts()
    >>> texts.add([5, 6, 7], [0, 0, 0], 0)
    >>> [positions.tolist() for positions in pooled_positions(BertConfig(head="label", pooling="last"), texts)]
    [[2]]
    """
    all_positions = [np.arange(len(row), dtype=np.int64) for row in texts.rows]
    selection = {"first": slice(1), "last": slice(-1, None)}.get(config.pooled_token, slice(None))
    return [positions[selection] for positions in all_positions]


class CachedStates:
    """Hidden states of a frozen encoder, computed once, at selected positions of each row."""

    def __init__(self, model: Bert, texts: EncodedTexts, positions: Sequence[Indices]) -> None:
        """Compute the states at the positions of each row."""
        self.offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum([len(row_positions) for row_positions in positions], out=self.offsets[1:])
        self.states = torch.zeros(int(self.offsets[-1]), model.config.hidden_size, dtype=torch.float16)
        batches = length_sorted_batches(texts.lengths, max_tokens=BATCH_TOKENS)

        def encode(indices: Indices) -> list[Tensor]:
            tokens = texts.batch(indices)
            hidden = torch.from_numpy(model.encode(tokens))
            batch_states = []
            for index, start in zip(indices, tokens.offsets, strict=False):
                token_indices = torch.from_numpy(positions[index] + int(start))
                batch_states.append(hidden[token_indices].half())
            return batch_states

        # a batch per thread, as they become free: a core that other processes use delays its own batch only
        encoded_batches = WorkerPool(torch.get_num_threads()).map(encode, batches)
        for indices, rows in zip(batches, encoded_batches, strict=True):
            for index, row_states in zip(indices, rows, strict=True):
                self.states[self.offsets[index] : self.offsets[index + 1]] = row_states

    def lengths(self, indices: Indices) -> Indices:
        """Number of cached states of rows."""
        return np.diff(self.offsets)[indices]

    def get(self, indices: Indices) -> Tensor:
        """Cached states of rows, end to end."""
        return torch.cat([self.states[self.offsets[index] : self.offsets[index + 1]] for index in indices])
