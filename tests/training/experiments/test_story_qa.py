"""A run of memory networks: it learns, goes on bit by bit wherever it was stopped, and refuses what it must."""

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
from regard.config.runs import RunConfig
from regard.errors import ConfigError, DataError, UsageError
from regard.training.run import RunResult, train_run
from tests.stories import write
from tests.training.killing import kill_during_training
from tests.training.listener import Listener

QUICK = {
    "task": "stories",
    "memory_network.hops": 2,
    "memory_network.embedding_size": 7,
    "stories.restarts": 3,
    "stories.epochs": 4,
    "stories.linear_start_epochs": 2,
    "stories.batch_size": 16,
    "training.threads": 1,
}


class Stopper(Listener):
    """Asks to stop once, when the state of so many passes is saved."""

    def __init__(self, passes: int) -> None:
        super().__init__()
        self.passes = passes

    def on_event(self, kind: str, facts: dict[str, Any]) -> None:
        super().on_event(kind, facts)
        if kind == "step" and facts["step"] == self.passes:
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walks")
    write(folder, "walks_train.txt", 61, seed=1)
    write(folder, "more_train.txt", 37, seed=2)
    write(folder, "walks_test.txt", 23, seed=3)
    return folder


def train(data: Path, out: Path, listener: Listener | None = None, **changes: object) -> RunResult:
    given = {**QUICK, "data.train": (str(data / "walks_train.txt"),), **changes}
    return train_run(RunConfig().override(given), out, listeners=[listener or Listener()])


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    out = tmp_path_factory.mktemp("runs") / "alone"
    train(data, out)
    return out


def same(one: Path, other: Path) -> bool:
    """Whether two runs have the same model, the same last state and the same log, bit by bit."""
    first, second = load_memory_network(one).weights, load_memory_network(other).weights
    last = max(one.glob("checkpoints/step-*"), key=lambda path: int(path.name[5:])).relative_to(one)
    names = ("log.jsonl", "model.safetensors", last / "model.safetensors")
    equal = all(torch.equal(first[name], second[name]) for name in first | second)
    return equal and all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_several_tasks_are_learned_together_and_measured_one_by_one(data: Path, tmp_path: Path) -> None:
    files = tuple(str(data / name) for name in ("walks_train.txt", "more_train.txt"))
    write(tmp_path, "more_test.txt", 19, seed=4)
    valid = (str(data / "walks_test.txt"), str(tmp_path / "more_test.txt"))
    listener = Listener()
    settings = {"memory_network.embedding_size": 20, "stories.epochs": 16, "data.train": files, "data.valid": valid}
    report = train(data, tmp_path / "run", listener, **settings)
    assert (report.unit, report.step, report.reason, report.finished) == ("pass", 18, "plan done", True)
    tasks = {one["task"]: one for one in report.metrics["valid"]["tasks"]}
    assert {name: one["questions"] for name, one in tasks.items()} == {"walks": 23, "more": 19}
    assert report.metrics["valid_error"] == pytest.approx((tasks["walks"]["error"] + tasks["more"]["error"]) / 2)
    assert report.metrics["valid_error"] < 40
    assert len(report.metrics["starts"]["train_errors"]) == 3
    last = listener.of("step")[-1]
    assert (last["step"], last["of"], last["fraction"], last["seconds_left"]) == (18, 18, 1.0, 0)
    assert last["questions_per_second"] > 0
    assert [facts["step"] for facts in listener.of("evaluate")] == [6, 10, 14, 18]
    assert any(facts["text"].startswith("mean of 2 tasks  42 questions") for facts in listener.of("note"))
    assert any("2 tasks, 89 questions to learn and 9 held out" in line for line in listener.of("plan")[0]["lines"])


def test_the_folder_holds_model_words_digests_card_and_log(data: Path, alone: Path) -> None:
    fields = json.loads((alone / "config.json").read_text())
    assert fields["model_type"] == "regard-memory-network"
    assert fields["regard"]["hops"] == 2
    run, task = (json.loads((alone / name).read_text()) for name in ("run.json", "task.json"))
    assert run["data"] == task["data"]
    assert run["config"]["memory_network"]["hops"] == 2
    assert (task["task"], task["step"], task["unit"], task["tasks"]) == ("stories", 6, "pass", ["walks"])
    assert run["finished"]["metrics"] == task["metrics"]
    card = (alone / "README.md").read_text()
    assert task["data"]["train"][:16] in card
    assert "| walks | 6 |" in card  # questions held out
    log = [json.loads(line) for line in (alone / "log.jsonl").read_text().splitlines()]
    passes = [line for line in log if line["event"] == "step"]
    assert [line["linear"] for line in passes] == [True] * 2 + [False] * 4
    assert all(len(line["errors"]) == 3 for line in passes)
    assert sorted(path.name for path in (alone / "checkpoints").iterdir()) == ["step-5", "step-6"]


def test_a_kill_that_nobody_can_catch(data: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "stories.epochs": 60}  # long enough to be killed in the middle
    train(data, tmp_path / "alone", **settings)
    words = [sys.executable, "-m", "regard", "train", "stories", str(data / "walks_train.txt"), "--json"]
    words += [f"--{name}={value}" for name, value in settings.items() if name != "task"]

    def start(out: Path) -> subprocess.Popen[str]:
        return subprocess.Popen([*words, "--out", str(out)], stdout=subprocess.PIPE, text=True)

    kill_during_training(start, tmp_path / "killed", lambda event: event == {"event": "save", "step": 5})
    listener = Listener()
    train(data, tmp_path / "killed", listener, **settings)
    assert 5 <= listener.of("resume")[0]["step"] < 62
    assert same(tmp_path / "alone", tmp_path / "killed")


@pytest.mark.parametrize("passes", [2, 5])
def test_a_pass_that_was_logged_but_not_saved_is_made_again(
    data: Path, alone: Path, tmp_path: Path, passes: int
) -> None:
    class Dying(Listener):
        def on_event(self, kind: str, facts: dict[str, Any]) -> None:
            super().on_event(kind, facts)
            if kind == "step" and facts["step"] == passes:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data, tmp_path / "run", Dying())
    listener = Listener()
    train(data, tmp_path / "run", listener)
    assert listener.of("resume") == [{"step": passes - 1, "unit": "pass"}]
    assert same(alone, tmp_path / "run")


@pytest.mark.parametrize("passes", [1, 4])  # before and after the softmax comes
def test_a_signal_finishes_the_pass_saves_and_can_be_continued(
    data: Path, alone: Path, tmp_path: Path, passes: int
) -> None:
    stopper = Stopper(passes)
    report = train(data, tmp_path / "run", stopper)
    assert (report.reason, report.step, report.finished) == ("SIGTERM", passes, False)
    assert stopper.of("stop") == [{"reason": "SIGTERM", "step": passes, "unit": "pass", "resumable": True}]
    assert stopper.of("save")[-1] == {"step": passes}
    listener = Listener()
    assert train(data, tmp_path / "run", listener).finished
    assert listener.of("resume") == [{"step": passes, "unit": "pass"}]
    assert same(alone, tmp_path / "run")


def test_a_stop_between_the_last_pass_and_the_end_changes_nothing(
    data: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            "regard.training.experiments.base.RunContext.notify", full
        )  # the scores are told before the run is finished
        train(data, tmp_path / "run")
    assert "finished" not in json.loads((tmp_path / "run/run.json").read_text())
    assert train(data, tmp_path / "run").reason == "plan done"
    assert same(alone, tmp_path / "run")


def test_a_finished_run_says_so_and_other_settings_and_data_are_refused(data: Path, alone: Path) -> None:
    before = (alone / "model.safetensors").stat().st_mtime_ns
    listener = Listener()
    report = train(data, alone, listener)
    assert (report.reason, report.step, report.unit) == ("finished before", 6, "pass")
    assert "is finished: nothing to do" in listener.of("note")[0]["text"]
    assert (alone / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"memory_network.hops: 2 there, 3 now; stories.seed: 1 there, 5 now"):
        train(data, alone, **{"memory_network.hops": 3, "stories.seed": 5})


def test_changed_data_is_noticed_on_resume(data: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    write(own, "walks_train.txt", 61, seed=1)
    train(own, tmp_path / "run", Stopper(1))
    write(own, "walks_train.txt", 61, seed=9)
    with pytest.raises(UsageError, match="the data changed"):
        train(own, tmp_path / "run")


def test_without_held_out_questions_the_learned_ones_are_measured(data: Path, tmp_path: Path) -> None:
    listener = Listener()
    settings = {"stories.validation_share": 0, "stories.epochs": 1, "stories.restarts": 1}
    report = train(data, tmp_path / "run", listener, **settings)
    assert report.metrics["valid_error"] == pytest.approx(report.metrics["train_error"])
    assert any("on the training questions" in line for line in listener.of("plan")[0]["lines"])
    assert any("one restart" in line for line in listener.of("plan")[0]["lines"])


def test_an_answer_unseen_in_training_is_refused_or_counted_as_wrong(data: Path, tmp_path: Path) -> None:
    odd = tmp_path / "walks_test.txt"
    odd.write_text("1 Mary went to the office.\n2 Where is Mary?\tmary\t1\n")
    settings: dict[str, object] = {"data.valid": (str(odd),), "stories.epochs": 1, "stories.linear_start_epochs": 1}
    with pytest.raises(DataError, match=r"walks_test.txt:2: the answer 'mary' was never seen in training"):
        train(data, tmp_path / "run", **settings)
    report = train(data, tmp_path / "other", **settings, **{"stories.unknown_answers": "wrong"})
    assert report.metrics["valid_error"] == 100


def test_rejected_stories_are_told(data: Path, tmp_path: Path) -> None:
    file = write(tmp_path, "walks_train.txt", 120, seed=1)
    file.write_text(file.read_text() + "1 Mary slept.\n")
    listener = Listener()
    settings = {"data.train": (str(file),), "stories.epochs": 1, "data.read.lenient": True}
    train(data, tmp_path / "run", listener, **settings)
    assert any("1 of 121 training rows are rejected: see" in line for line in listener.of("plan")[0]["lines"])


def test_a_device_that_is_not_there_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be put on the device 'nowhere'"):
        train(data, tmp_path / "run", **{"training.device": "nowhere"})
