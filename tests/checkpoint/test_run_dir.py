from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
import torch

from regard.checkpoint.run_dir import RunDirectory, folder_kind
from regard.errors import CheckpointError, UsageError


def saved(path: Path, *steps: int, **named: object) -> RunDirectory:
    run = RunDirectory(path, **named).lock()  # type: ignore[arg-type]
    for step in steps:
        run.save_checkpoint(step, {"w": torch.full((3, 5), float(step))}, {"m": torch.ones(())}, {"step": step})
    return run


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    weights = {"a.weight": torch.randn(7, 3), "b.bias": torch.randn(5).bfloat16(), "c": torch.randn(3, 7).T}
    optimizer = {"step": torch.tensor(41.0), "mean": torch.randn(2, 2, dtype=torch.float64)}
    counters = {"epoch": 3, "best": [0.1, 1 / 3], "seen": "é", "none": None, "worst": float("-inf")}
    with RunDirectory(tmp_path / "run").lock() as run:
        run.save_checkpoint(41, weights, optimizer, counters)
        found = run.latest_checkpoint()
    assert found is not None
    assert (found.step, found.counters) == (41, counters)
    for given, read in ((weights, found.weights), (optimizer, found.optimizer)):
        assert given.keys() == read.keys()
        assert all(torch.equal(given[name], read[name]) and given[name].dtype == read[name].dtype for name in given)


@pytest.mark.parametrize(("keep", "left"), [(1, [9, 11]), (2, [9, 11]), (3, [5, 9, 11])])
def test_old_checkpoints_go_and_at_least_two_stay(tmp_path: Path, keep: int, left: list[int]) -> None:
    with saved(tmp_path / "run", 2, 5, 9, 11, keep=keep) as run:
        assert run.steps() == left


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path) -> None:
    told: list[str] = []
    with saved(tmp_path, 2, 11, notify=told.append) as run:
        (tmp_path / "checkpoints" / "step-11" / "optimizer.safetensors").write_bytes(b"cut")
        found = run.latest_checkpoint()
        assert found is not None
        assert found.step == 2
        assert (tmp_path / "checkpoints" / "step-11.bad").is_dir()
        assert "optimizer.safetensors: damaged" in told[0]
        (tmp_path / "checkpoints" / "step-2" / "MANIFEST.json").unlink()
        assert run.latest_checkpoint() is None
        assert len(told) == 2


def test_a_reader_without_the_lock_moves_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 2, 11).release()
    (tmp_path / "checkpoints" / "step-11" / "counters.json").unlink()
    found = RunDirectory(tmp_path).latest_checkpoint()
    assert found is not None
    assert found.step == 2
    assert RunDirectory(tmp_path).steps() == [2, 11]
    with pytest.raises(RuntimeError, match="lock"):
        RunDirectory(tmp_path).save_checkpoint(12, {}, {}, {})


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    told: list[str] = []
    chance = random.Random(0)
    with saved(tmp_path, 1, 2, notify=told.append) as run:
        folder, bad = tmp_path / "checkpoints" / "step-2", tmp_path / "checkpoints" / "step-2.bad"
        contents = {path: path.read_bytes() for path in folder.iterdir()}
        for number in range(1000):
            path = chance.choices(list(contents), [len(data) for data in contents.values()])[0]
            data = bytearray(contents[path])
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
            found = run.latest_checkpoint()
            assert found is not None
            assert found.step == 1
            assert len(told) == number + 1
            assert path.name in told[-1]
            bad.rename(folder)
            path.write_bytes(contents[path])
        newest = run.latest_checkpoint()
        assert newest is not None
        assert newest.step == 2


def test_a_second_trainer_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    told = r"run is in use by another training \(process \d+ on .*--out"
    with RunDirectory(tmp_path / "run").lock(), pytest.raises(UsageError, match=told):
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


def test_the_log_is_cut_back_to_a_step(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).lock() as run:
        run.truncate_log(0)
        lines = [{"event": "plan"}, {"step": 5, "loss": 0.5}, {"step": 9}, {"step": 9, "said": "é\u2028"}, {"step": 15}]
        for line in [*lines, {"event": "late"}]:
            run.append_log(line)
        with open(tmp_path / "log.jsonl", "ab") as file:
            file.write(b'{"step": 2')
        assert run.read_log() == [*lines, {"event": "late"}]
        run.truncate_log(10)
        assert run.read_log() == lines[:4]
        run.append_log({"step": 11})
        run.truncate_log(11)
        assert run.read_log() == [*lines[:4], {"step": 11}]
        run.truncate_log(0)
        assert run.read_log() == lines[:1]


def test_run_json_is_kept_and_damage_is_named(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).lock() as run:
        assert run.read_run() == {}
        run.write_run({"config": {"seed": 3}, "data": "é"})
        assert run.read_run() == {"config": {"seed": 3}, "data": "é"}
        for content, told in ((b"{", "not JSON"), (b"[]", "object"), (b"\xff", "not JSON")):
            (tmp_path / "run.json").write_bytes(content)
            with pytest.raises(CheckpointError, match=rf"run.json: .*{told}"):
                run.read_run()


def test_leftovers_of_dead_writers_go_when_the_run_is_opened(tmp_path: Path) -> None:
    saved(tmp_path, 1).release()
    (tmp_path / "checkpoints" / "step-2.tmp-99-ab").mkdir()
    (tmp_path / "checkpoints" / "step-2.tmp-99-ab" / "model.safetensors").write_text("half")
    (tmp_path / "run.json.tmp-99-ab").write_text("half")
    RunDirectory(tmp_path).lock().release()
    assert {path.name for path in tmp_path.rglob("*") if "tmp-" in path.name} == set()


def test_what_a_folder_holds_is_told(tmp_path: Path) -> None:
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
