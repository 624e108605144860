"""Defaults by task and architecture, the settings that each task reads, and `--arch` entries as settings."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from regard.config.rnn_models import ATTENTION_SCORES, CELLS, HARD_ATTENTION
from regard.errors import ConfigError, UsageError, nearest

TASK_COMMANDS = {  # task → the command that uses its models
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
TASK_ARCHITECTURES = {  # task → the architectures that it offers
    "translate": ("transformer", "rnn"),
    "language": ("elmo", "bert", "gpt"),
    "classify": ("rnn", "bert"),
    "tag": ("rnn", "bert"),
    "answer": ("bert",),
}
FINE_TUNED_TASKS = ("classify", "tag", "answer")  # tasks that an encoder is fine-tuned for
FINE_TUNING_DEFAULTS: dict[str, Any] = {  # of a model that starts from a pretrained encoder
    "architecture": "bert",
    "data.max_length": 512,
    "training.optimizer": "adamw",
    "training.weight_decay": 0.01,
    "training.adam_beta2": 0.999,
    "training.label_smoothing": 0.0,
    "training.ema_decay": 0.0,
}
TASK_DEFAULTS: dict[str, dict[str, Any]] = {  # where they differ from the defaults of `RunConfig`
    "language": {"architecture": "elmo", "training.label_smoothing": 0.0},
    "classify": {"architecture": "rnn", "training.label_smoothing": 0.0},
    "tag": {"architecture": "rnn", "training.label_smoothing": 0.0},
    "answer": {**FINE_TUNING_DEFAULTS, "data.max_length": 384},
}
ARCHITECTURE_DEFAULTS: dict[tuple[str, str], dict[str, Any]] = {  # on top of those of the task
    ("classify", "bert"): FINE_TUNING_DEFAULTS,
    ("tag", "bert"): FINE_TUNING_DEFAULTS,
    ("language", "bert"): {"tokenizer.kind": "wordpiece", "tokenizer.lowercase": True},
}
GROUP_TASKS = {  # prefix of settings → the tasks that alone read them
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
    "trainable.": "translate, language, classify, tag, answer",
    "lora.": "translate, language, classify, tag, answer",
}
GROUP_ARCHITECTURES = {  # prefix of settings → the architecture that alone reads them
    "elmo.": "elmo",
    "gpt.": "gpt",
    "bert.": "bert",
    "masking.": "bert",
    "rnn_classifier.": "rnn",
    "rnn_tagger.": "rnn",
    "fine_tuning.freeze_encoder": "bert",
    "fine_tuning.random_init": "bert",
}
DATA_SETTINGS = ("data.train", "data.valid", "data.read.encoding", "data.read.lenient", "data.read.max_reject")
COMPUTE_SETTINGS = (
    "training.threads",
    "training.device",
    "training.max_checkpoints",
    "training.tensorboard",
    "training.precision",
)
PRESET_SIZES = (  # settings that a preset decides
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
TOKENIZER_SETTINGS = ("tokenizer.kind", "tokenizer.vocab_size", "tokenizer.normalization", "tokenizer.lowercase")
COMMON_SETTINGS = ("task", "preset", "architecture", *DATA_SETTINGS, *TOKENIZER_SETTINGS, "training.")
SHARED_SETTINGS = {  # task → prefixes of the settings it reads besides its own groups; tasks not listed read all
    "stories": ("task", *DATA_SETTINGS, *COMPUTE_SETTINGS),
    "language": (*COMMON_SETTINGS, "tokenizer.extend", "pretrained"),
    "classify": (*COMMON_SETTINGS, "data.read.", "data.max_length", "pretrained"),
    "tag": (*COMMON_SETTINGS, "data.read.", "data.max_length", "pretrained"),
    "answer": (*COMMON_SETTINGS, "data.max_length", "pretrained"),
}
# task → settings of `training` that its own group declares, too
REDECLARED_SETTINGS = {"stories": ("seed", "epochs", "learning_rate", "max_gradient_norm")}
EPOCHS_ADVICE = "stories are trained in epochs: set --epochs"
ADVICE = {  # setting → what to do where it means nothing
    "training.minutes": EPOCHS_ADVICE,
    "training.steps": EPOCHS_ADVICE,
    "training.save_every": "a checkpoint is saved every epoch",
    "training.workers": "all restarts are trained in parallel by one process: set --threads",
    "training.batch_tokens": "set --stories.batch_size, in questions",
    "preset": "set --memory_network.embedding_size and --hops",
    "architecture": "the only architecture is the memory network",
}


def usage_hint(task: str) -> str:
    """Name the command that uses a task's models, in brackets for the end of a message; empty for an unknown task.

    >>> usage_hint("tag"), usage_hint("?")
    (' (`regard tag` uses this one)', '')
    """
    return f" (`{TASK_COMMANDS[task]}` uses this one)" if task in TASK_COMMANDS else ""


def check_relevance(task: str, overrides: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for the first of these settings, by dotted path, that means nothing to a task.

    >>> check_relevance("stories", {"training.minutes": 5.0})
    Traceback (most recent call last):
    regard.errors.ConfigError: training.minutes (5.0) means nothing to the task stories: ... set --epochs
    """
    architecture = overrides.get("architecture")
    for path, value in overrides.items():
        if path in PRESET_SIZES and overrides.get("preset") != "custom":
            raise ConfigError(f"{path} ({value}) is a size that the preset gives: add --preset custom")
        tasks = _match_prefix(path, GROUP_TASKS)
        is_own = task in tasks.split(", ")
        if is_own and path == "fine_tuning.features" and architecture == "bert":
            raise ConfigError("frozen features (--features) are for RNN text encoders (--arch rnn): leave out --from")
        required = _match_prefix(path, GROUP_ARCHITECTURES)
        if is_own and required and overrides.get("architecture", required) != required:
            raise ConfigError(f"{path} ({value}) means nothing to --arch {architecture}: it is for --arch {required}")
        is_shared = task not in SHARED_SETTINGS or path.startswith(SHARED_SETTINGS[task])
        if is_own or (is_shared and not tasks):
            continue
        advice = f"it is for {tasks}" if tasks else ADVICE.get(path, "leave it out")
        raise ConfigError(f"{path} ({value}) means nothing to the task {task}: {advice}")


def _match_prefix(path: str, table: Mapping[str, str]) -> str:
    """Value of the first key that a path starts with; empty where there is none."""
    return next((value for prefix, value in table.items() if path.startswith(prefix)), "")


def move_shared_settings(task: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Move settings of `training` to the task's own group, where that declares them, too.

    >>> move_shared_settings("stories", {"training.epochs": 60, "memory_network.hops": 2})
    {'stories.epochs': 60, 'memory_network.hops': 2}
    """
    task_paths = {f"training.{name}": f"{task}.{name}" for name in REDECLARED_SETTINGS.get(task, ())}
    settings: dict[str, Any] = {}
    for path, value in overrides.items():
        task_path = task_paths.get(path, path)
        if settings.setdefault(task_path, value) != value:
            name = task_path.rpartition(".")[2]
            raise ConfigError(
                f"training.{name} and {task_path} are one setting to {task}, but have two values: keep one of them"
            )
    return settings


def task_defaults(task: str, architecture: str = "", *, pretrained: str = "") -> dict[str, Any]:
    """Defaults, by dotted path, of a task and of an architecture for it.

    `start_from` is the folder of pretrained weights: with one, classifiers and taggers are BERT-style encoders.

    >>> task_defaults("language")["architecture"], task_defaults("classify", pretrained="a/model")["architecture"]
    ('elmo', 'bert')
    """
    if not architecture and pretrained and task in FINE_TUNED_TASKS:
        architecture = "bert"
    return {"task": task, **TASK_DEFAULTS.get(task, {}), **ARCHITECTURE_DEFAULTS.get((task, architecture), {})}


def parse_architecture(text: str) -> dict[str, Any]:
    """Parse one entry of `--arch`, transformer or CELL:ATTENTION, into settings of a run.

    Without attention, an LSTM decoder gets the source state at the start (Sutskever et al. 2014), a GRU decoder at
    every step (Cho et al. 2014). Additive attention feeds its context to the cell (Bahdanau et al. 2015); the other
    scores attend after the cell (Luong et al. 2015).

    >>> parse_architecture("gru:none")["seq2seq.source_context"], parse_architecture("transformer")
    ('every', {'architecture': 'transformer'})
    """
    if text == "transformer":
        return {"architecture": "transformer"}
    cell, _, attention = text.partition(":")
    if cell not in CELLS or attention not in ATTENTION_SCORES:
        allowed = ["transformer", *(f"{cell}:{attention}" for cell, attention in product(CELLS, ATTENTION_SCORES))]
        raise UsageError(
            f"unknown architecture {text!r}{nearest(text, allowed)}: must be transformer or CELL:ATTENTION, where the "
            f"cell is one of {', '.join(CELLS)} and the attention one of {', '.join(ATTENTION_SCORES)}"
        )
    settings: dict[str, Any] = {"architecture": "rnn", "seq2seq.cell": cell, "seq2seq.attention": attention}
    if attention == "none":
        settings["seq2seq.source_context"] = "every" if cell == "gru" else "start"
    elif attention != HARD_ATTENTION:
        settings["seq2seq.input_feeding"] = "context" if attention == "additive" else "none"
    return settings
