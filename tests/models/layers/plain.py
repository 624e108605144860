"""Recurrent cells as the papers write them, one step at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.models.layers.cells import FORGET_BIAS, Cell, State


def plain_step(cell: Cell, given: Tensor, state: State) -> State:
    """One step: the products of all inputs with their matrices [R, gates · D], and a state, give the next state."""
    if cell.gates == 4:
        output, memory = state
        sums = given + cell.lstm_input.bias + output @ cell.lstm_state.weight.T
        write, keep, candidate, show = sums.split(cell.hidden_size, dim=1)
        memory = torch.sigmoid(keep + FORGET_BIAS) * memory + torch.sigmoid(write) * torch.tanh(candidate)
        return torch.sigmoid(show) * torch.tanh(memory), memory
    (before,) = state
    of_input = (given + cell.gru_input.bias).split(cell.hidden_size, dim=1)
    of_state = (before @ cell.gru_state.weight.T + cell.gru_state.bias).split(cell.hidden_size, dim=1)
    reset, update = (torch.sigmoid(of_input[gate] + of_state[gate]) for gate in (0, 1))
    candidate = torch.tanh(of_input[2] + reset * of_state[2])
    return ((1 - update) * candidate + update * before,)
