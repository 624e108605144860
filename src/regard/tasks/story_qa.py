"""Questions about stories (bAbI): vocabulary, predictions and scores, for models of every architecture.

`StoryScores` holds the error of each task, and how often the supporting sentences have the largest weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.babi import StoryQuestions, story_words
from regard.errors import CheckpointError, DataError, nearest

UNKNOWN_ANSWER = -1  # target of a question whose answer the model cannot give


@dataclass(frozen=True)
class StoryVocabulary:
    """The words of the training stories and, among them, the answers."""

    words: tuple[str, ...]  # by word id; an answer that is a list counts as one word
    answers: frozenset[str]

    @classmethod
    def from_questions(cls, stories: StoryQuestions) -> StoryVocabulary:
        """Collect the words in the order of their first occurrence.

        >>> from regard.data.babi import StoryQuestion
        >>> question = StoryQuestion("one", ("Mary went home.",), "Where is Mary?", "home")
        >>> stories = StoryQuestions.from_questions([question])
        >>> StoryVocabulary.from_questions(stories).words
        ('mary', 'went', 'home', 'where', 'is')
        """
        texts = dict.fromkeys(text for question in stories.questions for text in (*question.sentences, question.text))
        words = dict.fromkeys(word for text in texts for word in story_words(text))
        answers = dict.fromkeys(question.answer for question in stories.questions)
        return cls(tuple(dict.fromkeys([*words, *answers])), frozenset(answers))

    @cached_property
    def word_ids(self) -> dict[str, int]:
        """Id of each word."""
        return {word: word_id for word_id, word in enumerate(self.words)}

    def to_dict(self) -> dict[str, list[str]]:
        """Plain values for a file."""
        return {"words": list(self.words), "answers": sorted(self.answers)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "") -> StoryVocabulary:
        """Vocabulary from plain values; `where` names their file in errors."""
        words = _string_list(values.get("words"))
        answers = _string_list(values.get("answers"))
        if not words or not set(answers) <= set(words):
            raise CheckpointError(f"{where}: not a vocabulary of words and answers")
        return cls(tuple(words), frozenset(answers))

    def encode(self, text: str, max_length: int = 0, role: str = "sentence") -> list[int]:
        """Word ids of a text; unknown words and texts of more than `max_length` words (0: any) are errors."""
        words = story_words(text)
        if not words:
            raise DataError(f"the {role} has no words", advice="write some")
        for word in words:
            if word not in self.word_ids:
                raise DataError(
                    f"the model does not know the word {word!r}{nearest(word, self.words)}",
                    advice="it knows only words of the stories that it was trained on",
                )
        if max_length and len(words) > max_length:
            raise DataError(f"the {role} has {len(words)} words, the model holds {max_length}", advice="shorten it")
        return [self.word_ids[word] for word in words]


def _string_list(value: Any) -> list[str]:
    """The value if it is a list of strings, else an empty list."""
    is_valid = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return value if is_valid else []


def refuse_unknown_answers(questions: StoryQuestions, known: Collection[str]) -> None:
    """Raise `DataError` with the answers that do not occur in training."""
    unknown_answers = questions.describe_unknown_answers(known)
    if unknown_answers:
        raise DataError(unknown_answers, advice="remove the questions, or count them as wrong: --unknown-answers wrong")


@dataclass(frozen=True)
class StoryReferences:
    """What predictions are compared with: known answers and supporting sentences."""

    answers: tuple[str, ...]  # empty where the model cannot give the answer
    tasks: tuple[str, ...]  # of each question
    support: tuple[set[int], ...]  # positions in the read part of a story; negative: before it

    def select(self, indices: NDArray[np.int64]) -> StoryReferences:
        """Those of the questions at these indices."""
        return StoryReferences(
            answers=tuple(self.answers[index] for index in indices),
            tasks=tuple(self.tasks[index] for index in indices),
            support=tuple(self.support[index] for index in indices),
        )


@dataclass(frozen=True)
class StoryPrediction:
    """Answer to one question, with attention to the sentences: of each hop or layer, none in a model without any."""

    text: str
    probability: float
    weights: NDArray[np.float32]  # [hops, sentences that are read]; the rest of 1 is on what is no sentence
    alternatives: tuple[tuple[str, float], ...] = ()  # the next best answers, with their probabilities

    @property
    def num_sentences(self) -> int:
        """Number of sentences that the model read, the last ones before the question."""
        return int(self.weights.shape[1])

    @property
    def max_weights(self) -> NDArray[np.float32]:
        """Largest weight of each sentence over the hops."""
        largest: NDArray[np.float32] = self.weights.max(axis=0)
        return largest


def describe_truncation(truncated_sentences: Sequence[int]) -> str:
    """Count the stories whose first sentences are left out, and these sentences; empty if all are read.

    >>> describe_truncation([0, 3, 2])
    '2 of 3 stories are longer than what the model reads: their first sentences, 5 in all, are left out'
    """
    num_stories = sum(count > 0 for count in truncated_sentences)
    if not num_stories:
        return ""
    return (
        f"{num_stories:,} of {len(truncated_sentences):,} stories are longer than what the model reads: their first "
        f"sentences, {sum(truncated_sentences):,} in all, are left out"
    )


def supporting_accuracy(references: StoryReferences, answers: Sequence[StoryPrediction]) -> dict[str, float]:
    """Percentage of right answers whose k supporting sentences have the k largest weights, by task.

    The weight of a sentence is its largest one over the hops. Questions without supporting sentences are left out, and
    those that a model without attention answers.
    """
    hits: dict[str, list[bool]] = {}
    rows = zip(answers, references.answers, references.tasks, references.support, strict=True)
    for answer, reference, task, support in rows:
        if support and answer.text == reference and len(answer.weights):
            attended = np.argsort(-answer.max_weights, kind="stable")[: len(support)]
            hits.setdefault(task, []).append(support == set(attended.tolist()))
    return {task: 100 * float(np.mean(task_hits)) for task, task_hits in hits.items()}


@dataclass(frozen=True)
class TaskScore:
    """Score of one task."""

    task: str
    questions: int
    error: float  # percent of the questions
    support: float | None  # percent of the right answers whose supporting sentences have the largest weights


@dataclass(frozen=True)
class StoryScores:
    """Scores of several tasks; every task has the same weight in the means."""

    tasks: tuple[TaskScore, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)  # by name
    truncation: str = ""  # which sentences the model did not read, for the user

    @property
    def questions(self) -> int:
        """Number of questions of all tasks."""
        return sum(score.questions for score in self.tasks)

    @property
    def error(self) -> float:
        """Mean error of the tasks, in percent."""
        return float(np.mean([score.error for score in self.tasks]))

    @property
    def support(self) -> float | None:
        """Mean over the tasks whose files name supporting sentences, in percent."""
        supports = [score.support for score in self.tasks if score.support is not None]
        return float(np.mean(supports)) if supports else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file."""
        tasks = [asdict(score) for score in self.tasks]
        scores = {"questions": self.questions, "error": self.error, "support": self.support, "tasks": tasks}
        return {**scores, **self.metrics}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StoryScores:
        """Scores from plain values."""
        return cls(tuple(TaskScore(**score) for score in values["tasks"]))

    def metrics_of(self, split: str) -> dict[str, Any]:
        """These scores as metrics of a split: all of them, and how often attention is on the supporting sentences."""
        support = {} if self.support is None else {f"{split}_support": self.support}
        return {**support, split: self.to_dict()}

    def rows(self) -> list[list[str]]:
        """Table of task, questions, error and support; with several tasks, their mean comes last."""
        scores = list(self.tasks)
        if len(scores) > 1:
            mean = TaskScore(f"mean of {len(scores)} tasks", self.questions, error=self.error, support=self.support)
            scores.append(mean)
        return [
            [
                score.task,
                f"{score.questions:,}",
                f"{score.error:.1f} %",
                "–" if score.support is None else f"{score.support:.1f} %",
            ]
            for score in scores
        ]

    def lines(self) -> list[str]:
        """The table as text with aligned columns."""
        rows = self.rows()
        name_width, questions_width, error_width, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
        return [
            f"{task:<{name_width}}  {questions:>{questions_width}} questions  error {error:>{error_width}}  "
            f"attention on support {support}"
            for task, questions, error, support in rows
        ]


def format_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Table of the validation scores by task; of a run that goes on, there may be none yet."""
    return StoryScores.from_dict(metrics["valid"]).lines() if "valid" in metrics else []


def score_answers(references: StoryReferences, answers: Sequence[StoryPrediction]) -> StoryScores:
    """Scores of the answers to all questions.

    >>> references = StoryReferences(answers=("home",) * 4, tasks=("one",) * 4, support=({0},) * 4)
    >>> weights = np.ones((3, 1), dtype=np.float32)
    >>> answers = [StoryPrediction("home", 0.9, weights)] * 3 + [StoryPrediction("mary", 0.9, weights)]
    >>> score_answers(references, answers).rows()
    [['one', '4', '25.0 %', '100.0 %']]
    """
    is_wrong = np.array(
        [answer.text != reference for answer, reference in zip(answers, references.answers, strict=True)]
    )
    support = supporting_accuracy(references, answers)
    scores = []
    for name in dict.fromkeys(references.tasks):
        in_task = np.array([task == name for task in references.tasks])
        error = 100 * float(is_wrong[in_task].mean())
        scores.append(TaskScore(name, int(in_task.sum()), error=error, support=support.get(name)))
    return StoryScores(tuple(scores))
