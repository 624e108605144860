"""What the first process prepared, for machines that have no files in common with its own."""

from __future__ import annotations

from pathlib import Path

from regard.checkpoint.directory import RunDirectory
from regard.checkpoint.files import write_file
from regard.checkpoint.reader_folder import FEATURES
from regard.training.processes import Processes

BEGINNING = ("run.json", "tokenizers", FEATURES)  # what a run's folder has before anything is learned


def hand_over(directory: RunDirectory, processes: Processes) -> None:
    """Let every machine's folder of the run have the files that the first process prepared; all must call it."""
    if not processes.apart:
        return
    prepared = processes.given_by_first(_prepared(directory.path) if processes.first else {})
    if processes.first_here and not processes.first:
        for name, content in prepared.items():
            path = directory.path / name
            if not path.is_file() or path.read_bytes() != content:  # on a shared disk they are there already
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, content)
    processes.wait()


def _prepared(folder: Path) -> dict[str, bytes]:
    inside = ((path, path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())
    return {name.as_posix(): path.read_bytes() for path, name in inside if name.parts[0] in BEGINNING}
