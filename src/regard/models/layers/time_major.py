"""Time-major layout of packed batches, in which recurrent cells run."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.packed_batch import PackedBatch
from regard.models.layers.cells import Cell, State


class TimeMajor:
    """Packed tokens as time steps [T, B], from the first token of each sequence or, backwards, from the last."""

    def __init__(self, batch: PackedBatch, backwards: bool = False) -> None:
        self.batch = batch
        row = batch.padded_indices // max(1, batch.max_length)
        position = batch.padded_indices % max(1, batch.max_length)
        step = batch.lengths[row] - 1 - position if backwards else position
        self.padded_indices = step * batch.num_rows + row  # [num_tokens], among [T · B]
        rows = torch.arange(batch.num_rows, device=row.device)
        self.last_indices = (batch.lengths.clamp_min(1) - 1) * batch.num_rows + rows  # [B], each row's last step
        steps = torch.arange(batch.max_length, device=row.device)
        self.ended = None if batch.is_rectangular else steps[:, None] >= batch.lengths  # [T, B]

    def pad(self, hidden: Tensor) -> Tensor:
        """Packed states [N, I] → time steps [T, B, I]; zeros after the end of a sequence."""
        max_length = self.batch.max_length
        num_rows = self.batch.num_rows
        zeros = hidden.new_zeros(max_length * num_rows, hidden.shape[1])
        inputs = zeros.index_copy_(0, self.padded_indices, hidden[: self.batch.num_tokens])
        return inputs.view(max_length, num_rows, -1)

    def pack(self, outputs: Tensor) -> Tensor:
        """Time steps [T, B, D] → packed states [N, D]."""
        packed = outputs.flatten(0, 1).index_select(0, self.padded_indices)
        if self.batch.num_padding:
            packed = torch.cat([packed, packed.new_zeros(self.batch.num_padding, packed.shape[1])])
        return packed

    def run(self, cell: Cell, hidden: Tensor, initial: State) -> tuple[Tensor, State]:
        """Run a cell over packed inputs [N, I]: outputs [N, D], and each sequence's last state."""
        outputs, state = cell.forward(self.pad(hidden), initial, self.ended)
        last_output = outputs.flatten(0, 1).index_select(0, self.last_indices)
        return self.pack(outputs), (last_output, *state[1:])
