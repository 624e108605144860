"""Fine-tuning: an encoder learns to classify texts of mixed lengths.

The loop of transformers is given our batches, texts of like length together; its Trainer cuts batches of as many texts
itself: by chance, as it does unless it is told otherwise, or by length.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from regard.bench import cost, work
from regard.bench.measure import Task
from regard.bench.settings import TaughtSize
from regard.tasks.classification import EncodedTask
from regard.tasks.encoding import Encoded

LABELS = 2
BATCHES = 32  # of a pass over the texts


def facts(size: TaughtSize) -> dict[str, object]:
    """Return what contestants need to know."""
    return {"size": asdict(size)}


def tasks(size: TaughtSize) -> list[Task]:
    """Return what is measured: tokens of texts a second, padding not counted."""
    return [Task("fine_tuning", f"fine-tuning {size.name}", "tokens/s", tokens=1.0, work=cost.tuning(size))]


def task(size: TaughtSize) -> EncodedTask:
    """Return the texts, every second one of another label."""
    lengths = np.minimum(work.text_lengths(BATCHES * size.rows, seed=5), size.longest - 2)
    read = Encoded()
    for number, row in enumerate(work.drawn_rows(lengths, size.vocabulary, seed=5)):
        read.add([work.START, *row.tolist(), work.END], [0] * (len(row) + 2), number)
    return EncodedTask(read, np.arange(len(read)) % LABELS, seed=1, digest="ab")


def budget(size: TaughtSize) -> int:
    """Return the tokens of a batch: as many as so many texts have on average."""
    return int(task(size).lengths.mean() * size.rows)
