"""Target: Regard's training step and a plain loop around the same model learn alike, update by update.

    python -m benchmarks.targets.loss_curves train.de train.en --steps 500

One translator with one set of initial weights is trained by Regard's step (fused loss, its own dropout, bf16 or
float32) and by a plain loop around Marian of transformers (padded batches, torch's dropout, float32), each with several
seeds of dropout, on the same batches with the same AdamW, learning rate, clipping and label smoothing. The curves are
equal within noise when Regard's are no further from the plain loop's than seeds of the plain loop are from one another,
in every tenth of the run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.libraries.training_loop import pad_with_mask, smoothed_loss
from regard.attention.dropout import Noise
from regard.checkpoint.model_dir import save_translator
from regard.config.data import ReadConfig, TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import TRANSFORMER_PRESETS, TransformerConfig
from regard.config.training import TrainingConfig
from regard.data.batching import epoch_batches
from regard.data.pairs import read_pairs
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.packed_tokens import PairBatch
from regard.tasks.translation import TokenizerPair
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer
from regard.training.flat_weights import FlatWeights
from regard.training.optimizer import Optimizer

LABEL_SMOOTHING = 0.1
CLIP = 1.0
WARMUP_STEPS = 100
PEAK_LEARNING_RATE = 1e-3
PARTS = 10  # of the run, compared one by one
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}

Curve = NDArray[np.float64]


def build_batches(files: Sequence[str], steps: int, batch_tokens: int) -> tuple[Tokenizer, list[PairBatch]]:
    """A tokenizer trained on the files, and a batch for each update."""
    pairs = read_pairs(files, ReadConfig())
    tokenizer = train_tokenizer([*pairs.source, *pairs.target], TokenizerConfig())
    examples = TokenizerPair(tokenizer, tokenizer).tokenize(pairs)

    def all_batches() -> Iterator[PairBatch]:
        for epoch in range(steps):
            for indices in epoch_batches(
                examples.lengths, max_tokens=batch_tokens, seed=1, epoch=epoch, digest=pairs.digest
            ):
                yield examples.batch(indices)

    return tokenizer, list(islice(all_batches(), steps))


def learning_rate(step: int) -> float:
    """Linear warm-up, then constant."""
    return PEAK_LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS)


def train_regard(config: TransformerConfig, batches: Sequence[PairBatch], seed: int, precision: str) -> Curve:
    """Smoothed loss per token at each update of Regard's training step."""
    model = build_model(config)
    initialize_weights(model, 1)
    training = TrainingConfig(optimizer="adamw", max_gradient_norm=CLIP, ema_decay=0.0, weight_decay=0.0)
    optimizer = Optimizer(FlatWeights(model, precision), training)
    losses = []
    for step, batch in enumerate(batches):
        loss, _ = model.loss(batch.source, batch.target, smoothing=LABEL_SMOOTHING, noise=Noise(seed, step))
        loss.backward()
        losses.append(float(loss) / batch.num_predictions)
        optimizer.reduce_gradient(1 / batch.num_predictions)
        optimizer.update(learning_rate(step))
    return np.array(losses)


def train_marian(config: TransformerConfig, tokenizer: Tokenizer, batches: Sequence[PairBatch], seed: int) -> Curve:
    """Smoothed loss per token at each update of a plain loop around Marian with the same initial weights."""
    from transformers import MarianMTModel

    initial = build_model(config)
    initialize_weights(initial, 1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "initial"
        save_translator(
            folder,
            config,
            initial.state_dict(),
            tokenizers={"source": tokenizer, "target": tokenizer},
            decoding=DecodingConfig(),
            metadata={},
            card="# Initial weights\n",
        )
        model = MarianMTModel.from_pretrained(folder).train()
    torch.manual_seed(seed)
    betas = (TrainingConfig().adam_beta1, TrainingConfig().adam_beta2)
    optimizer = torch.optim.AdamW(model.parameters(), PEAK_LEARNING_RATE, betas=betas, eps=1e-9, weight_decay=0.0)
    losses = []
    for step, batch in enumerate(batches):
        target_rows = [row.tolist() for row in batch.target]
        source, source_mask = pad_with_mask([row.tolist() for row in batch.source])
        decoder_input, _ = pad_with_mask([[config.bos_id, *row] for row in target_rows])
        targets, _ = pad_with_mask([[*row, config.eos_id] for row in target_rows])
        logits = model(
            input_ids=source, attention_mask=source_mask, decoder_input_ids=decoder_input, use_cache=False
        ).logits
        loss = smoothed_loss(logits, targets, LABEL_SMOOTHING)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return np.array(losses)


def average_parts(curves: Sequence[Curve]) -> Curve:  # [seeds, parts]
    """Mean loss in each part of the run."""
    return np.array([[part.mean() for part in np.array_split(curve, PARTS)] for curve in curves])


def print_row(name: str, values: Curve, caption: str = "") -> None:
    cells = " ".join(f"{value:7.4f}" for value in values)
    print(f"{name:8} {cells}  {caption}".rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs=2)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=1024, help="of a batch")
    parser.add_argument("--preset", default="small", choices=list(TRANSFORMER_PRESETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    tokenizer, batches = build_batches(arguments.files, arguments.steps, arguments.tokens)
    changes = {
        "source_vocab_size": tokenizer.vocab_size,
        "target_vocab_size": tokenizer.vocab_size,
        "norm_placement": "post",
        **DROPOUT,
    }
    config = TRANSFORMER_PRESETS[arguments.preset].override(changes)
    trainings: dict[str, Callable[[int], Curve]] = {
        "plain": lambda seed: train_marian(config, tokenizer, batches, seed),
        "bf16": lambda seed: train_regard(config, batches, seed, "bf16"),
        "float32": lambda seed: train_regard(config, batches, seed, "float32"),
    }
    seeds = range(1, arguments.seeds + 1)
    losses = {name: average_parts([train(seed) for seed in seeds]) for name, train in trainings.items()}
    distances = [np.abs(first - second) for first, second in combinations(losses["plain"], 2)]
    noise = np.max(distances, axis=0)
    print(f"smoothed loss per token, mean of {arguments.seeds} seeds, by tenth of {arguments.steps} updates")
    for name, parts in losses.items():
        print_row(name, parts.mean(0))
    print_row("noise", noise, "largest distance of two plain runs")
    is_met = True
    for name in ("bf16", "float32"):
        gap = np.abs(losses[name].mean(0) - losses["plain"].mean(0))
        is_met &= bool((gap <= np.maximum(noise, noise.mean())).all())
        print_row(name, gap, "distance of the means")
    print(json.dumps({"met": is_met, **{name: parts.tolist() for name, parts in losses.items()}}))
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
