"""`AnsweringPipeline`: questions about a passage to spans of it, or to no answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.data.passages import Asked, Questions
from regard.errors import UsageError
from regard.models.encoder import Encoder
from regard.tasks.encoding import Account
from regard.tasks.spans import Span, answer_scores, best_spans, read_asked
from regard.text.framing import Framing

LONGEST_ROW, OVERLAP = 384, 128  # tokens, where a folder does not say how passages were read
TOGETHER = 64  # questions that are read together


@dataclass(frozen=True)
class SpanAnswer:
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
            made += [self._answer(*row) for row in zip(some, found, counts, strict=True)]
        return made

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


def pairs_of(asked: Sequence[Asked]) -> list[tuple[str, str]]:
    """Return questions with their passages."""
    return [(one.question, one.passage) for one in asked]
