"""What a task means to settings: which verb uses its models, which settings it reads, and what it calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import ConfigError

USED_BY = {  # task → the verb for its models
    "translate": "regard translate",
    "stories": "regard answer",
    "language": "regard train classify --features",
    "generate": "regard generate",
    "fill": "regard fill",
    "classify": "regard classify",
    "tag": "regard tag",
    "answer": "regard answer",
    "embed": "regard embed",
}
OFFERED = {  # task → its architectures
    "translate": ("transformer", "rnn"),
    "language": ("elmo", "bert", "gpt"),
    "classify": ("rnn", "bert"),
    "tag": ("rnn", "bert"),
    "answer": ("bert",),
}
TUNED = ("classify", "tag", "answer")  # tasks that an encoder is fine-tuned for
TUNING: dict[str, Any] = {  # usual settings of a model that starts from one that can read
    "arch": "bert",
    "data.max_length": 512,
    "training.optimizer": "adamw",
    "training.weight_decay": 0.01,
    "training.beta2": 0.999,
    "training.label_smoothing": 0.0,
    "training.ema": 0.0,
}
USUAL: dict[str, dict[str, Any]] = {  # settings whose usual value differs from the translator's
    "language": {"arch": "elmo", "training.label_smoothing": 0.0},
    "classify": {"arch": "rnn", "training.label_smoothing": 0.0},
    "tag": {"arch": "rnn", "training.label_smoothing": 0.0},
    "answer": {**TUNING, "data.max_length": 384},
}
USUAL_FOR: dict[tuple[str, str], dict[str, Any]] = {  # of those, what one architecture has otherwise
    ("classify", "bert"): TUNING,
    ("tag", "bert"): TUNING,
    ("language", "bert"): {"tokenizer.kind": "wordpiece", "tokenizer.lowercase": True},
}

GROUPS = {  # groups of settings that one task alone reads
    "memory.": "stories",
    "stories.": "stories",
    "elmo.": "language",
    "gpt.": "language",
    "bert.": "language",
    "masking.": "language",
    "language.": "language",
    "classifier.": "classify",
    "tagger.": "tag",
    "classify.features_memory": "classify, tag, answer",
    "classify.features": "classify, tag",
    "classify.": "classify, tag, answer",
    "answer.": "answer",
    "distil.": "classify, tag, answer",
}
MODELS = {  # groups, and single settings, that one architecture reads
    "elmo.": "elmo",
    "gpt.": "gpt",
    "bert.": "bert",
    "masking.": "bert",
    "classifier.": "rnn",
    "tagger.": "rnn",
    "classify.frozen": "bert",
    "classify.layer_decay": "bert",
    "classify.fresh": "bert",
}
READING = ("data.train", "data.valid", "data.read.encoding", "data.read.lenient", "data.read.max_reject")
COMPUTING = ("training.threads", "training.device", "training.keep", "training.tensorboard", "training.precision")
SIZES = (  # what presets decide
    "elmo.width",
    "classifier.encoder.embedding",
    "classifier.encoder.width",
    "tagger.encoder.embedding",
    "tagger.encoder.width",
    "gpt.width",
    "gpt.stack.layers",
    "gpt.stack.heads",
    "gpt.stack.feedforward",
    "bert.width",
    "bert.stack.layers",
    "bert.stack.heads",
    "bert.stack.feedforward",
)
TOKENIZING = ("tokenizer.kind", "tokenizer.size", "tokenizer.normalization", "tokenizer.lowercase")
BATCHWISE = ("task", "preset", "arch", *READING, *TOKENIZING, "training.")
READ = {  # all else that a task reads, by how the paths begin, where that is not every other setting
    "stories": ("task", *READING, *COMPUTING),
    "language": (*BATCHWISE, "start_from"),
    "classify": (*BATCHWISE, "data.read.", "data.max_length", "start_from"),
    "tag": (*BATCHWISE, "data.read.", "data.max_length", "start_from"),
    "answer": (*BATCHWISE, "data.max_length", "start_from"),
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


def used_by(task: str) -> str:
    """Return which verb uses a task's models, in brackets for the end of a message; nothing for an unknown task.

    >>> used_by("tag"), used_by("?")
    (' (`regard tag` uses this one)', '')
    """
    return f" (`{USED_BY[task]}` uses this one)" if task in USED_BY else ""


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
        model = next((model for group, model in MODELS.items() if path.startswith(group)), "")
        owned = task in owner.split(", ")
        if owned and path == "classify.features" and given.get("arch") == "bert":
            raise ConfigError("frozen features (--features) stand beside words of a reader's own: leave out --from")
        if owned and model and given.get("arch", model) != model:
            raise ConfigError(f"{path} ({value}) means nothing to --arch {given['arch']}: it is for --arch {model}")
        if owned or (not owner and (task not in READ or path.startswith(READ[task]))):
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


def usual(task: str, arch: str = "", *, start_from: str = "") -> dict[str, Any]:
    """Return the settings, by dotted path, that a task, or an architecture for it, has where nobody says otherwise.

    >>> usual("language")["arch"], usual("classify", start_from="a/model")["arch"]
    ('elmo', 'bert')
    """
    arch = arch or ("bert" if start_from and task in TUNED else "")
    return {"task": task, **USUAL.get(task, {}), **USUAL_FOR.get((task, arch), {})}
