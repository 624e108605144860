"""`trace_module`: attention of any torch model – Regard's, `nn.MultiheadAttention`, `transformers` – while it runs.

Outputs do not change: weights are computed beside them. Foreign sites are named like ours, `encoder.3.self` or
`decoder.1.cross`; where two modules would share a site, the second is named by its path.
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

from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.trace import QUERIES_PER_CHUNK, CapturedWeights, Trace, trace
from regard.errors import UsageError
from regard.models.base import Model
from regard.nn.multihead import MultiHeadAttention

NATIVE_MODULES = (Model, SelfAttention, CrossAttention, MultiHeadAttention)  # these report to the trace themselves
_CROSS = re.compile(r"cross|multihead_attn|encoder_attn|enc_?dec", re.IGNORECASE)


@contextmanager
def trace_module(
    model: nn.Module, *, layers: Collection[int] | None = None, heads: Collection[int] | None = None, sites: str = "*"
) -> Iterator[Trace]:
    """Trace the attention of a model while the block runs; its outputs stay the same, bit for bit.

    `layers`, `heads` and `sites` select what is captured, in half precision.

    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> tokens = torch.ones(1, 3, 8)
    >>> with trace_module(attention) as captured:
    ...     _ = attention(tokens, tokens, tokens)
    >>> {site: captured[site].weights.shape for site in captured}
    {'encoder.0.self': (1, 2, 3, 3)}
    """
    with trace(sites, layers=layers, heads=heads) as active_trace, ExitStack() as stack:
        attention_modules = find_attention_modules(model)
        if not attention_modules and not any(isinstance(module, NATIVE_MODULES) for module in model.modules()):
            raise UsageError(
                f"{type(model).__name__} has no attention that can be traced: that of Regard, of "
                "torch.nn.MultiheadAttention and of transformers can; of others, give the weights to regard.see"
            )
        for module, site in attention_modules.items():
            if isinstance(module, nn.MultiheadAttention):
                stack.enter_context(_replace_forward(module, _trace_multihead(module, site, active_trace)))
        for module in model.modules():
            if isinstance(module, nn.TransformerEncoderLayer):
                site = attention_modules[module.self_attn]
                stack.enter_context(_replace_forward(module, _trace_encoder_layer(module, site, active_trace)))
        if any(not isinstance(module, nn.MultiheadAttention) for module in attention_modules):
            stack.enter_context(_trace_transformers(attention_modules, active_trace))
        yield active_trace


def find_attention_modules(model: nn.Module) -> dict[nn.Module, str]:
    """Find the foreign attention modules of a model, with their sites."""
    sites: dict[nn.Module, str] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) or _uses_attention_interface(module):
            site = site_from_path(path, is_causal=bool(getattr(module, "is_causal", False)))
            is_taken = site in sites.values()
            sites[module] = path or site if is_taken else site
    return sites


def site_from_path(path: str, *, is_causal: bool = False) -> str:
    """Derive a site from the path of a module; causal attention outside an encoder is a decoder's.

    >>> site_from_path("transformer.decoder.layers.2.multihead_attn")
    'decoder.2.cross'
    >>> site_from_path("bert.encoder.layer.11.attention.self")
    'encoder.11.self'
    >>> site_from_path("h.3.attn", is_causal=True), site_from_path("")
    ('decoder.3.self', 'encoder.0.self')
    """
    layers = [name for name in path.split(".") if name.isdigit()]
    is_decoder = "decoder" in path or (is_causal and "encoder" not in path)
    stack = "decoder" if is_decoder else "encoder"
    role = "cross" if _CROSS.search(path.rpartition(".")[2] or path) or _CROSS.search(path) else "self"
    return f"{stack}.{layers[-1] if layers else 0}.{role}"


def _uses_attention_interface(module: nn.Module) -> bool:
    """Whether a module calls the table of attention functions of transformers."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names and hasattr(module, "config")


@contextmanager
def _replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace the forward of a module while the block runs; forward hooks would disable torch's fast paths."""
    original = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if original is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = original


def _trace_multihead(module: nn.MultiheadAttention, site: str, active_trace: Trace) -> Callable[..., Any]:
    """Forward of a module that also captures its weights."""
    original_forward = module.forward

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
        output = original_forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )
        _capture_multihead(module, site, active_trace, query, key, value, key_padding_mask, attn_mask)
        return output

    return forward


@torch.no_grad()
def _capture_multihead(
    module: nn.MultiheadAttention,
    site: str,
    active_trace: Trace,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding: Tensor | None,
    mask: Tensor | None,
) -> None:
    """Compute the weights of a module once more, and capture them."""
    if not active_trace.matches(site):
        return
    if module.batch_first and query.dim() == 3:
        query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
    separate = not module._qkv_same_embed_dim
    _, weights = nn.functional.multi_head_attention_forward(
        query, key, value, module.embed_dim, module.num_heads, module.in_proj_weight, module.in_proj_bias,
        module.bias_k, module.bias_v, module.add_zero_attn, 0.0, module.out_proj.weight, module.out_proj.bias,
        training=False, key_padding_mask=padding, need_weights=True, attn_mask=mask,
        use_separate_proj_weight=separate, q_proj_weight=module.q_proj_weight, k_proj_weight=module.k_proj_weight,
        v_proj_weight=module.v_proj_weight, average_attn_weights=False,
    )  # fmt: skip
    assert weights is not None
    _capture_weights(active_trace, site, weights if weights.dim() == 4 else weights[None])


def _trace_encoder_layer(layer: nn.TransformerEncoderLayer, site: str, active_trace: Trace) -> Callable[..., Any]:
    """Forward of a layer that captures its weights where torch computes the layer in one fused kernel."""
    original_forward = layer.forward

    def count_captures() -> int:
        return len(active_trace.site_traces[site].captures) if site in active_trace.site_traces else 0

    def forward(
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        num_captures = count_captures()
        output = original_forward(src, src_mask, src_key_padding_mask, is_causal)
        if count_captures() == num_captures:  # the fused kernel does not call self_attn
            hidden = src
            padding = src_key_padding_mask
            if src.is_nested:
                lengths = torch.tensor([len(row) for row in src.unbind()], device=src.device)
                hidden = torch.nested.to_padded_tensor(src, 0.0)
                padding = torch.arange(hidden.shape[1], device=src.device)[None] >= lengths[:, None]
            with torch.no_grad():
                hidden = layer.norm1(hidden) if layer.norm_first else hidden
            _capture_multihead(layer.self_attn, site, active_trace, hidden, hidden, hidden, padding, src_mask)
        return output

    return forward


@contextmanager
def _trace_transformers(sites: dict[nn.Module, str], active_trace: Trace) -> Iterator[None]:
    """Wrap the attention functions of transformers while the block runs, for these modules."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as functions

    configs: list[Any] = [module.config for module in sites if hasattr(module, "config")]
    names = {str(config._attn_implementation) for config in configs}
    originals = {name: functions._local_mapping.get(name) for name in names}

    def wrap(name: str) -> Callable[..., Any]:
        registered = functions.get(name)

        def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
            function = registered or sys.modules[type(module).__module__].eager_attention_forward
            output = function(module, query, key, value, mask, **options)
            site = sites.get(module, "")
            if site and active_trace.matches(site):
                has_weights = isinstance(output[1], Tensor) and not module.training
                weights = output[1] if has_weights else _recompute_weights(module, query, key, mask, options)
                _capture_weights(active_trace, site, weights)
            return output

        return attention

    for name in names:
        functions[name] = wrap(name)
    try:
        yield
    finally:
        for name, original in originals.items():
            del functions[name]
            if original is not None:
                functions[name] = original


@torch.no_grad()
def _recompute_weights(module: Any, query: Tensor, key: Tensor, mask: Any, options: dict[str, Any]) -> Tensor:
    """Attention weights behind a fused kernel of transformers, [rows, heads, queries, keys]."""
    num_groups = query.shape[1] // key.shape[1]  # grouped-query attention: query heads per key head
    keys = key.repeat_interleave(num_groups, dim=1).float() if num_groups > 1 else key.float()
    scale = options.get("scaling")
    if scale is None:
        scale = query.shape[-1] ** -0.5
    is_causal = options.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    position_bias = options.get("position_bias")
    num_queries = query.shape[2]
    num_keys = keys.shape[2]
    chunks = []
    for start in range(0, num_queries, QUERIES_PER_CHUNK):
        rows = slice(start, min(start + QUERIES_PER_CHUNK, num_queries))
        scores = (query[:, :, rows].float() * scale) @ keys.transpose(-1, -2)
        if isinstance(mask, Tensor):
            chunk_mask = mask[:, :, rows] if mask.shape[2] > 1 else mask
            chunk_mask = chunk_mask[..., :num_keys]
            if chunk_mask.dtype == torch.bool:
                scores = scores.masked_fill(~chunk_mask, -torch.inf)
            else:
                scores = scores + chunk_mask.float()
        elif mask is None and is_causal and num_queries > 1:
            is_future = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).triu(1)[rows]
            scores = scores.masked_fill(is_future, -torch.inf)
        if position_bias is not None:
            scores = scores + position_bias[:, :, rows].float()
        chunks.append(torch.softmax(scores, dim=-1).nan_to_num_(0.0))
    return torch.cat(chunks, dim=2)


def _capture_weights(active_trace: Trace, site: str, weights: Tensor) -> None:
    """Add the weights of the selected heads to the trace, in half precision."""
    heads = active_trace.selected_heads(site, weights.shape[1])
    selected = weights.detach() if heads is None else weights.detach()[:, heads]
    captured = CapturedWeights(selected.float().nan_to_num(0.0).half().cpu().numpy().copy())
    active_trace.add(site, "", captured, heads)
