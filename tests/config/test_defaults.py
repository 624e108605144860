"""Settings of a task: it reads its own, rejects others by name, and has one value for those declared twice."""

from __future__ import annotations

import pytest

from regard.config.defaults import move_shared_settings
from regard.config.runs import RunConfig
from regard.errors import ConfigError


@pytest.mark.parametrize(
    ("task", "path", "value", "message"),
    [
        (
            "story-qa",
            "training.minutes",
            5,
            r"training.minutes \(5.0\) means nothing to the task story-qa: .* --epochs",
        ),
        ("story-qa", "training.steps", 5, "stories are trained in epochs"),
        ("story-qa", "training.workers", 2, "in parallel by one process"),
        ("story-qa", "training.save_every", 5, "a checkpoint is saved every epoch"),
        ("story-qa", "training.precision", "bf16", "trained in float32"),
        ("story-qa", "training.epochs", 5, r"training.epochs \(5.0\) means nothing"),
        ("story-qa", "preset", "tiny", "set --memory_network.embedding_size and --hops"),
        ("story-qa", "pretrained", "runs/x", "pretrained"),
        ("story-qa", "tokenizer.kind", "words", "tokenizer.kind"),
        ("story-qa", "decoding.beam", 3, "decoding.beam"),
        ("story-qa", "data.read.format", "tsv", "data.read.format"),
        ("story-qa", "data.max_length", 5, "data.max_length"),
        (
            "translate",
            "memory_network.hops",
            2,
            r"memory_network.hops \(2\) means nothing to the task translate: it is for story-qa",
        ),
        ("translate", "stories.random_noise", 0.5, "it is for story-qa"),
        ("story-qa", "memory_network.hops", 0, r"hops \(0\) must be at least 1"),
    ],
)
def test_a_setting_that_means_nothing_to_the_task_is_rejected_by_name(
    task: str, path: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig().override({"task": task, path: value})


def test_settings_that_a_task_reads_are_accepted() -> None:
    overrides = {
        "memory_network.hops": 1,
        "stories.random_noise": 0.5,
        "data.train": ("a", "b", "c"),
        "data.valid": ("d",),
        "data.read.encoding": "latin-1",
        "data.read.lenient": True,
        "training.threads": 1,
        "training.max_checkpoints": 5,
        "training.precision": "float32",
    }
    assert RunConfig().override({"task": "story-qa", **overrides}).memory_network.hops == 1


def test_settings_declared_twice_have_one_name_and_one_value() -> None:
    overrides = {"training.seed": 3, "training.epochs": 7.0, "training.learning_rate": 0.02, "training.minutes": 2.0}
    assert move_shared_settings("story-qa", overrides) == {
        "stories.seed": 3,
        "stories.epochs": 7.0,
        "stories.learning_rate": 0.02,
        "training.minutes": 2.0,
    }
    assert move_shared_settings("translate", overrides) == overrides
    assert move_shared_settings("story-qa", {"training.seed": 3, "stories.seed": 3}) == {"stories.seed": 3}
    with pytest.raises(ConfigError, match="training.seed and stories.seed are one setting to story-qa"):
        move_shared_settings("story-qa", {"stories.seed": 4, "training.seed": 3})
    with pytest.raises(ConfigError, match="epochs must be a whole number, not 2.5"):
        RunConfig().override({"task": "story-qa", "stories.epochs": 2.5})
