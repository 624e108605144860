"""Output of the command line: results go to standard output, everything else to standard error."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from regard.checkpoint.atomic import Sink, write_file
from regard.cli.progress import JsonListener, LogListener, ProgressBarListener, with_progress
from regard.errors import UsageError

Item = TypeVar("Item")


def print_result(result: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print a result: the object as one line of JSON, or the readable lines."""
    if as_json:
        print(json_line(result))
    else:
        for line in lines:
            print(line)


def json_line(result: Any) -> str:
    """Serialise a result as one line of JSON.

    >>> json_line({"text": "né"})
    '{"text": "né"}'
    """
    return json.dumps(result, ensure_ascii=False)


def note(text: str) -> None:
    """Print a message that is not part of the result."""
    print(text, file=sys.stderr)


def note_each(texts: Iterable[str]) -> None:
    """Print messages that are not part of the result."""
    for text in texts:
        note(text)


@contextmanager
def progress_listener(as_json: bool) -> Iterator[JsonListener | ProgressBarListener | LogListener]:
    """Listener that shows a training run: JSON lines, a live bar on a terminal, or log lines."""
    if as_json:
        yield JsonListener(lambda line: print(line, flush=True))
    elif not sys.stderr.isatty():
        yield LogListener(note)
    else:
        bar = ProgressBarListener()
        try:
            yield bar
        finally:
            bar.close()


def show_progress(windows: Iterable[list[Item]], total: int, unit: str) -> Iterator[Item]:
    """Yield the items of all windows and report progress: a bar on a terminal, an occasional line otherwise."""
    return with_progress(windows, total, unit, note, is_terminal=sys.stderr.isatty())


def write_lines(path: str, lines: Iterable[str]) -> None:
    """Write lines to a file that appears complete when the last one is written; a name in .gz is compressed.

    The path is checked before the first line is computed, so that a long computation does not end in a refusal.
    """
    if Path(path).is_dir():
        raise UsageError(f"{path} is a folder: name a file")

    def write(sink: Sink) -> None:
        if not path.endswith(".gz"):
            for line in lines:
                sink.write(f"{line}\n".encode())
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=cast(IO[bytes], sink), mtime=0) as compressed:
            for line in lines:
                compressed.write(f"{line}\n".encode())

    write_file(Path(path), write)


def write_array(path: str, array: Any) -> None:
    """Write an array as a NumPy file that appears complete."""
    import io

    import numpy as np

    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    if Path(path).is_dir():
        raise UsageError(f"{path} is a folder: name a file")
    write_file(Path(path), content.getvalue())


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows with aligned columns; columns of numbers are aligned to the right.

    >>> align_columns([["beam", "5"], ["nbest", "10"]])
    ['beam    5', 'nbest  10']
    """
    from rich.cells import cell_len

    lines = [""] * len(rows)
    for column in zip(*rows, strict=True):
        width = max(map(cell_len, column))
        is_numeric = all(cell[:1].isdigit() for cell in column)
        for index, cell in enumerate(column):
            padding = " " * (width - cell_len(cell))
            lines[index] += "  " + (padding + cell if is_numeric else cell + padding)
    return [line[2:].rstrip() for line in lines]
