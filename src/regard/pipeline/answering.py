"""`AnsweringPipeline`: questions about a passage to spans of it, or to no answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.seeing import SeeingConfig
from regard.data.passages import Asked, Questions
from regard.errors import UsageError
from regard.models.encoder import Encoder
from regard.pipeline.encoder_seeing import EncoderLooker, Window, read_row
from regard.pipeline.seeable import Seeable, seen_by
from regard.tasks.encoding import Account
from regard.tasks.spans import EncodedQuestions, Span, allowed, answer_scores, best_spans, read_asked
from regard.text.framing import Framing
from regard.view.record import Record, SpanVerdict

LONGEST_ROW, OVERLAP = 384, 128  # tokens, where a folder does not say how passages were read
TOGETHER = 64  # questions that are read together


@dataclass(frozen=True)
class SpanAnswer(Seeable):
    """An exact span of the passage, or no answer."""

    question: str
    text: str  # empty: there is no answer
    start: int  # characters of the passage; -1 without answer
    stop: int
    score: float  # the chance of it among all spans that were considered, or of there being no answer
    windows: int  # that the passage was read in
    others: list[SpanAnswer] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        facts: dict[str, Any] = {"question": self.question, "answer": self.text or None, "start": self.start}
        facts |= {"stop": self.stop, "score": round(self.score, 6), "windows": self.windows}
        if self.others:
            kept = ("answer", "start", "stop", "score")
            facts["others"] = [{key: one.to_dict()[key] for key in kept} for one in self.others]
        return facts


class AnsweringPipeline:
    """Questions and passages in, spans out; `account` says how passages so far were read."""

    def __init__(self, model: Encoder, framing: Framing, longest: int, task: dict[str, Any]) -> None:
        self.model, self.framing, self.longest, self.task = model, framing, longest, task
        self.overlap = int(task.get("overlap", OVERLAP))
        self.threshold = float(task.get("threshold", -1e9))
        self.account = Account()

    def answers(self, asked: Sequence[tuple[str, str]], *, best: int = 1) -> list[SpanAnswer]:
        """Return the answer to each question about its passage, with the next best ones."""
        for number, (question, passage) in enumerate(asked, 1):
            if not question.strip() or not passage.strip():
                raise UsageError(f"question {number}: the {'passage' if question.strip() else 'question'} is blank")
        made: list[SpanAnswer] = []
        for first in range(0, len(asked), TOGETHER):
            some = asked[first : first + TOGETHER]
            read = read_asked(self.framing, some, self.longest, self.overlap)
            self.account.add(read.account)
            counts = [read.owners.count(number) for number in range(len(some))]
            found = best_spans(self.model, read, len(some), max(1, best))
            for pair, spans, windows in zip(some, found, counts, strict=True):
                answer = self._answer(pair, spans, windows)
                made.append(seen_by(answer, partial(self._recorded, pair, answer)))
        return made

    def _recorded(self, asked: tuple[str, str], answer: SpanAnswer, seeing: SeeingConfig) -> Record:
        """Return where the model looked: in the window of the best answer, with the curves of starts and ends."""
        read = read_asked(self.framing, [asked], self.longest, self.overlap)
        said = [answer, *answer.others]
        best = next((one for one in said if one.text), None)
        number = _window_of(read, best)
        first = len(self.framing.tokenizer.encode_all([asked[0]])[0])
        begin = read.begins[number] - len(self.framing.pair.before) - len(self.framing.pair.between)
        start = _place_of(self.framing.tokenizer.encode(asked[1]).spans, read.spans[number])
        shown = Window(start, start + len(read.spans[number]), min(first, begin))
        row = read_row(self.framing, *asked, longest=self.longest, shown=shown)
        inside = allowed(read, np.array([number]))

        def more(scores: NDArray[np.float32]) -> dict[str, Any]:
            curves = np.where(inside[:, None], scores.astype(np.float64), -np.inf)
            curves = np.exp(curves - curves.max(axis=0))
            start, end = (curves / curves.sum(axis=0)).T
            found = [span for one in said if one.text and (span := _tokens_of(read, number, one)) is not None]
            none = max(0.0, 1.0 - sum(one.score for one in said if one.text)) if self.threshold > -1e8 else None
            return {"verdict": SpanVerdict(tuple(start.tolist()), tuple(end.tolist()), tuple(found), none)}

        looker = EncoderLooker(self.model, self.framing)
        return looker.record(row, seeing, task="answer", title=asked[0], read=self.model.scores, more=more)

    def _answer(self, asked: tuple[str, str], spans: Sequence[Span], windows: int) -> SpanAnswer:
        question, passage = asked
        made = [
            SpanAnswer(question, passage[one.start : one.stop], one.start, one.stop, one.chance, windows)
            for one in spans
        ]
        if spans and spans[0].margin > self.threshold:
            return SpanAnswer(**{**vars(made[0]), "others": made[1:]})
        nothing = max(0.0, 1 - sum(one.chance for one in spans))
        return SpanAnswer(question, "", -1, -1, nothing, windows, made)

    def __call__(self, question: str, passage: str) -> SpanAnswer:
        """Return the answer to one question."""
        return self.answers([(question, passage)])[0]

    def scores(self, questions: Questions, said: Sequence[SpanAnswer]) -> dict[str, Any]:
        """Return exact match and F1, as SQuAD's."""
        found = answer_scores([one.text for one in said], questions.asked)
        return {"questions": len(questions), **found, "account": self.account.to_dict()}


def _window_of(read: EncodedQuestions, answer: SpanAnswer | None) -> int:
    """Return the number of the window that has an answer with most around it; the first where there is none."""
    if answer is None:
        return 0
    fits = [spans[0][0] <= answer.start and answer.stop <= spans[-1][1] for spans in read.spans]
    edges = [min(answer.start - spans[0][0], spans[-1][1] - answer.stop) if spans else -1 for spans in read.spans]
    return max(range(len(fits)), key=lambda number: (fits[number], edges[number]))


def _place_of(spans: Sequence[tuple[int, int]], window: Sequence[tuple[int, int]]) -> int:
    """Return the number of a window's first token among all tokens of the passage."""
    count = len(window)
    return next((at for at in range(len(spans) - count + 1) if [*spans[at : at + count]] == [*window]), 0)


def _tokens_of(read: EncodedQuestions, number: int, answer: SpanAnswer) -> tuple[int, int, str, float] | None:
    """Return an answer by the first and the last of its tokens in a row; None where the window has not all of it."""
    spans, begin = read.spans[number], read.begins[number]
    inside = [at for at, (start, stop) in enumerate(spans) if start < answer.stop and stop > answer.start]
    if not inside or spans[inside[0]][0] > answer.start or spans[inside[-1]][1] < answer.stop:
        return None
    return begin + inside[0], begin + inside[-1], answer.text, answer.score


def pairs_of(asked: Sequence[Asked]) -> list[tuple[str, str]]:
    """Return questions with their passages."""
    return [(one.question, one.passage) for one in asked]
