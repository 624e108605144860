"""Plain torch: `nn.Transformer` in a training loop, and an RNN decoder that computes one step at a time.

Both are written as in torch's tutorials, with its fused optimizer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from benchmarks.peers.config import TranslatorSize
from benchmarks.peers.libraries import Library
from benchmarks.peers.libraries.training_loop import (
    DROPOUT,
    build_padded_batches,
    build_updates,
    serve_translator_training,
)
from benchmarks.peers.tasks import INPUT_FEEDING, RECURRENT_CLIP, RecurrentSize
from benchmarks.peers.worker import Channel, Job, time_seconds
from benchmarks.peers.workload import BOS_ID
from regard.attention.positions import sinusoids

OUTPUT_AFTER_LOOP = "output at once"  # the projection to the vocabulary comes after the loop, not inside it
PRECISIONS = ("float32", "bf16")
MIN_POSITIONS = 512
MASKED_SCORE = -1e4
LIBRARY = Library(
    "torch",
    requirements={"torch": "torch"},
    benchmarks={
        "training": PRECISIONS,
        "recurrent": (*PRECISIONS, *(f"{precision} {OUTPUT_AFTER_LOOP}" for precision in PRECISIONS)),
    },
    quick={"training": ("bf16",), "recurrent": (f"float32 {OUTPUT_AFTER_LOOP}", f"bf16 {OUTPUT_AFTER_LOOP}")},
)


class PlainTransformer(nn.Module):
    """`nn.Transformer` with tied embeddings and sinusoidal positions."""

    def __init__(self, size: TranslatorSize, max_positions: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocab_size, size.hidden_size)
        nn.init.normal_(self.embedding.weight, 0, size.hidden_size**-0.5)
        self.register_buffer("positions", sinusoids(torch.arange(max_positions), size.hidden_size))
        self.transformer = nn.Transformer(
            d_model=size.hidden_size,
            nhead=size.heads,
            num_encoder_layers=size.layers,
            num_decoder_layers=size.layers,
            dim_feedforward=size.feed_forward_size,
            dropout=DROPOUT,
            batch_first=True,
        )
        self.dropout = nn.Dropout(DROPOUT)
        self.scale = math.sqrt(size.hidden_size)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:  # [B, S], [B, T] → [B, T, V]
        """Logits of every target position."""
        causal_mask = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        source_padding = source == 0
        hidden: Tensor = self.transformer(
            self._embed(source),
            self._embed(target),
            tgt_mask=causal_mask,
            src_key_padding_mask=source_padding,
            tgt_key_padding_mask=target == 0,
            memory_key_padding_mask=source_padding,
            tgt_is_causal=True,
        )
        return hidden @ self.embedding.weight.t()

    def _embed(self, ids: Tensor) -> Tensor:
        positions: Tensor = self.positions  # type: ignore[assignment]
        embedded: Tensor = self.dropout(self.embedding(ids) * self.scale + positions[: ids.shape[1]])
        return embedded


def run_training(job: Job, channel: Channel) -> None:
    """Train `nn.Transformer`."""
    max_length = max(max(map(max, batch)) for batch in job.settings["lengths"])
    model = PlainTransformer(TranslatorSize(**job.settings["size"]), max(MIN_POSITIONS, max_length + 1))
    serve_translator_training(job, channel, model, model, bos_id=BOS_ID)


class StepwiseRNN(nn.Module):
    """Bidirectional LSTM encoder, and an LSTM decoder that attends before each step (Bahdanau et al. 2015)."""

    def __init__(self, size: RecurrentSize, output_after_loop: bool) -> None:
        super().__init__()
        hidden_size = size.hidden_size
        self.output_after_loop = output_after_loop
        self.source_embedding = nn.Embedding(size.vocab_size, hidden_size, 0)
        self.target_embedding = nn.Embedding(size.vocab_size, hidden_size, 0)
        self.encoder = nn.LSTM(hidden_size, hidden_size, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hidden_size, hidden_size)
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(2 * hidden_size, hidden_size)
        self.score = nn.Linear(hidden_size, 1)
        self.cell = nn.LSTM(3 * hidden_size, hidden_size, batch_first=True)
        self.combine = nn.Linear(3 * hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, size.vocab_size)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:  # [B, S], [B, T] → [B, T, V]
        """Logits of every target position."""
        padding = source == 0
        packed = nn.utils.rnn.pack_padded_sequence(
            self.source_embedding(source), (~padding).sum(1), batch_first=True, enforce_sorted=False
        )
        packed_memory, (last_hidden, _) = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(packed_memory, batch_first=True)
        keys = self.key(memory)
        embedded = self.target_embedding(target)
        hidden = torch.tanh(self.bridge(torch.cat([last_hidden[0], last_hidden[1]], dim=1)))[None]
        cell = torch.zeros_like(hidden)
        outputs = []
        for step in range(target.shape[1]):
            scores = self.score(torch.tanh(self.query(hidden[-1])[:, None] + keys)).squeeze(2)
            weights = scores.masked_fill(padding, MASKED_SCORE).softmax(1)
            context = (weights[:, None] @ memory.to(weights.dtype)).to(embedded.dtype)
            inputs = torch.cat([embedded[:, step : step + 1], context], dim=2)
            output, (hidden, cell) = self.cell(inputs, (hidden.to(embedded.dtype), cell.to(embedded.dtype)))
            output = torch.tanh(self.combine(torch.cat([output, context.to(output.dtype)], dim=2)))
            outputs.append(output if self.output_after_loop else self.output(output))
        stacked = torch.cat(outputs, dim=1)
        return self.output(stacked) if self.output_after_loop else stacked


def run_recurrent(job: Job, channel: Channel) -> None:
    """Train the RNN; its rate is compared with each of Regard's models."""
    precision, _, variant = job.variant.partition(" ")
    size = RecurrentSize(**job.settings["size"])
    model = StepwiseRNN(size, output_after_loop=variant == OUTPUT_AFTER_LOOP)
    batches, tokens = build_padded_batches(job, BOS_ID, size.vocab_size)
    update = build_updates(model, model, batches, bf16=precision == "bf16", clip=RECURRENT_CLIP, smoothing=0.0)
    channel.serve(dict.fromkeys(INPUT_FEEDING, lambda: tokens / time_seconds(update)))
