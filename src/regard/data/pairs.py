"""Read data files strictly: every row is accepted, or rejected with its place; none is lost.

    bytes ─► lines (`lines.py`) ─► rows of fields (`fields.py`) ─► accepted, or in the `Ledger` ─► `Pairs`

A reader of another kind of file takes lines or rows, says what is wrong with each and tells a `Ledger`.

Rows of several pairs joined: texts of many lengths from texts of one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from regard.config.data import ReadConfig
from regard.data.batching import epoch_order, epoch_rng
from regard.data.columns import Column, DataRow, find_field_fault, read_rows
from regard.data.ledger import Ledger, digest_columns
from regard.data.lines import Fault, iter_checked_lines, open_bytes
from regard.errors import DataError, UsageError

HELD_OUT_SHARE, HELD_OUT_MOST = 0.05, 1000  # of the pairs
FORMS = {".tsv": "tsv", ".tab": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


@dataclass(frozen=True)
class ParallelTexts:
    """Pairs of texts, in the order of the files."""

    source: list[str]
    target: list[str]
    digest: str  # SHA-256 over all pairs in their order
    num_read: int  # accepted + rejected
    rejected: int
    locations: NDArray[np.int64]  # the line that each pair began at
    file_names: tuple[str, ...] = ()  # of the files
    kinds: Mapping[str, int] = field(default_factory=dict)  # of fault → rows rejected for it
    reject_file: str = ""  # where the rejected rows are

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def from_texts(cls, source: Sequence[str], target: Sequence[str]) -> ParallelTexts:
        """Return pairs that come from no file.

        >>> len(ParallelTexts.from_texts(["one", "two"], ["eins", "zwei"]))
        2
        """
        places = np.arange(1, len(source) + 1)
        return cls(list(source), list(target), digest_columns(source, target), len(source), 0, places)

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> ParallelTexts:
        """Return some of the pairs, with a digest of their own."""
        source = [self.source[number] for number in indices]
        target = [self.target[number] for number in indices]
        places = self.locations[np.asarray(indices, dtype=np.int64)]
        return replace(self, source=source, target=target, digest=digest_columns(source, target), locations=places)


def read_pairs(
    paths: Sequence[str | Path], config: ReadConfig | None = None, *, rejects: str | Path | None = None
) -> ParallelTexts:
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
            if ledger.accept(row, raws, name):
                source.append(row.fields[0])
                target.append(row.fields[1])
                places.append(row.line)
    ledger.finish()
    return ParallelTexts(
        source,
        target,
        digest_columns(source, target),
        ledger.num_read,
        ledger.rejected,
        np.frombuffer(places, dtype=np.int64),
        tuple(names),
        dict(ledger.kinds.most_common()),
        str(ledger.path) if ledger.rejected else "",
    )


Found = tuple[DataRow, Sequence[bytes], str]  # a row, its bytes, and the file to name when it is at fault


def _columns(name: str, stream: BinaryIO, config: ReadConfig) -> Iterator[Found]:
    form = detect_format(name, config)
    if form == "lines":
        raise DataError(
            "one file of plain lines has no second column",
            location=name,
            advice="give two parallel files, or say what it is with --format tsv, csv or jsonl",
        )
    wanted: list[Column] = [("source", config.source), ("target", config.target)]
    for row in read_rows(iter_checked_lines(stream, name, config.encoding), form, wanted, config, name):
        if not row.fault:
            row = row._replace(fault=find_field_fault(row) or _blank_side(row))
        yield row, [row.raw], name


def detect_format(name: str, config: ReadConfig) -> str:
    """Return the form of a file: as the config says, or by the name's ending.

    >>> detect_format("reviews.csv.gz", ReadConfig())
    'csv'
    """
    if config.format != "auto":
        return config.format
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    return FORMS.get(next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), ""), "lines")


def _blank_side(row: DataRow) -> Fault | None:
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
    sides = [iter_checked_lines(stream, name, config.encoding) for name, stream in zip(names, streams, strict=True)]
    lengths = [array("q"), array("q")]
    for pair in zip_longest(*sides):
        for found, line in zip(lengths, pair, strict=True):
            if line is not None:
                found.append(len(line.raw))
        left, right = pair
        if left is None or right is None:
            continue  # one file is longer: count on
        row = DataRow(left.line_number, left.raw, (left.text, right.text), None)
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
            location=f"{names[1]}:{line}",
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


def hold_out_pairs(pairs: ParallelTexts, seed: int) -> tuple[ParallelTexts, ParallelTexts]:
    """Return the pairs without a small share, and that share; a source text is wholly on one side."""
    texts = sorted(set(pairs.source))
    count = max(1, min(HELD_OUT_MOST, round(HELD_OUT_SHARE * len(texts))))
    if len(texts) < 2:
        raise UsageError("one example cannot be split: give validation data with --valid")
    drawn = epoch_rng(seed=seed, epoch=0, digest=pairs.digest, purpose=2).choice(len(texts), count, replace=False)
    held = {texts[number] for number in drawn}
    kept = [number for number, text in enumerate(pairs.source) if text not in held]
    away = [number for number, text in enumerate(pairs.source) if text in held]
    return pairs.select(kept), pairs.select(away)


SIZES = 4  # the purpose of chance; others have lower numbers


def join_pairs(pairs: ParallelTexts, *, max_pairs: int, passes: int = 1, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yield rows of one to `most` pairs, each number of them as often as any other; a pass uses every pair once.

    >>> rows = list(join_pairs(ParallelTexts.from_texts(["a", "b", "c", "d"], ["A", "B", "C", "D"]), max_pairs=3))
    >>> sorted(" ".join(source for source, _ in rows).split()), all(s.upper() == t for s, t in rows)
    (['a', 'b', 'c', 'd'], True)
    """
    for number in range(passes):
        arranged = epoch_order(len(pairs), seed=seed, epoch=number, digest=pairs.digest)
        draw = epoch_rng(seed=seed, epoch=number, digest=pairs.digest, purpose=SIZES)
        first = 0
        while first < len(arranged):
            last = first + int(draw.integers(1, max_pairs + 1))
            some = arranged[first:last]
            yield " ".join(pairs.source[one] for one in some), " ".join(pairs.target[one] for one in some)
            first = last
