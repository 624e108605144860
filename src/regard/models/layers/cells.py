"""Recurrent cells: a whole sequence in one fused kernel, or a single step for loops that need the last one's output.

In such a loop only the product of a state with its matrix has to wait. All else is hoisted: inputs are projected for
all steps at once, and the gradient of a matrix is one product over all steps. The gradients of a step are written by
hand. Where weights are bf16 only products are: what is carried from step to step is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

FORGET_BIAS = 1.0  # added to the sums of the forget gate, so that a fresh cell remembers (Jozefowicz et al. 2015)
GATE_SATURATION = 1e4  # sums of a gate that is shut, or open, whatever else is added
State = tuple[Tensor, ...]  # of one layer, each [R, D]: the output, and the memory cell where there is one
Step = Callable[[Tensor, State], State]  # sums of a step's inputs [R, gates · D] and the last state give the next one
sigmoid_gradient, tanh_gradient = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward


def to_accumulation_dtype(hidden: Tensor) -> Tensor:
    """Return the states in a format to add up many steps in: float32, or float64 where they are.

    >>> to_accumulation_dtype(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return hidden if hidden.dtype == torch.float64 else hidden.float()


class _LoopMatrixGrad(torch.autograd.Function):
    """A matrix as it is; its gradient is made of what the steps noted, in one product."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, notes: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.notes = notes
        ctx.set_materialize_grads(False)
        return matrix.view_as(matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor, None]:
        left, gradient = (torch.cat(parts, dim=-2) for parts in zip(*ctx.notes, strict=True))
        ctx.notes.clear()
        return left.mT @ gradient, None


class _LoopMatmul(torch.autograd.Function):
    """A product with a held matrix."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, matrix: Tensor, notes: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.save_for_backward(left, matrix)
        ctx.notes = notes
        return left @ matrix

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        left, matrix = ctx.saved_tensors
        ctx.notes.append((left, gradient))
        return gradient @ matrix.mT, None, None


class LoopMatrix:
    """A matrix, or one for each row of a batch, that every step of a loop multiplies by; its gradient is made once.

    >>> matrix = torch.ones(3, 2, requires_grad=True)
    >>> held = LoopMatrix(matrix)
    >>> (held.matmul(torch.full((1, 3), 1.0)) + held.matmul(torch.full((1, 3), 5.0))).sum().backward()
    >>> matrix.grad.tolist()
    [[6.0, 6.0], [6.0, 6.0], [6.0, 6.0]]
    """

    def __init__(self, matrix: Tensor) -> None:
        self._notes: list[tuple[Tensor, Tensor]] = []
        self._matrix: Tensor = _LoopMatrixGrad.apply(matrix, self._notes)

    def matmul(self, left: Tensor) -> Tensor:
        """Return left [R, I] times the matrix [I, O], or [B, R, I] times the matrices [B, I, O], in their format."""
        product: Tensor = _LoopMatmul.apply(left.to(self._matrix.dtype), self._matrix, self._notes)
        return product


def _tanh_(hidden: Tensor) -> Tensor:
    """Return the hyperbolic tangent in place, by the logistic function, which is several times faster."""
    return hidden.mul_(2).sigmoid_().mul_(2).sub_(1)


class _LSTMStep(torch.autograd.Function):
    """Sums [R, 4D] of input gate, forget gate, candidate and output gate, over inputs and over the last output, and a
    cell become output and new cell.
    """

    @staticmethod
    def forward(ctx: Any, sums: Tensor, turned: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        ctx.dtypes = sums.dtype, turned.dtype
        gates = sums.to(cell.dtype) + turned
        write, keep, candidate, show = gates.chunk(4, dim=1)
        candidate.mul_(2)  # tanh x = 2 σ(2x) − 1
        gates.sigmoid_()
        candidate.mul_(2).sub_(1)
        new = torch.mul(keep, cell).addcmul_(write, candidate)
        seen = _tanh_(new.clone())
        ctx.save_for_backward(gates, cell, seen)
        return show * seen, new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_output: Tensor, to_new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, cell, seen = ctx.saved_tensors
        write, keep, candidate, show = gates.chunk(4, dim=1)
        made = torch.empty_like(gates)
        to_write, to_keep, to_candidate, to_show = made.chunk(4, dim=1)
        inner = tanh_gradient(to_output * show, seen).add_(to_new)
        torch.mul(inner, candidate, out=to_write)
        torch.mul(inner, cell, out=to_keep)
        torch.mul(to_output, seen, out=to_show)
        tanh_gradient.grad_input(inner * write, candidate, grad_input=to_candidate)
        for gradient, gate in ((made[:, : 2 * cell.shape[1]], gates[:, : 2 * cell.shape[1]]), (to_show, show)):
            sigmoid_gradient.grad_input(gradient, gate, grad_input=gradient)
        return made.to(ctx.dtypes[0]), made.to(ctx.dtypes[1]), inner.mul_(keep)


class _GRUStep(torch.autograd.Function):
    """Sums [R, 3D] of reset gate, update gate and candidate, over inputs and over a state, become the next state."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, turned: Tensor, before: Tensor) -> Tensor:
        ctx.dtypes = sums.dtype, turned.dtype
        width = before.shape[1]
        gates, turned = sums.to(before.dtype, copy=True), turned.to(before.dtype)
        reset, update, candidate = gates.chunk(3, dim=1)
        gates[:, : 2 * width].add_(turned[:, : 2 * width]).sigmoid_()
        _tanh_(candidate.addcmul_(reset, turned[:, 2 * width :]))
        ctx.save_for_backward(gates, turned[:, 2 * width :], before)
        return torch.lerp(candidate, before, update)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, turned, before = ctx.saved_tensors
        reset, update, candidate = gates.chunk(3, dim=1)
        made = torch.empty_like(gates)
        to_reset, to_update, to_candidate = made.chunk(3, dim=1)
        to_before = to_output * update
        tanh_gradient.grad_input(to_output - to_before, candidate, grad_input=to_candidate)
        torch.mul(to_candidate, turned, out=to_reset)
        torch.mul(before - candidate, to_output, out=to_update)
        logistic, width = made[:, : 2 * before.shape[1]], before.shape[1]
        sigmoid_gradient.grad_input(logistic, gates[:, : 2 * width], grad_input=logistic)
        to_turned = made.clone()
        to_turned[:, 2 * width :].mul_(reset)
        return made.to(ctx.dtypes[0]), to_turned.to(ctx.dtypes[1]), to_before


class LSTM(nn.Module):
    """A layer of long short-term memory (Hochreiter & Schmidhuber 1997; Gers et al. 2000)."""

    gates, parts = 4, 2

    def __init__(self, inputs: int, width: int, fed: int = 0) -> None:
        super().__init__()
        self.hidden_size = width
        self.lstm_input = nn.Linear(inputs, 4 * width)
        self.lstm_state = nn.Linear(width, 4 * width, bias=False)
        if fed:
            self.lstm_feed = nn.Linear(fed, 4 * width, bias=False)

    @property
    def input_weight(self) -> Tensor:
        """The matrix that inputs meet, [4D, I]."""
        return self.lstm_input.weight

    @property
    def feed_weight(self) -> Tensor:
        """The matrix that what is fed beside the inputs meets, [4D, F]."""
        return self.lstm_feed.weight

    @property
    def bias(self) -> Tensor:
        """What every step adds to its sums, [4D]."""
        return self.lstm_input.bias + self._forget()

    def _forget(self) -> Tensor:
        return functional.pad(
            self.input_weight.new_full((self.hidden_size,), FORGET_BIAS), (self.hidden_size, 2 * self.hidden_size)
        )

    def forward(self, inputs: Tensor, state: State, ended: Tensor | None) -> tuple[Tensor, State]:
        """Return the outputs [T, B, D] for inputs [T, B, I], and the last state; the whole sequence in one kernel.

        Where `over` [T, B] is true a row has ended, and its cell stays as it is. Its output goes on.
        """
        entry = self.input_weight
        if ended is not None:  # one more input shuts the input gate and opens the forget gate
            inputs = torch.cat([inputs, ended.to(inputs.dtype).unsqueeze(-1)], dim=-1)
            signs = entry.new_tensor([-GATE_SATURATION, GATE_SATURATION, 0, 0]).repeat_interleave(self.hidden_size)
            entry = torch.cat([entry, signs.unsqueeze(-1)], dim=-1)
        weights = [entry, self.lstm_state.weight, self.lstm_input.bias, self._forget()]
        start = [part.to(inputs.dtype).unsqueeze(0) for part in state]
        training = torch.is_grad_enabled()
        outputs, output, cell = torch.lstm(inputs, start, weights, True, 1, 0.0, training, False, False)
        return outputs, (output[0], cell[0])

    def step_function(self) -> Step:
        """Return a function for one step of a loop."""
        held = LoopMatrix(self.lstm_state.weight.t())

        def step(sums: Tensor, state: State) -> State:
            output, cell = _LSTMStep.apply(sums, held.matmul(state[0]), to_accumulation_dtype(state[1]))
            return output, cell

        return step


class GRU(nn.Module):
    """A layer of gated recurrent units (Cho et al. 2014); the reset gate acts on the projected state."""

    gates, parts = 3, 1

    def __init__(self, inputs: int, width: int, fed: int = 0) -> None:
        super().__init__()
        self.hidden_size = width
        self.gru_input = nn.Linear(inputs, 3 * width)
        self.gru_state = nn.Linear(width, 3 * width)
        if fed:
            self.gru_feed = nn.Linear(fed, 3 * width, bias=False)

    @property
    def input_weight(self) -> Tensor:
        """The matrix that inputs meet, [3D, I]."""
        return self.gru_input.weight

    @property
    def feed_weight(self) -> Tensor:
        """The matrix that what is fed beside the inputs meets, [3D, F]."""
        return self.gru_feed.weight

    @property
    def bias(self) -> Tensor:
        """What every step adds to the sums of its inputs, [3D]."""
        return self.gru_input.bias

    def forward(self, inputs: Tensor, state: State, over: Tensor | None) -> tuple[Tensor, State]:
        """Return the outputs [T, B, D] for inputs [T, B, I], and the last state; the whole sequence in one kernel."""
        weights = [self.input_weight, self.gru_state.weight, self.gru_input.bias, self.gru_state.bias]
        start = state[0].to(inputs.dtype).unsqueeze(0)
        outputs, output = torch.gru(inputs, start, weights, True, 1, 0.0, torch.is_grad_enabled(), False, False)
        return outputs, (output[0],)

    def step_function(self) -> Step:
        """Return a function for one step of a loop."""
        held, bias = LoopMatrix(self.gru_state.weight.t()), to_accumulation_dtype(self.gru_state.bias)

        def step(sums: Tensor, state: State) -> State:
            before = to_accumulation_dtype(state[0])
            return (_GRUStep.apply(sums, held.matmul(before) + bias, before),)

        return step


Cell = LSTM | GRU
CELLS: dict[str, type[LSTM] | type[GRU]] = {"lstm": LSTM, "gru": GRU}
