"""`regard answer`: questions about a story, with the sentences that each hop looked at."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from regard.cli.models import COMPUTING, FOLDER
from regard.cli.options import Option, verb
from regard.cli.output import give, json_line, note, write_lines
from regard.config.data import ReadConfig
from regard.config.tasks import USED_BY
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.data.stories import Question, Story
    from regard.pipeline import Answer

HELP = """Answer QUESTIONS about a story, and show which sentences were looked at, hop by hop.

The story is a file of one sentence a line, plain or with the numbers of the bAbI tasks. Without QUESTIONS, those in the
file are answered, each from what was told before it; where there are none, those on standard input, line by line.

\b
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
        Option(["--story"], metavar="FILE", help="what was told, one sentence a line"),
        Option(["--best"], type=click.IntRange(1), default=3, help="answers shown for each question [default: 3]"),
        Option(["--page"], metavar="FILE", help="write a page that shows where each hop looked"),
        Option(["--encoding"], default="utf-8", help="text encoding of what is read [default: utf-8]"),
        *COMPUTING,
    ],
)
def answer(context: click.Context, folder: str, questions: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Answer what was asked, in the way of the folder's task."""
    from regard.checkpoint.folder import task_of

    task = task_of(folder)
    if task not in ANSWERS:
        use = f" (`{USED_BY[task]}` uses it)" if task in USED_BY else ""
        raise UsageError(f"{folder}: a model for the task {task!r}, which answers no questions{use}")
    ANSWERS[task](folder, questions, as_json, **given)


def _about_story(
    folder: str,
    questions: tuple[str, ...],
    as_json: bool,
    *,
    story: str | None,
    best: int,
    page: str | None,
    encoding: str,
    **computing: Any,
) -> None:
    """Answer questions about a story with a memory network."""
    if not story:
        raise UsageError("what the questions are about is missing: give a file of one sentence a line with --story")
    from regard.data.stories import read_story
    from regard.pipeline import load_stories

    told = read_story(story, ReadConfig(encoding=encoding))
    model = load_stories(folder, **computing)
    answers: list[Answer] = []
    for asked in _asked(told, questions, encoding):
        found = model.answers([asked], best=best)[0]
        for line in [json_line(found.to_dict())] if as_json else lines_of(found, first=not answers):
            print(line, flush=True)
        answers.append(found)
    if not answers:
        raise UsageError(f"no question: give one behind {story}, in it, or on standard input")
    if page:
        from regard.view.page import page as made

        write_lines(page, [made([one.record() for one in answers], title=str(story))])
        note(f"page: {page}")


ANSWERS = {"stories": _about_story}  # task → what answers for it


def _asked(told: Story, questions: tuple[str, ...], encoding: str) -> Iterable[Question]:
    """Return the questions given as arguments, those in the story, or those on standard input as they come."""
    if questions:
        if told.questions:
            note(f"questions in the story ({len(told.questions)}) are not asked, as others are given")
        return [told.asked(text, f"question {number}") for number, text in enumerate(questions, 1)]
    return told.questions or _typed(told, encoding)


def _typed(told: Story, encoding: str) -> Iterator[Question]:
    from regard.data.sources import iter_lines

    for number, text in enumerate(iter_lines(sys.stdin.buffer, ReadConfig(encoding=encoding)), 1):
        if text.strip():
            yield told.asked(text.strip(), f"standard input:{number}")


def lines_of(found: Answer, *, first: bool = True) -> list[str]:
    """Return an answer for people: the question, what is said and how likely it is, and where each hop looked."""
    from shutil import get_terminal_size

    from regard.view.hops import hop_table
    from regard.view.record import visible

    others = ", ".join(f"{one} {100 * one.score:.1f} %" for one in found.alternatives)
    said = f"→ {found}  {100 * found.score:.1f} %" + (f"  (then {others})" if others else "")
    width = min(WIDTH, get_terminal_size((100, 24)).columns)
    table = hop_table(found.sentences, found.hops, width=width, forgotten=found.forgotten)
    return [*([] if first else [""]), visible(found.question), said, "", *table]


def evaluate_stories(
    folder: str,
    files: tuple[str, ...],
    reading: ReadConfig,
    out: str | None,
    as_json: bool,
    computing: dict[str, Any],
    unseen: str,
) -> None:
    """Answer the questions of files, each a task; give the errors, and how often the supporting sentences were seen."""
    from regard.data.stories import read_stories
    from regard.pipeline import load_stories

    stories = read_stories(files, reading)
    scores, said = load_stories(folder, **computing).evaluate(stories, refuse=unseen == "refuse")
    if out:
        write_lines(out, said)
    give(scores.to_dict(), scores.lines(), as_json)
