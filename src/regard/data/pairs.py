"""Parallel texts: read pairs from two files or two columns, hold some out for validation, join several into one."""

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
from regard.data.batching import RngPurpose, epoch_order, epoch_rng
from regard.data.columns import Column, DataRow, find_field_fault, read_rows
from regard.data.ledger import Ledger, RowCounts, digest_columns
from regard.data.lines import Fault, Line, iter_checked_lines, open_bytes
from regard.errors import DataError, UsageError

HELD_OUT_FRACTION = 0.05  # of the distinct source texts
MAX_HELD_OUT = 1000
FORMATS_BY_SUFFIX = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}


@dataclass(frozen=True)
class ParallelTexts(RowCounts):
    """Pairs of texts, in the order of the files."""

    source: list[str]
    target: list[str]
    digest: str  # SHA-256 over all pairs in their order
    locations: NDArray[np.int64]  # line at which each pair begins
    file_names: tuple[str, ...] = ()
    fault_counts: Mapping[str, int] = field(default_factory=dict)  # kind of fault → rows rejected for it

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def from_texts(cls, source: Sequence[str], target: Sequence[str]) -> ParallelTexts:
        """Pairs that come from no file.

        >>> len(ParallelTexts.from_texts(["one", "two"], ["eins", "zwei"]))
        2
        """
        return cls(
            list(source),
            list(target),
            digest=digest_columns(source, target),
            num_read=len(source),
            locations=np.arange(1, len(source) + 1),
        )

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> ParallelTexts:
        """Pairs at these indices, with their own digest."""
        source = [self.source[index] for index in indices]
        target = [self.target[index] for index in indices]
        return replace(
            self,
            source=source,
            target=target,
            digest=digest_columns(source, target),
            locations=self.locations[np.asarray(indices, dtype=np.int64)],
        )


def read_pairs(
    paths: Sequence[str | Path], config: ReadConfig | None = None, *, reject_folder: str | Path | None = None
) -> ParallelTexts:
    """Read the pairs of two parallel files, or of one file with two columns.

    With `config.lenient`, faulty rows go to `<name>.rejected.jsonl`, beside the data or in `reject_folder`.
    """
    config = config or ReadConfig()
    names = [str(path) for path in paths]
    source: list[str] = []
    target: list[str] = []
    line_numbers = array("q")
    notes: list[str] = []
    with ExitStack() as stack:
        if len(names) == 2:
            rows = _read_parallel(names, [stack.enter_context(open_bytes(name)) for name in names], config)
        elif len(names) == 1:
            rows = _read_columns(names[0], stack.enter_context(open_bytes(names[0])), config, notes)
        else:
            raise UsageError(f"pairs are read from two parallel files or one with two columns, not {len(names)} files")
        ledger = stack.enter_context(Ledger(names, config, reject_folder))
        for row, raws, name in rows:
            if ledger.accept(row, raws, name):
                source.append(row.fields[0])
                target.append(row.fields[1])
                line_numbers.append(row.line)
    ledger.finish()
    return ParallelTexts(
        source,
        target,
        digest=digest_columns(source, target),
        num_read=ledger.num_read,
        num_rejected=ledger.num_rejected,
        locations=np.frombuffer(line_numbers, dtype=np.int64),
        file_names=tuple(names),
        fault_counts=dict(ledger.fault_counts.most_common()),
        reject_file=ledger.reject_file,
        notes=tuple(notes),
    )


LedgerEntry = tuple[DataRow, Sequence[bytes], str]  # a row, its bytes, and the file to name when it is at fault


def _read_columns(name: str, stream: BinaryIO, config: ReadConfig, notes: list[str]) -> Iterator[LedgerEntry]:
    format = detect_format(name, config)
    if format == "lines":
        raise DataError(
            "one file of plain lines has no second column",
            location=name,
            advice="use two parallel files, or set --format tsv, csv or jsonl",
        )
    columns: list[Column] = [("source", config.source), ("target", config.target)]
    lines = iter_checked_lines(stream, name, config.encoding)
    for row in read_rows(lines, format, columns, config, name, notes=notes):
        if not row.fault:
            row = row._replace(fault=find_field_fault(row) or _find_blank_side(row))
        yield row, [row.raw], name


def detect_format(name: str, config: ReadConfig) -> str:
    """Format of a file: the config's, or by the suffix of its name.

    >>> detect_format("reviews.csv.gz", ReadConfig())
    'csv'
    """
    if config.format != "auto":
        return config.format
    suffixes = [suffix.lower() for suffix in Path(name).suffixes if suffix.lower() != ".gz"]
    return FORMATS_BY_SUFFIX.get(suffixes[-1], "lines") if suffixes else "lines"


def _find_blank_side(row: DataRow) -> Fault | None:
    is_blank = [not text.strip() for text in row.fields]
    if not any(is_blank):
        return None
    subject = "the source side is" if is_blank[0] else "the target side is"
    if all(is_blank):
        subject = "both sides are"
    return Fault(row.line, 0, kind="blank", what=f"{subject} blank", advice="fill it in or remove the pair")


def _read_parallel(names: Sequence[str], streams: Sequence[BinaryIO], config: ReadConfig) -> Iterator[LedgerEntry]:
    if config.format not in ("auto", "lines"):
        raise UsageError(
            f"two files are read as parallel lines, not as {config.format}: use one file, or drop --format"
        )
    sides = [iter_checked_lines(stream, name, config.encoding) for name, stream in zip(names, streams, strict=True)]
    source_lengths = array("q")  # bytes of each line
    target_lengths = array("q")
    for source, target in zip_longest(*sides):
        if source is not None:
            source_lengths.append(len(source.raw))
        if target is not None:
            target_lengths.append(len(target.raw))
        # After the end of one file, the lines of the other are only counted.
        if source is not None and target is not None:
            yield _pair_lines(source, target, names)
    if len(source_lengths) != len(target_lengths):
        line = _estimate_slip(
            np.frombuffer(source_lengths, dtype=np.int64), np.frombuffer(target_lengths, dtype=np.int64)
        )
        raise DataError(
            f"parallel files need equal counts, {names[0]} has {len(source_lengths):,} lines, "
            f"{names[1]} has {len(target_lengths):,}; their lengths diverge at about line {line:,}",
            location=f"{names[1]}:{line}",
            advice="find the line that is missing, repeated or split in two",
        )


def _pair_lines(source: Line, target: Line, names: Sequence[str]) -> LedgerEntry:
    """Row of two parallel lines; the file that is named is the one with the fault."""
    row = DataRow(source.line_number, source.raw, (source.text, target.text), None)
    is_source_faulty = source.fault is not None
    fault = source.fault or target.fault
    if fault is None:
        fault = _find_blank_side(row)
        is_source_faulty = fault is not None and not source.text.strip()
    name = names[0] if is_source_faulty else names[1]
    return row._replace(fault=fault), [source.raw, target.raw], name


def _estimate_slip(source: NDArray[np.int64], target: NDArray[np.int64]) -> int:
    """Estimate the line at which two files of unequal line counts go out of step, from the lengths of their lines.

    Lines before it are paired as they are, lines after it shifted by the difference of the counts. The estimate
    minimises the total absolute deviation of the log length ratios from the difference of the median log lengths.
    """
    if not len(source) or not len(target):
        return 1
    longer, shorter = (target, source) if len(source) < len(target) else (source, target)
    num_lines = len(shorter)
    shift = len(longer) - num_lines
    longer_logs = np.log(longer + 3.0)
    shorter_logs = np.log(shorter + 3.0)
    typical_ratio = np.median(longer_logs) - np.median(shorter_logs)
    unshifted_ratios = longer_logs[:num_lines] - shorter_logs
    shifted_ratios = longer_logs[shift:] - shorter_logs
    cost_before = np.concatenate([[0.0], np.cumsum(np.abs(unshifted_ratios - typical_ratio))])
    cost_after = np.concatenate([np.cumsum(np.abs(shifted_ratios - typical_ratio)[::-1])[::-1], [0.0]])
    return int(np.argmin(cost_before + cost_after)) + 1


def hold_out_pairs(pairs: ParallelTexts, seed: int) -> tuple[ParallelTexts, ParallelTexts]:
    """Split off a small validation split at random; all pairs of one source text are in the same split."""
    texts = sorted(set(pairs.source))
    count = max(1, min(MAX_HELD_OUT, round(HELD_OUT_FRACTION * len(texts))))
    if len(texts) < 2:
        raise UsageError("one example cannot be split: set validation data with --valid")
    rng = epoch_rng(seed=seed, epoch=0, digest=pairs.digest, purpose=RngPurpose.HOLD_OUT)
    held_out = {texts[index] for index in rng.choice(len(texts), count, replace=False)}
    train = [index for index, text in enumerate(pairs.source) if text not in held_out]
    valid = [index for index, text in enumerate(pairs.source) if text in held_out]
    return pairs.select(train), pairs.select(valid)


def join_pairs(pairs: ParallelTexts, *, max_pairs: int, passes: int = 1, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yield texts of one to `max_pairs` joined pairs, each number equally likely; a pass uses every pair once.

    >>> rows = list(join_pairs(ParallelTexts.from_texts(["a", "b", "c", "d"], ["A", "B", "C", "D"]), max_pairs=3))
    >>> sorted(" ".join(source for source, _ in rows).split()), all(s.upper() == t for s, t in rows)
    (['a', 'b', 'c', 'd'], True)
    """
    for epoch in range(passes):
        order = epoch_order(len(pairs), seed=seed, epoch=epoch, digest=pairs.digest)
        rng = epoch_rng(seed=seed, epoch=epoch, digest=pairs.digest, purpose=RngPurpose.JOIN)
        start = 0
        while start < len(order):
            stop = start + int(rng.integers(1, max_pairs + 1))
            group = order[start:stop]
            source = " ".join(pairs.source[index] for index in group)
            target = " ".join(pairs.target[index] for index in group)
            yield source, target
            start = stop
