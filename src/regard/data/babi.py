"""Read stories with questions in the form of the bAbI tasks: strictly, every fault with its place.

    1 Mary moved to the bathroom.
    2 John went to the hallway.
    3 Where is Mary? ⇥ bathroom ⇥ 1

Each line has a number; 1 begins a new story. A question has its answer and the numbers of the sentences that support it
behind tabs; an answer of several words is a list with commas and counts as one answer. Several files are several tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from regard.config.data import ReadConfig
from regard.data.columns import DataRow
from regard.data.ledger import Ledger, digest_columns
from regard.data.lines import Fault, Line, iter_checked_lines, open_bytes
from regard.errors import DataError, UsageError

_WORDS = re.compile(r"[^\s.?!,;:\"]+")
_SPLITS = re.compile(r"[._-](train|training|valid|validation|dev|test)$", re.IGNORECASE)


@dataclass(frozen=True)
class StoryQuestion:
    """One question, the sentences told before it, its answer and which of the sentences support it."""

    task: str
    sentences: tuple[str, ...]
    text: str
    answer: str = ""  # "": nobody knows
    support: tuple[int, ...] = ()  # places among the sentences, from 0
    location: str = ""  # file:line
    sentence_locations: tuple[str, ...] = field(default=(), compare=False)  # of the sentences, where known

    def sentence_location(self, index: int) -> str:
        """Return the place of a sentence, or at least of its question."""
        return self.sentence_locations[index] if self.sentence_locations else self.location


@dataclass(frozen=True)
class StoryQuestions:
    """The questions of one or more files, in their order."""

    questions: list[StoryQuestion]
    digest: str  # SHA-256 over all questions in their order
    file_names: tuple[str, ...] = ()  # of the files
    num_read: int = 0  # stories, accepted and rejected
    rejected: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)  # of fault → stories rejected for it
    reject_files: tuple[str, ...] = ()  # where rejected stories are

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def reject_file(self) -> str:
        """Where rejected stories are, in words."""
        return ", ".join(self.reject_files)

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks, in the order of the files."""
        return list(dict.fromkeys(question.task for question in self.questions))

    @classmethod
    def of(cls, questions: Sequence[StoryQuestion]) -> StoryQuestions:
        """Return questions that come from no file."""
        return cls(list(questions), _digest(questions))

    def select(self, numbers: Sequence[int]) -> StoryQuestions:
        """Return some of the questions, with a digest of their own."""
        questions = [self.questions[number] for number in numbers]
        return replace(self, questions=questions, digest=_digest(questions))


def _digest(questions: Sequence[StoryQuestion]) -> str:
    rows = [(q.task, "\n".join(q.sentences), q.text, q.answer, " ".join(map(str, q.support))) for q in questions]
    return digest_columns(*([row[column] for row in rows] for column in range(5)))


def story_words(text: str) -> list[str]:
    """Return the words of a sentence, in lower case, without marks around them.

    >>> story_words("Where is the box-lid?")
    ['where', 'is', 'the', 'box-lid']
    """
    return _WORDS.findall(text.lower())


def normalize_answer(text: str) -> str:
    """Return an answer as the model knows it: in lower case, the parts of a list joined by commas.

    >>> normalize_answer("Apple, milk")
    'apple,milk'
    """
    return ",".join(" ".join(part.split()) for part in text.lower().split(","))


def task_name(path: str | Path) -> str:
    """Return the name of the task that a file holds: its own without endings and without the split.

    >>> task_name("en/qa2_two-supporting-facts_train.txt.gz")
    'qa2_two-supporting-facts'
    """
    name = Path(path).name
    stem = name.split(".")[0] or name
    return _SPLITS.sub("", stem) or stem


def read_stories(
    paths: Sequence[str | Path], config: ReadConfig | None = None, *, rejects: str | Path | None = None
) -> StoryQuestions:
    """Return the questions of all files; each file is a task, named after it.

    With `config.lenient`, stories with a fault go to `<name>.rejected.jsonl`, beside the data or in the folder
    `rejects`.
    """
    if not paths:
        raise UsageError("no file of stories given: at least one is needed")
    parts = [_read(str(path), config or ReadConfig(), rejects) for path in paths]
    questions = [question for part in parts for question in part.questions]
    kinds: dict[str, int] = {}
    for part in parts:
        for kind, count in part.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    return StoryQuestions(
        questions,
        _digest(questions),
        tuple(map(str, paths)),
        sum(part.num_read for part in parts),
        sum(part.rejected for part in parts),
        kinds,
        tuple(file for part in parts for file in part.reject_files),
    )


def _read(name: str, config: ReadConfig, rejects: str | Path | None) -> StoryQuestions:
    questions: list[StoryQuestion] = []
    with open_bytes(name) as stream, Ledger([name], config, rejects) as ledger:
        for told in _stories(iter_checked_lines(stream, name, config.encoding)):
            found, fault = _parsed(told, name)
            row = DataRow(told[0].line_number, b"\n".join(line.raw for line in told), (), fault)
            if ledger.accept(row, [row.raw], name):
                questions += found
    ledger.finish()
    files = (str(ledger.path),) if ledger.rejected else ()
    return StoryQuestions(
        questions, "", (name,), ledger.num_read, ledger.rejected, dict(ledger.kinds.most_common()), files
    )


def _stories(given: Iterator[Line]) -> Iterator[list[Line]]:
    """Yield the lines of each story: a new one begins at number 1."""
    told: list[Line] = []
    for line in given:
        if told and line.text.split(maxsplit=1)[:1] == ["1"]:
            yield told
            told = []
        told.append(line)
    if told:
        yield told


def _parsed(told: list[Line], name: str) -> tuple[list[StoryQuestion], Fault | None]:
    """Return the questions of one story, or its first fault."""
    found: list[StoryQuestion] = []
    sentences: list[str] = []
    told_at: list[str] = []
    places: dict[int, int] = {}  # a line's number in the story → its place among the sentences; questions have none
    task = task_name(name)
    for expected, line in enumerate(told, start=1):
        try:
            text = _numbered(line, expected)
            if "\t" not in text:
                places[expected] = len(sentences)
                sentences.append(_sentence(line, text))
                told_at.append(f"{name}:{line.line_number}")
                continue
            asked, answer, support = _question(line, text, expected, places, bool(sentences))
        except _BabiFault as wrong:
            return [], wrong.fault
        place = f"{name}:{line.line_number}"
        found.append(StoryQuestion(task, tuple(sentences), asked, answer, support, place, tuple(told_at)))
    if not found:
        what = f"the story of {len(told)} lines has no question"
        advice = "a question is a line with its answer behind a tab"
        return [], Fault(told[0].line_number, 0, "no question", what, advice)
    return found, None


class _BabiFault(Exception):
    """Carries a fault out of a line."""

    def __init__(self, line: Line, kind: str, what: str, advice: str, column: int = 0) -> None:
        self.fault = line.fault or Fault(line.line_number, column, kind, what, advice)
        super().__init__(what)


def _numbered(line: Line, expected: int) -> str:
    """Return a line's text behind its number, which must be the next one."""
    if line.fault:
        raise _BabiFault(line, "", "", "")
    if not line.text.strip():
        raise _BabiFault(line, "blank line", "the line is blank", "take it out")
    number, _, text = line.text.strip(" ").partition(" ")
    if not (number.isascii() and number.isdecimal()):
        what, advice = f"the line begins with {number[:20]!r}, not with its number", "write “1 Mary went home.”"
        raise _BabiFault(line, "no number", what, advice)
    if int(number[:18]) != expected:
        what = f"the line is number {number[:18]} but the story goes on with {expected}"
        raise _BabiFault(line, "wrong number", what, "number the lines of a story 1, 2, 3, …")
    return text


def _sentence(line: Line, text: str) -> str:
    if not story_words(text):
        raise _BabiFault(line, "no words", "the sentence has no words", "take the line out and number the others anew")
    if text.rstrip().endswith("?"):
        what, advice = "the question has no answer", "write the answer and its supporting lines behind tabs"
        raise _BabiFault(line, "no answer", what, advice)
    return text.strip()


def _question(
    line: Line, text: str, number: int, places: dict[int, int], told: bool
) -> tuple[str, str, tuple[int, ...]]:
    """Return a question's text, answer and the places of its supporting sentences."""
    cells = [cell.strip() for cell in text.split("\t")]
    if len(cells) > 3:
        what = f"the question has {len(cells) - 1} tabs"
        raise _BabiFault(line, "tabs", what, "write question, answer and supporting lines, with a tab between")
    if not story_words(cells[0]):
        raise _BabiFault(line, "no words", "the question has no words", "write it before the first tab")
    if not cells[1] or not all(part.strip() for part in cells[1].split(",")):
        what = "the question has no answer" if not cells[1] else f"the list {cells[1]!r} has an empty part"
        raise _BabiFault(line, "no answer", what, "write the answer behind the first tab")
    if not told:
        raise _BabiFault(line, "nothing told", "the question comes before any sentence", "tell something first")
    support = []
    for word in cells[2].split() if len(cells) == 3 else []:
        if not (word.isascii() and word.isdecimal()) or int(word[:18]) not in places:
            what = f"the supporting line {word[:20]!r} is no sentence before line {number} of its story"
            raise _BabiFault(line, "wrong support", what, "give the numbers of sentences told before the question")
        support.append(places[int(word)])
    return cells[0], normalize_answer(cells[1]), tuple(support)


@dataclass(frozen=True)
class Story:
    """Sentences told one after the other, and the questions that stand among them."""

    sentences: tuple[str, ...]
    locations: tuple[str, ...]
    questions: tuple[StoryQuestion, ...]  # each with what was told before it

    def ask(self, text: str, location: str = "") -> StoryQuestion:
        """Return a question about the whole story."""
        return StoryQuestion("", self.sentences, text, location=location, sentence_locations=self.locations)


def read_story(path: str | Path, config: ReadConfig | None = None) -> Story:
    """Return the story of a file: one sentence a line, plain or with the numbers of the bAbI tasks.

    A line that ends with a question mark is a question; what follows it behind a tab, in the form of the bAbI tasks, is
    its answer. Blank lines between plain ones do not count.
    """
    name = str(path)
    told, places, asked = list[str](), list[str](), list[StoryQuestion]()
    with open_bytes(name) as stream:
        for text, place in _story_lines(iter_checked_lines(stream, name, (config or ReadConfig()).encoding), name):
            question, *rest = (cell.strip() for cell in text.split("\t"))
            if rest or text.endswith("?"):
                answer = normalize_answer(rest[0]) if rest else ""
                asked.append(
                    StoryQuestion("", tuple(told), question, answer, location=place, sentence_locations=tuple(places))
                )
            else:
                told.append(text)
                places.append(place)
    if not told:
        raise DataError("the story is empty", location=name, advice="write one sentence a line")
    return Story(tuple(told), tuple(places), tuple(asked))


def _story_lines(given: Iterator[Line], name: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of a story's lines that have words, without numbers, and their places."""
    numbered = False
    for count, line in enumerate(given, start=1):
        if line.fault:
            raise line.fault.error(name)
        first = line.text.split(maxsplit=1)[:1] == ["1"]
        if first and numbered:
            what, advice = "a second story begins", "put the story into a file of its own"
            raise DataError(what, location=f"{name}:{line.line_number}", advice=advice)
        numbered = numbered or (first and count == 1)
        try:
            text = _numbered(line, count) if numbered else line.text
        except _BabiFault as wrong:
            raise wrong.fault.error(name) from None
        if story_words(text):
            yield text.strip(), f"{name}:{line.line_number}"


def check_same_language(questions: StoryQuestions) -> None:
    """Raise `DataError` when tasks that are to be learned together do not speak one language.

    Two files of one task must share half of their words; a file that shares no word at all with any other one has
    nothing to learn from them.
    """
    texts: dict[str, set[str]] = {}
    for question in questions.questions:
        name = question.location.rpartition(":")[0] or question.task
        texts.setdefault(name, set()).update((question.text, *question.sentences))
    by_file = {name: {word for text in found for word in story_words(text)} for name, found in texts.items()}
    for name, known in by_file.items():
        others = {other: found for other, found in by_file.items() if other != name}
        for other, found in others.items():
            shared = known & found
            if task_name(other) == task_name(name) and 2 * len(shared) < min(len(known), len(found)):
                raise DataError(
                    f"holds the same task as {other} in other words: they share {len(shared)} of {len(known)}",
                    location=name,
                    advice="give one version of a task, or train them apart",
                )
        if others and not known & set().union(*others.values()):
            raise DataError(
                f"shares none of its {len(known)} words with any other of the {len(by_file)} files",
                location=name,
                advice="tasks learned together need one language: train it apart",
            )
