"""What all models share: their door between NumPy and tensors, and their first weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.positions import Learned
from regard.attention.rows import Rows
from regard.blocks.heads import best_tokens
from regard.errors import UsageError
from regard.tokens import Candidates, Tokens

LSTM = dict.fromkeys(("lstm_input", "lstm_state", "lstm_feed"), 4)
GRU = dict.fromkeys(("gru_input", "gru_state", "gru_feed"), 3)
FUSED = {"qkv": 3, "key_value": 2, **LSTM, **GRU}  # names of linear layers that are several in one, and how many


class Model(nn.Module):
    """A config and a composition of blocks; NumPy becomes tensors here and nowhere else."""

    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def door(self, tokens: Tokens, block: int = 1) -> tuple[Tensor, Rows]:
        """Return token numbers [N] and their layout as tensors; N is rounded up to a multiple of `block`."""
        rows = Rows.of(tokens, self.device(), block)
        ids = np.append(tokens.ids.astype(np.int64), np.zeros(rows.spare, dtype=np.int64))
        return torch.from_numpy(ids).to(self.device()), rows

    def sites(self) -> dict[str, int]:
        """Return every place where this model looks, first layer first, each with the number of its heads."""
        looking = (one for one in self.modules() if isinstance(one, SelfAttention | CrossAttention))
        return {one.site: one.heads for one in looking}

    def parameter_count(self) -> int:
        """How many numbers are learned."""
        return sum(parameter.numel() for parameter in self.parameters())

    def state_matrices(self) -> dict[str, tuple[int, int]]:
        """Return the weights that map states to states, by name, with the shape of one of their parts.

        Tables of words and the output are not among them: their rows stand for words, not for directions of a space.
        """
        return {
            f"{name}.weight": (module.out_features // _parts(name), module.in_features)
            for name, module in self.named_modules()
            if isinstance(module, nn.Linear) and name != "output"
        }


class _Unfilled(TorchFunctionMode):
    """Leaves tensors as they are where a layer would fill them with its first numbers."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_", "zeros_", "ones_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def unfilled() -> Iterator[None]:
    """Make models that have shapes only: at once, without memory.

    >>> with unfilled():
    ...     layer = nn.Linear(100_000, 100_000)
    >>> layer.weight.shape, layer.weight.device.type
    (torch.Size([100000, 100000]), 'meta')
    """
    with torch.device("meta"), _Unfilled():
        yield


Placed = TypeVar("Placed", bound=Model)


def placed(model: Placed, device: str, precision: torch.dtype = torch.float32) -> Placed:
    """Return the model where it is to compute, in a number format; a device that is not there is refused."""
    try:
        return model.to(device=device, dtype=precision)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(f"the model cannot be put on the device {device!r}: {reason}") from None


def _parts(name: str) -> int:
    return FUSED.get(name.rpartition(".")[2], 1)


def start_weights(model: nn.Module, seed: int) -> None:
    """Fill all matrices of linear layers by Glorot's rule, biases with zero, embeddings by width; a function of seed.

    Fused projections (query, key and value in one matrix) start as the separate ones would.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, module in sorted(model.named_modules()):
        if isinstance(module, nn.Linear):
            bound = (6 / (module.in_features + module.out_features / _parts(name))) ** 0.5
            with torch.no_grad():
                module.weight.uniform_(-bound, bound, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
        elif isinstance(module, nn.Embedding | Learned):
            with torch.no_grad():
                module.weight.normal_(0, module.weight.shape[1] ** -0.5, generator=generator)


def candidates(logits: Tensor, k: int, vocabulary: int, end: int) -> Candidates:
    """Return the k likeliest tokens of each row, likeliest first; for k = 0 all of them in their own order.

    Columns from `vocabulary` on stand for nothing.

    >>> candidates(torch.tensor([[-3.0, -1.0, -2.0]]), 2, 3, end=0).ids.tolist()
    [[1, 2]]
    """
    logits = logits.float()
    if k == 0:
        ids = np.broadcast_to(np.arange(vocabulary, dtype=np.int32), (len(logits), vocabulary))
        return Candidates(ids, torch.log_softmax(logits[:, :vocabulary], dim=-1).cpu().numpy())
    found, logp = best_tokens(logits, min(k, vocabulary))
    ending = logits[:, end] - logits.gather(1, found[:, :1])[:, 0] + logp[:, 0]
    return Candidates(found.cpu().numpy().astype(np.int32), logp.cpu().numpy(), ending.cpu().numpy())
