"""Where words go: results to standard output, everything else to standard error."""

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


def print_result(facts: Any, lines: Iterable[str], as_json: bool) -> None:
    """Write a result: one line of JSON, or lines for people."""
    if as_json:
        print(json_line(facts))
    else:
        for line in lines:
            print(line)


def json_line(facts: Any) -> str:
    """Return facts as one line of JSON.

    >>> json_line({"text": "né"})
    '{"text": "né"}'
    """
    return json.dumps(facts, ensure_ascii=False)


def note(text: str) -> None:
    """Tell the user something that is no result."""
    print(text, file=sys.stderr)


@contextmanager
def progress_listener(as_json: bool) -> Iterator[JsonListener | ProgressBarListener | LogListener]:
    """Show a training run while the block runs: JSON lines, a live bar on a terminal, or plain lines."""
    if as_json:
        yield JsonListener(lambda line: print(line, flush=True))
    elif not sys.stderr.isatty():
        yield LogListener(note)
    else:
        live = ProgressBarListener()
        try:
            yield live
        finally:
            live.close()


def show_progress(windows: Iterable[list[Item]], total: int, what: str) -> Iterator[Item]:
    """Pass on the items of windows and show how far they are: a bar on a terminal, a line now and then otherwise."""
    return with_progress(windows, total, what, note, is_terminal=sys.stderr.isatty())


def write_lines(path: str, lines: Iterable[str]) -> None:
    """Write lines to a file that appears whole when the last one is written; a name in .gz is compressed.

    The place is tried before the first line is asked for, so that a long job does not end in a refusal.
    """
    place = Path(path)
    if place.is_dir():
        raise UsageError(f"{path} is a folder: name a file")

    def write(sink: Sink) -> None:
        if not path.endswith(".gz"):
            for line in lines:
                sink.write(f"{line}\n".encode())
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=cast(IO[bytes], sink), mtime=0) as packed:
            for line in lines:
                packed.write(f"{line}\n".encode())

    write_file(place, write)


def write_array(path: str, values: Any) -> None:
    """Write numbers as a NumPy file that appears whole."""
    import io

    import numpy as np

    content = io.BytesIO()
    np.save(content, values, allow_pickle=False)
    if Path(path).is_dir():
        raise UsageError(f"{path} is a folder: name a file")
    write_file(Path(path), content.getvalue())


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows with their columns aligned, numbers to the right.

    >>> align_columns([["beam", "5"], ["nbest", "10"]])
    ['beam    5', 'nbest  10']
    """
    from rich.cells import cell_len

    lines = [""] * len(rows)
    for column in zip(*rows, strict=True):
        wide = max(map(cell_len, column))
        right = all(cell[:1].isdigit() for cell in column)
        for place, cell in enumerate(column):
            gap = " " * (wide - cell_len(cell))
            lines[place] += "  " + (gap + cell if right else cell + gap)
    return [line[2:].rstrip() for line in lines]
