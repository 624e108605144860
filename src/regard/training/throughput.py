"""Training throughput: precision and thread count are chosen by measurement, and adapted during a run.

Whether one thread or all cores, float32 or bf16 is faster depends on the processor, the model, and the load by other
programs. A run with a time budget measures at its start and may switch threads later. A run with a fixed number of
updates uses the choice that is stored for this machine and model, because another choice would give other bits.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention.dropout import Noise
from regard.checkpoint import atomic
from regard.config.training import ComputeConfig, TrainingConfig
from regard.errors import CheckpointError, ConfigError, TrainingError
from regard.formatting import format_count
from regard.hardware import (
    BF16_UNUSABLE_SLOWDOWN,
    available_cores,
    bf16_slowdown,
    cache_folder,
    is_out_of_memory,
    processor_identity,
    requested_threads,
)
from regard.models.base import Model
from regard.tasks.base import Batch
from regard.training.experiments.base import Experiment
from regard.training.flat_weights import FlatWeights

MAX_ROUNDS = 5  # timed updates of each setup; fewer where they take long
MIN_ROUNDS = 2
HOPELESS = 1.6  # a setup this many times slower than the fastest is not timed again
FIRST_TOKENS = 128  # of the first timed batch
PROBE_SHARE = 0.1  # of a time budget that measuring may take
MAX_PROBE_SECONDS = 20.0
WORTHWHILE = 0.95  # more threads must take less than this share of the time of fewer
WINDOW_SECONDS = 2.0  # the rate of updates is measured over at least this time
WINDOW_UPDATES = 3  # and this number of updates
PROBE_TRUST = 0.6  # share of the measured rate that whole updates are expected to reach
SLOW = 0.5  # share of the best rate below which another program must be using the processor
SLOW_WINDOWS = 2  # in a row, before the run reacts
TRIAL_ROUNDS = 3  # updates with each thread count in a trial
TRIAL_SECONDS = 30.0  # between trials, at least
TRIAL_UPDATES = 60
FIRST_TRIAL_SECONDS = 5.0  # the first trial comes sooner, because the measurement before it was short
FIRST_TRIAL_UPDATES = 20
CLEAR = 2.0  # a trial ends early where one thread count is this many times faster


@dataclass(frozen=True)
class Setup:
    """Precision and thread count.

    >>> print(Setup("bf16", 2))
    bf16 with 2 threads
    """

    precision: str
    threads: int

    def __str__(self) -> str:
        return f"{self.precision} with {format_count(self.threads, 'thread')}"


@dataclass(frozen=True)
class Throughput:
    """The fastest setup, and the seconds of an update in each setup that was timed."""

    precision: str
    threads: int
    seconds: dict[str, float]  # by `str(setup)`
    bf16_slowdown: float = 0.0  # of matrix products, where it ruled bf16 out
    stored: bool = False  # whether an earlier run measured it

    @property
    def update_seconds(self) -> float:
        """Seconds of an update in the chosen setup."""
        return self.seconds[str(Setup(self.precision, self.threads))]

    def seconds_in(self, precision: str) -> float:
        """Estimate the seconds of an update in a precision that may have been timed with one thread only.

        >>> times = {"float32 with 1 thread": 0.8, "bf16 with 1 thread": 0.4, "bf16 with 2 threads": 0.3}
        >>> round(Throughput("bf16", 2, times).seconds_in("float32"), 3)
        0.6
        """
        single_thread = self.seconds.get(str(Setup(precision, 1)), 1.0)
        ratio = single_thread / self.seconds.get(str(Setup(self.precision, 1)), 1.0)
        return self.seconds.get(str(Setup(precision, self.threads)), ratio * self.update_seconds)

    def text(self) -> str:
        """Describe the choice and its reason.

        >>> Throughput("float32", 1, {"float32 with 1 thread": 0.1}).text()
        'float32 with 1 thread (requested)'
        """
        chosen = str(Setup(self.precision, self.threads))
        reasons = []
        if len(self.seconds) > 1:
            times = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in self.seconds.items())
            source = "stored for this machine and model" if self.stored else "fastest in a short measurement"
            reasons.append(f"{source}: {times} per update")
        if self.bf16_slowdown:
            reasons.append(f"bf16 products take {self.bf16_slowdown:.0f} times as long on this processor")
        return f"{chosen} ({'; '.join(reasons) or 'requested'})"


def default_threads(training: ComputeConfig, local_processes: int) -> int:
    """Thread count by setting or `OMP_NUM_THREADS`; otherwise this process's share of the cores."""
    return training.threads or requested_threads() or max(1, available_cores() // local_processes)


def thread_counts(training: ComputeConfig, world_size: int) -> list[int]:
    """Thread counts to choose from: a single one where it is requested or several processes train together."""
    max_threads = default_threads(training, world_size)
    is_fixed = training.threads or requested_threads() or world_size > 1 or training.device != "cpu"
    return [max_threads] if is_fixed or max_threads == 1 else [1, max_threads]


def choose_throughput(
    model: Model, training: ComputeConfig, world_size: int, measure: Callable[[Sequence[int]], Throughput]
) -> Throughput:
    """Choose the setup of a run: measured, or as stored for this machine and model shape.

    Runs with a time budget always measure. Others use the stored choice where there is one.
    """
    counts = thread_counts(training, world_size)
    key = _cache_key(model, training, counts, world_size)
    stored = _read_stored(key)
    if stored is not None and not training.minutes:
        return stored
    measured = measure(counts)
    if stored is None:
        stored = _read_stored(key)  # another run may have measured at the same time
    if stored is None:
        _store(key, measured)
    elif not training.minutes:
        return stored
    return measured


# ---- the stored choice


def _cache_key(model: Model, training: ComputeConfig, counts: Sequence[int], world_size: int) -> str:
    """Hash of everything that the speed of an update depends on."""
    conditions = {
        "processor": processor_identity(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "processes": world_size,
        "threads": [*counts],
        "precision": training.precision,
        "device": training.device,
        "batch_tokens": training.batch_tokens,
        "shapes": {name: [*parameter.shape] for name, parameter in model.named_parameters()},
    }
    return sha256(atomic.json_bytes(conditions)).hexdigest()[:32]


def _read_stored(key: str) -> Throughput | None:
    path = cache_folder() / "throughput" / f"{key}.json"
    try:
        fields = atomic.read_json(path)
        choice = Throughput(**{**fields, "stored": True})
        return choice if choice.update_seconds > 0 else None
    except (OSError, CheckpointError, TypeError, KeyError):
        return None  # missing or unusable: the run measures again


def _store(key: str, choice: Throughput) -> None:
    folder = cache_folder() / "throughput"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_file(folder / f"{key}.json", atomic.json_bytes(asdict(choice)))
    except OSError:
        pass  # a read-only home: the next run measures again


# ---- measuring


def measure_throughput(experiment: Experiment, training: TrainingConfig, counts: Sequence[int]) -> Throughput:
    """Time updates by precision and thread count, on separate models, and choose the fastest setup."""
    precisions, slowdown = _usable_precisions(training)
    probe = _Probe(experiment, training, precisions)
    limit = _probe_seconds(training) / 2
    setups = [Setup(precision, counts[0]) for precision in precisions]
    with _restore_threads():
        torch.set_num_threads(counts[0])
        batch = probe.size_batch(setups[0], limit / (len(setups) * (MIN_ROUNDS + 1)))
    scale = probe.num_tokens(probe.largest_batch) / max(1, probe.num_tokens(batch))

    def time_update(setup: Setup) -> float:
        return scale * probe.time(setup, batch)

    by_precision = fastest_setup(setups, time_update, limit, slowdown)
    if len(counts) == 1:
        return by_precision
    # which precision is faster hardly depends on the threads, so thread counts are compared in that one only
    by_threads = fastest_setup([Setup(by_precision.precision, count) for count in counts], time_update, limit, slowdown)
    return replace(by_threads, seconds={**by_precision.seconds, **by_threads.seconds})


def fastest_setup(
    setups: Sequence[Setup], time_update: Callable[[Setup], float], limit: float, bf16_slowdown: float = 0.0
) -> Throughput:
    """Time updates in all setups in turn, for about `limit` seconds, and choose by the medians.

    Setups take turns, so that a burst of load by another program slows all of them.
    """
    samples: dict[Setup, list[float]] = {setup: [] for setup in setups}
    with _restore_threads():
        for setup in setups:
            torch.set_num_threads(setup.threads)
            time_update(setup)  # the first update of each setup prepares its kernels
        contenders = [*setups]
        start = time.monotonic()
        for _ in range(MAX_ROUNDS):
            for setup in contenders:
                torch.set_num_threads(setup.threads)
                samples[setup].append(time_update(setup))
            if time.monotonic() - start > limit:
                break
            if min(map(len, samples.values())) < MIN_ROUNDS:
                continue  # a burst may have slowed any of them once
            fastest = min(min(times) for times in samples.values())
            contenders = [setup for setup in contenders if min(samples[setup]) < HOPELESS * fastest]
            if len(contenders) == 1:
                break
    medians = {setup: statistics.median(times) for setup, times in samples.items()}
    chosen = min(medians, key=lambda setup: medians[setup])
    same_precision = [setup for setup in setups if setup.precision == chosen.precision]
    fewest_threads = min(same_precision, key=lambda setup: setup.threads)
    if medians[chosen] > WORTHWHILE * medians[fewest_threads]:
        chosen = fewest_threads
    return Throughput(
        chosen.precision,
        chosen.threads,
        seconds={str(setup): seconds for setup, seconds in medians.items()},
        bf16_slowdown=bf16_slowdown,
    )


def _usable_precisions(training: TrainingConfig) -> tuple[list[str], float]:
    """Precisions to time, and the slowdown of bf16 where it is ruled out."""
    if training.precision == "bf16" and training.device == "mps":
        raise ConfigError("bf16 is not supported on mps: use --precision float32")
    if training.precision != "auto":
        return [training.precision], 0.0
    slowdown = bf16_slowdown() if training.device == "cpu" else 0.0
    if slowdown > BF16_UNUSABLE_SLOWDOWN:
        return ["float32"], slowdown
    return ["float32", "bf16"], 0.0


def _probe_seconds(training: TrainingConfig) -> float:
    """Seconds that measuring may take."""
    return min(MAX_PROBE_SECONDS, PROBE_SHARE * 60 * training.minutes or MAX_PROBE_SECONDS)


@contextmanager
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Probe:
    """Times forward and backward passes of temporary models, one per precision."""

    def __init__(self, experiment: Experiment, training: TrainingConfig, precisions: Sequence[str]) -> None:
        self.objective = experiment.objective
        self.training = training
        self.lengths = self.objective.lengths
        batches = self.objective.epoch_batches(0, training.batch_tokens)
        self.largest_batch = max(batches, key=self.num_tokens)
        self.longest_batch = max(batches, key=lambda indices: int(self.lengths[indices].max()))
        self.models: dict[str, Model] = {}
        self.weights: dict[str, FlatWeights] = {}
        for precision in precisions:
            self.models[precision] = experiment.trainable().model
            self.weights[precision] = FlatWeights(self.models[precision], precision, training.device)

    def num_tokens(self, indices: NDArray[np.int64]) -> int:
        """Number of tokens of these examples."""
        return int(self.lengths[indices].sum())

    def size_batch(self, setup: Setup, seconds: float) -> NDArray[np.int64]:
        """Choose the largest batch, or as much of it as an update processes in about `seconds`.

        The batch with the longest example is computed once, so that a lack of memory shows before training starts.
        """
        max_tokens = FIRST_TOKENS
        batch = self._truncate_batch(max_tokens)
        self.time(setup, batch)
        batch_seconds = self.time(setup, batch)
        while 2 * batch_seconds < 1.5 * seconds and len(batch) < len(self.largest_batch):
            max_tokens *= 2
            batch = self._truncate_batch(max_tokens)
            batch_seconds = self.time(setup, batch)
        longest_seconds = batch_seconds * self.num_tokens(self.longest_batch) / max(1, self.num_tokens(batch))
        if longest_seconds < 2 * seconds:
            self.time(setup, self.longest_batch)
        return batch

    def _truncate_batch(self, max_tokens: int) -> NDArray[np.int64]:
        """First examples of the largest batch, up to `max_tokens` tokens but at least one example."""
        cumulative_tokens = np.cumsum(self.lengths[self.largest_batch].sum(axis=-1))
        num_examples = int(np.searchsorted(cumulative_tokens, max_tokens, side="right"))
        return self.largest_batch[: max(1, num_examples)]

    def time(self, setup: Setup, indices: NDArray[np.int64]) -> float:
        """Seconds of one forward and backward pass over these examples."""
        model = self.models[setup.precision]
        batch = self.objective.batch(indices, 0)
        start = time.perf_counter()
        try:
            loss, _ = self.objective.loss(model, batch, self.training.label_smoothing, Noise(0, 0))
            loss.backward()
        except (MemoryError, RuntimeError) as error:
            raise _memory_error(error, batch) from error
        seconds = time.perf_counter() - start
        self.weights[setup.precision].gradient.zero_()
        return seconds


def _memory_error(error: Exception, batch: Batch) -> Exception:
    """Convert an error about a lack of memory to one with advice; pass on any other error."""
    if not is_out_of_memory(error):
        return error
    return TrainingError(
        f"not enough memory for a batch of {batch.description}: lower --batch-tokens, --data.max_length or the preset"
    )


# ---- during training


class ThreadTuner:
    """Monitors the rate of updates; switches the thread count where it may, and reports a load by other programs.

    A trial makes a few real updates with each thread count in turn and keeps the fastest. It starts when the rate stays
    below half of the best one, and at intervals, because the load of the machine may have changed.
    """

    def __init__(
        self,
        counts: Sequence[int],
        threads: int,
        *,
        may_switch: bool,
        notify: Callable[[str], object],
        expected_seconds: float = 0.0,  # of the forward and backward pass of an update, as measured
    ) -> None:
        self.counts = [*counts]
        self.threads = threads
        self.expected_seconds = expected_seconds
        self.may_switch = may_switch and len(self.counts) > 1
        self.notify = notify
        self.best_rate = 0.0
        self._window_tokens = 0.0
        self._window_seconds = 0.0
        self._window_updates = 0
        self._slow_windows = 0
        self._is_slow_reported = False
        self._trial: dict[int, list[float]] = {}  # seconds per token, by thread count
        self._seconds_since_trial = TRIAL_SECONDS - FIRST_TRIAL_SECONDS
        self._updates_since_trial = TRIAL_UPDATES - FIRST_TRIAL_UPDATES

    def record(self, tokens: float, seconds: float) -> None:
        """Record the tokens and seconds of an update, and set the threads for the next one."""
        if self._trial:
            self._continue_trial(tokens, seconds)
            return
        self._seconds_since_trial += seconds
        self._updates_since_trial += 1
        is_slow = self._add_to_window(tokens, seconds)
        if not self.may_switch:
            if is_slow and not self._is_slow_reported:
                self._is_slow_reported = True
                self.notify(
                    f"other programs slow this run down: below half of the {self.best_rate:,.0f} per second reached "
                    "before; it keeps its number of threads, because another one would change the result"
                )
            return
        is_trial_due = self._seconds_since_trial > TRIAL_SECONDS and self._updates_since_trial >= TRIAL_UPDATES
        if is_slow or is_trial_due:
            self._trial = {count: [] for count in self.counts}
            torch.set_num_threads(self.counts[0])

    def _add_to_window(self, tokens: float, seconds: float) -> bool:
        """Add an update to the window; return whether the rate has stayed low."""
        self._window_tokens += tokens
        self._window_seconds += seconds
        self._window_updates += 1
        if self._window_seconds < WINDOW_SECONDS or self._window_updates < WINDOW_UPDATES:
            return False
        rate = self._window_tokens / self._window_seconds
        if self.expected_seconds and not self.best_rate:
            self.best_rate = PROBE_TRUST * self._window_tokens / self._window_updates / self.expected_seconds
        self._window_tokens = 0.0
        self._window_seconds = 0.0
        self._window_updates = 0
        self.best_rate = max(self.best_rate, rate)
        self._slow_windows = self._slow_windows + 1 if rate < SLOW * self.best_rate else 0
        return self._slow_windows >= SLOW_WINDOWS

    def _continue_trial(self, tokens: float, seconds: float) -> None:
        current = min(self.counts, key=lambda count: len(self._trial[count]))
        self._trial[current].append(seconds / max(1.0, tokens))
        following = min(self.counts, key=lambda count: len(self._trial[count]))
        rounds = len(self._trial[following])
        medians = [statistics.median(times) if times else math.inf for times in self._trial.values()]
        is_clear = rounds == 1 and following == self.counts[0] and max(medians) > CLEAR * min(medians)
        if is_clear or rounds == TRIAL_ROUNDS:
            self._end_trial(dict(zip(self.counts, medians, strict=True)))
        else:
            torch.set_num_threads(following)

    def _end_trial(self, medians: dict[int, float]) -> None:
        before = self.threads
        fastest = min(medians, key=lambda count: medians[count])
        if medians[fastest] < WORTHWHILE * medians[before]:
            self.threads = fastest
            ratio = medians[before] / medians[fastest]
            reason = "other programs use the cores" if fastest < before else "more cores are free"
            change = " to ".join(format_count(count, "thread") for count in (before, fastest))
            self.notify(f"switched from {change} ({ratio:.1f} times as fast): {reason}")
        torch.set_num_threads(self.threads)
        self._trial = {}
        self._seconds_since_trial = 0.0
        self._updates_since_trial = 0
        self._slow_windows = 0
        self.best_rate = 0.0  # measured anew with these threads
        self.expected_seconds = 0.0
