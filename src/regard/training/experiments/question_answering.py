"""Fine-tuning an encoder to answer questions by spans of passages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.config.runs import RunConfig
from regard.data.squad import SquadExamples, hold_out_questions, read_squad
from regard.models.bert import Bert
from regard.tasks.baselines import paired_gain
from regard.tasks.question_answering import (
    AnswerSpan,
    EncodedPassages,
    SpanObjective,
    answer_matches,
    answer_scores,
    answer_texts,
    best_spans,
    best_threshold,
    encode_questions,
    span_targets,
    word_overlap_baseline,
)
from regard.training.experiments.base import (
    DataSplits,
    EvaluationResult,
    Notify,
    prefix_metrics,
    report_gain,
    spread_indices,
)
from regard.training.experiments.fine_tuning import FineTuningExperiment
from regard.training.trivial_baselines import constant_span
from regard.training.verdict import TrivialBaseline

HELD_OUT = "questions are held out, with whole passages"
MOST_MEASURED = 1000  # validation questions answered at each evaluation


@dataclass(frozen=True)
class QuestionSplit:
    """Questions as the encoder reads them."""

    examples: SquadExamples
    rows: EncodedPassages

    @property
    def passages(self) -> list[str]:
        """The passage of each."""
        return [one.passage for one in self.examples.examples]


class QuestionAnsweringExperiment(FineTuningExperiment):
    """Questions about passages and the encoder that learns to answer them."""

    name, head, passes, batch_rows = "answer", "span", 2.0, 16

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        parts = DataSplits.read(config, read_squad, lambda train: None, hold_out_questions, HELD_OUT)
        self.prepare(parts)
        train, valid, test = parts.train, parts.valid, parts.test
        self.train, self.valid = self._part(train, "training"), self._part(valid, "validation")
        some = valid.select(np.arange(min(MOST_MEASURED, len(valid))))
        self.some = self.valid if len(some) == len(valid) else self._part(some, "")
        self.test = None if test is None else self._part(test, "test")
        rows = self.train.rows
        self.set_training_rows(rows)
        places = [np.arange(len(row), dtype=np.int64) for row in rows.rows]
        aims = span_targets(rows, train.examples)
        self.task = SpanObjective(
            rows, aims, seed=config.training.seed, digest=train.digest, kept=self.cache_states(rows, places)
        )
        told = {rows.text_indices[number] for number in np.flatnonzero(aims[:, 1])}
        lost = sum(bool(one.answers) for one in train.examples) - len(told)
        if lost:
            self.notes.append(f"{lost:,} answers are whole in no window, or tokens do not fit them: not learned")

    def _part(self, given: SquadExamples, name: str) -> QuestionSplit:
        asked = [(one.question, one.passage) for one in given.examples]
        rows = encode_questions(self.framing, asked, self.max_length, self.config.passages.window_overlap)
        if name:
            self.report_truncation(rows.account, name)
        return QuestionSplit(given, rows)

    def describe(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        train, valid = self.train.examples, self.valid.examples
        tested = f", test {len(self.test.examples):,}" if self.test is not None else ""
        none = f", {train.num_unanswerable:,} without answer" if train.num_unanswerable else ""
        passages = len({one.passage for one in train.examples})
        return [
            f"data: {len(train):,} questions{none} about {passages:,} passages, {self.tokens_per_epoch:,} tokens in "
            f"{len(self.train.rows):,} windows; validation {len(valid):,}{tested}",
            self.model_line(parameters),
        ]

    def preprocessing_metadata(self) -> dict[str, Any]:
        """Return what must be known to read passages as in training."""
        return {"overlap": self.config.passages.window_overlap}

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation questions only."""
        count = max(1, round(share * len(self.some.examples)))
        given = self.valid.examples
        self.valid = self._part(given.select(spread_indices(len(given), count / len(given))), "")
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
        return [constant_span(self.some.examples.examples)]

    # ---- measures

    def _spans(self, model: Bert, part: QuestionSplit) -> list[list[AnswerSpan]]:
        return best_spans(model, part.rows, len(part.examples))

    def validation_rows(self) -> EncodedPassages:
        """Return the validation rows."""
        return self.valid.rows

    def compute_metrics(self, model: Bert) -> EvaluationResult:
        """Return exact match and F1 on validation questions, with the threshold that suits them."""
        spans, asked = self._spans(model, self.some), self.some.examples.examples
        said = answer_texts(spans, self.some.passages, best_threshold(spans, asked))
        metrics = answer_scores(said, asked)
        samples = [(one.question, one.texts[0], text) for one, text in zip(asked[:2], said[:2], strict=True)]
        return metrics, (round(metrics["f1"], 4), metrics["exact"]), samples

    def concluded(self, model: Bert, notify: Notify) -> tuple[dict[str, float], dict[str, Any]]:
        """Tune the threshold for no answer on validation questions; score these and the test's, beside the baseline."""
        threshold, metrics = -1e9, dict[str, float]()
        for name, part in (("valid", self.valid), ("test", self.test)):
            if part is None:
                continue
            spans, asked = self._spans(model, part), part.examples.examples
            if name == "valid":
                threshold = best_threshold(spans, asked)
            said = answer_texts(spans, part.passages, threshold)
            metrics |= prefix_metrics(name, answer_scores(said, asked))
            if self.config.fine_tuning.baseline and (name == "test") == (self.test is not None):
                theirs = [word_overlap_baseline(one.question, one.passage) for one in asked]
                values = [answer_matches(side, asked)[1] for side in (said, theirs)]
                score = 100 * float(values[1].mean())
                metrics |= report_gain(paired_gain(*values), score, name, "baseline (word overlap) F1", notify)
        return metrics, {"threshold": threshold}
