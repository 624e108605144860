"""Read data files strictly: every row is accepted, or rejected with its place; none is lost.

    bytes ─► lines (`lines.py`) ─► rows of fields (`fields.py`) ─► accepted, or in the `Ledger` ─► `Pairs`

A reader of another kind of file takes lines or rows, says what is wrong with each and tells a `Ledger`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, TextIO

from regard.config.data import ReadConfig
from regard.data.columns import DataRow
from regard.data.lines import Fault, iter_checked_lines, open_bytes
from regard.errors import DataError, DiskError

SHOWN = 20  # faults listed in one message


def digest_columns(*columns: Sequence[str]) -> str:
    """Return the SHA-256 of rows of texts; their order matters.

    >>> digest_columns(["a", "b"], ["c", "d"]) == digest_columns(["b", "a"], ["d", "c"])
    False
    """
    digest = hashlib.sha256()
    for row in zip(*columns, strict=True):
        digest.update("\x1f".join(row).encode() + b"\x1e")  # control characters that no accepted text holds
    return digest.hexdigest()


def read_lines(path: str | Path, config: ReadConfig | None = None) -> list[str]:
    """Return all lines of a text file, blank ones too."""
    return list(iter_lines(path, config))


def iter_lines(
    source: str | Path | BinaryIO, config: ReadConfig | None = None, *, name: str = "standard input"
) -> Iterator[str]:
    """Yield the lines of a text file or of a stream of bytes as they come; the first faulty one is an error."""
    config = config or ReadConfig()
    with ExitStack() as stack:
        if isinstance(source, str | Path):
            stream, name = stack.enter_context(open_bytes(source)), str(source)
        else:
            stream = source
        for line in iter_checked_lines(stream, name, config.encoding):
            if line.fault:
                raise line.fault.error(name)
            yield line.text


class Ledger:
    """Counts what is read; rejected rows are listed (strict) or written to a file (lenient)."""

    def __init__(self, names: Sequence[str], config: ReadConfig, folder: str | Path | None = None) -> None:
        self.file_names, self.config = names, config
        self.num_read = self.rejected = 0
        self.kinds: Counter[str] = Counter()
        self.max_shown: list[DataError] = []
        first = Path(names[0])
        self.path = Path(folder or first.parent) / f"{first.name}.rejected.jsonl"
        self._file: TextIO | None = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def accept(self, row: DataRow, raws: Sequence[bytes], name: str) -> bool:
        """Count one row; return whether it is to be kept."""
        self.num_read += 1
        if not row.fault:
            return True
        self.rejected += 1
        self.kinds[row.fault.kind] += 1
        if len(self.max_shown) < SHOWN:
            self.max_shown.append(row.fault.error(name))
        if self.config.lenient:
            self._write(row.fault, raws, name)
        return False

    def _write(self, fault: Fault, raws: Sequence[bytes], name: str) -> None:
        record: dict[str, object] = {"file": name, "line": fault.line, "column": fault.column, "reason": fault.what}
        for key, raw in zip(("raw", "raw_target"), raws, strict=False):
            record[key] = base64.b64encode(raw).decode()  # of a line that is too long only the beginning
        try:
            self._file = self._file or self.path.open("w", encoding="utf-8")
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        except OSError as error:
            raise DiskError(f"{self.path}: rejected rows cannot be written: {error.strerror}") from None

    def finish(self) -> None:
        """Raise what the rows come to: nothing read, faults in strict mode, too many of them in lenient mode."""
        if not self.num_read:
            raise DataError("the file is empty", location=self.file_names[0], advice="at least one row is needed")
        if not self.rejected:
            return
        totals = ", ".join(f"{count:,} × {kind}" for kind, count in self.kinds.most_common())
        summary = f"{self.rejected:,} of {self.num_read:,} rows rejected: {totals}"
        listed = "\n".join(map(str, self.max_shown))
        if not self.config.lenient:
            first = self.max_shown[0].location
            more = f"\n… and {self.rejected - SHOWN:,} more" if self.rejected > SHOWN else ""
            advice = "use --lenient to go on without such rows"
            raise DataError(f"{listed.removeprefix(first + ': ')}{more}\n{summary}\n{advice}", location=first)
        if self.rejected == self.num_read or 100 * self.rejected > self.config.max_reject * self.num_read:
            raise DataError(
                f"{summary}, more than {self.config.max_reject:g} % (--max-reject); they are in {self.path}\n{listed}"
            )
