"""Entries of `regard compare --arch` as settings of a run: one table per task, which its row in `TASKS` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from regard.config.rnn_models import ATTENTION_SCORES, CELLS, RNN_POOLING_KINDS
from regard.errors import UsageError, nearest
from regard.registry import TASKS, resolve

HARD = "hard"  # hard attention with the additive score
MODEL = "MODEL"  # stands for a folder or hub name in the names of a table


@dataclass(frozen=True)
class Architecture:
    """What an entry of `--arch` stands for: settings of a run, or a baseline that needs no run."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted path
    model_setting: str = ""  # setting that takes the model of an entry such as frozen:MODEL
    is_baseline: bool = False  # fitted to the training data by the task's comparison
    has_time_budget: bool = True  # otherwise a number of epochs ends its training

    @property
    def is_pretrained(self) -> bool:
        """Whether it starts from another model, or reads the features of one."""
        return bool(self.model_setting)

    @property
    def is_timed(self) -> bool:
        """Whether its runs have a time limit."""
        return self.has_time_budget and not self.is_baseline


def _seq2seq(cell: str, attention: str) -> Architecture:
    """RNN encoder–decoder.

    Without attention, an LSTM decoder gets the source state at the start (Sutskever et al. 2014), a GRU decoder at
    every step (Cho et al. 2014). Additive attention feeds its context to the cell (Bahdanau et al. 2015); the other
    scores attend after the cell (Luong et al. 2015).
    """
    settings: dict[str, Any] = {"architecture": "rnn", "seq2seq.cell": cell}
    if attention == HARD:
        settings |= {"seq2seq.attention": "additive", "seq2seq.hard_attention": "straight-through"}
    elif attention == "none":
        settings |= {"seq2seq.attention": attention, "seq2seq.source_context": "every" if cell == "gru" else "start"}
    else:
        input_feeding = "context" if attention == "additive" else "none"
        settings |= {"seq2seq.attention": attention, "seq2seq.input_feeding": input_feeding}
    return Architecture(settings)


TRANSFORMER = Architecture({"architecture": "transformer"})
COUNTS = Architecture(is_baseline=True)
FROZEN = Architecture({"fine_tuning.freeze_encoder": True}, model_setting="pretrained")
TUNED = Architecture(model_setting="pretrained")
FEATURES = Architecture({"architecture": "rnn"}, model_setting="fine_tuning.features")
PRETRAINED = {f"frozen:{MODEL}": FROZEN, f"tuned:{MODEL}": TUNED}

TRANSLATE = {
    "transformer": TRANSFORMER,
    **{
        f"{cell}:{attention}": _seq2seq(cell, attention)
        for cell, attention in product(CELLS, [*ATTENTION_SCORES, HARD])
    },
}
CLASSIFY = {
    "counts": COUNTS,
    **{
        f"rnn:{pooling}": Architecture({"architecture": "rnn", "rnn_classifier.pooling": pooling})
        for pooling in RNN_POOLING_KINDS
    },
    "transformer": TRANSFORMER,
    f"features:{MODEL}": FEATURES,
    **PRETRAINED,
}
TAG = {
    "counts": COUNTS,
    "rnn": Architecture({"architecture": "rnn"}),
    "transformer": TRANSFORMER,
    f"features:{MODEL}": FEATURES,
    **PRETRAINED,
}
ANSWER = {"counts": COUNTS, "transformer": TRANSFORMER, **PRETRAINED}
CAUSAL_LM = {"gpt": Architecture()}
STORY_QA = {
    "counts": COUNTS,
    "memory-network": Architecture(has_time_budget=False),
    "rnn": Architecture({"architecture": "rnn"}),
    "transformer": TRANSFORMER,
}


def architecture_table(task: str) -> Mapping[str, Architecture]:
    """Architectures of a task by the name of their entries.

    >>> list(architecture_table("tag"))
    ['counts', 'rnn', 'transformer', 'features:MODEL', 'frozen:MODEL', 'tuned:MODEL']
    """
    table: Mapping[str, Architecture] = resolve(TASKS[task].architectures) or {}
    return table


def find_architecture(entry: str, task: str) -> Architecture:
    """Architecture of an entry of `--arch`; that of an entry with a model has the model in its settings.

    >>> find_architecture("frozen:runs/bert", "tag").settings
    {'fine_tuning.freeze_encoder': True, 'pretrained': 'runs/bert'}
    """
    table = architecture_table(task)
    if entry in table and not entry.endswith(f":{MODEL}"):
        return table[entry]
    kind, _, model = entry.partition(":")
    architecture = table.get(f"{kind}:{MODEL}")
    if architecture is None or not model:
        raise _unknown_architecture(entry, task)
    return Architecture({**architecture.settings, architecture.model_setting: model}, architecture.model_setting)


def parse_architecture(entry: str, task: str = "translate") -> dict[str, Any]:
    """Settings of a run for an entry of `--arch` that is no baseline.

    >>> parse_architecture("gru:none")["seq2seq.source_context"], parse_architecture("transformer")
    ('every', {'architecture': 'transformer'})
    """
    return dict(find_architecture(entry, task).settings)


def _unknown_architecture(entry: str, task: str) -> UsageError:
    """Error with the nearest name, the allowed ones, and the tasks that have this one."""
    names = list(architecture_table(task))
    if not names:
        return UsageError(f"no architectures of {task} are compared: its task names none")
    kind = entry.partition(":")[0]
    if f"{kind}:{MODEL}" in names:
        return UsageError(f"the architecture {entry!r} names no model: write {kind}:{MODEL}, as in {kind}:runs/mine")
    owners = [name for name in TASKS if entry in architecture_table(name)]
    hint = f"; {entry} is for --task {' or '.join(owners)}" if owners else nearest(entry, names)
    return UsageError(f"unknown architecture {entry!r} of {task}{hint}: must be one of {', '.join(names)}")
