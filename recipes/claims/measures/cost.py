"""Cost of models: parameters, time by length and threads, and how many predictions a pass learns from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipes.claims.measure import Measurement, Subject
from regard.checkpoint.run_dir import RunDirectory
from regard.config.models import GptConfig, TransformerConfig
from regard.config.rnn_models import Seq2SeqConfig
from regard.config.settings import nest
from regard.models import build_model
from regard.models.base import EncoderDecoder
from regard.packed_tokens import Tokens

VOCAB_SIZE = 1000
FIRST_TOKEN = 4  # after the special tokens
CONFIGS: dict[str, Any] = {"transformer": TransformerConfig, "seq2seq": Seq2SeqConfig, "gpt": GptConfig}


def parameters(subject: Subject) -> Measurement:
    """Number of weights of a trained model."""
    summary = RunDirectory(subject.folder).read_run()["result"]["summary"]
    return Measurement.from_value(summary["parameters"])


def update_seconds(
    subject: Subject,
    *,
    lengths: Sequence[int],
    threads: Sequence[int] = (),
    batch_tokens: int = 2048,
    repeats: int = 5,
) -> Measurement:
    """Seconds for loss and gradient of a batch of equally many tokens, by the length of its sequences and by threads.

    The numbers are `seconds_LENGTH_THREADS`, of which the shortest length with the most threads is `value`; `growth` is
    the time of the longest length in units of it, and `speedup_LENGTH` what the most threads gain over the fewest.
    """
    model = _build(subject, max_positions=max(lengths) + 1)
    counts = [*(threads or (subject.threads,))]
    numbers = {}
    for length, count in product(lengths, counts):
        torch.set_num_threads(count)
        rows = max(1, batch_tokens // length)
        source = _random_tokens(length, rows, subject.seed)
        target = _random_tokens(length, rows, subject.seed + 1)
        compute_loss = partial(_translation_loss, model, source, target)
        numbers[f"seconds_{length}_{count}"] = _seconds_per_pass(compute_loss, model, repeats)
    torch.set_num_threads(subject.threads)
    for length in lengths:
        numbers[f"speedup_{length}"] = (
            numbers[f"seconds_{length}_{counts[0]}"] / numbers[f"seconds_{length}_{counts[-1]}"]
        )
    numbers["value"] = numbers[f"seconds_{lengths[0]}_{counts[-1]}"]
    numbers["growth"] = numbers[f"seconds_{lengths[-1]}_{counts[-1]}"] / numbers["value"]
    curve = tuple((float(length), numbers[f"seconds_{length}_{counts[-1]}"]) for length in lengths)
    return Measurement(numbers, curve=curve)


def prediction_rate(subject: Subject, *, length: int, rows: int = 32, repeats: int = 5) -> Measurement:
    """Predictions per second whose loss and gradient a causal language model computes.

    `every_position` predicts each token of a sequence in one pass, `last_position` only the last one.
    """
    model = _build(subject, max_positions=length + 1)
    tokens = _random_tokens(length + 1, rows, subject.seed)
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


def _build(subject: Subject, max_positions: int) -> Any:
    """A model with random weights, of the settings of its config."""
    settings = nest({name: value for name, value in subject.settings.items() if name != "family"})
    family = subject.settings["family"]
    sizes: dict[str, Any] = {"max_positions": max_positions}
    names = ("vocab_size",) if family == "gpt" else ("source_vocab_size", "target_vocab_size")
    sizes |= dict.fromkeys(names, VOCAB_SIZE)
    torch.manual_seed(subject.seed)
    return build_model(CONFIGS[family].from_dict({**sizes, **settings}))


def _translation_loss(model: EncoderDecoder, source: Tokens, target: Tokens) -> Tensor:
    return model.loss(source, target)[0]


def _random_tokens(length: int, rows: int, seed: int) -> Tokens:
    rng = np.random.default_rng(seed)
    return Tokens.from_rows([*rng.integers(FIRST_TOKEN, VOCAB_SIZE, size=(rows, length))])


def _seconds_per_pass(compute_loss: Callable[[], Tensor], model: torch.nn.Module, repeats: int) -> float:
    """Median time of a forward and backward pass, after one that is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        model.zero_grad()
        start = time.perf_counter()
        compute_loss().backward()  # type: ignore[no-untyped-call]
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])
