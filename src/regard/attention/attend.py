"""`attend`: the one place where attention weights exist."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.capture import AttentionCall, attention_weights, capture
from regard.attention.dropout import Noise, apply_dropout
from regard.attention.intervention import apply_ablation
from regard.attention.masks import BoundMask
from regard.attention.scores import Normalize, ScaledDot, Score, softmax
from regard.attention.sparse import BlockSparseMask, LocalMask, attend_block_sparse, attend_local
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
    """Return for each query the mix of values that its weights over the keys make, [B, H, Q, v].

    An open trace that wants the site sees the weights, unless the caller shows them; the output comes from the same
    kernel either way.

    >>> keys = torch.tensor([[[[100.0, 0.0], [0.0, 100.0]]]])
    >>> attend(keys, keys, torch.tensor([[[[1.0], [2.0]]]])).tolist()
    [[[[1.0], [2.0]]]]
    """
    _check(query, key, value)
    if mask is not None and mask.is_full:
        mask = None
    usual = type(score) is ScaledDot and normalize is softmax and bias is None
    dropped = dropout if noise is not None else 0.0
    if isinstance(mask, BlockSparseMask) and usual:
        mixed = attend_block_sparse(query, key, value, mask)
    elif isinstance(mask, LocalMask) and usual and not dropped:
        mixed = attend_local(query, key, value, mask, _plain)
    elif _fused_fits(query, score, normalize, dropped):
        mixed = _fused(query, key, value, mask, bias)
    else:
        weights = attention_weights(query, key, mask, bias, score, normalize)
        mixed = apply_dropout(weights, dropout, noise, site) @ value
    mixed = apply_ablation(mixed, site)
    if is_traced and (seen := active_trace(site)) is not None:
        capture(seen, site, AttentionCall(query, key, value, mask, bias, score, normalize))
    return mixed


def _plain(query: Tensor, key: Tensor, value: Tensor, mask: BoundMask) -> Tensor:
    """Return usual attention with a mask, without dropout."""
    if _fused_fits(query, SCALED_DOT, softmax, 0.0):
        return _fused(query, key, value, mask, None)
    return attention_weights(query, key, mask, None, SCALED_DOT, softmax) @ value


def _fused_fits(query: Tensor, score: Score, normalize: Normalize, dropout: float) -> bool:
    """Decide the kernel from what is asked alone, so that a repeat computes the same bits.

    In training on processors two plain products beat the fused kernel's backward pass on rows of ordinary length.
    """
    if type(score) is not ScaledDot or normalize is not softmax or dropout > 0:
        return False
    return not (torch.is_grad_enabled() and query.device.type == "cpu")


def _fused(query: Tensor, key: Tensor, value: Tensor, mask: BoundMask | None, bias: Tensor | None) -> Tensor:
    extra = None if mask is None else mask.additive(query.dtype)
    if bias is not None:
        extra = bias if extra is None else extra + bias
    mixed = scaled_dot_product_attention(query, key, value, attn_mask=extra)
    if mask is not None and mask.masked_queries is not None:
        mixed = mixed.masked_fill(mask.masked_queries, 0)
    return mixed


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4 or key.shape[2] != value.shape[2]:
        raise UsageError(
            "attend needs query [B, H, Q, d], key [B, H, K, d] and value [B, H, K, v], "
            f"not {list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
        )
