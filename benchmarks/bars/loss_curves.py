"""Bar: our training step and a plain loop around the same model learn alike, update by update.

    python -m benchmarks.bars.loss_curves train.de train.en --steps 500

One translator with one set of first weights is trained by our step (fused loss, dropout of our own, bf16 or float32)
and by a plain loop around transformers' Marian (padded batches, torch's dropout, float32), each from several seeds of
dropout, on the same batches with the same AdamW, rate, clipping and smoothing. The curves are equal within noise when
ours lie no further from the plain loop's than seeds of the plain loop lie from one another, in every tenth of the way.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention.noise import Noise
from regard.bench import work
from regard.bench.peers.loop import smoothed_loss
from regard.checkpoint.model_folder import save_model
from regard.config.data import ReadConfig, TokenizerConfig
from regard.config.decoding import DecodingConfig
from regard.config.model import TRANSLATOR_PRESETS, TranslatorConfig
from regard.config.training import TrainingConfig
from regard.data.batching import epoch_batches
from regard.data.sources import read_pairs
from regard.models import build
from regard.models.base import start_weights
from regard.tasks.translation import Languages
from regard.text.learn import learn
from regard.text.tokenizer import Tokenizer
from regard.tokens import PairBatch
from regard.training.optimizer import Optimizer
from regard.training.weights import FlatWeights

SMOOTHING, CLIP, WARMUP, PEAK = 0.1, 1.0, 100, 1e-3
PARTS = 10  # of the way, compared one by one
RATES = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
Curve = NDArray[np.float64]


def batches(files: Sequence[str], steps: int, budget: int) -> tuple[Tokenizer, list[PairBatch]]:
    """Return a tokenizer learned from the files, and as many batches as there are updates."""
    pairs = read_pairs(files, ReadConfig())
    tokenizer = learn([*pairs.source, *pairs.target], TokenizerConfig())
    examples = Languages(tokenizer, tokenizer).examples(pairs)

    def endless() -> Iterator[PairBatch]:
        for epoch in range(steps):
            for numbers in epoch_batches(examples.lengths, budget=budget, seed=1, epoch=epoch, digest=pairs.digest):
                yield examples.batch(numbers)

    return tokenizer, [batch for batch, _ in zip(endless(), range(steps), strict=False)]


def rate(step: int) -> float:
    """Return the learning rate of an update."""
    return PEAK * min(1.0, (step + 1) / WARMUP)


def ours(config: TranslatorConfig, given: Sequence[PairBatch], seed: int, precision: str) -> Curve:
    """Return the smoothed loss a token at each update of our step."""
    model = build(config)
    start_weights(model, 1)
    weights = FlatWeights(model, precision)
    settings = TrainingConfig(optimizer="adamw", clip=CLIP, ema=0.0, weight_decay=0.0)
    optimizer, losses = Optimizer(weights, settings), []
    for step, batch in enumerate(given):
        loss, _ = model.loss(batch.source, batch.target, smoothing=SMOOTHING, noise=Noise(seed, step))
        loss.backward()
        losses.append(float(loss) / batch.count)
        optimizer.gradient_norm(1 / batch.count)
        optimizer.update(rate(step))
    return np.array(losses)


def plain(config: TranslatorConfig, tokenizer: Tokenizer, given: Sequence[PairBatch], seed: int) -> Curve:
    """Return the same of a plain loop around transformers' Marian with the same first weights."""
    from transformers import MarianMTModel

    first = build(config)
    start_weights(first, 1)
    with tempfile.TemporaryDirectory() as room:
        save_model(
            Path(room) / "first",
            config,
            first.state_dict(),
            tokenizers={"source": tokenizer, "target": tokenizer},
            decoding=DecodingConfig(),
            task={},
            card="# First weights\n",
        )
        model = MarianMTModel.from_pretrained(Path(room) / "first").train()
    torch.manual_seed(seed)
    betas = (TrainingConfig().beta1, TrainingConfig().beta2)
    optimizer = torch.optim.AdamW(model.parameters(), PEAK, betas=betas, eps=1e-9, weight_decay=0.0)
    losses = []
    for step, batch in enumerate(given):
        targets = [row.tolist() for row in batch.target]
        rows = [row.tolist() for row in batch.source], [[config.start, *row] for row in targets]
        source, known = (torch.from_numpy(work.padded(some)) for some in rows)
        wanted = torch.from_numpy(work.padded([[*row, config.end] for row in targets]))
        logits = model(
            input_ids=source, attention_mask=(source != 0).long(), decoder_input_ids=known, use_cache=False
        ).logits
        loss = smoothed_loss(logits, wanted, SMOOTHING)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return np.array(losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs=2)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=1024, help="a batch")
    parser.add_argument("--preset", default="small", choices=list(TRANSLATOR_PRESETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    tokenizer, given = batches(arguments.files, arguments.steps, arguments.tokens)
    sizes = {"source_vocabulary": tokenizer.size, "target_vocabulary": tokenizer.size, "norm": "after", **RATES}
    config = TRANSLATOR_PRESETS[arguments.preset].override(sizes)
    seeds = range(1, arguments.seeds + 1)
    makers: dict[str, Callable[[int], Curve]] = {
        "plain": lambda seed: plain(config, tokenizer, given, seed),
        "bf16": lambda seed: ours(config, given, seed, "bf16"),
        "float32": lambda seed: ours(config, given, seed, "float32"),
    }
    curves = {name: [make(seed) for seed in seeds] for name, make in makers.items()}
    parts = {
        name: np.array([[part.mean() for part in np.array_split(curve, PARTS)] for curve in found])
        for name, found in curves.items()
    }
    noise = np.max([np.abs(one - other) for one, other in combinations(parts["plain"], 2)], axis=0)
    holds = True
    print(f"smoothed loss a token, mean of {arguments.seeds} seeds, by tenth of {arguments.steps} updates")
    for name, found in parts.items():
        print(f"{name:8}", " ".join(f"{value:7.4f}" for value in found.mean(0)))
    print("noise   ", " ".join(f"{value:7.4f}" for value in noise), " largest distance of two plain runs")
    for name in ("bf16", "float32"):
        gap = np.abs(parts[name].mean(0) - parts["plain"].mean(0))
        holds &= bool((gap <= np.maximum(noise, noise.mean())).all())
        print(f"{name:8}", " ".join(f"{value:7.4f}" for value in gap), " distance of the means")
    print(json.dumps({"holds": holds, **{name: found.tolist() for name, found in parts.items()}}))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
