"""Training batch by batch: what the `Trainer` does in a run, for every task whose batches are counted in tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from regard.config.run import RunConfig
from regard.config.training import TrainingConfig
from regard.models.base import Model
from regard.phrases import duration
from regard.training.answering import AnsweringJob
from regard.training.causal import CausalJob
from regard.training.classification import ClassificationJob
from regard.training.distil import STUDENTS
from regard.training.encoder_classification import EncoderClassificationJob
from regard.training.fine_tuning import EncoderJob
from regard.training.job import Job, Outcome, Plan, Sitting
from regard.training.language import LanguageJob
from regard.training.masked import MaskedJob
from regard.training.plan import batch_for_time, planned_updates, time_formats, training_config
from regard.training.reader_tagging import ReaderTaggingJob
from regard.training.tagging import TaggingJob
from regard.training.trainer import Trainer
from regard.training.translation import TranslationJob
from regard.training.verdict import Limit, Verdict, judge
from regard.training.weights import FlatWeights

LANGUAGE: dict[str, Callable[[RunConfig, Path], Job]] = {  # by architecture
    "elmo": LanguageJob,
    "bert": MaskedJob,
    "gpt": CausalJob,
}
CLASSIFY: dict[str, Callable[[RunConfig, Path], Job]] = {
    "rnn": ClassificationJob,
    "bert": EncoderClassificationJob,
}
TAG: dict[str, Callable[[RunConfig, Path], Job]] = {
    "rnn": ReaderTaggingJob,
    "bert": TaggingJob,
}
JOBS: dict[str, Callable[[RunConfig, Path], Job]] = {
    "translate": TranslationJob,
    "language": lambda config, folder: LANGUAGE[config.arch](config, folder),
    "tag": lambda config, folder: TAG[config.arch](config, folder),
    "answer": AnsweringJob,
    "classify": lambda config, folder: CLASSIFY[config.arch](config, folder),
}


class BatchTraining:
    """A job trained by the `Trainer`, in the number format that is faster here."""

    unit = "step"

    def __init__(self, sitting: Sitting) -> None:
        self.sitting = sitting
        jobs = STUDENTS if sitting.config.distil.layers else JOBS
        self.job = job = jobs[sitting.config.task](sitting.config, sitting.directory.path)
        self.digests = job.digests
        self.training = training_config(
            sitting.config.training, job.width, job.tokens, goes_on=job.goes_on, wishes=job.wishes
        )

    @cached_property
    def model(self) -> Model:
        """The model with its first weights."""
        return self.job.model()

    def choose(self) -> dict[str, Any]:
        """Return the number format, and why."""
        timing = time_formats(self.job, self.training)
        seconds, batch = timing.seconds[timing.chosen], self.training.batch_tokens
        if not (self.sitting.config.training.batch_tokens or "batch_tokens" in self.job.wishes):
            batch = batch_for_time(self.training, seconds)
        seconds *= batch / self.training.batch_tokens
        return {
            "precision": timing.chosen,
            "precision_text": timing.text(),
            "seconds": seconds,
            "batch_tokens": batch,
        }

    def _settled(self, chosen: Mapping[str, Any]) -> TrainingConfig:
        """Return the settings with what was chosen by timing."""
        return replace(self.training, batch_tokens=chosen.get("batch_tokens", self.training.batch_tokens))

    def plan(self, chosen: Mapping[str, Any]) -> Plan:
        """Say what data, model, numbers and length of training are."""
        training, processes = self._settled(chosen), self.sitting.processes.count
        parameters = self.model.parameter_count()
        an_epoch = len(self.job.task.epoch(0, training.batch_tokens))
        lengths = [
            f"{training.steps:,} updates" if training.steps else "",
            f"{training.epochs:g} passes of about {an_epoch // training.accumulate or 1:,} updates"
            if training.epochs
            else "",
            f"{training.minutes:g} minutes" if training.minutes else "",
        ]
        estimate = 60 * training.minutes or planned_updates(training, an_epoch, 1.0) * chosen["seconds"] * 1.15
        rate = f"learning rate {training.learning_rate:.2g}"
        if training.optimizer == "muon":
            rate += f" and {training.matrix_rate:.2g} for matrices"
        lines = [
            *self.job.lines(parameters),
            f"numbers: {chosen['precision_text']}; {f'{processes} processes of ' if processes > 1 else ''}"
            f"{torch.get_num_threads()} threads",
            f"plan: {' or '.join(filter(None, lengths))}, {training.batch_tokens:,} tokens a batch, {rate}; "
            f"about {duration(estimate)}",
            *self.job.notes,
        ]
        return Plan(lines, parameters, estimate)

    def train(self, chosen: Mapping[str, Any]) -> Outcome:
        """Train until the plan is done, patience ends or a signal comes."""
        sitting = self.sitting
        weights = FlatWeights(self.model, chosen["precision"], self.training.device)
        evaluator = self.job.evaluator(self.training.device)
        trainer = Trainer(
            self.model,
            weights,
            self.job.task,
            self._settled(chosen),
            directory=sitting.directory,
            evaluator=evaluator,
            keep_best=self.job.keep,
            watchers=sitting.watchers,
            processes=sitting.processes,
            rates=self.job.rates if isinstance(self.job, EncoderJob) else None,
        )
        trainer.resume()
        reason = trainer.run()
        counters = trainer.counters
        if reason.startswith("SIG") or not sitting.processes.first:
            return Outcome(counters.step, reason, counters.seconds)
        average = weights.named(torch.stack(trainer.recent).mean(0)) if len(trainer.recent) > 1 else None
        verdict = self.job.verdict = self._judge(trainer, reason)
        metrics = self.job.finish(evaluator, average, counters.step, counters.best, sitting.say)
        return Outcome(counters.step, reason, counters.seconds, metrics, {"tokens": counters.tokens}, verdict)

    def _judge(self, trainer: Trainer, reason: str) -> Verdict:
        """Decide from the evaluations in the log, which outlives interruptions."""
        config, counters = trainer.config, trainer.counters
        limit = Limit("--minutes", config.minutes)
        if config.steps and counters.step >= config.steps:
            limit = Limit("--steps", config.steps)
        elif config.epochs and counters.epoch >= config.epochs:
            limit = Limit("--epochs", config.epochs)
        return judge(
            [event for event in self.sitting.directory.read_log() if event.get("event") == "evaluate"],
            updates=counters.step,
            baselines=self.job.trivial_baselines(),
            limit=limit if reason == "plan done" else None,
            pretrained=self.job.goes_on,
        )
