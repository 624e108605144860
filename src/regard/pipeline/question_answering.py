"""`QuestionAnsweringPipeline`: extractive question answering, questions and passages to spans or to no answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from regard.backends import EncoderBackend
from regard.config.inference import RecordConfig
from regard.data.squad import SquadExample, SquadExamples
from regard.errors import UsageError
from regard.hardware import ForkSafeLock
from regard.pipeline.pickling import PicklablePipeline
from regard.pipeline.records.encoder_records import EncoderRecorder, VisibleWindow, encode_row
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.question_answering import (
    AnswerSpan,
    EncodedPassages,
    PredictedAnswers,
    answerable_positions,
    best_spans,
    encode_questions,
)
from regard.tasks.scoring import Scoring
from regard.text.special_tokens import SpecialTokens, TruncationReport
from regard.view.record.parts import SpanProbabilities
from regard.view.record.record import Record

TASK = "answer"
DEFAULT_MAX_LENGTH = 384  # tokens of a row
DEFAULT_OVERLAP = 128  # tokens that neighbouring windows share, where the folder does not say
QUESTIONS_PER_BATCH = 64


class SpanDict(TypedDict):
    """JSON form of a span of the passage, or of no answer."""

    text: str  # empty: no answer
    start: int  # character of the passage; -1 without an answer
    end: int
    score: float  # probability of the span among all candidate spans, or of no answer


class AnswerDict(SpanDict):
    """JSON form of an `Answer`."""

    question: str
    no_answer_probability: float  # among all candidate spans
    windows: int  # in which the passage was read
    backend: str  # what computed it, and in which precision: engine int8
    alternatives: list[SpanDict]  # the next best, best first


@dataclass(frozen=True)
class Answer(PipelineResult):
    """A span of the passage, or no answer."""

    question: str
    text: str  # empty: no answer
    start: int  # character of the passage; -1 without an answer
    end: int
    score: float  # probability of the span among all candidate spans, or of no answer
    windows: int  # in which the passage was read
    no_answer_probability: float  # among all candidate spans
    alternatives: list[Answer] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> AnswerDict:
        """JSON form of the answer and its alternatives."""
        return {
            "question": self.question,
            **self._to_span_dict(),
            "no_answer_probability": round(self.no_answer_probability, 6),
            "windows": self.windows,
            "backend": self.backend,
            "alternatives": [alternative._to_span_dict() for alternative in self.alternatives],
        }

    def _to_span_dict(self) -> SpanDict:
        return {"text": self.text, "start": self.start, "end": self.end, "score": round(self.score, 6)}


class QuestionAnsweringPipeline(PicklablePipeline):
    """Answers questions with spans of their passages; `truncation_report` counts how passages were read."""

    task_name = TASK

    def __init__(
        self, model: EncoderBackend, special_tokens: SpecialTokens, max_length: int, task: dict[str, Any]
    ) -> None:
        self.model = model
        self.special_tokens = special_tokens
        self.max_length = max_length
        self.task = task
        self.overlap = int(task.get("overlap", DEFAULT_OVERLAP))
        self.threshold = float(task.get("threshold", -1e9))
        self.truncation_report = TruncationReport()
        self._report_lock = ForkSafeLock()

    def encode(self, questions: Sequence[tuple[str, str]]) -> EncodedPassages:
        """Encode (question, passage) pairs as in training."""
        return encode_questions(
            self.special_tokens,
            questions,
            self.max_length,
            self.overlap,
            is_causal=self.model.config.causal,
        )

    def answer(self, questions: Sequence[tuple[str, str]], *, top_k: int = 1) -> list[Answer]:
        """Answer each (question, passage) pair, with the `top_k - 1` next best spans as alternatives."""
        for question_number, (question, passage) in enumerate(questions, 1):
            if not question.strip() or not passage.strip():
                blank = "passage" if question.strip() else "question"
                raise UsageError(f"question {question_number}: the {blank} is blank")
        answers: list[Answer] = []
        for start in range(0, len(questions), QUESTIONS_PER_BATCH):
            batch = questions[start : start + QUESTIONS_PER_BATCH]
            encoded = self.encode(batch)
            with self._report_lock:
                self.truncation_report.add(encoded.truncation)
            batch_spans = best_spans(self.model, encoded, len(batch), max(1, top_k))
            for index, (pair, spans) in enumerate(zip(batch, batch_spans, strict=True)):
                answer = self._build_answer(pair, spans, encoded.text_indices.count(index))
                recorder = partial(self._build_record, pair, answer)
                answers.append(attach_recorder(answer, recorder, self.model.backend_name))
        return answers

    def _build_answer(self, pair: tuple[str, str], spans: Sequence[AnswerSpan], num_windows: int) -> Answer:
        question, passage = pair
        no_answer_probability = spans[0].no_answer_probability if spans else 1.0
        answers = [
            Answer(
                question,
                passage[span.start : span.stop],
                start=span.start,
                end=span.stop,
                score=span.probability,
                windows=num_windows,
                no_answer_probability=no_answer_probability,
            )
            for span in spans
        ]
        if spans and spans[0].margin > self.threshold:
            return replace(answers[0], alternatives=answers[1:])
        return Answer(
            question,
            "",
            start=-1,
            end=-1,
            score=no_answer_probability,
            windows=num_windows,
            no_answer_probability=no_answer_probability,
            alternatives=answers,
        )

    def _build_record(self, pair: tuple[str, str], answer: Answer, config: RecordConfig) -> Record:
        """Record the attention in the window of the best answer, with start and end probabilities of its tokens."""
        question, passage = pair
        encoded = self.encode([pair])
        spans = [candidate for candidate in (answer, *answer.alternatives) if candidate.text]
        window_index = _find_window(encoded, spans[0] if spans else None)
        window_spans = encoded.spans[window_index]
        template = self.special_tokens.pair_template
        tokenizer = self.special_tokens.tokenizer
        question_length = len(tokenizer.encode_batch([question])[0])
        question_end = encoded.passage_starts[window_index] - len(template.before) - len(template.between)
        start = _find_window_start(tokenizer.encode(passage).spans, window_spans)
        window = VisibleWindow(start, start + len(window_spans), before=min(question_length, question_end))
        row = encode_row(self.special_tokens, question, passage, max_length=self.max_length, window=window)
        is_answerable = answerable_positions(encoded, np.array([window_index]))

        def build_probabilities(logits: NDArray[np.float32]) -> dict[str, Any]:
            masked_logits = np.where(is_answerable[:, None], logits.astype(np.float64), -np.inf)
            exponentials = np.exp(masked_logits - masked_logits.max(axis=0))
            start_probabilities, end_probabilities = (exponentials / exponentials.sum(axis=0)).T
            token_spans = [_token_span(encoded, window_index, span) for span in spans]
            predicts_no_answer = self.threshold > -1e8
            probabilities = SpanProbabilities(
                tuple(start_probabilities.tolist()),
                tuple(end_probabilities.tolist()),
                answers=tuple(span for span in token_spans if span is not None),
                no_answer=answer.no_answer_probability if predicts_no_answer else None,
            )
            return {"prediction": probabilities}

        recorder = EncoderRecorder(self.model, self.special_tokens)
        return recorder.record(
            row,
            config,
            task=TASK,
            title=question,
            run_model=self.model.logits,
            extra_parts=build_probabilities,
        )

    def __call__(self, question: str, passage: str) -> Answer:
        """Answer one question."""
        return self.answer([(question, passage)])[0]

    def predict_examples(self, examples: SquadExamples) -> PredictedAnswers:
        """Answer the questions of a test set; the result is the argument of every metric."""
        return _collect(examples, self.answer(question_passage_pairs(examples.examples)))

    def evaluate(
        self, questions: SquadExamples, answers: Sequence[Answer], *, metrics: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Exact match and F1 as in SQuAD (Rajpurkar et al. 2016), and metrics by name."""
        scores = Scoring(self.task_name, tuple(metrics)).compute_final(_collect(questions, answers))
        return {"questions": len(questions), **scores}


def _collect(questions: SquadExamples, answers: Sequence[Answer]) -> PredictedAnswers:
    """Answers beside the references of the questions."""
    return PredictedAnswers(predictions=[answer.text for answer in answers], references=questions.examples)


def _find_window(encoded: EncodedPassages, answer: Answer | None) -> int:
    """Index of the window that holds an answer with the most context around it; 0 without an answer."""
    if answer is None:
        return 0
    holds_answer = [spans[0][0] <= answer.start and answer.end <= spans[-1][1] for spans in encoded.spans]
    margins = [min(answer.start - spans[0][0], spans[-1][1] - answer.end) if spans else -1 for spans in encoded.spans]
    return max(range(len(holds_answer)), key=lambda index: (holds_answer[index], margins[index]))


def _find_window_start(spans: Sequence[tuple[int, int]], window: Sequence[tuple[int, int]]) -> int:
    """Index of a window's first token among the tokens of the passage."""
    length = len(window)
    for start in range(len(spans) - length + 1):
        if [*spans[start : start + length]] == [*window]:
            return start
    return 0


def _token_span(encoded: EncodedPassages, window_index: int, answer: Answer) -> tuple[int, int, str, float] | None:
    """First and last position of an answer in its row, its text and score; None if the window holds only a part."""
    spans = encoded.spans[window_index]
    offset = encoded.passage_starts[window_index]
    inside = [index for index, (start, end) in enumerate(spans) if start < answer.end and end > answer.start]
    if not inside or spans[inside[0]][0] > answer.start or spans[inside[-1]][1] < answer.end:
        return None
    return offset + inside[0], offset + inside[-1], answer.text, answer.score


def question_passage_pairs(examples: Sequence[SquadExample]) -> list[tuple[str, str]]:
    """List (question, passage) of examples."""
    return [(example.question, example.passage) for example in examples]
