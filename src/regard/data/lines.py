"""Bytes to checked lines: numbered, decoded strictly, with what is wrong and where; a line's bytes bound the memory."""

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

LONGEST = 1 << 20  # bytes of a line
SKIPPED = 1 << 26  # bytes read on to find the end of a longer line

_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f]")  # a tab is white space, or separates columns
_SURROGATES = re.compile(r"[\ud800-\udfff]")


class Fault(NamedTuple):
    """What is wrong with a line or row, and where."""

    line: int
    column: int  # in characters from 1; 0: the whole line
    kind: str  # for totals
    what: str
    advice: str
    path: str = ""  # where in a JSON document, instead of a line

    def error(self, name: str) -> DataError:
        """Return the fault as `file:line:column: what — what to do`."""
        place = f"{name}:{self.line}:{self.column}" if self.column else f"{name}:{self.path or self.line}"
        return DataError(self.what, location=place, advice=self.advice)


class Line(NamedTuple):
    """One line of a file; its text is empty when there is a fault."""

    line_number: int
    raw: bytes
    text: str
    fault: Fault | None


@contextmanager
def open_bytes(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, unpacked when its name ends in `.gz`; what hinders it becomes a `DataError`."""
    file = Path(path)
    try:
        with file.open("rb") as plain:
            if file.suffix.lower() == ".gz":
                with gzip.GzipFile(fileobj=plain) as packed:
                    yield io.BufferedReader(packed)
            else:
                yield plain
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"the gzip file is damaged ({error})", location=str(path), advice="fetch or pack it again"
        ) from None
    except FileNotFoundError:
        here = [entry.name for entry in file.parent.iterdir()] if file.parent.is_dir() else []
        raise DataError(f"no such file{nearest(file.name, here)}", location=str(path)) from None
    except IsADirectoryError:
        raise DataError("is a folder, a file is needed", location=str(path)) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", location=str(path)) from None


def check_encoding(encoding: str) -> str:
    """Return the codec's own name; only encodings that extend ASCII can be cut into lines.

    >>> check_encoding("latin1")
    'iso8859-1'
    """
    ascii_bytes = bytes(range(128))
    try:
        name = codecs.lookup(encoding).name
        extends = ascii_bytes.decode(name) == ascii_bytes.decode("ascii")
    except LookupError:
        raise ConfigError(
            f"unknown encoding {encoding!r}{nearest(encoding, ['utf-8', 'latin-1', 'cp1252', 'shift_jis'])}"
        ) from None
    except UnicodeError:
        extends = False
    if not extends:
        raise ConfigError(f"encoding {encoding!r} cannot be cut into lines: convert the file to UTF-8 first (iconv)")
    return "utf-8" if name == "utf-8-sig" else name  # the mark is taken off here, once


def iter_checked_lines(stream: BinaryIO, name: str, encoding: str = "utf-8") -> Iterator[Line]:
    r"""Yield a stream's lines, cut at ``\n`` only, one ``\r`` before it dropped.

    >>> import io
    >>> [(line.line_number, line.text) for line in iter_checked_lines(io.BytesIO("a\u2028b\r\nc".encode()), "in.txt")]
    [(1, 'a\u2028b'), (2, 'c')]
    """
    codec = check_encoding(encoding)
    number = 0
    while raw := stream.readline(LONGEST + 2):
        number += 1
        if number == 1:
            raw = _without_mark(raw, name, codec)
        ended = raw.endswith(b"\n")
        raw = raw[: -1 - raw.endswith(b"\r\n")] if ended else raw
        if len(raw) > LONGEST:
            if not ended:
                _skip(stream, name, number)
            what, advice = f"the line is longer than {LONGEST:,} bytes", "cut it into sentences"
            yield Line(number, raw, "", Fault(number, 0, "line too long", what, advice))
        else:
            yield _decoded(raw, number, codec)


def _without_mark(raw: bytes, name: str, codec: str) -> bytes:
    """Return the first line without a byte-order mark, refusing another encoding's."""
    for mark, found in (
        (codecs.BOM_UTF32_LE, "UTF-32"),
        (codecs.BOM_UTF32_BE, "UTF-32"),
        (codecs.BOM_UTF16_LE, "UTF-16"),
        (codecs.BOM_UTF16_BE, "UTF-16"),
    ):
        if raw.startswith(mark):
            raise DataError(
                f"the file is {found} (it begins with the bytes {_escaped(mark)})",
                location=f"{name}:1:1",
                advice=f"convert it to UTF-8: iconv -f {found} -t UTF-8",
            )
    if raw.startswith(b"\x1f\x8b"):
        raise DataError(
            "the file is packed with gzip", location=f"{name}:1:1", advice="give it a name that ends in .gz"
        )
    return raw.removeprefix(codecs.BOM_UTF8) if codec == "utf-8" else raw


def _skip(stream: BinaryIO, name: str, number: int) -> None:
    """Read on to the end of a line that is too long; a line without end is refused at once."""
    left = SKIPPED
    while left > 0:
        part = stream.readline(1 << 16)
        if not part or part.endswith(b"\n"):
            return
        left -= len(part)
    raise DataError(
        f"the line is longer than {SKIPPED:,} bytes",
        location=f"{name}:{number}",
        advice="this is no text file of one sentence a line",
    )


def _decoded(raw: bytes, number: int, codec: str) -> Line:
    try:
        text = raw.decode(codec)
    except UnicodeDecodeError as error:
        column = len(raw[: error.start].decode(codec, errors="ignore")) + 1
        shown = _escaped(raw[error.start : max(error.end, error.start + 1)][:8])
        what = f"not {codec}: the bytes {shown} ({error.reason})"
        advice = "convert the file to UTF-8, or name its encoding with --encoding"
        return Line(number, raw, "", Fault(number, column, f"not {codec}", what, advice))
    fault = find_control_characters(text, number)
    return Line(number, raw, "" if fault else text, fault)


def find_control_characters(text: str, line: int) -> Fault | None:
    """Return the fault of the first control character or half surrogate pair in a text, if there is any."""
    if found := _CONTROLS.search(text):
        letter = found.group()
        named = {"\0": "NUL", "\r": "a carriage return"}.get(letter, "a control character")
        return Fault(
            line, found.start() + 1, "control character", f"{named} ({_escaped(letter.encode())})", "take it out"
        )
    if not text.isascii() and (found := _SURROGATES.search(text)):
        what = f"half a surrogate pair ({found.group()!a})"
        return Fault(line, found.start() + 1, "half a surrogate pair", what, "take it out")
    return None


def _escaped(raw: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in raw)
