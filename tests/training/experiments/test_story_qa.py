"""Training memory networks: learning, resuming bit by bit after any interruption, refused settings and data."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.checkpoint.native import load_memory_network
from regard.config.story_run import StoryQARun
from regard.errors import ConfigError, DataError, UsageError
from regard.training.run import RunResult, train_run
from tests.stories import write
from tests.training.killing import kill_during_training
from tests.training.listener import Listener
from tests.training.logs import log_without_throughput

QUICK = {
    "task": "story-qa",
    "memory_network.hops": 2,
    "memory_network.embedding_size": 7,
    "training.restarts": 3,
    "training.epochs": 4,
    "training.linear_start_epochs": 2,
    "training.batch_size": 16,
    "training.threads": 1,
}


class Stopper(Listener):
    """Raises SIGTERM after an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        super().on_event(event, data)
        if event == "step" and data["step"] == self.epoch:
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walks")
    write(folder, "walks_train.txt", 61, seed=1)
    write(folder, "more_train.txt", 37, seed=2)
    write(folder, "walks_test.txt", 23, seed=3)
    return folder


def train(data: Path, out: Path, listener: Listener | None = None, **changes: object) -> RunResult:
    settings = {**QUICK, "data.train": (str(data / "walks_train.txt"),), **changes}
    return train_run(StoryQARun.build(settings), out, listeners=[listener or Listener()])


@pytest.fixture(scope="module")
def uninterrupted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruptions."""
    out = tmp_path_factory.mktemp("runs") / "uninterrupted"
    train(data, out)
    return out


def are_equal(first: Path, second: Path) -> bool:
    """Whether two runs have the same model, the same last checkpoint and the same log, bit by bit."""
    first_weights = load_memory_network(first).weights
    second_weights = load_memory_network(second).weights
    if not all(torch.equal(first_weights[name], second_weights[name]) for name in first_weights | second_weights):
        return False
    checkpoint = max(first.glob("checkpoints/step-*"), key=lambda path: int(path.name[5:])).relative_to(first)
    files = ("model.safetensors", checkpoint / "model.safetensors")
    has_same_log = log_without_throughput(first) == log_without_throughput(second)
    return has_same_log and all((first / name).read_bytes() == (second / name).read_bytes() for name in files)


def test_several_tasks_are_trained_together_and_evaluated_one_by_one(data: Path, tmp_path: Path) -> None:
    files = tuple(str(data / name) for name in ("walks_train.txt", "more_train.txt"))
    write(tmp_path, "more_test.txt", 19, seed=4)
    valid = (str(data / "walks_test.txt"), str(tmp_path / "more_test.txt"))
    listener = Listener()
    settings = {"memory_network.embedding_size": 20, "training.epochs": 16, "data.train": files, "data.valid": valid}
    report = train(data, tmp_path / "run", listener, **settings)
    assert (report.unit, report.step, report.reason, report.is_finished) == ("epoch", 18, "plan done", True)
    tasks = {task["task"]: task for task in report.metrics["valid"]["tasks"]}
    assert {name: task["questions"] for name, task in tasks.items()} == {"walks": 23, "more": 19}
    assert report.metrics["valid_error"] == pytest.approx((tasks["walks"]["error"] + tasks["more"]["error"]) / 2)
    assert report.metrics["valid_error"] < 40
    assert len(report.metrics["restarts"]["train_errors"]) == 3
    last = listener.of("step")[-1]
    assert (last["step"], last["of"], last["fraction"], last["seconds_left"]) == (18, 18, 1.0, 0)
    assert last["questions_per_second"] > 0
    assert [evaluation["step"] for evaluation in listener.of("evaluate")] == [6, 10, 14, 18]
    assert any(note["text"].startswith("mean of 2 tasks  42 questions") for note in listener.of("note"))
    assert any("2 tasks, 89 training questions and 9 held out" in line for line in listener.of("plan")[0]["lines"])


def test_the_folder_holds_model_config_digests_card_and_log(data: Path, uninterrupted: Path) -> None:
    fields = json.loads((uninterrupted / "config.json").read_text())
    assert fields["model_type"] == "regard-memory-network"
    assert fields["regard"]["hops"] == 2
    run = json.loads((uninterrupted / "run.json").read_text())
    task = json.loads((uninterrupted / "task.json").read_text())
    assert run["data_digests"] == task["data_digests"]
    assert run["config"]["memory_network"]["hops"] == 2
    assert (task["task"], task["step"], task["unit"], task["tasks"]) == ("story-qa", 6, "epoch", ["walks"])
    assert run["result"]["metrics"] == task["metrics"]
    card = (uninterrupted / "README.md").read_text()
    assert task["data_digests"]["train"][:16] in card
    assert "| walks | 6 |" in card  # questions held out
    log = [json.loads(line) for line in (uninterrupted / "log.jsonl").read_text().splitlines()]
    epochs = [event for event in log if event["event"] == "step"]
    assert [epoch["linear"] for epoch in epochs] == [True] * 2 + [False] * 4
    assert all(len(epoch["errors"]) == 3 for epoch in epochs)
    assert all(epoch["learning_rate"] > 0 and epoch["questions_per_second"] > 0 for epoch in epochs)
    assert sorted(path.name for path in (uninterrupted / "checkpoints").iterdir()) == ["step-5", "step-6"]


def test_a_run_killed_by_sigkill_ends_in_the_same_bits(data: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "training.epochs": 60}  # long enough to be killed in the middle
    train(data, tmp_path / "uninterrupted", **settings)
    command = [sys.executable, "-m", "regard", "train", "story-qa", str(data / "walks_train.txt"), "--json"]
    command += [f"--{name}={value}" for name, value in settings.items() if name != "task"]

    def start(out: Path) -> subprocess.Popen[str]:
        return subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.PIPE, text=True)

    kill_during_training(start, tmp_path / "killed", lambda event: event == {"event": "save", "step": 5})
    listener = Listener()
    train(data, tmp_path / "killed", listener, **settings)
    assert 5 <= listener.of("resume")[0]["step"] < 62
    assert are_equal(tmp_path / "uninterrupted", tmp_path / "killed")


@pytest.mark.parametrize("epoch", [2, 5])
def test_an_epoch_that_was_logged_but_not_saved_is_trained_again(
    data: Path, uninterrupted: Path, tmp_path: Path, epoch: int
) -> None:
    class Interrupter(Listener):
        def on_event(self, event: str, data: dict[str, Any]) -> None:
            super().on_event(event, data)
            if event == "step" and data["step"] == epoch:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data, tmp_path / "run", Interrupter())
    listener = Listener()
    train(data, tmp_path / "run", listener)
    assert listener.of("resume") == [{"step": epoch - 1, "unit": "epoch"}]
    assert are_equal(uninterrupted, tmp_path / "run")


@pytest.mark.parametrize("epoch", [1, 4])  # during the linear start and after it
def test_a_signal_finishes_and_saves_the_epoch_and_the_run_can_be_resumed(
    data: Path, uninterrupted: Path, tmp_path: Path, epoch: int
) -> None:
    stopper = Stopper(epoch)
    report = train(data, tmp_path / "run", stopper)
    assert (report.reason, report.step, report.is_finished) == ("SIGTERM", epoch, False)
    assert stopper.of("stop") == [{"reason": "SIGTERM", "step": epoch, "unit": "epoch", "resumable": True}]
    assert stopper.of("save")[-1] == {"step": epoch}
    listener = Listener()
    assert train(data, tmp_path / "run", listener).is_finished
    assert listener.of("resume") == [{"step": epoch, "unit": "epoch"}]
    assert are_equal(uninterrupted, tmp_path / "run")


def test_an_interruption_after_the_last_epoch_changes_nothing(
    data: Path, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        # The scores are reported before the run is marked as finished.
        patch.setattr("regard.training.procedure.RunContext.notify", interrupt)
        train(data, tmp_path / "run")
    assert "result" not in json.loads((tmp_path / "run/run.json").read_text())
    assert train(data, tmp_path / "run").reason == "plan done"
    assert are_equal(uninterrupted, tmp_path / "run")


def test_a_finished_run_is_left_alone_and_other_settings_are_refused(data: Path, uninterrupted: Path) -> None:
    before = (uninterrupted / "model.safetensors").stat().st_mtime_ns
    listener = Listener()
    report = train(data, uninterrupted, listener)
    assert (report.reason, report.step, report.unit) == ("finished before", 6, "epoch")
    assert "is finished: nothing to do" in listener.of("note")[0]["text"]
    assert (uninterrupted / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"memory_network.hops: 2 there, 3 now; training.seed: 1 there, 5 now"):
        train(data, uninterrupted, **{"memory_network.hops": 3, "training.seed": 5})


def test_changed_data_is_noticed_on_resume(data: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    write(own, "walks_train.txt", 61, seed=1)
    train(own, tmp_path / "run", Stopper(1))
    write(own, "walks_train.txt", 61, seed=9)
    with pytest.raises(UsageError, match="the data changed"):
        train(own, tmp_path / "run")


def test_without_held_out_questions_the_training_questions_are_evaluated(data: Path, tmp_path: Path) -> None:
    listener = Listener()
    settings = {"training.validation_share": 0, "training.epochs": 1, "training.restarts": 1}
    report = train(data, tmp_path / "run", listener, **settings)
    assert report.metrics["valid_error"] == pytest.approx(report.metrics["train_error"])
    assert any("on the training data, as none of it is held out" in line for line in listener.of("plan")[0]["lines"])
    assert any("one restart" in line for line in listener.of("plan")[0]["lines"])


def test_an_answer_unseen_in_training_is_counted_as_wrong_and_reported_or_refused(data: Path, tmp_path: Path) -> None:
    odd = tmp_path / "walks_test.txt"
    odd.write_text("1 Mary went to the office.\n2 Where is Mary?\tmary\t1\n")
    settings: dict[str, object] = {"data.valid": (str(odd),), "training.epochs": 1, "training.linear_start_epochs": 1}
    with pytest.raises(DataError, match=r"1 of 1 answers never occur in training: 'mary' \(.*walks_test.txt:2\)"):
        train(data, tmp_path / "run", **settings, **{"training.unknown_answers": "error"})
    listener = Listener()
    report = train(data, tmp_path / "other", listener, **settings)
    assert report.metrics["valid_error"] == 100
    assert any("'mary'" in line and "count as wrong" in line for line in listener.of("plan")[0]["lines"])


def test_rejected_stories_are_reported(data: Path, tmp_path: Path) -> None:
    file = write(tmp_path, "walks_train.txt", 120, seed=1)
    file.write_text(file.read_text() + "1 Mary slept.\n")
    listener = Listener()
    settings = {"data.train": (str(file),), "training.epochs": 1, "data.read.lenient": True}
    train(data, tmp_path / "run", listener, **settings)
    assert any("1 of 121 training rows are rejected: see" in line for line in listener.of("plan")[0]["lines"])


def test_an_unknown_device_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be put on the device 'nowhere'"):
        train(data, tmp_path / "run", **{"training.device": "nowhere"})
