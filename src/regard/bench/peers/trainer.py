"""Hugging Face's `Seq2SeqTrainer`, which runs its own loop: batches of sentences of like length, its own AdamW."""

from __future__ import annotations

import inspect
import tempfile
from typing import Any

import torch

from regard.bench import work
from regard.bench.child import Job, Pace, Turns
from regard.bench.peers import Peer
from regard.bench.peers.loop import SMOOTHING, START, columns
from regard.bench.peers.transformers import marian
from regard.bench.settings import Size

PEER = Peer("trainer", {"transformers": "transformers", "accelerate": "accelerate"}, {"training": ("float32", "bf16")})
WARM_UP = 3  # updates before the first turn
NEVER = 10**9
IGNORED = -100  # the label that transformers leaves out


def training(job: Job, turns: Turns) -> None:
    """Let the trainer train Marian, a turn's updates at a time."""
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

    size = Size(**job.facts["size"])
    pace = Pace(turns, "training")
    counts: list[int] = []  # target tokens of each batch, in the order in which they are used

    class Clock(TrainerCallback):
        """Reports where a turn ends."""

        reported = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            """Report every so many updates."""
            if state.global_step >= WARM_UP and (state.global_step - WARM_UP) % size.steps == 0:
                tokens = sum(counts[self.reported : state.global_step])
                self.reported = state.global_step
                pace.report(tokens)

    def together(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        source, mask = columns([row["input_ids"] for row in rows])
        wanted, real = columns([row["labels"] for row in rows])
        counts.append(int(real.sum()))
        given = torch.cat([torch.full_like(wanted[:, :1], START), wanted[:, :-1]], 1)
        labels = wanted.masked_fill(real == 0, IGNORED)
        return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": given, "labels": labels}

    pairs = work.pairs(work.POOL, size.vocabulary)
    rows = [{"input_ids": [*a.tolist(), work.END], "labels": [*b.tolist(), work.END]} for a, b in pairs]
    with tempfile.TemporaryDirectory() as room:
        wanted: dict[str, Any] = {
            "output_dir": room,
            "per_device_train_batch_size": sum(len(batch[0]) for batch in job.facts["lengths"])
            // len(job.facts["lengths"]),
            "max_steps": NEVER,
            "bf16": job.variant == "bf16",
            "use_cpu": True,
            "report_to": [],
            "save_strategy": "no",
            "logging_steps": NEVER,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            "label_smoothing_factor": SMOOTHING,
            "train_sampling_strategy": "group_by_length",  # by its newer and its older name
            "group_by_length": True,
        }
        known = inspect.signature(Seq2SeqTrainingArguments.__init__).parameters
        arguments = Seq2SeqTrainingArguments(**{name: value for name, value in wanted.items() if name in known})
        trainer = Seq2SeqTrainer(
            model=marian(size), args=arguments, train_dataset=rows, data_collator=together, callbacks=[Clock()]
        )
        trainer.train()
