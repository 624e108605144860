"""Lines to rows of chosen fields: TSV (tabs, no quoting), CSV (RFC 4180) and JSON lines."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from regard.config.data import ReadConfig
from regard.data.lines import Fault, Line, find_control_characters
from regard.errors import ConfigError, DataError, nearest

QUOTED_BYTES = 64 * 1024  # a quoted CSV field is held to be left open beyond this many bytes …
QUOTED_LINES = 50  # … or lines


class DataRow(NamedTuple):
    """The chosen fields of one row; empty when there is a fault."""

    line: int  # where it begins
    raw: bytes
    fields: tuple[str, ...]
    fault: Fault | None


Column = tuple[str, str]  # a field's role, and the name or number that the user gave for it, or ""


def read_rows(
    lines: Iterator[Line], format: str, columns: Sequence[Column], config: ReadConfig, name: str
) -> Iterator[DataRow]:
    r"""Yield the chosen columns of every row.

    >>> from regard.data.lines import iter_checked_lines
    >>> import io
    >>> stream = io.BytesIO(b'id,de,en\n1,"ja, klar",yes\n')
    >>> wanted = [("source", "en"), ("target", "de")]
    >>> [row.fields for row in read_rows(iter_checked_lines(stream, "x.csv"), "csv", wanted, ReadConfig(), "x.csv")]
    [('yes', 'ja, klar')]
    """
    return _FORMS[format](lines, columns, config, name)


def _tsv(lines: Iterator[Line], columns: Sequence[Column], config: ReadConfig, name: str) -> Iterator[DataRow]:
    cells = (
        RawRow(line.line_number, line.raw, [] if line.fault else line.text.split("\t"), line.fault or _blank(line))
        for line in lines
    )
    return _chosen(cells, columns, "\t", any(_is_name(given) for _, given in columns), name)


def _csv(lines: Iterator[Line], columns: Sequence[Column], config: ReadConfig, name: str) -> Iterator[DataRow]:
    delimiter = {"": ",", "\\t": "\t", "tab": "\t"}.get(config.delimiter, config.delimiter)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ConfigError(f"delimiter must be a single character, not {config.delimiter!r}")
    return _chosen(_csv_cells(lines, delimiter), columns, delimiter, not config.no_header, name)


class RawRow(NamedTuple):
    """All fields of one row."""

    line: int
    raw: bytes
    cells: list[str]
    fault: Fault | None


def _blank(line: Line) -> Fault | None:
    if line.text.strip():
        return None
    return Fault(line.line_number, 0, "blank line", "the line is blank", "take it out")


def _is_name(given: str) -> bool:
    return bool(given) and not given.isdecimal()


def _chosen(
    rows: Iterator[RawRow], columns: Sequence[Column], separator: str, header: bool, name: str
) -> Iterator[DataRow]:
    """Yield the chosen cells of each row; every row must have as many cells as the first."""
    width, places = 0, list[int]()
    for row in rows:
        if row.fault:
            if header and not width:
                raise row.fault.error(name)
            yield DataRow(row.line, row.raw, (), row.fault)
            continue
        if not width:
            width, places = _placed(row.cells, columns, header, separator, f"{name}:{row.line}")
            if header:
                continue
        if len(row.cells) != width:
            yield DataRow(row.line, row.raw, (), _wrong_width(row, width, separator))
            continue
        yield DataRow(row.line, row.raw, tuple(row.cells[place] for place in places), None)


def _wrong_width(row: RawRow, width: int, separator: str) -> Fault:
    named = {"\t": "tabs", ",": "commas"}.get(separator, f"{separator!r}")
    what = f"{len(row.cells)} column{'s' * (len(row.cells) != 1)} where {width} are expected (separated by {named})"
    return Fault(row.line, 0, "wrong number of columns", what, "mend the row")


def _placed(
    cells: Sequence[str], columns: Sequence[Column], header: bool, separator: str, place: str
) -> tuple[int, list[int]]:
    """Return how many cells a row has and which of them are wanted, from the first row."""
    names = [cell.strip() for cell in cells] if header else []
    roles = [role for role, _ in columns]
    if not any(given for _, given in columns):
        if all(role in names for role in roles):
            return len(cells), [names.index(role) for role in roles]
        if len(cells) == len(columns) or (len(cells) < len(columns) and not header):
            return len(columns), list(range(len(columns)))
    flags = " and ".join(f"--{role}" for role in roles)
    places = []
    for role, asked in columns:
        given = asked or (role if role in names else "")
        if not given:
            shown = f": {', '.join(names)}" if names else ""
            raise DataError(
                f"{len(cells)} columns{shown}, and none is named {role}" if header else f"{len(cells)} columns",
                location=place,
                advice=f"say which to take with {flags} (a name from the first row, or a number from 1)",
            )
        if _is_name(given):
            if given not in names:
                raise DataError(
                    f"no column {given!r}{nearest(given, names)}",
                    location=place,
                    advice=f"there are {', '.join(names)}",
                )
            places.append(names.index(given))
        elif not 1 <= int(given) <= len(cells):
            raise DataError(f"no column {given}", location=place, advice=f"there are {len(cells)}")
        else:
            places.append(int(given) - 1)
    return len(cells), places


def _csv_cells(lines: Iterator[Line], delimiter: str) -> Iterator[RawRow]:
    """Yield rows of cells. A row whose quotes do not fit is rejected up to the end of its first line only."""
    waiting: deque[Line] = deque()
    while True:
        line = waiting.popleft() if waiting else next(lines, None)
        if line is None:
            return
        if line.fault:
            yield RawRow(line.line_number, line.raw, [], line.fault)
            continue
        if fault := _blank(line):
            yield RawRow(line.line_number, line.raw, [], fault)
            continue
        taken = [line]
        reader = CsvRow(delimiter)
        fault = reader.feed(line)
        while reader.open_at and not fault:
            if len(taken) > QUOTED_LINES or sum(len(one.raw) for one in taken) > QUOTED_BYTES:
                fault = reader.left_open(f"more than {QUOTED_LINES} lines or {QUOTED_BYTES // 1024} KB")
                break
            following = waiting.popleft() if waiting else next(lines, None)
            if following is None:
                fault = reader.left_open("the end of the file")
                break
            taken.append(following)
            fault = reader.feed(following) if not following.fault else reader.left_open("a faulty line")
        if fault:
            waiting.extendleft(reversed(taken[1:]))
            yield RawRow(line.line_number, line.raw, [], fault)
        else:
            yield RawRow(line.line_number, b"\n".join(one.raw for one in taken), reader.cells, None)


class CsvRow:
    """One row in the reading, over one or several lines."""

    def __init__(self, delimiter: str) -> None:
        self.delimiter = delimiter
        self.cells: list[str] = []
        self.open_at: tuple[int, int] | None = None  # line and column where a quote stands open
        self._part = ""  # of the quoted cell that is open

    def feed(self, line: Line) -> Fault | None:
        """Take in one more line; return what is wrong with the row."""
        text, place = line.text, 0
        if self.open_at:
            self._part += "\n"
        while True:
            if not self.open_at and text[place : place + 1] == '"':
                self.open_at, self._part = (line.line_number, place + 1), ""
                place += 1
            if self.open_at:
                stop = text.find('"', place)
                if stop < 0:
                    self._part += text[place:]
                    return None
                self._part += text[place:stop]
                place = stop + 1
                if text[place : place + 1] == '"':
                    self._part += '"'
                    place += 1
                    continue
                if text[place : place + 1] not in ("", self.delimiter):
                    return self._misplaced(line, place)
                self.cells.append(self._part)
                self.open_at = None
            else:
                stop = text.find(self.delimiter, place)
                cell = text[place:] if stop < 0 else text[place:stop]
                if '"' in cell:
                    return self._stray(line, place + cell.index('"'))
                self.cells.append(cell)
                place += len(cell)
            if place >= len(text):
                return None
            place += 1  # the delimiter
            if place == len(text):
                self.cells.append("")
                return None

    def left_open(self, until: str) -> Fault:
        """Return the fault of a quote that was not closed."""
        line, column = self.open_at or (0, 0)
        what = f"the quote opened here is not closed by {until}"
        return Fault(line, column, "open quote", what, 'close it, and write a quote inside a field as ""')

    def _misplaced(self, line: Line, place: int) -> Fault:
        opened, column = self.open_at or (0, 0)
        what = f"the quote opened here is closed at line {line.line_number}, column {place}, but the field goes on"
        return Fault(opened, column, "open quote", what, 'write a quote inside a field as ""')

    def _stray(self, line: Line, place: int) -> Fault:
        what = "a quote inside a field that does not begin with one"
        return Fault(
            line.line_number, place + 1, "stray quote", what, 'put the field in quotes and write "" for a quote'
        )


def _json_lines(lines: Iterator[Line], columns: Sequence[Column], config: ReadConfig, name: str) -> Iterator[DataRow]:
    for line in lines:
        fault = line.fault or _blank(line)
        fields: tuple[str, ...] = ()
        if not fault:
            found = _json_fields(line, columns, config.label_separator)
            fault, fields = (found, ()) if isinstance(found, Fault) else (None, found)
        yield DataRow(line.line_number, line.raw, fields, fault)


def _json_fields(line: Line, columns: Sequence[Column], separator: str = "") -> tuple[str, ...] | Fault:
    def wrong(what: str, advice: str, column: int = 0) -> Fault:
        return Fault(line.line_number, column, "wrong JSON", what, advice)

    try:
        data = json.loads(line.text)
    except json.JSONDecodeError as error:
        return wrong(f"not JSON: {error.msg}", "one JSON object a line is needed", error.colno)
    except (RecursionError, ValueError):
        return wrong("not JSON that can be read: nested too deeply or a number too long", "mend the line")
    if not isinstance(data, dict):
        return wrong("not a JSON object", 'an object such as {"source": "…", "target": "…"} is needed')
    inner = data.get("translation")
    texts: Mapping[str, object] = {**data, **inner} if isinstance(inner, dict) else data
    fields = []
    for number, (role, given) in enumerate(columns):
        name = given or role
        if not given and name not in texts and isinstance(inner, dict) and len(inner) == len(columns):
            name = list(inner)[number]
        value = texts.get(name)
        if role == "label" and type(value) in (int, bool):
            value = json.dumps(value)  # labels are often numbers
        if role == "label" and separator and isinstance(value, list) and all(isinstance(one, str) for one in value):
            value = separator.join(value)
        if not isinstance(value, str):
            what = f"the field {name!r} is not a text" if name in texts else f"no field {name!r}{nearest(name, texts)}"
            return wrong(what, f"name the field with --{role}")
        fields.append(value)
    return tuple(fields)


def find_field_fault(row: DataRow) -> Fault | None:
    """Return what is wrong inside a row's fields: escaped control characters; line breaks and tabs may be quoted."""
    for text in row.fields:
        if fault := find_control_characters(text.replace("\n", " "), row.line):
            return fault._replace(column=0)
    return None


_FORMS: Mapping[str, Callable[[Iterator[Line], Sequence[Column], ReadConfig, str], Iterator[DataRow]]] = {
    "tsv": _tsv,
    "csv": _csv,
    "jsonl": _json_lines,
}
