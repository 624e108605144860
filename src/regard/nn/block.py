"""`TransformerBlock` and `FeedForward` for custom models: settings as keywords, packed hidden states."""

from __future__ import annotations

import warnings
from dataclasses import replace

from torch import Tensor

from regard.attention.dropout import Noise, apply_dropout
from regard.attention.masks import BoundMask, Mask
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import NO_POSITIONS, Positions
from regard.config.block import BiasConfig, BlockConfig
from regard.errors import UsageError
from regard.models.layers import block
from regard.nn.sites import SiteModule

_warned_classes: set[type] = set()


def warn_of_inactive_dropout(module: SiteModule, rate: float, noise: Noise | None) -> None:
    """Warn, once per class, that a module in training mode has dropout but no noise to draw it from."""
    if noise is not None or not module.training or not rate or type(module) in _warned_classes:
        return
    _warned_classes.add(type(module))
    warnings.warn(
        f"{type(module).__name__} is in training mode but was called without noise: its dropout ({rate:g}) is "
        "inactive. Pass noise=Noise(seed, step), or call eval() outside training",
        stacklevel=5,  # the caller of the module
    )


class FeedForward(SiteModule):
    """Two linear layers with an activation in between (Vaswani et al. 2017), gated (Shazeer 2020) or not.

    >>> import torch
    >>> FeedForward(8, 32, activation="silu", gated=True)(torch.ones(5, 8)).shape
    torch.Size([5, 8])
    """

    _kind = "feedforward"

    def __init__(
        self,
        hidden_size: int,
        feed_forward_size: int,
        *,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        activation_dropout: float = 0.0,
        site: str = "",
    ) -> None:
        super().__init__()
        config = BlockConfig(
            hidden_size=hidden_size,
            num_heads=1,
            feed_forward_size=feed_forward_size,
            activation=activation,
            gated=gated,
            bias=BiasConfig.uniform(bias),
            dropout=dropout,
            activation_dropout=activation_dropout,
        )
        self.site = site
        self.dropout = dropout
        self.activation_dropout = activation_dropout
        self.layers = block.FeedForward(config)

    def forward(self, hidden: Tensor, noise: Noise | None = None) -> Tensor:  # […, D] → […, D]
        """Transform every hidden state on its own."""
        warn_of_inactive_dropout(self, max(self.dropout, self.activation_dropout), noise)
        self.layers.site = self.site_name
        output: Tensor = self.layers(hidden, noise)
        return apply_dropout(output, self.dropout, noise, self.site_name)


class TransformerBlock(SiteModule):
    """Self-attention, cross-attention if requested, feed-forward: the block of Regard's models (Vaswani et al. 2017).

    Its attention sites are `site.self` and `site.cross`, where `site` is the argument, the block's place in the model
    after `name_sites(model)`, or a running number, `block.0`. Dropout is active when the block gets `noise`.

    >>> import torch
    >>> from regard.nn import causal, pack_sequences
    >>> ids, batch = pack_sequences([[5, 6, 7], [8]])
    >>> embedding = torch.nn.Embedding(9, 8)
    >>> block = TransformerBlock(8, 2, 32)
    >>> block(embedding(ids), batch, mask=causal()).shape
    torch.Size([4, 8])
    """

    _kind = "block"

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        feed_forward_size: int,
        *,
        num_kv_heads: int = 0,
        head_size: int = 0,
        value_size: int = 0,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        norm: str = "layer",
        norm_placement: str = "pre",
        norm_eps: float = 1e-5,
        residual: bool = True,
        qk_norm: bool = False,
        attention_scale: float = 0.0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        cross_attention: bool = False,
        site: str = "",
    ) -> None:
        """`num_kv_heads` 0: as `num_heads`; `head_size` 0: hidden_size / num_heads; `value_size` 0: as `head_size`.

        `norm` is layer, rms or rms_plus_one, `norm_placement` is pre, post, both or none; `attention_scale` 0:
        1 / √head_size.
        """
        super().__init__()
        config = BlockConfig(
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            value_size=value_size,
            feed_forward_size=feed_forward_size,
            activation=activation,
            gated=gated,
            bias=BiasConfig.uniform(bias),
            norm=norm,
            norm_placement=norm_placement,
            norm_eps=norm_eps,
            residual=residual,
            qk_norm=qk_norm,
            attention_scale=attention_scale,
            cross_attention=cross_attention,
            dropout=dropout,
            attention_dropout=attention_dropout,
            activation_dropout=activation_dropout,
        )
        self.num_heads = num_heads
        self.site = site
        self.max_dropout = max(dropout, attention_dropout, activation_dropout)
        self.layers = block.TransformerBlock(config)

    def attention_sites(self) -> dict[str, int]:
        """Self-attention and cross-attention, with their number of heads."""
        names = ["self"] if self.layers.cross_attention is None else ["self", "cross"]
        return {f"{self.site_name}.{name}": self.num_heads for name in names}

    def forward(
        self,
        hidden: Tensor,  # [N, D], packed
        batch: PackedBatch,
        *,
        mask: Mask | BoundMask | None = None,
        positions: Positions | None = None,
        source: Tensor | None = None,  # [M, D], packed
        source_batch: PackedBatch | None = None,
        noise: Noise | None = None,
    ) -> Tensor:  # [N, D]
        """Hidden states after the block; without a mask, a token attends to its whole sequence.

        Bind a mask that several blocks share once, `batch.bind(mask)`. `positions` rotate queries and keys, or bias
        their scores. With cross-attention, sequence b attends to sequence b of the packed `source`.
        """
        warn_of_inactive_dropout(self, self.max_dropout, noise)
        self._check_inputs(hidden, batch, source, source_batch)
        self._name_layers()
        if mask is None:
            mask = batch.full_mask()
        scheme = NO_POSITIONS if positions is None else positions
        context = block.LayerContext(
            batch=batch,
            mask=batch.bind(mask) if isinstance(mask, Mask) else mask,
            positions=scheme.bind(batch.padded_positions, batch.padded_positions),
            noise=noise,
        )
        if source is not None and source_batch is not None and self.layers.cross_attention is not None:
            keys_values = self.layers.cross_attention.precompute_keys_values(source, source_batch)
            context = replace(context, source=keys_values, source_mask=source_batch.cross_mask(batch))
        output: Tensor = self.layers(hidden, context)
        return output

    def _name_layers(self) -> None:
        """Give the layers their sites; each call does, since a copy of the module has other names."""
        site = self.site_name
        self.layers.attention.site = f"{site}.self"
        self.layers.feed_forward.site = f"{site}.feedforward"
        if self.layers.cross_attention is not None:
            self.layers.cross_attention.site = f"{site}.cross"

    def _check_inputs(
        self, hidden: Tensor, batch: PackedBatch, source: Tensor | None, source_batch: PackedBatch | None
    ) -> None:
        """Reject hidden states that do not fit the batch, and a source that is missing or superfluous."""
        _check_packed("hidden", hidden, batch)
        needs_source = self.layers.cross_attention is not None
        has_source = source is not None and source_batch is not None
        if needs_source != has_source or (source is None) != (source_batch is None):
            raise UsageError(
                "a block with cross_attention=True needs source and source_batch, and a block without it takes neither"
            )
        if source is None or source_batch is None:
            return
        _check_packed("source", source, source_batch)
        if source_batch.num_rows != batch.num_rows:
            raise UsageError(
                f"the source has {source_batch.num_rows} sequences and the batch {batch.num_rows}: "
                "sequence b attends to sequence b of the source"
            )


def _check_packed(name: str, hidden: Tensor, batch: PackedBatch) -> None:
    num_tokens = batch.num_tokens + batch.num_padding
    if hidden.dim() != 2 or len(hidden) != num_tokens:
        raise UsageError(
            f"{name} must be [{num_tokens}, width], the packed tokens of its batch, not {list(hidden.shape)}: "
            "batch.pack(padded) packs a padded tensor"
        )
