"""Cost of models: parameters, speed of training, time by length and threads, and predictions for each pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipes.claims.measure import Measurement, Subject
from regard.checkpoint.run_dir import RunDirectory
from regard.config.models import GptConfig
from regard.config.settings import nest
from regard.errors import ConfigError
from regard.models import build_model
from regard.packed_tokens import Tokens
from regard.report.cost import CostSettings, measure_cost

VOCAB_SIZE = 1000
FIRST_TOKEN = 4  # after the special tokens


def parameters(subject: Subject) -> Measurement:
    """Number of weights of a trained model."""
    summary = RunDirectory(subject.folder).read_run()["result"]["summary"]
    return Measurement.from_value(summary["parameters"])


def training_rate(subject: Subject) -> Measurement:
    """Tokens that training reads in a second, the median over the updates of its log but the first."""
    log: list[dict[str, Any]] = RunDirectory(subject.folder).read_log()
    rates = [event["tokens_per_second"] for event in log if event["event"] == "step"]
    if len(rates) < 2:
        raise ConfigError(f"training_rate: {len(rates)} updates are in the log, but two are needed: train for longer")
    return Measurement.from_value(median(rates[1:]))


def cost_by_length(
    subject: Subject, *, lengths: Sequence[int], threads: Sequence[int], rounds: int = 5, tokens: int = 2048
) -> Measurement:
    """Seconds of an update of equally many tokens, by the length of their sequences and by threads, as `regard cost`.

    The model is that of the setting `architecture`. The numbers are `seconds_LENGTH_THREADS`; `growth` is the time of
    the longest sequences in units of the shortest, with the most threads, and `speedup_LENGTH` what the most threads
    gain over the fewest.
    """
    architectures = (subject.settings["architecture"],)
    report = measure_cost(CostSettings(architectures, tuple(lengths), tuple(threads), tokens=tokens, rounds=rounds))
    seconds = {(point.length, point.threads): point.median for point in report.points}
    most = threads[-1]
    numbers = {f"seconds_{length}_{count}": value for (length, count), value in seconds.items()}
    numbers |= {f"speedup_{length}": seconds[length, threads[0]] / seconds[length, most] for length in lengths}
    numbers["growth"] = seconds[lengths[-1], most] / seconds[lengths[0], most]
    return Measurement(numbers, curve=tuple((float(length), seconds[length, most]) for length in lengths))


def prediction_rate(subject: Subject, *, length: int, rows: int = 32, repeats: int = 5) -> Measurement:
    """Predictions per second whose loss and gradient a causal language model computes.

    `every_position` predicts each token of a sequence in one pass, `last_position` only the last one.
    """
    sizes = {"vocab_size": VOCAB_SIZE, "max_positions": length + 1}
    torch.manual_seed(subject.seed)
    model: Any = build_model(GptConfig.from_dict({**sizes, **nest(subject.settings)}))
    rng = np.random.default_rng(subject.seed)
    tokens = Tokens.from_rows([*rng.integers(FIRST_TOKEN, VOCAB_SIZE, size=(rows, length + 1))])
    last = torch.arange(1, rows + 1) * length - 1  # indices of the last hidden states

    def every_position() -> Tensor:
        loss: Tensor = model.loss(tokens)[0]
        return loss

    def last_position() -> Tensor:
        inputs = Tokens.from_rows([row[:-1] for row in tokens])
        targets = torch.tensor([int(row[-1]) for row in tokens])
        logits = torch.nn.functional.linear(model(inputs)[last], model.output_weight)
        return torch.nn.functional.cross_entropy(logits, targets, reduction="sum")

    every_seconds = _seconds_per_pass(every_position, model, repeats)
    last_seconds = _seconds_per_pass(last_position, model, repeats)
    return Measurement({"every_position": rows * length / every_seconds, "last_position": rows / last_seconds})


def _seconds_per_pass(compute_loss: Callable[[], Tensor], model: torch.nn.Module, repeats: int) -> float:
    """Median time of a forward and backward pass, after one that is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        model.zero_grad()
        start = time.perf_counter()
        compute_loss().backward()  # type: ignore[no-untyped-call]
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])
