"""Questions about stories as a task: words become numbers, questions become batches; what is right, and why.

Stories ─► Vocabulary ─► Examples ─► Told (batches) ─► MemoryNetwork ─► answers, and where each hop looked
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention.trace import trace
from regard.config.model import MemoryConfig
from regard.data.stories import Stories, words_of
from regard.errors import CheckpointError, DataError, nearest
from regard.models.memory_network import MemoryNetwork, Numbers, Told
from regard.tokens import Tokens

UNSEEN = -1  # the number of an answer that nobody can give
AT_A_TIME = 256  # questions answered at a time


@dataclass(frozen=True)
class Vocabulary:
    """The words of the training stories and, among them, those that were answers."""

    words: tuple[str, ...]  # a word's number is its place; answers that are lists count as words
    answers: frozenset[str]

    @classmethod
    def of(cls, stories: Stories) -> Vocabulary:
        """Return the words in the order in which they first appear.

        >>> from regard.data.stories import Question
        >>> told = Stories.of([Question("one", ("Mary went home.",), "Where is Mary?", "home")])
        >>> Vocabulary.of(told).words
        ('mary', 'went', 'home', 'where', 'is')
        """
        texts = dict.fromkeys(text for question in stories.questions for text in (*question.sentences, question.text))
        answers = dict.fromkeys(question.answer for question in stories.questions)
        words = dict.fromkeys(word for text in texts for word in words_of(text))
        return cls(tuple(dict.fromkeys([*words, *answers])), frozenset(answers))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.words)}

    def to_dict(self) -> dict[str, list[str]]:
        """Return plain values for a file."""
        return {"words": list(self.words), "answers": sorted(self.answers)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "") -> Vocabulary:
        """Return the vocabulary read from plain values."""
        words, answers = _texts(values.get("words")), _texts(values.get("answers"))
        if not words or not set(answers) <= set(words):
            raise CheckpointError(f"{where}: not a vocabulary of words and answers")
        return cls(tuple(words), frozenset(answers))

    def encode(self, text: str, longest: int = 0, kind: str = "sentence") -> list[int]:
        """Return the numbers of a text's words; each must be known, and at most `longest` of them are held."""
        words = words_of(text)
        if not words:
            raise DataError(f"the {kind} has no words", advice="write some")
        for word in words:
            if word not in self.numbers:
                raise DataError(
                    f"the model does not know the word {word!r}{nearest(word, self.words)}",
                    advice="it knows only words of the stories that it was trained on",
                )
        if longest and len(words) > longest:
            raise DataError(f"the {kind} has {len(words)} words, the model holds {longest}", advice="shorten it")
        return [self.numbers[word] for word in words]


def _texts(value: Any) -> list[str]:
    return value if isinstance(value, list) and all(isinstance(text, str) for text in value) else []


def completed(config: MemoryConfig, stories: Stories, vocabulary: Vocabulary) -> MemoryConfig:
    """Return the config with what the training stories decide filled in.

    The memory is not larger than the longest story, and its default width is the published one: 20 for one task, 50
    for several.
    """
    texts = {text for question in stories.questions for text in (*question.sentences, question.text)}
    return replace(
        config,
        vocabulary=len(vocabulary.words),
        longest=config.longest or max(len(words_of(text)) for text in texts),
        memory=min(config.memory, max(len(question.sentences) for question in stories.questions)),
        width=config.width or (20 if len(stories.tasks) == 1 else 50),
    )


@dataclass(frozen=True)
class Examples:
    """Questions as numbers; a sentence that is told many times is kept once."""

    facts: Tokens  # different sentences
    told: Tokens  # for each question the sentences that the model remembers, as numbers of facts
    asked: Tokens  # words of each question
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
        places = np.arange(len(self.told.ids)) - np.repeat(self.told.offsets[:-1], self.told.lengths)
        return np.repeat(self.told.lengths, self.told.lengths) - 1 - places

    def gapped(self, share: float, most: int, chance: np.random.Generator) -> Numbers:
        """Return ages with gaps, as if empty memories stood between sentences (section 4.1, "random noise").

        A story gets 0 up to `share` of its sentences as gaps; no age reaches `most`.
        """
        counts = self.told.lengths.astype(np.int64)
        slots = counts + chance.integers(0, np.ceil(share * counts).astype(np.int64) + 1)
        starts = np.cumsum(slots) - slots
        owner = np.repeat(np.arange(len(counts)), slots)
        drawn = np.lexsort((chance.random(len(owner)), owner))  # each story's slots in an order by chance …
        kept = drawn[np.arange(len(owner)) - starts[owner] < counts[owner]]  # … of which the first are filled
        kept.sort()
        ages: Numbers = np.minimum((starts + slots)[owner[kept]] - 1 - kept, most - 1)
        return ages

    def batch(self, numbers: Numbers, ages: Numbers | None = None) -> Told:
        """Return the questions with these numbers and what was told before them."""
        places, offsets = _spans(self.told, numbers)
        told = self.told.ids[places]
        words, ends = _spans(self.facts, told)
        asked, stops = _spans(self.asked, numbers)
        return Told(
            Tokens(self.asked.ids[asked], stops),
            Tokens(self.facts.ids[words], ends),
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


def examples(stories: Stories, vocabulary: Vocabulary, config: MemoryConfig, *, refuse: bool = True) -> Examples:
    """Return the questions as numbers.

    An unknown word, a sentence longer than the model holds and, with `refuse`, an answer unseen in training are errors
    at their place; without it such questions stay and count as wrong.
    """
    facts: dict[str, int] = {}
    rows: list[list[int]] = []
    told, asked, answers, support = list[list[int]](), list[list[int]](), list[int](), list[set[int]]()
    for question in stories.questions:
        remembered = question.sentences[-config.memory :]
        forgotten = len(question.sentences) - len(remembered)
        place = question.place
        try:
            for number, sentence in enumerate(remembered, forgotten):
                if sentence not in facts:
                    place = question.where(number)
                    rows.append(vocabulary.encode(sentence, config.longest))
                    facts[sentence] = len(facts)
            place = question.place
            asked.append(vocabulary.encode(question.text, config.longest, "question"))
            if refuse and question.answer not in vocabulary.answers:
                raise DataError(
                    f"the answer {question.answer!r} was never seen in training",
                    advice="the model cannot give it: add such stories to the training data, or take the question out",
                )
        except DataError as error:
            raise DataError(error.what, place=place, advice=error.advice) from None
        told.append([facts[sentence] for sentence in remembered])
        answers.append(vocabulary.numbers[question.answer] if question.answer in vocabulary.answers else UNSEEN)
        support.append({place - forgotten for place in question.support})
    tasks = stories.tasks
    return Examples(
        Tokens.from_rows(rows),
        Tokens.from_rows(told),
        Tokens.from_rows(asked),
        np.array(answers, dtype=np.int64),
        tuple(tasks),
        np.array([tasks.index(question.task) for question in stories.questions], dtype=np.int64),
        support,
        stories.digest,
    )


@dataclass(frozen=True)
class Score:
    """What networks get wrong."""

    tasks: tuple[str, ...]
    errors: NDArray[np.float64]  # [tasks, M], in percent
    loss: NDArray[np.float64]  # [M], a question
    error: NDArray[np.float64]  # [M], over all questions, in percent


@torch.no_grad()
def score(model: MemoryNetwork, data: Examples, numbers: Numbers | None = None, *, linear: bool = False) -> Score:
    """Return the errors by task, and the loss over the questions whose answer the model can give."""
    chosen = np.arange(len(data)) if numbers is None else numbers
    wrong, loss = [], np.zeros(model.members)
    for part in data.batches(chosen):
        answers = data.answers[part]
        logits = model.logits(model(data.batch(part), linear=linear))  # [M, B, V]
        wrong.append(logits.argmax(-1).cpu().numpy() != answers)
        known = np.flatnonzero(answers != UNSEEN)
        logp = logits.log_softmax(-1)[:, known, answers[known]]
        loss -= logp.double().sum(1).cpu().numpy()
    misses = np.concatenate(wrong, axis=1) if wrong else np.zeros((model.members, 0), dtype=bool)
    task, count = data.task[chosen], int((data.answers[chosen] != UNSEEN).sum())
    present = [number for number in range(len(data.tasks)) if (task == number).any()]
    errors = np.array([100 * misses[:, task == number].mean(1) for number in present])
    names = tuple(data.tasks[number] for number in present)
    return Score(names, errors.reshape(-1, model.members), loss / max(1, count), 100 * misses.mean(1))


@dataclass(frozen=True)
class Answer:
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
def answer(model: MemoryNetwork, vocabulary: Vocabulary, data: Examples, *, best: int = 1) -> list[Answer]:
    """Return the first network's answers with its weights; of each question the `best` likeliest."""
    given = []
    for part in data.batches():
        told = data.batch(part)
        with trace("hop.*", exact=True) as seen:
            states = model(told)
        ranked, order = model.logits(states)[0].softmax(-1).sort(dim=-1, descending=True, stable=True)  # [B, V]
        looked = np.stack([seen[f"hop.{number}"].weights[0, 0] for number in range(model.config.hops)])
        ends = np.append(0, np.cumsum(told.counts))
        for row, (chances, words) in enumerate(zip(ranked[:, :best].tolist(), order[:, :best].tolist(), strict=True)):
            (text, chance), *others = zip((vocabulary.words[word] for word in words), chances, strict=True)
            given.append(Answer(text, chance, looked[:, row, ends[row] : ends[row + 1]], tuple(others)))
    return given


def support_found(data: Examples, answers: Sequence[Answer], vocabulary: Vocabulary) -> dict[str, float]:
    """Return for each task how often, in percent of right answers, all k supporting sentences are the k most looked at.

    A sentence was looked at as much as its largest weight over the hops. Questions without support are left out.
    """
    found: dict[str, list[bool]] = {}
    for number, (given, gold) in enumerate(zip(answers, data.support, strict=True)):
        if gold and vocabulary.numbers.get(given.text) == data.answers[number]:
            most = np.argsort(-given.most, kind="stable")[: len(gold)]
            found.setdefault(data.tasks[data.task[number]], []).append(gold == set(most.tolist()))
    return {task: 100 * float(np.mean(hits)) for task, hits in found.items()}
