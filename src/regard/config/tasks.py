"""What a task means to settings: which verb uses its models, which settings it reads, and what it calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import ConfigError

USED_BY = {  # task → the verb for its models
    "translate": "regard translate",
    "stories": "regard answer",
    "language": "regard train classify --features",
    "classify": "regard classify",
}
OFFERED = {"translate": ("transformer", "rnn"), "language": ("elmo",), "classify": ("rnn",)}  # task → its architectures
USUAL: dict[str, dict[str, Any]] = {  # settings whose usual value differs from the translator's
    "language": {"arch": "elmo", "training.label_smoothing": 0.0},
    "classify": {"arch": "rnn", "training.label_smoothing": 0.0},
}

GROUPS = {  # groups of settings that one task alone reads
    "memory.": "stories",
    "stories.": "stories",
    "elmo.": "language",
    "language.": "language",
    "classifier.": "classify",
    "classify.": "classify",
}
READING = ("data.train", "data.valid", "data.read.encoding", "data.read.lenient", "data.read.max_reject")
COMPUTING = ("training.threads", "training.device", "training.keep", "training.tensorboard", "training.precision")
SIZES = ("elmo.width", "classifier.encoder.embedding", "classifier.encoder.width")  # what presets decide
TOKENIZING = ("tokenizer.kind", "tokenizer.size", "tokenizer.normalization", "tokenizer.lowercase")
BATCHWISE = ("task", "preset", "arch", *READING, *TOKENIZING, "training.")
READ = {  # all else that a task reads, by how the paths begin, where that is not every other setting
    "stories": ("task", *READING, *COMPUTING),
    "language": (*BATCHWISE, "start_from"),
    "classify": (*BATCHWISE, "data.read.", "data.max_length"),
}
SAME = {"stories": ("seed", "epochs", "learning_rate", "clip")}  # settings of training that a task has as its own
PASSES = "stories are learned in passes: set --epochs"
INSTEAD = {
    "training.minutes": PASSES,
    "training.steps": PASSES,
    "training.save_every": "every pass is saved",
    "training.workers": "all starts are trained side by side by one process: set --threads",
    "training.batch_tokens": "set --stories.batch, in questions",
    "preset": "set --memory.width and --hops",
    "arch": "there is one kind of model, a memory network",
}


def refuse(task: str, given: Mapping[str, Any]) -> None:
    """Raise for the first of these settings, by dotted path, that means nothing to a task.

    >>> refuse("stories", {"training.minutes": 5.0})
    Traceback (most recent call last):
    regard.errors.ConfigError: training.minutes (5.0) means nothing to the task stories: ... set --epochs
    """
    for path, value in given.items():
        if path in SIZES and given.get("preset") != "custom":
            raise ConfigError(f"{path} ({value}) is a size that the preset gives: add --preset custom")
        owner = next((owner for group, owner in GROUPS.items() if path.startswith(group)), "")
        if owner == task or (not owner and (task not in READ or path.startswith(READ[task]))):
            continue
        advice = f"it is for {owner}" if owner else INSTEAD.get(path, "leave it out")
        raise ConfigError(f"{path} ({value}) means nothing to the task {task}: {advice}")


def in_own_names(task: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted path with those of training under the task's own names, where it has such.

    >>> in_own_names("stories", {"training.epochs": 60, "memory.hops": 2})
    {'stories.epochs': 60, 'memory.hops': 2}
    """
    names = {f"training.{name}": f"{task}.{name}" for name in SAME.get(task, ())}
    made: dict[str, Any] = {}
    for path, value in given.items():
        own = names.get(path, path)
        if made.setdefault(own, value) != value:
            shared = f"training.{own.rpartition('.')[2]} and {own}"
            raise ConfigError(f"{shared} are one setting to {task}, but two values are given: keep one of them")
    return made


def usual(task: str) -> dict[str, Any]:
    """Return the settings, by dotted path, that a task has where nobody says otherwise.

    >>> usual("language")["arch"]
    'elmo'
    """
    return {"task": task, **USUAL.get(task, {})}
