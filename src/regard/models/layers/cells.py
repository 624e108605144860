"""Recurrent cells: a whole sequence in one fused kernel, or single steps for loops that need the previous output.

In a loop only the product of the state with its matrix has to wait for the previous step. Everything else is hoisted:
inputs are projected for all steps at once, and the gradient of a matrix is one matmul over all steps. The gradients of
a step are written by hand. With bf16 weights only the matmuls are in bf16: the state of the loop is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.attention.dropout import Noise, apply_dropout

FORGET_BIAS = 1.0  # added to the forget gate's preactivation, so that a fresh cell remembers (Jozefowicz et al. 2015)
GATE_SATURATION = 1e4  # preactivation that shuts or opens a gate whatever else is added
State = tuple[Tensor, ...]  # of one layer, each [R, D]: the output, and the memory cell of an LSTM
Step = Callable[[Tensor, State], State]  # input preactivation [R, gates · D] and previous state → next state
sigmoid_gradient = torch.ops.aten.sigmoid_backward
tanh_gradient = torch.ops.aten.tanh_backward


def to_accumulation_dtype(hidden: Tensor) -> Tensor:
    """Convert to a dtype in which many steps can be summed: float32, or float64 as it is.

    >>> to_accumulation_dtype(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return hidden if hidden.dtype == torch.float64 else hidden.float()


class _LoopMatrixGrad(torch.autograd.Function):
    """The identity of a matrix; its gradient is one matmul over the operands that the steps recorded."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, recorded: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.recorded = recorded
        ctx.set_materialize_grads(False)
        return matrix.view_as(matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor, None]:
        operands, gradients = zip(*ctx.recorded, strict=True)
        operand = torch.cat(operands, dim=-2)
        gradient = torch.cat(gradients, dim=-2)
        ctx.recorded.clear()
        return operand.mT @ gradient, None


class _LoopMatmul(torch.autograd.Function):
    """A product with a loop matrix; the backward pass records the operands of the matrix's gradient."""

    @staticmethod
    def forward(ctx: Any, operand: Tensor, matrix: Tensor, recorded: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.save_for_backward(operand, matrix)
        ctx.recorded = recorded
        return operand @ matrix

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        operand, matrix = ctx.saved_tensors
        ctx.recorded.append((operand, gradient))
        return gradient @ matrix.mT, None, None


class LoopMatrix:
    """A matrix (or one per row of a batch) used in every step of a loop; its gradient is one matmul at the end.

    >>> matrix = torch.ones(3, 2, requires_grad=True)
    >>> loop_matrix = LoopMatrix(matrix)
    >>> products = loop_matrix.matmul(torch.full((1, 3), 1.0)) + loop_matrix.matmul(torch.full((1, 3), 5.0))
    >>> products.sum().backward()
    >>> matrix.grad.tolist()
    [[6.0, 6.0], [6.0, 6.0], [6.0, 6.0]]
    """

    def __init__(self, matrix: Tensor) -> None:
        self._recorded: list[tuple[Tensor, Tensor]] = []
        self._matrix: Tensor = _LoopMatrixGrad.apply(matrix, self._recorded)

    def matmul(self, operand: Tensor) -> Tensor:
        """operand [R, I] · matrix [I, O], or operand [B, R, I] · matrices [B, I, O], in the matrix's dtype."""
        product: Tensor = _LoopMatmul.apply(operand.to(self._matrix.dtype), self._matrix, self._recorded)
        return product


def _tanh_(hidden: Tensor) -> Tensor:
    """Hyperbolic tangent in place, by way of the logistic function, which is several times faster."""
    return hidden.mul_(2).sigmoid_().mul_(2).sub_(1)


class _LSTMStep(torch.autograd.Function):
    """One LSTM step: preactivations [R, 4D] (input gate, forget gate, candidate, output gate) and the memory cell
    [R, D] → output and next cell, each [R, D].
    """

    @staticmethod
    def forward(ctx: Any, input_sums: Tensor, state_sums: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        ctx.dtypes = input_sums.dtype, state_sums.dtype
        gates = input_sums.to(cell.dtype) + state_sums
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
        candidate.mul_(2)  # tanh x = 2 σ(2x) − 1
        gates.sigmoid_()
        candidate.mul_(2).sub_(1)
        next_cell = torch.mul(forget_gate, cell).addcmul_(input_gate, candidate)
        activated_cell = _tanh_(next_cell.clone())
        ctx.save_for_backward(gates, cell, activated_cell)
        return output_gate * activated_cell, next_cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_next_cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, cell, activated_cell = ctx.saved_tensors
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
        d_gates = torch.empty_like(gates)
        d_input_gate, d_forget_gate, d_candidate, d_output_gate = d_gates.chunk(4, dim=1)
        d_cell = tanh_gradient(d_output * output_gate, activated_cell).add_(d_next_cell)
        torch.mul(d_cell, candidate, out=d_input_gate)
        torch.mul(d_cell, cell, out=d_forget_gate)
        torch.mul(d_output, activated_cell, out=d_output_gate)
        tanh_gradient.grad_input(d_cell * input_gate, candidate, grad_input=d_candidate)
        first_two = slice(0, 2 * cell.shape[1])  # input and forget gate are adjacent: one call
        for d_gate, gate in ((d_gates[:, first_two], gates[:, first_two]), (d_output_gate, output_gate)):
            sigmoid_gradient.grad_input(d_gate, gate, grad_input=d_gate)
        input_dtype, state_dtype = ctx.dtypes
        return d_gates.to(input_dtype), d_gates.to(state_dtype), d_cell.mul_(forget_gate)


class _GRUStep(torch.autograd.Function):
    """One GRU step: preactivations [R, 3D] (reset gate, update gate, candidate) of the inputs and of the state, and
    the state [R, D] → next state [R, D].
    """

    @staticmethod
    def forward(ctx: Any, input_sums: Tensor, state_sums: Tensor, state: Tensor) -> Tensor:
        ctx.dtypes = input_sums.dtype, state_sums.dtype
        gate_size = 2 * state.shape[1]
        gates = input_sums.to(state.dtype, copy=True)
        state_sums = state_sums.to(state.dtype)
        candidate_sums = state_sums[:, gate_size:]
        reset, update, candidate = gates.chunk(3, dim=1)
        gates[:, :gate_size].add_(state_sums[:, :gate_size]).sigmoid_()
        _tanh_(candidate.addcmul_(reset, candidate_sums))
        ctx.save_for_backward(gates, candidate_sums, state)
        return torch.lerp(candidate, state, update)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, candidate_sums, state = ctx.saved_tensors
        gate_size = 2 * state.shape[1]
        reset, update, candidate = gates.chunk(3, dim=1)
        d_gates = torch.empty_like(gates)
        d_reset, d_update, d_candidate = d_gates.chunk(3, dim=1)
        d_state = d_output * update
        tanh_gradient.grad_input(d_output - d_state, candidate, grad_input=d_candidate)
        torch.mul(d_candidate, candidate_sums, out=d_reset)
        torch.mul(state - candidate, d_output, out=d_update)
        d_logistic = d_gates[:, :gate_size]
        sigmoid_gradient.grad_input(d_logistic, gates[:, :gate_size], grad_input=d_logistic)
        d_state_sums = d_gates.clone()
        d_state_sums[:, gate_size:].mul_(reset)
        input_dtype, state_dtype = ctx.dtypes
        return d_gates.to(input_dtype), d_state_sums.to(state_dtype), d_state


class LSTM(nn.Module):
    """A layer of long short-term memory (Hochreiter & Schmidhuber 1997; Gers et al. 2000)."""

    num_gates = 4
    num_states = 2  # output and memory cell

    def __init__(self, input_size: int, hidden_size: int, feed_size: int = 0) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.lstm_input = nn.Linear(input_size, 4 * hidden_size)
        self.lstm_hidden = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        if feed_size:
            self.lstm_feed = nn.Linear(feed_size, 4 * hidden_size, bias=False)

    @property
    def input_weight(self) -> Tensor:
        """Matrix of the inputs, [4D, I]."""
        return self.lstm_input.weight

    @property
    def feed_weight(self) -> Tensor:
        """Matrix of the input feed, [4D, F]."""
        return self.lstm_feed.weight

    @property
    def bias(self) -> Tensor:
        """Bias of the preactivations, [4D]."""
        return self.lstm_input.bias + self._forget_bias()

    def _forget_bias(self) -> Tensor:
        """`FORGET_BIAS` at the forget gate, zero elsewhere, [4D]."""
        forget_bias = self.input_weight.new_full((self.hidden_size,), FORGET_BIAS)
        return functional.pad(forget_bias, (self.hidden_size, 2 * self.hidden_size))

    def forward(self, inputs: Tensor, state: State, ended: Tensor | None) -> tuple[Tensor, State]:
        """Outputs [T, B, D] of inputs [T, B, I], and the last state; the whole sequence in one kernel.

        Where `ended` [T, B] is true, a sequence has ended and its memory cell stays as it is; its outputs do not.
        """
        input_weight = self.input_weight
        if ended is not None:  # one more input shuts the input gate and opens the forget gate
            inputs = torch.cat([inputs, ended.to(inputs.dtype).unsqueeze(-1)], dim=-1)
            saturation = input_weight.new_tensor([-GATE_SATURATION, GATE_SATURATION, 0, 0])
            column = saturation.repeat_interleave(self.hidden_size).unsqueeze(-1)
            input_weight = torch.cat([input_weight, column], dim=-1)
        weights = [input_weight, self.lstm_hidden.weight, self.lstm_input.bias, self._forget_bias()]
        initial = [tensor.to(inputs.dtype).unsqueeze(0) for tensor in state]
        is_training = torch.is_grad_enabled()
        outputs, output, cell = torch.lstm(inputs, initial, weights, True, 1, 0.0, is_training, False, False)
        return outputs, (output[0], cell[0])

    def step_function(self) -> Step:
        """Build the function of a single step, for loops."""
        state_weight = LoopMatrix(self.lstm_hidden.weight.t())

        def step(input_sums: Tensor, state: State) -> State:
            previous_output, previous_cell = state
            state_sums = state_weight.matmul(previous_output)
            output, cell = _LSTMStep.apply(input_sums, state_sums, to_accumulation_dtype(previous_cell))
            return output, cell

        return step


class GRU(nn.Module):
    """A layer of gated recurrent units (Cho et al. 2014); the reset gate acts on the projected state."""

    num_gates = 3
    num_states = 1

    def __init__(self, input_size: int, hidden_size: int, feed_size: int = 0) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.gru_input = nn.Linear(input_size, 3 * hidden_size)
        self.gru_hidden = nn.Linear(hidden_size, 3 * hidden_size)
        if feed_size:
            self.gru_feed = nn.Linear(feed_size, 3 * hidden_size, bias=False)

    @property
    def input_weight(self) -> Tensor:
        """Matrix of the inputs, [3D, I]."""
        return self.gru_input.weight

    @property
    def feed_weight(self) -> Tensor:
        """Matrix of the input feed, [3D, F]."""
        return self.gru_feed.weight

    @property
    def bias(self) -> Tensor:
        """Bias of the input preactivations, [3D]."""
        return self.gru_input.bias

    def forward(self, inputs: Tensor, state: State, ended: Tensor | None) -> tuple[Tensor, State]:
        """Outputs [T, B, D] of inputs [T, B, I], and the last state; the whole sequence in one kernel.

        `ended` is unused: the last state of a GRU is its last output.
        """
        weights = [self.input_weight, self.gru_hidden.weight, self.gru_input.bias, self.gru_hidden.bias]
        initial = state[0].to(inputs.dtype).unsqueeze(0)
        is_training = torch.is_grad_enabled()
        outputs, output = torch.gru(inputs, initial, weights, True, 1, 0.0, is_training, False, False)
        return outputs, (output[0],)

    def step_function(self) -> Step:
        """Build the function of a single step, for loops."""
        state_weight = LoopMatrix(self.gru_hidden.weight.t())
        state_bias = to_accumulation_dtype(self.gru_hidden.bias)

        def step(input_sums: Tensor, state: State) -> State:
            previous_output = to_accumulation_dtype(state[0])
            state_sums = state_weight.matmul(previous_output) + state_bias
            return (_GRUStep.apply(input_sums, state_sums, previous_output),)

        return step


Cell = LSTM | GRU
CELLS: dict[str, type[LSTM] | type[GRU]] = {"lstm": LSTM, "gru": GRU}


def zero_state(cell: Cell, rows: int) -> State:
    """All-zero state of a cell."""
    return (cell.input_weight.new_zeros(rows, cell.hidden_size),) * cell.num_states


class CellStack:
    """The cells of a decoder's layers, one step at a time."""

    def __init__(self, cells: Sequence[Cell], dropout: float, noise: Noise | None) -> None:
        self.dropout = dropout
        self.noise = noise
        self.step_functions = [cell.step_function() for cell in cells]
        self.input_projections = [
            (LoopMatrix(cell.input_weight.t()), to_accumulation_dtype(cell.bias)) for cell in cells[1:]
        ]
        self.step_index = 0

    def step(self, sums: Tensor, layers: Sequence[State]) -> list[State]:
        """Next states of all layers, from the input preactivation of the lowest one."""
        states = [self.step_functions[0](sums, layers[0])]
        for layer, (input_weight, bias) in enumerate(self.input_projections, start=1):
            output_below = states[-1][0]
            inputs = apply_dropout(output_below, self.dropout, self.noise, f"decoder.{layer}.{self.step_index}")
            states.append(self.step_functions[layer](input_weight.matmul(inputs) + bias, layers[layer]))
        self.step_index += 1
        return states
