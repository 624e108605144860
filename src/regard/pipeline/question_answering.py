"""`AnsweringPipeline`: questions about a passage to spans of it, or to no answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.inference import RecordConfig
from regard.data.squad import SquadExample, SquadExamples
from regard.errors import UsageError
from regard.models.bert import Bert
from regard.pipeline.records.encoder import EncoderRecorder, VisibleWindow, encode_row
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.question_answering import (
    AnswerSpan,
    EncodedPassages,
    answer_scores,
    answerable_positions,
    best_spans,
    encode_questions,
)
from regard.text.special_tokens import SpecialTokens, TruncationReport
from regard.view.record.parts import SpanProbabilities
from regard.view.record.record import Record

LONGEST_ROW, OVERLAP = 384, 128  # tokens, where a folder does not say how passages were read
TOGETHER = 64  # questions that are read together


@dataclass(frozen=True)
class Answer(PipelineResult):
    """An exact span of the passage, or no answer."""

    question: str
    text: str  # empty: there is no answer
    start: int  # characters of the passage; -1 without answer
    end: int
    score: float  # the chance of it among all spans that were considered, or of there being no answer
    windows: int  # that the passage was read in
    alternatives: list[Answer] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        facts: dict[str, Any] = {"question": self.question, "answer": self.text or None, "start": self.start}
        facts |= {"stop": self.end, "score": round(self.score, 6), "windows": self.windows}
        if self.alternatives:
            kept = ("answer", "start", "stop", "score")
            facts["others"] = [{key: one.to_dict()[key] for key in kept} for one in self.alternatives]
        return facts


class QuestionAnsweringPipeline:
    """Questions and passages in, spans out; `account` says how passages so far were read."""

    def __init__(self, model: Bert, framing: SpecialTokens, max_length: int, task: dict[str, Any]) -> None:
        self.model, self.framing, self.max_length, self.task = model, framing, max_length, task
        self.overlap = int(task.get("overlap", OVERLAP))
        self.threshold = float(task.get("threshold", -1e9))
        self.account = TruncationReport()

    def answer(self, questions: Sequence[tuple[str, str]], *, top_k: int = 1) -> list[Answer]:
        """Return the answer to each question about its passage, with the next best ones."""
        for number, (question, passage) in enumerate(questions, 1):
            if not question.strip() or not passage.strip():
                raise UsageError(f"question {number}: the {'passage' if question.strip() else 'question'} is blank")
        made: list[Answer] = []
        for first in range(0, len(questions), TOGETHER):
            some = questions[first : first + TOGETHER]
            read = encode_questions(self.framing, some, self.max_length, self.overlap)
            self.account.add(read.account)
            counts = [read.text_indices.count(number) for number in range(len(some))]
            found = best_spans(self.model, read, len(some), max(1, top_k))
            for pair, spans, windows in zip(some, found, counts, strict=True):
                answer = self._answer(pair, spans, windows)
                made.append(attach_recorder(answer, partial(self._recorded, pair, answer)))
        return made

    def _recorded(self, asked: tuple[str, str], answer: Answer, seeing: RecordConfig) -> Record:
        """Return where the model looked: in the window of the best answer, with the curves of starts and ends."""
        read = encode_questions(self.framing, [asked], self.max_length, self.overlap)
        said = [answer, *answer.alternatives]
        best = next((one for one in said if one.text), None)
        number = _window_of(read, best)
        first = len(self.framing.tokenizer.encode_batch([asked[0]])[0])
        begin = read.begins[number] - len(self.framing.pair.before) - len(self.framing.pair.between)
        start = _place_of(self.framing.tokenizer.encode(asked[1]).spans, read.spans[number])
        shown = VisibleWindow(start, start + len(read.spans[number]), min(first, begin))
        row = encode_row(self.framing, *asked, max_length=self.max_length, window=shown)
        inside = answerable_positions(read, np.array([number]))

        def more(scores: NDArray[np.float32]) -> dict[str, Any]:
            curves = np.where(inside[:, None], scores.astype(np.float64), -np.inf)
            curves = np.exp(curves - curves.max(axis=0))
            start, end = (curves / curves.sum(axis=0)).T
            found = [span for one in said if one.text and (span := _tokens_of(read, number, one)) is not None]
            none = max(0.0, 1.0 - sum(one.score for one in said if one.text)) if self.threshold > -1e8 else None
            return {"verdict": SpanProbabilities(tuple(start.tolist()), tuple(end.tolist()), tuple(found), none)}

        looker = EncoderRecorder(self.model, self.framing)
        return looker.record(row, seeing, task="answer", title=asked[0], read=self.model.logits, more=more)

    def _answer(self, asked: tuple[str, str], spans: Sequence[AnswerSpan], windows: int) -> Answer:
        question, passage = asked
        made = [
            Answer(question, passage[one.start : one.stop], one.start, one.stop, one.probability, windows)
            for one in spans
        ]
        if spans and spans[0].margin > self.threshold:
            return Answer(**{**vars(made[0]), "alternatives": made[1:]})
        nothing = max(0.0, 1 - sum(one.probability for one in spans))
        return Answer(question, "", -1, -1, nothing, windows, made)

    def __call__(self, question: str, passage: str) -> Answer:
        """Return the answer to one question."""
        return self.answer([(question, passage)])[0]

    def scores(self, questions: SquadExamples, said: Sequence[Answer]) -> dict[str, Any]:
        """Return exact match and F1, as SQuAD's."""
        found = answer_scores([one.text for one in said], questions.examples)
        return {"questions": len(questions), **found, "account": self.account.to_dict()}


def _window_of(read: EncodedPassages, answer: Answer | None) -> int:
    """Return the number of the window that has an answer with most around it; the first where there is none."""
    if answer is None:
        return 0
    fits = [spans[0][0] <= answer.start and answer.end <= spans[-1][1] for spans in read.spans]
    edges = [min(answer.start - spans[0][0], spans[-1][1] - answer.end) if spans else -1 for spans in read.spans]
    return max(range(len(fits)), key=lambda number: (fits[number], edges[number]))


def _place_of(spans: Sequence[tuple[int, int]], window: Sequence[tuple[int, int]]) -> int:
    """Return the number of a window's first token among all tokens of the passage."""
    count = len(window)
    return next((at for at in range(len(spans) - count + 1) if [*spans[at : at + count]] == [*window]), 0)


def _tokens_of(read: EncodedPassages, number: int, answer: Answer) -> tuple[int, int, str, float] | None:
    """Return an answer by the first and the last of its tokens in a row; None where the window has not all of it."""
    spans, begin = read.spans[number], read.begins[number]
    inside = [at for at, (start, stop) in enumerate(spans) if start < answer.end and stop > answer.start]
    if not inside or spans[inside[0]][0] > answer.start or spans[inside[-1]][1] < answer.end:
        return None
    return begin + inside[0], begin + inside[-1], answer.text, answer.score


def question_passage_pairs(examples: Sequence[SquadExample]) -> list[tuple[str, str]]:
    """Return questions with their passages."""
    return [(one.question, one.passage) for one in examples]
