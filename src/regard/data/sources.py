"""Read data files strictly: every row is accepted, or rejected with its place; none is lost.

    bytes ─► lines (`lines.py`) ─► rows of fields (`fields.py`) ─► accepted, or in the `Ledger` ─► `Pairs`

A reader of another kind of file takes lines or rows, says what is wrong with each and tells a `Ledger`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np
from numpy.typing import NDArray

from regard.config.data import ReadConfig
from regard.data.fields import Column, Row, field_fault, rows_of
from regard.data.lines import Fault, lines, open_bytes
from regard.data.order import chance
from regard.errors import DataError, DiskError, UsageError

SHOWN = 20  # faults listed in one message
HELD_OUT_SHARE, HELD_OUT_MOST = 0.05, 1000  # of the pairs
FORMS = {".tsv": "tsv", ".tab": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts, in the order of the files."""

    source: list[str]
    target: list[str]
    digest: str  # SHA-256 over all pairs in their order
    read: int  # accepted + rejected
    rejected: int
    places: NDArray[np.int64]  # the line that each pair began at
    names: tuple[str, ...] = ()  # of the files
    kinds: Mapping[str, int] = field(default_factory=dict)  # of fault → rows rejected for it
    reject_file: str = ""  # where the rejected rows are

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def of(cls, source: Sequence[str], target: Sequence[str]) -> Pairs:
        """Return pairs that come from no file.

        >>> len(Pairs.of(["one", "two"], ["eins", "zwei"]))
        2
        """
        places = np.arange(1, len(source) + 1)
        return cls(list(source), list(target), digest_of(source, target), len(source), 0, places)

    def chosen(self, numbers: Sequence[int] | NDArray[np.int64]) -> Pairs:
        """Return some of the pairs, with a digest of their own."""
        source = [self.source[number] for number in numbers]
        target = [self.target[number] for number in numbers]
        places = self.places[np.asarray(numbers, dtype=np.int64)]
        return replace(self, source=source, target=target, digest=digest_of(source, target), places=places)


def digest_of(*columns: Sequence[str]) -> str:
    """Return the SHA-256 of rows of texts; their order matters.

    >>> digest_of(["a", "b"], ["c", "d"]) == digest_of(["b", "a"], ["d", "c"])
    False
    """
    digest = hashlib.sha256()
    for row in zip(*columns, strict=True):
        digest.update("\x1f".join(row).encode() + b"\x1e")  # control characters that no accepted text holds
    return digest.hexdigest()


def read_pairs(
    paths: Sequence[str | Path], config: ReadConfig | None = None, *, rejects: str | Path | None = None
) -> Pairs:
    """Return the pairs of two parallel files, or of one file with two columns.

    With `config.lenient`, faulty rows go to `<name>.rejected.jsonl`, beside the data or in the folder `rejects`.
    """
    config = config or ReadConfig()
    names = [str(path) for path in paths]
    with ExitStack() as stack:
        if len(names) == 2:
            rows = _parallel(names, [stack.enter_context(open_bytes(name)) for name in names], config)
        elif len(names) == 1:
            rows = _columns(names[0], stack.enter_context(open_bytes(names[0])), config)
        else:
            raise UsageError(f"{len(names)} files given: two parallel files or one with two columns are needed")
        ledger = stack.enter_context(Ledger(names, config, rejects))
        source, target, places = list[str](), list[str](), array("q")
        for row, raws, name in rows:
            if ledger.accepts(row, raws, name):
                source.append(row.fields[0])
                target.append(row.fields[1])
                places.append(row.line)
    ledger.settle()
    return Pairs(
        source,
        target,
        digest_of(source, target),
        ledger.read,
        ledger.rejected,
        np.frombuffer(places, dtype=np.int64),
        tuple(names),
        dict(ledger.kinds.most_common()),
        str(ledger.path) if ledger.rejected else "",
    )


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
        for line in lines(stream, name, config.encoding):
            if line.fault:
                raise line.fault.error(name)
            yield line.text


class Ledger:
    """Counts what is read; rejected rows are listed (strict) or written to a file (lenient)."""

    def __init__(self, names: Sequence[str], config: ReadConfig, folder: str | Path | None = None) -> None:
        self.names, self.config = names, config
        self.read = self.rejected = 0
        self.kinds: Counter[str] = Counter()
        self.shown: list[DataError] = []
        first = Path(names[0])
        self.path = Path(folder or first.parent) / f"{first.name}.rejected.jsonl"
        self._file: TextIO | None = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def accepts(self, row: Row, raws: Sequence[bytes], name: str) -> bool:
        """Count one row; return whether it is to be kept."""
        self.read += 1
        if not row.fault:
            return True
        self.rejected += 1
        self.kinds[row.fault.kind] += 1
        if len(self.shown) < SHOWN:
            self.shown.append(row.fault.error(name))
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

    def settle(self) -> None:
        """Raise what the rows come to: nothing read, faults in strict mode, too many of them in lenient mode."""
        if not self.read:
            raise DataError("the file is empty", place=self.names[0], advice="at least one row is needed")
        if not self.rejected:
            return
        totals = ", ".join(f"{count:,} × {kind}" for kind, count in self.kinds.most_common())
        summary = f"{self.rejected:,} of {self.read:,} rows rejected: {totals}"
        listed = "\n".join(map(str, self.shown))
        if not self.config.lenient:
            first = self.shown[0].place
            more = f"\n… and {self.rejected - SHOWN:,} more" if self.rejected > SHOWN else ""
            advice = "use --lenient to go on without such rows"
            raise DataError(f"{listed.removeprefix(first + ': ')}{more}\n{summary}\n{advice}", place=first)
        if self.rejected == self.read or 100 * self.rejected > self.config.max_reject * self.read:
            raise DataError(
                f"{summary}, more than {self.config.max_reject:g} % (--max-reject); they are in {self.path}\n{listed}"
            )


Found = tuple[Row, Sequence[bytes], str]  # a row, its bytes, and the file to name when it is at fault


def _columns(name: str, stream: BinaryIO, config: ReadConfig) -> Iterator[Found]:
    form = form_of(name, config)
    if form == "lines":
        raise DataError(
            "one file of plain lines has no second column",
            place=name,
            advice="give two parallel files, or say what it is with --format tsv, csv or jsonl",
        )
    wanted: list[Column] = [("source", config.source), ("target", config.target)]
    for row in rows_of(lines(stream, name, config.encoding), form, wanted, config, name):
        if not row.fault:
            row = row._replace(fault=field_fault(row) or _blank_side(row))
        yield row, [row.raw], name


def form_of(name: str, config: ReadConfig) -> str:
    """Return the form of a file: as the config says, or by the name's ending.

    >>> form_of("reviews.csv.gz", ReadConfig())
    'csv'
    """
    if config.format != "auto":
        return config.format
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    return FORMS.get(next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), ""), "lines")


def _blank_side(row: Row) -> Fault | None:
    blank = [not text.strip() for text in row.fields]
    if not any(blank):
        return None
    side = "both sides are" if all(blank) else f"the {'source' if blank[0] else 'target'} side is"
    return Fault(row.line, 0, "blank", f"{side} blank", "fill it in or take the pair out")


def _parallel(names: Sequence[str], streams: Sequence[BinaryIO], config: ReadConfig) -> Iterator[Found]:
    if config.format not in ("auto", "lines"):
        raise UsageError(
            f"two files are read as parallel lines, not as {config.format}: give one file, or drop --format"
        )
    sides = [lines(stream, name, config.encoding) for name, stream in zip(names, streams, strict=True)]
    lengths = [array("q"), array("q")]
    for pair in zip_longest(*sides):
        for found, line in zip(lengths, pair, strict=True):
            if line is not None:
                found.append(len(line.raw))
        left, right = pair
        if left is None or right is None:
            continue  # one file is longer: count on
        row = Row(left.number, left.raw, (left.text, right.text), None)
        fault, name = left.fault or right.fault, names[0] if left.fault else names[1]
        if not fault and (fault := _blank_side(row)):
            name = names[0] if not left.text.strip() else names[1]
        yield row._replace(fault=fault), [left.raw, right.raw], name
    counts = [len(found) for found in lengths]
    if counts[0] != counts[1]:
        line = _slip(*(np.frombuffer(found, dtype=np.int64) for found in lengths))
        raise DataError(
            f"parallel files need equal counts, {names[0]} has {counts[0]:,} lines, {names[1]} has {counts[1]:,}; "
            f"their lengths go apart at about line {line:,}",
            place=f"{names[1]}:{line}",
            advice="find the line that is missing, doubled or cut in two",
        )


def _slip(source: NDArray[np.int64], target: NDArray[np.int64]) -> int:
    """Return the line at which two files of unequal counts most likely slip.

    The lines before it are taken as they stand, those after it shifted by the difference of the counts; the place
    chosen leaves the logarithms of the length ratios least spread in all.
    """
    if not len(source) or not len(target):
        return 1
    swap = len(source) < len(target)
    longer, shorter = (target, source) if swap else (source, target)
    size, shift = len(shorter), len(longer) - len(shorter)
    long_logs, short_logs = np.log(longer + 3.0), np.log(shorter + 3.0)
    plain, shifted = long_logs[:size] - short_logs, long_logs[shift:] - short_logs
    usual = np.median(long_logs) - np.median(short_logs)
    before = np.concatenate([[0.0], np.cumsum(np.abs(plain - usual))])
    after = np.concatenate([np.cumsum(np.abs(shifted - usual)[::-1])[::-1], [0.0]])
    return int(np.argmin(before + after)) + 1


def hold_out_pairs(pairs: Pairs, seed: int) -> tuple[Pairs, Pairs]:
    """Return the pairs without a small share, and that share; a source text is wholly on one side."""
    texts = sorted(set(pairs.source))
    count = max(1, min(HELD_OUT_MOST, round(HELD_OUT_SHARE * len(texts))))
    if len(texts) < 2:
        raise UsageError("one example cannot be split: give validation data with --valid")
    drawn = chance(seed=seed, epoch=0, digest=pairs.digest, purpose=2).choice(len(texts), count, replace=False)
    held = {texts[number] for number in drawn}
    kept = [number for number, text in enumerate(pairs.source) if text not in held]
    away = [number for number, text in enumerate(pairs.source) if text in held]
    return pairs.chosen(kept), pairs.chosen(away)
