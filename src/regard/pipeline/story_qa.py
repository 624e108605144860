"""`StoryQAPipeline`: answers questions about stories, with the attention of each hop over the sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from regard.data.babi import StoryQuestion, StoryQuestions
from regard.errors import DataError, UsageError
from regard.models.memory_network import MemoryNetwork
from regard.pipeline.pickling import PicklablePipeline
from regard.pipeline.result import PipelineResult
from regard.tasks.predictions import PredictedStoryAnswers
from regard.tasks.scoring import Scoring
from regard.tasks.story_qa import (
    HopAnswer,
    StoryScores,
    StoryVocabulary,
    encode_stories,
    predict_answers,
    score_answers,
)
from regard.view.record.attention import AttentionRecord
from regard.view.record.parts import LabelProbabilities, Omission
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from regard.view.terminal import EMPTY_MEMORIES

TASK = "story-qa"
DEFAULT_TOP_K = 5  # answers to each question
MIN_EMPTY_WEIGHT = 1e-4  # of a hop's attention to empty memories, below which they are not shown


class SupportingSentenceDict(TypedDict):
    """JSON form of a `SupportingSentence`."""

    sentence: str
    sentence_index: int  # in the story, from 1
    weight: float
    hop: int  # from 1


class StoryAlternativeDict(TypedDict):
    """JSON form of a further answer."""

    text: str
    score: float  # probability


class StoryAnswerDict(StoryAlternativeDict):
    """JSON form of a `StoryAnswer`."""

    question: str
    alternatives: list[StoryAlternativeDict]  # the next best, best first
    sentences: list[str]
    hops: list[list[float]]  # [hops, sentences]; the rest of a row's weight is on empty memories
    supporting: list[SupportingSentenceDict]  # by their largest weight over the hops, largest first
    forgotten: int  # sentences at the beginning that exceed the model's memory


@dataclass(frozen=True)
class SupportingSentence:
    """A sentence, and the hop with the largest weight on it."""

    sentence: str
    sentence_index: int  # in the story, from 1
    weight: float
    hop: int  # from 1

    def to_dict(self) -> SupportingSentenceDict:
        """JSON form of the sentence."""
        return {
            "sentence": self.sentence,
            "sentence_index": self.sentence_index,
            "weight": round(self.weight, 6),
            "hop": self.hop,
        }


class StoryAnswer(PipelineResult, str):
    """An answer: a str with its question, probability, alternatives and the attention of each hop."""

    question: str
    sentences: tuple[str, ...]
    score: float  # probability
    alternatives: list[StoryAnswer]  # the next best, best first
    hops: NDArray[np.float32]  # [hops, sentences]; the rest of a row's weight is on empty memories
    forgotten: int  # sentences at the beginning that exceed the model's memory

    @classmethod
    def from_prediction(cls, question: StoryQuestion, prediction: HopAnswer) -> StoryAnswer:
        """Build the answer to a question; forgotten sentences get weight 0."""
        forgotten = len(question.sentences) - prediction.weights.shape[1]
        hops = np.pad(prediction.weights, ((0, 0), (forgotten, 0)))
        answers = []
        for text, probability in ((prediction.text, prediction.probability), *prediction.alternatives):
            answer = cls(text)
            answer.question = question.text
            answer.sentences = question.sentences
            answer.score = probability
            answer.alternatives = []
            answer.hops = hops
            answer.forgotten = forgotten
            answers.append(answer)
        answers[0].alternatives = answers[1:]
        return answers[0]

    @property
    def supporting(self) -> list[SupportingSentence]:
        """The sentences by their largest weight over the hops, largest first."""
        max_weights = self.hops.max(axis=0)
        return [
            SupportingSentence(
                self.sentences[index],
                index + 1,
                weight=float(max_weights[index]),
                hop=int(self.hops[:, index].argmax()) + 1,
            )
            for index in np.argsort(-max_weights, kind="stable").tolist()
        ]

    def record(self, title: str = "", **settings: Any) -> Record:
        """Build the record of this answer: a layer for each hop, a column for each sentence."""
        empty_weights = np.maximum(0.0, 1.0 - self.hops.sum(axis=1))
        memory = RecordText.from_labels(" ".join(self.sentences), self.sentences)
        weights = self.hops
        if empty_weights.max(initial=0.0) > MIN_EMPTY_WEIGHT:  # one column for all memories without a sentence
            memory = RecordText(memory.text, (*memory.tokens, EMPTY_MEMORIES), word_ids=(*memory.word_ids, -1))
            weights = np.concatenate([weights, empty_weights[:, None]], axis=1)
        question = RecordText.from_labels(f"{self.question} → {self}", [self.question])
        attention = AttentionRecord(
            "hop",
            "question",
            columns="memory",
            stored=weights[:, None, None].astype(np.float32),  # [hops, 1 head, 1 question, sentences]
            layers=tuple(range(len(weights))),
        )
        answers = [self, *self.alternatives]
        labels = tuple(str(answer) for answer in answers)
        probabilities = LabelProbabilities(labels, tuple(answer.score for answer in answers))
        omissions: tuple[Omission, ...] = ()
        if self.forgotten:
            reason = "the story is longer than the model's memory"
            omissions = (Omission(reason, f"its first {self.forgotten:,} sentences"),)
        return Record(
            title or self.question,
            {"memory": memory, "question": question},
            (attention,),
            task=TASK,
            prediction=probabilities,
            omissions=omissions,
        )

    def to_dict(self) -> StoryAnswerDict:
        """JSON form of the answer, its alternatives and its attention."""
        return {
            "question": self.question,
            "text": str(self),
            "score": round(self.score, 6),
            "alternatives": [
                {"text": str(alternative), "score": round(alternative.score, 6)} for alternative in self.alternatives
            ],
            "sentences": list(self.sentences),
            "hops": [[round(float(weight), 6) for weight in hop] for hop in self.hops],
            "supporting": [sentence.to_dict() for sentence in self.supporting],
            "forgotten": self.forgotten,
        }


class StoryQAPipeline(PicklablePipeline):
    """Answers questions about stories with a memory network."""

    task_name = TASK

    def __init__(
        self, model: MemoryNetwork, vocabulary: StoryVocabulary, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Take a network, its vocabulary and the content of its `task.json`."""
        self.model = model.eval()
        self.vocabulary = vocabulary
        self.metadata = dict(metadata or {})

    def __call__(self, sentences: Sequence[str], question: str, *, top_k: int = DEFAULT_TOP_K) -> StoryAnswer:
        """Answer a question about the sentences of a story, in order."""
        return self.answer(sentences, question, top_k=top_k)

    def answer(self, sentences: Sequence[str], question: str, *, top_k: int = DEFAULT_TOP_K) -> StoryAnswer:
        """Answer a question about the sentences of a story, with the `top_k - 1` next best answers."""
        if isinstance(sentences, str):
            raise UsageError("answer takes a list of sentences: split the story into sentences")
        return self.answer_batch([StoryQuestion("", tuple(sentences), question)], top_k=top_k)[0]

    def answer_batch(self, questions: Sequence[StoryQuestion], *, top_k: int = DEFAULT_TOP_K) -> list[StoryAnswer]:
        """Answer questions, each about its own story."""
        if top_k < 1:
            raise UsageError(f"top_k ({top_k}) must be at least 1")
        for question in questions:
            if not question.sentences:
                raise DataError(
                    "no sentence stands before the question", location=question.location, advice="begin with a story"
                )
        examples = encode_stories(
            StoryQuestions.from_questions(questions), self.vocabulary, self.model.config, strict=False
        )
        predictions = predict_answers(self.model, self.vocabulary, examples, top_k=top_k)
        return [
            StoryAnswer.from_prediction(question, prediction)
            for question, prediction in zip(questions, predictions, strict=True)
        ]

    def predict_examples(self, examples: StoryQuestions) -> PredictedStoryAnswers:
        """Answer the questions of a test set; the result is the argument of every metric."""
        answers = self.answer_batch(examples.questions, top_k=1)
        return PredictedStoryAnswers(
            predictions=[str(answer) for answer in answers],
            references=[question.answer for question in examples.questions],
            tasks=[question.task for question in examples.questions],
        )

    def evaluate(
        self, stories: StoryQuestions, *, strict: bool = True, metrics: Sequence[str] = ()
    ) -> tuple[StoryScores, list[str]]:
        """Score the answers to questions with known answers, also by the named metrics; also return the answers.

        A known answer that training never saw is an error or, without `refuse`, counts as answered wrongly.
        """
        examples = encode_stories(stories, self.vocabulary, self.model.config, strict=strict)
        predictions = predict_answers(self.model, self.vocabulary, examples)
        scores = score_answers(examples, predictions, self.vocabulary)
        story_predictions = PredictedStoryAnswers.from_answers(examples, predictions, self.vocabulary)
        by_name = Scoring(self.task_name, tuple(metrics)).compute_final(story_predictions)
        return replace(scores, metrics=by_name), [prediction.text for prediction in predictions]
