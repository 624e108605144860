"""Gradient norms of one batch by layer, and by distance from the end of the text, logged at evaluations.

The batch is the first of the training data, without dropout. Nothing of the training is touched: gradients are computed
beside those of the updates, and there is no random state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.packed_batch import PackedBatch
from regard.formatting import round_digits
from regard.models.base import Model
from regard.models.layers.block import LayerContext, TransformerBlock
from regard.models.layers.recurrent import RecurrentEncoder
from regard.tasks.base import Objective

BINS = 12  # ranges of distances
EVENT = "gradients"  # of the log
INPUT = "input"  # hidden states before the first layer
Recorded = dict[str, tuple[Tensor, PackedBatch]]  # layer → its hidden states and their layout


@dataclass(frozen=True)
class GradientNorms:
    """Norms of the gradients of the loss, without label smoothing."""

    weights: dict[str, float]  # layer → norm over its weights, of the mean loss
    distances: list[int]  # first distance of each range
    hidden: dict[str, list[float | None]]  # layer → mean norm of a token's hidden state by distance, of its row's loss

    def to_dict(self) -> dict[str, Any]:
        """Fields of an event of the log."""
        return {"weights": self.weights, "distances": self.distances, "hidden": self.hidden}


def measure_gradients(model: Model, objective: Objective, indices: np.ndarray, epoch: int = 0) -> GradientNorms:
    """Gradient norms of the training examples with these indices.

    Distances are those of tokens from the end of their text, in tokens. Layers that do not compute all tokens of a text
    in its order have norms of weights alone.
    """
    batch = objective.batch(indices, epoch)
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with torch.enable_grad(), _record_hidden(model) as recorded:
        loss, _ = objective.loss(model, batch, 0.0, None)
        states = {name: state for name, state in recorded.items() if state[0].requires_grad}
        inputs = [*parameters.values(), *(hidden for hidden, _ in states.values())]
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    squares: dict[str, float] = {}
    for name, gradient in zip(parameters, gradients, strict=False):
        if gradient is not None:
            layer = layer_of_weight(name)
            squares[layer] = squares.get(layer, 0.0) + float(gradient.double().square().sum())
    scale = max(1, batch.num_predictions)
    weights = {layer: round_digits(square**0.5 / scale) for layer, square in squares.items()}
    norms: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # layer → distance and norm of each token
    for (name, (_, packed)), gradient in zip(states.items(), gradients[len(parameters) :], strict=True):
        if gradient is not None:
            norms[name] = _distances(packed), gradient[: packed.num_tokens].float().norm(dim=1).cpu().numpy()
    longest = max((int(distances.max()) for distances, _ in norms.values() if len(distances)), default=0)
    width = -(-(longest + 1) // BINS)
    num_bins = longest // width + 1
    hidden = {name: _bin_means(distances // width, values, num_bins) for name, (distances, values) in norms.items()}
    return GradientNorms(weights, [width * index for index in range(num_bins)], hidden=hidden)


def layer_of_weight(name: str) -> str:
    """Layer that a weight belongs to: its name up to the first number, or without its last part.

    >>> layer_of_weight("encoder.layers.3.attention.qkv.weight"), layer_of_weight("decoder.readout.bias")
    ('encoder.layers.3', 'decoder.readout')
    """
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: index + 1])
    return ".".join(parts[:-1]) or name


@contextmanager
def _record_hidden(model: nn.Module) -> Iterator[Recorded]:
    """Record the hidden states of all tokens before and after each layer, while the model computes."""
    recorded: Recorded = {}

    def record(name: str, hidden: Tensor, batch: PackedBatch) -> None:
        if len(hidden) == batch.num_tokens + batch.num_padding:
            recorded.setdefault(name, (hidden, batch))

    def record_block(block: nn.Module, arguments: Any, output: Tensor) -> None:
        hidden, context = arguments
        assert isinstance(block, TransformerBlock) and isinstance(context, LayerContext)
        stack, layer, _ = block.attention.site.split(".")
        if layer == "0":
            record(f"{stack}.{INPUT}", hidden, context.batch)
        record(f"{stack}.{layer}", output, context.batch)

    with ExitStack() as exits:
        for name, module in model.named_modules():
            if isinstance(module, TransformerBlock):
                exits.callback(module.register_forward_hook(record_block).remove)
            elif isinstance(module, RecurrentEncoder):
                exits.enter_context(_record_layers(name, module, record))
        yield recorded


@contextmanager
def _record_layers(name: str, encoder: RecurrentEncoder, record: Any) -> Iterator[None]:
    """Record the hidden states of a recurrent encoder, whose layers are not called as modules."""
    run_layers = encoder.run_layers

    def run_and_record(hidden: Tensor, batch: PackedBatch, noise: Any) -> Any:
        hidden_states, last_states = run_layers(hidden, batch, noise)
        record(f"{name}.{INPUT}", hidden, batch)
        for layer, state in enumerate(hidden_states):
            record(f"{name}.{layer}", state, batch)
        return hidden_states, last_states

    encoder.__dict__["run_layers"] = run_and_record
    try:
        yield
    finally:
        del encoder.__dict__["run_layers"]


def _distances(batch: PackedBatch) -> np.ndarray:
    """Distance of each token from the end of its text."""
    lengths = batch.row_lengths
    ends = np.cumsum(lengths)
    return np.asarray(np.repeat(ends, lengths) - 1 - np.arange(batch.num_tokens))


def _bin_means(bins: np.ndarray, values: np.ndarray, num_bins: int) -> list[float | None]:
    counts = np.bincount(bins, minlength=num_bins)
    sums = np.bincount(bins, weights=values, minlength=num_bins)
    return [round_digits(total / count) if count else None for total, count in zip(sums, counts, strict=True)]
