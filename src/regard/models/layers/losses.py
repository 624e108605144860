"""From hidden states to the vocabulary: cross-entropy loss, log-probabilities and top-k tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MAX_CHUNK_LOGITS = 1 << 23  # logits that exist at the same time
MIN_PROBABILITY = 1e-38  # lower bound of a target's probability in the loss
RANKING_CHUNK = 64  # logits whose maximum is taken before any are ranked


def _rows_per_chunk(vocab_size: int) -> int:
    """Number of rows that are projected onto the vocabulary at a time."""
    return max(128, MAX_CHUNK_LOGITS // vocab_size // 128 * 128)


class _VocabularyLoss(torch.autograd.Function):
    """Sum over rows of the label-smoothed cross-entropy of softmax(hidden · weightᵀ + bias).

    Projection, loss and gradients are computed together in chunks of rows: the logits of all rows never exist at once.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, count: int
    ) -> tuple[Tensor, Tensor]:
        needs_gradient = any(ctx.needs_input_grad[:3])
        vocab_size = weight.shape[0]
        chunk_rows = _rows_per_chunk(vocab_size)
        mean_weight = weight.mean(0) if smoothing else None  # its product with a row is the row's mean logit
        mean_bias = 0 if bias is None else bias.mean()
        smoothed = hidden.new_zeros((), dtype=torch.float32)
        plain = hidden.new_zeros((), dtype=torch.float32)
        bias_gradient = None if bias is None else torch.zeros(vocab_size, device=weight.device)
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient: Tensor | None = None
        for start in range(0, hidden.shape[0], chunk_rows):
            rows = hidden[start : start + chunk_rows]
            chunk_targets = targets[start : start + chunk_rows]
            logits = rows @ weight.t()
            if bias is not None:
                logits += bias  # for large outputs faster than addmm
            probabilities = torch.softmax(logits, dim=1)
            target_probabilities = probabilities.gather(1, chunk_targets[:, None])[:, 0]
            losses = -target_probabilities.float().clamp_min_(MIN_PROBABILITY).log_()
            counted = max(0, min(chunk_rows, count - start))  # rows from `count` on are padding
            plain += losses[:counted].sum()
            smoothed += (1 - smoothing) * losses[:counted].sum()
            if mean_weight is not None:
                logsumexp = logits.gather(1, chunk_targets[:, None])[:, 0].float() + losses
                mean_losses = logsumexp - (rows @ mean_weight + mean_bias).float()
                smoothed += smoothing * mean_losses[:counted].sum()
            if not needs_gradient:
                continue
            gradient = probabilities.sub_(smoothing / vocab_size) if smoothing else probabilities
            gradient[torch.arange(len(chunk_targets), device=chunk_targets.device), chunk_targets] -= 1 - smoothing
            gradient[counted:] = 0
            if bias_gradient is not None:
                bias_gradient += (gradient.new_ones(1, len(rows)) @ gradient)[0]  # sum over rows, as a matmul
            torch.mm(gradient, weight, out=hidden_gradient[start : start + chunk_rows])
            chunk_gradient = gradient.t() @ rows
            if weight_gradient is None:
                weight_gradient = chunk_gradient
            else:
                weight_gradient = weight_gradient.float().add_(chunk_gradient)
        if needs_gradient:
            weight_gradient = torch.zeros_like(weight) if weight_gradient is None else weight_gradient.to(weight.dtype)
            ctx.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        scale = gradients[0]
        dtype = hidden_gradient.dtype
        scaled_bias = None if bias_gradient is None else (bias_gradient * scale).to(dtype)
        scaled_hidden = hidden_gradient * scale.to(dtype)
        return scaled_hidden, weight_gradient * scale.to(weight_gradient.dtype), scaled_bias, None, None, None


def vocabulary_loss(
    hidden: Tensor,  # [N, D]
    weight: Tensor,  # [V, D]
    bias: Tensor | None,  # [V]
    targets: Tensor,  # [N]
    smoothing: float = 0.0,
    num_targets: int | None = None,  # rows that count; None: all
) -> tuple[Tensor, Tensor]:
    """Sums over rows of the label-smoothed cross-entropy (to differentiate) and of the plain one (to report).

    >>> smoothed, plain = vocabulary_loss(torch.zeros(3, 2), torch.zeros(4, 2), None, torch.tensor([0, 1, 2]))
    >>> round(plain.item(), 4), bool(smoothed == plain)
    (4.1589, True)
    """
    if num_targets is None:
        num_targets = hidden.shape[0]
    smoothed, plain = _VocabularyLoss.apply(hidden, weight, bias, targets, smoothing, num_targets)
    return smoothed, plain


def top_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:  # [N, V] float32
    """Top-k tokens of each row, most likely first, and their log-probabilities.

    Only the chunks with the largest maxima are ranked: the k best tokens lie in the k best chunks.

    >>> ids, logprobs = top_tokens(torch.tensor([[0.0, 2.0, 1.0]]), 2)
    >>> ids.tolist(), [round(logprob, 3) for logprob in logprobs[0].tolist()]
    ([[1, 2]], [-0.408, -1.408])
    """
    rows, vocab_size = logits.shape
    if vocab_size % RANKING_CHUNK or k >= vocab_size // RANKING_CHUNK:
        highest, ids = logits.topk(k, dim=1)
    else:
        chunks = logits.view(rows, -1, RANKING_CHUNK)
        best_chunks = chunks.amax(2).topk(k, dim=1).indices.sort(1).values  # in vocabulary order: of ties, the first
        candidates = chunks.gather(1, best_chunks.unsqueeze(2).expand(-1, -1, RANKING_CHUNK)).view(rows, -1)
        highest, columns = candidates.topk(k, dim=1)
        ids = best_chunks.gather(1, columns // RANKING_CHUNK) * RANKING_CHUNK + columns % RANKING_CHUNK
    log_total = (logits - highest[:, :1]).exp_().sum(1, keepdim=True).log_()
    return ids, highest - highest[:, :1] - log_total


def vocabulary_logprobs(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Log-probabilities over the vocabulary, [N, V] float32."""
    return torch.log_softmax(torch.nn.functional.linear(hidden, weight, bias).float(), dim=-1)


def target_logprobs(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Log-probability of each row's target, [N] float32, in chunks of rows."""
    chunks = []
    chunk_rows = _rows_per_chunk(weight.shape[0])
    for start in range(0, hidden.shape[0], chunk_rows):
        rows = hidden[start : start + chunk_rows]
        chunk_targets = targets[start : start + chunk_rows, None]
        chunks.append(vocabulary_logprobs(rows, weight, bias).gather(1, chunk_targets)[:, 0])
    return torch.cat(chunks) if chunks else hidden.new_zeros(0, dtype=torch.float32)
