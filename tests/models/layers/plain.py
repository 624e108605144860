"""Recurrent cells as the papers write them, one step at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.models.layers.cells import FORGET_BIAS, Cell, State


def plain_step(cell: Cell, input_sums: Tensor, state: State) -> State:
    """Next state of a cell from the products of all inputs with their matrices [R, gates · D] and the last state."""
    if cell.num_gates == 4:
        output, memory = state
        sums = input_sums + cell.lstm_input.bias + output @ cell.lstm_hidden.weight.T
        input_gate, forget_gate, candidate, output_gate = sums.split(cell.hidden_size, dim=1)
        kept_memory = torch.sigmoid(forget_gate + FORGET_BIAS) * memory
        memory = kept_memory + torch.sigmoid(input_gate) * torch.tanh(candidate)
        return torch.sigmoid(output_gate) * torch.tanh(memory), memory
    (output,) = state
    input_parts = (input_sums + cell.gru_input.bias).split(cell.hidden_size, dim=1)
    state_parts = (output @ cell.gru_hidden.weight.T + cell.gru_hidden.bias).split(cell.hidden_size, dim=1)
    reset = torch.sigmoid(input_parts[0] + state_parts[0])
    update = torch.sigmoid(input_parts[1] + state_parts[1])
    candidate = torch.tanh(input_parts[2] + reset * state_parts[2])
    return ((1 - update) * candidate + update * output,)
