"""Distilling as a task: a student with fewer layers learns what its teacher says and sees, beside what is true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity, kl_div

from regard.attention.dropout import Noise
from regard.attention.packed_batch import PackedBatch
from regard.config.models import BertConfig
from regard.config.training import DistillationConfig
from regard.models.bert import Bert
from regard.tasks.base import Objective
from regard.tasks.classification import LabelBatch
from regard.tasks.question_answering import SpanBatch, span_logits
from regard.tasks.tagging import TagBatch

Numbers = NDArray[np.int64]
Learned = LabelBatch | TagBatch | SpanBatch
BLOCKS = "stack.blocks."  # how the names of a layer's weights begin


def spread_layers(num_layers: int, count: int) -> tuple[int, ...]:
    """Return which of so many layers are copied: evenly spread, the first and the last among them.

    >>> spread_layers(6, 3), spread_layers(12, 6), spread_layers(6, 1)
    ((0, 2, 5), (0, 2, 4, 7, 9, 11), (0,))
    """
    return tuple(round(place) for place in np.linspace(0, num_layers - 1, count).tolist())


def student_config(teacher: BertConfig, copied: Sequence[int]) -> BertConfig:
    """Return the teacher's config with as many layers as are copied."""
    return teacher.override({"stack.num_layers": len(copied)})


def student_weights(teacher: Mapping[str, Tensor], copied: Sequence[int]) -> dict[str, Tensor]:
    """Return the weights of some layers under their new numbers, with all that is outside of layers.

    >>> made = student_weights({"words": torch.zeros(1), f"{BLOCKS}2.out": torch.ones(1)}, (0, 2))
    >>> {name: tensor.item() for name, tensor in made.items()}
    {'words': 0.0, 'stack.blocks.1.out': 1.0}
    """
    made = {name: tensor.clone() for name, tensor in teacher.items() if not name.startswith(BLOCKS)}
    for number, layer in enumerate(copied):
        start = f"{BLOCKS}{layer}."
        made |= {
            f"{BLOCKS}{number}.{name.removeprefix(start)}": tensor.clone()
            for name, tensor in teacher.items()
            if name.startswith(start)
        }
    return made


class DistillationObjective:
    """Another task's batches, with a loss that also knows the teacher.

    What is minimised is a share of the task's own loss, the rest of it the distance to the teacher's softened labels,
    and how far the states of the copied layers point elsewhere than the teacher's.
    """

    def __init__(self, task: Objective, teacher: Bert, copied: Sequence[int], config: DistillationConfig) -> None:
        self.task, self.config = task, config
        self.seen = (*copied[:-1], teacher.config.stack.num_layers - 1)  # layers of the teacher beside the student's
        self.teacher = teacher.eval()
        self._ready: dict[tuple[torch.dtype, torch.device], Bert] = {}

    @property
    def unit(self) -> str:
        """What the predictions of a batch are."""
        return self.task.unit

    @property
    def lengths(self) -> Numbers:
        """Lengths of the training examples."""
        return self.task.lengths

    def epoch_batches(self, epoch: int, max_tokens: int) -> list[Numbers]:
        """Return the example numbers of each batch of an epoch, in order."""
        return self.task.epoch_batches(epoch, max_tokens)

    def batch(self, numbers: Numbers, epoch: int) -> Any:
        """Return training examples."""
        return self.task.batch(numbers, epoch)

    def loss(self, model: Bert, batch: Learned, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of what is minimised and of the task's plain loss over the batch's predictions."""
        config, teacher = self.config, self._beside(model)
        ids, rows = model.to_tensors(batch.tokens)
        types = model.token_type_tensor(batch.tokens, rows.num_padding)
        states = model.layers(ids, rows, types, noise)
        with torch.no_grad():
            theirs = teacher.layers(ids, rows, types)
            aims, _ = choice_logits(teacher, batch, theirs[-1], rows, None)
        made, plain = self.task.loss(model, replace(batch, cached_states=states[-1]), smoothing, noise)
        scores, weights = choice_logits(model, batch, states[-1], rows, noise)
        made = config.label_weight * made + (1 - config.label_weight) * distillation_loss(
            scores, aims, weights, config.temperature
        )
        if config.hidden_weight:
            apart = [_apart(mine, theirs[layer]) for mine, layer in zip(states, self.seen, strict=True)]
            made = made + config.hidden_weight * batch.num_predictions * torch.stack(apart).mean()
        return made, plain

    def _beside(self, model: Bert) -> Bert:
        """Return the teacher in the student's number format and on its device."""
        like = model.words.weight
        if (like.dtype, like.device) not in self._ready:
            made = Bert(self.teacher.config)
            made.load_state_dict(self.teacher.state_dict())
            self._ready[like.dtype, like.device] = made.to(like.device, like.dtype).eval()
        return self._ready[like.dtype, like.device]


def choice_logits(
    model: Bert, batch: Learned, hidden: Tensor, packed: PackedBatch, noise: Noise | None
) -> tuple[Tensor, Tensor]:
    """Return what a model chooses between, as scores [choices, candidates], and how much each choice counts."""
    if isinstance(batch, SpanBatch):
        spans = span_logits(model, batch, hidden, packed, noise).transpose(1, 2).flatten(0, 1)  # [2 B, T]
        return spans, spans.new_full((len(spans),), 0.5)
    if isinstance(batch, TagBatch):
        hidden = hidden[torch.from_numpy(batch.positions).to(hidden.device)]
        scores = model.head_logits(hidden, packed, noise).float()
        return scores, scores.new_ones(len(scores))
    scores = model.head_logits(hidden, packed, noise).float()
    shares = torch.from_numpy(batch.row_weights).to(scores.device)
    if batch.targets.ndim == 1:
        return scores, shares
    either = torch.stack([scores, torch.zeros_like(scores)], dim=2)  # each label: it has it, or not
    return either.flatten(0, 1), shares.repeat_interleave(scores.shape[1])


def distillation_loss(
    logits: Tensor, teacher_logits: Tensor, weights: Tensor, temperature: float
) -> Tensor:  # [N, C], [N, C], [N]
    """Return the sum of how far softened chances are from the teacher's, in the size of the usual loss.

    >>> scores = torch.tensor([[2.0, 0.0]])
    >>> round(distillation_loss(scores, scores + 1, torch.ones(1), 2.0).item(), 6)
    0.0
    """
    softened = torch.log_softmax(logits / temperature, dim=1), torch.softmax(teacher_logits / temperature, dim=1)
    each = kl_div(*softened, reduction="none").sum(1)
    return temperature**2 * (each * weights).sum()


def _apart(states: Tensor, theirs: Tensor) -> Tensor:
    """Return how far states point elsewhere, on average over tokens: 0 the same way, 1 across."""
    return 1 - cosine_similarity(states.float(), theirs.float(), dim=1).mean()
