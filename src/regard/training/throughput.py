"""How fast this machine trains a model: precision and thread count chosen by measurement, and adapted while it runs.

One thread or all cores, float32 or bf16: which is faster depends on the processor, on the model, and on what other
programs do at the moment. A run with a time budget measures when it starts and switches threads on the way. A run with
a fixed number of updates takes the choice that is stored for this machine and model, because another choice would give
other bits.
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
from regard.config.training import TrainingConfig
from regard.errors import CheckpointError, ConfigError, TrainingError
from regard.hardware import (
    BF16_UNUSABLE_SLOWDOWN,
    available_cores,
    bf16_slowdown,
    cache_folder,
    processor_identity,
    requested_threads,
)
from regard.models.base import Model
from regard.tasks.base import Batch
from regard.training.experiments.base import Experiment
from regard.training.flat_weights import FlatWeights

ROUNDS, MIN_ROUNDS = 5, 2  # timed updates of each setup: so many, or fewer where they take long
OUT_OF_REACH = 1.6  # times the fastest setup: such a one is not timed again
FIRST_TOKENS = 128  # a first look at how long an update takes
PROBE_SHARE, MAX_PROBE_SECONDS = 0.1, 20.0  # of a time budget, and at most: spent on measuring
WORTHWHILE = 0.95  # more threads must take less than this share of the time of fewer
WINDOW_SECONDS, WINDOW_UPDATES = 2.0, 3  # the rate is taken over at least so much
PROBE_TRUST = 0.6  # of the measured rate is expected of whole updates
SLOW = 0.5  # of the expected rate: below this, something else uses the processor
SLOW_WINDOWS = 2  # in a row, before anything is done about it
TRIAL_ROUNDS = 3  # updates with each thread count in a trial
TRIAL_SECONDS, TRIAL_UPDATES = 30.0, 60  # at least so far apart are trials
FIRST_TRIAL_SECONDS, FIRST_TRIAL_UPDATES = 5.0, 20  # the first one comes sooner: the measurement before was short
CLEAR = 2.0  # a trial ends early where one thread count is so many times faster


@dataclass(frozen=True)
class Setup:
    """A way to compute an update.

    >>> print(Setup("bf16", 2))
    bf16 with 2 threads
    """

    precision: str
    threads: int

    def __str__(self) -> str:
        return f"{self.precision} with {self.threads} thread{'s' if self.threads > 1 else ''}"


@dataclass(frozen=True)
class Throughput:
    """The fastest setup, and the seconds of an update in each one that was timed."""

    precision: str
    threads: int
    seconds: dict[str, float]  # by setup, as it is printed
    bf16_slowdown: float = 0.0  # of matrix products, where that alone ruled bf16 out
    stored: bool = False  # measured by an earlier run

    @property
    def update_seconds(self) -> float:
        """Seconds of an update in the chosen setup."""
        return self.seconds[str(Setup(self.precision, self.threads))]

    def seconds_in(self, precision: str) -> float:
        """Estimate the seconds of an update in this precision, which may have been timed with one thread only.

        >>> times = {"float32 with 1 thread": 0.8, "bf16 with 1 thread": 0.4, "bf16 with 2 threads": 0.3}
        >>> round(Throughput("bf16", 2, times).seconds_in("float32"), 3)
        0.6
        """
        ratio = self.seconds.get(str(Setup(precision, 1)), 1.0) / self.seconds.get(str(Setup(self.precision, 1)), 1.0)
        return self.seconds.get(str(Setup(precision, self.threads)), ratio * self.update_seconds)

    def text(self) -> str:
        """Say what was chosen and why.

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


def default_threads(training: TrainingConfig, local_processes: int) -> int:
    """Return the thread count that was requested, by setting or `OMP_NUM_THREADS`, or this process's share of cores."""
    return training.threads or requested_threads() or max(1, available_cores() // local_processes)


def thread_counts(training: TrainingConfig, distributed: int) -> list[int]:
    """Return the thread counts to choose from: one where it is requested or several processes train together."""
    everything = default_threads(training, distributed)
    is_fixed = training.threads or requested_threads() or distributed > 1 or training.device != "cpu"
    return [everything] if is_fixed or everything == 1 else [1, everything]


def choose_throughput(
    model: Model, training: TrainingConfig, distributed: int, measure: Callable[[Sequence[int]], Throughput]
) -> Throughput:
    """Return the setup for a run: measured, or as it is stored for this machine and model shape.

    Runs that are limited by time always measure. Others take the stored choice where there is one.
    """
    counts = thread_counts(training, distributed)
    key = _key(model, training, counts, distributed)
    stored = _read_stored(key)
    if stored is not None and not training.minutes:
        return stored
    measured = measure(counts)
    if stored is None:
        _store(key, measured)
    return measured


# ---- the choice that is stored


def _key(model: Model, training: TrainingConfig, counts: Sequence[int], distributed: int) -> str:
    """Return the name under which a choice is stored: what the speed of an update depends on."""
    facts = {
        "processor": processor_identity(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "processes": distributed,
        "threads": [*counts],
        "precision": training.precision,
        "device": training.device,
        "batch_tokens": training.batch_tokens,
        "shapes": {name: [*parameter.shape] for name, parameter in model.named_parameters()},
    }
    return sha256(atomic.json_bytes(facts)).hexdigest()[:32]


def _read_stored(key: str) -> Throughput | None:
    path = cache_folder() / "throughput" / f"{key}.json"
    try:
        facts = atomic.read_json(path)
        choice = Throughput(**{**facts, "stored": True})
        return choice if choice.update_seconds > 0 else None
    except (OSError, CheckpointError, TypeError, KeyError):
        return None  # nothing there, or nothing that can be used: it is measured again


def _store(key: str, choice: Throughput) -> None:
    folder = cache_folder() / "throughput"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_file(folder / f"{key}.json", atomic.json_bytes(asdict(choice)))
    except OSError:
        pass  # a home that cannot be written to: the next run measures again


# ---- measuring


def measure_throughput(job: Experiment, training: TrainingConfig, counts: Sequence[int]) -> Throughput:
    """Time an update in every precision and thread count, and choose the fastest; the weights are left as they are."""
    precisions, slowdown = _precisions(training)
    probe = _Probe(job, training, precisions)
    limit = _probe_seconds(training) / 2
    fewest = [Setup(precision, counts[0]) for precision in precisions]
    with _threads_kept():
        torch.set_num_threads(counts[0])
        batch = probe.size_batch(fewest[0], limit / (len(fewest) * (MIN_ROUNDS + 1)))
    scale = probe.tokens(probe.largest) / max(1, probe.tokens(batch))

    def time_update(setup: Setup) -> float:
        return scale * probe.time(setup, batch)

    choice = fastest_setup(fewest, time_update, limit, slowdown)
    if len(counts) == 1:
        return choice
    # which precision is faster hardly depends on the threads
    threads = fastest_setup([Setup(choice.precision, count) for count in counts], time_update, limit, slowdown)
    return replace(threads, seconds={**choice.seconds, **threads.seconds})


def fastest_setup(
    setups: Sequence[Setup], time_update: Callable[[Setup], float], limit: float, bf16_slowdown: float = 0.0
) -> Throughput:
    """Time updates in all setups in turns, for about `limit` seconds, and choose by the medians.

    Setups take turns, so that a burst of another program slows all of them.
    """
    with _threads_kept():
        samples: dict[Setup, list[float]] = {setup: [] for setup in setups}
        for setup in setups:
            torch.set_num_threads(setup.threads)
            time_update(setup)  # the first update of each prepares its kernels
        running = [*setups]
        began = time.monotonic()
        for _ in range(ROUNDS):
            for setup in running:
                torch.set_num_threads(setup.threads)
                samples[setup].append(time_update(setup))
            if time.monotonic() - began > limit:
                break
            if min(map(len, samples.values())) < MIN_ROUNDS:
                continue  # a burst may have slowed any of them once
            fastest = min(min(times) for times in samples.values())
            running = [setup for setup in running if min(samples[setup]) < OUT_OF_REACH * fastest]
            if len(running) == 1:
                break
    seconds = {setup: statistics.median(times) for setup, times in samples.items()}
    chosen = min(seconds, key=lambda setup: seconds[setup])
    fewer = min((setup for setup in setups if setup.precision == chosen.precision), key=lambda setup: setup.threads)
    if seconds[chosen] > WORTHWHILE * seconds[fewer]:
        chosen = fewer
    printed = {str(setup): taken for setup, taken in seconds.items()}
    return Throughput(chosen.precision, chosen.threads, printed, bf16_slowdown)


def _precisions(training: TrainingConfig) -> tuple[list[str], float]:
    """Return the precisions to time, and how much slower bf16 is where it is not among them for that reason."""
    if training.precision == "bf16" and training.device == "mps":
        raise ConfigError("bf16 is not offered on mps: use --precision float32")
    if training.precision != "auto":
        return [training.precision], 0.0
    slowdown = bf16_slowdown() if training.device == "cpu" else 0.0
    return (["float32"], slowdown) if slowdown > BF16_UNUSABLE_SLOWDOWN else (["float32", "bf16"], 0.0)


def _probe_seconds(training: TrainingConfig) -> float:
    """Return the seconds that measuring may take."""
    return min(MAX_PROBE_SECONDS, PROBE_SHARE * 60 * training.minutes or MAX_PROBE_SECONDS)


@contextmanager
def _threads_kept() -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Probe:
    """Times forward and backward passes of models that are thrown away afterwards, one for each precision."""

    def __init__(self, job: Experiment, training: TrainingConfig, precisions: Sequence[str]) -> None:
        self.task, self.training = job.task, training
        self.lengths = job.task.lengths
        batches = job.task.epoch_batches(0, training.batch_tokens)
        self.largest = max(batches, key=self.tokens)
        self.max_length = max(batches, key=lambda indices: int(self.lengths[indices].max()))
        self.models: dict[str, Model] = {}
        self.weights: dict[str, FlatWeights] = {}
        for precision in precisions:
            self.models[precision] = job.model()
            self.weights[precision] = FlatWeights(self.models[precision], precision, training.device)

    def tokens(self, indices: NDArray[np.int64]) -> int:
        """Return how many tokens these examples have."""
        return int(self.lengths[indices].sum())

    def size_batch(self, setup: Setup, seconds: float) -> NDArray[np.int64]:
        """Return the largest batch, or so much of it that an update takes about `seconds`.

        The batch with the longest example is computed once, so that a lack of memory shows before training starts.
        """
        tokens = FIRST_TOKENS
        batch = self._first(tokens)
        self.time(setup, batch)
        while 2 * (taken := self.time(setup, batch)) < 1.5 * seconds and len(batch) < len(self.largest):
            tokens *= 2
            batch = self._first(tokens)
        if taken * self.tokens(self.max_length) / max(1, self.tokens(batch)) < 2 * seconds:
            self.time(setup, self.max_length)
        return batch

    def _first(self, tokens: float) -> NDArray[np.int64]:
        """Return the first examples of the largest batch, up to so many tokens but at least one example."""
        grown = np.cumsum(self.lengths[self.largest].sum(axis=-1))
        return self.largest[: max(1, int(np.searchsorted(grown, tokens, side="right")))]

    def time(self, setup: Setup, indices: NDArray[np.int64]) -> float:
        """Return the seconds of one forward and backward pass over these examples."""
        model = self.models[setup.precision]
        batch = self.task.batch(indices, 0)
        began = time.perf_counter()
        try:
            loss, _ = self.task.loss(model, batch, self.training.label_smoothing, Noise(0, 0))
            loss.backward()
        except (MemoryError, RuntimeError) as error:
            raise _memory_error(error, batch) from error
        taken = time.perf_counter() - began
        self.weights[setup.precision].gradient.zero_()
        return taken


def _memory_error(error: Exception, batch: Batch) -> Exception:
    """Return a clear error where memory ran out; any other error as it is."""
    text = str(error).lower()
    if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "memory" not in text:
        return error
    return TrainingError(
        f"memory does not suffice for a batch of {batch.shape}: lower --batch-tokens, --data.max_length or the preset"
    )


# ---- while training runs


class ThreadTuner:
    """Watches the rate of updates; switches the thread count where it may, and says when others slow the run.

    A trial makes a few real updates with each thread count in turn and keeps the faster one. It starts when the rate
    stays below half of the best one seen, and now and then, because the machine may have become quiet again.
    """

    def __init__(
        self,
        counts: Sequence[int],
        threads: int,
        *,
        may_switch: bool,
        notify: Callable[[str], object],
        expected_seconds: float = 0.0,  # of an update without the optimiser's part, as it was measured
    ) -> None:
        self.counts = [*counts]
        self.threads = threads
        self.expected_seconds = expected_seconds
        self.may_switch = may_switch and len(self.counts) > 1
        self.notify = notify
        self.best_rate = 0.0
        self._window = (0.0, 0.0, 0)  # tokens, seconds, updates
        self._slow_windows = 0
        self._is_slow_reported = False
        self._trial: dict[int, list[float]] = {}  # seconds per token, by thread count
        # seconds and updates since the last trial
        self._since_trial = (TRIAL_SECONDS - FIRST_TRIAL_SECONDS, TRIAL_UPDATES - FIRST_TRIAL_UPDATES)

    def record(self, tokens: float, seconds: float) -> None:
        """Take what an update was and how long it took, and set the threads for the next one."""
        if self._trial:
            self._continue_trial(tokens, seconds)
            return
        elapsed, updates = self._since_trial
        self._since_trial = (elapsed + seconds, updates + 1)
        is_slow = self._close_window(tokens, seconds)
        if not self.may_switch:
            if is_slow and not self._is_slow_reported:
                self._is_slow_reported = True
                self.notify(
                    f"other programs slow this run down: below half of the {self.best_rate:,.0f} per second reached "
                    f"before; its {_threads(self.threads)} stay, because another number would change the result"
                )
            return
        if is_slow or (self._since_trial[0] > TRIAL_SECONDS and self._since_trial[1] >= TRIAL_UPDATES):
            self._trial = {count: [] for count in self.counts}
            torch.set_num_threads(self.counts[0])

    def _close_window(self, tokens: float, seconds: float) -> bool:
        """Add an update to the window; return whether the rate has stayed low."""
        window_tokens, window_seconds, updates = self._window
        self._window = (window_tokens + tokens, window_seconds + seconds, updates + 1)
        if self._window[1] < WINDOW_SECONDS or self._window[2] < WINDOW_UPDATES:
            return False
        rate = self._window[0] / self._window[1]
        if self.expected_seconds and not self.best_rate:
            self.best_rate = PROBE_TRUST * self._window[0] / self._window[2] / self.expected_seconds
        self._window = (0.0, 0.0, 0)
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
            why = "other programs use the cores" if fastest < before else "more cores are free"
            self.notify(f"switched from {_threads(before)} to {_threads(fastest)} ({ratio:.1f} times as fast): {why}")
        torch.set_num_threads(self.threads)
        self._trial = {}
        self._since_trial = (0.0, 0)
        self._slow_windows = 0
        self.best_rate = self.expected_seconds = 0.0  # what can be reached now is seen from here on


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"
