"""Read running text: paragraphs, lines or all of plain text files, each a document; every fault with its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from regard.config.data import ReadConfig
from regard.data.fields import Row
from regard.data.lines import Line, lines, open_bytes
from regard.data.sources import Ledger, digest_of
from regard.errors import DataError, UsageError


@dataclass(frozen=True)
class Documents:
    """Texts in the order of the files."""

    texts: list[str]
    digest: str  # SHA-256 over all texts in their order
    read: int = 0  # lines, accepted and rejected
    rejected: int = 0
    reject_file: str = ""  # where the rejected lines are

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def of(cls, texts: Sequence[str]) -> Documents:
        """Return texts that come from no file."""
        return cls(list(texts), digest_of(texts))

    def chosen(self, numbers: Iterable[int]) -> Documents:
        """Return some of the texts, with a digest of their own."""
        texts = [self.texts[number] for number in numbers]
        return replace(self, texts=texts, digest=digest_of(texts))


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
            kept = [line.text for line in _accepted(lines(stream, name, config.encoding), ledger, name)]
            found = list(_documents(kept, document))
            if not found and not ledger.rejected:
                raise DataError("holds no text", place=name, advice="at least one line that is not blank is needed")
            texts += found
    ledger.settle()
    return Documents(texts, digest_of(texts), ledger.read, ledger.rejected, str(ledger.path) if ledger.rejected else "")


def _accepted(found: Iterator[Line], ledger: Ledger, name: str) -> Iterator[Line]:
    for line in found:
        if ledger.accepts(Row(line.number, line.raw, (), line.fault), [line.raw], name):
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
