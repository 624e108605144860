"""Heads: from hidden states to a loss, to logits or to the best candidates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LOGITS = 1 << 23  # logits that exist at a time
LEAST = 1e-38  # probability that a loss is told of; anything less likely costs as much


def _rows(vocabulary: int) -> int:
    """How many rows are projected onto the vocabulary at a time."""
    return max(128, LOGITS // vocabulary // 128 * 128)


class _VocabularyLoss(torch.autograd.Function):
    """Sum over rows of label-smoothed cross-entropy of softmax(hidden · weightᵀ + bias).

    Projection and loss go together in blocks of rows, gradients are made in the same pass: the logits of all rows
    never exist at once.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, count: int
    ) -> tuple[Tensor, Tensor]:
        needed = any(ctx.needs_input_grad[:3])
        vocabulary, size = weight.shape[0], _rows(weight.shape[0])
        middle = weight.mean(0) if smoothing else None  # its product with a row is the row's mean logit
        middle_bias = 0 if bias is None else bias.mean()
        smoothed, plain = hidden.new_zeros((), dtype=torch.float32), hidden.new_zeros((), dtype=torch.float32)
        bias_gradient = None if bias is None else torch.zeros(vocabulary, device=weight.device)
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient: Tensor | None = None
        for first in range(0, hidden.shape[0], size):
            rows, wanted = hidden[first : first + size], targets[first : first + size]
            logits = rows @ weight.t()
            if bias is not None:
                logits += bias  # of large outputs faster than a product that begins with it
            chances = torch.softmax(logits, dim=1)
            right = -chances.gather(1, wanted[:, None])[:, 0].float().clamp_min_(LEAST).log_()
            counted = max(0, min(size, count - first))  # rows after `count` belong to nobody
            plain += right[:counted].sum()
            smoothed += (1 - smoothing) * right[:counted].sum()
            if middle is not None:
                total = logits.gather(1, wanted[:, None])[:, 0].float() + right  # log Σ exp
                mean = total - (rows @ middle + middle_bias).float()
                smoothed += smoothing * mean[:counted].sum()
            if not needed:
                continue
            gradient = chances.sub_(smoothing / vocabulary) if smoothing else chances
            gradient[torch.arange(len(wanted), device=wanted.device), wanted] -= 1 - smoothing
            gradient[counted:] = 0
            if bias_gradient is not None:
                bias_gradient += (gradient.new_ones(1, len(rows)) @ gradient)[0]  # a sum over rows, by a product
            torch.mm(gradient, weight, out=hidden_gradient[first : first + size])
            made = gradient.t() @ rows
            weight_gradient = made if weight_gradient is None else weight_gradient.float().add_(made)
        if needed:
            weight_gradient = torch.zeros_like(weight) if weight_gradient is None else weight_gradient.to(weight.dtype)
            ctx.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        scale = gradients[0]
        scaled_bias = None if bias is None else (bias * scale).to(hidden.dtype)
        return hidden * scale.to(hidden.dtype), weight * scale.to(weight.dtype), scaled_bias, None, None, None


def vocabulary_loss(
    hidden: Tensor,  # [N, D]
    weight: Tensor,  # [V, D]
    bias: Tensor | None,  # [V]
    targets: Tensor,  # [N]
    smoothing: float = 0.0,
    count: int | None = None,  # rows that count; all
) -> tuple[Tensor, Tensor]:
    """Return the sums over rows of the smoothed loss (to differentiate) and of the plain one (to report).

    >>> smoothed, plain = vocabulary_loss(torch.zeros(3, 2), torch.zeros(4, 2), None, torch.tensor([0, 1, 2]))
    >>> round(plain.item(), 4), bool(smoothed == plain)
    (4.1589, True)
    """
    smoothed, plain = _VocabularyLoss.apply(
        hidden, weight, bias, targets, smoothing, hidden.shape[0] if count is None else count
    )
    return smoothed, plain


CHUNK = 64  # logits whose largest is found before any is ranked


def top_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:  # [N, V] float32
    """Return the k likeliest tokens of each row, likeliest first, and their log-probabilities.

    Only the chunks with the largest logits are ranked: whatever is among the k best stands in one of the k best chunks.

    >>> ids, logp = top_tokens(torch.tensor([[0.0, 2.0, 1.0]]), 2)
    >>> ids.tolist(), [round(one, 3) for one in logp[0].tolist()]
    ([[1, 2]], [-0.408, -1.408])
    """
    rows, vocabulary = logits.shape
    if vocabulary % CHUNK or k >= vocabulary // CHUNK:
        highest, ids = logits.topk(k, dim=1)
    else:
        chunks = logits.view(rows, -1, CHUNK)
        best_chunks = chunks.amax(2).topk(k, dim=1).indices.sort(1).values  # in their order: of equals the first wins
        kept = chunks.gather(1, best_chunks.unsqueeze(2).expand(-1, -1, CHUNK)).view(rows, -1)
        highest, places = kept.topk(k, dim=1)
        ids = best_chunks.gather(1, places // CHUNK) * CHUNK + places % CHUNK
    spread = (logits - highest[:, :1]).exp_().sum(1, keepdim=True).log_()
    return ids, highest - highest[:, :1] - spread


def vocabulary_logprobs(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return log-probabilities over the vocabulary, [N, V] float32."""
    return torch.log_softmax(torch.nn.functional.linear(hidden, weight, bias).float(), dim=-1)


def target_logprobs(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return the log-probability of each row's target, [N] float32, in blocks of rows."""
    made, size = [], _rows(weight.shape[0])
    for first in range(0, hidden.shape[0], size):
        rows, wanted = hidden[first : first + size], targets[first : first + size, None]
        made.append(vocabulary_logprobs(rows, weight, bias).gather(1, wanted)[:, 0])
    return torch.cat(made) if made else hidden.new_zeros(0, dtype=torch.float32)
