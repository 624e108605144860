"""`StoryPipeline`: sentences and a question in, an answer out, and which sentences each hop looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.babi import StoryQuestion, StoryQuestions
from regard.errors import DataError, UsageError
from regard.models.memory_network import MemoryNetwork
from regard.pipeline.result import PipelineResult
from regard.tasks import story_qa as task
from regard.tasks.story_qa import StoryScores, score_answers
from regard.view.record.attention import AttentionRecord
from regard.view.record.parts import LabelProbabilities, Omission
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from regard.view.terminal import NOTHING

BEST = 5  # answers given for each question
LEAST = 1e-4  # of a hop that went to empty memories


@dataclass(frozen=True)
class SupportingSentence:
    """A sentence, and how much the hop that looked at it most did so."""

    sentence: str
    sentence_index: int  # of the sentence in its story, from 1
    weight: float
    hop: int  # from 1


class StoryAnswer(PipelineResult, str):
    """An answer: a text that knows its question, its probability, the next best, and where each hop looked."""

    question: str
    sentences: tuple[str, ...]
    score: float  # the model's probability
    alternatives: list[StoryAnswer]  # the next best, best first
    hops: NDArray[np.float32]  # [hops, sentences]; what is missing to one in a row went to empty memories
    forgotten: int  # sentences at the beginning that are beyond the model's memory

    @classmethod
    def of(cls, asked: StoryQuestion, given: task.HopAnswer) -> StoryAnswer:
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
    def _one(
        cls, text: str, score: float, asked: StoryQuestion, hops: NDArray[np.float32], forgotten: int
    ) -> StoryAnswer:
        made = cls(text)
        made.question, made.sentences, made.alternatives = asked.text, asked.sentences, []
        made.score, made.hops, made.forgotten = score, hops, forgotten
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # what is stored or sent elsewhere is the text alone

    @property
    def supporting(self) -> list[SupportingSentence]:
        """The sentences in the order of their largest weight over the hops, most looked-at first."""
        most = self.hops.max(axis=0)
        return [
            SupportingSentence(
                self.sentences[place], place + 1, float(most[place]), int(self.hops[:, place].argmax()) + 1
            )
            for place in np.argsort(-most, kind="stable").tolist()
        ]

    def record(self, title: str = "", **asked: Any) -> Record:
        """Return what pictures of this answer are drawn from: a layer for each hop, a column for each sentence."""
        rest = np.maximum(0.0, 1.0 - self.hops.sum(axis=1))
        memory, weights = RecordText.from_labels(" ".join(self.sentences), self.sentences), self.hops
        if rest.max(initial=0.0) > LEAST:  # the memories that no sentence fills are looked at, too
            memory = RecordText(memory.text, (*memory.tokens, NOTHING), (*memory.words, -1))
            weights = np.concatenate([weights, rest[:, None]], axis=1)
        sides = {"memory": memory, "question": RecordText.from_labels(f"{self.question} → {self}", [self.question])}
        kept, hops = weights[:, None, None].astype(np.float32), tuple(range(len(weights)))
        seen = AttentionRecord("hop", "question", "memory", kept, hops)
        said = [self, *self.alternatives]
        verdict = LabelProbabilities(tuple(map(str, said)), tuple(one.score for one in said))
        cut: tuple[Omission, ...] = ()
        if self.forgotten:
            cut = (Omission("the story is longer than the model's memory", f"its first {self.forgotten:,} sentences"),)
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
            "looked_at": [{**vars(one), "weight": round(one.weight, 6)} for one in self.supporting],
            "forgotten": self.forgotten,
        }


class StoryQAPipeline:
    """Answers questions about stories with a memory network."""

    def __init__(
        self, model: MemoryNetwork, vocabulary: task.StoryVocabulary, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Take a network, the words that it knows, and what its `task.json` says."""
        self.model, self.vocabulary, self.metadata = model.eval(), vocabulary, dict(facts or {})

    def __call__(self, sentences: Sequence[str], question: str, *, best: int = BEST) -> StoryAnswer:
        """Return the answer to a question about these sentences, told in this order."""
        return self.answer(sentences, question, best=best)

    def answer(self, sentences: Sequence[str], question: str, *, best: int = BEST) -> StoryAnswer:
        """Return the answer to a question about these sentences, told in this order, and the next best ones."""
        if isinstance(sentences, str):
            raise UsageError("answer takes a list of sentences: split the story into them")
        return self.answer_batch([StoryQuestion("", tuple(sentences), question)], top_k=best)[0]

    def answer_batch(self, questions: Sequence[StoryQuestion], *, top_k: int = BEST) -> list[StoryAnswer]:
        """Return the answers to questions, each about a story of its own, and the `best` likeliest of each."""
        if top_k < 1:
            raise UsageError(f"best ({top_k}) must be at least 1")
        for asked in questions:
            if not asked.sentences:
                raise DataError(
                    "nothing was told before the question", location=asked.location, advice="tell a story first"
                )
        data = task.encode_stories(StoryQuestions.of(questions), self.vocabulary, self.model.config, strict=False)
        given = task.predict_answers(self.model, self.vocabulary, data, top_k=top_k)
        return [StoryAnswer.of(asked, one) for asked, one in zip(questions, given, strict=True)]

    def evaluate(self, stories: StoryQuestions, *, refuse: bool = True) -> tuple[StoryScores, list[str]]:
        """Return the errors on questions whose answers are known, and what was answered.

        An answer unseen in training is an error at its place or, without `refuse`, counts as wrong.
        """
        data = task.encode_stories(stories, self.vocabulary, self.model.config, strict=refuse)
        given = task.predict_answers(self.model, self.vocabulary, data)
        return score_answers(data, given, self.vocabulary), [one.text for one in given]
