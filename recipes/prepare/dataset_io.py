"""Shared by the scripts in this folder: their command line, and how data sets are read, split and written."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from regard.config.data import ReadConfig
from regard.data.ledger import iter_lines
from regard.data.synthetic import split_of_target

TaggedSentence = list[tuple[str, str]]  # token and tag


def parse_folders(description: str) -> tuple[Path, Path]:
    """Parse the command line: the folder to read from and the folder to write to, which is created."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("source", type=Path, help="folder of the data set as it is published")
    parser.add_argument("target", type=Path, help="folder to write; created if missing")
    arguments = parser.parse_args()
    if not arguments.source.is_dir():
        parser.error(f"{arguments.source} is not a folder")
    arguments.target.mkdir(parents=True, exist_ok=True)
    return arguments.source, arguments.target


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text file, compressed or not."""
    return iter_lines(path, ReadConfig(encoding=encoding))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines and print their number."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(line + "\n")
            count += 1
    print(f"{path}: {count:,} lines")


def write_json(path: Path, content: object) -> None:
    """Write a JSON file and print its path."""
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    print(path)


def write_tsv(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write tab-separated rows; control characters inside a cell become spaces."""
    write_lines(path, ("\t".join(re.sub(r"[\x00-\x1f]+", " ", cell).strip() for cell in row) for row in rows))


def write_splits(folder: Path, rows: Iterable[Sequence[str]]) -> None:
    """Split rows into train, valid and test files, 90, 5 and 5 percent; rows with equal first cells stay together."""
    splits: dict[str, list[Sequence[str]]] = {"train": [], "valid": [], "test": []}
    for row in rows:
        splits[split_of_target(row[0])].append(row)
    for split, split_rows in splits.items():
        write_tsv(folder / f"{split}.tsv", split_rows)


def parse_labelled_lines(lines: Iterable[str], label_names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield text and label name from lines that begin with a label's index."""
    for line in lines:
        label_index, text = line.split(" ", 1)
        yield text, label_names[int(label_index)]


def parse_tagged_lines(lines: Iterable[str], token_column: int = 0) -> Iterator[TaggedSentence]:
    """Yield the sentences of tab-separated lines; blank lines stand between them, the tag follows the token."""
    for is_sentence, group in groupby(lines, key=lambda line: bool(line.strip())):
        if is_sentence:
            rows = (line.split("\t") for line in group)
            yield [(row[token_column], row[token_column + 1]) for row in rows]


def write_conll(path: Path, sentences: Iterable[TaggedSentence]) -> None:
    """Write sentences in CoNLL columns: token, tab, tag; a blank line after each sentence."""
    num_sentences = 0
    num_tokens = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for sentence in sentences:
            file.writelines(f"{token}\t{tag}\n" for token, tag in sentence)
            file.write("\n")
            num_sentences += 1
            num_tokens += len(sentence)
    print(f"{path}: {num_sentences:,} sentences, {num_tokens:,} tokens")
