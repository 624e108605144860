"""Training recurrent models: Bahdanau's recurrence for everybody, and beside it the one whose attention comes after.

Where what is seen goes into the cell, a step needs the one before, and ours is the peers' model. Where attention
follows the recurrence all steps are computed together: that is another model, and named so.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.bench import work
from regard.bench.measure import Task
from regard.bench.settings import BenchConfig
from regard.config.model import RecurrentConfig

FEEDING = {"fed": "context", "following": "none"}  # task → what goes into the cell beside a token
CLIP = 1.0


@dataclass(frozen=True)
class Shape:
    """A recurrent translator and its batches."""

    name: str
    width: int
    vocabulary: int
    batch_tokens: int
    steps: int

    def config(self, feeding: str) -> RecurrentConfig:
        """Return the model as peers write it: separate embeddings, an output of its own, no dropout."""
        return RecurrentConfig(
            source_vocabulary=self.vocabulary,
            target_vocabulary=self.vocabulary,
            shared=False,
            tied=False,
            output_bias=True,
            scale_embedding=False,
            embedding=self.width,
            width=self.width,
            input_feeding=feeding,
            dropout=0.0,
        )


SHAPES = {
    "small": Shape("small", 256, 10_000, 2048, 4),
    "tiny": Shape("tiny", 16, 200, 128, 1),
}


def shape(config: BenchConfig) -> Shape:
    """Return the recurrent model to measure."""
    return SHAPES["tiny" if config.size == "tiny" else "small"]


def facts(shape: Shape) -> dict[str, object]:
    """Return what contestants need to know."""
    return {"shape": vars(shape), "lengths": work.training_lengths(shape.batch_tokens, shape.steps)}


def tasks(shape: Shape) -> list[Task]:
    """Return what is measured: target tokens a second through forwards, backwards and update."""
    return [Task(name, f"recurrent {shape.name} {name}", "target tokens/s", tokens=1.0) for name in FEEDING]
