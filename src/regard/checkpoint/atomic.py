"""The one place that writes: temporary name, fsync, manifest with digests, rename, fsync of the folder.

    write_file      one file, replaced whole or not at all
    append_lines    lines at the end of a log
    write_folder    a folder that appears whole, with a manifest, or not at all
    publish         several files of a folder that also holds other things, replaced all together
    verify_folder   compare a folder with its manifest

A crash at any point, even one that loses what the disk had not yet confirmed, leaves the old or the new content.
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
from regard.errors import CheckpointError
from regard.formatting import format_bytes

MANIFEST = "MANIFEST.json"
NEW = "model.new"  # a published set on its way into its folder; while it exists, it is the one to read
_TEMPORARY, _REPLACED = ".tmp-", ".old-"
_JSON_LIMIT = 64 << 20  # bytes of a JSON file


class Sink(Protocol):
    """Where content is written to."""

    def write(self, data: bytes, /) -> int: ...


Content = bytes | Callable[[Sink], object]  # a file's bytes, or what writes them


def write_file(path: Path, content: Content, *, size: int = 0, disk: Disk = DISK) -> None:
    """Write a file whole: readers see the old content or the new, never a part.

    `size` is what content given as a function will take, for the check of free space.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder, "note.txt"), b"seen")
    ...     Path(folder, "note.txt").read_bytes()
    b'seen'
    """
    size += len(content) if isinstance(content, bytes) else 0
    with translate_os_errors(path, size, disk):
        _make_parents(path.parent, disk)
        check_free_space(path, size, disk)
        temporary = _temporary(path)
        try:
            _write_new(temporary, content, disk)
            disk.rename(temporary, path)
        except BaseException:
            remove(temporary, disk=disk)
            raise
        disk.sync_folder(path.parent)


def append_lines(path: Path, lines: Iterable[str], *, disk: Disk = DISK) -> None:
    """Add lines to the end of a file; `sync_file` makes them last through a power loss."""
    data = "".join(f"{line}\n" for line in lines).encode()
    with translate_os_errors(path, len(data), disk):
        new = not path.exists()
        with disk.append(path) as file:
            file.write(data)
        if new:
            disk.sync_folder(path.parent)


def sync_file(path: Path, *, disk: Disk = DISK) -> None:
    """Make what was appended to a file last through a power loss."""
    with translate_os_errors(path, 0, disk), disk.append(path) as file:
        disk.sync(file)


def make_folder(path: Path, *, disk: Disk = DISK) -> None:
    """Make a folder and its parents, unless they exist, so that they last through a power loss."""
    with translate_os_errors(path, 0, disk):
        _make_parents(path, disk)


def write_folder(target: Path, files: Mapping[str, Content], *, size: int = 0, disk: Disk = DISK) -> None:
    """Write a folder with its manifest so that it appears whole or not at all; one of that name is replaced.

    `size` is what the files given as functions will take, for the check of free space.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_folder(Path(folder, "step-7"), {"counters.json": b"{}"})
    ...     verify_folder(Path(folder, "step-7"))
    ['counters.json']
    """
    size += sum(len(content) for content in files.values() if isinstance(content, bytes))
    with translate_os_errors(target, size, disk):
        _make_parents(target.parent, disk)
        _clear_dead(target, disk)
        check_free_space(target, size, disk)
        temporary = _temporary(target)
        try:
            disk.make_folder(temporary)
            entries = {name: _write_new(temporary / name, content, disk) for name, content in files.items()}
            _write_new(temporary / MANIFEST, _manifest(entries), disk)
            disk.sync_folder(temporary)
            replaced = _set_aside(target, disk)
            disk.rename(temporary, target)
        except BaseException:
            remove(temporary, disk=disk)
            recover(target.parent, disk=disk, only=target.name)
            raise
        disk.sync_folder(target.parent)
        if replaced is not None:
            remove(replaced, disk=disk)


def publish(folder: Path, files: Mapping[str, Content], *, size: int = 0, disk: Disk = DISK) -> None:
    """Replace a set of files of a folder all together, with a manifest; its other files stay.

    The set is first written as a folder of its own inside, which counts as the content from then on, then linked to
    its place. After a crash `finish_publishing` completes what was begun; readers ask `published` where to read.
    """
    write_folder(folder / NEW, files, size=size, disk=disk)
    complete_publish(folder, disk=disk)


def complete_publish(folder: Path, *, disk: Disk = DISK) -> None:
    """Put a written set of files in its place, if there is one; one that is not whole was in place before."""
    new = folder / NEW
    if published_path(folder) != new:
        remove(new, disk=disk)
        return
    names = verify_folder(new)
    with translate_os_errors(folder, 0, disk):
        for gone in set(_listed(folder)) - set(names):
            remove(folder / gone, disk=disk)
        for name in [*names, MANIFEST]:
            temporary = _temporary(folder / name)
            _copy(new / name, temporary, disk)
            disk.rename(temporary, folder / name)
        disk.sync_folder(folder)
        remove(new, disk=disk)


def published_path(folder: Path) -> Path:
    """Return the folder that a published set is to be read from: the folder itself, or the set not yet in place."""
    new = folder / NEW
    entries = _listed(new)
    whole = entries and all((new / name).is_file() for name in entries)
    return new if whole else folder


def verify_folder(path: Path, names: Iterable[str] | None = None) -> list[str]:
    """Return the names in a folder's manifest after comparing the files (or only those named) with it.

    A file that is missing or differs raises `CheckpointError` with its name and what is wrong with it.
    """
    entries = read_manifest(path)
    for name in entries if names is None else [name for name in names if name in entries]:
        file, entry = path / name, entries[name]
        try:
            found = file.stat().st_size if file.is_file() or not file.exists() else -1
            if found != entry["size"]:
                raise CheckpointError(f"{file}: damaged: {found} bytes, {entry['size']} expected by {MANIFEST}")
            with open(file, "rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from None
        if digest != entry["sha256"]:
            raise CheckpointError(f"{file}: damaged: its content differs from what {MANIFEST} records")
    return list(entries)


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of each file that a folder's manifest lists; the manifest itself is checked too."""
    file = path / MANIFEST
    data = read_bytes(file, max_bytes=_JSON_LIMIT)
    try:
        entries = json.loads(data)["files"]
        plain = all(Path(name).name == name and type(entry["size"]) is int for name, entry in entries.items())
        whole = plain and data == _manifest(entries)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise CheckpointError(f"{file}: damaged: not a manifest as it was written")
    return entries  # type: ignore[no-any-return]


def read_bytes(path: Path, *, max_bytes: int) -> bytes:
    """Return a plain file's content if it is not larger than can be meant, or raise `CheckpointError` with its name."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise CheckpointError(f"{path}: not a file")
        if path.stat().st_size > max_bytes:
            raise CheckpointError(
                f"{path}: {format_bytes(path.stat().st_size)}; at most {format_bytes(max_bytes)} are read here"
            )
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None


def json_bytes(values: Mapping[str, Any] | list[Any]) -> bytes:
    """Return a JSON file's content.

    >>> json_bytes({"step": 7})
    b'{\\n "step": 7\\n}\\n'
    """
    return json.dumps(values, indent=1, ensure_ascii=False).encode() + b"\n"


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds, or raise `CheckpointError` with its name."""
    values = read_json_value(path)
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: a JSON object is expected")
    return values


def read_json_value(path: Path) -> object:
    """Return what a JSON file holds, or raise `CheckpointError` with its name."""
    try:
        values: object = json.loads(read_bytes(path, max_bytes=_JSON_LIMIT))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    return values


def is_temporary(path: Path) -> bool:
    """Whether a name is one that a writer uses until its work is whole."""
    return _TEMPORARY in path.name or _REPLACED in path.name


def remove(path: Path, *, disk: Disk = DISK) -> None:
    """Remove a file or a folder with all it holds, as far as that is possible; what is not there is no fault."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            for inner in sorted(path.iterdir()):
                remove(inner, disk=disk)
            disk.remove_folder(path)
        elif path.is_symlink() or path.exists():
            disk.remove(path)


def move_aside(path: Path, ending: str, *, disk: Disk = DISK) -> Path:
    """Rename a file or folder to the same name with an ending; an earlier one of that name is removed."""
    aside = path.with_name(path.name + ending)
    with translate_os_errors(path, 0, disk):
        remove(aside, disk=disk)
        disk.rename(path, aside)
    return aside


def remove_folder_atomically(path: Path, *, disk: Disk = DISK) -> None:
    """Remove a folder so that it is never seen half removed."""
    with translate_os_errors(path, 0, disk):
        aside = _temporary(path)
        disk.rename(path, aside)
        remove(aside, disk=disk)


def recover(folder: Path, *, disk: Disk = DISK, only: str = "") -> None:
    """Remove what dead writers left in a folder, and put back what they had set aside and not replaced.

    For the one who holds the folder's lock: a living writer's temporary files are not told from a dead one's.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        name, mark, _ = path.name.partition(_REPLACED)
        if mark and (not only or name == only):
            if (folder / name).exists():
                remove(path, disk=disk)
            else:
                with translate_os_errors(path, 0, disk):
                    disk.rename(path, folder / name)
                    disk.sync_folder(folder)
        elif _TEMPORARY in path.name and not only:
            remove(path, disk=disk)


class _DigestSink:
    """A sink that counts and digests what passes through."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size, self.digest = file, 0, hashlib.sha256()

    def write(self, data: bytes, /) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self.file.write(data)


def _write_new(path: Path, content: Content, disk: Disk) -> dict[str, Any]:
    """Write a file that must not exist yet, wait for the disk, and return its manifest entry."""
    with disk.create(path) as file:
        sink = _DigestSink(file)
        if isinstance(content, bytes):
            sink.write(content)
        else:
            content(sink)
        disk.sync(file)
    return {"size": sink.size, "sha256": sink.digest.hexdigest()}


def _copy(source: Path, target: Path, disk: Disk) -> None:
    """Give a file a second name, or copy it where the file system has no links."""
    try:
        disk.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        with open(source, "rb") as opened:
            _write_new(target, lambda sink: shutil.copyfileobj(opened, sink), disk)


def _manifest(entries: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return a manifest's bytes; its own digest in it and one way to write it make every damage visible."""
    files = json.dumps(entries, indent=1, sort_keys=True)
    record = {"version": 1, "files": entries, "sha256": hashlib.sha256(files.encode()).hexdigest()}
    return json.dumps(record, indent=1, sort_keys=True).encode() + b"\n"


def _listed(folder: Path) -> list[str]:
    """Return what a folder's manifest lists; nothing when there is none that can be read."""
    try:
        return list(read_manifest(folder))
    except CheckpointError:
        return []  # no manifest, or a damaged one: nothing is known to be ours


def _set_aside(target: Path, disk: Disk) -> Path | None:
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
        if not path.is_dir():  # else another process was quicker
            raise
    disk.sync_folder(path.parent)


def _clear_dead(target: Path, disk: Disk) -> None:
    """Remove what processes that are no more left of writing this folder."""
    for path in target.parent.glob(glob.escape(target.name + _TEMPORARY) + "*"):
        writer = path.name.rpartition(_TEMPORARY)[2].partition("-")[0]
        if writer.isdecimal() and not _alive(int(writer)):
            remove(path, disk=disk)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}{_TEMPORARY}{_nonce()}")


def _nonce() -> str:
    return f"{os.getpid()}-{secrets.token_hex(4)}"
