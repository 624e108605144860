"""Read running text: paragraphs, lines or all of plain text files, each a document; every fault with its place.

Training a language model on running text: documents, a tokenizer, the model's size, and what is kept in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from regard.config.data import ReadConfig
from regard.data.batching import epoch_rng
from regard.data.columns import DataRow
from regard.data.ledger import Ledger, digest_columns
from regard.data.lines import Line, iter_checked_lines, open_bytes
from regard.errors import DataError, UsageError


@dataclass(frozen=True)
class Documents:
    """Texts in the order of the files."""

    texts: list[str]
    digest: str  # SHA-256 over all texts in their order
    num_read: int = 0  # lines, accepted and rejected
    rejected: int = 0
    reject_file: str = ""  # where the rejected lines are

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def of(cls, texts: Sequence[str]) -> Documents:
        """Return texts that come from no file."""
        return cls(list(texts), digest_columns(texts))

    def select(self, numbers: Iterable[int]) -> Documents:
        """Return some of the texts, with a digest of their own."""
        texts = [self.texts[number] for number in numbers]
        return replace(self, texts=texts, digest=digest_columns(texts))


def read_documents(
    paths: Sequence[str | Path],
    config: ReadConfig | None = None,
    document: str = "auto",
    *,
    rejects: str | Path | None = None,
) -> Documents:
    """Return the documents of all files: `paragraph` (up to a blank line), `line`, or `file`, with its line breaks.

    `auto` takes paragraphs where a file has blank lines between its text, and lines where it has none. With
    `config.lenient`, faulty lines go to `<name>.rejected.jsonl`, beside the first file or in the folder `rejects`.
    """
    if not paths:
        raise UsageError("no text file given: at least one is needed")
    config = config or ReadConfig()
    names = [str(path) for path in paths]
    texts: list[str] = []
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(names, config, rejects))
        for name in names:
            stream = stack.enter_context(open_bytes(name))
            kept = [line.text for line in _accepted(iter_checked_lines(stream, name, config.encoding), ledger, name)]
            found = list(_documents(kept, document))
            if not found and not ledger.rejected:
                raise DataError("holds no text", location=name, advice="at least one line that is not blank is needed")
            texts += found
    ledger.finish()
    return Documents(
        texts, digest_columns(texts), ledger.num_read, ledger.rejected, str(ledger.path) if ledger.rejected else ""
    )


def _accepted(found: Iterator[Line], ledger: Ledger, name: str) -> Iterator[Line]:
    for line in found:
        if ledger.accept(DataRow(line.line_number, line.raw, (), line.fault), [line.raw], name):
            yield line


def _documents(found: Sequence[str], document: str) -> Iterator[str]:
    r"""Yield the documents of a file's lines, blank ones included.

    >>> list(_documents(["", "one", " more", "", "two", ""], "file"))
    ['one\n more\n\ntwo\n']
    >>> list(_documents(["", "one", "more", "", "two"], "auto")), list(_documents(["one", "two"], "auto"))
    (['one more', 'two'], ['one', 'two'])
    """
    if document == "file":
        text = "\n".join([*found, ""]).lstrip("\n")
        yield from [text.rstrip("\n") + "\n"] if text.strip() else []
        return
    found = [text.strip() for text in found]
    filled = [place for place, text in enumerate(found) if text]
    apart = bool(filled) and filled[-1] - filled[0] + 1 > len(filled)  # blank lines stand between
    if document == "line" or (document == "auto" and not apart):
        yield from (found[place] for place in filled)
        return
    part: list[str] = []
    for text in [*found, ""]:
        if text:
            part.append(text)
        elif part:
            yield " ".join(part)
            part = []


HELD_OUT_SHARE, HELD_OUT_MOST = 0.05, 200_000  # of the text, in characters at most


def hold_out_documents(documents: Documents, seed: int) -> tuple[Documents, Documents]:
    """Return the documents without a small share of the text, and that share; equal texts are wholly on one side."""
    sizes: dict[str, int] = {}
    for text in documents.texts:
        sizes[text] = sizes.get(text, 0) + len(text)
    if len(sizes) < 2:
        raise UsageError("one document cannot be split: give validation text with --valid, or set --document line")
    texts = sorted(sizes)
    drawn = epoch_rng(seed=seed, epoch=0, digest=documents.digest, purpose=2).permutation(len(texts))
    grown = np.cumsum([sizes[texts[number]] for number in drawn])
    most = min(HELD_OUT_MOST, HELD_OUT_SHARE * grown[-1])
    count = min(max(1, int(np.searchsorted(grown, most))), len(texts) - 1)
    held = {texts[number] for number in drawn[:count]}
    kept = [number for number, text in enumerate(documents.texts) if text not in held]
    away = [number for number, text in enumerate(documents.texts) if text in held]
    return documents.select(kept), documents.select(away)
