"""Every option of `regard train TASK` sets a field that a run of the task reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.config.runs import build_run, run_config_class, trained_tasks
from regard.config.settings import Config
from regard.training.run import train_run
from tests.task_data import write_task_data

GENERIC_FILES = ("dataclasses.py", "settings.py", "runs.py", "copy.py")  # they read every field of every config
FAST = {"training.threads": 1, "training.precision": "float32", "training.steps": 2}
LINES = {"documents.document_boundary": "line", "data.read.encoding": "latin-1"}
LENIENT = {"data.read.lenient": True, "data.read.max_reject": 50.0}
STORIES = {"training.threads": 1, "training.epochs": 1, "training.restarts": 2, "training.linear_start_epochs": 1}
RUNS: dict[str, list[tuple[str, dict[str, Any]]]] = {  # task → files and settings of the runs that use all options
    "translate": [
        ("pairs.csv", {**FAST, **LENIENT, "preset": "custom"}),
        ("pairs.csv", {**FAST, **LENIENT, "architecture": "rnn"}),
    ],
    "classify": [
        ("labels.csv", {**FAST, **LENIENT, "fine_tuning.test": "DATA/labels.csv"}),
        ("labels.csv", {**FAST, **LENIENT, "pretrained": "DATA/encoder"}),
    ],
    "tag": [
        ("tags.conll", {**FAST, **LENIENT, "fine_tuning.test": "DATA/tags.conll"}),
        ("tags.conll", {**FAST, **LENIENT, "pretrained": "DATA/encoder"}),
    ],
    "answer": [
        ("squad.json", {**FAST, **LENIENT, "pretrained": "DATA/encoder", "tokenizer.extend": "texts"}),
        ("squad.json", {**FAST, **LENIENT, "architecture": "transformer"}),
    ],
    "masked-lm": [("texts.txt", {**FAST, **LENIENT, **LINES})],
    "causal-lm": [("texts.txt", {**FAST, **LENIENT, **LINES})],
    "elmo": [("texts.txt", {**FAST, **LENIENT, **LINES})],
    "story-qa": [
        ("walks.txt", {**STORIES, **LENIENT}),
        ("walks.txt", {**FAST, **LENIENT, "architecture": "rnn", "fine_tuning.test": "DATA/walks.txt"}),
        ("walks.txt", {**FAST, **LENIENT, "architecture": "transformer"}),
    ],
}
UNUSED = {  # settings that these runs do not come to, and what they are for
    "decoding.temperature": "sampling, with the saved model",
    "decoding.top_k": "sampling, with the saved model",
    "decoding.top_p": "sampling, with the saved model",
    "decoding.seed": "sampling, with the saved model",
    "data.read.lenient": "files with faulty rows",
    "data.read.max_reject": "files with faulty rows",
    "fine_tuning.feature_cache_mb": "features, or a frozen encoder",
    "fine_tuning.test": "a test file, asked for by the config itself",
    "masking.new_vocabulary": "a pretrained encoder",
    "tokenizer.extend": "a pretrained encoder",
    "lora.alpha": "a pretrained model with LoRA",
    "lora.dropout": "a pretrained model with LoRA",
    "lora.keep_adapter": "a pretrained model with LoRA",
    "training.linear_start_patience": "a linear start of many epochs",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[tuple[type, str]]]:
    """Classes and names of the fields that are read, except by code that reads all."""
    recorded: set[tuple[type, str]] = set()

    def read(config: Config, name: str) -> Any:
        if not sys._getframe(1).f_code.co_filename.endswith(GENERIC_FILES):
            recorded.add((type(config), name))
        return object.__getattribute__(config, name)

    monkeypatch.setattr(Config, "__getattribute__", read)
    yield recorded


def owner(config: type[Config], path: str) -> tuple[type[Config], str]:
    """Config class that declares the field at a dotted path, and the field's name."""
    *parents, name = path.split(".")
    for parent in parents:
        config = next(knob.type for knob in config.knobs(deep=False) if knob.path == parent)
    return config, name


@pytest.mark.parametrize("task", trained_tasks())
def test_a_run_reads_the_field_of_every_option(
    task: str, data: Path, tmp_path: Path, reads: set[tuple[type, str]]
) -> None:
    for index, (file, settings) in enumerate(RUNS[task]):
        texts = {path: value for path, value in settings.items() if isinstance(value, str)}
        paths = {path: text.replace("DATA", str(data)) for path, text in texts.items()}
        train_run(build_run(task, {**settings, **paths, "data.train": [str(data / file)]}), tmp_path / str(index))
    config = run_config_class(task)
    unread = []
    for knob in config.knobs():
        declared, name = owner(config, knob.path)
        if not any(name == field and issubclass(read, declared) for read, field in reads):
            unread.append(knob.path)
    assert not [path for path in unread if path not in UNUSED and not path.startswith("distillation.")]
