"""Read questions about passages in the form of SQuAD: strictly, every fault with its path in the JSON.

    {"data": [{"paragraphs": [{"context": "…", "qas": [{"question": "…", "id": "…",
        "answers": [{"text": "…", "answer_start": 17}], "is_impossible": false}]}]}]}

An answer must stand in its passage where it says. Questions without an answer (`is_impossible`) have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.data import ReadConfig
from regard.data.fields import Row
from regard.data.labelled import HELD_OUT_MOST, HELD_OUT_SHARE
from regard.data.lines import Fault, checked_encoding, open_bytes
from regard.data.order import chance
from regard.data.sources import Ledger, digest_of
from regard.errors import DataError, UsageError

MOST = 1 << 30  # bytes of a file


@dataclass(frozen=True)
class Asked:
    """A question about a passage, with the answers that people gave."""

    question: str
    passage: str
    answers: tuple[tuple[int, str], ...] = ()  # where each begins in the passage, and its text; there may be none
    name: str = ""  # the question's id
    place: str = ""  # file:path

    @property
    def texts(self) -> tuple[str, ...]:
        """The answers' texts; the empty text where there is no answer."""
        return tuple(text for _, text in self.answers) or ("",)


@dataclass(frozen=True)
class Questions:
    """Questions in the order of the files."""

    asked: list[Asked]
    digest: str  # SHA-256 over all of them in their order
    read: int = 0  # accepted + rejected
    rejected: int = 0
    reject_file: str = ""  # where the rejected questions are

    def __len__(self) -> int:
        return len(self.asked)

    @classmethod
    def of(cls, asked: Sequence[Asked]) -> Questions:
        """Return questions that come from no file."""
        return cls(list(asked), _digest(asked), len(asked))

    @property
    def unanswerable(self) -> int:
        """How many have no answer."""
        return sum(not one.answers for one in self.asked)

    def chosen(self, numbers: Sequence[int] | NDArray[np.int64]) -> Questions:
        """Return some of the questions, with a digest of their own."""
        asked = [self.asked[number] for number in numbers]
        return replace(self, asked=asked, digest=_digest(asked))


def _digest(asked: Sequence[Asked]) -> str:
    answers = ["\x1d".join(f"{start} {text}" for start, text in one.answers) for one in asked]
    return digest_of([one.question for one in asked], [one.passage for one in asked], answers)


def read_questions(
    paths: Sequence[str | Path], config: ReadConfig | None = None, *, rejects: str | Path | None = None
) -> Questions:
    """Return the questions of all files.

    With `config.lenient`, faulty questions go to `<name>.rejected.jsonl`; answers whose place does not fit are such.
    """
    if not paths:
        raise UsageError("no file of questions given: at least one is needed")
    config = config or ReadConfig()
    names = [str(path) for path in paths]
    found: list[Asked] = []
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(names, config, rejects))
        for name in names:
            for row, asked in _asked(_document(name, config), name):
                if ledger.accepts(row, [row.raw], name):
                    found.append(asked)
    ledger.settle()
    reject_file = str(ledger.path) if ledger.rejected else ""
    return Questions(found, _digest(found), ledger.read, ledger.rejected, reject_file)


def _document(name: str, config: ReadConfig) -> list[Any]:
    """Return the articles of a file."""
    with open_bytes(name) as stream:
        raw = stream.read(MOST + 1)
    if len(raw) > MOST:
        raise DataError(f"the file is longer than {MOST:,} bytes", place=name, advice="part it into several")
    codec = checked_encoding(config.encoding)
    try:
        data = json.loads(raw.decode("utf-8-sig" if codec == "utf-8" else codec))
    except UnicodeDecodeError as error:
        raise DataError(f"not {codec} at byte {error.start:,}", place=name, advice="convert it to UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"{name}:{error.lineno}:{error.colno}"
        raise DataError(f"not JSON: {error.msg}", place=place, advice="a file in the form of SQuAD is needed") from None
    except (RecursionError, ValueError):
        raise DataError("not JSON that can be read: nested too deeply or a number too long", place=name) from None
    try:
        return list(_inside(data, "data", list, ""))
    except _Wrong as wrong:
        raise wrong.fault.error(name) from None


class _Wrong(Exception):
    """What is wrong in a document."""

    def __init__(self, path: str, kind: str, what: str, advice: str = "see SQuAD's form") -> None:
        self.fault = Fault(0, 0, kind, what, advice, path)


_KINDS = {list: "a list", dict: "an object", str: "a text", int: "a whole number", bool: "true or false"}


def _checked(value: Any, kind: type, path: str) -> Any:
    if type(value) is not kind:
        raise _Wrong(path, "wrong JSON", f"{value!r:.40} where {_KINDS[kind]} is expected")
    return value


def _inside(holder: Any, name: str, kind: type, path: str, default: Any = None) -> Any:
    """Return a field of an object, of the kind that is expected."""
    _checked(holder, dict, path or "the document")
    if name not in holder:
        if default is not None:
            return default
        raise _Wrong(path or "the document", "wrong JSON", f"no field {name!r}")
    return _checked(holder[name], kind, f"{path}.{name}" if path else name)


def _asked(articles: list[Any], name: str) -> Iterator[tuple[Row, Asked]]:
    """Yield every question as a row for the ledger and as itself."""
    for at, article in enumerate(articles):
        path = f"data[{at}]"
        try:
            paragraphs = _inside(article, "paragraphs", list, path)
        except _Wrong as wrong:
            yield Row(0, b"", (), wrong.fault), Asked("", "")
            continue
        for number, paragraph in enumerate(paragraphs):
            within = f"{path}.paragraphs[{number}]"
            try:
                passage = _inside(paragraph, "context", str, within)
                questions = _inside(paragraph, "qas", list, within)
            except _Wrong as wrong:
                yield Row(0, b"", (), wrong.fault), Asked("", "")
                continue
            for turn, question in enumerate(questions):
                place = f"{within}.qas[{turn}]"
                raw = json.dumps(question, ensure_ascii=False).encode("utf-8", "replace")
                try:
                    yield Row(0, raw, (), None), _question(question, passage, place, name)
                except _Wrong as wrong:
                    yield Row(0, raw, (), wrong.fault), Asked("", "")


def _question(question: Any, passage: str, path: str, name: str) -> Asked:
    text = _inside(question, "question", str, path)
    for field, given in ((f"{path}.question", text), (f"{path}: its context", passage)):
        if not given.strip():
            raise _Wrong(field, "blank", "it is blank", "fill it in or take it out")
    answers = _inside(question, "answers", list, path, default=[])
    impossible = _inside(question, "is_impossible", bool, path, default=False)
    found: dict[tuple[int, str], None] = {}
    for number, answer in enumerate([] if impossible else answers):
        within = f"{path}.answers[{number}]"
        said, start = _inside(answer, "text", str, within), _inside(answer, "answer_start", int, within)
        if start < 0 or not said.strip() or passage[start : start + len(said)] != said:
            there = passage[max(0, start) : max(0, start) + len(said)]
            what = f"the answer {said!r:.60} does not stand at {start}: {there!r:.60} does"
            raise _Wrong(f"{within}.answer_start", "answer not in its place", what, "count characters from 0")
        found[start, said] = None
    if not found and not impossible:
        raise _Wrong(f"{path}.answers", "no answer", "no answer", 'say "is_impossible": true where there is none')
    return Asked(text, passage, tuple(found), str(question.get("id", "")), f"{name}:{path}")


def hold_out_questions(rows: Questions) -> tuple[Questions, Questions]:
    """Return the questions without a small share, and that share: whole passages, chosen by the data alone."""
    passages = sorted({one.passage for one in rows.asked})
    count = round(min(HELD_OUT_SHARE * len(passages), HELD_OUT_MOST * len(passages) / max(1, len(rows))))
    if not count or len(passages) < 2:
        raise UsageError(f"{len(passages)} passages are too few to hold some out: give validation data with --valid")
    drawn = chance(seed=0, epoch=0, digest=rows.digest, purpose=2).permutation(len(passages))[:count]
    held = {passages[place] for place in drawn}
    sides = [[at for at, one in enumerate(rows.asked) if (one.passage in held) is away] for away in (False, True)]
    return rows.chosen(sides[0]), rows.chosen(sides[1])
