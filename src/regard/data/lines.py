"""Checked lines of a byte stream: numbered, decoded strictly, each with its fault; memory is bounded by one line."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from regard.errors import ConfigError, DataError, nearest

MAX_LINE_BYTES = 1 << 20
MAX_SKIPPED_BYTES = 1 << 26  # read in search of the end of a line that is too long
_SKIP_CHUNK_BYTES = 1 << 16
_READ_CHUNK_BYTES = 1 << 20

_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0a-\x1f]")  # a tab is white space, or separates columns
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_GZIP_MAGIC = b"\x1f\x8b"
_FOREIGN_BYTE_ORDER_MARKS = (  # UTF-32 first: its little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


class Fault(NamedTuple):
    """One thing that is wrong with a line or row, and its location."""

    line: int
    column: int  # in characters from 1; 0: the whole line
    kind: str  # category, counted in the ledger
    what: str
    advice: str
    path: str = ""  # location in a JSON document, instead of a line

    def error(self, name: str) -> DataError:
        """The fault as an error that reads `file:line:column: what — advice`."""
        location = f"{name}:{self.line}:{self.column}" if self.column else f"{name}:{self.path or self.line}"
        return DataError(self.what, location=location, advice=self.advice)


class Line(NamedTuple):
    """One line of a file; its text is empty when it has a fault."""

    line_number: int
    raw: bytes
    text: str
    fault: Fault | None


@contextmanager
def open_bytes(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressed if its name ends in `.gz`; I/O errors become `DataError`."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            if file.suffix.lower() == ".gz":
                with gzip.GzipFile(fileobj=stream) as decompressed:
                    yield io.BufferedReader(decompressed)
            else:
                yield stream
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"the gzip file is damaged ({error})", location=str(path), advice="download or compress it again"
        ) from None
    except FileNotFoundError:
        siblings = [entry.name for entry in file.parent.iterdir()] if file.parent.is_dir() else []
        raise DataError(f"no such file{nearest(file.name, siblings)}", location=str(path)) from None
    except IsADirectoryError:
        raise DataError("is a folder, a file is needed", location=str(path)) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", location=str(path)) from None


def read_bounded(stream: BinaryIO, name: str, max_bytes: int) -> bytes:
    """Read a stream to its end, chunk by chunk; raise `DataError` if it is longer than `max_bytes`."""
    chunks: list[bytes] = []
    num_bytes = 0
    while chunk := stream.read(_READ_CHUNK_BYTES):
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise DataError(
                f"the file is longer than {max_bytes:,} bytes", location=name, advice="split it into several"
            )
        chunks.append(chunk)
    return b"".join(chunks)


def check_encoding(encoding: str) -> str:
    """Canonical name of a codec; it must extend ASCII, since lines are split before they are decoded.

    >>> check_encoding("latin1")
    'iso8859-1'
    """
    ascii_bytes = bytes(range(128))
    try:
        codec = codecs.lookup(encoding).name
        extends_ascii = ascii_bytes.decode(codec) == ascii_bytes.decode("ascii")
    except LookupError:
        common = ["utf-8", "latin-1", "cp1252", "shift_jis"]
        raise ConfigError(f"unknown encoding {encoding!r}{nearest(encoding, common)}") from None
    except UnicodeError:
        extends_ascii = False
    if not extends_ascii:
        raise ConfigError(f"encoding {encoding!r} cannot be split into lines: convert the file to UTF-8 first (iconv)")
    # The byte-order mark is removed by `_strip_byte_order_mark`, and only from the first line.
    return "utf-8" if codec == "utf-8-sig" else codec


def iter_checked_lines(stream: BinaryIO, name: str, encoding: str = "utf-8") -> Iterator[Line]:
    r"""Yield a stream's lines, split at ``\n`` only; one ``\r`` before it is dropped.

    >>> import io
    >>> [(line.line_number, line.text) for line in iter_checked_lines(io.BytesIO("a\u2028b\r\nc".encode()), "in.txt")]
    [(1, 'a\u2028b'), (2, 'c')]
    """
    codec = check_encoding(encoding)
    line_number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 2):
        line_number += 1
        if line_number == 1:
            raw = _strip_byte_order_mark(raw, name, codec)
        is_complete = raw.endswith(b"\n")
        if is_complete:
            raw = raw[:-1].removesuffix(b"\r")
        if len(raw) <= MAX_LINE_BYTES:
            yield _decode_line(raw, line_number, codec)
            continue
        if not is_complete:
            _skip_line(stream, name, line_number)
        what = f"the line is longer than {MAX_LINE_BYTES:,} bytes"
        fault = Fault(line_number, 0, kind="line too long", what=what, advice="split it into sentences")
        yield Line(line_number, raw, text="", fault=fault)


def _strip_byte_order_mark(raw: bytes, name: str, codec: str) -> bytes:
    """Remove the UTF-8 mark from a file's first line; refuse the mark of another encoding, and gzip."""
    for mark, encoding in _FOREIGN_BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            raise DataError(
                f"the file is {encoding} (it begins with the bytes {_escape_bytes(mark)})",
                location=f"{name}:1:1",
                advice=f"convert it to UTF-8: iconv -f {encoding} -t UTF-8",
            )
    if raw.startswith(_GZIP_MAGIC):
        raise DataError(
            "the file is compressed with gzip", location=f"{name}:1:1", advice="rename it so that it ends in .gz"
        )
    return raw.removeprefix(codecs.BOM_UTF8) if codec == "utf-8" else raw


def _skip_line(stream: BinaryIO, name: str, line_number: int) -> None:
    """Skip the remainder of a line that is too long; raise `DataError` if its end is out of reach."""
    remaining = MAX_SKIPPED_BYTES
    while remaining > 0:
        chunk = stream.readline(_SKIP_CHUNK_BYTES)
        if not chunk or chunk.endswith(b"\n"):
            return
        remaining -= len(chunk)
    raise DataError(
        f"the line is longer than {MAX_SKIPPED_BYTES:,} bytes",
        location=f"{name}:{line_number}",
        advice="this is not a text file with one sentence per line",
    )


def _decode_line(raw: bytes, line_number: int, codec: str) -> Line:
    try:
        text = raw.decode(codec)
    except UnicodeDecodeError as error:
        column = len(raw[: error.start].decode(codec, errors="ignore")) + 1
        undecodable = raw[error.start : max(error.end, error.start + 1)][:8]
        fault = Fault(
            line_number,
            column,
            kind=f"not {codec}",
            what=f"not {codec}: the bytes {_escape_bytes(undecodable)} ({error.reason})",
            advice="convert the file to UTF-8, or name its encoding with --encoding",
        )
        return Line(line_number, raw, text="", fault=fault)
    control_fault = find_control_characters(text, line_number)
    return Line(line_number, raw, text="" if control_fault else text, fault=control_fault)


def find_control_characters(text: str, line: int) -> Fault | None:
    """Fault of the first control character or lone surrogate in a text, if there is one."""
    control = _CONTROL_CHARACTER.search(text)
    if control is not None:
        character = control.group()
        description = {"\0": "NUL", "\r": "a carriage return"}.get(character, "a control character")
        return Fault(
            line,
            control.start() + 1,
            kind="control character",
            what=f"{description} ({_escape_bytes(character.encode())})",
            advice="remove it",
        )
    surrogate = find_lone_surrogate(text)
    if surrogate is not None:
        return Fault(
            line,
            surrogate.start() + 1,
            kind="lone surrogate",
            what=f"a lone surrogate ({surrogate.group()!a})",
            advice="remove it",
        )
    return None


def find_lone_surrogate(text: str) -> re.Match[str] | None:
    r"""Find half of a surrogate pair, which JSON can express, but no encoding of text.

    >>> find_lone_surrogate("who\ud800?").start()
    3
    """
    return None if text.isascii() else _SURROGATE.search(text)


def _escape_bytes(raw: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in raw)
