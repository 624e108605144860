"""Training batch by batch: what the `Trainer` does in a run, for every task whose batches are counted in tokens."""

from __future__ import annotations

import math
import time
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
from regard.training.plan import batch_for_time, planned_updates, training_config
from regard.training.reader_tagging import ReaderTaggingJob
from regard.training.tagging import TaggingJob
from regard.training.throughput import ThreadTuner, choose_throughput, measure_throughput, thread_counts
from regard.training.trainer import EVALUATION_SHARE, EVALUATIONS, RunTiming, Trainer
from regard.training.translation import TranslationJob
from regard.training.verdict import Limit, Verdict, judge
from regard.training.weights import FlatWeights

FORWARD_COST = 0.45  # of an update's time a token, for what an evaluation reads or writes
LONGEST_EVALUATION = 0.025  # of a time budget
OPTIMIZER_COST = 1.15  # times the measured forward and backward pass
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
        """Return precision, threads and batch size, and the seconds that updates and evaluations will take."""
        throughput = choose_throughput(
            self.model,
            self.training,
            self.sitting.distributed.world_size,
            lambda counts: measure_throughput(self.job, self.training, counts),
        )
        seconds, batch = throughput.update_seconds, self.training.batch_tokens
        tokens = int(max(self.job.task.lengths[indices].sum() for indices in self.job.task.epoch(0, batch)))
        if not (self.sitting.config.training.batch_tokens or "batch_tokens" in self.job.wishes):
            batch = batch_for_time(self.training, seconds)
        per_token = FORWARD_COST * throughput.seconds_in("float32") / max(1, tokens)  # evaluations are float32
        evaluation = per_token * self.job.validation_tokens()
        most = LONGEST_EVALUATION * 60 * self.training.minutes
        share = min(1.0, most / evaluation) if most else 1.0
        return {
            "precision": throughput.precision,
            "threads": throughput.threads,
            "throughput": throughput.text(),
            "seconds": seconds * batch / self.training.batch_tokens,
            "evaluation_seconds": share * evaluation,
            "validation_share": share,
            "batch_tokens": batch,
        }

    def _settled(self, chosen: Mapping[str, Any]) -> TrainingConfig:
        """Return the settings with what was chosen by timing."""
        return replace(self.training, batch_tokens=chosen.get("batch_tokens", self.training.batch_tokens))

    def plan(self, chosen: Mapping[str, Any]) -> Plan:
        """Describe data, model, precision and threads, and how the time will be spent."""
        training = self._settled(chosen)
        world_size = self.sitting.distributed.world_size
        if chosen["validation_share"] < 1:
            self.job.limit_validation(chosen["validation_share"])
            self.job.notes.append(
                f"validation: on {100 * chosen['validation_share']:.0f} % of its data, because all of it would take "
                "too much of the time; `regard evaluate` measures on all"
            )
        parameters = self.model.parameter_count()
        an_epoch = len(self.job.task.epoch(0, training.batch_tokens))
        lengths = [
            f"{training.steps:,} updates" if training.steps else "",
            f"{training.epochs:g} passes of about {an_epoch // training.accumulate or 1:,} updates"
            if training.epochs
            else "",
            f"{training.minutes:g} minutes" if training.minutes else "",
        ]
        updates = self._update_seconds(chosen)
        estimate = min(60 * training.minutes or math.inf, updates)
        rate = f"learning rate {training.learning_rate:.2g}"
        if training.optimizer == "muon":
            rate += f" and {training.matrix_rate:.2g} for matrices"
        lines = [
            *self.job.lines(parameters),
            f"compute: {f'{world_size} processes, each ' if world_size > 1 else ''}{chosen['throughput']}",
            f"plan: {' or '.join(filter(None, lengths))}, {training.batch_tokens:,} tokens a batch, {rate}; "
            f"about {duration(estimate)}",
            *([self._time_line(chosen)] if training.minutes and not self.sitting.directory.steps() else []),
            *self.job.notes,
        ]
        return Plan(lines, parameters, estimate)

    def _update_seconds(self, chosen: Mapping[str, Any]) -> float:
        """Estimate the seconds of all updates of the plan, were it not for a time budget."""
        training = replace(self._settled(chosen), minutes=0.0)
        if not (training.steps or training.epochs):
            return math.inf
        an_epoch = len(self.job.task.epoch(0, training.batch_tokens))
        return planned_updates(training, an_epoch, 1.0) * training.accumulate * chosen["seconds"] * OPTIMIZER_COST

    def _time_line(self, chosen: Mapping[str, Any]) -> str:
        """Describe how a time budget will be spent."""
        budget = 60 * self.training.minutes
        spent = time.monotonic() - self.sitting.started
        evaluation = chosen["evaluation_seconds"]
        closing = evaluation + self.job.closing_seconds(evaluation)
        validation = min(EVALUATION_SHARE * budget, EVALUATIONS * evaluation)
        updates = max(0.0, budget - spent - closing - validation)
        return (
            f"time: {duration(spent)} until now (start, reading, tokenizer, measuring), then about "
            f"{duration(updates)} of updates, {duration(validation)} of validation and {duration(closing)} to finish"
        )

    def _timing(self, chosen: Mapping[str, Any]) -> RunTiming:
        """Return what the time of evaluations is: at most a tenth of all, also where nothing but updates is limited."""
        evaluation = chosen["evaluation_seconds"]
        total = self._update_seconds(chosen)
        count = EVALUATIONS if math.isinf(total) else int(EVALUATION_SHARE * total / max(1e-9, evaluation))
        return RunTiming(
            started=self.sitting.started,
            evaluations=max(1, min(EVALUATIONS, count)),
            evaluation_seconds=evaluation,
            closing_seconds=self.job.closing_seconds,
        )

    def train(self, chosen: Mapping[str, Any]) -> Outcome:
        """Train until the plan is done, patience ends or a signal comes."""
        sitting = self.sitting
        weights = FlatWeights(self.model, chosen["precision"], self.training.device)
        evaluator = self.job.evaluator(self.training.device)
        settings = self._settled(chosen)
        tuner = ThreadTuner(
            thread_counts(self.training, sitting.distributed.world_size),
            torch.get_num_threads(),
            may_switch=bool(settings.minutes),
            notify=sitting.say,
            expected_seconds=chosen["seconds"] * settings.accumulate,
        )
        trainer = Trainer(
            self.model,
            weights,
            self.job.task,
            settings,
            directory=sitting.directory,
            evaluator=evaluator,
            keep_best=self.job.keep,
            watchers=sitting.watchers,
            distributed=sitting.distributed,
            rates=self.job.rates if isinstance(self.job, EncoderJob) else None,
            timing=self._timing(chosen),
            tuner=tuner,
        )
        trainer.resume()
        reason = trainer.run()
        counters = trainer.counters
        if reason.startswith("SIG") or not sitting.distributed.is_rank_zero:
            return Outcome(counters.step, reason, counters.seconds)
        if settings.minutes:
            self.job.deadline = time.monotonic() + 60 * settings.minutes - counters.seconds
        average = weights.named(torch.stack(trainer.recent).mean(0)) if len(trainer.recent) > 1 else None
        verdict = self.job.verdict = self._judge(trainer, reason)
        metrics = self.job.finish(evaluator, average, counters.step, counters.best, sitting.say)
        facts = {"tokens": counters.tokens, "threads": tuner.threads}
        return Outcome(counters.step, reason, counters.seconds, metrics, facts, verdict)

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
