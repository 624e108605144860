"""What the peers that encode texts share: BERT with made-up weights, its tokenizer, batches and the mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.bench import fine_tuning as tuning
from regard.bench import work
from regard.bench.child import Best, Job, Value, seconds
from regard.bench.encoding import lone_texts, lone_value
from regard.bench.settings import EncoderSize, ReadSize, TaughtSize
from regard.text.tokenizer import SPECIALS

Arrays = NDArray[Any]
Forward = Callable[[Arrays, Arrays], Arrays]  # ids and mask [B, T] → states [B, T, D]

BATCHES = (8, 16, 32, 64)  # texts together that peers choose from
PLACES = 512


def bert(job: Job, *, pooler: bool = False) -> Any:
    """Return transformers' BERT of the job's size, ready for inference; the same weights for everybody."""
    from transformers import BertModel

    torch.manual_seed(1)
    return BertModel(bert_config(ReadSize(**job.facts["size"])), add_pooling_layer=pooler).eval()


def bert_config(size: EncoderSize, **more: object) -> Any:
    """Return transformers' config of a size; dropout is 0.1 everywhere, as it is unless something else is said."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.feedforward,
        max_position_embeddings=PLACES,
        pad_token_id=SPECIALS.index("<pad>"),
        **more,
    )


def masked_bert(size: TaughtSize) -> Any:
    """Return transformers' BERT that learns to tell hidden words."""
    from transformers import BertForMaskedLM

    return BertForMaskedLM(bert_config(size))


def labelling_bert(size: TaughtSize) -> Any:
    """Return transformers' BERT that learns to classify."""
    from transformers import BertForSequenceClassification

    return BertForSequenceClassification(bert_config(size, num_labels=tuning.LABELS))


class Exportable(torch.nn.Module):
    """BERT with plain tensors in and out, as exporters want it."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.model = bert(job)
        self.model.set_attn_implementation("eager")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the last states."""
        found: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return found


def example(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask of two rows, for exporters."""
    ids = torch.full((2, 9), len(SPECIALS))
    return ids, torch.ones_like(ids)


def rows(job: Job) -> Callable[[Sequence[str]], list[list[int]]]:
    """Return what turns texts into rows of token numbers with a mark at each end."""
    made = work.tokenizer(job.facts["size"]["vocabulary"])
    return lambda texts: [[made.start, *ids, made.end] for ids in made.encode_all(texts)]


def encoder_tasks(job: Job, forward: Forward) -> dict[str, Callable[[], float | Value]]:
    """Return the tasks of turning texts into vectors: all, longest first, in batches of the best size; a lone one."""
    texts, width = work.texts(job.facts["lengths"], job.facts["size"]["vocabulary"]), job.facts["size"]["width"]
    tokens = rows(job)

    def encode(some: Sequence[str], size: int) -> Arrays:
        given = tokens(some)
        order = sorted(range(len(given)), key=lambda number: -len(given[number]))
        vectors = np.empty((len(given), width), np.float32)
        for first in range(0, len(order), size):
            numbers = order[first : first + size]
            ids = work.padded([given[number] for number in numbers])
            mask = (ids != 0).astype(np.int64)
            states = forward(ids, mask)
            real = mask[:, :, None].astype(np.float32)
            vectors[numbers] = (states * real).sum(1) / real.sum(1)
        return vectors

    sizes = {f"batch {size}": size for size in batch_sizes(job)}
    lone = {name: partial(lone_value, partial(encode, [text], 1)) for name, text in lone_texts(job).items()}
    return {"encoding": Best(lambda size: len(texts) / seconds(lambda: encode(texts, size)), sizes), **lone}


def batch_sizes(job: Job) -> Sequence[int]:
    """Return the sizes of batches that are tried; a quick run tries one."""
    return BATCHES[2:3] if job.facts.get("quick") else BATCHES


def onnx_file(job: Job, folder: Path) -> Path:
    """Write the model as ONNX and return where."""
    path = folder / "model.onnx"
    names = ("input_ids", "attention_mask")
    free = {0: "rows", 1: "places"}
    torch.onnx.export(
        Exportable(job),
        example(job),
        str(path),
        input_names=list(names),
        output_names=["states"],
        dynamic_axes=dict.fromkeys((*names, "states"), free),
        opset_version=17,
        dynamo=False,
    )
    return path
