"""Recurrent cells: fused sequences, single steps and a plain loop agree; loop matrices get all steps' gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard.models.layers.cells import CELLS, Cell, LoopMatrix, State
from tests.models.layers.plain import plain_step

STEPS, ROWS, INPUT_SIZE, HIDDEN_SIZE = 5, 3, 7, 11


def run_plain_loop(cell: Cell, inputs: Tensor, state: State) -> Tensor:
    outputs = []
    for step_inputs in inputs:
        state = plain_step(cell, step_inputs @ cell.input_weight.T, state)
        outputs.append(state[0])
    return torch.stack([*outputs, *state])


def run_fused(cell: Cell, inputs: Tensor, state: State) -> Tensor:
    outputs, last_state = cell.forward(inputs, state, None)
    return torch.cat([outputs, torch.stack(last_state)])


def run_steps(cell: Cell, inputs: Tensor, state: State) -> Tensor:
    step = cell.step_function()
    outputs = []
    for sums in functional.linear(inputs, cell.input_weight, cell.bias):
        state = step(sums, state)
        outputs.append(state[0])
    return torch.stack([*outputs, *state])


@pytest.mark.parametrize("run", [run_fused, run_steps])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_values_and_gradients_are_those_of_the_plain_loop(kind: str, run: object) -> None:
    generator = torch.Generator().manual_seed(1)
    cell = CELLS[kind](INPUT_SIZE, HIDDEN_SIZE).double()
    for parameter in cell.parameters():
        parameter.data.normal_(generator=generator)
    tensors = [torch.randn(STEPS, ROWS, INPUT_SIZE, generator=generator)]
    tensors += [torch.randn(ROWS, HIDDEN_SIZE, generator=generator) for _ in range(cell.num_states)]
    factor = torch.randn(STEPS + cell.num_states, ROWS, HIDDEN_SIZE, generator=generator).double()
    values_and_gradients = []
    for compute in (run, run_plain_loop):
        inputs, *state = (tensor.double().requires_grad_() for tensor in tensors)
        cell.zero_grad()
        outputs = compute(cell, inputs, tuple(state))  # type: ignore[operator]
        (outputs * factor).sum().backward()
        gradients = [tensor.grad for tensor in (inputs, *state, *cell.parameters())]
        values_and_gradients.append([outputs.detach(), *(gradient.clone() for gradient in gradients)])
    torch.testing.assert_close(values_and_gradients[0], values_and_gradients[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_step_in_bf16_stays_near_float32(kind: str) -> None:
    torch.manual_seed(1)
    cell = CELLS[kind](INPUT_SIZE, HIDDEN_SIZE)
    inputs = torch.randn(31, ROWS, INPUT_SIZE)
    state = (torch.zeros(ROWS, HIDDEN_SIZE),) * cell.num_states
    float32_outputs = {run: run(cell, inputs, state) for run in (run_fused, run_steps)}
    cell.bfloat16()
    for run, expected in float32_outputs.items():
        outputs = run(cell, inputs.bfloat16(), state)
        outputs.sum().backward()
        torch.testing.assert_close(outputs.float(), expected, rtol=0, atol=0.03)
        assert all(torch.isfinite(parameter.grad).all() for parameter in cell.parameters())
    assert run_steps(cell, inputs.bfloat16(), state).dtype == torch.float32  # the state of the loop is not rounded


def test_a_sequence_that_has_ended_keeps_its_memory_cell() -> None:
    torch.manual_seed(1)
    cell = CELLS["lstm"](INPUT_SIZE, HIDDEN_SIZE)
    inputs = torch.randn(STEPS, 1, INPUT_SIZE)
    state = (torch.randn(1, HIDDEN_SIZE),) * 2
    ended = torch.arange(STEPS)[:, None] >= 2
    _, (_, frozen) = cell.forward(inputs, state, ended)
    _, (_, expected) = cell.forward(inputs[:2], state, None)
    torch.testing.assert_close(frozen, expected)


def test_loop_matrices_get_the_gradient_of_all_steps() -> None:
    generator = torch.Generator().manual_seed(1)
    for shape in ((INPUT_SIZE, HIDDEN_SIZE), (ROWS, INPUT_SIZE, HIDDEN_SIZE)):  # one matrix, and one per row of a batch
        matrix = torch.randn(shape, generator=generator, requires_grad=True)
        lefts = [torch.randn(*shape[:-2], 2, INPUT_SIZE, generator=generator, requires_grad=True) for _ in range(STEPS)]
        loop_matrix = LoopMatrix(matrix)
        gradients = []
        for matmul in (loop_matrix.matmul, lambda left, matrix=matrix: left @ matrix):
            total = sum((step + 1) * matmul(left).tanh().sum() for step, left in enumerate(lefts))
            gradients.append(torch.autograd.grad(total, [matrix, *lefts]))
        torch.testing.assert_close(gradients[0], gradients[1])
