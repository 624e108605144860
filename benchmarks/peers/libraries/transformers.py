"""Hugging Face transformers: Marian in a plain loop and by `generate`, BERT in a plain loop and for embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers import tasks
from benchmarks.peers.config import TrainedEncoderSize, TranslatorSize
from benchmarks.peers.libraries import Library
from benchmarks.peers.libraries.bert import (
    Array,
    build_bert,
    build_classifier,
    build_encoding_measures,
    build_masked_lm,
)
from benchmarks.peers.libraries.training_loop import (
    DROPOUT,
    IGNORED,
    EncoderBatch,
    pad_with_mask,
    serve_encoder_training,
    serve_translator_training,
)
from benchmarks.peers.worker import BestSetting, Channel, Job
from benchmarks.peers.workload import BOS_ID

PRECISIONS = ("float32", "bf16")
LIBRARY = Library(
    "transformers",
    requirements={"transformers": "transformers"},
    benchmarks={
        "training": PRECISIONS,
        "masked": PRECISIONS,
        "fine_tuning": PRECISIONS,
        "translation": PRECISIONS,
        "encoding": PRECISIONS,
    },
    quick={
        "training": ("bf16",),
        "masked": ("bf16",),
        "fine_tuning": ("bf16",),
        "translation": ("float32",),
        "encoding": ("bf16",),
    },
)

Generate = Callable[[Sequence[Sequence[int]], int, int], None]  # rows, beam, batch size


def build_marian(size: TranslatorSize) -> Any:
    """Marian of a size, with dropout wherever `nn.Transformer` has it."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=size.vocab_size,
        d_model=size.hidden_size,
        encoder_layers=size.layers,
        encoder_attention_heads=size.heads,
        encoder_ffn_dim=size.feed_forward_size,
        decoder_layers=size.layers,
        decoder_attention_heads=size.heads,
        decoder_ffn_dim=size.feed_forward_size,
        activation_function="relu",
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        activation_dropout=DROPOUT,
        max_position_embeddings=512,
        scale_embedding=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=BOS_ID,
        decoder_start_token_id=BOS_ID,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config)


def run_training(job: Job, channel: Channel) -> None:
    """Train Marian; the loss has label smoothing like everyone's, unlike Marian's own."""
    model = build_marian(TranslatorSize(**job.settings["size"]))

    def logits(source: Tensor, decoder_input: Tensor) -> Tensor:
        output: Tensor = model(
            input_ids=source,
            attention_mask=(source != 0).long(),
            decoder_input_ids=decoder_input,
            use_cache=False,
        ).logits
        return output

    serve_translator_training(job, channel, model, logits, bos_id=BOS_ID)


def run_masked(job: Job, channel: Channel) -> None:
    """Train BERT as a masked language model on the same batches."""
    size = TrainedEncoderSize(**job.settings["size"])
    serve_encoder_training(job, channel, build_masked_lm(size), build_masked_lm_batches(size))


def build_masked_lm_batches(size: TrainedEncoderSize) -> list[EncoderBatch]:
    """Regard's batches as arguments of BERT: labels other than those of masked tokens are ignored."""
    objective = tasks.build_masked_lm_objective(size)
    batches = []
    for indices in objective.epoch_batches(0, tasks.masked_lm_batch_tokens(size)):
        batch = objective.batch(indices, 0)
        ids = batch.rows.ids.astype(np.int64)
        targets = np.full(len(ids), IGNORED)
        targets[batch.positions] = batch.targets
        table = torch.from_numpy(ids.reshape(len(indices), -1))
        labels = torch.from_numpy(targets.reshape(len(indices), -1))
        inputs = {"input_ids": table, "attention_mask": torch.ones_like(table), "labels": labels}
        batches.append(EncoderBatch(inputs, len(ids)))
    return batches


def run_fine_tuning(job: Job, channel: Channel) -> None:
    """Fine-tune BERT to classify the same batches."""
    size = TrainedEncoderSize(**job.settings["size"])
    serve_encoder_training(job, channel, build_classifier(size), build_fine_tuning_batches(size))


def build_fine_tuning_batches(size: TrainedEncoderSize) -> list[EncoderBatch]:
    """Regard's batches as arguments of BERT, padded."""
    objective = tasks.build_fine_tuning_objective(size)
    batches = []
    for indices in objective.epoch_batches(0, tasks.fine_tuning_batch_tokens(size)):
        batch = objective.batch(indices, 0)
        ids, mask = pad_with_mask([row.tolist() for row in batch.tokens])
        inputs = {"input_ids": ids, "attention_mask": mask, "labels": torch.from_numpy(batch.targets)}
        batches.append(EncoderBatch(inputs, len(batch.tokens.ids)))
    return batches


def run_translation(job: Job, channel: Channel) -> None:
    """Translate by `generate`, with the best batch size or number of threads."""
    from transformers import AutoModelForSeq2SeqLM

    dtype = torch.bfloat16 if job.variant == "bf16" else torch.float32
    folder = tasks.translator_folder(job, "transformers")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype).eval()
    model.generation_config.bad_words_ids = None  # so that it has less to do
    model.generation_config.forced_eos_token_id = None
    model.generation_config.max_length = None

    @torch.inference_mode()
    def generate(rows: Sequence[Sequence[int]], beam: int, batch_size: int) -> None:
        for batch, num_tokens in tasks.batch_by_length(rows, batch_size):
            ids, mask = pad_with_mask(batch)
            output = model.generate(
                input_ids=ids, attention_mask=mask, num_beams=beam, do_sample=False, max_new_tokens=num_tokens
            )
            assert output.shape[1] == num_tokens + 1, f"{output.shape[1] - 1} tokens generated, not {num_tokens}"

    channel.serve({name: _build_measure(job, name, generate) for name in job.settings["modes"]})


def _build_measure(job: Job, mode_name: str, generate: Generate) -> BestSetting[int]:
    """A measure of translation that finds the best batch size, or thread count for single sentences."""
    mode = tasks.TRANSLATION_MODES[mode_name]
    rows = tasks.source_rows(job, mode_name)

    def measure(setting: int) -> float:
        torch.set_num_threads(setting if mode.is_single else job.threads)
        run = partial(generate, rows, mode.beam, 1 if mode.is_single else setting)
        return tasks.measure_translation(run, mode_name, job)

    threads = {f"{count} thread{'s' * (count > 1)}": count for count in sorted({job.threads, 1}, reverse=True)}
    sizes = {f"batch {size}": size for size in tasks.candidate_batch_sizes(job)}
    return BestSetting(measure, threads if mode.is_single else sizes, lower_is_better=mode.is_single)


def run_encoding(job: Job, channel: Channel) -> None:
    """Embed texts with BERT."""
    model = build_bert(job).to(torch.bfloat16 if job.variant == "bf16" else torch.float32)

    @torch.inference_mode()
    def forward(ids: Array, mask: Array) -> Array:
        output = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
        return np.asarray(output.last_hidden_state.float().numpy())

    channel.serve(build_encoding_measures(job, forward))
