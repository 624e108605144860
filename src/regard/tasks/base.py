"""The interface between training and tasks: objectives that arrange batches and compute their loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.dropout import Noise

if TYPE_CHECKING:
    from regard.tasks.encoder_states import CachedStates


class Batch(Protocol):
    """Examples that are computed together."""

    @property
    def num_predictions(self) -> int:
        """Number of predictions that the loss sums over."""
        ...

    @property
    def description(self) -> str:
        """Size of the batch, as text for logs and messages."""
        ...


class Objective(Protocol):
    """What is trained: the batches of an epoch and their loss. Only the objective knows what a batch contains."""

    @property
    def unit(self) -> str:
        """What a prediction is, for logs: tokens, texts, words."""
        ...

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths of the training examples, [examples, sides]."""
        ...

    def epoch_batches(self, epoch: int, max_tokens: int) -> list[NDArray[np.int64]]:
        """Example indices of each batch of an epoch, in order; a pure function."""
        ...

    def batch(self, indices: NDArray[np.int64], epoch: int) -> Any:
        """Build the `Batch` of training examples with these indices, in the form of this epoch."""
        ...

    def loss(self, model: Any, batch: Any, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Sums over the batch's predictions of the loss to minimise and of the loss to report."""
        ...


class WrappedObjective:
    """Base of objectives that add a term to the loss of another one, on its batches."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    @property
    def unit(self) -> str:
        """What a prediction is."""
        return self.objective.unit

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths of the training examples."""
        return self.objective.lengths

    def epoch_batches(self, epoch: int, max_tokens: int) -> list[NDArray[np.int64]]:
        """Example indices of each batch of an epoch, in order."""
        return self.objective.epoch_batches(epoch, max_tokens)

    def batch(self, indices: NDArray[np.int64], epoch: int) -> Any:
        """Training examples."""
        return self.objective.batch(indices, epoch)


class BatchedRows(Protocol):
    """Sequences that can be arranged in batches."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[rows, 1], in tokens."""
        ...

    def epoch(self, *, max_tokens: int, seed: int, epoch: int, digest: str) -> list[NDArray[np.int64]]:
        """Row indices of each batch of an epoch, in order; a pure function."""
        ...


Batched = TypeVar("Batched", bound=BatchedRows)
Targets = TypeVar("Targets")


class RowObjective(Generic[Batched, Targets]):
    """Base of objectives on sequences with targets: batches are a pure function of seed, epoch and data."""

    def __init__(
        self,
        train: Batched,
        targets: Targets,
        *,
        seed: int,
        digest: str,
        class_weights: NDArray[np.float32] | None = None,
        cached_states: CachedStates | None = None,
    ) -> None:
        self.train = train
        self.targets = self.targets_of_rows(targets)
        self.seed = seed
        self.digest = digest
        self.class_weights = (
            None if class_weights is None else torch.from_numpy(class_weights)
        )  # [labels], None: all equal
        self.cached_states = cached_states  # of the training rows, if an encoder is frozen

    def targets_of_rows(self, targets: Targets) -> Targets:
        """Targets of each training row, from those of each text; a row is a text unless a subclass says otherwise."""
        return targets

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths of the training sequences, in tokens."""
        return self.train.lengths

    def epoch_batches(self, epoch: int, max_tokens: int) -> list[NDArray[np.int64]]:
        """Row indices of each batch of an epoch, in order."""
        return self.train.epoch(max_tokens=max_tokens, seed=self.seed, epoch=epoch, digest=self.digest)
