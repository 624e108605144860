"""A finished run is reported again only if its data and the models it started from are those that it was trained on."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from regard.checkpoint.run_dir import RunDirectory
from regard.config.runs import build_run, run_config_class
from regard.errors import UsageError
from regard.training.run import FINISHED_BEFORE, RunResult, train_run
from tests.encoders import saved_encoder
from tests.gpts import saved_gpt
from tests.rnn_text import saved_elmo
from tests.stories import write
from tests.training.listener import Listener
from tests.training.task_data import SENTENCES, write_data

SETTINGS: dict[str, Any] = {
    "training.threads": 1,
    "training.precision": "float32",
    "training.batch_tokens": 64,
    "training.steps": 1,
    "training.tune_length_penalty": False,
    "documents.sequence_length": 12,
    "fine_tuning.baseline": False,
}
MEMORY_SETTINGS = {"training.threads": 1, "training.epochs": 1, "training.linear_start_epochs": 1}
RESTARTS = {"architecture": "rnn", "training.restarts": 2}
CASES: list[tuple[str, dict[str, Any], str]] = [  # task, settings that differ, setting of the model
    ("classify", {}, "pretrained"),
    ("classify", {}, "fine_tuning.features"),
    ("classify", {"fine_tuning.seeds": 2}, "pretrained"),
    ("classify", {"fine_tuning.seeds": 2}, "fine_tuning.features"),
    ("classify", {"distillation.student_layers": 1}, "pretrained"),
    ("tag", {}, "pretrained"),
    ("answer", {}, "pretrained"),
    ("masked-lm", {}, "pretrained"),
    ("causal-lm", {}, "pretrained"),
    ("elmo", {}, "pretrained"),
    ("translate", {"lora.rank": 2}, "pretrained"),
    ("story-qa", MEMORY_SETTINGS, ""),
    ("story-qa", RESTARTS, ""),
]


def write_task_data(folder: Path, task: str, *, is_changed: bool = False) -> Path:
    """Write the data of a task; changed ones have other rows."""
    if task == "story-qa":
        return write(folder, "data.txt", 40, seed=2 if is_changed else 1)
    return write_data(folder, task, SENTENCES[2:] if is_changed else SENTENCES)


def train(folder: Path, task: str, out: str, changes: dict[str, Any]) -> tuple[RunResult, list[str]]:
    """Train a run, or open a finished one; also return its notes."""
    settings = {"data.train": (str(write_task_data(folder, task)),), **changes}
    return repeat(folder, task, out, settings)


def repeat(folder: Path, task: str, out: str, changes: dict[str, Any]) -> tuple[RunResult, list[str]]:
    """Train a run, or open a finished one, on data that are written already."""
    known = {knob.path for knob in run_config_class(task).knobs()}
    common = {} if changes.get("training.epochs") else SETTINGS
    settings = {path: value for path, value in common.items() if path in known} | changes
    listener = Listener()
    result = train_run(build_run(task, settings), folder / out, listeners=[listener])
    return result, [note["text"] for note in listener.of("note")]


def write_model(folder: Path, task: str, changes: dict[str, Any], setting: str) -> Path:
    """Write a model that runs of a task start from or read."""
    writers: dict[str, Callable[[Path, Any], Path]] = {"causal-lm": saved_gpt, "elmo": saved_elmo}
    if task == "translate" or "distillation.student_layers" in changes:
        start = {} if task == "translate" else {"pretrained": str(saved_encoder(folder / "encoder", SENTENCES))}
        train(folder, task, "model", {"preset": "micro"} if task == "translate" else start)
    elif setting == "fine_tuning.features":
        saved_elmo(folder / "model", SENTENCES)
    else:
        writers.get(task, saved_encoder)(folder / "model", SENTENCES)
    return folder / "model"


def change_weights(folder: Path) -> None:
    """Replace the weights of a model by others, on purpose: without the manifest that they differ from."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    learned = {name: 1.5 * tensor for name, tensor in weights.items() if "embed_positions" not in name}  # not sinusoids
    save_file({**weights, **learned}, path, metadata={"format": "pt"})
    (folder / "MANIFEST.json").unlink()


@pytest.mark.parametrize(("task", "changes", "setting"), CASES)
def test_a_finished_run_on_other_data_or_from_another_model_is_refused(
    task: str, changes: dict[str, Any], setting: str, tmp_path: Path
) -> None:
    changes = {**changes, "data.train": (str(write_task_data(tmp_path, task)),)}
    if setting:
        changes[setting] = str(write_model(tmp_path, task, changes, setting))
    assert repeat(tmp_path, task, "run", changes)[0].is_finished
    result, notes = repeat(tmp_path, task, "run", changes)
    assert result.reason == FINISHED_BEFORE
    assert len(notes) == 1 and notes[0].endswith("(choose another --out to train anew)")
    data = write_task_data(tmp_path, task, is_changed=True)
    with pytest.raises(UsageError, match=rf"data changed since .*run began \(train: {re.escape(str(data))}"):
        repeat(tmp_path, task, "run", changes)
    write_task_data(tmp_path, task)
    if setting:
        change_weights(tmp_path / "model")
        digest_name = "start" if setting == "pretrained" else "features"
        with pytest.raises(UsageError, match=rf"\({digest_name}: {re.escape(changes[setting])}\)"):
            repeat(tmp_path, task, "run", changes)
        shutil.rmtree(tmp_path / "model")
        result, notes = repeat(tmp_path, task, "run", changes)
        assert result.reason == FINISHED_BEFORE
        assert f"no longer there ({changes[setting]}): that it is unchanged was not checked" in notes[0]
    data.unlink()
    result, notes = repeat(tmp_path, task, "run", changes)
    assert result.reason == FINISHED_BEFORE
    assert str(data) in notes[0]


def test_digests_that_a_run_does_not_record_are_not_compared(tmp_path: Path) -> None:
    changes = {"fine_tuning.seeds": 2, "pretrained": str(saved_encoder(tmp_path / "model", SENTENCES))}
    train(tmp_path, "classify", "run", changes)
    directory = RunDirectory(tmp_path / "run")
    run = directory.read_run()
    del run["data_digests"]["start"]  # as if a version without it had begun the run
    directory.write_run(run)
    change_weights(tmp_path / "model")
    assert train(tmp_path, "classify", "run", changes)[0].reason == FINISHED_BEFORE
