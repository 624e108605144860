"""Cost of architectures by sequence length: seconds and operations of an update, and state size while generating.

Updates are those of training: forward and backward pass with dropout, clipping and optimizer, on random tokens. Batches
have equally many tokens at every length. All setups are measured in one process, in interleaved rounds, so that a
change in the speed of the machine affects all of them equally; the first round is a warm-up and is not counted.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from regard.config.architecture import parse_architecture
from regard.config.models import StackConfig, TransformerConfig
from regard.config.rnn_models import Seq2SeqConfig
from regard.errors import UsageError
from regard.formatting import format_count, round_digits
from regard.hardware import available_cores, processor_name
from regard.report.charts import chart_page, line_chart
from regard.report.cost_counts import TranslatorConfig, state_numbers, update_operations

if TYPE_CHECKING:
    from regard.training.optimizer import Optimizer

Log = Callable[[str], object]
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
ARCHITECTURES = ("lstm:none", "transformer")
NAMES = {"rnn": "lstm:none"}  # short names of architectures
HEAD_SIZE = 32
FIRST_TOKEN = 4  # below are special tokens
RATE = 1e-4  # learning rate of the measured updates
DIGITS = 5  # of measured figures


class CostPointDict(TypedDict):
    """Cost of one architecture at one length with one thread count."""

    architecture: str
    length: int  # tokens of each source and of each target
    threads: int
    rows: int  # sentence pairs in an update
    seconds: float  # of an update: the median of the rounds
    seconds_range: list[float]  # of the fastest and of the slowest round
    operations: int  # floating-point operations of an update
    operations_per_second: float
    state: int  # numbers kept for each sentence after `length` source and target tokens


class CostReportDict(TypedDict):
    """JSON form of a `CostReport`."""

    tokens: int  # target tokens of an update
    rounds: int
    models: dict[str, str]  # architecture → summary of the model
    parameters: dict[str, int]
    points: list[CostPointDict]
    processor: str
    cores: int


@dataclass(frozen=True)
class CostSettings:
    """Sizes of the models and batches."""

    architectures: tuple[str, ...] = ARCHITECTURES  # as `parse_architecture` takes them
    lengths: tuple[int, ...] = LENGTHS
    threads: tuple[int, ...] = ()  # empty: one, and all cores
    hidden_size: int = 128
    num_layers: int = 2
    vocab_size: int = 1000
    tokens: int = 2048  # target tokens of an update; at least one sentence
    rounds: int = 5

    def __post_init__(self) -> None:
        for name in ("lengths", "threads"):
            values = getattr(self, name)
            if any(value < 1 for value in values):
                raise UsageError(f"{name} ({', '.join(map(str, values))}) must be at least 1")
            if len(set(values)) != len(values):
                raise UsageError(f"{name} ({', '.join(map(str, values))}): a number is named twice: name each once")
        if not (self.architectures and self.lengths):
            raise UsageError("architectures and lengths must not be empty")

    def configs(self) -> dict[str, TranslatorConfig]:
        """Config of each architecture, by the name that was given."""
        return {name: self._config(name) for name in self.architectures}

    def _config(self, name: str) -> TranslatorConfig:
        settings = parse_architecture(NAMES.get(name, name))
        sizes: dict[str, Any] = {
            "source_vocab_size": self.vocab_size,
            "target_vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "max_positions": max(self.lengths) + 1,
        }
        if settings["architecture"] == "transformer":
            stack = StackConfig(
                num_layers=self.num_layers,
                num_heads=self._num_heads(),
                feed_forward_size=2 * self.hidden_size,
            )
            return TransformerConfig(**sizes, encoder=stack, decoder=stack)
        overrides = {path.removeprefix("seq2seq."): setting for path, setting in settings.items() if "." in path}
        return Seq2SeqConfig(
            **{
                **sizes,
                "embedding_size": self.hidden_size,
                "num_layers": self.num_layers,
                "directions": "one",
                **overrides,
            }
        )

    def _num_heads(self) -> int:
        """Heads of about the usual size, which divide the hidden size."""
        counts = range(1, max(1, self.hidden_size // HEAD_SIZE) + 1)
        return max(count for count in counts if self.hidden_size % count == 0)


@dataclass(frozen=True)
class CostPoint:
    """Measurements of one architecture at one length with one thread count."""

    architecture: str
    length: int
    threads: int
    rows: int
    seconds: tuple[float, ...]  # of an update in each round
    operations: int
    state: int

    @property
    def median(self) -> float:
        """Seconds of an update."""
        return statistics.median(self.seconds)

    def to_dict(self) -> CostPointDict:
        """Rounded figures for JSON."""
        return {
            "architecture": self.architecture,
            "length": self.length,
            "threads": self.threads,
            "rows": self.rows,
            "seconds": round_digits(self.median, DIGITS),
            "seconds_range": [round_digits(min(self.seconds), DIGITS), round_digits(max(self.seconds), DIGITS)],
            "operations": self.operations,
            "operations_per_second": round_digits(self.operations / self.median, DIGITS),
            "state": self.state,
        }

    def cells(self) -> list[str]:
        """One row of the table."""
        return [
            self.architecture,
            str(self.length),
            str(self.threads),
            f"{1000 * self.median:,.4g}",
            f"{1000 * min(self.seconds):,.4g}–{1000 * max(self.seconds):,.4g}",
            f"{self.operations / 1e9:,.3g}",
            f"{self.operations / 1e9 / self.median:,.3g}",
            f"{self.state:,}",
        ]


@dataclass(frozen=True)
class CostReport:
    """Cost of all architectures at all lengths."""

    settings: CostSettings
    summaries: dict[str, str]
    parameters: dict[str, int]
    points: tuple[CostPoint, ...]

    def to_dict(self) -> CostReportDict:
        """Convert to plain values."""
        return {
            "tokens": self.settings.tokens,
            "rounds": self.settings.rounds,
            "models": self.summaries,
            "parameters": self.parameters,
            "points": [point.to_dict() for point in self.points],
            "processor": processor_name(),
            "cores": available_cores(),
        }

    def table(self) -> list[list[str]]:
        """Header and one row for each architecture, length and thread count."""
        header = ["architecture", "length", "threads", "ms/update", "range", "Gflop", "Gflop/s", "state"]
        return [header, *(point.cells() for point in self.points)]

    def summary(self) -> list[str]:
        """Describe the models and what was measured."""
        settings = self.settings
        lines = [f"{name}: {self.summaries[name]}, {self.parameters[name]:,} parameters" for name in self.summaries]
        return [
            *lines,
            f"updates of {settings.tokens:,} target tokens, at least one sentence pair, with sources as long as "
            f"targets; median and range of {format_count(settings.rounds, 'interleaved round')}",
            "state: numbers kept for a sentence while it is generated, after so many source and target tokens",
        ]

    def tsv(self) -> Iterable[str]:
        """Lines of tab-separated values."""
        return ("\t".join(row) for row in self.table())

    def charts(self) -> dict[str, str]:
        """Charts as SVG by title; lengths are on a logarithmic axis."""
        series: dict[str, dict[str, list[tuple[float, float]]]] = {"seconds": {}, "operations": {}, "state": {}}
        for point in self.points:
            x = float(np.log2(point.length))
            threads = f"{point.architecture}, {format_count(point.threads, 'thread')}"
            series["seconds"].setdefault(threads, []).append((x, 1000 * point.median))
            if point.threads == self.points[0].threads:
                series["operations"].setdefault(point.architecture, []).append((x, point.operations / 1e9))
                series["state"].setdefault(point.architecture, []).append((x, point.state))
        titles = {
            "seconds": ("Time of an update", "milliseconds"),
            "operations": ("Operations of an update", "billions"),
            "state": ("State while a sentence is generated", "numbers"),
        }
        ticks = {float(np.log2(length)): str(length) for length in self.settings.lengths}
        return {
            title: line_chart(series[name], title=title, x_label="tokens of a sentence", y_label=unit, ticks=ticks)
            for name, (title, unit) in titles.items()
        }

    def page(self) -> str:
        """The report as one self-contained page without scripts."""
        title = f"Cost of {', '.join(self.summaries)} by length"
        return chart_page(title, [*self.summary(), processor_name()], self.charts())


class _Update:
    """One model with its optimizer, and the batch of one length."""

    def __init__(self, model: Any, optimizer: Optimizer, length: int, rows: int) -> None:
        from regard.packed_tokens import Tokens

        self.model = model
        self.optimizer = optimizer
        rng = np.random.default_rng(length)
        ids = rng.integers(FIRST_TOKEN, model.settings.target_vocab_size, size=(2, rows, length))
        # eos ends the source, and follows the target as a label
        self.source = Tokens.from_rows(list(np.concatenate([ids[0, :, 1:], np.full((rows, 1), model.eos_id)], axis=1)))
        self.target = Tokens.from_rows(list(ids[1, :, 1:]))
        self.num_predictions = rows * length

    def run(self, step: int) -> float:
        """Make one update and return its seconds."""
        from regard.attention.dropout import Noise

        start = time.perf_counter()
        loss, _ = self.model.loss(self.source, self.target, smoothing=0.1, noise=Noise(1, step, 0))
        loss.backward()
        self.optimizer.reduce_gradient(1 / self.num_predictions)
        self.optimizer.update(RATE)
        return time.perf_counter() - start


def measure_cost(settings: CostSettings | None = None, *, log: Log = lambda line: None) -> CostReport:
    """Measure updates of each architecture at each length with each thread count."""
    import torch

    from regard.config.training import TrainingConfig
    from regard.models import build_model
    from regard.models.base import initialize_weights
    from regard.training.flat_weights import FlatWeights
    from regard.training.optimizer import Optimizer

    settings = settings or CostSettings()
    threads = settings.threads or tuple(dict.fromkeys((1, available_cores())))
    configs = settings.configs()
    training = TrainingConfig(learning_rate=RATE)
    updates: dict[tuple[str, int], _Update] = {}
    parameters = {}
    for name, config in configs.items():
        model = build_model(config)
        initialize_weights(model, 1)
        parameters[name] = model.num_parameters()
        optimizer = Optimizer(FlatWeights(model, "float32"), training)
        for length in settings.lengths:
            updates[name, length] = _Update(model, optimizer, length, rows=max(1, settings.tokens // length))
    setups = list(itertools.product(configs, settings.lengths, threads))
    seconds: dict[tuple[str, int, int], list[float]] = {setup: [] for setup in setups}
    threads_before = torch.get_num_threads()
    try:
        for index in range(settings.rounds + 1):
            log("warm-up" if index == 0 else f"round {index} of {settings.rounds}")
            for name, length, count in setups if index % 2 else reversed(setups):
                torch.set_num_threads(count)
                elapsed = updates[name, length].run(index)
                if index > 0:
                    seconds[name, length, count].append(elapsed)
    finally:
        torch.set_num_threads(threads_before)
    points = []
    for name, length, count in setups:
        rows = updates[name, length].num_predictions // length
        operations = rows * update_operations(configs[name], length, length)
        points.append(
            CostPoint(
                name,
                length,
                threads=count,
                rows=rows,
                seconds=tuple(seconds[name, length, count]),
                operations=operations,
                state=state_numbers(configs[name], length, length),
            )
        )
    summaries = {name: config.summary() for name, config in configs.items()}
    return CostReport(settings, summaries, parameters, tuple(points))
