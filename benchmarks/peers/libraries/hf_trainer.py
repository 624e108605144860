"""Hugging Face's `Trainer`, which runs its own loop: it forms its own batches and uses its own AdamW."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import tasks, workload
from benchmarks.peers.config import TrainedEncoderSize, TranslatorSize
from benchmarks.peers.libraries import Library
from benchmarks.peers.libraries.bert import build_classifier, build_masked_lm
from benchmarks.peers.libraries.training_loop import IGNORED, LABEL_SMOOTHING, pad_with_mask
from benchmarks.peers.libraries.transformers import build_marian
from benchmarks.peers.worker import Channel, Job, LoopPacer

BY_LENGTH = "by length"
PRECISIONS = ("float32", "bf16")
LIBRARY = Library(
    "trainer",
    requirements={"transformers": "transformers", "accelerate": "accelerate"},
    benchmarks={
        "training": PRECISIONS,
        "masked": PRECISIONS,
        "fine_tuning": (*PRECISIONS, *(f"{precision} {BY_LENGTH}" for precision in PRECISIONS)),
    },
    quick={"masked": ("bf16",), "fine_tuning": ("bf16", f"bf16 {BY_LENGTH}")},
)
WARM_UP_STEPS = 3
NEVER = 10**9  # steps

Rows = list[dict[str, Any]]
Collate = Callable[[Rows], tuple[dict[str, Tensor], int]]  # rows → arguments of the model, number of tokens


@dataclass(frozen=True)
class TrainerSetup:
    """What the Trainer trains."""

    model: Any
    rows: Rows
    collate: Collate
    batch_size: int
    by_length: bool = False
    prefix: str = "Train"  # of the classes of transformers: Trainer, TrainingArguments
    arguments: dict[str, Any] = field(default_factory=dict)


def run_training(job: Job, channel: Channel) -> None:
    """Train Marian on sentences of similar length."""
    size = TranslatorSize(**job.settings["size"])

    def collate(rows: Rows) -> tuple[dict[str, Tensor], int]:
        source, source_mask = pad_with_mask([row["input_ids"] for row in rows])
        targets, target_mask = pad_with_mask([row["labels"] for row in rows])
        decoder_input = torch.cat([torch.full_like(targets[:, :1], workload.BOS_ID), targets[:, :-1]], 1)
        inputs = {
            "input_ids": source,
            "attention_mask": source_mask,
            "decoder_input_ids": decoder_input,
            "labels": targets.masked_fill(target_mask == 0, IGNORED),
        }
        return inputs, int(target_mask.sum())

    batches: Sequence[Any] = job.settings["lengths"]
    setup = TrainerSetup(
        model=build_marian(size),
        rows=[
            {"input_ids": [*source.tolist(), workload.EOS_ID], "labels": [*target.tolist(), workload.EOS_ID]}
            for source, target in workload.draw_pairs(workload.POOL_PAIRS, size.vocab_size)
        ],
        collate=collate,
        batch_size=sum(len(source_lengths) for source_lengths, _ in batches) // len(batches),
        by_length=True,
        prefix="Seq2SeqTrain",
        arguments={"label_smoothing_factor": LABEL_SMOOTHING},
    )
    _serve_trainer(job, channel, setup)


def run_masked(job: Job, channel: Channel) -> None:
    """Train BERT as a masked language model; tokens are masked anew in each batch."""
    size = TrainedEncoderSize(**job.settings["size"])
    objective = tasks.build_masked_lm_objective(size)
    mask_id = objective.layout.masker.mask_id

    def collate(rows: Rows) -> tuple[dict[str, Tensor], int]:
        ids = torch.tensor([row["input_ids"] for row in rows])
        is_special = (ids == workload.BOS_ID) | (ids == workload.EOS_ID)
        is_target = (torch.rand(ids.shape) < tasks.MASK_RATE) & ~is_special
        draw = torch.rand(ids.shape)
        inputs = ids.masked_fill(is_target & (draw < 0.8), mask_id)
        is_replaced = is_target & (draw >= 0.9)
        num_replaced = int(is_replaced.sum())
        inputs[is_replaced] = torch.randint(workload.FIRST_WORD_ID, size.vocab_size - 1, (num_replaced,))
        labels = ids.masked_fill(~is_target, IGNORED)
        return {"input_ids": inputs, "attention_mask": torch.ones_like(ids), "labels": labels}, ids.numel()

    table = objective.train.ids.reshape(-1, objective.train.length)
    setup = TrainerSetup(
        model=build_masked_lm(size),
        rows=[{"input_ids": [workload.BOS_ID, *row.tolist(), workload.EOS_ID]} for row in table],
        collate=collate,
        batch_size=size.batch_size,
    )
    _serve_trainer(job, channel, setup)


def run_fine_tuning(job: Job, channel: Channel) -> None:
    """Fine-tune BERT to classify, with random batches or batches by length."""
    size = TrainedEncoderSize(**job.settings["size"])
    objective = tasks.build_fine_tuning_objective(size)

    def collate(rows: Rows) -> tuple[dict[str, Tensor], int]:
        ids, mask = pad_with_mask([row["input_ids"] for row in rows])
        labels = torch.tensor([row["labels"] for row in rows])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}, int(mask.sum())

    labelled_rows = zip(objective.train.rows, objective.targets.tolist(), strict=True)
    setup = TrainerSetup(
        model=build_classifier(size),
        rows=[{"input_ids": row.tolist(), "labels": label} for row, label in labelled_rows],
        collate=collate,
        batch_size=size.batch_size,
        by_length=job.variant.endswith(BY_LENGTH),
    )
    _serve_trainer(job, channel, setup)


def _serve_trainer(job: Job, channel: Channel, setup: TrainerSetup) -> None:
    """Run the Trainer's own loop, some updates at a time."""
    import transformers

    steps = job.settings["size"]["steps"]
    pacer = LoopPacer(channel, job.benchmark)
    batch_tokens: list[int] = []  # in the order in which batches are used

    class StepCallback(transformers.TrainerCallback):  # type: ignore[misc, unused-ignore]
        """Reports the end of each measurement."""

        last_step = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            """Report after every `steps` updates."""
            if state.global_step >= WARM_UP_STEPS and (state.global_step - WARM_UP_STEPS) % steps == 0:
                tokens = sum(batch_tokens[self.last_step : state.global_step])
                self.last_step = state.global_step
                pacer.report(tokens)

    def collate_and_count(rows: Rows) -> dict[str, Tensor]:
        inputs, tokens = setup.collate(rows)
        batch_tokens.append(tokens)
        return inputs

    with tempfile.TemporaryDirectory() as folder:
        trainer_class = getattr(transformers, f"{setup.prefix}er")
        trainer = trainer_class(
            model=setup.model,
            args=_training_arguments(job, setup, folder),
            train_dataset=setup.rows,
            data_collator=collate_and_count,
            callbacks=[StepCallback()],
        )
        trainer.train()


def _training_arguments(job: Job, setup: TrainerSetup, folder: str) -> Any:
    """Arguments of the Trainer, as far as the installed version knows them."""
    import transformers

    arguments: dict[str, Any] = {
        "output_dir": folder,
        "per_device_train_batch_size": setup.batch_size,
        "max_steps": NEVER,
        "bf16": job.variant.startswith("bf16"),
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": NEVER,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **setup.arguments,
    }
    if setup.by_length:  # the newer and the older name of one option
        arguments |= {"train_sampling_strategy": "group_by_length", "group_by_length": True}
    arguments_class = getattr(transformers, f"{setup.prefix}ingArguments")
    known = inspect.signature(arguments_class.__init__).parameters
    return arguments_class(**{name: value for name, value in arguments.items() if name in known})
