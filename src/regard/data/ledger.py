"""The `Ledger` of rows that are read and rejected, digests of data, and plain lines of text.

    bytes ─► lines (`lines.py`) ─► rows of fields (`columns.py`) ─► accepted, or rejected in the `Ledger` ─► examples

Data files are read strictly: every row is accepted, or rejected with its location; none is lost. A reader of another
file format takes lines or rows, finds the fault of each and passes it to a `Ledger`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from regard.config.data import ReadConfig
from regard.data.columns import DataRow
from regard.data.lines import Fault, iter_checked_lines, open_bytes
from regard.errors import DataError, DiskError

MAX_SHOWN_FAULTS = 20  # in one message
TABLE_SUFFIXES = (
    *(".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson"),
    *(".xls", ".xlsx", ".ods", ".parquet"),
)


def digest_columns(*columns: Sequence[str]) -> str:
    """SHA-256 of rows of texts; their order matters.

    >>> digest_columns(["a", "b"], ["c", "d"]) == digest_columns(["b", "a"], ["d", "c"])
    False
    """
    digest = hashlib.sha256()
    for row in zip(*columns, strict=True):
        digest.update("\x1f".join(row).encode() + b"\x1e")  # control characters that no accepted text contains
    return digest.hexdigest()


def read_lines(path: str | Path, config: ReadConfig | None = None) -> list[str]:
    """Read all lines of a text file, blank ones included."""
    return list(iter_lines(path, config))


def read_texts(path: str | Path, config: ReadConfig | None = None) -> list[str]:
    """Read texts, one per line; a table is refused by its name, since its rows are no texts."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes if suffix.lower() != ".gz"]
    if suffixes and suffixes[-1] in TABLE_SUFFIXES:
        raise DataError(
            "is a table, a file with one text per line is needed",
            location=str(path),
            advice="write its column of texts to a .txt file; lines that are texts as they are can be piped in",
        )
    return read_lines(path, config)


def iter_lines(
    source: str | Path | BinaryIO, config: ReadConfig | None = None, *, name: str = "standard input"
) -> Iterator[str]:
    """Yield the lines of a text file or byte stream as they arrive; raise `DataError` at the first faulty one."""
    config = config or ReadConfig()
    with ExitStack() as stack:
        if isinstance(source, str | Path):
            stream = stack.enter_context(open_bytes(source))
            name = str(source)
        else:
            stream = source
        for line in iter_checked_lines(stream, name, config.encoding):
            if line.fault:
                raise line.fault.error(name)
            yield line.text


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """Base of what a reader returns: how many rows it read and rejected."""

    num_read: int = 0  # accepted + rejected
    num_rejected: int = 0
    reject_file: str = ""  # path of the rejected rows
    notes: tuple[str, ...] = ()  # what was guessed or converted in reading


class Ledger:
    """Account of the rows of some files; rejected ones are listed (strict) or written to a file (lenient)."""

    def __init__(self, names: Sequence[str], config: ReadConfig, folder: str | Path | None = None) -> None:
        self.file_names = names
        self.config = config
        self.num_read = 0
        self.num_rejected = 0
        self.fault_counts: Counter[str] = Counter()  # kind of fault → rows
        first_file = Path(names[0])
        self.path = Path(folder or first_file.parent) / f"{first_file.name}.rejected.jsonl"
        self._shown_errors: list[DataError] = []
        self._file: TextIO | None = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    @property
    def reject_file(self) -> str:
        """Path of the rejected rows; empty if there are none."""
        return str(self.path) if self.num_rejected else ""

    def accept(self, row: DataRow, raws: Sequence[bytes], name: str) -> bool:
        """Count one row; return whether it is accepted."""
        self.num_read += 1
        if not row.fault:
            return True
        self.num_rejected += 1
        self.fault_counts[row.fault.kind] += 1
        if len(self._shown_errors) < MAX_SHOWN_FAULTS:
            self._shown_errors.append(row.fault.error(name))
        if self.config.lenient:
            self._write(row.fault, raws, name)
        return False

    def _write(self, fault: Fault, raws: Sequence[bytes], name: str) -> None:
        record: dict[str, object] = {"file": name, "line": fault.line, "column": fault.column, "reason": fault.what}
        for key, raw in zip(("raw", "raw_target"), raws, strict=False):
            record[key] = base64.b64encode(raw).decode()  # only the beginning of a line that is too long
        try:
            if self._file is None:
                self._file = self.path.open("w", encoding="utf-8")
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        except OSError as error:
            raise DiskError(f"{self.path}: rejected rows cannot be written: {error.strerror}") from None

    def finish(self) -> None:
        """Raise `DataError` if nothing was read, on any fault (strict), or on too many of them (lenient)."""
        if not self.num_read:
            raise DataError("the file is empty", location=self.file_names[0], advice="at least one row is needed")
        if not self.num_rejected:
            return
        totals = ", ".join(f"{count:,} × {kind}" for kind, count in self.fault_counts.most_common())
        summary = f"{self.num_rejected:,} of {self.num_read:,} rows rejected: {totals}"
        errors = "\n".join(map(str, self._shown_errors))
        if not self.config.lenient:
            location = self._shown_errors[0].location
            num_hidden = self.num_rejected - MAX_SHOWN_FAULTS
            ellipsis = f"\n… and {num_hidden:,} more" if num_hidden > 0 else ""
            advice = "use --lenient to continue without such rows"
            # `DataError` puts the location of the first fault in front.
            listing = errors.removeprefix(f"{location}: ")
            raise DataError(f"{listing}{ellipsis}\n{summary}\n{advice}", location=location)
        if self.num_rejected == self.num_read or 100 * self.num_rejected > self.config.max_reject * self.num_read:
            raise DataError(
                f"{summary}, more than {self.config.max_reject:g} % (--max-reject); they are in {self.path}\n{errors}"
            )
