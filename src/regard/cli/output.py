"""Output of the command line: results go to standard output, everything else to standard error."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar, cast

from regard.checkpoint.atomic import Sink, write_file
from regard.cli.progress import JsonListener, LogListener, ProgressBarListener, with_progress
from regard.errors import UsageError
from regard.formatting import finite_values

Item = TypeVar("Item")
REPORT_EXTENSIONS = (".html", ".json", ".tsv")


def print_result(result: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print a result: the object as one line of JSON, or the readable lines."""
    if as_json:
        print(json_line(result))
    else:
        for line in lines:
            print(line)


def json_line(result: Any) -> str:
    """Serialise a result as one line of JSON, which has no infinity: a number that is not finite becomes null.

    >>> json_line({"text": "né", "seconds": float("inf")})
    '{"text": "né", "seconds": null}'
    """
    return json.dumps(finite_values(result), ensure_ascii=False)


def note(text: str) -> None:
    """Print a message that is not part of the result."""
    print(text, file=sys.stderr)


def note_each(texts: Iterable[str]) -> None:
    """Print messages that are not part of the result."""
    for text in texts:
        note(text)


def note_features(task: Mapping[str, Any]) -> None:
    """Print the frozen features that a model reads, by its `task.json`, with the learned mix of their layers."""
    from regard.checkpoint.feature_dir import describe_features

    if "features" in task:
        note(f"features: {describe_features(task['features'])}")


@contextmanager
def progress_listener(as_json: bool) -> Iterator[JsonListener | ProgressBarListener | LogListener]:
    """Listener that shows a training run: JSON lines, a live bar on a terminal, or log lines."""
    if as_json:
        yield JsonListener(lambda event: print(json_line(event), flush=True))
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


def own_command() -> str:
    """Command that runs this program from the current folder."""
    if shutil.which("regard"):
        return "regard"
    return sys.argv[0] if Path(sys.argv[0]).name == "regard" else "python -m regard"


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


class WrittenReport(Protocol):
    """What a verb measured, in the formats of files."""

    def tsv(self) -> Iterable[str]: ...
    def page(self) -> str: ...
    def to_dict(self) -> Any: ...


class Report(WrittenReport, Protocol):
    """What a verb measured: a table with a summary, and a page with charts."""

    def table(self) -> list[list[str]]: ...
    def summary(self) -> list[str]: ...


def check_report_name(out: str | None) -> None:
    """Refuse a name that says no format, before anything is measured."""
    if out and not out.endswith(REPORT_EXTENSIONS):
        raise UsageError(f"{out}: the report is written as {', '.join(REPORT_EXTENSIONS)}: name such a file")


def write_report(report: WrittenReport, out: str | None) -> None:
    """Write a report to a file, where there is one, in the format of its name."""
    if not out:
        return
    if out.endswith(".html"):
        write_lines(out, [report.page()])
    elif out.endswith(".json"):
        write_lines(out, [json_line(report.to_dict())])
    else:
        write_lines(out, report.tsv())
    note(f"report: {out}")


def print_report(report: Report, out: str | None, as_json: bool) -> None:
    """Write a report to a file, in the format of its name, and print it."""
    write_report(report, out)
    print_result(report.to_dict(), [*align_columns(report.table()), "", *report.summary()], as_json)


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
    """Format rows with aligned columns; columns of numbers, with or without a title, are aligned to the right.

    >>> align_columns([["beam", "5"], ["nbest", "10"]])
    ['beam    5', 'nbest  10']
    >>> align_columns([["head", "loss"], ["0", "+1.5"], ["1", "–"]])
    ['head  loss', '   0  +1.5', '   1     –']
    """
    from rich.cells import cell_len

    lines = [""] * len(rows)
    for column in zip(*rows, strict=True):
        width = max(map(cell_len, column))
        is_numeric = all(_is_number(cell) for cell in column[1:] or column)
        for index, cell in enumerate(column):
            padding = " " * (width - cell_len(cell))
            lines[index] += "  " + (padding + cell if is_numeric else cell + padding)
    return [line[2:].rstrip() for line in lines]


def _is_number(cell: str) -> bool:
    """Whether a cell begins with a digit, after a sign; or is empty, or a dash for a missing number."""
    return cell.lstrip("+-−")[:1].isdigit() or cell in ("", "–")
