"""Masks in torch's form: boolean tensors, true at masked keys, or floating-point tensors, added to the scores."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.masks import BoundMask, Dense, Mask, causal
from regard.errors import UsageError

AttentionMask = Tensor | Mask
Shape = tuple[int, int, int, int]  # B, H, Q, K


def bind_masks(
    shape: Shape,
    attn_mask: AttentionMask | None,
    key_padding_mask: Tensor | None,
    *,
    is_causal: bool,
    like: Tensor,
) -> tuple[BoundMask | None, Tensor | None]:
    """The mask and the bias of `attend` for the masks of a call, on the device and in the dtype of `like`.

    Keys with a bias of -∞ are masked, so that a query without any key gets zeros.

    >>> mask, bias = bind_masks((1, 1, 2, 2), torch.tensor([[0.0, -torch.inf], [3.0, 0.0]]), None, is_causal=False,
    ...     like=torch.zeros(0))
    >>> mask.dense.int().tolist(), bias.tolist()
    ([[[[1, 0], [1, 1]]]], [[[[0.0, 0.0], [3.0, 0.0]]]])
    """
    masks: list[Mask] = [causal()] if is_causal else []
    biases: list[Tensor] = []
    tensors: list[Tensor] = []
    if isinstance(attn_mask, Mask):
        masks.append(attn_mask)
    elif attn_mask is not None:
        tensors.append(_align_attention_mask(attn_mask, shape))
    if key_padding_mask is not None:
        tensors.append(_align_key_padding(key_padding_mask, shape))
    for tensor in tensors:
        tensor = tensor.to(like.device)
        if tensor.dtype == torch.bool:
            masks.append(Dense(~tensor))
            continue
        if not tensor.is_floating_point():
            raise UsageError(f"masks are boolean or floating-point tensors, not {tensor.dtype}: use mask.bool()")
        is_masked = tensor.isneginf()
        if bool(is_masked.any()):
            masks.append(Dense(~is_masked))
        finite = tensor.masked_fill(is_masked, 0).to(like.dtype)
        if finite.requires_grad or bool(finite.any()):
            biases.append(finite)
    return _join_masks(masks, shape, like.device), _join_biases(biases, shape)


def _join_masks(masks: list[Mask], shape: Shape, device: torch.device) -> BoundMask | None:
    """All masks as one, bound to the positions of queries and keys."""
    if not masks:
        return None
    joined = masks[0]
    for mask in masks[1:]:
        joined = joined & mask
    _, _, queries, keys = shape
    return joined.bind(torch.arange(queries, device=device)[None], torch.arange(keys, device=device)[None])


def _join_biases(biases: list[Tensor], shape: Shape) -> Tensor | None:
    """The sum of all biases, [B|1, H|1, Q, K]."""
    if not biases:
        return None
    total = sum(biases[1:], start=biases[0])
    return total.expand(-1, -1, *shape[2:])


def _align_attention_mask(mask: Tensor, shape: Shape) -> Tensor:
    """An attention mask [Q, K] or [B · H, Q, K] as [B|1, H|1, Q, K]."""
    batch, heads, queries, keys = shape
    if mask.shape == (queries, keys):
        return mask[None, None]
    if mask.shape == (batch * heads, queries, keys):
        return mask.unflatten(0, (batch, heads))
    raise UsageError(
        f"attn_mask must be [{queries}, {keys}] or [{batch * heads}, {queries}, {keys}] (queries × keys, or one for "
        f"each head of each row), not {list(mask.shape)}"
    )


def _align_key_padding(mask: Tensor, shape: Shape) -> Tensor:
    """A key padding mask [B, K], or [K] of one row, as [B, 1, 1, K]."""
    batch, _, _, keys = shape
    if mask.shape == (batch, keys) or (batch == 1 and mask.shape == (keys,)):
        return mask.reshape(batch, 1, 1, keys)
    raise UsageError(f"key_padding_mask must be [{batch}, {keys}] (rows × keys), not {list(mask.shape)}")
