"""`regard answer`: questions about a passage, by spans of it, or about a story, with what each hop looked at."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import ENGINE, FOLDER, TestSet, iter_windows
from regard.cli.options import Option, verb
from regard.cli.output import json_line, note, print_result, show_progress, write_lines
from regard.cli.texts import ENCODING, TextInput
from regard.config.data import ReadConfig
from regard.config.defaults import usage_hint
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.data.babi import Story, StoryQuestion
    from regard.pipeline.question_answering import Answer
    from regard.pipeline.story_qa import StoryAnswer

HELP = """Answer QUESTIONS about a passage by exact spans of it, or about a story with a memory network.

A passage is a text file, read in windows where it is long; each answer comes with its probability and its place in
characters. Without QUESTIONS, those on standard input are answered, line by line.

A story is a file of one sentence a line, plain or with the numbers of the bAbI tasks; which sentences were looked at is
shown hop by hop. Without QUESTIONS, those in the file are answered, each from what was told before it.

\b
  regard answer runs/qa --passage notes.txt "Who was Jim Henson?"
  regard answer runs/qa --passage notes.txt --in questions.txt --json
  regard answer runs/babi --story story.txt "Where is the apple?"
  regard answer runs/babi --story story.txt --json < questions.txt
  regard answer runs/babi --story story.txt "Where is the apple?" --page apple.html
"""
WIDTH = 110  # terminal columns at most


@verb(
    HELP,
    [
        FOLDER,
        click.Argument(["questions"], nargs=-1, metavar="[QUESTION]…"),
        Option(["--passage"], metavar="FILE", help="the text that the answers are in"),
        Option(["--in", "source"], metavar="FILE", help="take the questions from this file, one a line"),
        Option(["--story"], metavar="FILE", help="what was told, one sentence a line"),
        Option(["--best"], type=click.IntRange(1), default=3, help="answers shown for each question [default: 3]"),
        Option(["--page"], metavar="FILE", help="write a page that shows where each hop looked"),
        ENCODING,
        *ENGINE,
    ],
)
def answer(context: click.Context, folder: str, questions: tuple[str, ...], as_json: bool, **settings: Any) -> None:
    """Answer what was asked, in the way of the folder's task."""
    from regard.checkpoint.model_dir import folder_task

    task = folder_task(folder)
    if task not in ANSWERS:
        raise UsageError(f"{folder}: a model for the task {task!r}, which answers no questions{usage_hint(task)}")
    ANSWERS[task](folder, questions, as_json, **settings)


def _about_story(
    folder: str,
    questions: tuple[str, ...],
    as_json: bool,
    *,
    story: str | None,
    best: int,
    page: str | None,
    encoding: str,
    passage: str | None,
    source: str | None,
    backend: str,
    precision: str | None,
    **computing: Any,
) -> None:
    """Answer questions about a story with a memory network."""
    if backend == "engine":
        raise UsageError(f"{folder}: the engine does not compute memory networks; leave out --backend")
    if passage or source:
        raise UsageError(f"{folder} answers questions about stories: --passage and --in are not for it, see --story")
    if not story:
        raise UsageError("what the questions are about is missing: give a file of one sentence a line with --story")
    from regard.data.babi import read_story
    from regard.pipeline.loaders import load_stories

    told = read_story(story, ReadConfig(encoding=encoding))
    model = load_stories(folder, precision=precision or "float32", **computing)
    answers: list[StoryAnswer] = []
    for asked in _asked(told, questions, encoding):
        found = model.answer_batch([asked], top_k=best)[0]
        for line in [json_line(found.to_dict())] if as_json else format_story_answer(found, first=not answers):
            print(line, flush=True)
        answers.append(found)
    if not answers:
        raise UsageError(f"no question: give one behind {story}, in it, or on standard input")
    if page:
        from regard.view.page import page as made

        write_lines(page, [made([one.record() for one in answers], title=str(story))])
        note(f"page: {page}")


def _about_passage(
    folder: str,
    questions: tuple[str, ...],
    as_json: bool,
    *,
    passage: str | None,
    source: str | None,
    best: int,
    story: str | None,
    page: str | None,
    encoding: str,
    **computing: Any,
) -> None:
    """Answer questions about a passage by spans of it."""
    if story or page:
        raise UsageError(f"{folder} answers by spans of a passage: --story and --page are not for it, see --passage")
    if not passage:
        raise UsageError("what the questions are about is missing: give a text file with --passage")
    from regard.data.ledger import read_lines
    from regard.pipeline.loaders import load_answerer

    text = "\n".join(read_lines(passage, ReadConfig(encoding=encoding)))
    if not text.strip():
        raise UsageError(f"{passage}: the passage is blank")
    waiting, _ = TextInput(questions, source, None, encoding, as_json).windows()
    model = load_answerer(folder, **computing)
    asked = 0
    for window in waiting:
        filled = [question for question in window if question.strip()]
        for found in model.answer([(question, text) for question in filled], top_k=best):
            for line in [json_line(found.to_dict())] if as_json else format_answer(found, first=not asked):
                print(line, flush=True)
            asked += 1
    if not asked:
        raise UsageError("no question: give one behind the folder, with --in, or on standard input")
    note(model.account.format())


def format_answer(found: Answer, *, first: bool = True) -> list[str]:
    """Return an answer for people: the question, the span with its place and probability, and the next best."""
    from regard.view.record.texts import escape_invisible

    said = escape_invisible(found.text) if found.text else "no answer"
    place = f"  (characters {found.start} to {found.end})" if found.text else ""
    others = [
        f"  {100 * one.score:5.1f} %  {escape_invisible(one.text)}" for one in found.alternatives if one.score >= 0.0005
    ]
    return [
        *([] if first else [""]),
        escape_invisible(found.question),
        f"→ {said}  {100 * found.score:.1f} %{place}",
        *others,
    ]


ANSWERS: dict[str, Callable[..., None]] = {
    "stories": _about_story,
    "answer": _about_passage,
}  # task → what answers for it


def _asked(told: Story, questions: tuple[str, ...], encoding: str) -> Iterable[StoryQuestion]:
    """Return the questions given as arguments, those in the story, or those on standard input as they come."""
    if questions:
        if told.questions:
            note(f"questions in the story ({len(told.questions)}) are not asked, as others are given")
        return [told.ask(text, f"question {number}") for number, text in enumerate(questions, 1)]
    return told.questions or _typed(told, encoding)


def _typed(told: Story, encoding: str) -> Iterator[StoryQuestion]:
    from regard.data.ledger import iter_lines

    for number, text in enumerate(iter_lines(sys.stdin.buffer, ReadConfig(encoding=encoding)), 1):
        if text.strip():
            yield told.ask(text.strip(), f"standard input:{number}")


def format_story_answer(found: StoryAnswer, *, first: bool = True) -> list[str]:
    """Return an answer for people: the question, what is said and how likely it is, and where each hop looked."""
    from shutil import get_terminal_size

    from regard.view.record.texts import escape_invisible
    from regard.view.terminal import hop_table

    others = ", ".join(f"{one} {100 * one.score:.1f} %" for one in found.alternatives)
    said = f"→ {found}  {100 * found.score:.1f} %" + (f"  (then {others})" if others else "")
    width = min(WIDTH, get_terminal_size((100, 24)).columns)
    table = hop_table(found.sentences, found.hops, width=width, forgotten=found.forgotten)
    return [*([] if first else [""]), escape_invisible(found.question), said, "", *table]


def evaluate_stories(test: TestSet) -> None:
    """Answer the questions of files, each a task; give the errors, and how often the supporting sentences were seen."""
    from regard.data.babi import read_stories
    from regard.pipeline.loaders import load_stories

    stories = read_stories(test.files, test.reading)
    scores, said = load_stories(test.folder, **test.computing).evaluate(stories, refuse=test.unseen == "refuse")
    if test.out:
        write_lines(test.out, said)
    print_result(scores.to_dict(), scores.lines(), test.as_json)


def evaluate_answers(test: TestSet) -> None:
    """Answer the questions of files in the form of SQuAD; give exact match and F1."""
    from regard.data.squad import read_squad
    from regard.pipeline.loaders import load_answerer
    from regard.pipeline.question_answering import question_passage_pairs

    rows = read_squad(test.files, test.reading)
    model = load_answerer(test.folder, **test.computing)
    answered = (model.answer(window) for window in iter_windows(question_passage_pairs(rows.examples)))
    said = list(show_progress(answered, len(rows), "questions"))
    if test.out:
        pairs = zip(rows.examples, said, strict=True)
        write_lines(test.out, (json_line({"id": one.name, **found.to_dict()}) for one, found in pairs))
    scores = model.scores(rows, said)
    parts = [f"{key.replace('_', ' ')} {scores[key]:.2f} %" for key in scores if key.endswith(("exact", "f1"))]
    lines = [f"{len(rows):,} questions: {', '.join(parts)}", model.account.format()]
    print_result({**scores, "account": model.account.to_dict()}, lines, test.as_json)
