"""The plain loop that models of other libraries are trained by: padded batches made beforehand, autocast for bf16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.bench import work
from regard.bench.child import Job, Turns, seconds

DROPOUT = SMOOTHING = 0.1
START = work.START
BETAS = (0.9, 0.98)
IGNORED = -100  # the label that transformers leaves out


@dataclass(frozen=True)
class Padded:
    """A batch as other libraries take it."""

    source: Tensor  # [B, S], each row with its end
    given: Tensor  # [B, T], what the decoder reads
    wanted: Tensor  # [B, T], what it should write


def padded_batches(job: Job, start: int, vocabulary: int) -> tuple[list[Padded], int]:
    """Return the job's batches, padded with zeros, and how many target tokens they have."""
    batches = work.batches(job.facts["lengths"], vocabulary)
    made = []
    for batch in batches:
        targets = [row.tolist() for row in batch.target]
        rows = (
            [row.tolist() for row in batch.source],
            [[start, *row] for row in targets],
            [[*row, work.END] for row in targets],
        )
        made.append(Padded(*(torch.from_numpy(work.padded(some)) for some in rows)))
    return made, sum(batch.count for batch in batches)


def training_loop(
    job: Job, turns: Turns, model: nn.Module, logits: Callable[[Tensor, Tensor], Tensor], *, start: int
) -> None:
    """Train a model on the job's batches: forwards, smoothed cross-entropy, backwards, fused AdamW."""
    batches, tokens = padded_batches(job, start, job.facts["size"]["vocabulary"])
    updates = updating(model, logits, batches, bf16=job.variant == "bf16")
    turns.serve({"training": lambda: tokens / seconds(updates)})


def updating(
    model: nn.Module,
    logits: Callable[[Tensor, Tensor], Tensor],
    batches: Sequence[Padded],
    *,
    bf16: bool,
    clip: float = 0.0,
    smoothing: float = SMOOTHING,
) -> Callable[[], None]:
    """Return what makes an update on each batch."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, betas=BETAS, eps=1e-9, weight_decay=0.0, fused=True)

    def updates() -> None:
        for batch in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = smoothed_loss(logits(batch.source, batch.given), batch.wanted, smoothing)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()

    return updates


def smoothed_loss(logits: Tensor, wanted: Tensor, smoothing: float = SMOOTHING) -> Tensor:
    """Return the mean loss a token; padding does not count."""
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), ignore_index=0, label_smoothing=smoothing
    )


def columns(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return token rows as a padded table, and the mask of what is real.

    >>> ids, mask = columns([[5, 1], [6, 7, 1]])
    >>> ids.tolist(), mask.tolist()
    ([[5, 1, 0], [6, 7, 1]], [[1, 1, 0], [1, 1, 1]])
    """
    ids = torch.from_numpy(work.padded(rows))
    return ids, (ids != 0).long()


@dataclass(frozen=True)
class Inputs:
    """A batch as transformers' encoders take it, and how many tokens it has."""

    named: dict[str, Tensor]
    tokens: int


def learning_loop(job: Job, turns: Turns, model: nn.Module, batches: Sequence[Inputs]) -> None:
    """Train a model that gives its own loss, a turn's updates at a time; the norm of the gradient is limited."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.01, fused=True)
    steps, bf16 = job.facts["size"]["steps"], job.variant == "bf16"
    done = 0

    def updates(some: Sequence[Inputs]) -> None:
        for batch in some:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(**batch.named).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    def turn() -> float:
        nonlocal done
        some = [batches[(done + number) % len(batches)] for number in range(steps)]
        done += steps
        return sum(batch.tokens for batch in some) / seconds(lambda: updates(some))

    turns.serve({job.contest: turn})
