"""Hugging Face transformers: Marian in a plain loop and by `generate`, BERT in a plain loop and for vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.bench import fine_tuning as tuning
from regard.bench import masked as masking
from regard.bench import translation as translating
from regard.bench.child import Best, Job, Turns
from regard.bench.peers import Peer
from regard.bench.peers.bert import Arrays, bert, encoder_tasks, labelling_bert, masked_bert
from regard.bench.peers.loop import DROPOUT, IGNORED, START, Inputs, columns, learning_loop, training_loop
from regard.bench.settings import Size, TaughtSize

_BOTH = ("float32", "bf16")
PEER = Peer(
    "transformers",
    {"transformers": "transformers"},
    {"training": _BOTH, "masked": _BOTH, "fine_tuning": _BOTH, "translation": _BOTH, "encoding": _BOTH},
    quick={
        "training": ("bf16",),
        "masked": ("bf16",),
        "fine_tuning": ("bf16",),
        "translation": ("float32",),
        "encoding": ("bf16",),
    },
)


def marian(size: Size) -> Any:
    """Return a Marian of this size with dropout wherever `nn.Transformer` has it."""
    from transformers import MarianConfig, MarianMTModel

    stacks = {
        f"{part}_{name}": value
        for part in ("encoder", "decoder")
        for name, value in (
            ("layers", size.layers),
            ("attention_heads", size.heads),
            ("ffn_dim", size.feedforward),
        )
    }
    config = MarianConfig(
        vocab_size=size.vocabulary,
        d_model=size.width,
        activation_function="relu",
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        activation_dropout=DROPOUT,
        max_position_embeddings=512,
        scale_embedding=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=START,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        **stacks,
    )
    return MarianMTModel(config)


def training(job: Job, turns: Turns) -> None:
    """Train Marian; the loss is smoothed as everybody's, which its own is not."""
    model = marian(Size(**job.facts["size"]))

    def logits(source: Tensor, given: Tensor) -> Tensor:
        found: Tensor = model(
            input_ids=source, attention_mask=(source != 0).long(), decoder_input_ids=given, use_cache=False
        ).logits
        return found

    training_loop(job, turns, model, logits, start=START)


def masked(job: Job, turns: Turns) -> None:
    """Teach BERT to tell the hidden words of the same batches."""
    size = TaughtSize(**job.facts["size"])
    learning_loop(job, turns, masked_bert(size), masked_inputs(size))


def masked_inputs(size: TaughtSize) -> list[Inputs]:
    """Return our batches as transformers takes them: everywhere but at hidden tokens the label says to look away."""
    task, made = masking.task(size), []
    for numbers in task.epoch(0, masking.budget(size)):
        batch = task.batch(numbers, 0)
        ids = batch.rows.ids.astype(np.int64)
        wanted = np.full(len(ids), IGNORED)
        wanted[batch.places] = batch.targets
        table, labels = (torch.from_numpy(one.reshape(len(numbers), -1)) for one in (ids, wanted))
        given = {"input_ids": table, "attention_mask": torch.ones_like(table), "labels": labels}
        made.append(Inputs(given, len(ids)))
    return made


def fine_tuning(job: Job, turns: Turns) -> None:
    """Teach BERT to classify the same batches."""
    size = TaughtSize(**job.facts["size"])
    learning_loop(job, turns, labelling_bert(size), tuning_inputs(size))


def tuning_inputs(size: TaughtSize) -> list[Inputs]:
    """Return our batches as transformers takes them, padded."""
    task, made = tuning.task(size), []
    for numbers in task.epoch(0, tuning.budget(size)):
        batch = task.batch(numbers, 0)
        table, mask = columns([row.tolist() for row in batch.tokens])
        given = {"input_ids": table, "attention_mask": mask, "labels": torch.from_numpy(batch.wanted)}
        made.append(Inputs(given, len(batch.tokens.ids)))
    return made


def translation(job: Job, turns: Turns) -> None:
    """Translate by `generate`, with the batch size or the number of threads that suits it best."""
    from transformers import AutoModelForSeq2SeqLM

    kind = torch.bfloat16 if job.variant == "bf16" else torch.float32
    model = AutoModelForSeq2SeqLM.from_pretrained(translating.folder(job, "transformers"), dtype=kind).eval()
    settings = model.generation_config
    settings.bad_words_ids = settings.forced_eos_token_id = settings.max_length = None  # less for it to do

    @torch.inference_mode()
    def generate(rows: Sequence[Sequence[int]], beam: int, size: int) -> None:
        for part, count in translating.batches(rows, size):
            ids, mask = columns(part)
            made = model.generate(
                input_ids=ids, attention_mask=mask, num_beams=beam, do_sample=False, max_new_tokens=count
            )
            assert made.shape[1] == count + 1, f"{made.shape[1] - 1} tokens were written, not {count}"

    turns.serve({name: _generating(job, name, generate) for name in job.facts["tasks"]})


def _generating(job: Job, name: str, generate: Any) -> Best[int]:
    """Return a task of translation that finds its best setting first."""
    beam, lone = translating.TASKS[name]
    rows = translating.rows(job, name)

    def run(chosen: int) -> float:
        torch.set_num_threads(chosen if lone else job.threads)
        return translating.value(partial(generate, rows, beam, 1 if lone else chosen), name, job)

    threads = {f"{count} thread{'s' * (count > 1)}": count for count in sorted({job.threads, 1}, reverse=True)}
    sizes = {f"batch {size}": size for size in translating.batch_sizes(job)}
    return Best(run, threads if lone else sizes, less=lone)


def encoding(job: Job, turns: Turns) -> None:
    """Turn texts into vectors by BERT."""
    model = bert(job).to(torch.bfloat16 if job.variant == "bf16" else torch.float32)

    @torch.inference_mode()
    def forward(ids: Arrays, mask: Arrays) -> Arrays:
        found = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
        return np.asarray(found.float().numpy())

    turns.serve(encoder_tasks(job, forward))
