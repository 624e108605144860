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

from regard.config.model import MemoryConfig, MemoryTrainingConfig
from regard.data.order import chance, order
from regard.data.stories import Stories, check_mix
from regard.errors import CheckpointError, TrainingError
from regard.models.memory_network import MemoryNetwork
from regard.tasks.stories import Examples, Vocabulary, completed, examples, score
from regard.training.watch import Watcher, tell

HELD_OUT, GAPS = 2, 3  # purposes of chance; order has 0


@dataclass
class Progress:
    """Where training stands at the end of a pass: all that is saved beside the weights."""

    linear: int = 0  # passes without softmax that are done
    softmax: int = 0  # passes with softmax that are done
    switched: bool = False  # whether softmax has come
    least: float = math.inf  # held-out loss of the best linear pass
    since: int = 0  # linear passes since then
    seconds: float = 0.0
    lost: list[int] = field(default_factory=list)  # members whose numbers were once not finite

    @property
    def epoch(self) -> int:
        """Passes in all."""
        return self.linear + self.softmax


def decided(config: MemoryTrainingConfig, tasks: int) -> MemoryTrainingConfig:
    """Return the config with the published numbers where it leaves the choice: for one task, or for several."""
    alone = tasks == 1
    epochs = config.epochs or (100 if alone else 60)
    return replace(
        config,
        epochs=epochs,
        halve_every=config.halve_every or max(1, epochs // 4),
        learning_rate=config.learning_rate or (0.005 if config.linear_start else 0.01),
        linear_epochs=config.linear_epochs or (20 if alone else 30),
    )


class StoryTrainer:
    """Trains all members of a memory network, one pass over the questions at a time."""

    def __init__(self, model: MemoryNetwork, train: Examples, config: MemoryTrainingConfig) -> None:
        self.model, self.train = model, train
        self.config = config = decided(config, len(train.tasks))
        self.progress = Progress(switched=not config.linear_start)
        draw = chance(seed=config.seed, epoch=0, digest=train.digest, purpose=HELD_OUT)
        shuffled = draw.permutation(len(train))
        count = int(config.held_out * len(train))
        self.held_out, self.learned = np.sort(shuffled[:count]), np.sort(shuffled[count:])

    @property
    def done(self) -> bool:
        """Whether all passes are made."""
        return self.progress.switched and self.left == 0

    @property
    def left(self) -> int:
        """How many passes are left; fewer, if the linear start ends before its time."""
        linear = 0 if self.progress.switched else self.config.linear_epochs - self.progress.linear
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
        self.progress = Progress(**progress)

    def rate(self) -> float:
        """The learning rate of the next pass: halved now and then, but not while the start is linear."""
        if not self.progress.switched:
            return self.config.learning_rate
        return self.config.learning_rate * 0.5 ** ((self.progress.softmax + 1) // self.config.halve_every)

    def step(self) -> dict[str, Any]:
        """Make one pass over the questions; return what it came to."""
        began, progress, config = time.monotonic(), self.progress, self.config
        linear, rate = not progress.switched, self.rate()
        wrong, losses = self._pass(linear, rate)
        facts = {"linear": linear, "learning_rate": rate, "errors": (100 * wrong).tolist(), "losses": losses.tolist()}
        if linear:
            progress.linear += 1
            held_out = self.held_out if len(self.held_out) else self.learned
            loss = float(np.mean(score(self.model, self.train, held_out, linear=True).loss[self.sound]))
            facts["held_out_loss"] = loss
            progress.since = 0 if loss < progress.least else progress.since + 1
            progress.least = min(loss, progress.least)
            progress.switched = progress.linear >= config.linear_epochs or progress.since >= config.patience
        else:
            progress.softmax += 1
        progress.seconds += time.monotonic() - began
        return {"epoch": progress.epoch, **facts}

    @property
    def sound(self) -> list[int]:
        """The members whose numbers are finite."""
        return [member for member in range(self.model.members) if member not in self.progress.lost]

    def _pass(self, linear: bool, rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return each member's share of wrong answers and loss a question, while it learned."""
        train, config, epoch = self.train, self.config, self.progress.epoch
        arranged = self.learned[order(len(self.learned), seed=config.seed, epoch=epoch, digest=train.digest)]
        draw = chance(seed=config.seed, epoch=epoch, digest=train.digest, purpose=GAPS)
        ages = train.gapped(config.noise, self.model.config.memory, draw)
        right, losses = np.zeros(self.model.members), np.zeros(self.model.members)
        for first in range(0, len(arranged), config.batch):
            numbers = arranged[first : first + config.batch]
            loss, hits = self.model.loss(train.batch(numbers, ages), train.answers[numbers], linear=linear)
            loss.sum().backward()
            descend(self.model, rate, config.clip)
            right += hits.sum(1)
            losses += loss.detach().double().cpu().numpy()
        for member in np.flatnonzero(~np.isfinite(losses)).tolist():
            if member in self.sound:
                self.progress.lost.append(member)
        if not self.sound:
            raise TrainingError(
                f"pass {epoch + 1}: no loss of the {self.model.members} starts is finite: lower the learning rate"
            )
        return 1 - right / len(arranged), losses / len(arranged)

    def best(self) -> tuple[int, NDArray[np.float64]]:
        """Return the member with the least training error, and the errors of all, in percent."""
        found = score(self.model, self.train, self.learned)
        return min(self.sound, key=lambda member: (found.error[member], found.loss[member])), found.error


@torch.no_grad()
def descend(model: MemoryNetwork, rate: float, clip: float) -> None:
    """Move all weights down their gradients, each matrix of each member clipped by itself, and forget the gradients."""
    for name, part in model.named_parameters():
        if part.grad is None:
            continue
        axis = 0 if name == "turn" else 1  # which axis the members are on
        factors = clip_factors(part.grad.movedim(axis, 0), clip)
        if not bool(factors.all()):
            part.grad.nan_to_num_(0, 0, 0)  # such a member stays as it is, and the others go on
        part.addcmul_(part.grad, factors.view(-1, *[1] * (2 - axis)), value=-rate)
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
class Trained:
    """The best network, and how it was chosen."""

    model: MemoryNetwork
    vocabulary: Vocabulary
    member: int
    errors: list[float]  # of all starts on the training questions, in percent
    progress: Progress


def train_stories(
    stories: Stories,
    config: MemoryConfig | None = None,
    training: MemoryTrainingConfig | None = None,
    *,
    watchers: Sequence[Watcher] = (),
    saved: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
    save: Callable[[dict[str, Tensor], dict[str, Any]], None] | None = None,
) -> Trained:
    """Train memory networks on the questions and return the best; `save` receives the state after every pass.

    >>> from regard.data.stories import Question
    >>> told = Stories.of([Question("one", ("Mary went home.",), "Where is Mary?", "home", (0,))] * 4)
    >>> quick = MemoryTrainingConfig(starts=2, epochs=3, linear_epochs=1, held_out=0)
    >>> train_stories(told, MemoryConfig(width=5, hops=1), quick).model.members
    1
    """
    trainer, vocabulary = prepared(stories, config or MemoryConfig(), training or MemoryTrainingConfig())
    if saved is not None:
        trainer.resume(*saved)
    while not trainer.done:
        facts = trainer.step()
        tell(watchers, "epoch", **facts)
        if save is not None:
            save(*trainer.state())
    member, errors = trainer.best()
    return Trained(trainer.model.member(member), vocabulary, member, errors.tolist(), trainer.progress)


def prepared(stories: Stories, config: MemoryConfig, training: MemoryTrainingConfig) -> tuple[StoryTrainer, Vocabulary]:
    """Return what trains networks on the questions from their first weights on, and the words that they know."""
    check_mix(stories)
    vocabulary = Vocabulary.of(stories)
    config = completed(config, stories, vocabulary)
    model = MemoryNetwork(config, training.starts)
    model.start(training.seed)
    return StoryTrainer(model, examples(stories, vocabulary, config), training), vocabulary
