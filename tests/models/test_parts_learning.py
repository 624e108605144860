"""Every part of the block, in every family of Transformers, learns the copy task as well as it can."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from regard.models import build_model
from regard.models.base import initialize_weights
from tests.models.copy_task import VOCAB_SIZE, learn_to_copy
from tests.parts import PARTS, Part, build_config
from tests.scale import scaled


@dataclass(frozen=True)
class Lesson:
    """Length of the strings, and how long a family learns to copy them."""

    length: int
    updates: int
    learning_rate: float


LESSONS = {
    "transformer": Lesson(length=3, updates=200, learning_rate=5e-3),
    "bert": scaled(Lesson(3, 300, 5e-3), Lesson(2, 120, 5e-3)),
    "gpt": scaled(Lesson(3, 350, 3e-3), Lesson(3, 200, 5e-3)),
}
SETTINGS = {"transformer": {"stack.num_layers": 1}, "bert": {"head": "masked"}, "gpt": {}}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("family", LESSONS)
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_model_learns_to_copy_where_it_can(family: str, part: Part) -> None:
    settings = {**SETTINGS[family], **part.settings}
    config = build_config(family, settings, vocab_size=VOCAB_SIZE, hidden_size=24, feed_forward_size=32)
    model = build_model(config)
    initialize_weights(model, seed=1)
    lesson = LESSONS[family]
    probability = learn_to_copy(model, length=lesson.length, updates=lesson.updates, learning_rate=lesson.learning_rate)
    lowest, highest = part.copy[family]
    assert lowest < probability < highest
