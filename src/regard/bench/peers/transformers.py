"""Hugging Face transformers: Marian in a plain loop and by `generate`, BERT for vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.bench import translation as translating
from regard.bench.child import Best, Job, Turns
from regard.bench.peers import Peer
from regard.bench.peers.bert import Arrays, bert, encoder_task
from regard.bench.peers.loop import DROPOUT, START, columns, training_loop
from regard.bench.settings import Size

_BOTH = ("float32", "bf16")
PEER = Peer(
    "transformers",
    {"transformers": "transformers"},
    {"training": _BOTH, "translation": _BOTH, "encoding": _BOTH},
    quick={"training": ("bf16",), "translation": ("float32",), "encoding": ("bf16",)},
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

    turns.serve({"encoding": encoder_task(job, forward)})
