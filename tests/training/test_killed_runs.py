"""Runs of every architecture on every task are killed by SIGKILL and resumed: they end in the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.gpts import saved_gpt
from tests.model_folders import save_model_folders
from tests.rnn_text import saved_elmo
from tests.stories import write
from tests.training.killing import train_killed_and_whole
from tests.training.task_data import SENTENCES, write_data

# task, and options of an architecture; names in braces stand for the folders of pretrained models
CELLS = (
    ("classify", "--arch rnn --rnn_classifier.pooling attention"),
    ("classify", "--arch transformer --transformer.pooling attention"),
    ("tag", "--arch transformer --causal"),
    ("answer", "--arch transformer"),
    ("story-qa", "--arch rnn"),
    ("story-qa", "--arch transformer"),
    ("classify", "--from {gpt} --lm-weight 0.5"),
    ("tag", "--from {gpt}"),
    ("answer", "--from {neox} --lm-weight 0.5"),
    ("classify", "--features {embed} --feature-layers mix"),
    ("classify", "--features {elmo}"),
    ("classify", "--features {generate} --feature-layers 1"),
    ("classify", "--features {translate}"),
    ("tag", "--features {embed} --feature-layers last4"),
    ("tag", "--features {elmo} --feature-layers last"),
    ("tag", "--features {generate}"),
    ("tag", "--features {translate}"),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Folders of pretrained models, with random weights."""
    root = tmp_path_factory.mktemp("models")
    saved = save_model_folders(root)
    saved["elmo"] = saved_elmo(root / "elmo", SENTENCES)
    saved["gpt"] = saved_gpt(root / "gpt", SENTENCES)
    saved["neox"] = saved_gpt(root / "neox", SENTENCES, positions="rotary")
    return saved


@pytest.mark.slow
@pytest.mark.parametrize(("task", "options"), CELLS, ids=[f"{task} {options}" for task, options in CELLS])
def test_a_killed_run_ends_in_the_same_bits(
    folders: Mapping[str, Path], tmp_path: Path, task: str, options: str
) -> None:
    data = write(tmp_path, "walks_train.txt", 200, seed=1) if task == "story-qa" else write_data(tmp_path, task)
    arguments = [task, str(data), *options.format(**folders).split(), "--steps", "40", "--training.batch_tokens=96"]
    killed, whole = train_killed_and_whole(arguments, tmp_path)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
