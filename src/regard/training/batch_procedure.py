"""Training batch by batch with the `Trainer`, for every task whose batches are counted in tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint.unused_weights import allow_unused_layers
from regard.components import OPTIMIZERS
from regard.config.runs import BatchRun, RunConfig
from regard.config.settings import AUTO
from regard.config.training import TrainingConfig
from regard.errors import ConfigError
from regard.formatting import format_duration
from regard.metric_table import METRICS
from regard.models.base import Model
from regard.registry import TASKS, resolve
from regard.training.auto_config import batch_tokens_for_budget, estimate_updates, resolve_training_config
from regard.training.device import device_of_rank
from regard.training.experiments.base import Experiment
from regard.training.flat_weights import FlatWeights
from regard.training.procedure import ModelSummary, RunContext, RunPlan, TrainingResult
from regard.training.throughput import ThreadTuner, choose_throughput, measure_throughput, thread_counts
from regard.training.trainable import Trainable, lora_learning_rate
from regard.training.trainer import EVALUATION_SHARE, EVALUATIONS, RunTiming, Trainer
from regard.training.update_rules import UpdateRule
from regard.training.verdict import Limit, Verdict, judge

FORWARD_COST = 0.45  # time per token of an evaluation, relative to that of an update
MAX_EVALUATION_SHARE = 0.025  # of a time budget, for one evaluation
OPTIMIZER_COST = 1.15  # time of an update, relative to its forward and backward pass


def build_experiment(config: RunConfig, folder: Path) -> Experiment:
    """Build the experiment of a run: the student's where it distils, else the one of its task and architecture."""
    task = TASKS[config.task]
    target = task.distillation if config.is_distillation else task.experiments[config.architecture]
    experiment: Experiment = resolve(target)(config, folder)
    return experiment


class BatchProcedure:
    """Trains an experiment with the `Trainer`, in the precision and thread count that are fastest on this machine."""

    unit = "step"
    resolved_names = frozenset(
        ("precision", "threads", "throughput", "seconds", "evaluation_seconds", "validation_share", "batch_tokens")
    )

    # set by `prepare`
    metric: str  # that selects the best model
    digests: dict[str, str]  # of the data
    training: TrainingConfig  # with every automatic setting filled in

    def __init__(self, context: RunContext) -> None:
        assert isinstance(context.config, BatchRun)
        self.context = context
        self.config = context.config
        self.experiment = build_experiment(context.config, context.directory.path)

    def prepare(self) -> None:
        """Prepare the experiment, and fill in the training settings that depend on its data."""
        with allow_unused_layers(self.config.allow_unused):
            self.experiment.prepare()
        self.metric = self.experiment.metric
        if self.config.training.stop_at and not METRICS[self.metric].larger_is_better:
            raise ConfigError(
                f"training.stop_at ({self.config.training.stop_at:g}) is a percentage to reach, but models are "
                f"selected by {self.metric}, of which less is better: leave it out, or choose another --metric"
            )
        self.digests = self.experiment.digests
        preferred = dict(self.experiment.preferred_settings)
        if self.config.lora.rank:
            preferred["learning_rate"] = lora_learning_rate(self.experiment.hidden_size)
        training = resolve_training_config(
            self.config.training,
            self.experiment.hidden_size,
            self.experiment.tokens_per_epoch,
            is_pretrained=self.experiment.is_pretrained,
            preferred=preferred,
        )
        self.training = replace(training, device=device_of_rank(training.device))

    def compute_digests(self, names: Collection[str]) -> dict[str, str]:
        """Digest the data and the models of these names as they are now, without preparing anything."""
        with allow_unused_layers(self.config.allow_unused):
            return self.experiment.compute_digests(names)

    @cached_property
    def trainable(self) -> Trainable:
        """The model with its initial weights, and the parameters that are trained."""
        return self.experiment.trainable()

    @property
    def model(self) -> Model:
        """The model that is trained."""
        return self.trainable.model

    def resolve_settings(self) -> dict[str, Any]:
        """Choose precision, threads and batch size by measurement; estimate the time of updates and evaluations."""
        throughput = choose_throughput(
            self.model,
            self.training,
            self.context.distributed.world_size,
            lambda counts: measure_throughput(self.experiment, self.training, counts),
        )
        seconds = throughput.update_seconds
        batch_tokens = self.training.batch_tokens
        if not (self.config.training.batch_tokens or "batch_tokens" in self.experiment.preferred_settings):
            batch_tokens = batch_tokens_for_budget(self.training, seconds)
        token_seconds = FORWARD_COST * throughput.seconds_in("float32") / max(1, self._largest_batch_tokens())
        evaluation_seconds = token_seconds * self.experiment.validation_tokens()  # evaluations are in float32
        max_seconds = MAX_EVALUATION_SHARE * 60 * self.training.minutes
        validation_share = min(1.0, max_seconds / evaluation_seconds) if max_seconds else 1.0
        return {
            "precision": throughput.precision,
            "threads": throughput.threads,
            "throughput": throughput.text(),
            "seconds": seconds * batch_tokens / self.training.batch_tokens,
            "evaluation_seconds": validation_share * evaluation_seconds,
            "validation_share": validation_share,
            "batch_tokens": batch_tokens,
        }

    def _largest_batch_tokens(self) -> int:
        """Tokens of the largest batch of the first epoch."""
        objective = self.experiment.objective
        batches = objective.epoch_batches(0, self.training.batch_tokens)
        return int(max(objective.lengths[indices].sum() for indices in batches))

    def _training_config(self, resolved: Mapping[str, Any]) -> TrainingConfig:
        """Training config with the measured batch size."""
        return replace(self.training, batch_tokens=resolved.get("batch_tokens", self.training.batch_tokens))

    def _epoch_batches(self, training: TrainingConfig) -> int:
        """Number of batches of an epoch."""
        return len(self.experiment.objective.epoch_batches(0, training.batch_tokens))

    def plan(self, resolved: Mapping[str, Any]) -> RunPlan:
        """Describe data, model, precision and threads, and how the time is spent."""
        training = self._training_config(resolved)
        world_size = self.context.distributed.world_size
        if resolved["validation_share"] < 1:
            self.experiment.limit_validation(resolved["validation_share"])
            self.experiment.notes.append(
                f"validation: on {100 * resolved['validation_share']:.0f} % of its data, because all of it would take "
                "too much of the time; `regard evaluate` measures on all"
            )
        num_parameters = self.model.num_parameters()
        estimate = min(60 * training.minutes or math.inf, self._update_seconds(resolved))
        rule: type[UpdateRule] = OPTIMIZERS[training.optimizer]
        rates = rule.describe_rates(training)
        processes = f"{world_size} processes, each " if world_size > 1 else ""
        lines = [
            *self.experiment.describe(num_parameters),
            *filter(None, [self.trainable.description]),
            f"compute: {processes}{resolved['throughput']}",
            f"plan: {self._describe_length(training)}, {training.batch_tokens:,} tokens a batch, {rates}; "
            f"about {format_duration(estimate)}",
        ]
        if self.config.training.metric != AUTO:
            lines.append(f"best model: by {METRICS[self.metric].field_name} on validation data")
        if training.minutes and not self.context.directory.steps():
            lines.append(self._describe_time(resolved))
        return RunPlan([*lines, *self.experiment.notes], num_parameters, estimate)

    def _describe_length(self, training: TrainingConfig) -> str:
        """Limits of the training: updates, epochs, minutes."""
        limits = []
        if training.steps:
            limits.append(f"{training.steps:,} updates")
        if training.epochs:
            epoch_updates = self._epoch_batches(training) // training.accumulation_steps or 1
            limits.append(f"{training.epochs:g} epochs of about {epoch_updates:,} updates")
        if training.minutes:
            limits.append(f"{training.minutes:g} minutes")
        return " or ".join(limits)

    def _update_seconds(self, resolved: Mapping[str, Any]) -> float:
        """Estimate the seconds of all updates, without regard to a time budget."""
        training = replace(self._training_config(resolved), minutes=0.0)
        if not (training.steps or training.epochs):
            return math.inf
        updates = estimate_updates(training, self._epoch_batches(training), 1.0)
        return updates * training.accumulation_steps * resolved["seconds"] * OPTIMIZER_COST

    def _describe_time(self, resolved: Mapping[str, Any]) -> str:
        """Describe how a time budget is spent."""
        budget = 60 * self.training.minutes
        elapsed = time.monotonic() - self.context.start_time
        evaluation = resolved["evaluation_seconds"]
        closing = evaluation + self.experiment.closing_seconds(evaluation)
        validation = min(EVALUATION_SHARE * budget, EVALUATIONS * evaluation)
        updates = max(0.0, budget - elapsed - closing - validation)
        return (
            f"time: {format_duration(elapsed)} until now (start, reading, tokenizer, measuring), then about "
            f"{format_duration(updates)} of updates, {format_duration(validation)} of validation and "
            f"{format_duration(closing)} to finish"
        )

    def _timing(self, resolved: Mapping[str, Any]) -> RunTiming:
        """Limit evaluations to a tenth of the time of updates."""
        evaluation = resolved["evaluation_seconds"]
        updates = self._update_seconds(resolved)
        affordable = EVALUATIONS if math.isinf(updates) else int(EVALUATION_SHARE * updates / max(1e-9, evaluation))
        return RunTiming(
            started=self.context.start_time,
            evaluations=max(1, min(EVALUATIONS, affordable)),
            evaluation_seconds=evaluation,
            closing_seconds=self.experiment.closing_seconds,
        )

    def train(self, resolved: Mapping[str, Any]) -> TrainingResult:
        """Train until the plan is done, patience ends or a signal arrives."""
        context = self.context
        experiment = self.experiment
        weights = FlatWeights(self.model, resolved["precision"], self.training.device)
        evaluator = experiment.evaluator(self.training.device)
        training = self._training_config(resolved)
        tuner = ThreadTuner(
            thread_counts(self.training, context.distributed.world_size),
            torch.get_num_threads(),
            may_switch=bool(training.minutes),
            notify=context.notify,
            expected_seconds=resolved["seconds"] * training.accumulation_steps,
        )
        trainer = Trainer(
            self.model,
            weights,
            experiment.objective,
            training,
            directory=context.directory,
            evaluator=evaluator,
            save_best=experiment.save_best,
            listeners=context.listeners,
            distributed=context.distributed,
            learning_rate_scales=self.trainable.learning_rate_scales,
            timing=self._timing(resolved),
            tuner=tuner,
        )
        trainer.resume()
        reason = trainer.run()
        counters = trainer.counters
        if reason.startswith("SIG") or not context.distributed.is_rank_zero:
            return TrainingResult(counters.step, reason, counters.seconds)
        if training.minutes:
            experiment.deadline = time.monotonic() + 60 * training.minutes - counters.seconds
        average = None
        if len(trainer.recent_weights) > 1:
            average = weights.complete(torch.stack(trainer.recent_weights).mean(0))
        verdict = self._judge(trainer, reason)
        experiment.verdict = verdict
        return TrainingResult(
            counters.step,
            reason,
            seconds=counters.seconds,
            metric=self.metric,
            metrics=experiment.finalize(evaluator, average, counters.step, counters.best_sort_key, context.notify),
            metadata={"tokens": counters.tokens, "threads": tuner.threads},
            verdict=verdict,
            summary=ModelSummary(
                experiment.model_config.summary(), self.model.num_parameters(), data=experiment.data_summary
            ),
        )

    def _judge(self, trainer: Trainer, reason: str) -> Verdict:
        """Judge the run by the evaluations in its log, which includes those before an interruption."""
        config = trainer.config
        counters = trainer.counters
        limit = Limit("--minutes", config.minutes)
        if config.steps and counters.step >= config.steps:
            limit = Limit("--steps", config.steps)
        elif config.epochs and counters.epoch >= config.epochs:
            limit = Limit("--epochs", config.epochs)
        return judge(
            [event for event in self.context.directory.read_log() if event.get("event") == "evaluate"],
            metric=self.metric,
            updates=counters.step,
            epochs=trainer.epochs(),
            baselines=self.experiment.trivial_baselines(),
            limit=limit if reason == "plan done" else None,
            learning_rate=config.learning_rate,
            is_pretrained=self.experiment.is_pretrained,
        )
