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
from regard.data.batching import epoch_rng
from regard.data.columns import DataRow
from regard.data.labelled import HELD_OUT_MOST, HELD_OUT_SHARE
from regard.data.ledger import Ledger, digest_columns
from regard.data.lines import Fault, check_encoding, open_bytes
from regard.errors import DataError, UsageError

MOST = 1 << 30  # bytes of a file


@dataclass(frozen=True)
class SquadExample:
    """A question about a passage, with the answers that people gave."""

    question: str
    passage: str
    answers: tuple[tuple[int, str], ...] = ()  # where each begins in the passage, and its text; there may be none
    name: str = ""  # the question's id
    location: str = ""  # file:path

    @property
    def texts(self) -> tuple[str, ...]:
        """The answers' texts; the empty text where there is no answer."""
        return tuple(text for _, text in self.answers) or ("",)


@dataclass(frozen=True)
class SquadExamples:
    """Questions in the order of the files."""

    examples: list[SquadExample]
    digest: str  # SHA-256 over all of them in their order
    num_read: int = 0  # accepted + rejected
    rejected: int = 0
    reject_file: str = ""  # where the rejected questions are

    def __len__(self) -> int:
        return len(self.examples)

    @classmethod
    def of(cls, asked: Sequence[SquadExample]) -> SquadExamples:
        """Return questions that come from no file."""
        return cls(list(asked), _digest(asked), len(asked))

    @property
    def num_unanswerable(self) -> int:
        """How many have no answer."""
        return sum(not one.answers for one in self.examples)

    def select(self, numbers: Sequence[int] | NDArray[np.int64]) -> SquadExamples:
        """Return some of the questions, with a digest of their own."""
        asked = [self.examples[number] for number in numbers]
        return replace(self, examples=asked, digest=_digest(asked))


def _digest(asked: Sequence[SquadExample]) -> str:
    answers = ["\x1d".join(f"{start} {text}" for start, text in one.answers) for one in asked]
    return digest_columns([one.question for one in asked], [one.passage for one in asked], answers)


def read_squad(
    paths: Sequence[str | Path], config: ReadConfig | None = None, *, rejects: str | Path | None = None
) -> SquadExamples:
    """Return the questions of all files.

    With `config.lenient`, faulty questions go to `<name>.rejected.jsonl`; answers whose place does not fit are such.
    """
    if not paths:
        raise UsageError("no file of questions given: at least one is needed")
    config = config or ReadConfig()
    names = [str(path) for path in paths]
    found: list[SquadExample] = []
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(names, config, rejects))
        for name in names:
            for row, asked in _asked(_document(name, config), name):
                if ledger.accept(row, [row.raw], name):
                    found.append(asked)
    ledger.finish()
    reject_file = str(ledger.path) if ledger.rejected else ""
    return SquadExamples(found, _digest(found), ledger.num_read, ledger.rejected, reject_file)


def _document(name: str, config: ReadConfig) -> list[Any]:
    """Return the articles of a file."""
    with open_bytes(name) as stream:
        raw = stream.read(MOST + 1)
    if len(raw) > MOST:
        raise DataError(f"the file is longer than {MOST:,} bytes", location=name, advice="part it into several")
    codec = check_encoding(config.encoding)
    try:
        data = json.loads(raw.decode("utf-8-sig" if codec == "utf-8" else codec))
    except UnicodeDecodeError as error:
        raise DataError(f"not {codec} at byte {error.start:,}", location=name, advice="convert it to UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"{name}:{error.lineno}:{error.colno}"
        raise DataError(
            f"not JSON: {error.msg}", location=place, advice="a file in the form of SQuAD is needed"
        ) from None
    except (RecursionError, ValueError):
        raise DataError("not JSON that can be read: nested too deeply or a number too long", location=name) from None
    try:
        return list(_inside(data, "data", list, ""))
    except _SquadFault as wrong:
        raise wrong.fault.error(name) from None


class _SquadFault(Exception):
    """What is wrong in a document."""

    def __init__(self, path: str, kind: str, what: str, advice: str = "see SQuAD's form") -> None:
        self.fault = Fault(0, 0, kind, what, advice, path)


_KINDS = {list: "a list", dict: "an object", str: "a text", int: "a whole number", bool: "true or false"}


def _checked(value: Any, kind: type, path: str) -> Any:
    if type(value) is not kind:
        raise _SquadFault(path, "wrong JSON", f"{value!r:.40} where {_KINDS[kind]} is expected")
    return value


def _inside(holder: Any, name: str, kind: type, path: str, default: Any = None) -> Any:
    """Return a field of an object, of the kind that is expected."""
    _checked(holder, dict, path or "the document")
    if name not in holder:
        if default is not None:
            return default
        raise _SquadFault(path or "the document", "wrong JSON", f"no field {name!r}")
    return _checked(holder[name], kind, f"{path}.{name}" if path else name)


def _asked(articles: list[Any], name: str) -> Iterator[tuple[DataRow, SquadExample]]:
    """Yield every question as a row for the ledger and as itself."""
    for at, article in enumerate(articles):
        path = f"data[{at}]"
        try:
            paragraphs = _inside(article, "paragraphs", list, path)
        except _SquadFault as wrong:
            yield DataRow(0, b"", (), wrong.fault), SquadExample("", "")
            continue
        for number, paragraph in enumerate(paragraphs):
            within = f"{path}.paragraphs[{number}]"
            try:
                passage = _inside(paragraph, "context", str, within)
                questions = _inside(paragraph, "qas", list, within)
            except _SquadFault as wrong:
                yield DataRow(0, b"", (), wrong.fault), SquadExample("", "")
                continue
            for turn, question in enumerate(questions):
                place = f"{within}.qas[{turn}]"
                raw = json.dumps(question, ensure_ascii=False).encode("utf-8", "replace")
                try:
                    yield DataRow(0, raw, (), None), _question(question, passage, place, name)
                except _SquadFault as wrong:
                    yield DataRow(0, raw, (), wrong.fault), SquadExample("", "")


def _question(question: Any, passage: str, path: str, name: str) -> SquadExample:
    text = _inside(question, "question", str, path)
    for field, given in ((f"{path}.question", text), (f"{path}: its context", passage)):
        if not given.strip():
            raise _SquadFault(field, "blank", "it is blank", "fill it in or take it out")
    answers = _inside(question, "answers", list, path, default=[])
    impossible = _inside(question, "is_impossible", bool, path, default=False)
    found: dict[tuple[int, str], None] = {}
    for number, answer in enumerate([] if impossible else answers):
        within = f"{path}.answers[{number}]"
        said, start = _inside(answer, "text", str, within), _inside(answer, "answer_start", int, within)
        if start < 0 or not said.strip() or passage[start : start + len(said)] != said:
            there = passage[max(0, start) : max(0, start) + len(said)]
            what = f"the answer {said!r:.60} does not stand at {start}: {there!r:.60} does"
            raise _SquadFault(f"{within}.answer_start", "answer not in its place", what, "count characters from 0")
        found[start, said] = None
    if not found and not impossible:
        raise _SquadFault(f"{path}.answers", "no answer", "no answer", 'say "is_impossible": true where there is none')
    return SquadExample(text, passage, tuple(found), str(question.get("id", "")), f"{name}:{path}")


def hold_out_questions(rows: SquadExamples) -> tuple[SquadExamples, SquadExamples]:
    """Return the questions without a small share, and that share: whole passages, chosen by the data alone."""
    passages = sorted({one.passage for one in rows.examples})
    count = round(min(HELD_OUT_SHARE * len(passages), HELD_OUT_MOST * len(passages) / max(1, len(rows))))
    if not count or len(passages) < 2:
        raise UsageError(f"{len(passages)} passages are too few to hold some out: give validation data with --valid")
    drawn = epoch_rng(seed=0, epoch=0, digest=rows.digest, purpose=2).permutation(len(passages))[:count]
    held = {passages[place] for place in drawn}
    sides = [[at for at, one in enumerate(rows.examples) if (one.passage in held) is away] for away in (False, True)]
    return rows.select(sides[0]), rows.select(sides[1])
