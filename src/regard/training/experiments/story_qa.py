"""Train memory networks (Sukhbaatar et al., 2015) in a run: data, plan, a checkpoint per epoch, evaluation, saving."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.checkpoint.native import save_memory_network
from regard.config.story_run import StoryQARun
from regard.data.babi import StoryQuestions
from regard.errors import UsageError
from regard.formatting import format_duration
from regard.metric_table import METRICS
from regard.models.base import move_to_device
from regard.models.memory_network import MemoryNetwork
from regard.tasks.predictions import PredictedStoryAnswers
from regard.tasks.scoring import Scoring, require_metric
from regard.tasks.story_memory import StoryExamples, encode_stories, predict_answers
from regard.tasks.story_qa import StoryPrediction, StoryScores, StoryVocabulary, score_answers
from regard.training.card import model_card
from regard.training.device import device_of_rank
from regard.training.experiments.base import prefix_metrics
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.story_splits import (
    NUM_SAMPLES,
    answers_by_task,
    count_tasks,
    read_story_splits,
    report_scores,
)
from regard.training.listeners import notify
from regard.training.memory_trainer import MemoryNetworkTrainer, build_trainer
from regard.training.procedure import ModelSummary, RunContext, RunPlan, TrainingResult
from regard.training.signals import catch_stop_signals
from regard.training.throughput import Setup, Throughput, choose_throughput, fastest_setup
from regard.training.trivial_baselines import majority_answer
from regard.training.verdict import Limit, Verdict, judge

PROBE_SECONDS = 2.0  # of timing before training starts


class MemoryNetworkProcedure:
    """Train memory networks to answer questions about stories; restarts are trained in parallel."""

    unit = "epoch"
    resolved_names = frozenset(("threads", "throughput", "seconds"))
    verdict: Verdict | None = None  # once all epochs are done

    # set by `prepare`
    splits: DataSplits[StoryQuestions]
    trainer: MemoryNetworkTrainer
    vocabulary: StoryVocabulary
    valid_examples: StoryExamples
    test_examples: StoryExamples | None  # where there is a test file
    digests: dict[str, str]  # of the data

    def __init__(self, context: RunContext) -> None:
        assert isinstance(context.config, StoryQARun)
        self.context = context
        self.config = context.config
        self.notes: list[str] = []  # for the user, before training starts

    def prepare(self) -> None:
        """Read the stories, and build the trainer with its vocabulary."""
        config = self.config
        if self.context.distributed.world_size > 1:
            raise UsageError("memory networks are trained by one process, all restarts in parallel: start one process")
        self.splits = read_story_splits(config)
        self.notes += self.splits.notes
        self.digests = self.splits.digests
        self.trainer, self.vocabulary = build_trainer(self.splits.all_train, config.memory_network, config.training)
        self.valid_examples = self._encode(self.splits.valid)
        self.test_examples = None if self.splits.test is None else self._encode(self.splits.test)

    def compute_digests(self, names: Collection[str]) -> dict[str, str]:
        """Digest the stories of these splits as they are now, without preparing anything."""
        return read_story_splits(self.config).digests if names else {}

    @property
    def scoring(self) -> Scoring:
        """Metrics of the task, and the one that the run requests."""
        return Scoring.for_run(self.config.task, self.config.training.metric)

    @property
    def metric(self) -> str:
        """Name of the metric that chooses the restart."""
        return self.scoring.main(PredictedStoryAnswers.kind)

    def _encode(self, stories: StoryQuestions) -> StoryExamples:
        return encode_stories(stories, self.vocabulary, self.trainer.model.config, strict=False)

    # ---- interface of a run

    def resolve_settings(self) -> dict[str, Any]:
        """Choose the fastest number of threads by timing updates; the weights stay as they are."""
        trainer = self.trainer
        indices = trainer.train_indices[: trainer.config.batch_size]

        def time_update(setup: Setup) -> float:
            start = time.perf_counter()
            loss, _ = trainer.model.loss(trainer.train.batch(indices), trainer.train.answers[indices])
            loss.sum().backward()
            return time.perf_counter() - start

        def measure(thread_counts: Sequence[int]) -> Throughput:
            setups = [Setup("float32", num_threads) for num_threads in thread_counts]
            return fastest_setup(setups, time_update, PROBE_SECONDS)

        throughput = choose_throughput(trainer.model, replace(self.config.training, precision="float32"), 1, measure)
        trainer.model.zero_grad(set_to_none=True)
        return {
            "threads": throughput.threads,
            "throughput": throughput.text(),
            "seconds": throughput.update_seconds * len(trainer.train_indices) / len(indices),
        }

    def plan(self, resolved: Mapping[str, Any]) -> RunPlan:
        """Describe data, model and length of training."""
        trainer = self.trainer
        model = trainer.model
        config = trainer.config
        num_parameters = model.num_parameters() // model.num_restarts
        max_epochs = config.epochs
        linear_start = ""
        if config.linear_start:
            max_epochs += config.linear_start_epochs
            linear_start = f"at most {config.linear_start_epochs} without softmax, then "
        restarts = f"best of {model.num_restarts} restarts in parallel" if model.num_restarts > 1 else "one restart"
        seconds = max_epochs * resolved["seconds"]
        lines = [
            f"data: {count_tasks(self.splits.all_train)}, {len(trainer.train_indices):,} training questions and "
            f"{len(trainer.held_out_indices):,} held out; "
            f"validation {count_tasks(self.splits.valid)}, {len(self.splits.valid):,} questions",
            f"words: vocabulary of {len(self.vocabulary.words):,}, {len(self.vocabulary.answers):,} of them answers; "
            f"at most {model.config.max_sentence_words} in a sentence or question",
            f"model: {num_parameters:,} parameters, {model.config.summary()}",
            f"compute: {resolved['throughput']}",
            f"plan: {linear_start}{config.epochs} epochs, {config.batch_size} questions a batch, learning rate "
            f"{config.learning_rate:.2g}, halved every {config.lr_halving_epochs} epochs; {restarts}; "
            f"about {format_duration(seconds)}",
            *self.notes,
        ]
        return RunPlan(lines, num_parameters, seconds=seconds)

    def train(self, resolved: Mapping[str, Any]) -> TrainingResult:
        """Train until all epochs are done or a signal arrives; save a checkpoint after every epoch."""
        trainer = self.trainer
        move_to_device(trainer.model, device_of_rank(self.config.training.device))
        self._resume()
        metrics: dict[str, Any] = {}
        with catch_stop_signals() as stop_request:
            while not trainer.is_done and not stop_request:
                self._train_epoch()
                if trainer.progress.is_linear_start_over and (trainer.is_done or self._halves_learning_rate()):
                    metrics = self._evaluate()
                    self._log("evaluate", _scalar_metrics(metrics))
                self._save_checkpoint()
        progress = trainer.progress
        if not trainer.is_done:
            return TrainingResult(progress.epoch, stop_request.name, seconds=progress.seconds)
        if not metrics:
            metrics = self._evaluate()
        for split in ("valid", "test"):
            if split in metrics:
                report_scores(StoryScores.from_dict(metrics[split]), split, self.context.notify)
        return TrainingResult(
            progress.epoch,
            "plan done",
            seconds=progress.seconds,
            metric=self.metric,
            metrics=metrics,
            metadata={"questions": len(trainer.train_indices) * progress.epoch},
            verdict=self.verdict,
            summary=ModelSummary(
                trainer.model.config.summary(),
                trainer.model.num_parameters() // trainer.model.num_restarts,
                data=f"{len(trainer.train_indices):,} questions of {count_tasks(self.splits.all_train)}",
            ),
        )

    # ---- the loop

    def _resume(self) -> None:
        directory = self.context.directory
        checkpoint = directory.latest_checkpoint()
        directory.truncate_log(checkpoint.step if checkpoint else 0)
        if checkpoint:
            self.trainer.resume(checkpoint.weights, checkpoint.counters)
            notify(self.context.listeners, "resume", step=checkpoint.step, unit=self.unit)

    def _train_epoch(self) -> None:
        """Train one epoch; log and report the restart with the lowest loss."""
        trainer = self.trainer
        seconds_before = trainer.progress.seconds
        epoch_log = trainer.train_epoch()
        losses = epoch_log["losses"]
        errors = epoch_log["errors"]
        best = min(trainer.finite_restarts, key=lambda restart: losses[restart])
        metrics = {"loss": losses[best], "error": errors[best], "learning_rate": epoch_log["learning_rate"]}
        finite_losses = [loss if math.isfinite(loss) else None for loss in losses]  # JSON has no infinity
        epoch_seconds = trainer.progress.seconds - seconds_before
        throughput = round(len(trainer.train_indices) / max(1e-9, epoch_seconds), 1)
        restarts = {"linear": epoch_log["linear"], "losses": finite_losses, "errors": errors}
        self._log("step", {**metrics, **restarts, "questions_per_second": throughput})
        epoch = trainer.progress.epoch
        remaining = trainer.remaining_epochs
        notify(
            self.context.listeners,
            "step",
            step=epoch,
            unit=self.unit,
            of=epoch + remaining,
            fraction=epoch / (epoch + remaining),
            epoch=epoch,
            **metrics,
            questions_per_second=throughput,
            seconds_left=trainer.progress.seconds / epoch * remaining,
        )

    def _halves_learning_rate(self) -> bool:
        """Whether the learning rate changes after this epoch: the model is evaluated then."""
        softmax_epochs = self.trainer.progress.softmax
        return softmax_epochs > 0 and softmax_epochs % self.trainer.config.lr_halving_epochs == 0

    def _log(self, event: str, data: Mapping[str, Any]) -> None:
        self.context.directory.append_log({"step": self.trainer.progress.epoch, "event": event, **data})

    def _save_checkpoint(self) -> None:
        step = self.trainer.progress.epoch
        weights, progress = self.trainer.state()
        self.context.directory.save_checkpoint(step, weights, {}, progress)
        notify(self.context.listeners, "save", step=step)

    # ---- evaluation and saving

    def _evaluate(self) -> dict[str, Any]:
        """Evaluate the best restart, and save it as the run's model."""
        trainer = self.trainer
        restart, train_errors = self._choose_restart()
        model = trainer.model.restart(restart)
        metrics, scores, answers = self._score(model, self.valid_examples, "valid")
        metrics["train_error"] = float(train_errors[restart])
        metrics["restarts"] = {"best": restart, "train_errors": train_errors.tolist()}
        if trainer.is_done:
            self.verdict = self._judge(metrics)
            if self.test_examples is not None:
                metrics |= self._score(model, self.test_examples, "test")[0]
        self._save_model(model, metrics, scores)
        samples = [
            (question.text, question.answer, answer.text)
            for question, answer in zip(self.splits.valid.questions[:NUM_SAMPLES], answers, strict=False)
        ]
        notify(
            self.context.listeners,
            "evaluate",
            metrics=_scalar_metrics(metrics),
            step=trainer.progress.epoch,
            unit=self.unit,
            metric=f"valid_{self.metric}",
            samples=samples,
            best=True,  # a later one replaces the model
        )
        return metrics

    def _score(
        self, model: MemoryNetwork, examples: StoryExamples, split: str
    ) -> tuple[dict[str, Any], StoryScores, list[StoryPrediction]]:
        """Metrics of a model on a split, its scores by task, and its answers."""
        answers = predict_answers(model, self.vocabulary, examples)
        references = examples.references(self.vocabulary)
        scores = score_answers(references, answers)
        predictions = PredictedStoryAnswers.from_answers(references, [answer.text for answer in answers])
        metrics = prefix_metrics(split, self.scoring.compute(predictions)) | scores.metrics_of(split)
        return metrics, scores, answers

    def _choose_restart(self) -> tuple[int, NDArray[np.float64]]:
        """Restart that is best on the training questions, by the requested metric or the error; the errors of all."""
        trainer = self.trainer
        lowest_error, errors = trainer.best_restart()
        if not self.scoring.requested:
            return lowest_error, errors
        examples = self._encode(self.splits.all_train.select(trainer.train_indices))
        ranks = {}
        for restart in trainer.finite_restarts:
            answers = predict_answers(trainer.model.restart(restart), self.vocabulary, examples)
            predictions = PredictedStoryAnswers.from_answers(
                examples.references(self.vocabulary), [answer.text for answer in answers]
            )
            ranks[restart] = METRICS[self.metric].rank(require_metric(self.metric, predictions))
        best = max(ranks, key=lambda restart: (ranks[restart], -errors[restart], restart == lowest_error))
        return best, errors

    def _judge(self, metrics: Mapping[str, Any]) -> Verdict:
        trainer = self.trainer
        epoch = trainer.progress.epoch
        events = self.context.directory.read_log()
        evaluations = [event for event in events if event.get("event") == "evaluate" and event["step"] < epoch]
        evaluations.append({"step": epoch, **_scalar_metrics(metrics)})
        return judge(
            evaluations,
            metric="valid_error",
            updates=epoch * math.ceil(len(trainer.train_indices) / trainer.config.batch_size),
            baselines=[majority_answer(answers_by_task(self.splits.train), answers_by_task(self.splits.valid))],
            limit=Limit("--epochs", trainer.config.epochs),
            learning_rate=trainer.config.learning_rate,
        )

    def _save_model(self, model: MemoryNetwork, metrics: dict[str, Any], scores: StoryScores) -> None:
        config = self.config
        metadata = {
            "step": self.trainer.progress.epoch,
            "unit": self.unit,
            "seed": config.training.seed,
            "data_digests": self.digests,
            "tasks": self.splits.all_train.tasks,
            "metric": self.metric,
            "metrics": metrics,
        }
        if self.verdict is not None:
            metadata["verdict"] = self.verdict.to_dict()
        table = [f"| {' | '.join(row)} |" for row in scores.rows()]
        details = ["| task | questions | error | attention on support |", "| --- | ---: | ---: | ---: |", *table, ""]
        save_memory_network(
            self.context.directory.path,
            model.config,
            model.state_dict(),
            vocabulary=self.vocabulary.to_dict(),
            metadata=metadata,
            card=model_card(config, model.config, model.num_parameters(), metadata, details),
        )


def _scalar_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Select the metrics that are single numbers."""
    return {name: value for name, value in metrics.items() if isinstance(value, float)}
