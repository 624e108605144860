"""Knowledge distillation: a student with fewer layers learns from labels and from its teacher (Sanh et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from regard.tasks.base import Objective, WrappedObjective
from regard.tasks.classification import LabelBatch
from regard.tasks.span_objective import SpanBatch, span_logits
from regard.tasks.tagging_objectives import TagBatch

Indices = NDArray[np.int64]
EncoderBatch = LabelBatch | TagBatch | SpanBatch
BLOCK_PREFIX = "encoder.layers."  # of the names of a layer's weights


def select_layers(num_layers: int, count: int) -> tuple[int, ...]:
    """Indices of `count` evenly spaced layers, including the first and the last.

    >>> select_layers(6, 3), select_layers(12, 6), select_layers(6, 1)
    ((0, 2, 5), (0, 2, 4, 7, 9, 11), (0,))
    """
    return tuple(round(layer) for layer in np.linspace(0, num_layers - 1, count).tolist())


def student_config(teacher: BertConfig, copied: Sequence[int]) -> BertConfig:
    """Config of the teacher with as many layers as are copied; a single one is the first, which is global."""
    window = teacher.attention_window if len(copied) > 1 else 0
    return teacher.override({"stack.num_layers": len(copied), "attention_window": window})


def student_weights(teacher: Mapping[str, Tensor], copied: Sequence[int]) -> dict[str, Tensor]:
    """Weights of the copied layers under their new indices, with all weights outside of layers.

    >>> student = student_weights({"embedding_norm": torch.zeros(1), f"{BLOCK_PREFIX}2.out": torch.ones(1)}, (0, 2))
    >>> {name: tensor.item() for name, tensor in student.items()}
    {'embedding_norm': 0.0, 'encoder.layers.1.out': 1.0}
    """
    weights = {name: tensor.clone() for name, tensor in teacher.items() if not name.startswith(BLOCK_PREFIX)}
    for student_layer, teacher_layer in enumerate(copied):
        prefix = f"{BLOCK_PREFIX}{teacher_layer}."
        for name, tensor in teacher.items():
            if name.startswith(prefix):
                weights[f"{BLOCK_PREFIX}{student_layer}.{name.removeprefix(prefix)}"] = tensor.clone()
    return weights


class DistillationObjective(WrappedObjective):
    """Batches of another objective, with the teacher's predictions and hidden states in the loss.

    The loss is a weighted sum of the objective's own loss, the distillation loss with the teacher's softened
    probabilities, and the cosine distance between the hidden states of the student and of the copied layers.
    """

    def __init__(self, objective: Objective, teacher: Bert, copied: Sequence[int], config: DistillationConfig) -> None:
        super().__init__(objective)
        self.config = config
        self.teacher = teacher.eval()
        # layers of the teacher that the student's layers are compared with: the last one with the last one
        self.teacher_layers = (*copied[:-1], teacher.config.stack.num_layers - 1)
        self._converted_teachers: dict[tuple[torch.dtype, torch.device], Bert] = {}

    def loss(self, model: Bert, batch: EncoderBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Sums over the batch's predictions of the loss to minimise and of the objective's plain loss."""
        config = self.config
        teacher = self._teacher_like(model)
        ids, packed = model.to_tensors(batch.tokens)
        token_types = model.token_type_tensor(batch.tokens, packed.num_padding)
        hidden_states = model.hidden_states(ids, packed, token_types, noise)
        with torch.no_grad():
            teacher_states = teacher.hidden_states(ids, packed, token_types)
            teacher_logits, _ = choice_logits(teacher, batch, teacher_states[-1], packed, None)
        student_batch = replace(batch, cached_states=hidden_states[-1])
        label_loss, plain_loss = self.objective.loss(model, student_batch, smoothing, noise)
        logits, weights = choice_logits(model, batch, hidden_states[-1], packed, noise)
        soft_loss = distillation_loss(logits, teacher_logits, weights, config.temperature)
        loss = config.label_weight * label_loss + (1 - config.label_weight) * soft_loss
        if config.hidden_weight:
            distances = [
                _cosine_distance(hidden, teacher_states[layer])
                for hidden, layer in zip(hidden_states, self.teacher_layers, strict=True)
            ]
            loss = loss + config.hidden_weight * batch.num_predictions * torch.stack(distances).mean()
        return loss, plain_loss

    def _teacher_like(self, model: Bert) -> Bert:
        """The teacher in the student's precision and on its device."""
        weight = model.token_embedding.weight
        key = (weight.dtype, weight.device)
        if key not in self._converted_teachers:
            teacher = Bert(self.teacher.config)
            teacher.load_state_dict(self.teacher.state_dict())
            self._converted_teachers[key] = teacher.to(weight.device, weight.dtype).eval()
        return self._converted_teachers[key]


def choice_logits(
    model: Bert, batch: EncoderBatch, hidden: Tensor, packed: PackedBatch, noise: Noise | None
) -> tuple[Tensor, Tensor]:
    """Logits [N, C] of the choices on which student and teacher are compared, and the weight of each choice, [N]."""
    if isinstance(batch, SpanBatch):
        logits = span_logits(model, batch, hidden, packed, noise).transpose(1, 2).flatten(0, 1)  # [2 B, T]
        return logits, logits.new_full((len(logits),), 0.5)
    if isinstance(batch, TagBatch):
        hidden = hidden[torch.from_numpy(batch.positions).to(hidden.device)]
        logits = model.head_logits(hidden, packed, noise).float()
        return logits, logits.new_ones(len(logits))
    logits = model.head_logits(hidden, packed, noise).float()
    row_weights = torch.from_numpy(batch.row_weights).to(logits.device)
    if batch.targets.ndim == 1:
        return logits, row_weights
    binary_logits = torch.stack([logits, torch.zeros_like(logits)], dim=2)  # [B, labels, 2]: present or absent
    return binary_logits.flatten(0, 1), row_weights.repeat_interleave(logits.shape[1])


def distillation_loss(
    logits: Tensor,  # [N, C]
    teacher_logits: Tensor,  # [N, C]
    weights: Tensor,  # [N]
    temperature: float,
) -> Tensor:
    """Weighted sum of the divergences from the teacher's softened probabilities (Hinton et al. 2015).

    The factor temperature² keeps gradients on the scale of the loss without temperature.

    >>> logits = torch.tensor([[2.0, 0.0]])
    >>> round(distillation_loss(logits, logits + 1, torch.ones(1), 2.0).item(), 6)
    0.0
    """
    logprobs = torch.log_softmax(logits / temperature, dim=1)
    teacher_probabilities = torch.softmax(teacher_logits / temperature, dim=1)
    divergences = kl_div(logprobs, teacher_probabilities, reduction="none").sum(1)
    return temperature**2 * (divergences * weights).sum()


def _cosine_distance(hidden: Tensor, teacher_hidden: Tensor) -> Tensor:
    """Mean cosine distance over tokens: 0 in the same direction, 1 where orthogonal."""
    return 1 - cosine_similarity(hidden.float(), teacher_hidden.float(), dim=1).mean()
