"""Documents of running text: paragraphs, lines or whole text files; every fault has its location."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from regard.config.data import ReadConfig
from regard.data.batching import RngPurpose, epoch_rng
from regard.data.columns import DataRow
from regard.data.ledger import Ledger, RowCounts, digest_columns
from regard.data.lines import Line, iter_checked_lines, open_bytes
from regard.errors import DataError, UsageError

HELD_OUT_FRACTION = 0.05  # of the characters
MAX_HELD_OUT = 200_000  # characters


@dataclass(frozen=True)
class Documents(RowCounts):
    """Texts in the order of the files; the rows that are counted are lines."""

    texts: list[str]
    digest: str  # SHA-256 over all texts in their order

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> Documents:
        """Texts that come from no file."""
        return cls(list(texts), digest_columns(texts))

    def select(self, indices: Iterable[int]) -> Documents:
        """Texts at these indices, with their own digest."""
        texts = [self.texts[index] for index in indices]
        return replace(self, texts=texts, digest=digest_columns(texts))


def read_documents(
    paths: Sequence[str | Path],
    config: ReadConfig | None = None,
    document: str = "auto",
    *,
    reject_folder: str | Path | None = None,
) -> Documents:
    """Read the documents of all files: `paragraph` (up to a blank line), `line`, or `file`, with its line breaks.

    `auto` takes paragraphs where a file has blank lines between its text, and lines where it has none. With
    `config.lenient`, faulty lines go to `<name>.rejected.jsonl`, beside the first file or in `reject_folder`.
    """
    if not paths:
        raise UsageError("no text file: at least one is needed")
    config = config or ReadConfig()
    names = [str(path) for path in paths]
    texts: list[str] = []
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(names, config, reject_folder))
        for name in names:
            lines = iter_checked_lines(stack.enter_context(open_bytes(name)), name, config.encoding)
            accepted = [line.text for line in _iter_accepted(lines, ledger, name)]
            file_texts = list(_split_documents(accepted, document))
            if not file_texts and not ledger.num_rejected:
                raise DataError("has no text", location=name, advice="at least one line that is not blank is needed")
            texts += file_texts
    ledger.finish()
    return Documents(
        texts,
        digest_columns(texts),
        num_read=ledger.num_read,
        num_rejected=ledger.num_rejected,
        reject_file=ledger.reject_file,
    )


def _iter_accepted(lines: Iterator[Line], ledger: Ledger, name: str) -> Iterator[Line]:
    for line in lines:
        if ledger.accept(DataRow(line.line_number, line.raw, (), line.fault), [line.raw], name):
            yield line


def _split_documents(lines: Sequence[str], document: str) -> Iterator[str]:
    r"""Yield the documents of a file's lines, blank ones included.

    >>> list(_split_documents(["", "one", " more", "", "two", ""], "file"))
    ['one\n more\n\ntwo\n']
    >>> list(_split_documents(["", "one", "more", "", "two"], "auto")), list(_split_documents(["one", "two"], "auto"))
    (['one more', 'two'], ['one', 'two'])
    """
    if document == "file":
        text = "\n".join([*lines, ""]).lstrip("\n")
        if text.strip():
            yield text.rstrip("\n") + "\n"
        return
    stripped = [line.strip() for line in lines]
    nonblank = [index for index, text in enumerate(stripped) if text]
    has_paragraphs = bool(nonblank) and nonblank[-1] - nonblank[0] + 1 > len(nonblank)
    if document == "line" or (document == "auto" and not has_paragraphs):
        yield from (stripped[index] for index in nonblank)
        return
    paragraph: list[str] = []
    for text in [*stripped, ""]:
        if text:
            paragraph.append(text)
        elif paragraph:
            yield " ".join(paragraph)
            paragraph = []


def hold_out_documents(documents: Documents, seed: int) -> tuple[Documents, Documents]:
    """Split off a validation split with a small part of the text, at random; equal texts are in the same split."""
    num_characters: dict[str, int] = {}  # of all copies of a text
    for text in documents.texts:
        num_characters[text] = num_characters.get(text, 0) + len(text)
    if len(num_characters) < 2:
        raise UsageError(
            "one document cannot be split: set validation text with --valid, or pass --document-boundary line"
        )
    texts = sorted(num_characters)
    rng = epoch_rng(seed=seed, epoch=0, digest=documents.digest, purpose=RngPurpose.HOLD_OUT)
    order = rng.permutation(len(texts))
    cumulative = np.cumsum([num_characters[texts[index]] for index in order])
    max_characters = min(MAX_HELD_OUT, HELD_OUT_FRACTION * cumulative[-1])
    count = min(max(1, int(np.searchsorted(cumulative, max_characters))), len(texts) - 1)
    held_out = {texts[index] for index in order[:count]}
    train = [index for index, text in enumerate(documents.texts) if text not in held_out]
    valid = [index for index, text in enumerate(documents.texts) if text in held_out]
    return documents.select(train), documents.select(valid)
