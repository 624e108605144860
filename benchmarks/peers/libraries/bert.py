"""Shared by libraries that encode texts: BERT with random weights, its tokenizer, batches and mean pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers import workload
from benchmarks.peers.config import EmbeddingSize, EncoderSize, TrainedEncoderSize
from benchmarks.peers.tasks import NUM_LABELS, draw_single_texts, measure_single_text
from benchmarks.peers.worker import BestSetting, Job, Sample, time_seconds
from regard.text.tokenizer import SPECIAL_TOKENS

Array = NDArray[Any]
Forward = Callable[[Array, Array], Array]  # ids and mask [B, T] → hidden states [B, T, D]

BATCH_SIZES = (8, 16, 32, 64)  # texts; peers use the one that suits them best
MAX_POSITIONS = 512
ONNX_OPSET = 17


def build_bert(job: Job, *, pooler: bool = False) -> Any:
    """BERT of transformers in the job's size, for inference; every library gets the same weights."""
    from transformers import BertModel

    torch.manual_seed(1)
    return BertModel(bert_config(EmbeddingSize(**job.settings["size"])), add_pooling_layer=pooler).eval()


def bert_config(size: EncoderSize, **changes: object) -> Any:
    """Config of transformers for a size; dropout is 0.1, its default."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=size.vocab_size,
        hidden_size=size.hidden_size,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.feed_forward_size,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=SPECIAL_TOKENS.index("<pad>"),
        **changes,
    )


def build_masked_lm(size: TrainedEncoderSize) -> Any:
    """BERT of transformers as a masked language model."""
    from transformers import BertForMaskedLM

    return BertForMaskedLM(bert_config(size))


def build_classifier(size: TrainedEncoderSize) -> Any:
    """BERT of transformers as a classifier."""
    from transformers import BertForSequenceClassification

    return BertForSequenceClassification(bert_config(size, num_labels=NUM_LABELS))


class ExportableBert(torch.nn.Module):
    """BERT with plain tensors as inputs and output, as exporters need it."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.model = build_bert(job)
        self.model.set_attn_implementation("eager")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Hidden states of the last layer."""
        hidden: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return hidden


def example_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of two rows, for exporters."""
    ids = torch.full((2, 9), len(SPECIAL_TOKENS))
    return ids, torch.ones_like(ids)


def build_row_encoder(job: Job) -> Callable[[Sequence[str]], list[list[int]]]:
    """Build a function from texts to rows of token ids with special tokens at both ends."""
    tokenizer = workload.build_tokenizer(job.settings["size"]["vocab_size"])

    def encode_rows(texts: Sequence[str]) -> list[list[int]]:
        return [[tokenizer.bos_id, *ids, tokenizer.eos_id] for ids in tokenizer.encode_batch(texts)]

    return encode_rows


def build_encoding_measures(job: Job, forward: Forward) -> dict[str, Callable[[], float | Sample]]:
    """Measures of embedding: all texts, longest first, in batches of the best size; and single texts."""
    texts = workload.draw_texts(job.settings["lengths"], job.settings["size"]["vocab_size"])
    hidden_size = job.settings["size"]["hidden_size"]
    encode_rows = build_row_encoder(job)

    def embed(texts: Sequence[str], batch_size: int) -> Array:
        rows = encode_rows(texts)
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        vectors = np.empty((len(rows), hidden_size), np.float32)
        for first in range(0, len(order), batch_size):
            indices = order[first : first + batch_size]
            ids = workload.pad_rows([rows[index] for index in indices])
            mask = (ids != 0).astype(np.int64)
            hidden = forward(ids, mask)
            weights = mask[:, :, None].astype(np.float32)
            vectors[indices] = (hidden * weights).sum(1) / weights.sum(1)
        return vectors

    def measure(batch_size: int) -> float:
        return len(texts) / time_seconds(lambda: embed(texts, batch_size))

    sizes = {f"batch {size}": size for size in candidate_batch_sizes(job)}
    single_measures = {
        name: partial(measure_single_text, partial(embed, [text], 1)) for name, text in draw_single_texts(job).items()
    }
    return {"encoding": BestSetting(measure, sizes), **single_measures}


def candidate_batch_sizes(job: Job) -> Sequence[int]:
    """Batch sizes to try; one with --quick."""
    return BATCH_SIZES[2:3] if job.settings.get("quick") else BATCH_SIZES


def write_onnx(job: Job, folder: Path) -> Path:
    """Write the model as ONNX and return its path."""
    path = folder / "model.onnx"
    inputs = ["input_ids", "attention_mask"]
    dynamic_axes = {0: "rows", 1: "positions"}
    torch.onnx.export(
        ExportableBert(job),
        example_inputs(),
        str(path),
        input_names=inputs,
        output_names=["states"],
        dynamic_axes=dict.fromkeys([*inputs, "states"], dynamic_axes),
        opset_version=ONNX_OPSET,
        dynamo=False,
    )
    return path
