"""Regard's runner: training steps and pipelines with the precision and threads of a job's variant.

Dropout, label smoothing, optimiser and batches are those of the peers, so that all do the same work; only the variant
"usual settings" has what users get by default.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.peers import tasks, workload
from benchmarks.peers.config import EmbeddingSize, EncoderSize, TrainedEncoderSize, TranslatorSize
from benchmarks.peers.worker import Channel, Job, Sample, time_seconds
from regard.attention.dropout import Noise
from regard.checkpoint.encoder_dir import save_encoder
from regard.config.data import ReadConfig, TokenizerConfig
from regard.config.models import BertConfig
from regard.config.rnn_models import TranslationModelConfig
from regard.config.training import TrainingConfig
from regard.data.batching import epoch_batches
from regard.data.pairs import read_pairs
from regard.hardware import end_with_parent
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.models.bert import Bert, initialize_bert
from regard.packed_tokens import PairBatch
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.load import load_embedder, load_translator
from regard.tasks.base import Objective
from regard.tasks.masked_lm import MaskedLMBatch
from regard.tasks.translation import TokenizerPair
from regard.text.sentences import split_sentences
from regard.text.train import train_tokenizer
from regard.training.auto_config import resolve_training_config
from regard.training.distributed import Distributed
from regard.training.flat_weights import FlatWeights
from regard.training.launcher import run_ranks
from regard.training.optimizer import Optimizer

DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
LEARNING_RATE = 1e-4
MIN_POSITIONS = 512
WORKERS = "one-thread workers"
ENGINE = "engine"  # variants in the engine; the others are in torch
DEFAULT_SETTINGS = "usual settings"
TRANSLATOR_DROPOUT = {"dropout": DROPOUT, "attention_dropout": DROPOUT, "activation_dropout": DROPOUT}
ENCODER_DROPOUT = {"dropout": DROPOUT, "attention_dropout": DROPOUT, "classifier_dropout": DROPOUT}
FINE_TUNING_CONFIG = TrainingConfig(optimizer="adamw", weight_decay=0.01, adam_beta2=0.999, ema_decay=0.0)
CHARACTERS = [" ", "a", "\u0301", "👩\u200d", "א", "語", "7", ".", "a ", "\t", "é1 ", "A b. ", "?!", "Mr. "]
CORPUS_BATCH_TOKENS = 4096

Updates = Callable[[], None]  # one update on each batch
UpdateBuilder = Callable[[Job, Distributed], tuple[dict[str, Updates], int]]  # → updates by metric, target tokens


def run_training(job: Job, channel: Channel) -> None:
    """Train a Transformer on the same batches again and again."""
    _serve_updates(job, channel)


def run_recurrent(job: Job, channel: Channel) -> None:
    """Train RNNs on the same batches again and again."""
    _serve_updates(job, channel)


def _serve_updates(job: Job, channel: Channel) -> None:
    """Measure updates with all threads, or with several processes of one thread each."""
    workers = int(job.settings.get("workers", job.threads)) if job.variant.endswith(WORKERS) else 1
    if workers > 1:
        os.dup2(channel.answers.fileno(), sys.stdout.fileno())  # rank 0 answers the requests
        run_ranks(workers, ["-m", "benchmarks.peers.regard_runner", job.dumps()])
        return
    torch.set_num_threads(job.threads)
    with Distributed() as single:
        _answer_requests(job, channel, single)


def _answer_requests(job: Job, channel: Channel, distributed: Distributed) -> None:
    updates_by_metric, tokens = UPDATE_BUILDERS[job.benchmark](job, distributed)

    def measure(index: int, updates: Updates) -> float:
        distributed.broadcast([1.0 + index])  # the other ranks wait here, idle, for a measurement
        return measure_rate(tokens, updates)

    channel.serve(
        {metric: partial(measure, index, updates) for index, (metric, updates) in enumerate(updates_by_metric.items())}
    )
    distributed.broadcast([0.0])


def _build_training_updates(job: Job, distributed: Distributed) -> tuple[dict[str, Updates], int]:
    batches = workload.build_batches(job.settings["lengths"], job.settings["size"]["vocab_size"])
    max_length = max(int(batch.source.lengths.max()) for batch in batches)
    size = TranslatorSize(**job.settings["size"])
    config = size.config(**TRANSLATOR_DROPOUT, max_positions=max(MIN_POSITIONS, max_length))
    precision = job.variant.split()[0]
    updates = build_updates(config, precision, batches, distributed, clip=0.0, smoothing=LABEL_SMOOTHING)
    return {"training": updates}, sum(batch.num_predictions for batch in batches)


def _build_recurrent_updates(job: Job, distributed: Distributed) -> tuple[dict[str, Updates], int]:
    size = tasks.RecurrentSize(**job.settings["size"])
    batches = workload.build_batches(job.settings["lengths"], size.vocab_size)
    precision = job.variant.split()[0]
    updates = {
        metric: build_updates(
            size.config(feeding), precision, batches, distributed, clip=tasks.RECURRENT_CLIP, smoothing=0.0
        )
        for metric, feeding in tasks.INPUT_FEEDING.items()
    }
    return updates, sum(batch.num_predictions for batch in batches)


UPDATE_BUILDERS: dict[str, UpdateBuilder] = {
    "training": _build_training_updates,
    "recurrent": _build_recurrent_updates,
}


def build_updates(
    config: TranslationModelConfig,
    precision: str,
    batches: Sequence[PairBatch],
    distributed: Distributed,
    *,
    clip: float,
    smoothing: float,
) -> Updates:
    """Build a function that updates a new model on each batch with AdamW; each process computes its shard."""
    model = build_model(config)
    initialize_weights(model, 1)
    weights = FlatWeights(model, precision)
    optimizer = Optimizer(
        weights, TrainingConfig(optimizer="adamw", max_gradient_norm=clip, ema_decay=0.0), distributed
    )
    shards = [
        (workload.shard_batch(batch, distributed.rank, distributed.world_size), batch.num_predictions)
        for batch in batches
    ]

    def update() -> None:
        for index, (batch, tokens) in enumerate(shards):
            noise = Noise(1, index, distributed.rank)
            model.loss(batch.source, batch.target, smoothing=smoothing, noise=noise)[0].backward()
            optimizer.reduce_gradient(1 / tokens)
            optimizer.update(LEARNING_RATE)

    return update


def measure_rate(tokens: int, updates: Updates) -> float:
    """Tokens per second."""
    return tokens / time_seconds(updates)


def run_rank(job: Job) -> None:
    """Be one of several ranks that train together: rank 0 answers requests, the others train along."""
    end_with_parent(os.getppid())
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    channel = Channel(sys.stdin, answers, parent_id=os.getppid())
    with Distributed.from_environment() as distributed:
        try:
            if distributed.is_rank_zero:
                _answer_requests(job, channel, distributed)
            else:
                _follow_requests(job, distributed)
        except Exception as error:
            traceback.print_exc()
            if distributed.is_rank_zero:
                channel.fail(error)


def _follow_requests(job: Job, distributed: Distributed) -> None:
    """Make the updates of every measurement of rank 0."""
    updates = list(UPDATE_BUILDERS[job.benchmark](job, distributed)[0].values())
    while number := int(distributed.broadcast([0.0])[0]):
        updates[number - 1]()


def run_translation(job: Job, channel: Channel) -> None:
    """Translate texts with the pipeline that `regard.load` returns."""
    precision, _, backend = job.variant.partition(" ")
    folder = tasks.translator_folder(job, "regard")
    pipeline = load_translator(folder, precision=precision, threads=job.threads, backend=backend or "torch")

    def translate(mode_name: str, texts: Sequence[str]) -> None:
        mode = tasks.TRANSLATION_MODES[mode_name]
        for batch in [[text] for text in texts] if mode.is_single else [texts]:
            pipeline.translate(batch, split=False, beam=mode.beam, max_length_a=1.0, max_length_b=0)

    def measure(mode_name: str, texts: Sequence[str]) -> float:
        return tasks.measure_translation(partial(translate, mode_name, texts), mode_name, job)

    channel.serve({name: partial(measure, name, tasks.source_texts(job, name)) for name in job.settings["modes"]})


def run_encoding(job: Job, channel: Channel) -> None:
    """Embed texts with the pipeline of `regard embed`, tokenization included."""
    size = EmbeddingSize(**job.settings["size"])
    texts = workload.draw_texts(job.settings["lengths"], size.vocab_size)
    pipeline = build_embedder(size, job.variant, job.threads)
    single_measures = {
        name: partial(tasks.measure_single_text, partial(pipeline.embed, [text]))
        for name, text in tasks.draw_single_texts(job).items()
    }
    channel.serve({"encoding": lambda: len(texts) / time_seconds(lambda: pipeline.embed(texts)), **single_measures})


def build_embedder(size: EncoderSize, precision: str, threads: int) -> EmbeddingPipeline:
    """Embedding pipeline of a random encoder, loaded from a folder like any other."""
    tokenizer = workload.build_encoder_tokenizer(size.vocab_size + 1)  # one more for the mask
    model = Bert(size.config(vocab_size=tokenizer.vocab_size))
    initialize_bert(model, 1)
    with tempfile.TemporaryDirectory() as folder:
        save_encoder(folder, model.config, model.state_dict(), tokenizer=tokenizer, task="", metadata={}, card="")
        return load_embedder(folder, precision=precision, threads=threads)


def run_masked(job: Job, channel: Channel) -> None:
    """Train a masked language model: with AdamW as the peers do, or with Regard's defaults for pretraining."""
    size = TrainedEncoderSize(**job.settings["size"])
    precision, _, settings = job.variant.partition(" ")
    objective = tasks.build_masked_lm_objective(size)
    training = FINE_TUNING_CONFIG
    if settings == DEFAULT_SETTINGS:
        training = resolve_training_config(TrainingConfig(), size.hidden_size, len(objective.train.ids))
    train = build_encoder_training(objective, size.config(head="masked", **ENCODER_DROPOUT), training, precision)
    _serve_encoder_training(job, channel, train, tasks.masked_lm_batch_tokens(size))


def run_fine_tuning(job: Job, channel: Channel) -> None:
    """Fine-tune an encoder to classify texts of mixed lengths."""
    size = TrainedEncoderSize(**job.settings["size"])
    config = size.config(head="label", num_labels=tasks.NUM_LABELS, **ENCODER_DROPOUT)
    objective = tasks.build_fine_tuning_objective(size)
    train = build_encoder_training(objective, config, FINE_TUNING_CONFIG, job.variant)
    _serve_encoder_training(job, channel, train, tasks.fine_tuning_batch_tokens(size))


def _serve_encoder_training(job: Job, channel: Channel, train: Callable[[int, int], float], batch_tokens: int) -> None:
    torch.set_num_threads(job.threads)
    channel.serve({job.benchmark: lambda: train(job.settings["size"]["steps"], batch_tokens)})


def build_encoder_training(
    objective: Objective, config: BertConfig, training: TrainingConfig, precision: str
) -> Callable[[int, int], float]:
    """Build a function that makes some updates with batches of so many tokens and returns tokens per second.

    An update does what the trainer does: form the batch, forward and backward pass, clip, step. Batches are those of
    one epoch, repeated.
    """
    model = Bert(config)
    initialize_bert(model, 1)
    optimizer = Optimizer(FlatWeights(model, precision), training)
    step = 0

    def train(steps: int, batch_tokens: int) -> float:
        nonlocal step
        batches = objective.epoch_batches(0, batch_tokens)
        tokens = 0
        start = time.perf_counter()
        for _ in range(steps):
            batch = objective.batch(batches[step % len(batches)], 0)
            loss, plain_loss = objective.loss(model, batch, 0.0, Noise(1, step))
            loss.backward()
            float(plain_loss)
            optimizer.reduce_gradient(1 / batch.num_predictions)
            optimizer.update(LEARNING_RATE)
            tokens += len((batch.rows if isinstance(batch, MaskedLMBatch) else batch.tokens).ids)
            step += 1
        return tokens / (time.perf_counter() - start)

    return train


def run_corpus(job: Job, channel: Channel) -> None:
    """Prepare a corpus for training: read pairs, train a tokenizer, tokenize, form the batches of one epoch."""
    pairs = workload.draw_pairs(job.settings["pairs"], job.settings["size"]["vocab_size"])
    source_texts = workload.spell_rows([source for source, _ in pairs])
    target_texts = workload.spell_rows([target for _, target in pairs])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.tsv"
        lines = (f"{source}\t{target}\n" for source, target in zip(source_texts, target_texts, strict=True))
        path.write_text("".join(lines), encoding="utf-8")
        del pairs, source_texts, target_texts  # not part of the memory that is measured
        channel.serve({"corpus": lambda: time_seconds(partial(_prepare_corpus, path))})


def _prepare_corpus(path: Path) -> None:
    pairs = read_pairs((str(path),), ReadConfig())
    tokenizer = train_tokenizer([*pairs.source, *pairs.target], TokenizerConfig())
    examples = TokenizerPair(tokenizer, tokenizer).tokenize(pairs)
    epoch_batches(examples.lengths, max_tokens=CORPUS_BATCH_TOKENS, seed=1, epoch=0, digest=pairs.digest)


def run_text(job: Job, channel: Channel) -> None:
    """Tokenize and split long repetitions of awkward characters; the slowest counts."""
    tokenizer = train_tokenizer(["the quick brown fox jumps over the lazy dog 123"] * 50, TokenizerConfig())
    num_characters = job.settings["characters"]

    def measure_slowest(process: Callable[[str], object]) -> Sample:
        seconds = {
            pattern: time_seconds(partial(process, pattern * (num_characters // len(pattern))))
            for pattern in CHARACTERS
        }
        slowest = max(seconds, key=lambda pattern: seconds[pattern])
        return Sample(seconds[slowest], f"slowest: {slowest!a}")

    channel.serve(
        {
            "tokenise": partial(measure_slowest, lambda text: tokenizer.encode_batch([text])),
            "split": partial(measure_slowest, split_sentences),
        }
    )


if __name__ == "__main__":
    run_rank(Job(**json.loads(sys.argv[1])))
