"""Stories of a run, for models of every architecture: the splits, and how they are described and scored."""

from __future__ import annotations

from regard.config.story_run import StoryQARun
from regard.data.babi import StoryQuestions, check_same_language, hold_out_stories, read_stories
from regard.formatting import format_count
from regard.tasks.story_qa import StoryScores, refuse_unknown_answers
from regard.training.experiments.base import Notify
from regard.training.experiments.data_splits import DataSplits

NUM_SAMPLES = 2  # questions shown at each evaluation


def read_story_splits(config: StoryQARun) -> DataSplits[StoryQuestions]:
    """Read the stories of a run; hold some out where there are no validation files.

    The answers of all training files are the labels, also those that only questions held out have. Answers of other
    files that never occur in training are noted, or refused where the run says so.
    """
    share = config.training.validation_share
    splits = DataSplits.read(
        config,
        read_stories,
        lambda stories: hold_out_stories(stories, share),
        describe_held_out=lambda valid: f"the {len(valid):,} questions that are held out, with whole stories",
        find_labels=lambda stories, _: sorted({question.answer for question in stories.questions}),
    )
    check_same_language(splits.all_train)
    for split in (splits.valid, splits.test):
        if split is None:
            continue
        if config.training.unknown_answers == "error":
            refuse_unknown_answers(split, splits.labels)
        elif unknown_answers := split.describe_unknown_answers(splits.labels):
            splits.notes.append(f"{unknown_answers}; they count as wrong")
    return splits


def count_tasks(stories: StoryQuestions) -> str:
    """Number of tasks, for the user."""
    return format_count(len(stories.tasks), "task")


def answers_by_task(stories: StoryQuestions) -> list[tuple[str, str]]:
    """Task and answer of each question."""
    return [(question.task, question.answer) for question in stories.questions]


def report_scores(scores: StoryScores, split: str, notify: Notify) -> None:
    """Report the scores of each task."""
    for line in scores.lines():
        notify(f"test: {line}" if split == "test" else line)
