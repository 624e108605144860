"""Regard as a contestant: what a user of Regard runs, with the settings that a user gets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from regard.attention.noise import Noise
from regard.attention.positions import positions
from regard.attention.rows import Rows
from regard.bench import recurrent as recurring
from regard.bench import translation as translating
from regard.bench import work
from regard.bench.child import Job, Turns, seconds
from regard.bench.settings import EncoderSize, Size
from regard.blocks.transformer import BlockShape, Encoder
from regard.config.model import WritingConfig
from regard.config.training import TrainingConfig
from regard.data.batching import sorted_batches
from regard.models import build
from regard.models.base import start_weights
from regard.pipeline import load_translator
from regard.text.tokenizer import Tokenizer
from regard.tokens import PairBatch, Tokens
from regard.training.optimizer import Optimizer
from regard.training.processes import Processes, others
from regard.training.weights import FlatWeights

DROPOUT = SMOOTHING = 0.1
WORKERS = "one-thread workers"
ENCODED_TOKENS = 1024  # that an encoder reads together


def training(job: Job, turns: Turns) -> None:
    """Train on the same batches again and again, with all threads or with processes of one thread each."""
    batches = work.batches(job.facts["lengths"], job.facts["size"]["vocabulary"])
    tokens = sum(batch.count for batch in batches)
    workers = int(job.facts.get("workers", job.threads)) if job.variant.endswith(WORKERS) else 1
    command = ["-m", "regard.bench.ours", job.dumps()]
    with others(workers, command, 1) if workers > 1 else nullcontext():
        torch.set_num_threads(1 if workers > 1 else job.threads)
        with Processes.started() as processes:
            updates = our_updates(job, batches, processes)

            def turn() -> float:
                processes.said_by_first([1.0])  # the others wait here, idle, until a turn begins
                return _rate(tokens, updates)

            turns.serve({"training": turn})
            processes.said_by_first([0.0])


def our_updates(job: Job, batches: Sequence[PairBatch], processes: Processes) -> Callable[[], None]:
    """Return what makes an update on each batch: dropout wherever `nn.Transformer` has it, AdamW, no average."""
    rates = {"dropout": DROPOUT, "attention_dropout": DROPOUT, "activation_dropout": DROPOUT}
    longest = max(int(batch.source.lengths.max()) for batch in batches)
    config = Size(**job.facts["size"]).config(**rates, places=max(512, longest))
    return updating(config, job.variant.split()[0], batches, processes, clip=0.0, smoothing=SMOOTHING)


def updating(
    config: WritingConfig,
    precision: str,
    batches: Sequence[PairBatch],
    processes: Processes,
    *,
    clip: float,
    smoothing: float,
) -> Callable[[], None]:
    """Return what makes an update on each batch, each process on its share."""
    model = build(config)
    start_weights(model, 1)
    weights = FlatWeights(model, precision)
    optimizer = Optimizer(weights, TrainingConfig(optimizer="adamw", clip=clip, ema=0.0), processes)
    shares = [(work.share(batch, processes.rank, processes.count), batch.count) for batch in batches]

    def updates() -> None:
        for number, (batch, count) in enumerate(shares):
            noise = Noise(1, number, processes.rank)
            model.loss(batch.source, batch.target, smoothing=smoothing, noise=noise)[0].backward()
            optimizer.gradient_norm(1 / count)
            optimizer.update(1e-4)

    return updates


def recurrent(job: Job, turns: Turns) -> None:
    """Train recurrent models on the same batches again and again."""
    shape = recurring.Shape(**job.facts["shape"])
    batches = work.batches(job.facts["lengths"], shape.vocabulary)
    tokens = sum(batch.count for batch in batches)
    torch.set_num_threads(job.threads)
    with Processes.started() as processes:
        made = {
            name: updating(shape.config(feeding), job.variant, batches, processes, clip=recurring.CLIP, smoothing=0.0)
            for name, feeding in recurring.FEEDING.items()
        }
        turns.serve({name: partial(_rate, tokens, updates) for name, updates in made.items()})


def _rate(tokens: int, updates: Callable[[], None]) -> float:
    return tokens / seconds(updates)


def beside(job: Job) -> None:
    """Train beside the first of several processes, turn by turn."""
    torch.set_num_threads(1)
    batches = work.batches(job.facts["lengths"], job.facts["size"]["vocabulary"])
    with Processes.started() as processes:
        updates = our_updates(job, batches, processes)
        while processes.said_by_first([0.0])[0]:
            updates()


def translation(job: Job, turns: Turns) -> None:
    """Translate texts by the pipeline that `regard.load` gives."""
    pipeline = load_translator(translating.folder(job, "regard"), precision=job.variant, threads=job.threads)

    def run(texts: Sequence[str], beam: int) -> None:
        pipeline.translate(texts, split=False, beam=beam, max_ratio=1.0, max_extra=0)

    turns.serve(
        {
            name: partial(translating.value, partial(_translate, run, translating.texts(job, name), name), name, job)
            for name in job.facts["tasks"]
        }
    )


def _translate(run: Callable[[Sequence[str], int], None], texts: Sequence[str], name: str) -> None:
    """Translate all texts together, or one after another where the task is about lone sentences."""
    beam, lone = translating.TASKS[name]
    for some in [[text] for text in texts] if lone else [texts]:
        run(some, beam)


def encoding(job: Job, turns: Turns) -> None:
    """Turn texts into vectors, tokenisation included."""
    size = EncoderSize(**job.facts["size"])
    texts = work.texts(job.facts["lengths"], size.vocabulary)
    encode = our_encoder(size, work.tokenizer(size.vocabulary), job.variant)
    turns.serve({"encoding": lambda: len(texts) / seconds(lambda: encode(texts))})


def our_encoder(size: EncoderSize, tokenizer: Tokenizer, precision: str) -> Callable[[Sequence[str]], Tensor]:
    """Return what turns texts into vectors [B, D]: the mean of the last states, from packed rows of like length."""
    shape = BlockShape(size.width, size.heads, size.feedforward, "gelu", False, 1e-12, 0.0, 0.0, 0.0)
    scheme, encoder = positions("learned", 512, size.width), Encoder(size.layers, shape)
    words, norm = torch.nn.Embedding(size.vocabulary, size.width), torch.nn.LayerNorm(size.width, 1e-12)
    parts: list[torch.nn.Module] = [scheme, encoder, words, norm]
    for part in parts:
        start_weights(part, 1)
        part.to({"float32": torch.float32, "bf16": torch.bfloat16}[precision]).eval()

    @torch.inference_mode()
    def encode(texts: Sequence[str]) -> Tensor:
        rows = [[tokenizer.start, *ids, tokenizer.end] for ids in tokenizer.encode_all(texts)]
        vectors = torch.empty(len(rows), size.width)
        for numbers in sorted_batches(np.array([[len(row)] for row in rows]), budget=ENCODED_TOKENS):
            tokens = Tokens.from_rows([rows[number] for number in numbers])
            at = Rows.of(tokens)
            states = norm(scheme.embed(words(torch.from_numpy(tokens.ids.astype(np.int64))), at.positions))
            states = encoder(states, at, at.everywhere(), scheme, None)
            vectors[torch.from_numpy(numbers)] = at.pad(states).float().sum(1) / at.lengths[:, None]
        return vectors

    return encode


if __name__ == "__main__":
    beside(Job(**json.loads(sys.argv[1])))
