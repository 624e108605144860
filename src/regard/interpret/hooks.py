"""`watch`: where any torch model looks – ours, torch's own attention, those of transformers – without touching it.

The models compute as they would; what is seen is computed beside. Foreign sites are named as ours are:
`encoder.3.self`, `decoder.1.cross`; a module whose place cannot be told that way has its path in the model.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.capture import QUERIES_PER_CHUNK
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.trace import CapturedWeights, Trace, trace
from regard.errors import UsageError
from regard.models.base import Model

OURS = (Model, SelfAttention, CrossAttention)
_CROSS = re.compile(r"cross|multihead_attn|encoder_attn|enc_?dec", re.IGNORECASE)


@contextmanager
def trace_module(
    model: nn.Module, *, layers: Collection[int] | None = None, heads: Collection[int] | None = None, sites: str = "*"
) -> Iterator[Trace]:
    """Keep where a model looks while the block runs; its outputs stay the same, bit for bit.

    `layers` and `heads` narrow what is kept, `only` the sites. What was seen is there by site, in half precision.

    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> tokens = torch.ones(1, 3, 8)
    >>> with trace_module(attention) as seen:
    ...     _ = attention(tokens, tokens, tokens)
    >>> {site: seen[site].weights.shape for site in seen}
    {'encoder.0.self': (1, 2, 3, 3)}
    """
    with trace(sites, layers=layers, heads=heads) as seen, ExitStack() as stack:
        found = find_attention_modules(model)
        if not found and not any(isinstance(one, OURS) for one in model.modules()):
            raise UsageError(
                f"{type(model).__name__} has no attention that can be watched: that of Regard, of "
                "torch.nn.MultiheadAttention and of transformers can; of others, give the weights to regard.see"
            )
        for module, site in found.items():
            if isinstance(module, nn.MultiheadAttention):
                stack.enter_context(_replaced(module, _beside(module, site, seen)))
        for module in model.modules():
            if isinstance(module, nn.TransformerEncoderLayer):
                site = found[module.self_attn]
                stack.enter_context(_replaced(module, _fast_layer(module, site, seen)))
        if any(not isinstance(module, nn.MultiheadAttention) for module in found):
            stack.enter_context(_transformers(found, seen))
        yield seen


def find_attention_modules(model: nn.Module) -> dict[nn.Module, str]:
    """Return the attention modules of others in a model, with the names of their sites."""
    made: dict[nn.Module, str] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) or _is_interfaced(module):
            site = site_from_path(path, is_causal=bool(getattr(module, "is_causal", False)))
            made[module] = site if site not in made.values() else path or site
    return made


def site_from_path(path: str, *, is_causal: bool = False) -> str:
    """Return the name of a site from a module's path; what sees no further than itself is a decoder's.

    >>> site_from_path("transformer.decoder.layers.2.multihead_attn"), site_from_path("bert.encoder.layer.11.attention.self")
    ('decoder.2.cross', 'encoder.11.self')
    >>> site_from_path("h.3.attn", is_causal=True), site_from_path("")
    ('decoder.3.self', 'encoder.0.self')
    """
    numbers = [part for part in path.split(".") if part.isdigit()]
    part = "decoder" if "decoder" in path or (is_causal and "encoder" not in path) else "encoder"
    role = "cross" if _CROSS.search(path.rpartition(".")[2] or path) or _CROSS.search(path) else "self"
    return f"{part}.{numbers[-1] if numbers else 0}.{role}"


def _is_interfaced(module: nn.Module) -> bool:
    """Whether a module computes through the table of attention functions of transformers."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names and hasattr(module, "config")


@contextmanager
def _replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module compute by another function while the block runs; hooks would keep torch from its fast paths."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before


def _beside(module: nn.MultiheadAttention, site: str, seen: Trace) -> Callable[..., Any]:
    """Return the module's forward, with the weights computed once more beside it."""
    plain = module.forward

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        made = plain(query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        _show_module(module, site, seen, query, key, value, key_padding_mask, attn_mask)
        return made

    return forward


@torch.no_grad()
def _show_module(
    module: nn.MultiheadAttention,
    site: str,
    seen: Trace,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding: Tensor | None,
    mask: Tensor | None,
) -> None:
    if not seen.matches(site):
        return
    if module.batch_first and query.dim() == 3:
        query, key, value = (part.transpose(0, 1) for part in (query, key, value))
    separate = not module._qkv_same_embed_dim
    _, weights = nn.functional.multi_head_attention_forward(
        query, key, value, module.embed_dim, module.num_heads, module.in_proj_weight, module.in_proj_bias,
        module.bias_k, module.bias_v, module.add_zero_attn, 0.0, module.out_proj.weight, module.out_proj.bias,
        training=False, key_padding_mask=padding, need_weights=True, attn_mask=mask,
        use_separate_proj_weight=separate, q_proj_weight=module.q_proj_weight, k_proj_weight=module.k_proj_weight,
        v_proj_weight=module.v_proj_weight, average_attn_weights=False,
    )  # fmt: skip
    assert weights is not None
    _keep(seen, site, weights if weights.dim() == 4 else weights[None])


def _fast_layer(layer: nn.TransformerEncoderLayer, site: str, seen: Trace) -> Callable[..., Any]:
    """Return a layer's forward; where torch computes it in one kernel, its weights are computed beside it."""
    plain = layer.forward

    def forward(
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        before = len(seen.records[site].captures) if site in seen.records else 0
        made = plain(src, src_mask, src_key_padding_mask, is_causal)
        after = len(seen.records[site].captures) if site in seen.records else 0
        if before == after:
            states, padding = src, src_key_padding_mask
            if src.is_nested:
                lengths = torch.tensor([len(row) for row in src.unbind()], device=src.device)
                states = torch.nested.to_padded_tensor(src, 0.0)
                padding = torch.arange(states.shape[1], device=src.device)[None] >= lengths[:, None]
            with torch.no_grad():
                states = layer.norm1(states) if layer.norm_first else states
            _show_module(layer.self_attn, site, seen, states, states, states, padding, src_mask)
        return made

    return forward


@contextmanager
def _transformers(found: dict[nn.Module, str], seen: Trace) -> Iterator[None]:
    """Stand beside the attention functions of transformers while the block runs, for the modules that were found."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as functions

    configs: list[Any] = [module.config for module in found if hasattr(module, "config")]
    names = {str(config._attn_implementation) for config in configs}
    before = {name: functions._local_mapping.get(name) for name in names}

    def wrapped(name: str) -> Callable[..., Any]:
        known = functions.get(name)

        def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **given: Any) -> Any:
            function = known or sys.modules[type(module).__module__].eager_attention_forward
            made = function(module, query, key, value, mask, **given)
            site = found.get(module, "")
            if site and seen.matches(site):
                told = made[1] if isinstance(made[1], Tensor) and not module.training else None
                weights = told if told is not None else _interfaced_weights(module, query, key, mask, given)
                _keep(seen, site, weights)
            return made

        return attention

    for name in names:
        functions[name] = wrapped(name)
    try:
        yield
    finally:
        for name, old in before.items():
            del functions[name]
            if old is not None:
                functions[name] = old


@torch.no_grad()
def _interfaced_weights(module: Any, query: Tensor, key: Tensor, mask: Any, given: dict[str, Any]) -> Tensor:
    """Return what a fused kernel of transformers weighs by, [B, H, Q, K]."""
    groups = query.shape[1] // key.shape[1]
    keys = key.repeat_interleave(groups, dim=1).float() if groups > 1 else key.float()
    scale = given.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    causal = given.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    count, size = query.shape[2], keys.shape[2]
    made = []
    for first in range(0, count, QUERIES_PER_CHUNK):
        rows = slice(first, min(first + QUERIES_PER_CHUNK, count))
        scores = (query[:, :, rows].float() * scale) @ keys.transpose(-1, -2)
        if isinstance(mask, Tensor):
            part = mask[:, :, rows] if mask.shape[2] > 1 else mask
            part = part[..., :size]
            scores = scores.masked_fill(~part, -torch.inf) if part.dtype == torch.bool else scores + part.float()
        elif mask is None and causal and count > 1:
            ahead = torch.ones(count, size, dtype=torch.bool, device=query.device).triu(1)[rows]
            scores = scores.masked_fill(ahead, -torch.inf)
        if (bias := given.get("position_bias")) is not None:
            scores = scores + bias[:, :, rows].float()
        made.append(torch.softmax(scores, dim=-1).nan_to_num_(0.0))
    return torch.cat(made, dim=2)


def _keep(seen: Trace, site: str, weights: Tensor) -> None:
    heads = seen.selected_heads(site, weights.shape[1])
    chosen = weights.detach() if heads is None else weights.detach()[:, heads]
    seen.add(site, "", CapturedWeights(chosen.float().nan_to_num(0.0).half().cpu().numpy().copy()), heads)
