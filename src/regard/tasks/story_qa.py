"""Questions about stories as a task: words become numbers, questions become batches; what is right, and why.

Stories ─► Vocabulary ─► Examples ─► Told (batches) ─► MemoryNetwork ─► answers, and where each hop looked

How well questions are answered: the error of each task and their mean, and whether the right sentences were seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention.trace import trace
from regard.config.rnn_models import MemoryNetworkConfig
from regard.data.babi import StoryQuestions, story_words
from regard.errors import CheckpointError, DataError, nearest
from regard.models.memory_network import MemoryNetwork, Numbers, StoryBatch
from regard.tokens import Tokens

UNKNOWN_ANSWER = -1  # the number of an answer that nobody can give
AT_A_TIME = 256  # questions answered at a time


@dataclass(frozen=True)
class StoryVocabulary:
    """The words of the training stories and, among them, those that were answers."""

    words: tuple[str, ...]  # a word's number is its place; answers that are lists count as words
    answers: frozenset[str]

    @classmethod
    def of(cls, stories: StoryQuestions) -> StoryVocabulary:
        """Return the words in the order in which they first appear.

        >>> from regard.data.babi import StoryQuestion
        >>> told = StoryQuestions.of([StoryQuestion("one", ("Mary went home.",), "Where is Mary?", "home")])
        >>> StoryVocabulary.of(told).words
        ('mary', 'went', 'home', 'where', 'is')
        """
        texts = dict.fromkeys(text for question in stories.questions for text in (*question.sentences, question.text))
        answers = dict.fromkeys(question.answer for question in stories.questions)
        words = dict.fromkeys(word for text in texts for word in story_words(text))
        return cls(tuple(dict.fromkeys([*words, *answers])), frozenset(answers))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.words)}

    def to_dict(self) -> dict[str, list[str]]:
        """Return plain values for a file."""
        return {"words": list(self.words), "answers": sorted(self.answers)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "") -> StoryVocabulary:
        """Return the vocabulary read from plain values."""
        words, answers = _texts(values.get("words")), _texts(values.get("answers"))
        if not words or not set(answers) <= set(words):
            raise CheckpointError(f"{where}: not a vocabulary of words and answers")
        return cls(tuple(words), frozenset(answers))

    def encode(self, text: str, max_length: int = 0, kind: str = "sentence") -> list[int]:
        """Return the numbers of a text's words; each must be known, and at most `longest` of them are held."""
        words = story_words(text)
        if not words:
            raise DataError(f"the {kind} has no words", advice="write some")
        for word in words:
            if word not in self.numbers:
                raise DataError(
                    f"the model does not know the word {word!r}{nearest(word, self.words)}",
                    advice="it knows only words of the stories that it was trained on",
                )
        if max_length and len(words) > max_length:
            raise DataError(f"the {kind} has {len(words)} words, the model holds {max_length}", advice="shorten it")
        return [self.numbers[word] for word in words]


def _texts(value: Any) -> list[str]:
    return value if isinstance(value, list) and all(isinstance(text, str) for text in value) else []


def resolve_sizes(
    config: MemoryNetworkConfig, questions: StoryQuestions, vocabulary: StoryVocabulary
) -> MemoryNetworkConfig:
    """Return the config with what the training stories decide filled in.

    The memory is not larger than the longest story, and its default width is the published one: 20 for one task, 50
    for several.
    """
    texts = {text for question in questions.questions for text in (*question.sentences, question.text)}
    return replace(
        config,
        vocab_size=len(vocabulary.words),
        max_sentence_words=config.max_sentence_words or max(len(story_words(text)) for text in texts),
        memory_size=min(config.memory_size, max(len(question.sentences) for question in questions.questions)),
        embedding_size=config.embedding_size or (20 if len(questions.tasks) == 1 else 50),
    )


@dataclass(frozen=True)
class StoryExamples:
    """Questions as numbers; a sentence that is told many times is kept once."""

    sentences: Tokens  # different sentences
    stories: Tokens  # for each question the sentences that the model remembers, as numbers of facts
    questions: Tokens  # words of each question
    answers: Numbers  # [n], UNSEEN where the answer is no word of the model
    tasks: tuple[str, ...]
    task: Numbers  # [n], the number of each question's task
    support: list[set[int]]  # places among the sentences told; a negative one is forgotten
    digest: str

    def __len__(self) -> int:
        return len(self.answers)

    @cached_property
    def ages(self) -> Numbers:
        """How long ago each sentence of `told` was told."""
        places = np.arange(len(self.stories.ids)) - np.repeat(self.stories.offsets[:-1], self.stories.lengths)
        return np.repeat(self.stories.lengths, self.stories.lengths) - 1 - places

    def noisy_ages(self, share: float, max_age: int, rng: np.random.Generator) -> Numbers:
        """Return ages with gaps, as if empty memories stood between sentences (section 4.1, "random noise").

        A story gets 0 up to `share` of its sentences as gaps; no age reaches `most`.
        """
        counts = self.stories.lengths.astype(np.int64)
        slots = counts + rng.integers(0, np.ceil(share * counts).astype(np.int64) + 1)
        starts = np.cumsum(slots) - slots
        owner = np.repeat(np.arange(len(counts)), slots)
        drawn = np.lexsort((rng.random(len(owner)), owner))  # each story's slots in an order by chance …
        kept = drawn[np.arange(len(owner)) - starts[owner] < counts[owner]]  # … of which the first are filled
        kept.sort()
        ages: Numbers = np.minimum((starts + slots)[owner[kept]] - 1 - kept, max_age - 1)
        return ages

    def batch(self, numbers: Numbers, ages: Numbers | None = None) -> StoryBatch:
        """Return the questions with these numbers and what was told before them."""
        places, offsets = _spans(self.stories, numbers)
        told = self.stories.ids[places]
        words, ends = _spans(self.sentences, told)
        asked, stops = _spans(self.questions, numbers)
        return StoryBatch(
            Tokens(self.questions.ids[asked], stops),
            Tokens(self.sentences.ids[words], ends),
            (self.ages if ages is None else ages)[places],
            np.diff(offsets),
        )

    def batches(self, numbers: Numbers | None = None) -> Iterator[Numbers]:
        """Yield the numbers of all questions, or of these, a few hundred at a time."""
        every = np.arange(len(self)) if numbers is None else numbers
        yield from (every[first : first + AT_A_TIME] for first in range(0, len(every), AT_A_TIME))


def _spans(rows: Tokens, numbers: Any) -> tuple[Numbers, Any]:
    """Return where the tokens of some rows lie, and the offsets of these rows laid end to end."""
    lengths = rows.lengths[numbers]
    offsets = np.append(0, np.cumsum(lengths))
    return np.repeat(rows.offsets[numbers] - offsets[:-1], lengths) + np.arange(offsets[-1]), offsets


def encode_stories(
    questions: StoryQuestions, vocabulary: StoryVocabulary, config: MemoryNetworkConfig, *, strict: bool = True
) -> StoryExamples:
    """Return the questions as numbers.

    An unknown word, a sentence longer than the model holds and, with `refuse`, an answer unseen in training are errors
    at their place; without it such questions stay and count as wrong.
    """
    facts: dict[str, int] = {}
    rows: list[list[int]] = []
    told, asked, answers, support = list[list[int]](), list[list[int]](), list[int](), list[set[int]]()
    for question in questions.questions:
        remembered = question.sentences[-config.memory_size :]
        forgotten = len(question.sentences) - len(remembered)
        place = question.location
        try:
            for number, sentence in enumerate(remembered, forgotten):
                if sentence not in facts:
                    place = question.sentence_location(number)
                    rows.append(vocabulary.encode(sentence, config.max_sentence_words))
                    facts[sentence] = len(facts)
            place = question.location
            asked.append(vocabulary.encode(question.text, config.max_sentence_words, "question"))
            if strict and question.answer not in vocabulary.answers:
                raise DataError(
                    f"the answer {question.answer!r} was never seen in training",
                    advice="the model cannot give it: add such stories to the training data, or take the question out",
                )
        except DataError as error:
            raise DataError(error.what, location=place, advice=error.advice) from None
        told.append([facts[sentence] for sentence in remembered])
        answers.append(vocabulary.numbers[question.answer] if question.answer in vocabulary.answers else UNKNOWN_ANSWER)
        support.append({place - forgotten for place in question.support})
    tasks = questions.tasks
    return StoryExamples(
        Tokens.from_rows(rows),
        Tokens.from_rows(told),
        Tokens.from_rows(asked),
        np.array(answers, dtype=np.int64),
        tuple(tasks),
        np.array([tasks.index(question.task) for question in questions.questions], dtype=np.int64),
        support,
        questions.digest,
    )


@dataclass(frozen=True)
class StoryErrors:
    """What networks get wrong."""

    tasks: tuple[str, ...]
    errors: NDArray[np.float64]  # [tasks, M], in percent
    loss: NDArray[np.float64]  # [M], a question
    error: NDArray[np.float64]  # [M], over all questions, in percent


@torch.no_grad()
def evaluate_restarts(
    model: MemoryNetwork, examples: StoryExamples, indices: Numbers | None = None, *, linear: bool = False
) -> StoryErrors:
    """Return the errors by task, and the loss over the questions whose answer the model can give."""
    chosen = np.arange(len(examples)) if indices is None else indices
    wrong, loss = [], np.zeros(model.members)
    for part in examples.batches(chosen):
        answers = examples.answers[part]
        logits = model.logits(model(examples.batch(part), linear=linear))  # [M, B, V]
        wrong.append(logits.argmax(-1).cpu().numpy() != answers)
        known = np.flatnonzero(answers != UNKNOWN_ANSWER)
        logp = logits.log_softmax(-1)[:, known, answers[known]]
        loss -= logp.double().sum(1).cpu().numpy()
    misses = np.concatenate(wrong, axis=1) if wrong else np.zeros((model.members, 0), dtype=bool)
    task, count = examples.task[chosen], int((examples.answers[chosen] != UNKNOWN_ANSWER).sum())
    present = [number for number in range(len(examples.tasks)) if (task == number).any()]
    errors = np.array([100 * misses[:, task == number].mean(1) for number in present])
    names = tuple(examples.tasks[number] for number in present)
    return StoryErrors(names, errors.reshape(-1, model.members), loss / max(1, count), 100 * misses.mean(1))


@dataclass(frozen=True)
class HopAnswer:
    """What one network says to one question, and how much each hop looked at each sentence."""

    text: str
    probability: float
    weights: NDArray[np.float32]  # [hops, sentences remembered]; what is missing to one went to empty memories
    others: tuple[tuple[str, float], ...] = ()  # the next best, with their probabilities

    @property
    def most(self) -> NDArray[np.float32]:
        """The largest weight of each sentence over the hops."""
        largest: NDArray[np.float32] = self.weights.max(axis=0)
        return largest


@torch.no_grad()
def predict_answers(
    model: MemoryNetwork, vocabulary: StoryVocabulary, examples: StoryExamples, *, top_k: int = 1
) -> list[HopAnswer]:
    """Return the first network's answers with its weights; of each question the `best` likeliest."""
    given = []
    for part in examples.batches():
        told = examples.batch(part)
        with trace("hop.*", full_precision=True) as seen:
            states = model(told)
        ranked, order = model.logits(states)[0].softmax(-1).sort(dim=-1, descending=True, stable=True)  # [B, V]
        looked = np.stack([seen[f"hop.{number}"].weights[0, 0] for number in range(model.config.hops)])
        ends = np.append(0, np.cumsum(told.counts))
        for row, (chances, words) in enumerate(zip(ranked[:, :top_k].tolist(), order[:, :top_k].tolist(), strict=True)):
            (text, chance), *others = zip((vocabulary.words[word] for word in words), chances, strict=True)
            given.append(HopAnswer(text, chance, looked[:, row, ends[row] : ends[row + 1]], tuple(others)))
    return given


def supporting_accuracy(
    examples: StoryExamples, answers: Sequence[HopAnswer], vocabulary: StoryVocabulary
) -> dict[str, float]:
    """Return for each task how often, in percent of right answers, all k supporting sentences are the k most looked at.

    A sentence was looked at as much as its largest weight over the hops. Questions without support are left out.
    """
    found: dict[str, list[bool]] = {}
    for number, (given, gold) in enumerate(zip(answers, examples.support, strict=True)):
        if gold and vocabulary.numbers.get(given.text) == examples.answers[number]:
            most = np.argsort(-given.most, kind="stable")[: len(gold)]
            found.setdefault(examples.tasks[examples.task[number]], []).append(gold == set(most.tolist()))
    return {task: 100 * float(np.mean(hits)) for task, hits in found.items()}


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


def score_answers(examples: StoryExamples, answers: Sequence[HopAnswer], vocabulary: StoryVocabulary) -> StoryScores:
    """Return the scores of answers to all questions.

    >>> from regard.config.rnn_models import MemoryNetworkConfig
    >>> from regard.data.babi import StoryQuestion, StoryQuestions
    >>> from regard.tasks.story_qa import resolve_sizes, encode_stories
    >>> told = StoryQuestions.of([StoryQuestion("one", ("Mary went home.",), "Where is Mary?", "home", (0,))] * 4)
    >>> words = StoryVocabulary.of(told)
    >>> data = encode_stories(told, words, resolve_sizes(MemoryNetworkConfig(), told, words))
    >>> looked = np.ones((3, 1), dtype=np.float32)
    >>> score_answers(data, [HopAnswer("home", 0.9, looked)] * 3 + [HopAnswer("mary", 0.9, looked)], words).rows()
    [['one', '4', '25.0 %', '100.0 %']]
    """
    wrong = np.array([vocabulary.numbers[given.text] for given in answers], dtype=np.int64) != examples.answers
    support = supporting_accuracy(examples, answers, vocabulary)
    scores = []
    for number, name in enumerate(examples.tasks):
        own = examples.task == number
        scores.append(TaskScore(name, int(own.sum()), 100 * float(wrong[own].mean()), support.get(name)))
    return StoryScores(tuple(scores))
