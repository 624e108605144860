"""Training of memory networks as published: SGD, a linear start, and the best of several restarts.

All restarts are trained in parallel on the same batches, as one model with several members. A checkpoint, at the end of
every epoch, is the weights and a `MemoryTrainingState`. Order and random noise are functions of the seed, so a resumed
run computes the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.config.rnn_models import MemoryNetworkConfig
from regard.config.training import StoryTrainingConfig
from regard.data.babi import StoryQuestions, check_same_language, held_out_questions
from regard.data.batching import epoch_order, epoch_rng
from regard.errors import CheckpointError, TrainingError
from regard.models.memory_network import MemoryNetwork
from regard.tasks.story_memory import StoryExamples, encode_stories, evaluate_restarts, resolve_sizes
from regard.tasks.story_qa import StoryVocabulary
from regard.training.listeners import Listener, notify

NOISE_PURPOSE = 3  # of random numbers; others are in `RngPurpose`


@dataclass
class MemoryTrainingState:
    """Progress at the end of an epoch: what a checkpoint holds besides the weights."""

    linear_epochs: int = 0  # finished epochs without softmax
    softmax: int = 0  # finished epochs with softmax
    is_linear_start_over: bool = False  # whether the linear start is over
    best_loss: float = math.inf  # lowest held-out loss of the linear start
    epochs_since_best: int = 0  # of the linear start
    seconds: float = 0.0
    diverged: list[int] = field(default_factory=list)  # restarts whose loss was not finite at some time

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return self.linear_epochs + self.softmax


def published_defaults(config: StoryTrainingConfig, num_tasks: int) -> StoryTrainingConfig:
    """Fill in the hyperparameters of the paper, which differ between one task and several."""
    is_single_task = num_tasks == 1
    epochs = int(config.epochs) or (100 if is_single_task else 60)
    return replace(
        config,
        epochs=epochs,
        lr_halving_epochs=config.lr_halving_epochs or max(1, epochs // 4),
        learning_rate=config.learning_rate or (0.005 if config.linear_start else 0.01),
        linear_start_epochs=config.linear_start_epochs or (20 if is_single_task else 30),
    )


class MemoryNetworkTrainer:
    """Trains all restarts of a memory network, one epoch at a time.

    The questions held out, of `train`, decide when the linear start is over.
    """

    def __init__(
        self,
        model: MemoryNetwork,
        train: StoryExamples,
        config: StoryTrainingConfig,
        is_held_out: NDArray[np.bool_],  # [questions]
    ) -> None:
        self.model = model
        self.train = train
        self.config = published_defaults(config, len(train.tasks))
        self.progress = MemoryTrainingState(is_linear_start_over=not config.linear_start)
        self.train_indices = np.flatnonzero(~is_held_out)
        self.held_out_indices = np.flatnonzero(is_held_out)

    @property
    def is_done(self) -> bool:
        """Whether all epochs are finished."""
        return self.progress.is_linear_start_over and self.remaining_epochs == 0

    @property
    def remaining_epochs(self) -> int:
        """Number of epochs left, if the linear start lasts as long as it may."""
        linear_epochs = 0
        if not self.progress.is_linear_start_over:
            linear_epochs = self.config.linear_start_epochs - self.progress.linear_epochs
        return linear_epochs + max(0, int(self.config.epochs) - self.progress.softmax)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights and progress, for a checkpoint at the end of an epoch."""
        weights = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        return weights, asdict(self.progress)

    def resume(self, weights: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name not in weights or weights[name].shape != parameter.shape:
                    shape = list(weights[name].shape) if name in weights else "missing"
                    raise CheckpointError(f"saved state: {name} should be {list(parameter.shape)} but is {shape}")
                parameter.copy_(weights[name])
        self.progress = MemoryTrainingState(**progress)

    def learning_rate(self) -> float:
        """Learning rate of the next epoch: constant in the linear start, then halved at intervals."""
        if not self.progress.is_linear_start_over:
            return self.config.learning_rate
        return self.config.learning_rate * 0.5 ** ((self.progress.softmax + 1) // self.config.lr_halving_epochs)

    def train_epoch(self) -> dict[str, Any]:
        """Train for one epoch; return its number, errors (in percent) and losses by restart."""
        start = time.monotonic()
        progress = self.progress
        is_linear = not progress.is_linear_start_over
        rate = self.learning_rate()
        errors, losses = self._train_epoch(is_linear, rate)
        report = {
            "linear": is_linear,
            "learning_rate": rate,
            "errors": (100 * errors).tolist(),
            "losses": losses.tolist(),
        }
        if is_linear:
            progress.linear_epochs += 1
            report["held_out_loss"] = self._update_linear_start()
        else:
            progress.softmax += 1
        progress.seconds += time.monotonic() - start
        return {"epoch": progress.epoch, **report}

    def _update_linear_start(self) -> float:
        """Decide by the held-out loss, or the training loss without held-out data, whether the linear start is over."""
        progress = self.progress
        indices = self.held_out_indices if len(self.held_out_indices) else self.train_indices
        scores = evaluate_restarts(self.model, self.train, indices, linear=True)
        loss = float(np.mean(scores.loss[self.finite_restarts]))
        progress.epochs_since_best = 0 if loss < progress.best_loss else progress.epochs_since_best + 1
        progress.best_loss = min(loss, progress.best_loss)
        progress.is_linear_start_over = (
            progress.linear_epochs >= self.config.linear_start_epochs
            or progress.epochs_since_best >= self.config.linear_start_patience
        )
        return loss

    @property
    def finite_restarts(self) -> list[int]:
        """Indices of the restarts that have not diverged."""
        return [member for member in range(self.model.num_restarts) if member not in self.progress.diverged]

    def _train_epoch(self, is_linear: bool, rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Train for one epoch; return error rate and mean loss per restart, [members] each."""
        train = self.train
        config = self.config
        epoch = self.progress.epoch
        order = self.train_indices[
            epoch_order(len(self.train_indices), seed=config.seed, epoch=epoch, digest=train.digest)
        ]
        rng = epoch_rng(seed=config.seed, epoch=epoch, digest=train.digest, purpose=NOISE_PURPOSE)
        ages = train.noisy_ages(config.random_noise, self.model.config.memory_size, rng)
        num_correct = np.zeros(self.model.num_restarts)
        losses = np.zeros(self.model.num_restarts)
        for start in range(0, len(order), config.batch_size):
            indices = order[start : start + config.batch_size]
            loss, is_correct = self.model.loss(train.batch(indices, ages), train.answers[indices], linear=is_linear)
            loss.sum().backward()
            sgd_step(self.model, rate, config.matrix_gradient_norm)
            num_correct += is_correct.sum(1)
            losses += loss.detach().double().cpu().numpy()
        for member in np.flatnonzero(~np.isfinite(losses)).tolist():
            if member in self.finite_restarts:
                self.progress.diverged.append(member)
        if not self.finite_restarts:
            raise TrainingError(
                f"epoch {epoch + 1}: no loss of {self.model.num_restarts} restarts is finite: lower the learning rate"
            )
        return 1 - num_correct / len(order), losses / len(order)

    def best_restart(self) -> tuple[int, NDArray[np.float64]]:
        """Index of the restart with the lowest training error, and the errors of all, in percent."""
        scores = evaluate_restarts(self.model, self.train, self.train_indices)
        best = min(self.finite_restarts, key=lambda member: (scores.error[member], scores.loss[member]))
        return best, scores.error


@torch.no_grad()
def sgd_step(model: MemoryNetwork, learning_rate: float, max_norm: float) -> None:
    """Update all weights by SGD, with gradients clipped per matrix and restart, and reset the gradients."""
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        member_axis = 0 if name == "hop_projection" else 1
        factors = clip_factors(parameter.grad.movedim(member_axis, 0), max_norm)
        if not bool(factors.all()):
            parameter.grad.nan_to_num_(0, 0, 0)  # a diverged restart stays unchanged, the others continue
        parameter.addcmul_(parameter.grad, factors.view(-1, *[1] * (2 - member_axis)), value=-learning_rate)
        parameter.grad = None


def clip_factors(gradients: Tensor, max_norm: float) -> Tensor:  # [members, rows, columns] → [members]
    """Factor for each matrix that limits its norm to `max_norm`; 0 for a matrix that is not finite.

    The norm is the largest singular value, as published. The Frobenius norm, which is never smaller, decides whether
    it needs to be computed.

    >>> clip_factors(torch.tensor([[[3.0, 0.0], [0.0, 4.0]], [[1.0, 0.0], [0.0, 0.5]]]), 2.0).tolist()
    [0.5, 1.0]
    """
    frobenius_norms = torch.linalg.vector_norm(gradients, dim=(1, 2))
    is_finite = torch.isfinite(frobenius_norms)
    factors = is_finite.float()
    is_large = (frobenius_norms > max_norm) & is_finite
    if max_norm and bool(is_large.any()):
        large = gradients[is_large]
        tall = large if large.shape[1] >= large.shape[2] else large.mT
        spectral_norms = torch.linalg.eigvalsh(tall.mT @ tall)[:, -1].clamp_min(0).sqrt()
        factors[is_large] = max_norm / spectral_norms.clamp_min(max_norm)
    return factors


@dataclass(frozen=True)
class TrainedMemoryNetwork:
    """The best restart, with the errors of all."""

    model: MemoryNetwork
    vocabulary: StoryVocabulary
    member: int  # index of the best restart
    errors: list[float]  # of all restarts on the training questions, in percent
    progress: MemoryTrainingState


def train_memory_networks(
    questions: StoryQuestions,
    config: MemoryNetworkConfig | None = None,
    training: StoryTrainingConfig | None = None,
    *,
    listeners: Sequence[Listener] = (),
    saved: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
    save: Callable[[dict[str, Tensor], dict[str, Any]], None] | None = None,
) -> TrainedMemoryNetwork:
    """Train memory networks from several restarts and return the best; `save` receives the state after every epoch.

    >>> from regard.data.babi import StoryQuestion
    >>> question = StoryQuestion("one", ("Mary went home.",), "Where is Mary?", "home", (0,))
    >>> questions = StoryQuestions.from_questions([question] * 4)
    >>> training = StoryTrainingConfig(restarts=2, epochs=3, linear_start_epochs=1, validation_share=0)
    >>> train_memory_networks(questions, MemoryNetworkConfig(embedding_size=5, hops=1), training).model.num_restarts
    1
    """
    check_same_language(questions)
    trainer, vocabulary = build_trainer(questions, config or MemoryNetworkConfig(), training or StoryTrainingConfig())
    if saved is not None:
        weights, progress = saved
        trainer.resume(weights, progress)
    while not trainer.is_done:
        report = trainer.train_epoch()
        notify(listeners, "epoch", **report)
        if save is not None:
            save(*trainer.state())
    member, errors = trainer.best_restart()
    return TrainedMemoryNetwork(
        trainer.model.restart(member),
        vocabulary,
        member=member,
        errors=errors.tolist(),
        progress=trainer.progress,
    )


def build_trainer(
    questions: StoryQuestions, config: MemoryNetworkConfig, training: StoryTrainingConfig
) -> tuple[MemoryNetworkTrainer, StoryVocabulary]:
    """Build the vocabulary, the networks with their initial weights, and their trainer."""
    vocabulary = StoryVocabulary.from_questions(questions)
    config = resolve_sizes(config, questions, vocabulary)
    model = MemoryNetwork(config, training.restarts)
    model.initialize(training.seed)
    examples = encode_stories(questions, vocabulary, config)
    is_held_out = held_out_questions(questions, training.validation_share)
    return MemoryNetworkTrainer(model, examples, training, is_held_out), vocabulary
