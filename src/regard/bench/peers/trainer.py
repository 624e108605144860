"""Hugging Face's `Trainer`, which runs its own loop: batches that it cuts itself, its own AdamW."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.bench import fine_tuning as tuning
from regard.bench import masked as masking
from regard.bench import work
from regard.bench.child import Job, Pace, Turns
from regard.bench.peers import Peer
from regard.bench.peers.bert import labelling_bert, masked_bert
from regard.bench.peers.loop import IGNORED, SMOOTHING, START, columns
from regard.bench.peers.transformers import marian
from regard.bench.settings import Size, TaughtSize

BY_LENGTH = "by length"
_BOTH = ("float32", "bf16")
PEER = Peer(
    "trainer",
    {"transformers": "transformers", "accelerate": "accelerate"},
    {"training": _BOTH, "masked": _BOTH, "fine_tuning": (*_BOTH, *(f"{name} {BY_LENGTH}" for name in _BOTH))},
    quick={"masked": ("bf16",), "fine_tuning": ("bf16", f"bf16 {BY_LENGTH}")},
)
WARM_UP = 3  # updates before the first turn
NEVER = 10**9

Rows = list[dict[str, Any]]
Together = Callable[[Rows], tuple[dict[str, Tensor], int]]  # a batch, and how many tokens it counts for


def training(job: Job, turns: Turns) -> None:
    """Let the trainer train Marian on sentences of like length."""
    size = Size(**job.facts["size"])

    def together(rows: Rows) -> tuple[dict[str, Tensor], int]:
        source, mask = columns([row["input_ids"] for row in rows])
        wanted, real = columns([row["labels"] for row in rows])
        given = torch.cat([torch.full_like(wanted[:, :1], START), wanted[:, :-1]], 1)
        labels = wanted.masked_fill(real == 0, IGNORED)
        made = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": given, "labels": labels}
        return made, int(real.sum())

    pairs = work.pairs(work.POOL, size.vocabulary)
    rows = [{"input_ids": [*a.tolist(), work.END], "labels": [*b.tolist(), work.END]} for a, b in pairs]
    batches: Sequence[Any] = job.facts["lengths"]
    count = sum(len(batch[0]) for batch in batches) // len(batches)
    more = {"label_smoothing_factor": SMOOTHING}
    _train(job, turns, marian(size), rows, together, count, by_length=True, kind="Seq2SeqTrain", more=more)


def masked(job: Job, turns: Turns) -> None:
    """Let the trainer teach BERT to tell hidden words, which it hides anew in each batch."""
    size = TaughtSize(**job.facts["size"])
    task = masking.task(size)
    hidden = task.layout.masking.mask

    def together(rows: Rows) -> tuple[dict[str, Tensor], int]:
        ids = torch.tensor([row["input_ids"] for row in rows])
        chosen = (torch.rand(ids.shape) < masking.RATE) & (ids != work.START) & (ids != work.END)
        draw = torch.rand(ids.shape)
        given = ids.masked_fill(chosen & (draw < 0.8), hidden)
        others = chosen & (draw >= 0.9)
        given[others] = torch.randint(work.FIRST, size.vocabulary - 1, (int(others.sum()),))
        mask, labels = torch.ones_like(ids), ids.masked_fill(~chosen, IGNORED)
        return {"input_ids": given, "attention_mask": mask, "labels": labels}, ids.numel()

    table = task.train.ids.reshape(-1, task.train.length)
    rows = [{"input_ids": [work.START, *row.tolist(), work.END]} for row in table]
    _train(job, turns, masked_bert(size), rows, together, size.rows)


def fine_tuning(job: Job, turns: Turns) -> None:
    """Let the trainer teach BERT to classify, with batches by chance or by length."""
    size = TaughtSize(**job.facts["size"])
    task = tuning.task(size)

    def together(rows: Rows) -> tuple[dict[str, Tensor], int]:
        ids, mask = columns([row["input_ids"] for row in rows])
        labels = torch.tensor([row["labels"] for row in rows])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}, int(mask.sum())

    pairs = zip(task.train.rows, task.wanted.tolist(), strict=True)
    rows = [{"input_ids": row.tolist(), "labels": label} for row, label in pairs]
    _train(job, turns, labelling_bert(size), rows, together, size.rows, by_length=job.variant.endswith(BY_LENGTH))


def _train(
    job: Job,
    turns: Turns,
    model: Any,
    rows: Rows,
    together: Together,
    count: int,
    *,
    by_length: bool = False,
    kind: str = "Train",
    more: dict[str, Any] | None = None,
) -> None:
    """Run the trainer's own loop with batches of so many rows, a turn's updates at a time."""
    import transformers

    steps = job.facts["size"]["steps"]
    pace = Pace(turns, job.contest)
    counts: list[int] = []  # tokens of each batch, in the order in which they are used

    class Clock(transformers.TrainerCallback):  # type: ignore[misc, unused-ignore]
        """Reports where a turn ends."""

        reported = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            """Report every so many updates."""
            if state.global_step >= WARM_UP and (state.global_step - WARM_UP) % steps == 0:
                tokens = sum(counts[self.reported : state.global_step])
                self.reported = state.global_step
                pace.report(tokens)

    def counted(some: Rows) -> dict[str, Tensor]:
        made, tokens = together(some)
        counts.append(tokens)
        return made

    settings = getattr(transformers, f"{kind}ingArguments")
    with tempfile.TemporaryDirectory() as room:
        wanted: dict[str, Any] = {
            "output_dir": room,
            "per_device_train_batch_size": count,
            "max_steps": NEVER,
            "bf16": job.variant.startswith("bf16"),
            "use_cpu": True,
            "report_to": [],
            "save_strategy": "no",
            "logging_steps": NEVER,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            **({"train_sampling_strategy": "group_by_length", "group_by_length": True} if by_length else {}),
            **(more or {}),
        }  # what groups by length has an older and a newer name
        known = inspect.signature(settings.__init__).parameters
        arguments = settings(**{name: value for name, value in wanted.items() if name in known})
        trainer = getattr(transformers, f"{kind}er")(
            model=model, args=arguments, train_dataset=rows, data_collator=counted, callbacks=[Clock()]
        )
        trainer.train()
