"""`regard answer`: extractive answers from a passage, or answers about a story with attention to its sentences."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import (
    ENGINE_OPTIONS,
    EVALUATIONS,
    MODEL_ARGUMENT,
    TEXT_FLAGS,
    TestSet,
    evaluator,
    iter_windows,
)
from regard.cli.options import Option, verb
from regard.cli.output import json_line, note, print_result, show_progress, write_lines
from regard.cli.texts import ENCODING, TextInput
from regard.config.data import ReadConfig
from regard.errors import UsageError
from regard.metric_table import METRICS
from regard.registry import TASKS, resolve, usage_hint

if TYPE_CHECKING:
    from regard.data.babi import Story, StoryQuestion
    from regard.pipeline.question_answering import Answer
    from regard.pipeline.story_qa import StoryAnswer

HELP = """Answer QUESTIONS by spans of a passage, or about a story.

A passage is a text file; a long one is read in windows. Each answer has its probability and its character offsets.
Without QUESTIONS, they are read from standard input, one per line.

A story is a file with one sentence per line, plain or numbered as in the bAbI tasks; the output shows the attention of
each hop to its sentences. Without QUESTIONS, those of the file are answered, each from the sentences before it; if
it has none, they are read from standard input.

\b
  regard answer runs/answers --passage notes.txt "Who was Jim Henson?"
  regard answer runs/answers --passage notes.txt --in questions.txt --json
  regard answer runs/babi --story story.txt "Where is the apple?"
  regard answer runs/babi --story story.txt --json < story-questions.txt
  regard answer runs/babi --story story.txt "Where is the apple?" --page apple.html
"""
MAX_WIDTH = 110  # terminal columns
MIN_SCORE = 0.0005  # alternatives below it are not printed


@verb(
    HELP,
    [
        MODEL_ARGUMENT,
        click.Argument(["questions"], nargs=-1, metavar="[QUESTION]…"),
        Option(["--passage"], metavar="FILE", help="Text file that contains the answers."),
        Option(["--in", "source"], metavar="FILE", help="Read the questions from this file, one per line."),
        Option(["--story"], metavar="FILE", help="Story file, one sentence per line."),
        Option(["--top-k"], type=click.IntRange(1), default=3, help="Answers shown per question. [default: 3]"),
        Option(["--page"], metavar="FILE", help="Write the attention of each hop as an HTML page (stories)."),
        ENCODING,
        *ENGINE_OPTIONS,
    ],
    output=["regard.pipeline.question_answering:AnswerDict", "regard.pipeline.story_qa:StoryAnswerDict"],
)
def answer(context: click.Context, folder: str, questions: tuple[str, ...], as_json: bool, **settings: Any) -> None:
    """Answer questions by the task of the model."""
    from regard.checkpoint.model_dir import folder_task

    task = folder_task(folder)
    answer_questions = resolve(TASKS[task].answer)
    if answer_questions is None:
        raise UsageError(f"{folder}: a model for the task {task!r}, which answers no questions{usage_hint(task)}")
    answer_questions(folder, questions, as_json, **settings)


def answer_about_story(
    folder: str,
    questions: tuple[str, ...],
    as_json: bool,
    *,
    story: str | None,
    top_k: int,
    page: str | None,
    encoding: str,
    passage: str | None,
    source: str | None,
    **load_options: Any,
) -> None:
    """Answer questions about a story."""
    if passage or source:
        raise UsageError(f"{folder} answers questions about stories: use --story, not --passage or --in")
    if not story:
        raise UsageError("the story is missing: add --story FILE, a file with one sentence per line")
    from regard.data.babi import read_story
    from regard.pipeline.load import load_stories

    parsed_story = read_story(story, ReadConfig(encoding=encoding))
    model = load_stories(folder, **load_options)
    answers: list[StoryAnswer] = []
    for question in _story_questions(parsed_story, questions, encoding):
        story_answer = model.answer_batch([question], top_k=top_k)[0]
        if as_json:
            print(json_line(story_answer.to_dict()), flush=True)
        else:
            _print_lines(format_story_answer(story_answer, first=not answers))
        answers.append(story_answer)
    if not answers:
        raise UsageError(f"no question: add one as an argument, in {story}, or on standard input")
    if page:
        from regard.view.page import page as render_page

        records = [story_answer.record() for story_answer in answers]
        write_lines(page, [render_page(records, title=str(story))])
        note(f"page: {page}")


def answer_from_passage(
    folder: str,
    questions: tuple[str, ...],
    as_json: bool,
    *,
    passage: str | None,
    source: str | None,
    top_k: int,
    story: str | None,
    page: str | None,
    encoding: str,
    **load_options: Any,
) -> None:
    """Answer questions by spans of a passage."""
    if story or page:
        raise UsageError(f"{folder} answers by spans of a passage: use --passage, not --story or --page")
    if not passage:
        raise UsageError("the passage is missing: add --passage FILE, a text file")
    from regard.data.ledger import read_lines
    from regard.pipeline.load import load_answerer

    text = "\n".join(read_lines(passage, ReadConfig(encoding=encoding)))
    if not text.strip():
        raise UsageError(f"{passage}: the passage is blank")
    windows, _ = TextInput(questions, source, out=None, encoding=encoding, as_json=as_json).windows()
    model = load_answerer(folder, **load_options)
    num_answers = 0
    for window in windows:
        pairs = [(question, text) for question in window if question.strip()]
        for span in model.answer(pairs, top_k=top_k):
            if as_json:
                print(json_line(span.to_dict()), flush=True)
            else:
                _print_lines(format_answer(span, first=not num_answers))
            num_answers += 1
    if not num_answers:
        raise UsageError("no question: add one as an argument, with --in, or on standard input")
    note(model.truncation_report.format())


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def format_answer(answer: Answer, *, first: bool = True) -> list[str]:
    """Format an answer for reading: the question, the span with its offsets and probability, and the next best."""
    from regard.view.record.texts import escape_invisible

    text = escape_invisible(answer.text) if answer.text else "no answer"
    location = f"  (characters {answer.start} to {answer.end})" if answer.text else ""
    lines = [] if first else [""]
    lines += [escape_invisible(answer.question), f"→ {text}  {100 * answer.score:.1f} %{location}"]
    for alternative in answer.alternatives:
        if alternative.score >= MIN_SCORE:
            lines.append(f"  {100 * alternative.score:5.1f} %  {escape_invisible(alternative.text)}")
    return lines


def _story_questions(story: Story, questions: tuple[str, ...], encoding: str) -> Iterable[StoryQuestion]:
    """Questions of the command line, else those of the story, else those of standard input as they arrive."""
    if questions:
        if story.questions:
            note(f"questions of the story ({len(story.questions)}) are skipped: the command line has others")
        return [story.ask(text, f"question {index}") for index, text in enumerate(questions, 1)]
    return story.questions or _iter_stdin_questions(story, encoding)


def _iter_stdin_questions(story: Story, encoding: str) -> Iterator[StoryQuestion]:
    from regard.data.ledger import iter_lines

    for line_number, text in enumerate(iter_lines(sys.stdin.buffer, ReadConfig(encoding=encoding)), 1):
        if text.strip():
            yield story.ask(text.strip(), f"standard input:{line_number}")


def format_story_answer(answer: StoryAnswer, *, first: bool = True) -> list[str]:
    """Format an answer for reading: the question, the answer with its probability, and the attention to sentences."""
    from shutil import get_terminal_size

    from regard.view.record.texts import escape_invisible
    from regard.view.terminal import hop_table

    line = f"→ {answer}  {100 * answer.score:.1f} %"
    alternatives = ", ".join(f"{word} {100 * word.score:.1f} %" for word in answer.alternatives)
    if alternatives:
        line += f"  (then {alternatives})"
    width = min(MAX_WIDTH, get_terminal_size((100, 24)).columns)
    lines = [*([] if first else [""]), escape_invisible(answer.question), line]
    if not len(answer.hops):  # a model without attention
        return lines
    truncated = answer.truncated_sentences
    table = hop_table(answer.sentences, answer.hops, width=width, num_truncated=truncated, unit=answer.unit)
    return [*lines, "", *table]


@evaluator(
    *("--backend", "--out", "--metric", "--unknown-answers", *TEXT_FLAGS),
    output=f"{EVALUATIONS}:StoryEvaluation",
)
def evaluate_stories(test: TestSet) -> None:
    """Evaluate on story files, each a task: error rates, and how often attention is on the supporting sentences."""
    from regard.data.babi import read_stories
    from regard.pipeline.load import load_stories

    stories = read_stories(test.files, test.read_config)
    model = load_stories(test.folder, **test.load_options)
    unknown_answers = stories.describe_unknown_answers(model.reader.answers)
    if unknown_answers and test.unknown_answers == "wrong":
        note(f"{unknown_answers}; they count as wrong")
    scores, predictions = model.evaluate(stories, strict=test.unknown_answers == "error", metrics=test.metrics)
    if scores.truncation:
        note(scores.truncation)
    if test.out:
        write_lines(test.out, predictions)
    print_result(scores.to_dict(), [*scores.lines(), *test.metric_lines(scores.metrics)], test.as_json)


@evaluator("--backend", "--out", "--metric", *TEXT_FLAGS, output=f"{EVALUATIONS}:AnswerEvaluation")
def evaluate_answers(test: TestSet) -> None:
    """Evaluate on SQuAD files: exact match and F1."""
    from regard.data.squad import read_squad
    from regard.pipeline.load import load_answerer
    from regard.pipeline.question_answering import question_passage_pairs

    questions = read_squad(test.files, test.read_config)
    model = load_answerer(test.folder, **test.load_options)
    batches = (model.answer(window) for window in iter_windows(question_passage_pairs(questions.examples)))
    answers = list(show_progress(batches, len(questions), "questions"))
    if test.out:
        pairs = zip(questions.examples, answers, strict=True)
        write_lines(test.out, (json_line({"id": example.name, **answer.to_dict()}) for example, answer in pairs))
    scores = model.evaluate(questions, answers, metrics=test.metrics)
    metrics = [METRICS[name].format_value(value) for name, value in scores.items() if name in METRICS]
    lines = [f"{len(questions):,} questions: {', '.join(metrics)}", model.truncation_report.format()]
    print_result({**scores, "truncation": model.truncation_report.to_dict()}, lines, test.as_json)
