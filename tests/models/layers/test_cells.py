"""Cells: fused sequences, single steps and a plain loop agree in values and gradients; held matrices get theirs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard.models.layers.cells import CELLS, Cell, LoopMatrix, State
from tests.models.layers.plain import plain_step

STEPS, ROWS, INPUTS, WIDTH = 5, 3, 7, 11


def plain(cell: Cell, inputs: Tensor, state: State) -> Tensor:
    outputs = []
    for given in inputs:
        state = plain_step(cell, given @ cell.input_weight.T, state)
        outputs.append(state[0])
    return torch.stack([*outputs, *state])


def fused(cell: Cell, inputs: Tensor, state: State) -> Tensor:
    outputs, last = cell.forward(inputs, state, None)
    return torch.cat([outputs, torch.stack(last)])


def stepped(cell: Cell, inputs: Tensor, state: State) -> Tensor:
    step, outputs = cell.step_function(), []
    for sums in functional.linear(inputs, cell.input_weight, cell.bias):
        state = step(sums, state)
        outputs.append(state[0])
    return torch.stack([*outputs, *state])


@pytest.mark.parametrize("way", [fused, stepped])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_values_and_gradients_are_those_of_the_plain_loop(kind: str, way: object) -> None:
    generator = torch.Generator().manual_seed(1)
    cell = CELLS[kind](INPUTS, WIDTH).double()
    for parameter in cell.parameters():
        parameter.data.normal_(generator=generator)
    tensors = [torch.randn(STEPS, ROWS, INPUTS, generator=generator)]
    tensors += [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(cell.parts)]
    factor = torch.randn(STEPS + cell.parts, ROWS, WIDTH, generator=generator).double()
    found = []
    for compute in (way, plain):
        given, *state = (tensor.double().requires_grad_() for tensor in tensors)
        cell.zero_grad()
        made = compute(cell, given, tuple(state))  # type: ignore[operator]
        (made * factor).sum().backward()
        gradients = [tensor.grad for tensor in (given, *state, *cell.parameters())]
        found.append([made.detach(), *(gradient.clone() for gradient in gradients)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_step_in_bf16_stays_near_float32(kind: str) -> None:
    torch.manual_seed(1)
    cell = CELLS[kind](INPUTS, WIDTH)
    inputs = torch.randn(31, ROWS, INPUTS)
    state = (torch.zeros(ROWS, WIDTH),) * cell.parts
    wide = {way: way(cell, inputs, state) for way in (fused, stepped)}
    cell.bfloat16()
    for way, wanted in wide.items():
        made = way(cell, inputs.bfloat16(), state)
        made.sum().backward()
        torch.testing.assert_close(made.float(), wanted, rtol=0, atol=0.03)
        assert all(torch.isfinite(parameter.grad).all() for parameter in cell.parameters())
    assert stepped(cell, inputs.bfloat16(), state).dtype == torch.float32  # what goes from step to step is not rounded


def test_a_row_that_is_over_keeps_its_cell() -> None:
    torch.manual_seed(1)
    cell = CELLS["lstm"](INPUTS, WIDTH)
    inputs, state = torch.randn(STEPS, 1, INPUTS), (torch.randn(1, WIDTH),) * 2
    over = torch.arange(STEPS)[:, None] >= 2
    _, (_, frozen) = cell.forward(inputs, state, over)
    _, (_, wanted) = cell.forward(inputs[:2], state, None)
    torch.testing.assert_close(frozen, wanted)


def test_held_matrices_get_the_gradient_of_all_steps() -> None:
    generator = torch.Generator().manual_seed(1)
    for shape in ((INPUTS, WIDTH), (ROWS, INPUTS, WIDTH)):  # one matrix, and one for each row of a batch
        matrix = torch.randn(shape, generator=generator, requires_grad=True)
        lefts = [torch.randn(*shape[:-2], 2, INPUTS, generator=generator, requires_grad=True) for _ in range(STEPS)]
        held, found = LoopMatrix(matrix), []
        for times in (held.matmul, lambda left, matrix=matrix: left @ matrix):
            made = sum((step + 1) * times(left).tanh().sum() for step, left in enumerate(lefts))
            found.append(torch.autograd.grad(made, [matrix, *lefts]))
        torch.testing.assert_close(found[0], found[1])
