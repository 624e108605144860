"""Crash-safe writing: atomic replacement, manifests, recovery and error messages."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from regard.checkpoint import atomic
from regard.checkpoint.disk import Disk
from regard.errors import CheckpointError, DiskError, UsageError


def list_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "subfolder" / "note"

    def write_in_two_parts(sink: atomic.Sink) -> None:
        sink.write(b"n")
        sink.write(b"ew")

    atomic.write_file(path, b"old")
    atomic.write_file(path, write_in_two_parts)
    assert path.read_bytes() == b"new"
    assert list_names(path.parent) == {"note"}


def test_a_failed_write_leaves_the_old_content(tmp_path: Path) -> None:
    atomic.write_file(tmp_path / "note", b"old")
    atomic.write_folder(tmp_path / "folder", {"a": b"old"})

    def write_half(sink: atomic.Sink) -> None:
        sink.write(b"half")
        raise KeyboardInterrupt

    for write in (
        lambda: atomic.write_file(tmp_path / "note", write_half),
        lambda: atomic.write_folder(tmp_path / "folder", {"a": write_half}),
        lambda: atomic.publish(tmp_path, {"note": write_half}),
    ):
        with pytest.raises(KeyboardInterrupt):
            write()
    assert (tmp_path / "note").read_bytes() == b"old"
    assert (tmp_path / "folder" / "a").read_bytes() == b"old"
    assert list_names(tmp_path) == {"note", "folder"}


def test_a_folder_has_a_manifest_and_is_replaced_atomically(tmp_path: Path) -> None:
    folder = tmp_path / "step-3"
    atomic.write_folder(folder, {"a": b"1", "b": b"2"})
    atomic.write_folder(folder, {"a": b"22"})
    assert list_names(folder) == {"a", atomic.MANIFEST}
    assert list_names(tmp_path) == {"step-3"}
    assert atomic.read_manifest(folder)["a"]["size"] == 2
    assert atomic.verify_folder(folder) == ["a"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "a").write_bytes(b"1x"), "a: damaged: 2 bytes"),
        (lambda folder: (folder / "a").write_bytes(b"2"), "a: damaged: its content"),
        (lambda folder: (folder / "a").unlink(), "a: cannot be read"),
        (lambda folder: (folder / atomic.MANIFEST).unlink(), "MANIFEST.json: cannot be read"),
        (lambda folder: (folder / atomic.MANIFEST).write_bytes(b"{}"), "MANIFEST.json: damaged"),
        (lambda folder: (folder / atomic.MANIFEST).write_bytes(b"[" * 100_000), "MANIFEST.json: damaged"),
    ],
)
def test_a_damaged_or_missing_file_of_a_folder_is_named(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "folder"
    atomic.write_folder(folder, {"a": b"1"})
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        atomic.verify_folder(folder)


def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    atomic.write_folder(folder, {"a": b"1"})
    (folder / "a").rename(tmp_path / "secret")
    entries = {"../secret": atomic.read_manifest(folder)["a"]}
    manifest = atomic._serialize_manifest(entries)  # its own digest is right, and so is that of the file
    (folder / atomic.MANIFEST).write_bytes(manifest)
    with pytest.raises(CheckpointError, match="MANIFEST.json: damaged"):
        atomic.verify_folder(folder)


def test_publishing_replaces_a_set_and_leaves_other_files(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("kept")
    atomic.publish(tmp_path, {"config.json": b"1", "extra.json": b"x"})
    atomic.publish(tmp_path, {"config.json": b"2"})
    assert list_names(tmp_path) == {"config.json", "log.jsonl", atomic.MANIFEST}
    assert atomic.published_path(tmp_path) == tmp_path
    assert atomic.verify_folder(tmp_path) == ["config.json"]


def test_a_staged_set_is_read_from_its_folder_and_completed_later(tmp_path: Path) -> None:
    atomic.publish(tmp_path, {"config.json": b"1"})
    atomic.write_folder(tmp_path / atomic.STAGING, {"config.json": b"2"})
    assert (atomic.published_path(tmp_path) / "config.json").read_bytes() == b"2"
    atomic.complete_publish(tmp_path)
    assert atomic.published_path(tmp_path) == tmp_path
    assert (tmp_path / "config.json").read_bytes() == b"2"
    assert list_names(tmp_path) == {"config.json", atomic.MANIFEST}


class DiskWithoutLinks(Disk):
    def link(self, old: Path, new: Path) -> None:
        raise OSError(errno.EPERM, "links are not supported")


def test_a_set_is_published_where_the_file_system_has_no_links(tmp_path: Path) -> None:
    atomic.publish(tmp_path, {"config.json": b"1"}, disk=DiskWithoutLinks())
    assert atomic.verify_folder(tmp_path) == ["config.json"]
    assert list_names(tmp_path) == {"config.json", atomic.MANIFEST}


class NearlyFullDisk(Disk):
    def free(self, folder: Path) -> int:
        return 1100


def test_free_space_is_checked_before_writing(tmp_path: Path) -> None:
    atomic.write_file(tmp_path / "a", bytes(900), disk=NearlyFullDisk())
    for write in (
        lambda: atomic.write_file(tmp_path / "b", bytes(1000), disk=NearlyFullDisk()),
        lambda: atomic.write_folder(tmp_path / "b", {"c": lambda sink: 0}, size=1000, disk=NearlyFullDisk()),
    ):
        with pytest.raises(DiskError, match=r"b was not written: 1.1 KB free, 1.2 KB needed"):
            write()
    assert list_names(tmp_path) == {"a"}


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    path = tmp_path / "file" / "run" / "x"
    for write in (
        lambda: atomic.write_file(path, b""),
        lambda: atomic.write_folder(path, {"a": b""}),
    ):
        with pytest.raises(UsageError, match=r"file/run/x cannot be written .*choose a folder"):
            write()
    with pytest.raises(UsageError, match="cannot be written"):
        atomic.write_file(Path("/proc/nowhere/x"), b"")


class ReadOnlyDisk(Disk):
    def create(self, path: Path) -> BinaryIO:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_a_folder_without_write_permission_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x cannot be written \(permission denied"):
        atomic.write_file(tmp_path / "x", b"", disk=ReadOnlyDisk())


def test_leftovers_of_an_ended_writer_are_removed_and_those_of_a_running_one_stay(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getpid()):
        (tmp_path / f"x.tmp-{pid}-ab").mkdir()
    atomic.write_folder(tmp_path / "x", {"a": b""})
    assert list_names(tmp_path) == {"x", f"x.tmp-{os.getpid()}-ab"}


def test_special_and_oversized_files_are_rejected_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 40)
    for name, message in (("pipe", "not a file"), ("folder", "not a file"), ("huge", "at most")):
        with pytest.raises(CheckpointError, match=f"{name}: .*{message}"):
            atomic.read_json(tmp_path / name)


def test_recovery_restores_renamed_content_and_removes_the_rest(tmp_path: Path) -> None:
    (tmp_path / "best.old-1-ab").mkdir()
    (tmp_path / "best.old-1-ab" / "content").write_text("yes")
    (tmp_path / "best.tmp-1-cd").mkdir()
    (tmp_path / "run.json.tmp-1-ef").write_text("half")
    (tmp_path / "other").write_text("mine")
    atomic.recover(tmp_path)
    assert list_names(tmp_path) == {"best", "other"}
    assert (tmp_path / "best" / "content").exists()
