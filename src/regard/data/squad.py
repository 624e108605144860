"""Questions about passages in SQuAD format; every fault has its path in the JSON.

    {"data": [{"paragraphs": [{"context": "…", "qas": [{"question": "…", "id": "…",
        "answers": [{"text": "…", "answer_start": 17}], "is_impossible": false}]}]}]}

An answer must occur in its passage at `answer_start`. A question with `is_impossible` has no answer.
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
from regard.data.batching import RngPurpose, epoch_rng
from regard.data.columns import DataRow
from regard.data.labelled import HELD_OUT_FRACTION, MAX_HELD_OUT
from regard.data.ledger import Ledger, RowCounts, digest_columns
from regard.data.lines import Fault, check_encoding, find_lone_surrogate, open_bytes, read_bounded
from regard.errors import DataError, UsageError

MAX_FILE_BYTES = 1 << 30


@dataclass(frozen=True)
class SquadExample:
    """A question about a passage, with its reference answers."""

    question: str
    passage: str
    answers: tuple[tuple[int, str], ...] = ()  # start in the passage, and text; none if unanswerable
    name: str = ""  # id of the question
    location: str = ""  # file:path

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of the answers; one empty text if there is no answer."""
        return tuple(text for _, text in self.answers) or ("",)


@dataclass(frozen=True)
class SquadExamples(RowCounts):
    """Questions in the order of the files."""

    examples: list[SquadExample]
    digest: str  # SHA-256 over all examples in their order

    def __len__(self) -> int:
        return len(self.examples)

    @classmethod
    def from_examples(cls, examples: Sequence[SquadExample]) -> SquadExamples:
        """Examples that come from no file."""
        return cls(list(examples), _digest(examples), num_read=len(examples))

    @property
    def num_unanswerable(self) -> int:
        """Number of questions without an answer."""
        return sum(not example.answers for example in self.examples)

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> SquadExamples:
        """Examples at these indices, with their own digest."""
        examples = [self.examples[index] for index in indices]
        return replace(self, examples=examples, digest=_digest(examples))


def _digest(examples: Sequence[SquadExample]) -> str:
    questions = [example.question for example in examples]
    passages = [example.passage for example in examples]
    answers = ["\x1d".join(f"{start} {text}" for start, text in example.answers) for example in examples]
    return digest_columns(questions, passages, answers)


def read_squad(
    paths: Sequence[str | Path], config: ReadConfig | None = None, *, reject_folder: str | Path | None = None
) -> SquadExamples:
    """Read the questions of all files.

    With `config.lenient`, faulty questions go to `<name>.rejected.jsonl`, also those with a wrong `answer_start`.
    """
    if not paths:
        raise UsageError("no file of questions: at least one is needed")
    config = config or ReadConfig()
    names = [str(path) for path in paths]
    examples: list[SquadExample] = []
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(names, config, reject_folder))
        for name in names:
            for row, example in _iter_examples(_read_articles(name, config), name):
                if ledger.accept(row, [row.raw], name):
                    examples.append(example)
    ledger.finish()
    return SquadExamples(
        examples,
        _digest(examples),
        num_read=ledger.num_read,
        num_rejected=ledger.num_rejected,
        reject_file=ledger.reject_file,
    )


def _read_articles(name: str, config: ReadConfig) -> list[Any]:
    """Parse a file and return its list of articles."""
    with open_bytes(name) as stream:
        raw = read_bounded(stream, name, MAX_FILE_BYTES)
    codec = check_encoding(config.encoding)
    try:
        document = json.loads(raw.decode("utf-8-sig" if codec == "utf-8" else codec))
    except UnicodeDecodeError as error:
        raise DataError(f"not {codec} at byte {error.start:,}", location=name, advice="convert it to UTF-8") from None
    except json.JSONDecodeError as error:
        location = f"{name}:{error.lineno}:{error.colno}"
        raise DataError(
            f"not JSON: {error.msg}", location=location, advice="a file in SQuAD format is needed"
        ) from None
    except (RecursionError, ValueError):
        raise DataError("unreadable JSON: nested too deeply, or a number too long", location=name) from None
    try:
        return list(_get_field(document, "data", list, ""))
    except _SquadFault as error:
        raise error.fault.error(name) from None


class _SquadFault(Exception):
    """Carries the fault of a document's entry."""

    def __init__(self, path: str, kind: str, what: str, advice: str = "see the SQuAD format") -> None:
        self.fault = Fault(line=0, column=0, kind=kind, what=what, advice=advice, path=path)


_TYPE_NOUNS = {list: "a list", dict: "an object", str: "a text", int: "an integer", bool: "true or false"}


def _check_type(value: Any, expected: type, path: str) -> Any:
    if type(value) is not expected:
        raise _SquadFault(path, "wrong JSON", f"{value!r:.40} where {_TYPE_NOUNS[expected]} is expected")
    surrogate = find_lone_surrogate(value) if isinstance(value, str) else None
    if surrogate is not None:
        what = f"a lone surrogate ({surrogate.group()!a}) at character {surrogate.start() + 1}"
        raise _SquadFault(path, "lone surrogate", what, "remove it")
    return value


def _get_field(parent: Any, name: str, expected: type, path: str, default: Any = None) -> Any:
    """Field of an object, of the expected type."""
    _check_type(parent, dict, path or "the document")
    if name not in parent:
        if default is not None:
            return default
        raise _SquadFault(path or "the document", "wrong JSON", f"no field {name!r}")
    return _check_type(parent[name], expected, f"{path}.{name}" if path else name)


def _iter_examples(articles: list[Any], name: str) -> Iterator[tuple[DataRow, SquadExample]]:
    """Yield every question as a row for the ledger and as an example, which is empty if the row has a fault."""
    for article_index, article in enumerate(articles):
        article_path = f"data[{article_index}]"
        try:
            paragraphs = _get_field(article, "paragraphs", list, article_path)
        except _SquadFault as error:
            yield DataRow(0, b"", (), error.fault), SquadExample("", "")
            continue
        for paragraph_index, paragraph in enumerate(paragraphs):
            yield from _iter_paragraph(paragraph, f"{article_path}.paragraphs[{paragraph_index}]", name)


def _iter_paragraph(paragraph: Any, path: str, name: str) -> Iterator[tuple[DataRow, SquadExample]]:
    try:
        passage = _get_field(paragraph, "context", str, path)
        questions = _get_field(paragraph, "qas", list, path)
    except _SquadFault as error:
        yield DataRow(0, b"", (), error.fault), SquadExample("", "")
        return
    for index, question in enumerate(questions):
        raw = json.dumps(question, ensure_ascii=False).encode("utf-8", "replace")
        try:
            example = _parse_question(question, passage, f"{path}.qas[{index}]", name)
        except _SquadFault as error:
            yield DataRow(0, raw, (), error.fault), SquadExample("", "")
        else:
            yield DataRow(0, raw, (), None), example


def _parse_question(question: Any, passage: str, path: str, name: str) -> SquadExample:
    text = _get_field(question, "question", str, path)
    for text_path, content in ((f"{path}.question", text), (f"{path}: its context", passage)):
        if not content.strip():
            raise _SquadFault(text_path, "blank", "it is blank", "fill it in or remove it")
    answers = _get_field(question, "answers", list, path, default=[])
    is_impossible = _get_field(question, "is_impossible", bool, path, default=False)
    if is_impossible:
        answers = []
    distinct: dict[tuple[int, str], None] = {}  # in their order
    for index, answer in enumerate(answers):
        distinct[_parse_answer(answer, passage, f"{path}.answers[{index}]")] = None
    if not distinct and not is_impossible:
        advice = 'set "is_impossible": true where there is none'
        raise _SquadFault(f"{path}.answers", "no answer", "no answer", advice)
    return SquadExample(
        text,
        passage,
        answers=tuple(distinct),
        name=_check_type(str(question.get("id", "")), str, f"{path}.id"),
        location=f"{name}:{path}",
    )


def _parse_answer(answer: Any, passage: str, path: str) -> tuple[int, str]:
    """Start and text of an answer, which must occur in its passage there."""
    text = _get_field(answer, "text", str, path)
    start = _get_field(answer, "answer_start", int, path)
    if start < 0 or not text.strip() or passage[start : start + len(text)] != text:
        actual = passage[max(0, start) : max(0, start) + len(text)]
        what = f"the answer {text!r:.60} is not at {start}: {actual!r:.60} is"
        raise _SquadFault(f"{path}.answer_start", "wrong answer_start", what, "count characters from 0")
    return start, text


def hold_out_questions(rows: SquadExamples) -> tuple[SquadExamples, SquadExamples]:
    """Split off a small validation split of whole passages; it depends on nothing but the data."""
    passages = sorted({example.passage for example in rows.examples})
    max_passages = MAX_HELD_OUT * len(passages) / max(1, len(rows))  # with about MAX_HELD_OUT questions
    count = round(min(HELD_OUT_FRACTION * len(passages), max_passages))
    if not count or len(passages) < 2:
        raise UsageError(f"{len(passages)} passages are too few to hold some out: set validation data with --valid")
    rng = epoch_rng(seed=0, epoch=0, digest=rows.digest, purpose=RngPurpose.HOLD_OUT)
    held_out = {passages[index] for index in rng.permutation(len(passages))[:count]}
    train = [index for index, example in enumerate(rows.examples) if example.passage not in held_out]
    valid = [index for index, example in enumerate(rows.examples) if example.passage in held_out]
    return rows.select(train), rows.select(valid)
