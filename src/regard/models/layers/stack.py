"""A stack of Transformer blocks: encoder, decoder or causal language model, for training and for decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

from torch import Tensor, nn

from regard.attention.cache import CrossKeyValues, KeyValueCache, LayerCache
from regard.attention.dropout import Noise
from regard.attention.masks import BoundMask
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.packed_batch import PackedBatch, SelectedTokens
from regard.cancellation import check_cancelled
from regard.config.block import BlockConfig
from regard.models.layers.block import FeedForward, LayerContext, TransformerBlock
from regard.models.layers.layer_spec import LayerMask, LayerSpec, bind_masks
from regard.models.layers.norms import build_norm

MIN_TOKENS_PER_RUN = 32  # mean tokens of the runs of equal-length sequences from which attention goes run by run


class TransformerStack(nn.Module):
    """Blocks in sequence, with a final norm where blocks normalise their input; layers may share blocks.

    >>> import numpy as np
    >>> import torch
    >>> from regard.models.layers.layer_spec import same_layers
    >>> config = BlockConfig(hidden_size=4, num_heads=2, feed_forward_size=8)
    >>> stack = TransformerStack(config, same_layers(2))
    >>> batch = PackedBatch(np.array([3, 1]))
    >>> stack(torch.zeros(4, 4), batch).shape
    torch.Size([4, 4])
    """

    def __init__(self, config: BlockConfig, layers: Sequence[LayerSpec], name: str = "encoder") -> None:
        super().__init__()
        self.config = config
        self.layer_specs = tuple(layers)
        num_blocks = max(layer.block for layer in layers) + 1
        self.layers = nn.ModuleList(TransformerBlock(config) for _ in range(num_blocks))
        self.final_norm: nn.Module = nn.Identity()
        if config.has_input_norms:
            self.final_norm = build_norm(config.norm, config.hidden_size, config.norm_eps, config.bias.norm)
        if not config.first_attention_norm:
            self.layers[0].attention_norm = nn.Identity()
        # a plain list: the copies are not submodules, so their weights appear once in the state dict
        is_shared = num_blocks < len(layers)
        self._shared_blocks = [_copy_with_own_sites(self.layers[layer.block]) for layer in layers] if is_shared else []
        for layer, block in enumerate(self.layer_blocks):
            block.attention.site = f"{name}.{layer}.self"
            block.feed_forward.site = f"{name}.{layer}.feedforward"
            if block.cross_attention is not None:
                block.cross_attention.site = f"{name}.{layer}.cross"

    @property
    def layer_blocks(self) -> Sequence[TransformerBlock]:
        """The block of each layer."""
        return self._shared_blocks or [*self.layers]

    def forward(
        self,
        hidden: Tensor,  # [N, D]
        batch: PackedBatch,
        noise: Noise | None = None,
        selected: SelectedTokens | None = None,
        *,
        cache: KeyValueCache | None = None,
        sources: Sequence[CrossKeyValues] = (),
        source_mask: BoundMask | None = None,
        by_length: bool = False,
    ) -> Tensor:  # [N, D], or [M, D] of the selected tokens
        """Hidden states of all tokens, or of the selected ones.

        With a cache, the batch has the next tokens of each row, from position `cache.length` on. `sources` has each
        layer's keys and values of the source. `by_length`: where it is faster, sequences of equal length attend
        together, without padding; for inference.
        """
        for layer_output in self.hidden_states(
            hidden,
            batch,
            noise,
            selected,
            cache=cache,
            sources=sources,
            source_mask=source_mask,
            by_length=by_length,
        ):
            hidden = layer_output
        normed: Tensor = self.final_norm(hidden)
        return normed

    def hidden_states(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        noise: Noise | None = None,
        selected: SelectedTokens | None = None,
        *,
        cache: KeyValueCache | None = None,
        sources: Sequence[CrossKeyValues] = (),
        source_mask: BoundMask | None = None,
        by_length: bool = False,
    ) -> Iterator[Tensor]:
        """Yield the hidden states after each block, before the final norm; after the last one, of selected tokens."""
        layer_masks = bind_masks(self.layer_specs, batch, is_cached=cache is not None)
        if cache is not None:
            cache.reserve(batch.max_length)
        # the last block computes the selected tokens alone if its mask can be bound to them
        selected_in_block = selected if layer_masks[-1].can_select else None
        by_length = by_length and _has_long_runs(batch, layer_masks)
        last_layer = len(layer_masks) - 1
        for layer, (block, layer_mask) in enumerate(zip(self.layer_blocks, layer_masks, strict=True)):
            check_cancelled()
            context = LayerContext(
                batch,
                layer_mask.mask,
                positions=layer_mask.positions,
                noise=noise,
                selected=selected_in_block if layer == last_layer else None,
                cache=None if cache is None else LayerCache(cache, layer),
                source=sources[layer] if sources else None,
                source_mask=source_mask,
                by_length=by_length,
            )
            hidden = block(hidden, context)
            if layer == last_layer and selected is not None and selected_in_block is None:
                hidden = hidden.index_select(0, selected.indices)
            yield hidden
        if cache is not None:
            cache.length += batch.max_length

    def layer_states(
        self,
        embedded: Tensor,
        batch: PackedBatch,
        noise: Noise | None = None,
        *,
        sources: Sequence[CrossKeyValues] = (),
        source_mask: BoundMask | None = None,
    ) -> list[Tensor]:  # each [N, D]
        """The input and the hidden states after each layer; the last are normalised, as the output of the stack is."""
        *inner, last = self.hidden_states(embedded, batch, noise, sources=sources, source_mask=source_mask)
        return [embedded, *inner, self.final_norm(last)]

    def precompute_keys_values(self, hidden: Tensor, batch: PackedBatch) -> list[CrossKeyValues]:
        """Keys and values of the source for every layer."""
        keys_values = []
        for block in self.layer_blocks:
            assert block.cross_attention is not None
            keys_values.append(block.cross_attention.precompute_keys_values(hidden, batch))
        return keys_values

    def empty_cache(self, num_rows: int, capacity: int) -> KeyValueCache:
        """Key–value cache of this stack for `num_rows` rows, with room for `capacity` tokens of each."""
        config = self.config
        return KeyValueCache.empty(
            layers=len(self.layer_specs),
            rows=num_rows,
            heads=config.kv_heads,
            capacity=capacity,
            key_size=config.key_dim,
            value_size=config.value_dim,
            device=self.layer_blocks[0].feed_forward.down.weight.device,
        )


def _has_long_runs(batch: PackedBatch, layer_masks: Sequence[LayerMask]) -> bool:
    """Whether all attention is global and runs of equal-length sequences have enough tokens."""
    if batch.num_padding or not all(layer_mask.is_global for layer_mask in layer_masks):
        return False
    num_runs = len(batch.equal_length_runs)
    return 0 < MIN_TOKENS_PER_RUN * num_runs <= batch.num_tokens


def _copy_with_own_sites(block: nn.Module) -> TransformerBlock:
    """Copy a block that shares its weights with the original but has its own site names."""
    assert isinstance(block, TransformerBlock)
    shared = copy(block)
    shared._modules = dict(block._modules)
    for name, module in block._modules.items():
        if isinstance(module, SelfAttention | CrossAttention | FeedForward):
            shared._modules[name] = copy(module)
    return shared
