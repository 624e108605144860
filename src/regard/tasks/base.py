"""What a task is to those who train: batches in an order of its own, and their loss."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.noise import Noise


class Batch(Protocol):
    """Examples that are computed together."""

    @property
    def count(self) -> int:
        """How many predictions the loss is over."""
        ...

    @property
    def shape(self) -> str:
        """Say how large the batch is, for people."""
        ...


class Task(Protocol):
    """The only one who knows what a batch means."""

    @property
    def counted(self) -> str:
        """What the predictions of a batch are, for people: tokens, texts."""
        ...

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths of the training examples, [examples, sides]."""
        ...

    def epoch(self, epoch: int, budget: int) -> list[NDArray[np.int64]]:
        """Return the example numbers of each batch of an epoch, in order; a pure function."""
        ...

    def batch(self, numbers: NDArray[np.int64], epoch: int) -> Any:
        """Return the training examples with these numbers, as this epoch sees them: a `Batch`."""
        ...

    def loss(self, model: Any, batch: Any, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums over a batch's predictions of what is minimised and of what is reported."""
        ...
