"""Memory networks are trained as published: plain gradient descent, a linear start, and the best of several starts.

All starts are trained side by side, as one model with several members; they read the same batches. Where training
stands is its weights and `Progress`, a few numbers, at the end of every pass: order, gaps and held-out questions are
functions of the seed, so a run that goes on from there computes the same bits.
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
from regard.config.training import MemoryTrainingConfig
from regard.data.babi import StoryQuestions, check_same_language
from regard.data.batching import epoch_order, epoch_rng
from regard.errors import CheckpointError, TrainingError
from regard.models.memory_network import MemoryNetwork
from regard.tasks.story_qa import StoryExamples, StoryVocabulary, encode_stories, evaluate_restarts, resolve_sizes
from regard.training.listeners import Listener, notify

HELD_OUT, GAPS = 2, 3  # purposes of chance; order has 0


@dataclass
class MemoryTrainingState:
    """Where training stands at the end of a pass: all that is saved beside the weights."""

    linear: int = 0  # passes without softmax that are done
    softmax: int = 0  # passes with softmax that are done
    switched: bool = False  # whether softmax has come
    best_loss: float = math.inf  # held-out loss of the best linear pass
    epochs_since_best: int = 0  # linear passes since then
    seconds: float = 0.0
    diverged: list[int] = field(default_factory=list)  # members whose numbers were once not finite

    @property
    def epoch(self) -> int:
        """Passes in all."""
        return self.linear + self.softmax


def published_defaults(config: MemoryTrainingConfig, num_tasks: int) -> MemoryTrainingConfig:
    """Return the config with the published numbers where it leaves the choice: for one task, or for several."""
    alone = num_tasks == 1
    epochs = config.epochs or (100 if alone else 60)
    return replace(
        config,
        epochs=epochs,
        lr_halving_epochs=config.lr_halving_epochs or max(1, epochs // 4),
        learning_rate=config.learning_rate or (0.005 if config.linear_start else 0.01),
        linear_start_epochs=config.linear_start_epochs or (20 if alone else 30),
    )


class MemoryNetworkTrainer:
    """Trains all members of a memory network, one pass over the questions at a time."""

    def __init__(self, model: MemoryNetwork, train: StoryExamples, config: MemoryTrainingConfig) -> None:
        self.model, self.train = model, train
        self.config = config = published_defaults(config, len(train.tasks))
        self.progress = MemoryTrainingState(switched=not config.linear_start)
        draw = epoch_rng(seed=config.seed, epoch=0, digest=train.digest, purpose=HELD_OUT)
        shuffled = draw.permutation(len(train))
        count = int(config.validation_share * len(train))
        self.held_out, self.learned = np.sort(shuffled[:count]), np.sort(shuffled[count:])

    @property
    def is_done(self) -> bool:
        """Whether all passes are made."""
        return self.progress.switched and self.remaining_epochs == 0

    @property
    def remaining_epochs(self) -> int:
        """How many passes are left; fewer, if the linear start ends before its time."""
        linear = 0 if self.progress.switched else self.config.linear_start_epochs - self.progress.linear
        return linear + max(0, self.config.epochs - self.progress.softmax)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return weights and progress, to be saved at the end of a pass."""
        return {name: part.detach().clone() for name, part in self.model.named_parameters()}, asdict(self.progress)

    def resume(self, weights: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        with torch.no_grad():
            for name, part in self.model.named_parameters():
                if name not in weights or weights[name].shape != part.shape:
                    found = list(weights[name].shape) if name in weights else "nothing"
                    raise CheckpointError(f"saved state: {name} should be {list(part.shape)} but is {found}")
                part.copy_(weights[name])
        self.progress = MemoryTrainingState(**progress)

    def rate(self) -> float:
        """The learning rate of the next pass: halved now and then, but not while the start is linear."""
        if not self.progress.switched:
            return self.config.learning_rate
        return self.config.learning_rate * 0.5 ** ((self.progress.softmax + 1) // self.config.lr_halving_epochs)

    def step(self) -> dict[str, Any]:
        """Make one pass over the questions; return what it came to."""
        began, progress, config = time.monotonic(), self.progress, self.config
        linear, rate = not progress.switched, self.rate()
        wrong, losses = self._pass(linear, rate)
        facts = {"linear": linear, "learning_rate": rate, "errors": (100 * wrong).tolist(), "losses": losses.tolist()}
        if linear:
            progress.linear += 1
            held_out = self.held_out if len(self.held_out) else self.learned
            loss = float(
                np.mean(evaluate_restarts(self.model, self.train, held_out, linear=True).loss[self.finite_restarts])
            )
            facts["held_out_loss"] = loss
            progress.epochs_since_best = 0 if loss < progress.best_loss else progress.epochs_since_best + 1
            progress.best_loss = min(loss, progress.best_loss)
            progress.switched = (
                progress.linear >= config.linear_start_epochs
                or progress.epochs_since_best >= config.linear_start_patience
            )
        else:
            progress.softmax += 1
        progress.seconds += time.monotonic() - began
        return {"epoch": progress.epoch, **facts}

    @property
    def finite_restarts(self) -> list[int]:
        """The members whose numbers are finite."""
        return [member for member in range(self.model.members) if member not in self.progress.diverged]

    def _pass(self, linear: bool, rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return each member's share of wrong answers and loss a question, while it learned."""
        train, config, epoch = self.train, self.config, self.progress.epoch
        arranged = self.learned[epoch_order(len(self.learned), seed=config.seed, epoch=epoch, digest=train.digest)]
        draw = epoch_rng(seed=config.seed, epoch=epoch, digest=train.digest, purpose=GAPS)
        ages = train.noisy_ages(config.random_noise, self.model.config.memory_size, draw)
        right, losses = np.zeros(self.model.members), np.zeros(self.model.members)
        for first in range(0, len(arranged), config.batch_size):
            numbers = arranged[first : first + config.batch_size]
            loss, hits = self.model.loss(train.batch(numbers, ages), train.answers[numbers], linear=linear)
            loss.sum().backward()
            sgd_step(self.model, rate, config.max_gradient_norm)
            right += hits.sum(1)
            losses += loss.detach().double().cpu().numpy()
        for member in np.flatnonzero(~np.isfinite(losses)).tolist():
            if member in self.finite_restarts:
                self.progress.diverged.append(member)
        if not self.finite_restarts:
            raise TrainingError(
                f"pass {epoch + 1}: no loss of the {self.model.members} starts is finite: lower the learning rate"
            )
        return 1 - right / len(arranged), losses / len(arranged)

    def best(self) -> tuple[int, NDArray[np.float64]]:
        """Return the member with the least training error, and the errors of all, in percent."""
        found = evaluate_restarts(self.model, self.train, self.learned)
        return min(self.finite_restarts, key=lambda member: (found.error[member], found.loss[member])), found.error


@torch.no_grad()
def sgd_step(model: MemoryNetwork, learning_rate: float, max_norm: float) -> None:
    """Move all weights down their gradients, each matrix of each member clipped by itself, and forget the gradients."""
    for name, part in model.named_parameters():
        if part.grad is None:
            continue
        axis = 0 if name == "turn" else 1  # which axis the members are on
        factors = clip_factors(part.grad.movedim(axis, 0), max_norm)
        if not bool(factors.all()):
            part.grad.nan_to_num_(0, 0, 0)  # such a member stays as it is, and the others go on
        part.addcmul_(part.grad, factors.view(-1, *[1] * (2 - axis)), value=-learning_rate)
        part.grad = None


def clip_factors(gradients: Tensor, most: float) -> Tensor:
    """Return what each matrix [M, rows, columns] is to be multiplied by so that its norm is at most `most`, [M].

    The norm is the largest singular value, as published; the length of all entries, never smaller, decides whether it
    needs to be known. A matrix that is not finite gets 0.

    >>> clip_factors(torch.tensor([[[3.0, 0.0], [0.0, 4.0]], [[1.0, 0.0], [0.0, 0.5]]]), 2.0).tolist()
    [0.5, 1.0]
    """
    lengths = torch.linalg.vector_norm(gradients, dim=(1, 2))
    factors = torch.isfinite(lengths).float()
    over = (lengths > most) & torch.isfinite(lengths)
    if most and bool(over.any()):
        large = gradients[over]
        tall = large if large.shape[1] >= large.shape[2] else large.mT
        norms = torch.linalg.eigvalsh(tall.mT @ tall)[:, -1].clamp_min(0).sqrt()
        factors[over] = most / norms.clamp_min(most)
    return factors


@dataclass(frozen=True)
class TrainedMemoryNetwork:
    """The best network, and how it was chosen."""

    model: MemoryNetwork
    vocabulary: StoryVocabulary
    member: int
    errors: list[float]  # of all starts on the training questions, in percent
    progress: MemoryTrainingState


def train_memory_networks(
    questions: StoryQuestions,
    config: MemoryNetworkConfig | None = None,
    training: MemoryTrainingConfig | None = None,
    *,
    listeners: Sequence[Listener] = (),
    saved: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
    save: Callable[[dict[str, Tensor], dict[str, Any]], None] | None = None,
) -> TrainedMemoryNetwork:
    """Train memory networks on the questions and return the best; `save` receives the state after every pass.

    >>> from regard.data.babi import StoryQuestion
    >>> told = StoryQuestions.of([StoryQuestion("one", ("Mary went home.",), "Where is Mary?", "home", (0,))] * 4)
    >>> quick = MemoryTrainingConfig(restarts=2, epochs=3, linear_start_epochs=1, validation_share=0)
    >>> train_memory_networks(told, MemoryNetworkConfig(embedding_size=5, hops=1), quick).model.members
    1
    """
    trainer, vocabulary = build_trainer(questions, config or MemoryNetworkConfig(), training or MemoryTrainingConfig())
    if saved is not None:
        trainer.resume(*saved)
    while not trainer.is_done:
        facts = trainer.step()
        notify(listeners, "epoch", **facts)
        if save is not None:
            save(*trainer.state())
    member, errors = trainer.best()
    return TrainedMemoryNetwork(trainer.model.restart(member), vocabulary, member, errors.tolist(), trainer.progress)


def build_trainer(
    questions: StoryQuestions, config: MemoryNetworkConfig, training: MemoryTrainingConfig
) -> tuple[MemoryNetworkTrainer, StoryVocabulary]:
    """Return what trains networks on the questions from their first weights on, and the words that they know."""
    check_same_language(questions)
    vocabulary = StoryVocabulary.of(questions)
    config = resolve_sizes(config, questions, vocabulary)
    model = MemoryNetwork(config, training.restarts)
    model.initialize(training.seed)
    return MemoryNetworkTrainer(model, encode_stories(questions, vocabulary, config), training), vocabulary
