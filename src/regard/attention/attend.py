"""`attend`: the only function that computes attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.capture import AttentionCall, attention_weights, capture
from regard.attention.dropout import Noise, apply_dropout
from regard.attention.intervention import apply_ablation
from regard.attention.masks import BoundMask
from regard.attention.scores import Normalize, ScaledDot, Score, softmax
from regard.attention.sparse import BlockSparseMask, LocalMask, WeightDropout, attend_block_sparse, attend_local
from regard.attention.trace import active_trace
from regard.errors import UsageError

SCALED_DOT = ScaledDot()


def attend(
    query: Tensor,  # [B, H, Q, d]
    key: Tensor,  # [B, H, K, d], prepared by the score
    value: Tensor,  # [B, H, K, v]
    *,
    mask: BoundMask | None = None,
    bias: Tensor | None = None,  # [B|1, H|1, Q, K], added to the scores
    score: Score = SCALED_DOT,
    normalize: Normalize = softmax,
    dropout: float = 0.0,
    noise: Noise | None = None,
    site: str = "",
    is_traced: bool = True,
) -> Tensor:
    """Mix the values by the attention weights of each query over the keys, [B, H, Q, v].

    An active trace that selects the site captures the weights, unless `is_traced` is false. The output comes from the
    same kernel with and without a trace.

    >>> keys = torch.tensor([[[[100.0, 0.0], [0.0, 100.0]]]])
    >>> attend(keys, keys, torch.tensor([[[[1.0], [2.0]]]])).tolist()
    [[[[1.0], [2.0]]]]
    """
    _check_shapes(query, key, value)
    if mask is not None and mask.is_full:
        mask = None
    is_standard = type(score) is ScaledDot and normalize is softmax and bias is None
    dropout_rate = dropout if noise is not None else 0.0
    if isinstance(mask, BlockSparseMask) and is_standard:
        context = attend_block_sparse(query, key, value, mask, WeightDropout(dropout, noise, site))
    elif isinstance(mask, LocalMask) and is_standard and not dropout_rate:
        context = attend_local(query, key, value, mask, _attend_dense)
    elif _can_fuse(query, score, normalize, dropout_rate):
        context = _attend_fused(query, key, value, mask, bias)
    else:
        weights = attention_weights(query, key, mask, bias, score, normalize)
        context = apply_dropout(weights, dropout, noise, site) @ value
    context = apply_ablation(context, site)
    if is_traced:
        trace = active_trace(site)
        if trace is not None:
            capture(trace, site, AttentionCall(query, key, value, mask, bias, score, normalize))
    return context


def _attend_dense(query: Tensor, key: Tensor, value: Tensor, mask: BoundMask) -> Tensor:
    """Scaled dot-product attention with a mask, without dropout."""
    if _can_fuse(query, SCALED_DOT, softmax, 0.0):
        return _attend_fused(query, key, value, mask, None)
    return attention_weights(query, key, mask, None, SCALED_DOT, softmax) @ value


def _can_fuse(query: Tensor, score: Score, normalize: Normalize, dropout_rate: float) -> bool:
    """Whether torch's fused kernel applies; a function of the arguments alone, so that a repeat has the same bits.

    Training on CPU uses two plain matmuls: on sequences of ordinary length they beat the fused kernel's backward pass.
    """
    if type(score) is not ScaledDot or normalize is not softmax or dropout_rate > 0:
        return False
    return not (torch.is_grad_enabled() and query.device.type == "cpu")


def _attend_fused(query: Tensor, key: Tensor, value: Tensor, mask: BoundMask | None, bias: Tensor | None) -> Tensor:
    """Scaled dot-product attention in torch's fused kernel."""
    additive = None if mask is None else mask.additive(query.dtype)
    if bias is not None:
        additive = bias if additive is None else additive + bias
    context = scaled_dot_product_attention(query, key, value, attn_mask=additive)
    if mask is not None and mask.masked_queries is not None:
        context = context.masked_fill(mask.masked_queries, 0)
    return context


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4 or key.shape[2] != value.shape[2]:
        raise UsageError(
            "attend needs query [B, H, Q, d], key [B, H, K, d] and value [B, H, K, v], "
            f"not {list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
        )
