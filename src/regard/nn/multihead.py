"""`MultiHeadAttention`: the interface and weights of `torch.nn.MultiheadAttention`, computed by `attend`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.attention.attend import SCALED_DOT, attend
from regard.attention.capture import attention_weights
from regard.attention.dropout import Noise
from regard.attention.masks import BoundMask
from regard.attention.scores import softmax
from regard.errors import ConfigError, UsageError
from regard.nn.sites import SiteModule
from regard.nn.torch_masks import AttentionMask, bind_masks

MAX_SEED = 1 << 62


class MultiHeadAttention(SiteModule):
    """Multi-head attention over padded tensors: arguments, weights and outputs of `torch.nn.MultiheadAttention`.

    State dicts of either load into the other, and the same seed of torch gives the same initial weights. `attend`
    computes it, so that `regard.trace` and `regard.ablate` apply. The site is `site`, the module's place in the model
    after `name_sites(model)`, or a running number, `attention.0`.

    Differences: a query that may attend to nothing gets zeros where torch gives NaN (its output is the bias of the
    output projection); `add_bias_kv` and `add_zero_attn` are not supported; `is_causal` needs no `attn_mask`;
    `attn_mask` may also be a mask expression, such as `causal() & window(3)`; weights are returned without dropout.

    Dropout draws from `noise`. In training mode without it, a seed is drawn from torch's generator, so that dropout is
    active and `torch.manual_seed` makes it reproducible, as in torch.

    >>> attention = MultiHeadAttention(8, 2, batch_first=True)
    >>> hidden = torch.ones(3, 5, 8)
    >>> output, weights = attention(hidden, hidden, hidden, is_causal=True)
    >>> output.shape, weights[0, 1].tolist()
    (torch.Size([3, 5, 8]), [0.5, 0.5, 0.0, 0.0, 0.0])
    """

    _kind = "attention"
    # torch.nn.TransformerEncoderLayer has a fused kernel that would bypass this module; this attribute disables it
    _qkv_same_embed_dim = False
    in_proj_weight: nn.Parameter | None
    q_proj_weight: nn.Parameter
    k_proj_weight: nn.Parameter
    v_proj_weight: nn.Parameter
    in_proj_bias: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        site: str = "",
    ) -> None:
        super().__init__()
        _check_settings(embed_dim, num_heads, dropout, add_bias_kv or add_zero_attn)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        self.site = site
        is_fused = self.kdim == embed_dim and self.vdim == embed_dim
        shapes = {
            "in_proj_weight": (3 * embed_dim, embed_dim) if is_fused else None,
            "q_proj_weight": None if is_fused else (embed_dim, embed_dim),
            "k_proj_weight": None if is_fused else (embed_dim, self.kdim),
            "v_proj_weight": None if is_fused else (embed_dim, self.vdim),
            "in_proj_bias": (3 * embed_dim,) if bias else None,
        }
        for name, shape in shapes.items():
            empty = None if shape is None else nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name, empty)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise projections by Glorot's rule and biases with zero, as torch does."""
        for name, parameter in self.named_parameters(recurse=False):
            if name.endswith("weight"):
                nn.init.xavier_uniform_(parameter)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def attention_sites(self) -> dict[str, int]:
        """The module's site, with its number of heads."""
        return {self.site_name: self.num_heads}

    def forward(
        self,
        query: Tensor,  # [Q, B, E]; [B, Q, E] with batch_first; [Q, E] unbatched
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,  # [B, K] or [K]; true: masked
        need_weights: bool = True,
        attn_mask: AttentionMask | None = None,  # [Q, K] or [B · H, Q, K]; true: masked
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        noise: Noise | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Output in the layout of the query, and weights [B, Q, K], or [B, H, Q, K] without averaging, if needed.

        Floating-point masks are added to the scores, boolean ones are true at keys that are masked.
        """
        is_batched = query.dim() == 3
        self._check_inputs(query, key, value)
        query, key, value = (self._to_batch_first(states, is_batched) for states in (query, key, value))
        queries, keys, values = self._project(query, key, value)
        shape = (len(query), self.num_heads, query.shape[1], key.shape[1])
        mask, bias = bind_masks(shape, attn_mask, key_padding_mask, is_causal=is_causal, like=queries)
        context = attend(
            queries,
            keys,
            values,
            mask=mask,
            bias=bias,
            dropout=self.dropout,
            noise=self._noise(noise),
            site=self.site_name,
        )
        output = self.out_proj(context.transpose(1, 2).flatten(2))
        weights = self._weights(queries, keys, mask, bias, average_attn_weights) if need_weights else None
        if not is_batched:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def _to_batch_first(self, states: Tensor, is_batched: bool) -> Tensor:
        """Hidden states as [B, T, E]."""
        if not is_batched:
            return states[None]
        return states if self.batch_first else states.transpose(0, 1)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values of the heads, each [B, H, T, d]."""
        if self.in_proj_weight is not None:
            matrices = [*self.in_proj_weight.chunk(3)]
        else:
            matrices = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [
            linear(states, matrix, bias).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for states, matrix, bias in zip((query, key, value), matrices, biases, strict=True)
        ]

    def _noise(self, noise: Noise | None) -> Noise | None:
        """The noise of this call: in training without an explicit one, from a seed of torch's generator."""
        if noise is not None or not self.training or not self.dropout:
            return noise
        return Noise(seed=int(torch.randint(MAX_SEED, ())), step=0)

    def _weights(
        self, queries: Tensor, keys: Tensor, mask: BoundMask | None, bias: Tensor | None, should_average: bool
    ) -> Tensor:
        """Attention weights beside the output, with gradients."""
        weights = attention_weights(queries, keys, mask, bias, SCALED_DOT, softmax)
        return weights.mean(1) if should_average else weights

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Reject tensors that do not fit the module or each other."""
        widths = (self.embed_dim, self.kdim, self.vdim)
        states = (query, key, value)
        batch_axis = 0 if self.batch_first else 1
        has_dimensions = query.dim() in (2, 3) and key.dim() == query.dim() == value.dim()
        fits = has_dimensions and all(tensor.shape[-1] == width for tensor, width in zip(states, widths, strict=True))
        if fits:
            is_same_batch = query.dim() == 2 or len({tensor.shape[batch_axis] for tensor in states}) == 1
            fits = is_same_batch and key.shape[:-1] == value.shape[:-1]
        if not fits:
            layout = "[B, T, width]" if self.batch_first else "[T, B, width]"
            shapes = ", ".join(str(list(tensor.shape)) for tensor in states)
            raise UsageError(
                f"query, key and value must be {layout}, or [T, width] unbatched, with widths "
                f"{', '.join(str(width) for width in widths)} and one batch size; keys and values must be as many. "
                f"They are {shapes}"
            )


def _check_settings(embed_dim: int, num_heads: int, dropout: float, has_extra_keys: bool) -> None:
    if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
        raise ConfigError(
            f"embed_dim ({embed_dim}) must be a positive multiple of num_heads ({num_heads}): change one of them"
        )
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout must be from 0 to below 1, not {dropout:g}")
    if has_extra_keys:
        raise ConfigError(
            "add_bias_kv and add_zero_attn are not supported: a module with them has keys that stand for no token. "
            "Leave them out, or use torch.nn.MultiheadAttention inside regard.trace_module"
        )
