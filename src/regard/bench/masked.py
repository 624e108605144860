"""Telling hidden words: an encoder learns from running text, rows filled to the end, a share of the tokens hidden.

The loop of transformers is given our batches with what is hidden; its Trainer hides tokens itself in the same rows.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from regard.bench import cost, work
from regard.bench.measure import Task
from regard.bench.settings import TaughtSize
from regard.config.data import MaskingConfig
from regard.tasks.language import Stream
from regard.tasks.masking import Layout, MaskedTask

RATE = 0.15  # of the tokens are told
BATCHES = 16  # of a round over the text


def facts(size: TaughtSize) -> dict[str, object]:
    """Return what contestants need to know."""
    return {"size": asdict(size)}


def tasks(size: TaughtSize) -> list[Task]:
    """Return what is measured: tokens a second through forwards, backwards and update."""
    return [Task("masked", f"masked {size.name}", "tokens/s", tokens=1.0, work=cost.masked(size, RATE))]


def task(size: TaughtSize) -> MaskedTask:
    """Return the text as rows with hidden tokens."""
    layout = Layout.of(work.encoder_tokenizer(size.vocabulary), MaskingConfig(rate=RATE))
    length = size.longest - layout.room
    (ids,) = work.drawn_rows([BATCHES * size.rows * length], size.vocabulary - 1, seed=3)
    return MaskedTask(Stream(ids.astype(np.int32), length, "ab"), layout, seed=1)


def budget(size: TaughtSize) -> int:
    """Return the tokens of a batch, without marks."""
    return size.rows * (size.longest - 2)
