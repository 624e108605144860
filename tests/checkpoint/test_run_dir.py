"""Run directories: checkpoints, lock, log and run.json."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
import torch

from regard.checkpoint.run_dir import RunDirectory, folder_kind
from regard.errors import CheckpointError, UsageError

RUN = {
    "config": {"seed": 3},
    "data_digests": {"train": "é"},
    "files": {},
    "unit": "step",
    "resolved": {},
    "environment": {},
}
RESULT = {"step": 3, "seconds": 0.5, "metric": "bleu", "metrics": {}}


def start_run(path: Path, *steps: int, **options: object) -> RunDirectory:
    """Lock a run directory and save a checkpoint at each step."""
    run = RunDirectory(path, **options).lock()  # type: ignore[arg-type]
    for step in steps:
        weights = {"w": torch.full((3, 5), float(step))}
        optimizer = {"m": torch.ones(())}
        run.save_checkpoint(step, weights, optimizer, {"step": step})
    return run


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    weights = {"a.weight": torch.randn(7, 3), "b.bias": torch.randn(5).bfloat16(), "c": torch.randn(3, 7).T}
    optimizer = {"step": torch.tensor(41.0), "mean": torch.randn(2, 2, dtype=torch.float64)}
    counters = {"epoch": 3, "best": [0.1, 1 / 3], "seen": "é", "none": None, "worst": float("-inf")}
    with RunDirectory(tmp_path / "run").lock() as run:
        run.save_checkpoint(41, weights, optimizer, counters)
        checkpoint = run.latest_checkpoint()
    assert checkpoint is not None
    assert checkpoint.step == 41
    assert checkpoint.counters == counters
    for saved, loaded in ((weights, checkpoint.weights), (optimizer, checkpoint.optimizer)):
        assert loaded.keys() == saved.keys()
        for name, tensor in saved.items():
            assert torch.equal(loaded[name], tensor), name
            assert loaded[name].dtype == tensor.dtype, name


@pytest.mark.parametrize(("max_checkpoints", "remaining"), [(1, [9, 11]), (2, [9, 11]), (3, [5, 9, 11])])
def test_old_checkpoints_are_removed_and_at_least_two_stay(
    tmp_path: Path, max_checkpoints: int, remaining: list[int]
) -> None:
    with start_run(tmp_path / "run", 2, 5, 9, 11, max_checkpoints=max_checkpoints) as run:
        assert run.steps() == remaining


def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(tmp_path: Path) -> None:
    messages: list[str] = []
    with start_run(tmp_path, 2, 11, notify=messages.append) as run:
        (tmp_path / "checkpoints" / "step-11" / "optimizer.safetensors").write_bytes(b"cut")
        checkpoint = run.latest_checkpoint()
        assert checkpoint is not None
        assert checkpoint.step == 2
        assert (tmp_path / "checkpoints" / "step-11.bad").is_dir()
        assert "optimizer.safetensors: damaged" in messages[0]
        (tmp_path / "checkpoints" / "step-2" / "MANIFEST.json").unlink()
        assert run.latest_checkpoint() is None
        assert len(messages) == 2


def test_a_reader_without_the_lock_changes_nothing(tmp_path: Path) -> None:
    start_run(tmp_path, 2, 11).release()
    (tmp_path / "checkpoints" / "step-11" / "counters.json").unlink()
    checkpoint = RunDirectory(tmp_path).latest_checkpoint()
    assert checkpoint is not None
    assert checkpoint.step == 2
    assert RunDirectory(tmp_path).steps() == [2, 11]
    with pytest.raises(RuntimeError, match="lock"):
        RunDirectory(tmp_path).save_checkpoint(12, {}, {}, {})


def test_every_flipped_bit_is_detected(tmp_path: Path) -> None:
    messages: list[str] = []
    rng = random.Random(0)
    with start_run(tmp_path, 1, 2, notify=messages.append) as run:
        folder = tmp_path / "checkpoints" / "step-2"
        moved_aside = tmp_path / "checkpoints" / "step-2.bad"
        contents = {path: path.read_bytes() for path in folder.iterdir()}
        for index in range(1000):
            sizes = [len(content) for content in contents.values()]
            (path,) = rng.choices(list(contents), sizes)
            data = bytearray(contents[path])
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            checkpoint = run.latest_checkpoint()
            assert checkpoint is not None
            assert checkpoint.step == 1
            assert len(messages) == index + 1
            assert path.name in messages[-1]
            moved_aside.rename(folder)
            path.write_bytes(contents[path])
        checkpoint = run.latest_checkpoint()
        assert checkpoint is not None
        assert checkpoint.step == 2


def test_a_second_trainer_is_rejected_until_the_first_has_ended(tmp_path: Path) -> None:
    message = r"run is in use by another training \(process \d+ on .*--out"
    with RunDirectory(tmp_path / "run").lock(), pytest.raises(UsageError, match=message):
        RunDirectory(tmp_path / "run").lock()
    RunDirectory(tmp_path / "run").lock().release()


def test_the_lock_names_its_holder_only_while_it_is_held(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path).lock()
    assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()
    run.lock()
    run.release()
    assert (tmp_path / "run.lock").read_bytes() == b""
    RunDirectory(tmp_path).lock().release()


def test_the_record_of_a_dead_or_unknown_holder_is_no_obstacle(tmp_path: Path) -> None:
    for record in (b'{"pid": 1, "host": "elsewhere"}\n', b"not JSON", b"[]", b"\xff"):
        (tmp_path / "run.lock").write_bytes(record)
        RunDirectory(tmp_path).lock().release()
    with RunDirectory(tmp_path).lock():
        for record in (b"", b"not JSON", b"[]", b"{}", b"\xff"):
            (tmp_path / "run.lock").write_bytes(record)
            with pytest.raises(UsageError, match="in use by another training: wait for it"):
                RunDirectory(tmp_path).lock()


def test_a_lock_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.lock").mkdir()
    with pytest.raises(UsageError, match=r"run\.lock cannot be written \(is a directory"):
        RunDirectory(tmp_path).lock()


def test_the_log_is_truncated_to_a_step(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).lock() as run:
        run.truncate_log(0)
        events = [
            {"event": "plan"},
            {"step": 5, "loss": 0.5},
            {"step": 9},
            {"step": 9, "text": "é\u2028"},
            {"step": 15},
            {"event": "late"},
        ]
        for event in events:
            run.append_log(event)
        with open(tmp_path / "log.jsonl", "ab") as file:
            file.write(b'{"step": 2')  # a line that a crash cut off
        assert run.read_log() == events
        run.truncate_log(10)
        assert run.read_log() == events[:4]
        run.append_log({"step": 11})
        run.truncate_log(11)
        assert run.read_log() == [*events[:4], {"step": 11}]
        run.truncate_log(0)
        assert run.read_log() == events[:1]


def test_run_json_is_read_back_and_damage_is_named(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).lock() as run:
        assert run.read_run() == {}
        run.write_run(RUN)
        assert run.read_run() == RUN
        content = (tmp_path / "run.json").read_bytes()
        faults = [(b"{", "not JSON"), (b"[]", "object"), (b"\xff", "not JSON")]
        for old, new in ((b"3", b"7"), (b'"seed"', b'"sead"'), (b"\n }", b"\n}"), (b'"sha256"', b'"sha257"')):
            assert old in content
            faults.append((content.replace(old, new, 1), "damaged or edited: .*another --out|version"))
        for content, message in faults:
            (tmp_path / "run.json").write_bytes(content)
            with pytest.raises(CheckpointError, match=rf"run.json: .*{message}"):
                run.read_run()


@pytest.mark.parametrize("name", [*RUN, *(f"result.{name}" for name in RESULT)])
def test_a_part_of_run_json_that_is_missing_or_of_another_type_is_named(name: str, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for is_missing in (True, False):
        run = {**RUN, "result": {**RESULT}}
        parts, key = (run["result"], name.removeprefix("result.")) if "." in name else (run, name)
        parts[key] = None
        if is_missing:
            del parts[key]
        directory.write_run(run)  # with the digest of its content
        what = "is missing" if is_missing else "must be a"
        with pytest.raises(CheckpointError, match=rf"run\.json: {name} {what}.*: restore it, or start anew with"):
            directory.read_run()


@pytest.mark.parametrize(
    ("version", "advice"),
    [({}, "train the run again"), ({"version": 2}, "train the run again"), ({"version": 99}, "newer")],
)
def test_run_json_of_another_version_is_refused_with_advice(
    version: dict[str, int], advice: str, tmp_path: Path
) -> None:
    RunDirectory(tmp_path).write_run(RUN)
    assert json.loads((tmp_path / "run.json").read_text())["version"] == 3
    (tmp_path / "run.json").write_text(json.dumps({"config": {}, "chosen": {}, **version}))
    with pytest.raises(CheckpointError, match=rf"run.json: .*version.*this Regard reads version 3: .*{advice}"):
        RunDirectory(tmp_path).read_run()


def test_leftovers_of_ended_writers_are_removed_when_the_run_is_locked(tmp_path: Path) -> None:
    start_run(tmp_path, 1).release()
    (tmp_path / "checkpoints" / "step-2.tmp-99-ab").mkdir()
    (tmp_path / "checkpoints" / "step-2.tmp-99-ab" / "model.safetensors").write_text("half")
    (tmp_path / "run.json.tmp-99-ab").write_text("half")
    RunDirectory(tmp_path).lock().release()
    assert [path.name for path in tmp_path.rglob("*") if "tmp-" in path.name] == []


def test_the_kind_of_a_folder_is_detected(tmp_path: Path) -> None:
    assert folder_kind(tmp_path / "none") == "none"
    assert folder_kind(tmp_path) == "none"
    (tmp_path / "x.tmp-1-ab").mkdir()
    assert folder_kind(tmp_path) == "none"
    (tmp_path / "notes").write_text("")
    assert folder_kind(tmp_path) == "other"
    assert folder_kind(tmp_path / "notes") == "other"
    (tmp_path / "config.json").write_text("{}")
    assert folder_kind(tmp_path) == "model"
    RunDirectory(tmp_path).lock().release()
    assert folder_kind(tmp_path) == "run"
    with pytest.raises(UsageError, match="is a file"):
        RunDirectory(tmp_path / "notes").lock()


def test_a_run_whose_process_was_killed_is_known_to_be_interrupted(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:
        RunDirectory(tmp_path).lock()
        os._exit(0)  # without releasing the lock, as when it is killed
    os.waitpid(pid, 0)
    with RunDirectory(tmp_path).lock() as run:
        assert run.was_interrupted
        run.append_log({"step": 7})
    with RunDirectory(tmp_path).lock() as run:  # the last one ended by itself
        assert not run.was_interrupted
        assert run.last_step() == 7
