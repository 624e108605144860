"""What settings mean to a task: its own are read, foreign ones are refused by name, shared ones have one value."""

from __future__ import annotations

import pytest

from regard.config.defaults import USED_BY, in_own_names
from regard.config.runs import TASKS, RunConfig
from regard.errors import ConfigError


@pytest.mark.parametrize(
    ("task", "path", "value", "message"),
    [
        ("stories", "training.minutes", 5, r"training.minutes \(5.0\) means nothing to the task stories: .* --epochs"),
        ("stories", "training.steps", 5, "stories are learned in passes"),
        ("stories", "training.workers", 2, "side by side by one process"),
        ("stories", "training.save_every", 5, "every pass is saved"),
        ("stories", "training.precision", "bf16", "trained in float32"),
        ("stories", "training.epochs", 5, r"training.epochs \(5.0\) means nothing"),
        ("stories", "preset", "tiny", "set --memory_network.embedding_size and --hops"),
        ("stories", "pretrained", "runs/x", "pretrained"),
        ("stories", "tokenizer.kind", "words", "tokenizer.kind"),
        ("stories", "decoding.beam", 3, "decoding.beam"),
        ("stories", "data.read.format", "tsv", "data.read.format"),
        ("stories", "data.max_length", 5, "data.max_length"),
        (
            "translate",
            "memory_network.hops",
            2,
            r"memory_network.hops \(2\) means nothing to the task translate: it is for stories",
        ),
        ("translate", "stories.random_noise", 0.5, "it is for stories"),
        ("stories", "memory_network.hops", 0, r"hops \(0\) must be at least 1"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_by_name(task: str, path: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig().override({"task": task, path: value})


def test_what_a_task_reads_is_taken() -> None:
    given = {
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
    assert RunConfig().override({"task": "stories", **given}).memory_network.hops == 1


def test_shared_settings_have_one_name_and_one_value() -> None:
    given = {"training.seed": 3, "training.epochs": 7.0, "training.learning_rate": 0.02, "training.minutes": 2.0}
    named = in_own_names("stories", given)
    assert named == {
        "stories.seed": 3,
        "stories.epochs": 7.0,
        "stories.learning_rate": 0.02,
        "training.minutes": 2.0,
    }
    assert in_own_names("translate", given) == given
    assert in_own_names("stories", {"training.seed": 3, "stories.seed": 3}) == {"stories.seed": 3}
    with pytest.raises(ConfigError, match="training.seed and stories.seed are one setting to stories"):
        in_own_names("stories", {"stories.seed": 4, "training.seed": 3})
    with pytest.raises(ConfigError, match="epochs must be a whole number, not 2.5"):
        RunConfig().override({"task": "stories", "stories.epochs": 2.5})


def test_every_task_has_a_verb() -> None:
    assert set(TASKS) <= set(USED_BY)  # what language models are used for has names of its own
