"""The training loop: one straight page of accumulate, check, step, evaluate and save.

Requests to stop: a signal ends a loop after its present step, a second one ends the process at once.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
from torch import Tensor

from regard.attention.dropout import Noise
from regard.checkpoint.run_dir import RunDirectory
from regard.config.training import TrainingConfig
from regard.errors import TrainingError
from regard.models.base import Model
from regard.tasks.base import Objective
from regard.training.distributed import Distributed
from regard.training.evaluation import Evaluation, Evaluator
from regard.training.flat_weights import FlatWeights
from regard.training.listeners import Listener, notify
from regard.training.optimizer import Optimizer
from regard.training.schedule import learning_rate
from regard.training.snapshots import TrainingSnapshot, delete_snapshots_after, save_snapshot
from regard.training.throughput import ThreadTuner

EVALUATIONS = 20  # over a whole plan, where the user sets no number
SAVE_SECONDS = 60.0  # between saves, where the user sets no number
REPORT_SECONDS = 0.5  # between reports to watchers
LOG_EVERY = 10  # updates between lines of the log
EVALUATION_SHARE = 0.1  # of the time that evaluations may take
CAUTION = 1.2  # times what the end of a run is expected to take
EXIT_SECONDS = 0.5  # until the process has ended


@dataclass
class TrainingState:
    """Where a run stands: all that is saved beside weights and optimiser."""

    step: int = 0
    epoch: int = 0
    batch_index: int = 0  # batches of this epoch that are done
    seconds: float = 0.0  # spent training, over all sittings
    tokens: int = 0
    evaluations: int = 0
    evaluation_seconds: float = 0.0
    last_evaluation: float = 0.0  # seconds that the last one took
    progress: float = 0.0  # of the plan, when this was saved
    best_sort_key: list[float] = field(default_factory=list)  # rank of the best evaluation so far
    evaluations_since_best: int = 0


@dataclass(frozen=True)
class StepDecision:
    """What comes after an update."""

    progress: float
    evaluate: bool
    save: bool
    patience_ends: bool
    stop: bool


@dataclass(frozen=True)
class RunTiming:
    """When a run began, and what its evaluations and its end will take of its time."""

    started: float  # by time.monotonic(): when the command began
    evaluations: int = EVALUATIONS  # over a whole plan, where neither time nor the user decides
    evaluation_seconds: float = 0.0  # an estimate, until the first one is made
    closing_seconds: Callable[[float], float] = lambda evaluation: 0.0  # after training, given those of one evaluation


class Trainer:
    """Trains a model on a task until its plan is done or someone asks it to stop."""

    def __init__(
        self,
        model: Model,
        weights: FlatWeights,
        task: Objective,
        config: TrainingConfig,
        *,
        directory: RunDirectory,
        evaluator: Evaluator,
        keep_best: Callable[[Evaluator, Evaluation, int], None],
        listeners: Sequence[Listener] = (),
        distributed: Distributed | None = None,
        rates: Mapping[str, float] | None = None,
        timing: RunTiming | None = None,
        tuner: ThreadTuner | None = None,
    ) -> None:
        self.distributed = distributed or Distributed()
        self.model, self.weights, self.task, self.config = model, weights, task, config
        self.directory, self.evaluator, self.save_best, self.listeners = directory, evaluator, keep_best, listeners
        self.optimizer = Optimizer(weights, config, self.distributed, rates)
        self.counters = TrainingState()
        self.recent_weights: list[Tensor] = []  # weights of the last evaluations, to be averaged
        self.stop_request = StopRequest()
        self.timing = timing or RunTiming(started=time.monotonic())
        self.tuner = tuner
        self._epoch_of_batches, self._epoch_batches = -1, list[np.ndarray]()
        self._began = self.timing.started  # time up to here is counted
        self._saved = self._reported = self._loop_began = time.monotonic()
        self._loop_progress = 0.0  # of the plan, when the loop began
        self._update_seconds = self._save_seconds = 0.0  # of the last ones

    # ---- state

    def resume(self) -> bool:
        """Go on from the newest good checkpoint; false when there is none."""
        found = (
            self.directory.latest_checkpoint()
            if self.distributed.is_rank_zero or not self.distributed.is_multi_node
            else None
        )
        if self.distributed.is_multi_node:
            found = self.distributed.broadcast_object(found)
        if found is None:
            if self.distributed.is_rank_zero:
                self.directory.truncate_log(0)
                delete_snapshots_after(self.directory.path, 0)
            return False
        self.weights.load(self.weights.master, found.weights, f"checkpoint of step {found.step}")
        self.weights.copy_to_model()
        state = dict(found.optimizer)
        self.recent_weights = [state.pop(name) for name in sorted(state) if name.startswith("recent.")]
        self.optimizer.load(state)
        self.counters = TrainingState(**found.counters)
        if self.distributed.is_rank_zero:
            self.directory.truncate_log(found.step)
            delete_snapshots_after(self.directory.path, found.step)
        notify(self.listeners, "resume", step=found.step)
        return True

    def save(self) -> None:
        """Write a checkpoint of this moment; one process does, all have the same."""
        self._count_time()
        if not self.distributed.is_rank_zero:
            return
        state = self.optimizer.state() | {f"recent.{n:03}": flat for n, flat in enumerate(self.recent_weights)}
        named = self.weights.split(self.weights.master)
        began = time.monotonic()
        self.directory.save_checkpoint(self.counters.step, named, state, vars(self.counters).copy())
        self._saved = time.monotonic()
        self._save_seconds = self._saved - began
        notify(self.listeners, "save", step=self.counters.step)

    def _count_time(self) -> None:
        now = time.monotonic()
        self.counters.seconds += now - self._began
        self._began = now
        self.counters.progress = self.progress()

    def _seconds_spent(self) -> float:
        """Return the seconds of the run so far, over all sittings and with everything before the first update."""
        return self.counters.seconds + time.monotonic() - self._began

    # ---- the plan

    def progress(self) -> float:
        """How much of the plan is done, 0–1."""
        config, counters = self.config, self.counters
        done = [0.0]
        if config.steps:
            done.append(counters.step / config.steps)
        if config.epochs:
            done.append((counters.epoch + counters.batch_index / max(1, len(self._batches()))) / config.epochs)
        if config.minutes:
            done.append(self._time_progress())
        return min(1.0, max(done))

    def _time_progress(self) -> float:
        """Return how much of the plan is done by the clock: from where this sitting began to the last update."""
        left = 60 * self.config.minutes - self._seconds_spent() - self._closing_seconds()
        in_loop = time.monotonic() - self._loop_began
        if left <= 0:
            return 1.0
        return self._loop_progress + (1 - self._loop_progress) * in_loop / (in_loop + left)

    def _closing_seconds(self) -> float:
        """Estimate what must still fit into the time after the next update: a last evaluation, scores, files."""
        evaluation = self._evaluation_seconds()
        closing = evaluation + self.timing.closing_seconds(evaluation)
        return CAUTION * closing + self._update_seconds + 2 * self._save_seconds + EXIT_SECONDS

    def _evaluation_seconds(self) -> float:
        return self.counters.last_evaluation or self.timing.evaluation_seconds

    def _batches(self) -> list[np.ndarray]:
        if self._epoch_of_batches != self.counters.epoch:
            self._epoch_batches = self.task.epoch_batches(self.counters.epoch, self.config.batch_tokens)
            self._epoch_of_batches = self.counters.epoch
        return self._epoch_batches

    def _next_batches(self, progress: float) -> list[np.ndarray]:
        """Return the example numbers of the batches that make the next update."""
        batches, ramp = self._batches(), self.config.accumulation_ramp
        grown = min(1.0, progress / ramp) if ramp else 1.0
        count = max(1, math.ceil(grown * self.config.accumulation_steps))
        return batches[self.counters.batch_index : self.counters.batch_index + count]

    def _evaluation_due(self, progress: float) -> bool:
        config, counters = self.config, self.counters
        if config.evaluate_every:
            return counters.step % config.evaluate_every == 0
        if config.minutes:
            spent, one_more = self._seconds_spent(), self._evaluation_seconds()
            fits = spent + one_more + self._closing_seconds() < 60 * config.minutes
            if not fits or counters.evaluation_seconds + one_more > EVALUATION_SHARE * spent:
                return False
        return math.floor(progress * self.timing.evaluations) > counters.evaluations

    def _save_due(self) -> bool:
        if self.config.save_every:
            return self.counters.step % self.config.save_every == 0
        return time.monotonic() - self._saved > SAVE_SECONDS

    # ---- the loop

    def run(self) -> str:
        """Train until the plan is done, patience ends or a signal comes; return why it stopped."""
        with catch_stop_signals() as self.stop_request:
            self._saved = self._loop_began = time.monotonic()
            self._loop_progress = self.counters.progress
            next_up = self._next_up()
            if next_up.patience_ends:  # saved, but the run was not finished
                return self._finish(self._end_reason())
            while next_up.progress < 1 and not next_up.stop:
                self.step(next_up.progress)
                next_up = self._next_up()
                if next_up.stop or next_up.progress >= 1:
                    break
                if next_up.evaluate:
                    self.evaluate(next_up.progress)
                    next_up = self._next_up()
                    if next_up.patience_ends:
                        return self._finish(self._end_reason())
                if next_up.save:
                    self.save()
            if next_up.stop:
                self.save()
                return self.stop_request.name or "SIGTERM"
            return self._finish("plan done")

    def _next_up(self) -> StepDecision:
        """Return what the first process decides, the same in all; anyone may have been asked to stop."""
        values = [0.0] * 4
        if self.distributed.is_rank_zero:
            patience, progress = self.config.patience, self.progress()
            ended = self._target_reached() or (patience > 0 and self.counters.evaluations_since_best >= patience)
            values = [progress, self._evaluation_due(progress), self._save_due(), ended]
        agreed, evaluate, save, ends, stop = self.distributed.all_reduce_values([*values, bool(self.stop_request)])
        return StepDecision(agreed, evaluate > 0, save > 0, ends > 0, stop > 0)

    def _target_reached(self) -> bool:
        """Whether the best evaluation has the score that training may stop at."""
        return bool(
            self.config.stop_at
            and self.counters.best_sort_key
            and self.counters.best_sort_key[0] >= self.config.stop_at
        )

    def _end_reason(self) -> str:
        return "target reached" if self._target_reached() else "patience"

    def _finish(self, reason: str) -> str:
        if not self.counters.best_sort_key or reason == "plan done":
            self.evaluate(1.0)
        self.save()
        return reason

    def step(self, progress: float) -> None:
        """Make one update."""
        config = self.config
        counters = self.counters
        distributed = self.distributed
        began = time.monotonic()
        chosen = self._next_batches(progress)
        sums = np.zeros(2)  # loss, tokens
        for number, examples in enumerate(chosen):
            mine = distributed.shard(examples)
            if not len(mine):
                continue
            batch = self.task.batch(mine, counters.epoch)
            noise = Noise(config.seed, counters.step, number * distributed.world_size + distributed.rank)
            smoothed, plain = self.task.loss(self.model, batch, config.label_smoothing, noise)
            smoothed.backward()
            sums += float(plain), batch.num_predictions
        loss_sum, count = distributed.all_reduce_values(sums.tolist())
        norm = self.optimizer.reduce_gradient(1 / count)
        if not (math.isfinite(loss_sum) and math.isfinite(norm)):
            raise self._not_finite(chosen, loss_sum, norm)
        rate = learning_rate(config, config.learning_rate, counters.step, progress)
        self.optimizer.update(rate)
        counters.step += 1
        counters.tokens += int(count)
        counters.batch_index += len(chosen)
        if counters.batch_index >= len(self._batches()):
            counters.epoch, counters.batch_index = counters.epoch + 1, 0
        self._update_seconds = time.monotonic() - began
        if self.tuner is not None:
            self.tuner.record(count, self._update_seconds)
        self._report(progress, loss_sum / count, count / max(1e-9, self._update_seconds), rate)

    def _not_finite(self, chosen: Sequence[np.ndarray], loss: float, norm: float) -> TrainingError:
        numbers = [int(number) for batch in chosen for number in batch]
        facts = {"step": self.counters.step, "event": "not finite", "loss": str(loss), "examples": numbers}
        if self.distributed.is_rank_zero:
            self.directory.append_log(facts)
        return TrainingError(
            f"step {self.counters.step}: the loss ({loss:g}) or the gradient's norm ({norm:g}) is not finite; "
            f"the weights were not changed and the last checkpoint is kept. The examples are named in "
            f"{self.directory.path / 'log.jsonl'}. Lower --learning-rate, or try --precision float32"
        )

    def evaluate(self, progress: float) -> None:
        """Measure the averaged weights and keep them if they are the best so far; the first process does."""
        counters = self.counters
        if self.config.average_checkpoints:
            self.recent_weights = [*self.recent_weights, self.optimizer.averaged_weights.clone()][
                -self.config.average_checkpoints :
            ]
        if not self.distributed.is_rank_zero:
            return
        began = time.monotonic()
        self.evaluator.load(self.weights.split(self.optimizer.averaged_weights))
        found = self.evaluator.evaluate()
        counters.evaluations = max(counters.evaluations + 1, math.floor(progress * self.timing.evaluations))
        better = not counters.best_sort_key or list(found.sort_key) > counters.best_sort_key
        if better:
            counters.best_sort_key, counters.evaluations_since_best = list(found.sort_key), 0
            self.save_best(self.evaluator, found, counters.step)
        else:
            counters.evaluations_since_best += 1
        counters.last_evaluation = time.monotonic() - began
        counters.evaluation_seconds += counters.last_evaluation
        self.directory.append_log({"step": counters.step, "event": "evaluate", **found.metrics, "best": better})
        if found.attention is not None:
            moment = TrainingSnapshot(counters.step, counters.epoch, found.metrics, found.attention)
            save_snapshot(self.directory.path, moment, self.directory.disk)
        facts: dict[str, Any] = {"metrics": found.metrics, "samples": found.samples, "best": better}
        notify(self.listeners, "evaluate", step=counters.step, **facts)

    def _report(self, progress: float, loss: float, speed: float, rate: float) -> None:
        counters = self.counters
        now = time.monotonic()
        if not self.distributed.is_rank_zero:
            return
        if counters.step % LOG_EVERY == 0:
            self.directory.append_log(
                {"step": counters.step, "event": "step", "loss": loss, "learning_rate": rate, "epoch": counters.epoch}
            )
        if now - self._reported < REPORT_SECONDS and counters.step > 1:
            return
        self._reported = now
        done = progress - self._loop_progress
        notify(
            self.listeners,
            "step",
            step=counters.step,
            of=self.config.steps or None,
            loss=loss,
            seconds_left=(now - self._loop_began) * (1 - progress) / done if done > 0.002 else None,
            learning_rate=rate,
            fraction=progress,
            epoch=counters.epoch,
            **{f"{self.task.unit}_per_second": speed},
        )


@dataclass
class StopRequest:
    """Whether someone asked to stop, and by which signal."""

    name: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Note SIGINT and SIGTERM while the block runs; the loop in it looks whether one came.

    >>> with catch_stop_signals() as asked:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     asked.name
    'SIGTERM'
    """
    asked = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked.name = signal.Signals(number).name

    old = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            old[number] = signal.signal(number, ask)
    except ValueError:
        pass  # not the main thread: whoever called us handles signals
    try:
        yield asked
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
