"""The memory network that answers questions about stories, and how it is trained."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob

UNSEEN = ("refuse", "wrong")


@dataclass(frozen=True, kw_only=True)
class MemoryConfig(Config):
    """An end-to-end memory network (Sukhbaatar et al. 2015)."""

    family: str = knob("memory_network", "which model this is", choices=("memory_network",))
    vocabulary: int = knob(0, "words the model knows; 0: from the training stories", low=0)
    longest: int = knob(0, "words of the longest sentence or question it holds; 0: from the training stories", low=0)
    memory: int = knob(50, "sentences it remembers, the last ones before the question", low=1)
    width: int = knob(0, "width of the embeddings; 0: as published, 20 for one task, 50 for several", low=0)
    hops: int = knob(3, "how many times it looks at its memory before it answers", low=1, high=32)
    encoding: str = knob(
        "position", "a sentence is the sum of its words, plain or weighted by position", choices=("bag", "position")
    )
    tying: str = knob(
        "adjacent",
        "adjacent: each hop's values are the next one's keys; layerwise: all hops share one pair of embeddings",
        choices=("adjacent", "layerwise"),
    )
    temporal: bool = knob(True, "sentences carry how long ago they were told")
    empties: bool = knob(True, "empty memories take part in the softmax, so that a hop may look at nothing")

    def summary(self) -> str:
        """Say what it is in a few words."""
        return (
            f"memory network, {self.hops} hop{'s' if self.hops > 1 else ''} of width {self.width} over the last "
            f"{self.memory} sentences, {self.encoding} encoding, {self.tying} tying"
        )


@dataclass(frozen=True, kw_only=True)
class MemoryTrainingConfig(Config):
    """How memory networks are trained: plain gradient descent from several starts at once, the best one is kept."""

    seed: int = knob(1, "seed of order, noise and the first start's weights; the next start has the next seed", low=0)
    starts: int = knob(10, "networks trained side by side; the one with the least training error is kept", low=1)
    batch: int = knob(32, "questions of one batch; their losses are added up", low=1)
    epochs: int = knob(0, "passes over the questions; 0: as published, 100 for one task, 60 for several", low=0)
    halve_every: int = knob(0, "passes after which the learning rate is halved; 0: a quarter of all", low=0)
    learning_rate: float = knob(0.0, "first learning rate; 0: as published, 0.01, or 0.005 with a linear start", low=0)
    clip: float = knob(40.0, "largest norm of the gradient of each embedding; 0: no limit", low=0)
    linear_start: bool = knob(True, "first train without the softmax of the hops, then with it")
    linear_epochs: int = knob(
        0, "most passes of the linear start; 0: as published, 20 for one task, 30 for several", low=0
    )
    patience: int = knob(30, "the linear start ends after N passes without a lower held-out loss", low=1)
    noise: float = knob(0.1, "share of empty memories put between sentences while training", low=0, high=1)
    held_out: float = knob(0.1, "share of the questions that is not learned but ends the linear start", low=0, high=0.9)
    unseen: str = knob(
        "refuse", "validation questions whose answer is unseen in training: refuse, or count as wrong", choices=UNSEEN
    )
