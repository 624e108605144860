"""How well questions are answered: the error of each task and their mean, and whether the right sentences were seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from regard.tasks.stories import Answer, Examples, Vocabulary, support_found


@dataclass(frozen=True)
class TaskScore:
    """What came of one task's questions."""

    task: str
    questions: int
    error: float  # percent of the questions
    support: float | None  # percent of the right answers whose supporting sentences are those most looked at


@dataclass(frozen=True)
class StoryScores:
    """What came of the questions of several tasks; every task counts alike in the means."""

    tasks: tuple[TaskScore, ...]

    @property
    def questions(self) -> int:
        """How many there are in all."""
        return sum(one.questions for one in self.tasks)

    @property
    def error(self) -> float:
        """The mean error of the tasks, in percent."""
        return float(np.mean([one.error for one in self.tasks]))

    @property
    def support(self) -> float | None:
        """The mean over the tasks whose files name supporting sentences, in percent."""
        found = [one.support for one in self.tasks if one.support is not None]
        return float(np.mean(found)) if found else None

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        every = [asdict(one) for one in self.tasks]
        return {"questions": self.questions, "error": self.error, "support": self.support, "tasks": every}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StoryScores:
        """Return the scores read from plain values."""
        return cls(tuple(TaskScore(**one) for one in values["tasks"]))

    def rows(self) -> list[list[str]]:
        """Return a table: task, questions, error, support; where there are several tasks, their mean comes last."""
        every = [(one.task, one.questions, one.error, one.support) for one in self.tasks]
        if len(every) > 1:
            every.append((f"mean of {len(every)} tasks", self.questions, self.error, self.support))
        return [
            [name, f"{questions:,}", f"{error:.1f} %", "–" if support is None else f"{support:.1f} %"]
            for name, questions, error, support in every
        ]

    def lines(self) -> list[str]:
        """Return the table for people, with aligned columns."""
        rows = self.rows()
        name, questions, error, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
        return [
            f"{row[0]:<{name}}  {row[1]:>{questions}} questions  error {row[2]:>{error}}  support seen {row[3]}"
            for row in rows
        ]


def measured(data: Examples, answers: Sequence[Answer], vocabulary: Vocabulary) -> StoryScores:
    """Return the scores of answers to all questions.

    >>> from regard.config.model import MemoryConfig
    >>> from regard.data.stories import Question, Stories
    >>> from regard.tasks.stories import completed, examples
    >>> told = Stories.of([Question("one", ("Mary went home.",), "Where is Mary?", "home", (0,))] * 4)
    >>> words = Vocabulary.of(told)
    >>> data = examples(told, words, completed(MemoryConfig(), told, words))
    >>> looked = np.ones((3, 1), dtype=np.float32)
    >>> measured(data, [Answer("home", 0.9, looked)] * 3 + [Answer("mary", 0.9, looked)], words).rows()
    [['one', '4', '25.0 %', '100.0 %']]
    """
    wrong = np.array([vocabulary.numbers[given.text] for given in answers], dtype=np.int64) != data.answers
    support = support_found(data, answers, vocabulary)
    scores = []
    for number, name in enumerate(data.tasks):
        own = data.task == number
        scores.append(TaskScore(name, int(own.sum()), 100 * float(wrong[own].mean()), support.get(name)))
    return StoryScores(tuple(scores))
