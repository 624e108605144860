"""`StoryQAPipeline`: answers questions about stories, with the attention of each hop or layer over the sentences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from regard.config.inference import RecordConfig
from regard.data.babi import StoryQuestion, StoryQuestions
from regard.errors import DataError, UsageError
from regard.pipeline.pickling import PicklablePipeline
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.predictions import PredictedStoryAnswers
from regard.tasks.scoring import Scoring
from regard.tasks.story_qa import StoryPrediction, StoryReferences, StoryScores, describe_truncation, score_answers
from regard.view.record.attention import AttentionRecord
from regard.view.record.parts import LabelProbabilities, Omission
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from regard.view.terminal import EMPTY_MEMORIES, HOP

TASK = "story-qa"
DEFAULT_TOP_K = 5  # answers to each question
MIN_EMPTY_WEIGHT = 1e-4  # of a hop's attention to empty memories, below which they are not shown


class StoryReader(Protocol):
    """Model that answers questions about stories, of any architecture."""

    @property
    def model(self) -> Any:
        """What computes the answers."""
        ...

    @property
    def answers(self) -> Collection[str]:
        """Answers that occurred in training."""
        ...

    @property
    def unit(self) -> str:
        """What a row of attention belongs to: hop, layer or pooling."""
        ...

    @property
    def backend(self) -> str:
        """What computes the answers, and in which precision; empty where there is no choice."""
        ...

    def predict(
        self, stories: StoryQuestions, *, strict: bool = False, top_k: int = 1
    ) -> tuple[StoryReferences, list[StoryPrediction]]:
        """Answer questions; with `strict`, known answers that do not occur in training are errors."""
        ...

    def record(self, question: StoryQuestion, answer: StoryAnswer, config: RecordConfig) -> Record:
        """Record the attention behind an answer."""
        ...


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
    unit: str  # what a row of `hops` belongs to: hop of a memory network, layer of a Transformer, pooling of an RNN
    hops: list[list[float]]  # [hops, sentences]; the rest of a row's weight is on empty memories, or on other tokens
    supporting: list[SupportingSentenceDict]  # by their largest weight over the hops, largest first
    truncated_sentences: int  # at the beginning, those that exceed the model's memory
    backend: str  # what computed it, and in which precision; empty where there is no choice


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
    unit: str  # what a row of `hops` belongs to: hop, layer or pooling
    hops: NDArray[np.float32]  # [hops, sentences], no rows in a model without attention; see `StoryAnswerDict`
    truncated_sentences: int  # at the beginning, those that exceed the model's memory

    @classmethod
    def from_prediction(cls, question: StoryQuestion, prediction: StoryPrediction, unit: str = HOP) -> StoryAnswer:
        """Build the answer to a question; truncated sentences get weight 0."""
        num_truncated = len(question.sentences) - prediction.weights.shape[1]
        hops = np.pad(prediction.weights, ((0, 0), (num_truncated, 0)))
        answers = []
        for text, probability in ((prediction.text, prediction.probability), *prediction.alternatives):
            answer = cls(text)
            answer.question = question.text
            answer.sentences = question.sentences
            answer.score = probability
            answer.alternatives = []
            answer.unit = unit
            answer.hops = hops
            answer.truncated_sentences = num_truncated
            answers.append(answer)
        answers[0].alternatives = answers[1:]
        return answers[0]

    @property
    def supporting(self) -> list[SupportingSentence]:
        """The sentences by their largest weight over the hops, largest first."""
        if not len(self.hops):
            return []
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

    @property
    def probabilities(self) -> LabelProbabilities:
        """Probabilities of this answer and of the next best ones."""
        answers = [self, *self.alternatives]
        return LabelProbabilities(tuple(map(str, answers)), tuple(answer.score for answer in answers))

    @property
    def omissions(self) -> tuple[Omission, ...]:
        """What the model did not read."""
        if not self.truncated_sentences:
            return ()
        reason = "the story is longer than the model's memory"
        return (Omission(reason, f"its first {self.truncated_sentences:,} sentences"),)

    def record(self, title: str = "", **settings: Any) -> Record:
        """Build the record: of hops, which the answer has, or of a model that reads words, which is run once more."""
        if self.unit != HOP:
            return super().record(title, **settings)
        record = hop_record(self)
        return replace(record, title=title) if title else record

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
            "unit": self.unit,
            "hops": [[round(float(weight), 6) for weight in hop] for hop in self.hops],
            "supporting": [sentence.to_dict() for sentence in self.supporting],
            "truncated_sentences": self.truncated_sentences,
            "backend": self.backend,
        }


def hop_record(answer: StoryAnswer) -> Record:
    """Record of a memory network's answer: a layer for each hop, a column for each sentence."""
    empty_weights = np.maximum(0.0, 1.0 - answer.hops.sum(axis=1))
    memory = RecordText.from_labels(" ".join(answer.sentences), answer.sentences)
    weights = answer.hops
    if empty_weights.max(initial=0.0) > MIN_EMPTY_WEIGHT:  # one column for all memories without a sentence
        memory = RecordText(memory.text, (*memory.tokens, EMPTY_MEMORIES), word_ids=(*memory.word_ids, -1))
        weights = np.concatenate([weights, empty_weights[:, None]], axis=1)
    attention = AttentionRecord(
        "hop",
        "question",
        columns="memory",
        stored=weights[:, None, None].astype(np.float32),  # [hops, 1 head, 1 question, sentences]
        layers=tuple(range(len(weights))),
    )
    return Record(
        answer.question,
        {"memory": memory, "question": RecordText.from_labels(f"{answer.question} → {answer}", [answer.question])},
        (attention,),
        task=TASK,
        prediction=answer.probabilities,
        omissions=answer.omissions,
    )


class StoryQAPipeline(PicklablePipeline):
    """Answers questions about stories."""

    task_name = TASK

    def __init__(self, reader: StoryReader, metadata: Mapping[str, Any] | None = None) -> None:
        """Take a model that reads stories, and the content of its `task.json`."""
        self.reader = reader
        self.metadata = dict(metadata or {})

    @property
    def model(self) -> Any:
        """What computes the answers."""
        return self.reader.model

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
        reader = self.reader
        _, predictions = reader.predict(StoryQuestions.from_questions(questions), top_k=top_k)
        answers = []
        for question, prediction in zip(questions, predictions, strict=True):
            answer = StoryAnswer.from_prediction(question, prediction, reader.unit)
            answers.append(attach_recorder(answer, partial(reader.record, question, answer), reader.backend))
        return answers

    def predict_examples(self, examples: StoryQuestions) -> PredictedStoryAnswers:
        """Answer the questions of a test set; the result is the argument of every metric."""
        answers = self.answer_batch(examples.questions, top_k=1)
        return PredictedStoryAnswers(
            predictions=[str(answer) for answer in answers],
            references=[question.answer for question in examples.questions],
            tasks=[question.task for question in examples.questions],
            stories=examples.stories,
        )

    def evaluate(
        self, stories: StoryQuestions, *, strict: bool = True, metrics: Sequence[str] = ()
    ) -> tuple[StoryScores, list[str]]:
        """Score the answers to questions with known answers, also by the named metrics; also return the answers.

        With `strict`, a known answer that training never saw is an error; otherwise it counts as answered wrongly.
        """
        references, predictions = self.reader.predict(stories, strict=strict)
        scores = score_answers(references, predictions)
        answers = [prediction.text for prediction in predictions]
        story_predictions = PredictedStoryAnswers.from_answers(references, answers)
        by_name = Scoring(self.task_name, tuple(metrics)).compute_final(story_predictions)
        pairs = zip(stories.questions, predictions, strict=True)
        num_truncated = [len(story.sentences) - prediction.num_sentences for story, prediction in pairs]
        return replace(scores, metrics=by_name, truncation=describe_truncation(num_truncated)), answers
