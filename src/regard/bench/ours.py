"""Regard as a contestant: what a user of Regard runs, with the settings that a user gets."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import torch

from regard.attention.noise import Noise
from regard.bench import encoding as reading
from regard.bench import fine_tuning as tuning
from regard.bench import masked as masking
from regard.bench import recurrent as recurring
from regard.bench import translation as translating
from regard.bench import work
from regard.bench.child import Job, Turns, seconds
from regard.bench.settings import EncoderSize, ReadSize, Size, TaughtSize
from regard.checkpoint.encoder_folder import save_encoder
from regard.config.model import EncoderConfig, WritingConfig
from regard.config.training import TrainingConfig
from regard.models import build
from regard.models.base import start_weights
from regard.models.encoder import Encoder, start_encoder
from regard.pipeline import EmbeddingPipeline, load_embedder, load_translator
from regard.tasks.base import Task
from regard.tasks.masking import MaskedBatch
from regard.tokens import PairBatch
from regard.training.optimizer import Optimizer
from regard.training.plan import training_config
from regard.training.processes import Processes, others
from regard.training.weights import FlatWeights

DROPOUT = SMOOTHING = 0.1
WORKERS = "one-thread workers"
ENGINE = "engine"  # a variant that computes in the compiled library; the others compute in torch
USUAL = "usual settings"
DROPOUTS = {"dropout": DROPOUT, "attention_dropout": DROPOUT, "head_dropout": DROPOUT}
ADAMW = TrainingConfig(optimizer="adamw", weight_decay=0.01, beta2=0.999, ema=0.0)  # as encoders are fine-tuned


Updates = Callable[[], None]


def training(job: Job, turns: Turns) -> None:
    """Train on the same batches again and again, with all threads or with processes of one thread each."""
    _serve_updates(job, turns)


def recurrent(job: Job, turns: Turns) -> None:
    """Train recurrent models on the same batches again and again, in the same ways."""
    _serve_updates(job, turns)


def _serve_updates(job: Job, turns: Turns) -> None:
    workers = int(job.facts.get("workers", job.threads)) if job.variant.endswith(WORKERS) else 1
    command = ["-m", "regard.bench.ours", job.dumps()]
    with others(workers, command, 1) if workers > 1 else nullcontext():
        torch.set_num_threads(1 if workers > 1 else job.threads)
        with Processes.started() as processes:
            made, tokens = UPDATES[job.contest](job, processes)

            def turn(number: int, updates: Updates) -> float:
                processes.said_by_first([1.0 + number])  # the others wait here, idle, until a turn begins
                return rate(tokens, updates)

            turns.serve({name: partial(turn, number, made[name]) for number, name in enumerate(made)})
            processes.said_by_first([0.0])


def _training_updates(job: Job, processes: Processes) -> tuple[dict[str, Updates], int]:
    batches = work.batches(job.facts["lengths"], job.facts["size"]["vocabulary"])
    return {"training": our_updates(job, batches, processes)}, sum(batch.count for batch in batches)


def _recurrent_updates(job: Job, processes: Processes) -> tuple[dict[str, Updates], int]:
    shape = recurring.Shape(**job.facts["shape"])
    batches = work.batches(job.facts["lengths"], shape.vocabulary)
    precision = job.variant.split()[0]
    made = {
        name: updating(shape.config(feeding), precision, batches, processes, clip=recurring.CLIP, smoothing=0.0)
        for name, feeding in recurring.FEEDING.items()
    }
    return made, sum(batch.count for batch in batches)


UPDATES: dict[str, Callable[[Job, Processes], tuple[dict[str, Updates], int]]] = {
    "training": _training_updates,
    "recurrent": _recurrent_updates,
}


def our_updates(job: Job, batches: Sequence[PairBatch], processes: Processes) -> Updates:
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
) -> Updates:
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


def rate(tokens: int, updates: Callable[[], None]) -> float:
    """Return tokens a second."""
    return tokens / seconds(updates)


def beside(job: Job) -> None:
    """Train beside the first of several processes, turn by turn."""
    torch.set_num_threads(1)
    with Processes.started() as processes:
        made = [*UPDATES[job.contest](job, processes)[0].values()]
        while number := int(processes.said_by_first([0.0])[0]):
            made[number - 1]()


def translation(job: Job, turns: Turns) -> None:
    """Translate texts by the pipeline that `regard.load` gives."""
    precision, _, backend = job.variant.partition(" ")
    folder = translating.folder(job, "regard")
    pipeline = load_translator(folder, precision=precision, threads=job.threads, backend=backend or "torch")

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
    """Turn texts into vectors by the pipeline of `regard embed`, tokenisation included."""
    size = ReadSize(**job.facts["size"])
    texts = work.texts(job.facts["lengths"], size.vocabulary)
    pipeline = our_embedder(size, job.variant, job.threads)
    lone = {
        name: partial(reading.lone_value, partial(pipeline.embed, [text]))
        for name, text in reading.lone_texts(job).items()
    }
    turns.serve({"encoding": lambda: len(texts) / seconds(lambda: pipeline.embed(texts)), **lone})


def our_embedder(size: EncoderSize, precision: str, threads: int) -> EmbeddingPipeline:
    """Return what makes vectors of texts: an encoder with made-up weights, opened from its folder as any other."""
    words = work.encoder_tokenizer(size.vocabulary + 1)  # the mask is one more
    model = Encoder(size.config(vocabulary=words.size))
    start_encoder(model, 1)
    with tempfile.TemporaryDirectory() as room:
        save_encoder(room, model.config, model.state_dict(), tokenizer=words, task="", facts={}, card="")
        return load_embedder(room, precision=precision, threads=threads)


def masked(job: Job, turns: Turns) -> None:
    """Learn to tell hidden words: as everybody by AdamW, or with all usual settings of an encoder's pre-training."""
    size = TaughtSize(**job.facts["size"])
    precision, _, settings = job.variant.partition(" ")
    task = masking.task(size)
    training = training_config(TrainingConfig(), size.width, len(task.train.ids)) if settings == USUAL else ADAMW
    learn = learning(task, size.config(head="masked", **DROPOUTS), training, precision)
    _serve_learning(job, turns, "masked", learn, masking.budget(size))


def fine_tuning(job: Job, turns: Turns) -> None:
    """Learn to classify texts of mixed lengths."""
    size = TaughtSize(**job.facts["size"])
    config = size.config(head="label", labels=tuning.LABELS, **DROPOUTS)
    learn = learning(tuning.task(size), config, ADAMW, job.variant)
    _serve_learning(job, turns, "fine_tuning", learn, tuning.budget(size))


def _serve_learning(job: Job, turns: Turns, name: str, learn: Callable[[int, int], float], budget: int) -> None:
    torch.set_num_threads(job.threads)
    turns.serve({name: lambda: learn(job.facts["size"]["steps"], budget)})


def learning(
    task: Task, config: EncoderConfig, training: TrainingConfig, precision: str
) -> Callable[[int, int], float]:
    """Return what makes so many updates with batches of so many tokens, and returns tokens a second.

    An update is what the trainer does: cut the batch, forwards, backwards, clip, move; batches are those of an epoch.
    """
    model = Encoder(config)
    start_encoder(model, 1)
    optimizer = Optimizer(FlatWeights(model, precision), training)
    done = 0

    def learn(steps: int, budget: int) -> float:
        nonlocal done
        batches, tokens, began = task.epoch(0, budget), 0, time.perf_counter()
        for _ in range(steps):
            batch = task.batch(batches[done % len(batches)], 0)
            loss, plain = task.loss(model, batch, 0.0, Noise(1, done))
            loss.backward()
            float(plain)
            optimizer.gradient_norm(1 / batch.count)
            optimizer.update(1e-4)
            tokens += len((batch.rows if isinstance(batch, MaskedBatch) else batch.tokens).ids)
            done += 1
        return tokens / (time.perf_counter() - began)

    return learn


if __name__ == "__main__":
    beside(Job(**json.loads(sys.argv[1])))
