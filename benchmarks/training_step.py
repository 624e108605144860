"""Training speed beside a plain torch loop: same sizes, same batches, interleaved, ratios with their spread.

    python -m benchmarks.training_step --preset small --repeats 5

The peer is `torch.nn.Transformer` under bf16 autocast with Adam and full cross-entropy, as tutorials write it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.noise import Noise
from regard.attention.positions import sinusoids
from regard.config.model import TRANSLATOR_PRESETS, TranslatorConfig
from regard.config.training import TrainingConfig
from regard.data.batching import epoch_batches
from regard.models import build
from regard.models.base import start_weights
from regard.tasks.translation import Batch
from regard.tokens import Tokens
from regard.training.optimizer import Optimizer
from regard.training.weights import FlatWeights

SMOOTHING = 0.1


def batches(vocabulary: int, budget: int, count: int) -> list[Batch]:
    """Return batches with the lengths of short sentences and random words."""
    chance = np.random.default_rng(1)
    source = np.clip(chance.gamma(9, 1.5, 20_000), 4, 45).astype(int)
    target = np.clip(source * chance.normal(1, 0.15, 20_000), 4, 45).astype(int)
    table = np.stack([source + 1, target + 1], 1)
    made = epoch_batches(table, budget=budget, seed=1, epoch=0, digest="ab")[:count]
    return [
        Batch(
            Tokens.from_rows([chance.integers(4, vocabulary, source[n] + 1) for n in numbers]),
            Tokens.from_rows([chance.integers(4, vocabulary, target[n]) for n in numbers]),
        )
        for numbers in made
    ]


def ours(config: TranslatorConfig, precision: str) -> Callable[[Batch, int], None]:
    model = build(config)
    start_weights(model, 1)
    weights = FlatWeights(model, precision)
    optimizer = Optimizer(weights, TrainingConfig(optimizer="adamw"))

    def step(batch: Batch, number: int) -> None:
        model.loss(batch.source, batch.target, smoothing=SMOOTHING, noise=Noise(1, number))[0].backward()
        optimizer.gradient_norm(1 / batch.count)
        optimizer.update(1e-4)

    return step


class PlainTransformer(nn.Module):
    """The model as tutorials write it."""

    def __init__(self, config: TranslatorConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.target_vocabulary, config.width)
        nn.init.normal_(self.words.weight, 0, config.width**-0.5)
        self.register_buffer("places", sinusoids(torch.arange(512), config.width))
        stack = config.encoder
        self.body = nn.Transformer(
            config.width, stack.heads, stack.layers, stack.layers, stack.feedforward, config.dropout, batch_first=True
        )
        self.drop = nn.Dropout(config.dropout)
        self.scale = math.sqrt(config.width)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        def embed(ids: Tensor) -> Tensor:
            return self.drop(self.words(ids) * self.scale + self.places[: ids.shape[1]])

        ahead = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        hidden = self.body(
            embed(source),
            embed(target),
            tgt_mask=ahead,
            src_key_padding_mask=source == 0,
            tgt_key_padding_mask=target == 0,
            memory_key_padding_mask=source == 0,
            tgt_is_causal=True,
        )
        return hidden @ self.words.weight.t()


def plain(config: TranslatorConfig) -> Callable[[Batch, int], None]:
    model = PlainTransformer(config)
    adam = torch.optim.Adam(model.parameters(), 1e-4)
    measure = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=SMOOTHING)

    def padded(tokens: Tokens, before: list[int], after: list[int]) -> Tensor:
        rows = [[*before, *row.tolist(), *after] for row in tokens]
        longest = max(map(len, rows))
        return torch.tensor([row + [0] * (longest - len(row)) for row in rows])

    def step(batch: Batch, number: int) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(padded(batch.source, [], []), padded(batch.target, [3], []))
        measure(logits.float().flatten(0, 1), padded(batch.target, [], [1]).flatten()).backward()
        adam.step()
        adam.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small", choices=list(TRANSLATOR_PRESETS))
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    vocabulary = {"source_vocabulary": arguments.vocabulary, "target_vocabulary": arguments.vocabulary}
    config = TRANSLATOR_PRESETS[arguments.preset].override({**vocabulary, "dropout": 0.1, "attention_dropout": 0.1})
    given = batches(arguments.vocabulary, arguments.batch_tokens, arguments.steps)
    tokens = sum(batch.count for batch in given)
    peers = {
        "nn.Transformer bf16": plain(config),
        "regard float32": ours(config, "float32"),
        "regard bf16": ours(config, "bf16"),
    }
    rates: dict[str, list[float]] = {name: [] for name in peers}
    for repeat in range(-1, arguments.repeats):
        for name, step in peers.items():
            began = time.perf_counter()
            for number, batch in enumerate(given):
                step(batch, number)
            if repeat >= 0:
                rates[name].append(tokens / (time.perf_counter() - began))
    first = next(iter(rates))
    for name, found in rates.items():
        ratios = sorted(one / other for one, other in zip(found, rates[first], strict=True))
        row = {"bench": f"training {arguments.preset}", "peer": name, "value": round(statistics.median(found))}
        row |= {"unit": "target tokens/s", "ratio": round(statistics.median(ratios), 2)}
        print(json.dumps({**row, "low": round(ratios[0], 2), "high": round(ratios[-1], 2)}), flush=True)


if __name__ == "__main__":
    main()
