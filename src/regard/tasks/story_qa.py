"""Questions about stories (bAbI) for memory networks: vocabulary, examples, predictions and scores.

`StoryQuestions` → `StoryVocabulary`, `StoryExamples` → `StoryBatch` → `MemoryNetwork` → answers with the attention of
each hop. `StoryScores` holds the error of each task, and how often the supporting sentences have the largest weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention.trace import trace
from regard.config.rnn_models import MemoryNetworkConfig
from regard.data.babi import StoryQuestion, StoryQuestions, story_words
from regard.errors import CheckpointError, DataError, nearest
from regard.models.memory_network import MemoryNetwork, StoryBatch
from regard.packed_tokens import Tokens

Indices = NDArray[np.int64]
UNKNOWN_ANSWER = -1  # id of an answer that the model cannot give
BATCH_QUESTIONS = 256  # questions of a batch in inference
SINGLE_TASK_EMBEDDING = 20  # published embedding sizes (Sukhbaatar et al. 2015)
JOINT_EMBEDDING = 50


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

    def encode(self, text: str, max_length: int = 0, noun: str = "sentence") -> list[int]:
        """Word ids of a text; unknown words and texts of more than `max_length` words (0: any) are errors."""
        words = story_words(text)
        if not words:
            raise DataError(f"the {noun} has no words", advice="write some")
        for word in words:
            if word not in self.word_ids:
                raise DataError(
                    f"the model does not know the word {word!r}{nearest(word, self.words)}",
                    advice="it knows only words of the stories that it was trained on",
                )
        if max_length and len(words) > max_length:
            raise DataError(f"the {noun} has {len(words)} words, the model holds {max_length}", advice="shorten it")
        return [self.word_ids[word] for word in words]

    def answer_id(self, answer: str) -> int:
        """Word id of an answer; `UNKNOWN_ANSWER` if it is no answer of the training stories."""
        return self.word_ids[answer] if answer in self.answers else UNKNOWN_ANSWER


def _string_list(value: Any) -> list[str]:
    """The value if it is a list of strings, else an empty list."""
    is_valid = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return value if is_valid else []


def resolve_sizes(
    config: MemoryNetworkConfig, questions: StoryQuestions, vocabulary: StoryVocabulary
) -> MemoryNetworkConfig:
    """Config with the sizes that follow from the training stories.

    The memory is not larger than the longest story; the default embedding size is the published one, 20 for one task
    and 50 for several.
    """
    texts = {text for question in questions.questions for text in (*question.sentences, question.text)}
    longest_story = max(len(question.sentences) for question in questions.questions)
    default_embedding = SINGLE_TASK_EMBEDDING if len(questions.tasks) == 1 else JOINT_EMBEDDING
    return replace(
        config,
        vocab_size=len(vocabulary.words),
        max_sentence_words=config.max_sentence_words or max(len(story_words(text)) for text in texts),
        memory_size=min(config.memory_size, longest_story),
        embedding_size=config.embedding_size or default_embedding,
    )


@dataclass(frozen=True)
class StoryExamples:
    """Questions as word ids; a sentence that occurs in many stories is stored once."""

    sentences: Tokens  # distinct sentences
    stories: Tokens  # per question, indices of the sentences in the model's memory
    questions: Tokens  # word ids of each question
    answers: Indices  # [n], UNKNOWN_ANSWER for an answer that the model cannot give
    tasks: tuple[str, ...]
    task_indices: Indices  # [n], index of each question's task
    support: list[set[int]]  # positions in the story of the supporting sentences; negative: no longer in memory
    digest: str

    def __len__(self) -> int:
        return len(self.answers)

    @cached_property
    def ages(self) -> Indices:
        """Age of each sentence of `stories`: 0 for the last one before the question."""
        lengths = self.stories.lengths
        positions = np.arange(len(self.stories.ids)) - np.repeat(self.stories.offsets[:-1], lengths)
        return np.repeat(lengths, lengths) - 1 - positions

    def noisy_ages(self, share: float, max_age: int, rng: np.random.Generator) -> Indices:
        """Ages with empty memories between sentences (Sukhbaatar et al. 2015, section 4.1, "random noise").

        A story gets up to `share` of its length as empty memories; ages stay below `max_age`.
        """
        counts = self.stories.lengths.astype(np.int64)
        num_memories = counts + rng.integers(0, np.ceil(share * counts).astype(np.int64) + 1)
        starts = np.cumsum(num_memories) - num_memories
        story = np.repeat(np.arange(len(counts)), num_memories)  # of each memory
        shuffled = np.lexsort((rng.random(len(story)), story))  # the memories of each story in random order …
        filled = shuffled[np.arange(len(story)) - starts[story] < counts[story]]  # … of which the first are filled
        filled.sort()
        ages: Indices = np.minimum((starts + num_memories)[story[filled]] - 1 - filled, max_age - 1)
        return ages

    def batch(self, indices: Indices, ages: Indices | None = None) -> StoryBatch:
        """Questions by index, with the sentences of their stories."""
        story_indices, story_offsets = _select_rows(self.stories, indices)
        word_indices, sentence_offsets = _select_rows(self.sentences, self.stories.ids[story_indices])
        question_indices, question_offsets = _select_rows(self.questions, indices)
        all_ages = self.ages if ages is None else ages
        return StoryBatch(
            Tokens(self.questions.ids[question_indices], question_offsets),
            Tokens(self.sentences.ids[word_indices], sentence_offsets),
            ages=all_ages[story_indices],
            sentence_counts=np.diff(story_offsets),
        )

    def batches(self, indices: Indices | None = None) -> Iterator[Indices]:
        """Yield the indices of all questions, or these, batch by batch."""
        all_indices = np.arange(len(self)) if indices is None else indices
        for start in range(0, len(all_indices), BATCH_QUESTIONS):
            yield all_indices[start : start + BATCH_QUESTIONS]


def _select_rows(tokens: Tokens, rows: Any) -> tuple[Indices, Any]:
    """Token indices of rows, and the offsets of these rows laid end to end."""
    lengths = tokens.lengths[rows]
    offsets = np.append(0, np.cumsum(lengths))
    return np.repeat(tokens.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1]), offsets


class _SentenceTable:
    """Distinct sentences as word ids, in the order of their first occurrence."""

    def __init__(self, vocabulary: StoryVocabulary, max_words: int) -> None:
        self.vocabulary = vocabulary
        self.max_words = max_words
        self.rows: list[list[int]] = []
        self._indices: dict[str, int] = {}

    def add_story(self, question: StoryQuestion, start: int) -> list[int]:
        """Indices of a story's sentences from `start` on; new ones are added. Errors have their location."""
        for position, sentence in enumerate(question.sentences[start:], start):
            if sentence in self._indices:
                continue
            try:
                self.rows.append(self.vocabulary.encode(sentence, self.max_words))
            except DataError as error:
                location = question.sentence_location(position)
                raise DataError(error.what, location=location, advice=error.advice) from None
            self._indices[sentence] = len(self._indices)
        return [self._indices[sentence] for sentence in question.sentences[start:]]


def encode_stories(
    questions: StoryQuestions, vocabulary: StoryVocabulary, config: MemoryNetworkConfig, *, strict: bool = True
) -> StoryExamples:
    """Encode the questions as word ids.

    Unknown words and sentences that are too long are errors with their location. So are, with `strict`, answers that
    do not occur in training; otherwise such questions count as wrong.
    """
    unknown_answers = questions.describe_unknown_answers(vocabulary.answers) if strict else ""
    if unknown_answers:
        raise DataError(unknown_answers, advice="remove the questions, or count them as wrong: --unknown-answers wrong")
    sentences = _SentenceTable(vocabulary, config.max_sentence_words)
    story_rows: list[list[int]] = []
    question_rows: list[list[int]] = []
    support: list[set[int]] = []
    for question in questions.questions:
        num_forgotten = len(question.sentences) - len(question.sentences[-config.memory_size :])
        story_rows.append(sentences.add_story(question, num_forgotten))
        question_rows.append(_encode_question(question, vocabulary, config))
        support.append({position - num_forgotten for position in question.support})
    tasks = questions.tasks
    return StoryExamples(
        sentences=Tokens.from_rows(sentences.rows),
        stories=Tokens.from_rows(story_rows),
        questions=Tokens.from_rows(question_rows),
        answers=np.array([vocabulary.answer_id(question.answer) for question in questions.questions], dtype=np.int64),
        tasks=tuple(tasks),
        task_indices=np.array([tasks.index(question.task) for question in questions.questions], dtype=np.int64),
        support=support,
        digest=questions.digest,
    )


def _encode_question(question: StoryQuestion, vocabulary: StoryVocabulary, config: MemoryNetworkConfig) -> list[int]:
    try:
        return vocabulary.encode(question.text, config.max_sentence_words, "question")
    except DataError as error:
        raise DataError(error.what, location=question.location, advice=error.advice) from None


@dataclass(frozen=True)
class StoryErrors:
    """Errors and losses of the restarts of a memory network."""

    tasks: tuple[str, ...]
    errors: NDArray[np.float64]  # [tasks, M], in percent
    loss: NDArray[np.float64]  # [M], per question
    error: NDArray[np.float64]  # [M], over all questions, in percent


@torch.no_grad()
def evaluate_restarts(
    model: MemoryNetwork, examples: StoryExamples, indices: Indices | None = None, *, linear: bool = False
) -> StoryErrors:
    """Errors of every restart by task, and its loss over the questions whose answer the model can give."""
    all_indices = np.arange(len(examples)) if indices is None else indices
    batch_errors: list[NDArray[np.bool_]] = []  # [M, B]
    loss = np.zeros(model.num_restarts)
    for batch in examples.batches(all_indices):
        answers = examples.answers[batch]
        logits = model.logits(model(examples.batch(batch), linear=linear))  # [M, B, V]
        batch_errors.append(logits.argmax(-1).cpu().numpy() != answers)
        known = np.flatnonzero(answers != UNKNOWN_ANSWER)
        logprobs = logits.log_softmax(-1)[:, known, answers[known]]
        loss -= logprobs.double().sum(1).cpu().numpy()
    is_wrong = np.concatenate([np.zeros((model.num_restarts, 0), dtype=bool), *batch_errors], axis=1)
    task = examples.task_indices[all_indices]
    num_known = int((examples.answers[all_indices] != UNKNOWN_ANSWER).sum())
    present = [index for index in range(len(examples.tasks)) if (task == index).any()]
    errors = np.array([100 * is_wrong[:, task == index].mean(1) for index in present])
    return StoryErrors(
        tasks=tuple(examples.tasks[index] for index in present),
        errors=errors.reshape(-1, model.num_restarts),
        loss=loss / max(1, num_known),
        error=100 * is_wrong.mean(1),
    )


@dataclass(frozen=True)
class HopAnswer:
    """Answer to one question, with the attention of each hop."""

    text: str
    probability: float
    weights: NDArray[np.float32]  # [hops, sentences in memory]; the rest of 1 is on the empty memory
    alternatives: tuple[tuple[str, float], ...] = ()  # the next best answers, with their probabilities

    @property
    def max_weights(self) -> NDArray[np.float32]:
        """Largest weight of each sentence over the hops."""
        largest: NDArray[np.float32] = self.weights.max(axis=0)
        return largest


@torch.no_grad()
def predict_answers(
    model: MemoryNetwork, vocabulary: StoryVocabulary, examples: StoryExamples, *, top_k: int = 1
) -> list[HopAnswer]:
    """Answers of the first restart with their attention; of each question the `top_k` most likely."""
    predictions = []
    for indices in examples.batches():
        batch = examples.batch(indices)
        with trace("hop.*", full_precision=True) as captured:
            output = model(batch)
        probabilities, word_ids = model.logits(output)[0].softmax(-1).sort(dim=-1, descending=True, stable=True)
        weights = np.stack([captured[f"hop.{hop}"].weights[0, 0] for hop in range(model.config.hops)])
        offsets = np.append(0, np.cumsum(batch.sentence_counts))
        top = zip(probabilities[:, :top_k].tolist(), word_ids[:, :top_k].tolist(), strict=True)  # [B, V] each
        for row, (row_probabilities, row_ids) in enumerate(top):
            words = [vocabulary.words[word_id] for word_id in row_ids]
            answers = list(zip(words, row_probabilities, strict=True))
            text, probability = answers[0]
            predictions.append(
                HopAnswer(
                    text,
                    probability,
                    weights=weights[:, row, offsets[row] : offsets[row + 1]],
                    alternatives=tuple(answers[1:]),
                )
            )
    return predictions


def supporting_accuracy(
    examples: StoryExamples, answers: Sequence[HopAnswer], vocabulary: StoryVocabulary
) -> dict[str, float]:
    """Percentage of right answers whose k supporting sentences have the k largest weights, by task.

    The weight of a sentence is its largest one over the hops. Questions without supporting sentences are left out.
    """
    hits: dict[str, list[bool]] = {}
    for index, (answer, support) in enumerate(zip(answers, examples.support, strict=True)):
        if support and vocabulary.word_ids.get(answer.text) == examples.answers[index]:
            attended = np.argsort(-answer.max_weights, kind="stable")[: len(support)]
            task = examples.tasks[examples.task_indices[index]]
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
    """Table of the validation scores by task."""
    return StoryScores.from_dict(metrics["valid"]).lines()


def score_answers(examples: StoryExamples, answers: Sequence[HopAnswer], vocabulary: StoryVocabulary) -> StoryScores:
    """Scores of the answers to all questions.

    >>> from regard.config.rnn_models import MemoryNetworkConfig
    >>> from regard.data.babi import StoryQuestion, StoryQuestions
    >>> question = StoryQuestion("one", ("Mary went home.",), "Where is Mary?", "home", (0,))
    >>> stories = StoryQuestions.from_questions([question] * 4)
    >>> vocabulary = StoryVocabulary.from_questions(stories)
    >>> config = resolve_sizes(MemoryNetworkConfig(), stories, vocabulary)
    >>> weights = np.ones((3, 1), dtype=np.float32)
    >>> answers = [HopAnswer("home", 0.9, weights)] * 3 + [HopAnswer("mary", 0.9, weights)]
    >>> score_answers(encode_stories(stories, vocabulary, config), answers, vocabulary).rows()
    [['one', '4', '25.0 %', '100.0 %']]
    """
    predicted_ids = np.array([vocabulary.word_ids[answer.text] for answer in answers], dtype=np.int64)
    is_wrong = predicted_ids != examples.answers
    support = supporting_accuracy(examples, answers, vocabulary)
    scores = []
    for index, name in enumerate(examples.tasks):
        in_task = examples.task_indices == index
        error = 100 * float(is_wrong[in_task].mean())
        scores.append(TaskScore(name, int(in_task.sum()), error=error, support=support.get(name)))
    return StoryScores(tuple(scores))
