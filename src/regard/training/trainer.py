"""The training loop: accumulate gradients, update, evaluate and save, until the plan is done or a signal arrives.

A first SIGINT or SIGTERM ends the loop after its present update, a second one ends the process at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from regard.attention.dropout import Noise
from regard.checkpoint.run_dir import RunDirectory
from regard.config.training import TrainingConfig
from regard.errors import TrainingError
from regard.models.base import Model
from regard.models.layers.lora import lora_noise
from regard.tasks.base import Objective
from regard.training.distributed import Distributed, receive_checkpoint
from regard.training.evaluation import Evaluation, Evaluator
from regard.training.flat_weights import FlatWeights
from regard.training.gradient_log import EVENT, measure_gradients
from regard.training.listeners import Listener, notify
from regard.training.optimizer import Optimizer
from regard.training.schedule import learning_rate
from regard.training.signals import StopRequest, catch_stop_signals
from regard.training.snapshots import TrainingSnapshot, delete_snapshots_after, save_snapshot
from regard.training.throughput import ThreadTuner

EVALUATIONS = 20  # over a whole training, without evaluate_every
SAVE_SECONDS = 60.0  # between checkpoints, without save_every
REPORT_SECONDS = 0.5  # between step events
LOG_EVERY = 10  # updates between lines of the log
EVALUATION_SHARE = 0.1  # largest share of the time that evaluations may take
CLOSING_MARGIN = 1.2  # factor on the estimated time of the end of a run
EXIT_SECONDS = 0.5  # until the process has ended
MIN_PROGRESS = 0.002  # in this loop, before the remaining time is estimated


@dataclass
class TrainingCounters:
    """Progress of a run, `counters.json` of a checkpoint: what it holds besides weights and optimizer state."""

    step: int = 0
    epoch: int = 0
    batch_index: int = 0  # of the next batch in this epoch
    seconds: float = 0.0  # since the run began, without interruptions
    tokens: int = 0
    evaluations: int = 0
    evaluated_step: int = -1  # of the last evaluation
    evaluation_seconds: float = 0.0
    last_evaluation_seconds: float = 0.0  # seconds of the last one
    progress: float = 0.0  # share of the plan done when this was saved
    best_sort_key: list[float] = field(default_factory=list)  # of the best evaluation so far
    evaluations_since_best: int = 0


@dataclass(frozen=True)
class StepDecision:
    """What to do after an update, the same on all ranks."""

    progress: float
    evaluate: bool
    save: bool
    patience_ends: bool
    stop: bool


@dataclass(frozen=True)
class RunTiming:
    """Start of a run, and estimates for its evaluations and its end."""

    started: float  # time.monotonic() at the start of the command
    evaluations: int = EVALUATIONS  # over a whole training, without evaluate_every
    evaluation_seconds: float = 0.0  # estimated; replaced by the time of the last evaluation
    closing_seconds: Callable[[float], float] = lambda evaluation: 0.0  # after training, from those of one evaluation


class Trainer:
    """Trains a model on an objective until its plan is done or a signal arrives."""

    def __init__(
        self,
        model: Model,
        weights: FlatWeights,
        objective: Objective,
        config: TrainingConfig,
        *,
        directory: RunDirectory,
        evaluator: Evaluator,
        save_best: Callable[[Evaluator, Evaluation, int], None],
        listeners: Sequence[Listener] = (),
        distributed: Distributed | None = None,
        learning_rate_scales: Mapping[str, float] | None = None,
        timing: RunTiming | None = None,
        tuner: ThreadTuner | None = None,
    ) -> None:
        self.model = model
        self.weights = weights
        self.objective = objective
        self.config = config
        self.directory = directory
        self.evaluator = evaluator
        self.save_best = save_best
        self.listeners = listeners
        self.distributed = distributed or Distributed()
        self.optimizer = Optimizer(weights, config, self.distributed, learning_rate_scales)
        self.timing = timing or RunTiming(started=time.monotonic())
        self.tuner = tuner
        self.counters = TrainingCounters()
        self.recent_weights: list[Tensor] = []  # of the last evaluations, to be averaged
        self.stop_request = StopRequest()
        self._cached_epoch = -1
        self._cached_batches: list[np.ndarray] = []  # of the cached epoch
        self._counted_until = self.timing.started  # `counters.seconds` includes the time up to here
        now = time.monotonic()
        self._last_save = now
        self._last_report = now
        self._loop_start = now
        self._loop_start_progress = 0.0
        self._update_seconds = 0.0  # of the last update
        self._save_seconds = 0.0  # of the last checkpoint
        self._saved_step = 0  # of the last checkpoint

    # ---- state

    def resume(self) -> bool:
        """Load the newest valid checkpoint; return whether there is one."""
        checkpoint = receive_checkpoint(self.directory, self.distributed)
        if checkpoint is None:
            self._discard_after(0)
            return False
        self.weights.load(self.weights.master, checkpoint.weights, f"checkpoint of step {checkpoint.step}")
        self.weights.copy_to_model()
        optimizer_state = dict(checkpoint.optimizer)
        recent_names = [name for name in sorted(optimizer_state) if name.startswith("recent.")]
        self.recent_weights = [optimizer_state.pop(name) for name in recent_names]
        self.optimizer.load(optimizer_state)
        self.counters = TrainingCounters(**checkpoint.counters)
        self._saved_step = checkpoint.step
        self._discard_after(checkpoint.step)
        notify(self.listeners, "resume", step=checkpoint.step)
        return True

    def _discard_after(self, step: int) -> None:
        """Remove log lines and snapshots of later steps, which are trained again."""
        if self.distributed.is_rank_zero:
            self.directory.truncate_log(step)
            delete_snapshots_after(self.directory.path, step)

    def save(self) -> None:
        """Write a checkpoint; rank 0 does it, since all ranks have the same state."""
        self._count_time()
        self._saved_step = self.counters.step
        if not self.distributed.is_rank_zero:
            return
        recent_weights = {f"recent.{index:03}": flat for index, flat in enumerate(self.recent_weights)}
        optimizer_state = self.optimizer.state() | recent_weights
        weights = self.weights.split(self.weights.master)
        start = time.monotonic()
        self.directory.save_checkpoint(self.counters.step, weights, optimizer_state, vars(self.counters).copy())
        self._last_save = time.monotonic()
        self._save_seconds = self._last_save - start
        notify(self.listeners, "save", step=self.counters.step)

    def _count_time(self) -> None:
        now = time.monotonic()
        self.counters.seconds += now - self._counted_until
        self._counted_until = now
        self.counters.progress = self.progress()

    def _elapsed_seconds(self) -> float:
        """Seconds of the run so far, without interruptions, including everything before the first update."""
        return self.counters.seconds + time.monotonic() - self._counted_until

    # ---- the plan

    def progress(self) -> float:
        """Share of the plan that is done, 0–1: the furthest of its limits counts."""
        config = self.config
        counters = self.counters
        shares = [0.0]
        if config.steps:
            shares.append(counters.step / config.steps)
        if config.epochs:
            shares.append(self.epochs() / config.epochs)
        if config.minutes:
            shares.append(self._time_progress())
        return min(1.0, max(shares))

    def epochs(self) -> float:
        """Passes over the training data so far."""
        return self.counters.epoch + self.counters.batch_index / max(1, len(self._batches()))

    def _time_progress(self) -> float:
        """Share of the plan that is done by the clock, from the progress at the start of this loop to 1."""
        remaining = 60 * self.config.minutes - self._elapsed_seconds() - self._closing_seconds()
        in_loop = time.monotonic() - self._loop_start
        if remaining <= 0:
            return 1.0
        return self._loop_start_progress + (1 - self._loop_start_progress) * in_loop / (in_loop + remaining)

    def _closing_seconds(self) -> float:
        """Estimate the time after the next update: last evaluation, final scores, checkpoint, exit."""
        evaluation = self._evaluation_seconds()
        closing = evaluation + self.timing.closing_seconds(evaluation)
        return CLOSING_MARGIN * closing + self._update_seconds + 2 * self._save_seconds + EXIT_SECONDS

    def _evaluation_seconds(self) -> float:
        return self.counters.last_evaluation_seconds or self.timing.evaluation_seconds

    def _batches(self) -> list[np.ndarray]:
        """Example indices of each batch of the present epoch."""
        if self._cached_epoch != self.counters.epoch:
            self._cached_batches = self.objective.epoch_batches(self.counters.epoch, self.config.batch_tokens)
            self._cached_epoch = self.counters.epoch
        return self._cached_batches

    def _next_batches(self, progress: float) -> list[np.ndarray]:
        """Example indices of the batches of the next update."""
        ramp = self.config.accumulation_ramp
        share = min(1.0, progress / ramp) if ramp else 1.0
        num_batches = max(1, math.ceil(share * self.config.accumulation_steps))
        start = self.counters.batch_index
        return self._batches()[start : start + num_batches]

    def _should_evaluate(self, progress: float) -> bool:
        config = self.config
        counters = self.counters
        if counters.step in (0, counters.evaluated_step):
            return False
        if config.evaluate_every:
            return counters.step % config.evaluate_every == 0
        if config.minutes:
            elapsed = self._elapsed_seconds()
            evaluation = self._evaluation_seconds()
            fits = elapsed + evaluation + self._closing_seconds() < 60 * config.minutes
            if not fits or counters.evaluation_seconds + evaluation > EVALUATION_SHARE * elapsed:
                return False
        return math.floor(progress * self.timing.evaluations) > counters.evaluations

    def _should_save(self) -> bool:
        if self._saved_step == self.counters.step:
            return False
        if self.config.save_every:
            return self.counters.step % self.config.save_every == 0
        return time.monotonic() - self._last_save > SAVE_SECONDS

    # ---- the loop

    def run(self) -> str:
        """Train until the plan is done, patience ends or a signal arrives; return the reason for the end."""
        with catch_stop_signals() as self.stop_request:
            now = time.monotonic()
            self._last_save = now
            self._loop_start = now
            self._loop_start_progress = self.counters.progress
            # a resumed run begins where it was interrupted: an evaluation that was due is made before the next update
            decision = self._decide()
            while decision.progress < 1 and not (decision.stop or decision.patience_ends):
                if decision.evaluate:
                    self.evaluate(decision.progress)
                elif decision.save:
                    self.save()
                else:
                    self.step(decision.progress)
                decision = self._decide()
            if decision.patience_ends:
                return self._finish(self._end_reason())
            if decision.stop:
                self.save()
                return self.stop_request.name or "SIGTERM"
            return self._finish("plan done")

    def _decide(self) -> StepDecision:
        """Agree on what comes next: rank 0 decides, but a stop request of any rank counts."""
        values = [0.0] * 4
        if self.distributed.is_rank_zero:
            progress = self.progress()
            should_evaluate = self._should_evaluate(progress)
            should_save = self._should_save()
            values = [progress, should_evaluate, should_save, self._is_target_reached() or self._is_patience_over()]
        values = self.distributed.all_reduce_values([*values, bool(self.stop_request)])
        progress, evaluate, save, patience_ends, stop = values
        return StepDecision(
            progress=progress, evaluate=evaluate > 0, save=save > 0, patience_ends=patience_ends > 0, stop=stop > 0
        )

    def _is_patience_over(self) -> bool:
        patience = self.config.patience
        return patience > 0 and self.counters.evaluations_since_best >= patience

    def _is_target_reached(self) -> bool:
        """Whether the best evaluation has reached `stop_at`."""
        best = self.counters.best_sort_key
        return bool(self.config.stop_at and best and best[0] >= self.config.stop_at)

    def _end_reason(self) -> str:
        return "target reached" if self._is_target_reached() else "patience"

    def _finish(self, reason: str) -> str:
        if reason == "plan done" and self.counters.evaluated_step < self.counters.step:
            self.evaluate(1.0)
        self.save()
        return reason

    def step(self, progress: float) -> None:
        """Make one update."""
        config = self.config
        counters = self.counters
        distributed = self.distributed
        start = time.monotonic()
        batches = self._next_batches(progress)
        totals = np.zeros(2)  # loss, predictions
        for index, examples in enumerate(batches):
            shard = distributed.shard(examples)
            if not len(shard):
                continue
            batch = self.objective.batch(shard, counters.epoch)
            noise = Noise(config.seed, counters.step, index * distributed.world_size + distributed.rank)
            with lora_noise(noise):
                training_loss, loss = self.objective.loss(self.model, batch, config.label_smoothing, noise)
            training_loss.backward()
            totals += float(loss), batch.num_predictions
        loss_sum, num_predictions = distributed.all_reduce_values(totals.tolist())
        norm = self.optimizer.reduce_gradient(1 / num_predictions)
        if not (math.isfinite(loss_sum) and math.isfinite(norm)):
            raise self._not_finite_error(batches, loss_sum, norm)
        rate = learning_rate(config, config.learning_rate, counters.step, progress)
        self.optimizer.update(rate)
        counters.step += 1
        counters.tokens += int(num_predictions)
        counters.batch_index += len(batches)
        if counters.batch_index >= len(self._batches()):
            counters.epoch += 1
            counters.batch_index = 0
        self._update_seconds = time.monotonic() - start
        if self.tuner is not None:
            self.tuner.record(num_predictions, self._update_seconds)
        speed = num_predictions / max(1e-9, self._update_seconds)
        self._report(progress, loss_sum / num_predictions, speed, rate)

    def _not_finite_error(self, batches: Sequence[np.ndarray], loss: float, norm: float) -> TrainingError:
        """Log the examples of an update with a non-finite loss or gradient, and describe it."""
        examples = np.concatenate(batches).tolist()
        line = {"step": self.counters.step, "event": "not finite", "loss": str(loss), "examples": examples}
        if self.distributed.is_rank_zero:
            self.directory.append_log(line)
        return TrainingError(
            f"step {self.counters.step}: the loss ({loss:g}) or the gradient norm ({norm:g}) is not finite; "
            f"the weights were not changed and the last checkpoint is kept. {self.directory.path / 'log.jsonl'} lists "
            "the examples. Lower --learning-rate, or try --precision float32"
        )

    def evaluate(self, progress: float) -> None:
        """Evaluate the averaged weights on rank 0, and save them as the run's model if they are a new best."""
        counters = self.counters
        if self.config.average_checkpoints:
            self.recent_weights.append(self.optimizer.averaged_weights.clone())
            self.recent_weights = self.recent_weights[-self.config.average_checkpoints :]
        counters.evaluated_step = counters.step
        if not self.distributed.is_rank_zero:
            return
        start = time.monotonic()
        self.evaluator.load(self.weights.complete(self.optimizer.averaged_weights))
        evaluation = self.evaluator.evaluate()
        # an evaluation that took long may have passed the time of the next ones: these are left out
        counters.evaluations = max(counters.evaluations + 1, math.floor(progress * self.timing.evaluations))
        is_best = not counters.best_sort_key or list(evaluation.sort_key) > counters.best_sort_key
        if is_best:
            counters.best_sort_key = list(evaluation.sort_key)
            counters.evaluations_since_best = 0
            self.save_best(self.evaluator, evaluation, counters.step)
        else:
            counters.evaluations_since_best += 1
        if self.config.log_gradients:
            self._log_gradients()
        counters.last_evaluation_seconds = time.monotonic() - start
        counters.evaluation_seconds += counters.last_evaluation_seconds
        self.directory.append_log({"step": counters.step, "event": "evaluate", **evaluation.metrics, "best": is_best})
        if evaluation.attention is not None:
            snapshot = TrainingSnapshot(
                counters.step, counters.epoch, metrics=evaluation.metrics, attention=evaluation.attention
            )
            save_snapshot(self.directory.path, snapshot, self.directory.disk)
        data = {
            "metrics": evaluation.metrics,
            "metric": evaluation.metric,
            "samples": evaluation.samples,
            "best": is_best,
        }
        notify(self.listeners, "evaluate", step=counters.step, **data)

    def _log_gradients(self) -> None:
        """Log the gradient norms of the first batch of the training data."""
        counters = self.counters
        first_batch = self.objective.epoch_batches(0, self.config.batch_tokens)[0]
        norms = measure_gradients(self.model, self.objective, first_batch, counters.epoch)
        self.directory.append_log({"step": counters.step, "event": EVENT, **norms.to_dict()})

    def _report(self, progress: float, loss: float, speed: float, rate: float) -> None:
        """Log every tenth update; send a step event at most every half second."""
        counters = self.counters
        now = time.monotonic()
        if not self.distributed.is_rank_zero:
            return
        throughput = {f"{self.objective.unit}_per_second": round(speed, 1)}
        if counters.step % LOG_EVERY == 0:
            measurements = {"loss": loss, "learning_rate": rate, "epoch": counters.epoch, **throughput}
            self.directory.append_log({"step": counters.step, "event": "step", **measurements})
        if now - self._last_report < REPORT_SECONDS and counters.step > 1:
            return
        self._last_report = now
        done = progress - self._loop_start_progress
        seconds_left = (now - self._loop_start) * (1 - progress) / done if done > MIN_PROGRESS else None
        notify(
            self.listeners,
            "step",
            step=counters.step,
            of=self.config.steps or None,
            loss=loss,
            seconds_left=seconds_left,
            learning_rate=rate,
            fraction=progress,
            epoch=counters.epoch,
            **throughput,
        )
