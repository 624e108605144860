"""`Rows`: where packed tokens stand; only attention needs to see them row by row."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks import BoundMask, causal, padding
from regard.attention.sparse import LocalMask
from regard.tokens import Tokens


class _Spread(torch.autograd.Function):
    """Packed rows [N, …] → padded rows [B · T, …]; the gradient is gathered back."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, at: Tensor, places: int) -> Tensor:
        ctx.save_for_backward(at)
        return packed.new_zeros(places, *packed.shape[1:]).index_copy_(0, at, packed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (at,) = ctx.saved_tensors
        return gradients[0].index_select(0, at), None, None


class _Gather(torch.autograd.Function):
    """Padded rows [B · T, …] → packed rows [N, …]; the gradient is spread back."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, at: Tensor) -> Tensor:
        ctx.save_for_backward(at)
        ctx.places = padded.shape[0]
        return padded.index_select(0, at)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (at,) = ctx.saved_tensors
        gradient = gradients[0]
        return gradient.new_zeros(ctx.places, *gradient.shape[1:]).index_copy_(0, at, gradient), None


class PackedBatch:
    """The layout of packed rows: B rows of given lengths, N places in all, the longest T.

    N may be rounded up to a multiple of `block`: the places after the last row belong to nobody. Matrix products are
    prepared once for each size they meet, so few sizes are much cheaper than many.

    >>> rows = PackedBatch(np.array([2, 1]))
    >>> rows.pad(torch.tensor([5, 6, 7])).tolist()
    [[5, 6], [7, 0]]
    >>> rows.pack(rows.pad(torch.tensor([5, 6, 7]))).tolist()
    [5, 6, 7]
    """

    def __init__(self, lengths: np.ndarray, device: torch.device | str = "cpu", first: int = 0, block: int = 1) -> None:
        self.num_rows, self.row_lengths = len(lengths), lengths
        self.max_length = int(lengths.max()) if self.num_rows else 0
        self.is_rectangular = self.num_rows == 0 or int(lengths.min()) == self.max_length
        self.lengths = torch.as_tensor(lengths, dtype=torch.long).to(device)
        self.num_tokens = int(lengths.sum())
        self.num_padding = -self.num_tokens % block  # places at the end that belong to nobody
        place = np.arange(self.num_tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        stand = np.append(place + first, np.zeros(self.num_padding, dtype=np.int64))
        self.positions = torch.from_numpy(stand).to(device)  # [N], where each token stands in its row
        row = np.repeat(np.arange(self.num_rows), lengths)
        self.padded_indices = torch.from_numpy(row * self.max_length + place).to(
            device
        )  # [filled], its place among padded rows

    @classmethod
    def from_tokens(cls, tokens: Tokens, device: torch.device | str = "cpu", multiple: int = 1) -> PackedBatch:
        """Return the layout of packed tokens."""
        return cls(tokens.lengths, device, block=multiple)

    def pad(self, packed: Tensor) -> Tensor:
        """Return [N, …] as [B, T, …]; without copying when all rows are equally long."""
        packed = packed[: self.num_tokens]
        if not self.is_rectangular:
            packed = _Spread.apply(packed, self.padded_indices, self.num_rows * self.max_length)
        return packed.view(self.num_rows, self.max_length, *packed.shape[1:])

    def pack(self, padded: Tensor) -> Tensor:
        """Return [B, T, …] as [N, …]; without copying when all rows are equally long."""
        flat = padded.reshape(self.num_rows * self.max_length, *padded.shape[2:])
        packed: Tensor = flat if self.is_rectangular else _Gather.apply(flat, self.padded_indices)
        if self.num_padding:
            packed = torch.cat([packed, packed.new_zeros(self.num_padding, *packed.shape[1:])])
        return packed

    @cached_property
    def equal_length_runs(self) -> list[tuple[int, int, int]]:
        """Neighbouring rows of one length: the place of their first token, how many there are, how long they are.

        >>> PackedBatch(np.array([3, 3, 1])).equal_length_runs
        [(0, 2, 3), (6, 1, 1)]
        """
        made: list[tuple[int, int, int]] = []
        at = 0
        for length in self.lengths.tolist():
            if made and made[-1][2] == length:
                made[-1] = (made[-1][0], made[-1][1] + 1, length)
            else:
                made.append((at, 1, length))
            at += length
        return made

    @property
    def first_indices(self) -> Tensor:
        """Where each row's first token stands among the packed ones, [B]."""
        return self.lengths.cumsum(0) - self.lengths

    @property
    def padded_positions(self) -> Tensor:
        """Slots of the padded rows, [1, T]."""
        return torch.arange(self.max_length, device=self.lengths.device)[None]

    def full_mask(self) -> BoundMask:
        """Everybody may look at every token of its own row."""
        return padding(self.lengths).bind(self.padded_positions, self.padded_positions)

    def local_mask(self, window: int) -> BoundMask:
        """Everybody may look at the tokens of its own row that are at most so far away."""
        return LocalMask(window, self.lengths, self.max_length)

    def causal_mask(self) -> BoundMask:
        """Everybody may look at itself and what came before."""
        mask = causal() if self.is_rectangular else causal() & padding(self.lengths)
        return mask.bind(self.padded_positions, self.padded_positions)

    def cross_mask(self, queries: PackedBatch) -> BoundMask:
        """Queries of other rows may look at every token of the row with their number."""
        return padding(self.lengths).bind(queries.padded_positions, self.padded_positions)


class SelectedTokens(PackedBatch):
    """Some tokens of packed rows, in any order, as rows of their own: those whose states are needed.

    >>> rows = PackedBatch(np.array([2, 3]))
    >>> chosen = SelectedTokens(rows, np.array([4, 1, 2]))  # tokens 1; 0 and 2 of their rows
    >>> chosen.pad(torch.tensor([50, 20, 30])).tolist(), chosen.padded_positions.tolist()
    ([[20, 0], [50, 30]], [[1, 0], [2, 0]])
    """

    def __init__(self, rows: PackedBatch, places: NDArray[np.int64], block: int = 1) -> None:
        """Take packed places; the number of states is rounded up to a multiple of `block`, as rows' is."""
        if len(places) and not 0 <= places.min() <= places.max() < rows.num_tokens:
            raise IndexError(f"places from {places.min()} to {places.max()} of {rows.num_tokens} tokens are chosen")
        of = np.searchsorted(np.cumsum(rows.row_lengths), places, side="right")
        counts = np.bincount(of, minlength=rows.num_rows)
        device = rows.lengths.device
        super().__init__(counts, device, block=block)
        order = np.argsort(of, kind="stable")
        rank = np.empty(len(places), dtype=np.int64)
        rank[order] = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.is_rectangular = self.is_rectangular and bool((order == np.arange(len(places))).all())
        self.padded_indices = torch.from_numpy(of * self.max_length + rank).to(device)
        filled = np.append(places, np.zeros(self.num_padding, dtype=np.int64))
        self.indices = torch.from_numpy(filled).to(device)  # [M], among the packed tokens
        self.positions = rows.positions.index_select(0, self.indices)

    @property
    def padded_positions(self) -> Tensor:
        """Where the chosen tokens stand in their rows, [B, Q]."""
        return self.pad(self.positions)
