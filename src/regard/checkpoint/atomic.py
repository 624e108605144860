"""Crash-safe writing: temporary name, fsync, manifest with digests, rename, fsync of the folder.

    write_file      replace one file atomically
    append_lines    append lines to a log
    write_folder    replace a folder atomically and write its manifest
    publish         replace several files of a folder together; its other files stay
    verify_folder   compare a folder with its manifest

A crash at any point leaves the old or the new content, even when the disk loses every write it has not confirmed.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from regard.checkpoint.disk import DISK, Disk, check_free_space, translate_os_errors
from regard.checkpoint.json_parser import parse_json
from regard.errors import CheckpointError
from regard.formatting import format_bytes

MANIFEST = "MANIFEST.json"
STAGING = "model.new"  # subfolder of a set being published; while it is complete, readers use it
_TEMPORARY = ".tmp-"
_REPLACED = ".old-"
_MAX_JSON_BYTES = 8 << 20
_BYTES_PER_VALUE = 16  # of a JSON file's limit


class Sink(Protocol):
    """Destination of a file's bytes."""

    def write(self, data: bytes, /) -> int: ...


Content = bytes | Callable[[Sink], object]  # a file's bytes, or a function that writes them


def write_file(path: Path, content: Content, *, size: int = 0, disk: Disk = DISK) -> None:
    """Write a file atomically: readers see the old content or the new, never a mixture.

    `size` is the number of bytes that a content function writes; the check of free space needs it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder, "note.txt"), b"new")
    ...     Path(folder, "note.txt").read_bytes()
    b'new'
    """
    size += len(content) if isinstance(content, bytes) else 0
    with translate_os_errors(path, size, disk):
        _make_parents(path.parent, disk)
        check_free_space(path, size, disk)
        temporary = _temporary_path(path)
        try:
            _create_file(temporary, content, disk)
            disk.rename(temporary, path)
        except BaseException:
            remove(temporary, disk=disk)
            raise
        disk.sync_folder(path.parent)


def append_lines(path: Path, lines: Iterable[str], *, disk: Disk = DISK) -> None:
    """Append lines to a file; they survive a power loss only after `sync_file`."""
    data = "".join(f"{line}\n" for line in lines).encode()
    with translate_os_errors(path, len(data), disk):
        is_new = not path.exists()
        with disk.append(path) as file:
            file.write(data)
        if is_new:
            disk.sync_folder(path.parent)


def sync_file(path: Path, *, disk: Disk = DISK) -> None:
    """Flush appended lines to the disk so that they survive a power loss."""
    with translate_os_errors(path, 0, disk), disk.append(path) as file:
        disk.sync(file)


def make_folder(path: Path, *, disk: Disk = DISK) -> None:
    """Create a folder and its missing parents so that they survive a power loss."""
    with translate_os_errors(path, 0, disk):
        _make_parents(path, disk)


def write_folder(target: Path, files: Mapping[str, Content], *, size: int = 0, disk: Disk = DISK) -> None:
    """Write a folder and its manifest atomically; an existing folder of that name is replaced.

    A name may contain one subfolder; the manifest has the files of the folder itself.

    `size` is the number of bytes that content functions write; the check of free space needs it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_folder(Path(folder, "step-7"), {"counters.json": b"{}"})
    ...     verify_folder(Path(folder, "step-7"))
    ['counters.json']
    """
    size += sum(len(content) for content in files.values() if isinstance(content, bytes))
    with translate_os_errors(target, size, disk):
        _make_parents(target.parent, disk)
        _remove_leftovers(target, disk)
        check_free_space(target, size, disk)
        temporary = _temporary_path(target)
        try:
            disk.make_folder(temporary)
            subfolders = sorted({(temporary / name).parent for name in files} - {temporary})
            for subfolder in subfolders:
                disk.make_folder(subfolder)
            entries = {name: _create_file(temporary / name, content, disk) for name, content in files.items()}
            listed = {name: entry for name, entry in entries.items() if "/" not in name}
            _create_file(temporary / MANIFEST, _serialize_manifest(listed), disk)
            for path in (*subfolders, temporary):
                disk.sync_folder(path)
            replaced = _rename_existing(target, disk)
            disk.rename(temporary, target)
        except BaseException:
            remove(temporary, disk=disk)
            recover(target.parent, disk=disk, only=target.name)
            raise
        disk.sync_folder(target.parent)
        if replaced is not None:
            remove(replaced, disk=disk)


def publish(folder: Path, files: Mapping[str, Content], *, size: int = 0, disk: Disk = DISK) -> None:
    """Replace a set of files of a folder together and write a manifest; its other files stay.

    The set is first written to the subfolder `STAGING`, which readers use from then on, and then linked into the
    folder. After a crash `complete_publish` finishes the move; `published_path` says which folder to read.
    """
    write_folder(folder / STAGING, files, size=size, disk=disk)
    complete_publish(folder, disk=disk)


def complete_publish(folder: Path, *, disk: Disk = DISK) -> None:
    """Link the staged files into their folder. An incomplete staging folder is only removed: its files are in place."""
    staging = folder / STAGING
    if published_path(folder) != staging:
        remove(staging, disk=disk)
        return
    names = verify_folder(staging)
    with translate_os_errors(folder, 0, disk):
        obsolete_names = set(_manifest_names(folder)) - set(names)
        for name in obsolete_names:
            remove(folder / name, disk=disk)
        if obsolete_names:
            disk.sync_folder(folder)  # the new manifest would not name them: after a power loss they would stay
        for name in [*names, MANIFEST]:
            temporary = _temporary_path(folder / name)
            _link_or_copy(staging / name, temporary, disk)
            disk.rename(temporary, folder / name)
        disk.sync_folder(folder)
        remove(staging, disk=disk)


def published_path(folder: Path) -> Path:
    """Folder to read a published set from: the staging folder while it is complete, else the folder itself."""
    staging = folder / STAGING
    names = _manifest_names(staging)
    is_complete = names and all((staging / name).is_file() for name in names)
    return staging if is_complete else folder


def verify_folder(path: Path, names: Iterable[str] | None = None) -> list[str]:
    """Compare a folder's files (or only `names`) with its manifest; return all names that the manifest lists.

    A missing or different file raises `CheckpointError` with its name and the damage.
    """
    entries = read_manifest(path)
    names_to_check = entries if names is None else [name for name in names if name in entries]
    for name in names_to_check:
        _verify_file(path / name, entries[name])
    return list(entries)


def _verify_file(file: Path, entry: Mapping[str, Any]) -> None:
    """Compare a file's size and digest with its manifest entry."""
    try:
        is_special = file.exists() and not file.is_file()
        size = -1 if is_special else file.stat().st_size
        if size != entry["size"]:
            raise CheckpointError(f"{file}: damaged: {size} bytes, {entry['size']} expected by {MANIFEST}")
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from None
    if digest_file(file) != entry["sha256"]:
        raise CheckpointError(f"{file}: damaged: its content differs from what {MANIFEST} records")


def digest_file(file: Path) -> str:
    """SHA-256 of a regular file."""
    try:
        if file.exists() and not file.is_file():
            raise CheckpointError(f"{file}: not a file")
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from None


def has_manifest(path: Path) -> bool:
    """Whether a folder has a manifest: it was written by Regard, or is a copy of one that was."""
    return os.path.exists(path / MANIFEST)  # which is False for a name that no file can have


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Read size and SHA-256 of each file that a folder's manifest lists, after verifying the manifest itself."""
    file = path / MANIFEST
    data = read_bytes(file, max_bytes=_MAX_JSON_BYTES)
    try:
        entries = json.loads(data)["files"]
        is_plain = all(Path(name).name == name and type(entry["size"]) is int for name, entry in entries.items())
        is_intact = is_plain and data == _serialize_manifest(entries)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_intact = False
    if not is_intact:
        raise CheckpointError(f"{file}: damaged: not a manifest as Regard writes it")
    return entries  # type: ignore[no-any-return]


def read_bytes(path: Path, *, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes`, or raise `CheckpointError` with its name."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would block forever
            raise CheckpointError(f"{path}: not a file")
        size = path.stat().st_size
        if size > max_bytes:
            raise CheckpointError(f"{path}: {format_bytes(size)}; at most {format_bytes(max_bytes)} are allowed")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:  # half a surrogate pair, or a null character
        raise CheckpointError(f"{str(path)!a:.200}: cannot be read: not a file name") from None


def json_bytes(values: Mapping[str, Any] | list[Any]) -> bytes:
    """Serialize values as the content of a JSON file.

    >>> json_bytes({"step": 7})
    b'{\\n "step": 7\\n}\\n'
    """
    return json.dumps(values, indent=1, ensure_ascii=False).encode() + b"\n"


def read_json(path: Path, *, max_bytes: int = _MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON file that holds an object, or raise `CheckpointError` with its name."""
    values = read_json_value(path, max_bytes=max_bytes)
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return values


def read_json_value(path: Path, *, max_bytes: int = _MAX_JSON_BYTES) -> object:
    """Read a JSON file, or raise `CheckpointError` with its name; see `parse_json` for what is refused."""
    data = read_bytes(path, max_bytes=max_bytes)
    try:
        return parse_json(data, max_values=max_bytes // _BYTES_PER_VALUE)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def check_version(path: Path, version: object, supported: int, *, advice: str) -> None:
    """Raise `CheckpointError` where a file has another format version; `advice` is for an older one.

    >>> check_version(Path("run.json"), 1, 2, advice="train again")
    Traceback (most recent call last):
    regard.errors.CheckpointError: run.json: version 1; this Regard reads version 2: train again
    """
    if type(version) is int and version == supported:
        return
    is_newer = type(version) is int and version > supported
    description = "no version" if version is None else f"version {version!r:.60}"
    raise CheckpointError(
        f"{path}: {description}; this Regard reads version {supported}: {'use a newer Regard' if is_newer else advice}"
    )


def is_temporary(path: Path) -> bool:
    """Whether a path has the name of an unfinished or replaced file."""
    return _TEMPORARY in path.name or _REPLACED in path.name


def remove(path: Path, *, disk: Disk = DISK) -> None:
    """Remove a file, or a folder with its content, as far as possible; a missing path is no error."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            for inner in sorted(path.iterdir()):
                remove(inner, disk=disk)
            disk.remove_folder(path)
        elif path.is_symlink() or path.exists():
            disk.remove(path)


def move_aside(path: Path, ending: str, *, disk: Disk = DISK) -> Path:
    """Append an ending to the name of a file or folder; an earlier one of that name is removed."""
    aside = path.with_name(path.name + ending)
    with translate_os_errors(path, 0, disk):
        remove(aside, disk=disk)
        disk.rename(path, aside)
    return aside


def remove_folder_atomically(path: Path, *, disk: Disk = DISK) -> None:
    """Rename a folder, then remove it, so that no reader sees it partly removed."""
    with translate_os_errors(path, 0, disk):
        aside = _temporary_path(path)
        disk.rename(path, aside)
        remove(aside, disk=disk)


def recover(folder: Path, *, disk: Disk = DISK, only: str = "") -> None:
    """Remove temporary files of interrupted writes, and restore content that they renamed but did not replace.

    Only the holder of the folder's lock may call this: the files of a running writer look the same.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        name, separator, _ = path.name.partition(_REPLACED)
        if separator and (not only or name == only):
            if (folder / name).exists():
                remove(path, disk=disk)
            else:
                with translate_os_errors(path, 0, disk):
                    disk.rename(path, folder / name)
                    disk.sync_folder(folder)
        elif _TEMPORARY in path.name and not only:
            remove(path, disk=disk)


class _DigestSink:
    """Sink that writes to a file, counting the bytes and computing their SHA-256."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes, /) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self.file.write(data)


def _create_file(path: Path, content: Content, disk: Disk) -> dict[str, Any]:
    """Write a file that must not exist yet, sync it, and return its manifest entry."""
    with disk.create(path) as file:
        sink = _DigestSink(file)
        if isinstance(content, bytes):
            sink.write(content)
        else:
            content(sink)
        disk.sync(file)
    return {"size": sink.size, "sha256": sink.digest.hexdigest()}


def _link_or_copy(source: Path, target: Path, disk: Disk) -> None:
    """Hard-link a file, or copy it where the file system has no links."""
    try:
        disk.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        with open(source, "rb") as opened:
            _create_file(target, lambda sink: shutil.copyfileobj(opened, sink), disk)


def _serialize_manifest(entries: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Serialize a manifest. Its own digest and its canonical form make any damage detectable."""
    files = json.dumps(entries, indent=1, sort_keys=True)
    record = {"version": 1, "files": entries, "sha256": hashlib.sha256(files.encode()).hexdigest()}
    return json.dumps(record, indent=1, sort_keys=True).encode() + b"\n"


def _manifest_names(folder: Path) -> list[str]:
    """Names of the files in a folder's manifest; empty where it is missing or damaged."""
    try:
        return list(read_manifest(folder))
    except CheckpointError:
        return []


def _rename_existing(target: Path, disk: Disk) -> Path | None:
    """Rename a folder that is about to be replaced; return its new path."""
    if not target.exists():
        return None
    aside = target.with_name(f"{target.name}{_REPLACED}{_nonce()}")
    disk.rename(target, aside)
    return aside


def _make_parents(path: Path, disk: Disk) -> None:
    if path.is_dir():
        return
    _make_parents(path.parent, disk)
    try:
        disk.make_folder(path)
    except FileExistsError:
        if not path.is_dir():  # a folder: another process created it first
            raise
    disk.sync_folder(path.parent)


def _remove_leftovers(target: Path, disk: Disk) -> None:
    """Remove temporary folders of this target whose writer process has ended."""
    for path in target.parent.glob(glob.escape(target.name + _TEMPORARY) + "*"):
        writer_pid = path.name.rpartition(_TEMPORARY)[2].partition("-")[0]
        if writer_pid.isdecimal() and not _is_running(int(writer_pid)):
            remove(path, disk=disk)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _temporary_path(path: Path) -> Path:
    return path.with_name(f"{path.name}{_TEMPORARY}{_nonce()}")


def _nonce() -> str:
    return f"{os.getpid()}-{secrets.token_hex(4)}"
