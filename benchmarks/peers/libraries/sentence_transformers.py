"""Sentence-transformers: embeddings by its own `encode`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.peers import workload
from benchmarks.peers.libraries import Library
from benchmarks.peers.libraries.bert import build_bert, candidate_batch_sizes
from benchmarks.peers.tasks import draw_single_texts, measure_single_text
from benchmarks.peers.worker import BestSetting, Channel, Job, time_seconds

LIBRARY = Library(
    "sentence-transformers",
    requirements={"sentence_transformers": "sentence-transformers", "transformers": "transformers"},
    benchmarks={"encoding": ("float32", "bf16")},
    quick={"encoding": ("bf16",)},
)
MAX_LENGTH = 128


def run_encoding(job: Job, channel: Channel) -> None:
    """Embed texts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers import models as modules

    texts = workload.draw_texts(job.settings["lengths"], job.settings["size"]["vocab_size"])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build_bert(job).save_pretrained(folder)
        _write_tokenizer(job, folder)
        encoder = modules.Transformer(str(folder), max_seq_length=MAX_LENGTH)
        pooling = modules.Pooling(job.settings["size"]["hidden_size"])
        model = SentenceTransformer(modules=[encoder, pooling], device="cpu")
    model = model.to(torch.bfloat16 if job.variant == "bf16" else torch.float32)

    def encode(texts: Sequence[str], batch_size: int) -> None:
        model.encode(texts, batch_size=batch_size, show_progress_bar=False)

    def measure(batch_size: int) -> float:
        return len(texts) / time_seconds(lambda: encode(texts, batch_size))

    sizes = {f"batch {size}": size for size in candidate_batch_sizes(job)}
    single_measures = {
        name: partial(measure_single_text, partial(encode, [text], 1)) for name, text in draw_single_texts(job).items()
    }
    channel.serve({"encoding": BestSetting(measure, sizes), **single_measures})


def _write_tokenizer(job: Job, folder: Path) -> None:
    from tokenizers import processors

    backend = workload.build_tokenizer(job.settings["size"]["vocab_size"]).backend
    special_tokens = [("<s>", workload.BOS_ID), ("</s>", workload.EOS_ID)]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special_tokens)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_LENGTH,
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "cls_token": "<s>",
        "sep_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
