"""Fine-tuning an encoder to answer questions by spans of passages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.config.run import RunConfig
from regard.data.passages import Questions, hold_out_questions, read_questions
from regard.models.encoder import Encoder
from regard.tasks.baseline import paired_gain
from regard.tasks.spans import (
    EncodedQuestions,
    Span,
    SpanTask,
    answer_scores,
    answer_values,
    best_spans,
    best_threshold,
    overlap_answer,
    read_asked,
    said_answers,
    targets,
)
from regard.training.fine_tuning import EncoderJob
from regard.training.gain import told_gain
from regard.training.job import Say
from regard.training.keeping import Measured, measured_on, spread_indices
from regard.training.parts import Parts
from regard.training.trivial import constant_span
from regard.training.verdict import TrivialBaseline

HELD_OUT = "questions are held out, with whole passages"
MOST_MEASURED = 1000  # validation questions answered at each evaluation


@dataclass(frozen=True)
class Part:
    """Questions as the encoder reads them."""

    given: Questions
    rows: EncodedQuestions

    @property
    def passages(self) -> list[str]:
        """The passage of each."""
        return [one.passage for one in self.given.asked]


class AnsweringJob(EncoderJob):
    """Questions about passages and the encoder that learns to answer them."""

    name, head, passes, batch_rows = "answer", "span", 2.0, 16

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        parts = Parts.of(config, read_questions, lambda train: None, hold_out_questions, HELD_OUT)
        self.begin(parts)
        train, valid, test = parts.train, parts.valid, parts.test
        self.train, self.valid = self._part(train, "training"), self._part(valid, "validation")
        some = valid.chosen(np.arange(min(MOST_MEASURED, len(valid))))
        self.some = self.valid if len(some) == len(valid) else self._part(some, "")
        self.test = None if test is None else self._part(test, "test")
        rows = self.train.rows
        self.learn(rows)
        places = [np.arange(len(row), dtype=np.int64) for row in rows.rows]
        aims = targets(rows, train.asked)
        self.task = SpanTask(
            rows, aims, seed=config.training.seed, digest=train.digest, kept=self.kept_states(rows, places)
        )
        told = {rows.owners[number] for number in np.flatnonzero(aims[:, 1])}
        lost = sum(bool(one.answers) for one in train.asked) - len(told)
        if lost:
            self.notes.append(f"{lost:,} answers are whole in no window, or tokens do not fit them: not learned")

    def _part(self, given: Questions, name: str) -> Part:
        asked = [(one.question, one.passage) for one in given.asked]
        rows = read_asked(self.framing, asked, self.longest, self.config.answer.overlap)
        if name:
            self.account(rows.account, name)
        return Part(given, rows)

    def lines(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        train, valid = self.train.given, self.valid.given
        tested = f", test {len(self.test.given):,}" if self.test is not None else ""
        none = f", {train.unanswerable:,} without answer" if train.unanswerable else ""
        passages = len({one.passage for one in train.asked})
        return [
            f"data: {len(train):,} questions{none} about {passages:,} passages, {self.tokens:,} tokens in "
            f"{len(self.train.rows):,} windows; validation {len(valid):,}{tested}",
            self.model_line(parameters),
        ]

    def reading(self) -> dict[str, Any]:
        """Return what must be known to read passages as in training."""
        return {"overlap": self.config.answer.overlap}

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation questions only."""
        count = max(1, round(share * len(self.some.given)))
        given = self.valid.given
        self.valid = self._part(given.chosen(spread_indices(len(given), count / len(given))), "")
        self.some = self.valid

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads."""
        return int(self.some.rows.lengths.sum())

    def closing_seconds(self, evaluation: float) -> float:
        """Estimate the seconds of answering all validation and test questions at the end."""
        parts = [part for part in (self.valid, self.test) if part is not None]
        tokens = sum(int(part.rows.lengths.sum()) for part in parts)
        return evaluation * tokens / max(1, self.validation_tokens())

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Scores of giving no answer, or the whole passage, whichever has the better F1."""
        return [constant_span(self.some.given.asked)]

    # ---- measures

    def _spans(self, model: Encoder, part: Part) -> list[list[Span]]:
        return best_spans(model, part.rows, len(part.given))

    def read(self) -> EncodedQuestions:
        """Return the validation rows."""
        return self.valid.rows

    def measured(self, model: Encoder) -> Measured:
        """Return exact match and F1 on validation questions, with the threshold that suits them."""
        spans, asked = self._spans(model, self.some), self.some.given.asked
        said = said_answers(spans, self.some.passages, best_threshold(spans, asked))
        metrics = answer_scores(said, asked)
        samples = [(one.question, one.texts[0], text) for one, text in zip(asked[:2], said[:2], strict=True)]
        return metrics, (round(metrics["f1"], 4), metrics["exact"]), samples

    def concluded(self, model: Encoder, say: Say) -> tuple[dict[str, float], dict[str, Any]]:
        """Tune the threshold for no answer on validation questions; score these and the test's, beside the baseline."""
        threshold, metrics = -1e9, dict[str, float]()
        for name, part in (("valid", self.valid), ("test", self.test)):
            if part is None:
                continue
            spans, asked = self._spans(model, part), part.given.asked
            if name == "valid":
                threshold = best_threshold(spans, asked)
            said = said_answers(spans, part.passages, threshold)
            metrics |= measured_on(name, answer_scores(said, asked))
            if self.config.classify.baseline and (name == "test") == (self.test is not None):
                theirs = [overlap_answer(one.question, one.passage) for one in asked]
                values = [answer_values(side, asked)[1] for side in (said, theirs)]
                score = 100 * float(values[1].mean())
                metrics |= told_gain(paired_gain(*values), score, name, "baseline (word overlap) F1", say)
        return metrics, {"threshold": threshold}
