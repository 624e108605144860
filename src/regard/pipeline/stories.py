"""`StoryPipeline`: sentences and a question in, an answer out, and which sentences each hop looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.stories import Question, Stories
from regard.errors import DataError, UsageError
from regard.models.memory_network import MemoryNetwork
from regard.pipeline.seeable import Seeable
from regard.tasks import stories as task
from regard.tasks.story_scores import StoryScores, measured
from regard.view.hops import NOTHING
from regard.view.record import Attention, Cut, Record, Side, Verdict

BEST = 5  # answers given for each question
LEAST = 1e-4  # of a hop that went to empty memories


@dataclass(frozen=True)
class Looked:
    """A sentence, and how much the hop that looked at it most did so."""

    sentence: str
    number: int  # of the sentence in its story, from 1
    weight: float
    hop: int  # from 1


class Answer(Seeable, str):
    """An answer: a text that knows its question, its probability, the next best, and where each hop looked."""

    question: str
    sentences: tuple[str, ...]
    score: float  # the model's probability
    alternatives: list[Answer]  # the next best, best first
    hops: NDArray[np.float32]  # [hops, sentences]; what is missing to one in a row went to empty memories
    forgotten: int  # sentences at the beginning that are beyond the model's memory

    @classmethod
    def of(cls, asked: Question, given: task.Answer) -> Answer:
        """Return what was said to a question, with the sentences that are forgotten put back."""
        forgotten = len(asked.sentences) - given.weights.shape[1]
        hops = np.pad(given.weights, ((0, 0), (forgotten, 0)))
        best, *others = (
            cls._one(text, score, asked, hops, forgotten)
            for text, score in ((given.text, given.probability), *given.others)
        )
        best.alternatives = others
        return best

    @classmethod
    def _one(cls, text: str, score: float, asked: Question, hops: NDArray[np.float32], forgotten: int) -> Answer:
        made = cls(text)
        made.question, made.sentences, made.alternatives = asked.text, asked.sentences, []
        made.score, made.hops, made.forgotten = score, hops, forgotten
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # what is stored or sent elsewhere is the text alone

    @property
    def looked_at(self) -> list[Looked]:
        """The sentences in the order of their largest weight over the hops, most looked-at first."""
        most = self.hops.max(axis=0)
        return [
            Looked(self.sentences[place], place + 1, float(most[place]), int(self.hops[:, place].argmax()) + 1)
            for place in np.argsort(-most, kind="stable").tolist()
        ]

    def record(self, title: str = "", **asked: Any) -> Record:
        """Return what pictures of this answer are drawn from: a layer for each hop, a column for each sentence."""
        rest = np.maximum(0.0, 1.0 - self.hops.sum(axis=1))
        memory, weights = Side.of_labels(" ".join(self.sentences), self.sentences), self.hops
        if rest.max(initial=0.0) > LEAST:  # the memories that no sentence fills are looked at, too
            memory = Side(memory.text, (*memory.tokens, NOTHING), (*memory.words, -1))
            weights = np.concatenate([weights, rest[:, None]], axis=1)
        sides = {"memory": memory, "question": Side.of_labels(f"{self.question} → {self}", [self.question])}
        kept, hops = weights[:, None, None].astype(np.float32), tuple(range(len(weights)))
        seen = Attention("hop", "question", "memory", kept, hops)
        said = [self, *self.alternatives]
        verdict = Verdict(tuple(map(str, said)), tuple(one.score for one in said))
        cut: tuple[Cut, ...] = ()
        if self.forgotten:
            cut = (Cut("the story is longer than the model's memory", f"its first {self.forgotten:,} sentences"),)
        return Record(title or self.question, sides, (seen,), task="stories", verdict=verdict, cut=cut)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "question": self.question,
            "answer": str(self),
            "score": round(self.score, 6),
            "alternatives": [{"answer": str(one), "score": round(one.score, 6)} for one in self.alternatives],
            "sentences": list(self.sentences),
            "hops": [[round(float(weight), 6) for weight in row] for row in self.hops],
            "looked_at": [{**vars(one), "weight": round(one.weight, 6)} for one in self.looked_at],
            "forgotten": self.forgotten,
        }


class StoryPipeline:
    """Answers questions about stories with a memory network."""

    def __init__(
        self, model: MemoryNetwork, vocabulary: task.Vocabulary, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Take a network, the words that it knows, and what its `task.json` says."""
        self.model, self.vocabulary, self.facts = model.eval(), vocabulary, dict(facts or {})

    def __call__(self, sentences: Sequence[str], question: str, *, best: int = BEST) -> Answer:
        """Return the answer to a question about these sentences, told in this order."""
        return self.answer(sentences, question, best=best)

    def answer(self, sentences: Sequence[str], question: str, *, best: int = BEST) -> Answer:
        """Return the answer to a question about these sentences, told in this order, and the next best ones."""
        if isinstance(sentences, str):
            raise UsageError("answer takes a list of sentences: split the story into them")
        return self.answers([Question("", tuple(sentences), question)], best=best)[0]

    def answers(self, questions: Sequence[Question], *, best: int = BEST) -> list[Answer]:
        """Return the answers to questions, each about a story of its own, and the `best` likeliest of each."""
        if best < 1:
            raise UsageError(f"best ({best}) must be at least 1")
        for asked in questions:
            if not asked.sentences:
                raise DataError("nothing was told before the question", place=asked.place, advice="tell a story first")
        data = task.examples(Stories.of(questions), self.vocabulary, self.model.config, refuse=False)
        given = task.answer(self.model, self.vocabulary, data, best=best)
        return [Answer.of(asked, one) for asked, one in zip(questions, given, strict=True)]

    def evaluate(self, stories: Stories, *, refuse: bool = True) -> tuple[StoryScores, list[str]]:
        """Return the errors on questions whose answers are known, and what was answered.

        An answer unseen in training is an error at its place or, without `refuse`, counts as wrong.
        """
        data = task.examples(stories, self.vocabulary, self.model.config, refuse=refuse)
        given = task.answer(self.model, self.vocabulary, data)
        return measured(data, given, self.vocabulary), [one.text for one in given]
