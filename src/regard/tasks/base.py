"""What a task is to those who train: batches in an order of its own, and their loss."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.dropout import Noise


class Batch(Protocol):
    """Examples that are computed together."""

    @property
    def num_predictions(self) -> int:
        """How many predictions the loss is over."""
        ...

    @property
    def shape(self) -> str:
        """Say how large the batch is, for people."""
        ...


class Objective(Protocol):
    """The only one who knows what a batch means."""

    @property
    def unit(self) -> str:
        """What the predictions of a batch are, for people: tokens, texts."""
        ...

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths of the training examples, [examples, sides]."""
        ...

    def epoch_batches(self, epoch: int, max_tokens: int) -> list[NDArray[np.int64]]:
        """Return the example numbers of each batch of an epoch, in order; a pure function."""
        ...

    def batch(self, indices: NDArray[np.int64], epoch: int) -> Any:
        """Return the training examples with these numbers, as this epoch sees them: a `Batch`."""
        ...

    def loss(self, model: Any, batch: Any, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums over a batch's predictions of what is minimised and of what is reported."""
        ...


class BatchedRows(Protocol):
    """Rows that can be dealt out to batches."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[rows, 1], in tokens."""
        ...

    def epoch(self, *, max_tokens: int, seed: int, epoch: int, digest: str) -> list[NDArray[np.int64]]:
        """Return the row numbers of each batch of an epoch, in order; a pure function."""
        ...


Batched = TypeVar("Batched", bound=BatchedRows)


class RowObjective(Generic[Batched]):
    """What tasks on rows share: which rows make a batch is a function of seed, epoch and data alone."""

    def __init__(self, train: Batched, *, seed: int, digest: str, weights: NDArray[np.float32] | None = None) -> None:
        self.train, self.seed, self.digest = train, seed, digest
        self.weights = None if weights is None else torch.from_numpy(weights)  # of labels, where not all are equal

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths of the training rows, in tokens."""
        return self.train.lengths

    def epoch_batches(self, epoch: int, max_tokens: int) -> list[NDArray[np.int64]]:
        """Return the row numbers of each batch of an epoch, in order."""
        return self.train.epoch(max_tokens=max_tokens, seed=self.seed, epoch=epoch, digest=self.digest)
