"""A plain torch training loop for models of other libraries: padded batches built beforehand, autocast for bf16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.peers import workload
from benchmarks.peers.worker import Channel, Job, time_seconds

DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
LEARNING_RATE = 1e-4
BETAS = (0.9, 0.98)
IGNORED = -100  # label that transformers leaves out of the loss

Logits = Callable[[Tensor, Tensor], Tensor]  # source and decoder input [B, S], [B, T] → logits [B, T, V]


@dataclass(frozen=True)
class PaddedBatch:
    """A batch in the form of other libraries, padded with zeros."""

    source: Tensor  # [B, S], each row with the end token
    decoder_input: Tensor  # [B, T]
    targets: Tensor  # [B, T]


def build_padded_batches(job: Job, bos_id: int, vocab_size: int) -> tuple[list[PaddedBatch], int]:
    """The job's batches, padded, and their number of target tokens."""
    batches = workload.build_batches(job.settings["lengths"], vocab_size)
    padded = []
    for batch in batches:
        target_rows = [row.tolist() for row in batch.target]
        padded.append(
            PaddedBatch(
                source=_pad([row.tolist() for row in batch.source]),
                decoder_input=_pad([[bos_id, *row] for row in target_rows]),
                targets=_pad([[*row, workload.EOS_ID] for row in target_rows]),
            )
        )
    return padded, sum(batch.num_predictions for batch in batches)


def _pad(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.from_numpy(workload.pad_rows(rows))


def serve_translator_training(job: Job, channel: Channel, model: nn.Module, logits: Logits, *, bos_id: int) -> None:
    """Train a translator on the job's batches: forward pass, smoothed cross-entropy, backward pass, fused AdamW."""
    batches, tokens = build_padded_batches(job, bos_id, job.settings["size"]["vocab_size"])
    update = build_updates(model, logits, batches, bf16=job.variant == "bf16")
    channel.serve({"training": lambda: tokens / time_seconds(update)})


def build_updates(
    model: nn.Module,
    logits: Logits,
    batches: Sequence[PaddedBatch],
    *,
    bf16: bool,
    clip: float = 0.0,
    smoothing: float = LABEL_SMOOTHING,
) -> Callable[[], None]:
    """Build a function that makes one update on each batch."""
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), LEARNING_RATE, betas=BETAS, eps=1e-9, weight_decay=0.0, fused=True
    )

    def update() -> None:
        for batch in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = smoothed_loss(logits(batch.source, batch.decoder_input), batch.targets, smoothing)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()

    return update


def smoothed_loss(logits: Tensor, targets: Tensor, smoothing: float = LABEL_SMOOTHING) -> Tensor:
    """Mean cross-entropy per token with label smoothing, without padding."""
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=0, label_smoothing=smoothing
    )


def pad_with_mask(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Padded token ids and their attention mask.

    >>> ids, mask = pad_with_mask([[5, 1], [6, 7, 1]])
    >>> ids.tolist(), mask.tolist()
    ([[5, 1, 0], [6, 7, 1]], [[1, 1, 0], [1, 1, 1]])
    """
    ids = _pad(rows)
    return ids, (ids != 0).long()


@dataclass(frozen=True)
class EncoderBatch:
    """Arguments of an encoder of transformers, and the number of tokens."""

    inputs: dict[str, Tensor]
    tokens: int


def serve_encoder_training(job: Job, channel: Channel, model: nn.Module, batches: Sequence[EncoderBatch]) -> None:
    """Train a model that computes its own loss, some updates at a time, with gradient clipping."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.01, fused=True)
    steps = job.settings["size"]["steps"]
    bf16 = job.variant == "bf16"
    step = 0

    def update(selected: Sequence[EncoderBatch]) -> None:
        for batch in selected:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(**batch.inputs).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    def measure() -> float:
        nonlocal step
        selected = [batches[(step + offset) % len(batches)] for offset in range(steps)]
        step += steps
        return sum(batch.tokens for batch in selected) / time_seconds(lambda: update(selected))

    channel.serve({job.benchmark: measure})
