"""Fine-tune or train an encoder for extractive question answering: answers are spans (Rajpurkar et al., 2016)."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.config.task_runs import AnswerRun
from regard.data.squad import SquadExamples, hold_out_questions, read_squad
from regard.errors import DataError
from regard.models.bert import Bert
from regard.tasks.base import Objective
from regard.tasks.baselines import paired_gain
from regard.tasks.predictions import Predictions
from regard.tasks.question_answering import (
    AnswerSpan,
    EncodedPassages,
    PredictedAnswers,
    answer_matches,
    answer_texts,
    best_spans,
    best_threshold,
    encode_questions,
    questions_without_target,
    span_targets,
    word_overlap_baseline,
)
from regard.tasks.span_objective import SpanObjective
from regard.training.evaluation import Samples
from regard.training.experiments.base import Notify, prefix_metrics, report_gain
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.fine_tuning import EncoderExperiment
from regard.training.experiments.supervised import EncodedSplit
from regard.training.trivial_baselines import constant_span
from regard.training.verdict import TrivialBaseline

MAX_EVALUATED = 1000  # validation questions answered at each evaluation
NUM_SAMPLES = 2  # questions shown at each evaluation


class QuestionSplit(EncodedSplit[SquadExamples, EncodedPassages]):
    """Questions and passages, encoded for the encoder."""

    @property
    def passages(self) -> list[str]:
        """Passage of each question."""
        return [example.passage for example in self.examples.examples]


class QuestionAnsweringExperiment(EncoderExperiment[QuestionSplit]):
    """Fine-tune or train an encoder on questions about passages."""

    config: AnswerRun
    head = "span"
    default_epochs = 2.0
    default_batch_rows = 16

    # set by `prepare`
    evaluated: QuestionSplit  # questions answered at each evaluation

    def read_splits(self) -> DataSplits[SquadExamples]:
        """Read questions and passages; hold some passages out where there are no validation files."""
        return DataSplits.read(
            self.config,
            read_squad,
            hold_out_questions,
            describe_held_out=lambda valid: f"{len(valid):,} questions are held out, with whole passages",
        )

    def training_texts(self, train: SquadExamples) -> list[str]:
        """Questions of the training examples, and each of their passages once."""
        passages = dict.fromkeys(example.passage for example in train.examples)
        return [*(example.question for example in train.examples), *passages]

    def encode_splits(self, splits: DataSplits[SquadExamples]) -> None:
        """Encode all splits, and choose the questions that each evaluation answers."""
        super().encode_splits(splits)
        self.train = self._leave_out_rows_without_target(self.train)
        self.evaluated = self.valid
        if len(splits.valid) > MAX_EVALUATED:
            self.evaluated = self.valid.select(np.arange(MAX_EVALUATED))

    def build_objective(self) -> Objective:
        """Build the objective: cross-entropy of the first and the last token of each answer."""
        rows = self.train.rows
        all_positions = [np.arange(len(row), dtype=np.int64) for row in rows.rows]
        targets = span_targets(rows, self.train.examples.examples)
        return SpanObjective(
            rows,
            targets,
            seed=self.config.training.seed,
            digest=self.train.examples.digest,
            cached_states=self.cache_states(rows, all_positions),
        )

    def encode(self, examples: SquadExamples, split: str) -> QuestionSplit:
        """Encode questions with windows of their passages."""
        questions = [(example.question, example.passage) for example in examples.examples]
        rows = encode_questions(
            self.special_tokens,
            questions,
            self.max_length,
            self.config.passages.window_overlap,
            is_causal=self.model_config.causal,
        )
        self.report_truncation(rows.truncation, split)
        return QuestionSplit(examples, rows)

    def _leave_out_rows_without_target(self, train: QuestionSplit) -> QuestionSplit:
        """Leave out the rows of questions whose answer none of them contains: their target would be no answer."""
        examples = train.examples.examples
        without_target = {*questions_without_target(train.rows, span_targets(train.rows, examples), examples)}
        if not without_target:
            return train
        first = examples[min(without_target)]
        what = f"{len(without_target):,} training questions are left out: no window contains their answers whole"
        self.notes.append(f"{what}, or no tokens match them (the first is {first.location or first.name})")
        kept_rows = [row for row, index in enumerate(train.rows.text_indices) if index not in without_target]
        if not kept_rows:
            raise DataError("no training question is left", location=self.config.data.train[0], advice=what)
        return QuestionSplit(train.examples, train.rows.select_rows(kept_rows))

    # ---- interface of a run

    @property
    def data_summary(self) -> str:
        """Size of the training data in a few words."""
        train = self.train.examples
        unanswerable = f", {train.num_unanswerable:,} without answer" if train.num_unanswerable else ""
        return f"{len(train):,} questions{unanswerable} about {len(set(self.train.passages)):,} passages"

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        test = f", test {len(self.test.examples):,}" if self.test is not None else ""
        return [
            f"data: {self.data_summary}, {self.tokens_per_epoch:,} tokens in {len(self.train.rows):,} windows; "
            f"validation {len(self.valid.examples):,}{test}",
            self.describe_model(num_parameters),
        ]

    def preprocessing_metadata(self) -> dict[str, Any]:
        """Entry of task.json on the windows of passages."""
        return {"overlap": self.config.passages.window_overlap}

    def limit_validation(self, fraction: float) -> None:
        """Validate on this fraction of the questions that an evaluation answers."""
        count = max(1, round(fraction * len(self.evaluated.examples)))
        super().limit_validation(count / len(self.valid.examples))
        self.evaluated = self.valid

    def validation_tokens(self) -> int:
        """Count the tokens that one evaluation reads."""
        return self.evaluated.num_tokens

    def closing_seconds(self, evaluation_seconds: float) -> float:
        """Estimate the duration of answering all validation and test questions."""
        splits = [split for split in (self.valid, self.test) if split is not None]
        tokens = sum(split.num_tokens for split in splits)
        return evaluation_seconds * tokens / max(1, self.validation_tokens())

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Scores of no answer or of the whole passage, whichever has the better F1."""
        return [constant_span(self.evaluated.examples.examples)]

    # ---- metrics

    def _find_spans(self, model: Bert, split: QuestionSplit) -> list[list[AnswerSpan]]:
        return best_spans(model, split.rows, len(split.examples))

    def predict(self, model: Bert) -> tuple[Predictions, Samples]:
        """Answer validation questions, with the best threshold for no answer."""
        spans = self._find_spans(model, self.evaluated)
        questions = self.evaluated.examples.examples
        answers = answer_texts(spans, self.evaluated.passages, best_threshold(spans, questions))
        samples = [
            (question.question, question.texts[0], answer)
            for question, answer in zip(questions[:NUM_SAMPLES], answers[:NUM_SAMPLES], strict=True)
        ]
        return PredictedAnswers(predictions=answers, references=questions), samples

    def compute_final_metrics(self, model: Bert, notify: Notify) -> tuple[dict[str, float], dict[str, Any]]:
        """Tune the threshold for no answer on validation questions; score these and the test questions."""
        spans = self._find_spans(model, self.valid)
        threshold = best_threshold(spans, self.valid.examples.examples)
        metrics = self._score("valid", self.valid, spans, threshold, notify)
        if self.test is not None:
            metrics |= self._score("test", self.test, self._find_spans(model, self.test), threshold, notify)
        return metrics, {"threshold": threshold}

    def _score(
        self, name: str, split: QuestionSplit, spans: list[list[AnswerSpan]], threshold: float, notify: Notify
    ) -> dict[str, float]:
        """Score the answers of a split; the last split is also compared with the word-overlap baseline."""
        questions = split.examples.examples
        answers = answer_texts(spans, split.passages, threshold)
        predictions = PredictedAnswers(predictions=answers, references=questions)
        metrics = prefix_metrics(name, self.scoring.compute_final(predictions))
        is_last = name == "test" or self.test is None
        if self.config.fine_tuning.baseline and is_last:
            baseline_answers = [word_overlap_baseline(question.question, question.passage) for question in questions]
            _, f1 = answer_matches(answers, questions)
            _, baseline_f1 = answer_matches(baseline_answers, questions)
            score = 100 * float(baseline_f1.mean())
            metrics |= report_gain(paired_gain(f1, baseline_f1), score, name, "baseline (word overlap) F1", notify)
        return metrics
