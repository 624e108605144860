"""Sentence-transformers: texts to vectors by its own `encode`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from regard.bench import work
from regard.bench.child import Best, Job, Turns, seconds
from regard.bench.encoding import lone_texts, lone_value
from regard.bench.peers import Peer
from regard.bench.peers.bert import batch_sizes, bert
from regard.text.tokenizer import SPECIALS

PEER = Peer(
    "sentence-transformers",
    {"sentence_transformers": "sentence-transformers", "transformers": "transformers"},
    {"encoding": ("float32", "bf16")},
    quick={"encoding": ("bf16",)},
)
LONGEST = 128


def encoding(job: Job, turns: Turns) -> None:
    """Turn texts into vectors."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers import models as parts

    texts = work.texts(job.facts["lengths"], job.facts["size"]["vocabulary"])
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room)
        bert(job).save_pretrained(folder)
        _write_tokenizer(job, folder)
        reader = parts.Transformer(str(folder), max_seq_length=LONGEST)
        mean = parts.Pooling(job.facts["size"]["width"])
        model = SentenceTransformer(modules=[reader, mean], device="cpu")
    model = model.to(torch.bfloat16 if job.variant == "bf16" else torch.float32)

    def encode(some: Sequence[str], size: int) -> None:
        model.encode(some, batch_size=size, show_progress_bar=False)

    def run(size: int) -> float:
        return len(texts) / seconds(lambda: encode(texts, size))

    lone = {name: partial(lone_value, partial(encode, [text], 1)) for name, text in lone_texts(job).items()}
    turns.serve({"encoding": Best(run, {f"batch {size}": size for size in batch_sizes(job)}), **lone})


def _write_tokenizer(job: Job, folder: Path) -> None:
    from tokenizers import processors

    backend = work.tokenizer(job.facts["size"]["vocabulary"]).backend
    marks = [(name, SPECIALS.index(name)) for name in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=marks)
    backend.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LONGEST, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
