"""Rows of selected fields from checked lines: TSV (tabs, no quoting), CSV (RFC 4180) and JSON lines.

Whether the first row of a table names its columns is a setting. Where that is `auto`, the first row of a TSV does if a
column is requested by name, or if all roles are column names, in upper or lower case. That of a CSV does in these cases
and if any role is a column's name; else it does unless its cells look like data. As that is a guess, a note reports it.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from regard.config.data import ReadConfig
from regard.data.lines import Fault, Line, find_control_characters
from regard.errors import ConfigError, DataError, nearest
from regard.formatting import format_count

MAX_QUOTED_BYTES = 64 * 1024  # beyond this many bytes a quote of a CSV field counts as unclosed …
MAX_QUOTED_LINES = 50  # … or lines
NUM_SAMPLED_ROWS = 100  # rows of a CSV that its first row is compared with
MAX_NAME_WORDS = 5  # words of a column's name
MAX_SHOWN_CELL = 30  # characters of a cell in a note
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)(e[+-]?\d+)?%?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\w\W*\s\W*\w.*[.!?。！？…]\W*$", re.DOTALL)  # of several words


class DataRow(NamedTuple):
    """The selected fields of one row; empty when it has a fault."""

    line: int  # where the row begins
    raw: bytes
    fields: tuple[str, ...]
    fault: Fault | None


Column = tuple[str, str]  # a field's role, and the user's name or number for its column, or ""


class RawRow(NamedTuple):
    """All cells of one row."""

    line: int
    raw: bytes
    cells: list[str]
    fault: Fault | None


def read_rows(
    lines: Iterator[Line],
    format: str,
    columns: Sequence[Column],
    config: ReadConfig,
    name: str,
    *,
    optional: Sequence[str] = (),
    notes: list[str] | None = None,
) -> Iterator[DataRow]:
    r"""Yield the selected columns of every row; append to `notes` what was guessed about the file.

    The `optional` columns follow them. They are found by name alone; where there is none, the field is empty.

    >>> from regard.data.lines import iter_checked_lines
    >>> import io
    >>> stream = io.BytesIO(b'id,de,en\n1,"ja, klar",yes\n')
    >>> columns = [("source", "en"), ("target", "de")]
    >>> [row.fields for row in read_rows(iter_checked_lines(stream, "x.csv"), "csv", columns, ReadConfig(), "x.csv")]
    [('yes', 'ja, klar')]
    """
    if format == "jsonl":
        return _read_json_lines(lines, columns, optional, config.label_separator)
    if format == "tsv":
        delimiter = "\t"
        raw_rows: Iterator[RawRow] = map(_split_tsv_line, lines)
    else:
        delimiter = _csv_delimiter(config)
        raw_rows = _split_csv_lines(lines, delimiter)
    has_header, rows = _detect_header(raw_rows, format, columns, config, name, [] if notes is None else notes)
    return _select_columns(rows, columns, optional, delimiter, has_header=has_header, name=name)


def _detect_header(
    rows: Iterator[RawRow],
    format: str,
    columns: Sequence[Column],
    config: ReadConfig,
    name: str,
    notes: list[str],
) -> tuple[bool, Iterator[RawRow]]:
    """Whether the first row names the columns; return all rows, too."""
    if config.header != "auto":
        return config.header == "yes", rows
    if any(_is_column_name(requested) for _, requested in columns):
        return True, rows
    sample = list(islice(rows, NUM_SAMPLED_ROWS))
    rows = chain(sample, rows)
    first_cells = [cell.strip() for cell in sample[0].cells] if sample else []
    roles = {role for role, _ in columns}
    if not first_cells:
        return format == "csv", rows
    first_names = {cell.lower() for cell in first_cells}
    if roles <= first_names:
        return True, rows
    names_columns = bool(roles & first_names)
    if names_columns and format == "csv":
        return True, rows
    if format == "tsv" and not names_columns:
        return False, rows
    has_header = not _looks_like_data(first_cells, [row.cells for row in sample[1:] if not row.fault])
    shown = ", ".join(repr(cell[:MAX_SHOWN_CELL]) for cell in first_cells)
    if has_header:
        notes.append(f"{name}:1: the first row ({shown}) is taken as the names of the columns; if not, use --no-header")
    else:
        notes.append(f"{name}:1: the first row ({shown}) is taken as data; if it names the columns, use --header")
    return has_header, rows


def _looks_like_data(cells: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row of a table is data: it has a sentence, a cell that recurs, or a number among numbers.

    >>> _looks_like_data(["good", "nice film"], [["bad", "dull"], ["good", "great"]])
    True
    >>> _looks_like_data(["0", "1"], [["bad", "dull"], ["good", "great"]])
    False
    """
    for index, cell in enumerate(cells):
        column = [row[index].strip() for row in rows if index < len(row)]
        is_number = bool(column) and all(_NUMBER.fullmatch(text) for text in (cell, *column))
        is_sentence = len(cell.split()) > MAX_NAME_WORDS or bool(_SENTENCE_END.search(cell))
        if is_number or is_sentence or (cell and cell in column):
            return True
    return False


def _split_tsv_line(line: Line) -> RawRow:
    cells = [] if line.fault else line.text.split("\t")
    return RawRow(line.line_number, line.raw, cells, line.fault or _find_blank_line(line))


def _csv_delimiter(config: ReadConfig) -> str:
    delimiter = {"": ",", "\\t": "\t", "tab": "\t"}.get(config.delimiter, config.delimiter)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ConfigError(f"delimiter must be a single character, not {config.delimiter!r}")
    return delimiter


def _find_blank_line(line: Line) -> Fault | None:
    if line.text.strip():
        return None
    return Fault(line.line_number, 0, kind="blank line", what="the line is blank", advice="remove it")


def _is_column_name(requested: str) -> bool:
    return bool(requested) and not requested.isdecimal()


def _select_columns(
    rows: Iterator[RawRow],
    columns: Sequence[Column],
    optional: Sequence[str],
    separator: str,
    *,
    has_header: bool,
    name: str,
) -> Iterator[DataRow]:
    """Yield the selected cells of each row; every row must have as many cells as the first."""
    num_columns = 0
    indices: list[int | None] = []
    for row in rows:
        if row.fault:
            if has_header and not num_columns:
                raise row.fault.error(name)
            yield DataRow(row.line, row.raw, (), row.fault)
            continue
        if not num_columns:
            resolver = _ColumnResolver(row.cells, columns, has_header=has_header, location=f"{name}:{row.line}")
            num_columns, required_indices = resolver.resolve()
            indices = [*required_indices, *map(resolver.find_optional, optional)]
            if has_header:
                continue
        if len(row.cells) != num_columns:
            yield DataRow(row.line, row.raw, (), _column_count_fault(row, num_columns, separator))
            continue
        fields = tuple("" if index is None else row.cells[index] for index in indices)
        yield DataRow(row.line, row.raw, fields, None)


def _column_count_fault(row: RawRow, num_columns: int, separator: str) -> Fault:
    separators = {"\t": "tabs", ",": "commas"}.get(separator, f"{separator!r}")
    what = f"{format_count(len(row.cells), 'column')} where {num_columns} are expected (separated by {separators})"
    return Fault(row.line, 0, kind="wrong number of columns", what=what, advice="correct the row")


class _ColumnResolver:
    """Finds the requested columns in the first row of a table."""

    def __init__(self, cells: Sequence[str], columns: Sequence[Column], *, has_header: bool, location: str) -> None:
        self.columns = columns
        self.has_header = has_header
        self.location = location
        self.num_cells = len(cells)
        self.header_names = [cell.strip() for cell in cells] if has_header else []
        self.role_indices = {
            role: self.header_names.index(name) for role, _ in columns if (name := self._find_role_name(role))
        }

    def resolve(self) -> tuple[int, list[int]]:
        """Number of cells that a row must have, and the indices of those that are selected."""
        if not any(requested for _, requested in self.columns):
            num_columns = len(self.columns)
            if len(self.role_indices) == num_columns:
                return self.num_cells, [*self.role_indices.values()]
            if self.num_cells == num_columns and len(self.role_indices) == num_columns - 1:
                return num_columns, self._complete()
            # of a file without header, the check of each row reports the missing cells with their line
            is_too_narrow = self.num_cells < num_columns and not self.has_header
            if self.num_cells == num_columns or is_too_narrow:
                return num_columns, list(range(num_columns))
        return self.num_cells, [self._find(role, requested) for role, requested in self.columns]

    def find_optional(self, role: str) -> int | None:
        """Index of the column that is named after a role; None if there is none."""
        name = self._find_role_name(role)
        return self.header_names.index(name) if name else None

    def _find_role_name(self, role: str) -> str:
        """Name of the column that is called like a role, in upper or lower case; empty if there is none."""
        if role in self.header_names:
            return role
        return next((name for name in self.header_names if name.lower() == role), "")

    def _complete(self) -> list[int]:
        """Indices of the columns where the header names all roles but one, which gets the column that is left."""
        (unnamed_index,) = {*range(self.num_cells)} - {*self.role_indices.values()}
        return [self.role_indices.get(role, unnamed_index) for role, _ in self.columns]

    def _find(self, role: str, requested: str) -> int:
        """Index of the column for one role."""
        column = requested or self._find_role_name(role)
        if not column:
            raise self._unnamed_column(role)
        if _is_column_name(column):
            if column not in self.header_names:
                raise DataError(
                    f"no column {column!r}{nearest(column, self.header_names)}",
                    location=self.location,
                    advice=f"there are {', '.join(self.header_names)}: select one with --{role}",
                )
            return self.header_names.index(column)
        if not 1 <= int(column) <= self.num_cells:
            raise DataError(f"no column {column}", location=self.location, advice=f"there are {self.num_cells}")
        return int(column) - 1

    def _unnamed_column(self, role: str) -> DataError:
        what = format_count(self.num_cells, "column")
        if self.has_header:
            names = f": {', '.join(self.header_names)}" if self.header_names else ""
            what += f"{names}, and none is named {role}"
        flags = " and ".join(f"--{other_role}" for other_role, _ in self.columns)
        advice = f"select columns with {flags} (a name from the first row, or a number from 1)"
        return DataError(what, location=self.location, advice=advice)


def _split_csv_lines(lines: Iterator[Line], delimiter: str) -> Iterator[RawRow]:
    """Yield rows of cells. A row with unmatched quotes is rejected, but only to the end of its first line."""
    pending: deque[Line] = deque()

    def next_line() -> Line | None:
        return pending.popleft() if pending else next(lines, None)

    while (line := next_line()) is not None:
        fault = line.fault or _find_blank_line(line)
        if fault:
            yield RawRow(line.line_number, line.raw, [], fault)
            continue
        row_lines = [line]
        parser = CsvRow(delimiter)
        fault = _parse_csv_row(parser, row_lines, next_line)
        if fault:
            pending.extendleft(reversed(row_lines[1:]))
            yield RawRow(line.line_number, line.raw, [], fault)
        else:
            raw = b"\n".join(row_line.raw for row_line in row_lines)
            yield RawRow(line.line_number, raw, parser.cells, None)


def _parse_csv_row(parser: CsvRow, row_lines: list[Line], next_line: Callable[[], Line | None]) -> Fault | None:
    """Feed lines to the parser until its row is complete; append those that follow the first to `row_lines`."""
    fault = parser.feed(row_lines[0])
    while parser.open_quote and not fault:
        num_bytes = sum(len(line.raw) for line in row_lines)
        if len(row_lines) > MAX_QUOTED_LINES or num_bytes > MAX_QUOTED_BYTES:
            return parser.unclosed_quote(f"more than {MAX_QUOTED_LINES} lines or {MAX_QUOTED_BYTES // 1024} KB")
        line = next_line()
        if line is None:
            return parser.unclosed_quote("the end of the file")
        row_lines.append(line)
        fault = parser.unclosed_quote("a faulty line") if line.fault else parser.feed(line)
    return fault


class CsvRow:
    """Parser of one row, which may extend over several lines."""

    def __init__(self, delimiter: str) -> None:
        self.delimiter = delimiter
        self.cells: list[str] = []
        self.open_quote: tuple[int, int] | None = None  # its line and column
        self._quoted: list[str] = []  # content of the open quote so far, in parts

    def feed(self, line: Line) -> Fault | None:
        """Parse one more line; return the fault of the row, if it has one."""
        text = line.text
        offset = 0
        if self.open_quote:
            self._quoted.append("\n")
        while True:
            if not self.open_quote and text[offset : offset + 1] == '"':
                self.open_quote = (line.line_number, offset + 1)
                self._quoted = []
                offset += 1
            if self.open_quote:
                stop = text.find('"', offset)
                if stop < 0:
                    self._quoted.append(text[offset:])
                    return None
                self._quoted.append(text[offset:stop])
                offset = stop + 1
                if text[offset : offset + 1] == '"':
                    self._quoted.append('"')
                    offset += 1
                    continue
                if text[offset : offset + 1] not in ("", self.delimiter):
                    return self._text_after_quote(line, offset)
                self.cells.append("".join(self._quoted))
                self.open_quote = None
            else:
                stop = text.find(self.delimiter, offset)
                cell = text[offset:] if stop < 0 else text[offset:stop]
                if '"' in cell:
                    return self._stray_quote(line, offset + cell.index('"'))
                self.cells.append(cell)
                offset += len(cell)
            if offset >= len(text):
                return None
            offset += 1  # the delimiter
            if offset == len(text):
                self.cells.append("")
                return None

    def unclosed_quote(self, limit: str) -> Fault:
        """Fault of a quote that is still open at a limit."""
        line, column = self.open_quote or (0, 0)
        what = f"the quote opened here is not closed by {limit}"
        return Fault(line, column, kind="open quote", what=what, advice='close it, and write a quote in a field as ""')

    def _text_after_quote(self, line: Line, offset: int) -> Fault:
        opening_line, column = self.open_quote or (0, 0)
        what = f"the quote opened here is closed at line {line.line_number}, column {offset}, but the field continues"
        return Fault(opening_line, column, kind="open quote", what=what, advice='write a quote in a field as ""')

    def _stray_quote(self, line: Line, offset: int) -> Fault:
        return Fault(
            line.line_number,
            offset + 1,
            kind="stray quote",
            what="a quote in a field that does not begin with one",
            advice='put the field in quotes and write "" for a quote',
        )


def _read_json_lines(
    lines: Iterator[Line], columns: Sequence[Column], optional: Sequence[str], label_separator: str
) -> Iterator[DataRow]:
    for line in lines:
        fault = line.fault or _find_blank_line(line)
        fields = fault if fault else _json_fields(line, columns, optional, label_separator)
        if isinstance(fields, Fault):
            yield DataRow(line.line_number, line.raw, (), fields)
        else:
            yield DataRow(line.line_number, line.raw, fields, None)


def _json_fault(line: Line, what: str, advice: str, column: int = 0) -> Fault:
    return Fault(line.line_number, column, kind="wrong JSON", what=what, advice=advice)


def _json_fields(
    line: Line, columns: Sequence[Column], optional: Sequence[str], separator: str
) -> tuple[str, ...] | Fault:
    """Select the fields of a JSON object; those of an inner object `translation` count, too."""
    record = _parse_json_object(line)
    if isinstance(record, Fault):
        return record
    translation = record.get("translation")
    inner = translation if isinstance(translation, dict) else {}
    values: Mapping[str, object] = {**record, **inner}
    fields = []
    for index, (role, requested) in enumerate(columns):
        name = requested or role
        if not requested and name not in values and len(inner) == len(columns):
            name = list(inner)[index]
        text = values.get(name)
        if role == "label":
            text = _label_as_text(text, separator)
        if not isinstance(text, str):
            problem = f"the field {name!r} is not a text"
            if name not in values:
                problem = f"no field {name!r}{nearest(name, values)}"
            return _json_fault(line, problem, f"name the field with --{role}")
        fields.append(text)
    return (*fields, *("" if values.get(role) is None else str(values[role]) for role in optional))


def _parse_json_object(line: Line) -> dict[str, object] | Fault:
    try:
        record = json.loads(line.text)
    except json.JSONDecodeError as error:
        return _json_fault(line, f"not JSON: {error.msg}", "one JSON object per line is needed", error.colno)
    except (RecursionError, ValueError):
        return _json_fault(line, "unreadable JSON: nested too deeply, or a number too long", "correct the line")
    if not isinstance(record, dict):
        return _json_fault(line, "not a JSON object", 'an object such as {"source": "…", "target": "…"} is needed')
    return record


def _label_as_text(label: object, separator: str) -> object:
    """Convert a label that is a number, or a list of several labels, to text; leave others as they are."""
    if type(label) in (int, bool):
        return json.dumps(label)
    if separator and isinstance(label, list) and all(isinstance(name, str) for name in label):
        return separator.join(label)
    return label


def find_field_fault(row: DataRow) -> Fault | None:
    """Fault of a control character in a row's fields, where quoting or escapes allow one; line breaks may be quoted."""
    for text in row.fields:
        fault = find_control_characters(text.replace("\n", " "), row.line)
        if fault:
            return fault._replace(column=0)
    return None
