"""Stories with questions in the format of the bAbI tasks; every fault has its location.

    1 Mary moved to the bathroom.
    2 John went to the hallway.
    3 Where is Mary? ⇥ bathroom ⇥ 1

Each line has a number; 1 begins a new story. After a question come, separated by tabs, its answer and the numbers of
the sentences that support it. An answer of several words is a list with commas and counts as one answer. Each file is
a task.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.config.data import ReadConfig
from regard.data.batching import RngPurpose, epoch_rng
from regard.data.columns import DataRow
from regard.data.ledger import MAX_SHOWN_FAULTS, Ledger, digest_columns
from regard.data.lines import Fault, Line, iter_checked_lines, open_bytes
from regard.errors import DataError, UsageError

_WORD = re.compile(r"[^\s.?!,;:\"]+")
_SPLIT_SUFFIX = re.compile(r"[._-](train|training|valid|validation|dev|test)$", re.IGNORECASE)
_MAX_DIGITS = 18  # of a line number, so that int() stays cheap


@dataclass(frozen=True)
class StoryQuestion:
    """One question, the sentences before it, its answer and the sentences that support it."""

    task: str
    sentences: tuple[str, ...]
    text: str
    answer: str = ""  # "": unknown
    support: tuple[int, ...] = ()  # indices of sentences
    location: str = ""  # file:line
    sentence_locations: tuple[str, ...] = field(default=(), compare=False)  # where known

    def sentence_location(self, index: int) -> str:
        """Location of a sentence, or of the question where that is unknown."""
        return self.sentence_locations[index] if self.sentence_locations else self.location


@dataclass(frozen=True)
class StoryQuestions:
    """The questions of one or more files, in their order."""

    questions: list[StoryQuestion]
    digest: str  # SHA-256 over all questions in their order
    file_names: tuple[str, ...] = ()
    num_read: int = 0  # stories, accepted and rejected
    num_rejected: int = 0
    fault_counts: Mapping[str, int] = field(default_factory=dict)  # kind of fault → stories rejected for it
    reject_files: tuple[str, ...] = ()  # paths of the rejected stories
    notes: tuple[str, ...] = ()  # what was guessed or converted in reading

    def __len__(self) -> int:
        return len(self.questions)

    def describe_unknown_answers(self, known: Collection[str]) -> str:
        """List the answers that are not known ones, with their locations; empty if there are none."""
        unknown = [question for question in self.questions if question.answer not in known]
        if not unknown:
            return ""
        shown = [f"{question.answer!r} ({question.location})" for question in unknown[:MAX_SHOWN_FAULTS]]
        if len(unknown) > len(shown):
            shown.append(f"and {len(unknown) - len(shown):,} more")
        return f"{len(unknown):,} of {len(self):,} answers never occur in training: {', '.join(shown)}"

    @property
    def reject_file(self) -> str:
        """Paths of the rejected stories, for messages."""
        return ", ".join(self.reject_files)

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks, in the order of the files."""
        return list(dict.fromkeys(question.task for question in self.questions))

    @property
    def stories(self) -> list[str]:
        """Where the story of each question begins, which is the same for all questions about it; if unknown, unique."""
        return [question.sentence_location(0) or f"question {index}" for index, question in enumerate(self.questions)]

    @classmethod
    def from_questions(cls, questions: Sequence[StoryQuestion]) -> StoryQuestions:
        """Questions that come from no file."""
        return cls(list(questions), _digest(questions))

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> StoryQuestions:
        """Questions at these indices, with their own digest."""
        questions = [self.questions[index] for index in indices]
        return replace(self, questions=questions, digest=_digest(questions))


def held_out_questions(stories: StoryQuestions, share: float) -> NDArray[np.bool_]:  # [questions]
    """Which questions are held out: those of a share of the stories, as no story is split.

    They depend on nothing but the data: models of every architecture and seed are validated on the same questions.
    """
    story_indices = _story_indices(stories)
    num_stories = int(story_indices[-1]) + 1 if len(stories) else 0
    rng = epoch_rng(seed=0, epoch=0, digest=stories.digest, purpose=RngPurpose.HOLD_OUT)
    held_out = rng.permutation(num_stories)[: int(share * num_stories)]
    return np.isin(story_indices, held_out)


def _story_indices(stories: StoryQuestions) -> NDArray[np.int64]:
    """Index of each question's story."""
    is_first = [not _is_continued(previous, question) for previous, question in pairwise(stories.questions)]
    return np.cumsum([0, *is_first])[: len(stories)].astype(np.int64)


def _is_continued(previous: StoryQuestion, question: StoryQuestion) -> bool:
    """Whether a question is of the previous one's story: it comes after the same sentences, and maybe further ones."""
    count = len(previous.sentences)
    return (
        question.task == previous.task
        and question.sentences[:count] == previous.sentences
        and question.sentence_locations[:count] == previous.sentence_locations
    )


def hold_out_stories(stories: StoryQuestions, share: float) -> tuple[StoryQuestions, StoryQuestions]:
    """Questions to train on, and those held out to validate; where none are held out, all of them for both."""
    is_held_out = held_out_questions(stories, share)
    if not is_held_out.any():
        return stories, stories
    return stories.select(np.flatnonzero(~is_held_out)), stories.select(np.flatnonzero(is_held_out))


def _digest(questions: Sequence[StoryQuestion]) -> str:
    return digest_columns(
        [question.task for question in questions],
        ["\n".join(question.sentences) for question in questions],
        [question.text for question in questions],
        [question.answer for question in questions],
        [" ".join(map(str, question.support)) for question in questions],
    )


def story_words(text: str) -> list[str]:
    """Words of a sentence, in lower case, without the punctuation around them.

    >>> story_words("Where is the box-lid?")
    ['where', 'is', 'the', 'box-lid']
    """
    return _WORD.findall(text.lower())


def normalize_answer(text: str) -> str:
    """An answer as the model knows it: in lower case, the entries of a list joined by commas.

    >>> normalize_answer("Apple, milk")
    'apple,milk'
    """
    return ",".join(" ".join(entry.split()) for entry in text.lower().split(","))


def task_name(path: str | Path) -> str:
    """Name of a file's task: the file's name without suffixes and split.

    >>> task_name("en/qa2_two-supporting-facts_train.txt.gz")
    'qa2_two-supporting-facts'
    """
    name = Path(path).name
    stem = name.split(".")[0] or name
    return _SPLIT_SUFFIX.sub("", stem) or stem


def read_stories(
    paths: Sequence[str | Path], config: ReadConfig | None = None, *, reject_folder: str | Path | None = None
) -> StoryQuestions:
    """Read the questions of all files; each file is a task, named after it.

    With `config.lenient`, stories with a fault go to `<name>.rejected.jsonl`, beside the data or in
    `reject_folder`.
    """
    if not paths:
        raise UsageError("no file of stories: at least one is needed")
    files = [_read_file(str(path), config or ReadConfig(), reject_folder) for path in paths]
    questions: list[StoryQuestion] = []
    fault_counts: Counter[str] = Counter()
    reject_files: list[str] = []
    for file in files:
        questions += file.questions
        fault_counts.update(file.fault_counts)
        reject_files += file.reject_files
    return StoryQuestions(
        questions,
        _digest(questions),
        file_names=tuple(map(str, paths)),
        num_read=sum(file.num_read for file in files),
        num_rejected=sum(file.num_rejected for file in files),
        fault_counts=dict(fault_counts),
        reject_files=tuple(reject_files),
    )


def _read_file(name: str, config: ReadConfig, reject_folder: str | Path | None) -> StoryQuestions:
    """Questions of one file, without a digest."""
    questions: list[StoryQuestion] = []
    with open_bytes(name) as stream, Ledger([name], config, reject_folder) as ledger:
        for lines in _split_stories(iter_checked_lines(stream, name, config.encoding)):
            parsed = _parse_story(lines, name)
            fault = parsed if isinstance(parsed, Fault) else None
            row = DataRow(lines[0].line_number, b"\n".join(line.raw for line in lines), (), fault)
            if ledger.accept(row, [row.raw], name) and not isinstance(parsed, Fault):
                questions += parsed
    ledger.finish()
    return StoryQuestions(
        questions,
        digest="",
        file_names=(name,),
        num_read=ledger.num_read,
        num_rejected=ledger.num_rejected,
        fault_counts=dict(ledger.fault_counts.most_common()),
        reject_files=(ledger.reject_file,) if ledger.num_rejected else (),
    )


def _split_stories(lines: Iterator[Line]) -> Iterator[list[Line]]:
    """Yield the lines of each story; a new story begins at number 1."""
    story: list[Line] = []
    for line in lines:
        if story and _is_first_line(line):
            yield story
            story = []
        story.append(line)
    if story:
        yield story


def _is_first_line(line: Line) -> bool:
    """Whether a line has the number 1."""
    return line.text.split(maxsplit=1)[:1] == ["1"]


def _parse_story(lines: list[Line], name: str) -> list[StoryQuestion] | Fault:
    """Questions of one story, or its first fault."""
    questions: list[StoryQuestion] = []
    sentences: list[str] = []
    locations: list[str] = []
    sentence_indices: dict[int, int] = {}  # line number in the story → index of the sentence
    task = task_name(name)
    for line_number, line in enumerate(lines, start=1):
        location = f"{name}:{line.line_number}"
        try:
            text = _strip_line_number(line, line_number)
            if "\t" not in text:
                sentence_indices[line_number] = len(sentences)
                sentences.append(_parse_sentence(line, text))
                locations.append(location)
                continue
            question, answer, support = _parse_question(line, text, line_number, sentence_indices)
        except _BabiFault as error:
            return error.fault
        questions.append(
            StoryQuestion(
                task,
                tuple(sentences),
                text=question,
                answer=answer,
                support=support,
                location=location,
                sentence_locations=tuple(locations),
            )
        )
    if not questions:
        what = f"the story of {len(lines)} lines has no question"
        advice = "a question is a line with its answer after a tab"
        return Fault(lines[0].line_number, 0, kind="no question", what=what, advice=advice)
    return questions


class _BabiFault(Exception):
    """Carries the fault of a line."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(fault.what)


def _fault(line: Line, kind: str, what: str, advice: str) -> _BabiFault:
    return _BabiFault(Fault(line.line_number, 0, kind=kind, what=what, advice=advice))


def _is_integer(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _strip_line_number(line: Line, expected: int) -> str:
    """Text of a line after its number, which must be the expected one."""
    if line.fault:
        raise _BabiFault(line.fault)
    if not line.text.strip():
        raise _fault(line, "blank line", "the line is blank", "remove it")
    digits, _, text = line.text.strip(" ").partition(" ")
    if not _is_integer(digits):
        what = f"the line begins with {digits[:20]!r}, not with its number"
        raise _fault(line, "no number", what, "write “1 Mary went home.”")
    if int(digits[:_MAX_DIGITS]) != expected:
        what = f"the line has the number {digits[:_MAX_DIGITS]} where the story has {expected}"
        raise _fault(line, "wrong number", what, "number the lines of a story 1, 2, 3, …")
    return text


def _parse_sentence(line: Line, text: str) -> str:
    if not story_words(text):
        raise _fault(line, "no words", "the sentence has no words", "remove the line and renumber the others")
    if text.rstrip().endswith("?"):
        advice = "write the answer and its supporting lines after tabs"
        raise _fault(line, "no answer", "the question has no answer", advice)
    return text.strip()


def _parse_question(
    line: Line, text: str, line_number: int, sentence_indices: Mapping[int, int]
) -> tuple[str, str, tuple[int, ...]]:
    """Text of a question, its answer, and the indices of its supporting sentences."""
    cells = [cell.strip() for cell in text.split("\t")]
    if len(cells) > 3:
        advice = "write question, answer and supporting lines, separated by tabs"
        raise _fault(line, "tabs", f"the question has {len(cells) - 1} tabs", advice)
    question = cells[0]
    answer = cells[1]
    supporting_lines = cells[2].split() if len(cells) == 3 else []
    if not story_words(question):
        raise _fault(line, "no words", "the question has no words", "write it before the first tab")
    if not answer:
        raise _fault(line, "no answer", "the question has no answer", "write the answer after the first tab")
    if not all(entry.strip() for entry in answer.split(",")):
        what = f"the list {answer!r} has an empty entry"
        raise _fault(line, "no answer", what, "write the answer after the first tab")
    if not sentence_indices:
        raise _fault(line, "no sentence", "the question precedes all sentences", "put a sentence before it")
    support = []
    for entry in supporting_lines:
        is_number = _is_integer(entry) and len(entry) <= _MAX_DIGITS
        if not is_number or int(entry) not in sentence_indices:
            what = f"the supporting line {entry[:20]!r} is no sentence before line {line_number} of its story"
            raise _fault(line, "wrong support", what, "use the numbers of sentences before the question")
        support.append(sentence_indices[int(entry)])
    return question, normalize_answer(answer), tuple(support)


@dataclass(frozen=True)
class Story:
    """Sentences in their order, and the questions among them."""

    sentences: tuple[str, ...]
    locations: tuple[str, ...]
    questions: tuple[StoryQuestion, ...]  # each with the sentences before it

    def ask(self, text: str, location: str = "") -> StoryQuestion:
        """Question about the whole story."""
        return StoryQuestion("", self.sentences, text, location=location, sentence_locations=self.locations)


def read_story(path: str | Path, config: ReadConfig | None = None) -> Story:
    """Read the story of a file: one sentence per line, plain or with the numbers of the bAbI tasks.

    A line that ends with a question mark is a question; after a tab, as in the bAbI tasks, comes its answer. Blank
    lines between plain ones are ignored.
    """
    name = str(path)
    config = config or ReadConfig()
    sentences: list[str] = []
    locations: list[str] = []
    questions: list[StoryQuestion] = []
    with open_bytes(name) as stream:
        for text, location in _iter_story_lines(iter_checked_lines(stream, name, config.encoding), name):
            cells = [cell.strip() for cell in text.split("\t")]
            if len(cells) == 1 and not text.endswith("?"):
                sentences.append(text)
                locations.append(location)
                continue
            questions.append(
                StoryQuestion(
                    "",
                    tuple(sentences),
                    text=cells[0],
                    answer=normalize_answer(cells[1]) if len(cells) > 1 else "",
                    location=location,
                    sentence_locations=tuple(locations),
                )
            )
    if not sentences:
        raise DataError("the story is empty", location=name, advice="write one sentence per line")
    return Story(tuple(sentences), tuple(locations), tuple(questions))


def _iter_story_lines(lines: Iterator[Line], name: str) -> Iterator[tuple[str, str]]:
    """Yield text, without number, and location of a story's lines that have words."""
    is_numbered = False
    for line_number, line in enumerate(lines, start=1):
        location = f"{name}:{line.line_number}"
        if line.fault:
            raise line.fault.error(name)
        if _is_first_line(line):
            if is_numbered:
                raise DataError("a second story begins", location=location, advice="put each story into its own file")
            is_numbered = line_number == 1
        try:
            text = _strip_line_number(line, line_number) if is_numbered else line.text
        except _BabiFault as error:
            raise error.fault.error(name) from None
        if story_words(text):
            yield text.strip(), location


def check_same_language(questions: StoryQuestions) -> None:
    """Raise `DataError` when tasks that are trained together are not in one language.

    Two files of one task must share half of their words, and every file at least one word with the others.
    """
    words_by_file = _words_by_file(questions)
    for name, words in words_by_file.items():
        others = {other: other_words for other, other_words in words_by_file.items() if other != name}
        for other, other_words in others.items():
            shared = words & other_words
            if task_name(other) == task_name(name) and 2 * len(shared) < min(len(words), len(other_words)):
                raise DataError(
                    f"is the same task as {other} in other words: they share {len(shared)} of {len(words)}",
                    location=name,
                    advice="use one version of a task, or train them separately",
                )
        if others and not words & set().union(*others.values()):
            raise DataError(
                f"shares none of its {len(words)} words with any other of the {len(words_by_file)} files",
                location=name,
                advice="tasks that are trained together need one language: train it separately",
            )


def _words_by_file(questions: StoryQuestions) -> dict[str, set[str]]:
    texts_by_file: dict[str, set[str]] = {}
    for question in questions.questions:
        name = question.location.rpartition(":")[0] or question.task
        texts_by_file.setdefault(name, set()).update((question.text, *question.sentences))
    return {name: {word for text in texts for word in story_words(text)} for name, texts in texts_by_file.items()}
