"""What the scripts here share: the folders they read and write, and how rows are written and split."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from regard.config.data import ReadConfig
from regard.data.made import split_of
from regard.data.sources import iter_lines


def folders(description: str) -> tuple[Path, Path]:
    """Return the folder to read from and the folder to write to, as given on the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("source", type=Path, help="folder of the set as its publishers have it")
    parser.add_argument("target", type=Path, help="folder to write; made when missing")
    given = parser.parse_args()
    if not given.source.is_dir():
        parser.error(f"{given.source} is not a folder")
    given.target.mkdir(parents=True, exist_ok=True)
    return given.source, given.target


def lines_of(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text file, packed or not."""
    return iter_lines(path, ReadConfig(encoding=encoding))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines and say how many."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(line + "\n")
            count += 1
    print(f"{path}: {count:,} lines")


def write_json(path: Path, value: object) -> None:
    """Write one JSON value."""
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    print(path)


def write_rows(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write rows as columns with tabs between them; control characters inside become spaces."""
    write_lines(path, ("\t".join(re.sub(r"[\x00-\x1f]+", " ", cell).strip() for cell in row) for row in rows))


def write_splits(folder: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write train, valid and test files: rows with the same first column go into the same one, 90, 5 and 5 percent."""
    found: dict[str, list[Sequence[str]]] = {"train": [], "valid": [], "test": []}
    for row in rows:
        found[split_of(row[0])].append(row)
    for split, kept in found.items():
        write_rows(folder / f"{split}.tsv", kept)


def labelled(lines: Iterable[str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield text and label name from lines that begin with a label's number."""
    for line in lines:
        number, text = line.split(" ", 1)
        yield text, names[int(number)]


def write_tagged(path: Path, sentences: Iterable[Sequence[tuple[str, str]]]) -> None:
    """Write sentences in CoNLL columns: token, tab, tag; a blank line after each sentence."""
    counts: Counter[str] = Counter()
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for sentence in sentences:
            file.writelines(f"{token}\t{tag}\n" for token, tag in sentence)
            file.write("\n")
            counts["sentences"] += 1
            counts["tokens"] += len(sentence)
    print(f"{path}: {counts['sentences']:,} sentences, {counts['tokens']:,} tokens")
