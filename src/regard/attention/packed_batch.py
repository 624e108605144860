"""`PackedBatch`: the layout of sequences that are laid end to end; only attention pads them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks import BoundMask, Mask, Window, causal, padding
from regard.attention.sparse import LocalMask
from regard.packed_tokens import Tokens


class _Pad(torch.autograd.Function):
    """Packed tokens [N, …] → padded tokens [B · T, …]; the gradient is packed."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, padded_indices: Tensor, padded_size: int) -> Tensor:
        ctx.save_for_backward(padded_indices)
        return packed.new_zeros(padded_size, *packed.shape[1:]).index_copy_(0, padded_indices, packed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (padded_indices,) = ctx.saved_tensors
        return gradients[0].index_select(0, padded_indices), None, None


class _Pack(torch.autograd.Function):
    """Padded tokens [B · T, …] → packed tokens [N, …]; the gradient is padded."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, padded_indices: Tensor) -> Tensor:
        ctx.save_for_backward(padded_indices)
        ctx.padded_size = padded.shape[0]
        return padded.index_select(0, padded_indices)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (padded_indices,) = ctx.saved_tensors
        gradient = gradients[0]
        zeros = gradient.new_zeros(ctx.padded_size, *gradient.shape[1:])
        return zeros.index_copy_(0, padded_indices, gradient), None


class PackedBatch:
    """Layout of B sequences laid end to end: N tokens, the longest sequence T.

    N may be rounded up to a multiple of `multiple`: the tokens after the last sequence are padding. oneDNN prepares a
    matmul once per shape, so few distinct token counts are much cheaper than many.

    >>> batch = PackedBatch(np.array([2, 1]))
    >>> batch.pad(torch.tensor([5, 6, 7])).tolist()
    [[5, 6], [7, 0]]
    >>> batch.pack(batch.pad(torch.tensor([5, 6, 7]))).tolist()
    [5, 6, 7]
    """

    def __init__(
        self, lengths: np.ndarray, device: torch.device | str = "cpu", position_offset: int = 0, multiple: int = 1
    ) -> None:
        self.num_rows = len(lengths)
        self.position_offset = position_offset  # position of each sequence's first token
        self.row_lengths = lengths
        self.max_length = int(lengths.max()) if self.num_rows else 0
        self.is_rectangular = self.num_rows == 0 or int(lengths.min()) == self.max_length
        self.lengths = torch.as_tensor(lengths, dtype=torch.long).to(device)
        self.num_tokens = int(lengths.sum())
        self.num_padding = -self.num_tokens % multiple  # padding tokens after the last sequence
        columns = np.arange(self.num_tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        positions = np.append(columns + position_offset, np.zeros(self.num_padding, dtype=np.int64))
        self.positions = torch.from_numpy(positions).to(device)  # [N], position of each token in its sequence
        rows = np.repeat(np.arange(self.num_rows), lengths)
        padded_indices = rows * self.max_length + columns
        self.padded_indices = torch.from_numpy(padded_indices).to(device)  # [num_tokens], among [B · T]

    @classmethod
    def from_tokens(cls, tokens: Tokens, device: torch.device | str = "cpu", multiple: int = 1) -> PackedBatch:
        """Layout of packed tokens."""
        return cls(tokens.lengths, device, multiple=multiple)

    def pad(self, packed: Tensor) -> Tensor:
        """[N, …] → [B, T, …]; without a copy if all sequences have the same length."""
        packed = packed[: self.num_tokens]
        if not self.is_rectangular:
            packed = _Pad.apply(packed, self.padded_indices, self.num_rows * self.max_length)
        return packed.view(self.num_rows, self.max_length, *packed.shape[1:])

    def pack(self, padded: Tensor) -> Tensor:
        """[B, T, …] → [N, …]; without a copy if all sequences have the same length."""
        flat = padded.reshape(self.num_rows * self.max_length, *padded.shape[2:])
        packed: Tensor = flat if self.is_rectangular else _Pack.apply(flat, self.padded_indices)
        if self.num_padding:
            packed = torch.cat([packed, packed.new_zeros(self.num_padding, *packed.shape[1:])])
        return packed

    @cached_property
    def equal_length_runs(self) -> list[tuple[int, int, int]]:
        """Runs of neighbouring sequences of equal length: token index of the first, number of sequences, length.

        >>> PackedBatch(np.array([3, 3, 1])).equal_length_runs
        [(0, 2, 3), (6, 1, 1)]
        """
        runs: list[tuple[int, int, int]] = []
        token_index = 0
        for length in self.lengths.tolist():
            if runs and runs[-1][2] == length:
                start, count, _ = runs[-1]
                runs[-1] = (start, count + 1, length)
            else:
                runs.append((token_index, 1, length))
            token_index += length
        return runs

    def may_exceed(self, length: int) -> bool:
        """Whether a sequence ends beyond `length` tokens."""
        return self.position_offset + self.max_length > length

    @property
    def first_indices(self) -> Tensor:
        """Token index of each sequence's first token, [B]."""
        return self.lengths.cumsum(0) - self.lengths

    @property
    def last_indices(self) -> Tensor:
        """Token index of the last token of each sequence, [B]."""
        return self.first_indices + self.lengths - 1

    @cached_property
    def is_padding(self) -> Tensor:
        """Where the padded batch has padding, [B, T]."""
        return torch.arange(self.max_length, device=self.lengths.device) >= self.lengths[:, None]

    @property
    def padded_positions(self) -> Tensor:
        """Positions of the padded batch, [1, T]."""
        stop = self.position_offset + self.max_length
        return torch.arange(self.position_offset, stop, device=self.lengths.device)[None]

    def bind(self, mask: Mask) -> BoundMask:
        """Bind a mask to the sequences of this batch; the padding after a sequence is masked, too.

        >>> print(PackedBatch(np.array([2, 1])).bind(causal()))
        causal() & padding()
        """
        if isinstance(mask, Window):
            return self.local_mask(mask.size)
        within_sequences = mask if self.is_rectangular else mask & padding(self.lengths)
        return within_sequences.bind(self.padded_positions, self.padded_positions)

    def full_mask(self) -> BoundMask:
        """Bidirectional mask: a token attends to every token of its sequence."""
        return padding(self.lengths).bind(self.padded_positions, self.padded_positions)

    def local_mask(self, window: int) -> BoundMask:
        """Sliding-window mask: a token attends to at most `window` tokens on either side."""
        return LocalMask(window, self.lengths, self.max_length)

    def causal_mask(self) -> BoundMask:
        """Causal mask: a token attends to itself and to earlier tokens of its sequence."""
        return self.bind(causal())

    def cross_mask(self, queries: PackedBatch) -> BoundMask:
        """Mask from the queries of another batch to all tokens of the sequence with the same index."""
        return padding(self.lengths).bind(queries.padded_positions, self.padded_positions)

    def pooling_mask(self) -> BoundMask:
        """Mask from one query for each sequence to all tokens of the sequence."""
        return padding(self.lengths).bind(self.padded_positions[:, :1], self.padded_positions)


class SelectedTokens(PackedBatch):
    """Selected tokens of a packed batch, in any order, as a batch of their own.

    >>> batch = PackedBatch(np.array([2, 3]))
    >>> selected = SelectedTokens(batch, np.array([4, 1, 2]))  # position 1 of row 0, positions 2 and 0 of row 1
    >>> selected.pad(torch.tensor([50, 20, 30])).tolist(), selected.padded_positions.tolist()
    ([[20, 0], [50, 30]], [[1, 0], [2, 0]])
    """

    def __init__(self, batch: PackedBatch, indices: NDArray[np.int64], multiple: int = 1) -> None:
        """Select token indices of the batch; the number of tokens is rounded up to a multiple of `multiple`."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < batch.num_tokens:
            raise IndexError(
                f"selected token indices must be from 0 to {batch.num_tokens - 1}, "
                f"not from {indices.min()} to {indices.max()}"
            )
        rows = np.searchsorted(np.cumsum(batch.row_lengths), indices, side="right")
        counts = np.bincount(rows, minlength=batch.num_rows)
        device = batch.lengths.device
        super().__init__(counts, device, multiple=multiple)
        order = np.argsort(rows, kind="stable")
        columns = np.empty(len(indices), dtype=np.int64)
        columns[order] = np.arange(len(indices)) - np.repeat(np.cumsum(counts) - counts, counts)
        is_sorted_by_row = bool((order == np.arange(len(indices))).all())
        self.is_rectangular = self.is_rectangular and is_sorted_by_row
        self.padded_indices = torch.from_numpy(rows * self.max_length + columns).to(device)
        padded = np.append(indices, np.zeros(self.num_padding, dtype=np.int64))
        self.indices = torch.from_numpy(padded).to(device)  # [M], among the packed tokens of the batch
        self.positions = batch.positions.index_select(0, self.indices)

    @property
    def padded_positions(self) -> Tensor:
        """Positions of the selected tokens in their sequences, [B, Q]."""
        return self.pad(self.positions)
