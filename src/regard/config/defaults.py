"""What a task means to settings: which verb uses its models, which settings it reads, and what it calls them.

Architectures by name: what `transformer` and `gru:additive` mean as settings of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.config.rnn_models import CELLS, HARD, SCORES
from regard.errors import ConfigError, UsageError, nearest

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
FINE_TUNED_TASKS = ("classify", "tag", "answer")  # tasks that an encoder is fine-tuned for
FINE_TUNING_DEFAULTS: dict[str, Any] = {  # usual settings of a model that starts from one that can read
    "architecture": "bert",
    "data.max_length": 512,
    "training.optimizer": "adamw",
    "training.weight_decay": 0.01,
    "training.adam_beta2": 0.999,
    "training.label_smoothing": 0.0,
    "training.ema_decay": 0.0,
}
TASK_DEFAULTS: dict[str, dict[str, Any]] = {  # settings whose usual value differs from the translator's
    "language": {"architecture": "elmo", "training.label_smoothing": 0.0},
    "classify": {"architecture": "rnn", "training.label_smoothing": 0.0},
    "tag": {"architecture": "rnn", "training.label_smoothing": 0.0},
    "answer": {**FINE_TUNING_DEFAULTS, "data.max_length": 384},
}
ARCHITECTURE_DEFAULTS: dict[tuple[str, str], dict[str, Any]] = {  # of those, what one architecture has otherwise
    ("classify", "bert"): FINE_TUNING_DEFAULTS,
    ("tag", "bert"): FINE_TUNING_DEFAULTS,
    ("language", "bert"): {"tokenizer.kind": "wordpiece", "tokenizer.lowercase": True},
}
GROUPS = {  # groups of settings that one task alone reads
    "memory_network.": "stories",
    "stories.": "stories",
    "elmo.": "language",
    "gpt.": "language",
    "bert.": "language",
    "masking.": "language",
    "documents.": "language",
    "rnn_classifier.": "classify",
    "rnn_tagger.": "tag",
    "fine_tuning.feature_cache_mb": "classify, tag, answer",
    "fine_tuning.features": "classify, tag",
    "fine_tuning.": "classify, tag, answer",
    "passages.": "answer",
    "distillation.": "classify, tag, answer",
}
MODELS = {  # groups, and single settings, that one architecture reads
    "elmo.": "elmo",
    "gpt.": "gpt",
    "bert.": "bert",
    "masking.": "bert",
    "rnn_classifier.": "rnn",
    "rnn_tagger.": "rnn",
    "fine_tuning.freeze_encoder": "bert",
    "fine_tuning.layer_lr_decay": "bert",
    "fine_tuning.random_init": "bert",
}
READING = ("data.train", "data.valid", "data.read.encoding", "data.read.lenient", "data.read.max_reject")
COMPUTING = (
    "training.threads",
    "training.device",
    "training.max_checkpoints",
    "training.tensorboard",
    "training.precision",
)
SIZES = (  # what presets decide
    "elmo.hidden_size",
    "rnn_classifier.encoder.embedding_size",
    "rnn_classifier.encoder.hidden_size",
    "rnn_tagger.encoder.embedding_size",
    "rnn_tagger.encoder.hidden_size",
    "gpt.hidden_size",
    "gpt.stack.num_layers",
    "gpt.stack.num_heads",
    "gpt.stack.feed_forward_size",
    "bert.hidden_size",
    "bert.stack.num_layers",
    "bert.stack.num_heads",
    "bert.stack.feed_forward_size",
)
TOKENIZING = ("tokenizer.kind", "tokenizer.vocab_size", "tokenizer.normalization", "tokenizer.lowercase")
BATCHWISE = ("task", "preset", "architecture", *READING, *TOKENIZING, "training.")
READ = {  # all else that a task reads, by how the paths begin, where that is not every other setting
    "stories": ("task", *READING, *COMPUTING),
    "language": (*BATCHWISE, "pretrained"),
    "classify": (*BATCHWISE, "data.read.", "data.max_length", "pretrained"),
    "tag": (*BATCHWISE, "data.read.", "data.max_length", "pretrained"),
    "answer": (*BATCHWISE, "data.max_length", "pretrained"),
}
SAME = {
    "stories": ("seed", "epochs", "learning_rate", "max_gradient_norm")
}  # settings of training that a task has as its own
PASSES = "stories are learned in passes: set --epochs"
INSTEAD = {
    "training.minutes": PASSES,
    "training.steps": PASSES,
    "training.save_every": "every pass is saved",
    "training.workers": "all starts are trained side by side by one process: set --threads",
    "training.batch_tokens": "set --stories.batch_size, in questions",
    "preset": "set --memory_network.embedding_size and --hops",
    "architecture": "there is one kind of model, a memory network",
}


def usage_hint(task: str) -> str:
    """Return which verb uses a task's models, in brackets for the end of a message; nothing for an unknown task.

    >>> usage_hint("tag"), usage_hint("?")
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
        if owned and path == "fine_tuning.features" and given.get("architecture") == "bert":
            raise ConfigError("frozen features (--features) stand beside words of a reader's own: leave out --from")
        if owned and model and given.get("architecture", model) != model:
            raise ConfigError(
                f"{path} ({value}) means nothing to --arch {given['architecture']}: it is for --arch {model}"
            )
        if owned or (not owner and (task not in READ or path.startswith(READ[task]))):
            continue
        advice = f"it is for {owner}" if owner else INSTEAD.get(path, "leave it out")
        raise ConfigError(f"{path} ({value}) means nothing to the task {task}: {advice}")


def in_own_names(task: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted path with those of training under the task's own names, where it has such.

    >>> in_own_names("stories", {"training.epochs": 60, "memory_network.hops": 2})
    {'stories.epochs': 60, 'memory_network.hops': 2}
    """
    names = {f"training.{name}": f"{task}.{name}" for name in SAME.get(task, ())}
    made: dict[str, Any] = {}
    for path, value in given.items():
        own = names.get(path, path)
        if made.setdefault(own, value) != value:
            shared = f"training.{own.rpartition('.')[2]} and {own}"
            raise ConfigError(f"{shared} are one setting to {task}, but two values are given: keep one of them")
    return made


def task_defaults(task: str, arch: str = "", *, start_from: str = "") -> dict[str, Any]:
    """Return the settings, by dotted path, that a task, or an architecture for it, has where nobody says otherwise.

    >>> task_defaults("language")["architecture"], task_defaults("classify", start_from="a/model")["architecture"]
    ('elmo', 'bert')
    """
    arch = arch or ("bert" if start_from and task in FINE_TUNED_TASKS else "")
    return {"task": task, **TASK_DEFAULTS.get(task, {}), **ARCHITECTURE_DEFAULTS.get((task, arch), {})}


def parse_architecture(text: str) -> dict[str, Any]:
    """Return a run's settings for one entry of `--arch`: transformer, or cell:attention.

    Without attention an LSTM is told the source at the start (Sutskever et al. 2014), a GRU at every step (Cho et al.
    2014); additive attention goes into the cell (Bahdanau et al. 2015), the others follow it (Luong et al. 2015).

    >>> parse_architecture("gru:none")["seq2seq.source_context"], parse_architecture("transformer")
    ('every', {'architecture': 'transformer'})
    """
    if text == "transformer":
        return {"architecture": "transformer"}
    cell, _, attention = text.partition(":")
    if cell not in CELLS or attention not in SCORES:
        every = ["transformer", *(f"{one}:{other}" for one in CELLS for other in SCORES)]
        raise UsageError(
            f"unknown architecture {text!r}{nearest(text, every)}: give transformer or CELL:ATTENTION, with a cell of "
            f"{', '.join(CELLS)} and attention of {', '.join(SCORES)}"
        )
    made: dict[str, Any] = {"architecture": "rnn", "seq2seq.cell": cell, "seq2seq.attention": attention}
    if attention == "none":
        return {**made, "seq2seq.source_context": "every" if cell == "gru" else "start"}
    if attention == HARD:
        return made
    return {**made, "seq2seq.input_feeding": "context" if attention == "additive" else "none"}
