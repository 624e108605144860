"""The log of a run that was interrupted and resumed is that of an undisturbed one, for every task."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from regard import cli
from regard.checkpoint.run_dir import RunDirectory
from regard.config.runs import build_run
from regard.training.run import train_run
from tests.encoders import saved_encoder
from tests.stories import write
from tests.training.listener import Listener
from tests.training.logs import log_without_throughput
from tests.training.task_data import SENTENCES, write_data

OPTIONS = {
    "translate": "--preset micro --tokenizer characters",
    "translate, rnn": "--arch rnn --preset micro --tokenizer characters",
    "classify": "--from ENCODER",
    "classify, rnn": "",
    "classify, seeds": "--seeds 2",
    "tag": "--from ENCODER",
    "answer": "--from ENCODER",
    "masked-lm": "--document-boundary line",
    "causal-lm": "--document-boundary line",
    "elmo": "--document-boundary line",
    "story-qa": "--epochs 4 --restarts 2 --training.linear_start_epochs 2 --training.lr_halving_epochs 2",
}
FAST = ("translate", "classify", "classify, seeds", "causal-lm", "story-qa")
TASKS = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in OPTIONS]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_encoder(tmp_path_factory.mktemp("encoder") / "encoder", list(SENTENCES))


def command(name: str, encoder: Path, folder: Path) -> list[str]:
    """Training command of a task, with an evaluation at its last step."""
    task = name.partition(",")[0]
    options = OPTIONS[name].replace("ENCODER", str(encoder)).split()
    if task == "story-qa":
        write(folder, "walks.txt", 61, seed=1)
        return ["train", task, str(folder / "walks.txt"), "--threads", "1", *options]
    length = ["--steps", "6", "--evaluate-every", "3", "--save-every", "2", "--batch-tokens", "64"]
    data = str(write_data(folder, task))
    return ["train", task, data, "--threads", "1", "--precision", "float32", *length, *options]


def logs(out: Path) -> dict[str, list[dict[str, Any]]]:
    return {str(path.relative_to(out)): log_without_throughput(path.parent) for path in sorted(out.rglob("log.jsonl"))}


@pytest.mark.parametrize("name", TASKS)
def test_a_kill_between_the_last_checkpoint_and_the_result_repeats_no_evaluation(
    name: str, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = command(name, encoder, tmp_path)
    assert cli.run([*arguments, "--out", str(tmp_path / "undisturbed")]) == 0
    write_run = RunDirectory.write_run

    def interrupt_at_the_result(self: RunDirectory, run: Mapping[str, Any]) -> None:
        if "result" in run:
            raise KeyboardInterrupt
        write_run(self, run)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write_run", interrupt_at_the_result)
        assert cli.run([*arguments, "--out", str(tmp_path / "killed")]) == 130
    assert cli.run([*arguments, "--out", str(tmp_path / "killed")]) == 0
    assert logs(tmp_path / "undisturbed") == logs(tmp_path / "killed") != {}
    records = [json.loads(run.read_text())["result"] for run in (tmp_path / "undisturbed").rglob("run.json")]
    resumed = [json.loads(run.read_text())["result"] for run in (tmp_path / "killed").rglob("run.json")]
    assert [record["verdict"] for record in records] == [record["verdict"] for record in resumed]


def test_a_stop_before_an_evaluation_that_is_due_loses_none(tmp_path: Path) -> None:
    class StopAtStep(Listener):
        def on_event(self, event: str, data: dict[str, Any]) -> None:
            super().on_event(event, data)
            if event == "step" and data["step"] == 1:  # the first one is always reported
                signal.raise_signal(signal.SIGTERM)

    settings = {
        "preset": "micro",
        "tokenizer.kind": "characters",
        "training.steps": 4,
        "training.evaluate_every": 1,
        "training.batch_tokens": 64,
        "training.threads": 1,
        "training.precision": "float32",
        "data.train": (str(write_data(tmp_path, "translate")),),
    }
    train_run(build_run("translate", settings), tmp_path / "undisturbed")
    stopped = train_run(build_run("translate", settings), tmp_path / "stopped", listeners=[StopAtStep()])
    assert (stopped.reason, stopped.step) == ("SIGTERM", 1)
    resumed = Listener()
    train_run(build_run("translate", settings), tmp_path / "stopped", listeners=[resumed])
    assert [event["step"] for event in resumed.of("evaluate")] == [1, 2, 3, 4]
    assert logs(tmp_path / "undisturbed") == logs(tmp_path / "stopped")
    assert not [note for note in resumed.of("note") if "interrupted" in note["text"]]  # it had stopped by itself
