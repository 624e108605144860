"""Descriptions of stacks, which torch models and the engine share: the block, and what differs between layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from regard.config.block import BiasConfig, BlockConfig
from regard.config.models import BIAS_POSITIONS, BertConfig, GptConfig, StackConfig, TransformerConfig

LAYER_POSITIONS = ("rotary", *BIAS_POSITIONS)  # schemes that belong to layers, not to the embedding


@dataclass(frozen=True, kw_only=True)
class LayerDescription:
    """One layer of a stack: whose block it uses, what it attends to, and its positional scheme."""

    block: int
    window: int = 0  # tokens on either side that a token attends to, earlier ones if causal; 0: all
    is_causal: bool = False
    positions: str = "none"  # rotary, alibi, relative (T5) or none; absolute ones belong to the embedding
    theta: float = 10_000.0  # rotary wavelengths grow from 2π to 2π · theta
    rotary_dim: int = 0  # rotated dimensions of a head; 0: all
    interleaved: bool = False  # rotary pairs are neighbours
    scaling: str = "linear"  # how `factor` stretches rotary positions: linear or ntk
    factor: float = 1.0
    bias_table: int = 0  # index of the stack's relative bias; layers may share one
    num_buckets: int = 32  # of the relative bias
    max_distance: int = 128  # from which on distances share a bucket


@dataclass(frozen=True)
class StackDescription:
    """A stack of Transformer blocks.

    >>> stack = gpt_stack(GptConfig(hidden_size=64, stack=StackConfig(num_layers=2)))
    >>> stack.block.norm_placement, stack.num_blocks, stack.layers[1].positions
    ('pre', 2, 'rotary')
    """

    block: BlockConfig
    layers: tuple[LayerDescription, ...]
    bias_names: tuple[str, ...] = ()  # modules of the relative biases, by `bias_table`

    @property
    def num_blocks(self) -> int:
        """Number of blocks, which layers may share."""
        return max(layer.block for layer in self.layers) + 1

    @property
    def bias_tables(self) -> dict[int, int]:
        """Indices of the relative biases, with their numbers of buckets."""
        return {layer.bias_table: layer.num_buckets for layer in self.layers if layer.positions == "relative"}


def bert_stack(config: BertConfig) -> StackDescription:
    """The encoder of BERT and its relatives; block-sparse attention is not part of the description.

    >>> modern = BertConfig(positions="rotary", attention_window=64, rope_theta=160_000.0)
    >>> [(layer.window, layer.theta) for layer in bert_stack(modern).layers]
    [(0, 160000.0), (64, 10000.0), (64, 10000.0), (0, 160000.0)]
    """
    block = _describe_block(
        config,
        config.stack,
        gated=config.gated,
        bias=BiasConfig.uniform(config.bias),
        first_attention_norm=config.first_attention_norm,
    )
    layers = [
        LayerDescription(
            block=config.layer_group(layer),
            window=config.attention_window if config.is_local(layer) else 0,
            positions=_layer_positions(config.positions),
            is_causal=config.causal,
            theta=config.local_rope_theta if config.is_local(layer) else config.rope_theta,
        )
        for layer in range(config.stack.num_layers)
    ]
    return StackDescription(block, tuple(layers), ("position_embedding.relative_attention_bias",))


def gpt_stack(config: GptConfig) -> StackDescription:
    """The decoder of a causal language model."""
    block = _describe_block(config, config.stack)
    return _same_layers(block, config, config.stack.num_layers, "positions", is_causal=True)


def transformer_encoder(config: TransformerConfig) -> StackDescription:
    """The encoder of an encoder–decoder."""
    return _transformer_stack(config, config.encoder, "source_positions", cross_attention=False)


def transformer_decoder(config: TransformerConfig) -> StackDescription:
    """The decoder of an encoder–decoder."""
    return _transformer_stack(config, config.decoder, "target_positions", cross_attention=True)


def has_residual(config: object, site: str) -> bool:
    """Whether the layers of an attention site have residual connections; true for models without a stack of blocks.

    >>> without = StackConfig(residual=False)
    >>> translator = TransformerConfig(decoder=without)
    >>> has_residual(translator, "encoder.0.self"), has_residual(translator, "decoder.0.self")
    (True, False)
    >>> has_residual(GptConfig(stack=without), "decoder.0.self")
    False
    """
    for name in (site.partition(".")[0], "stack"):
        stack = getattr(config, name, None)
        if isinstance(stack, StackConfig):
            return stack.residual
    return True


def _transformer_stack(
    config: TransformerConfig, stack: StackConfig, positions_name: str, *, cross_attention: bool
) -> StackDescription:
    block = _describe_block(
        config, stack, activation_dropout=config.activation_dropout, cross_attention=cross_attention
    )
    return _same_layers(block, config, stack.num_layers, positions_name, is_causal=cross_attention)


def _describe_block(
    config: TransformerConfig | BertConfig | GptConfig, stack: StackConfig, **settings: Any
) -> BlockConfig:
    """The block of a stack; `settings` are those that only some families have."""
    block = BlockConfig(
        hidden_size=config.hidden_size,
        num_heads=stack.num_heads,
        head_size=stack.head_size,
        value_size=stack.value_size,
        feed_forward_size=stack.feed_forward_size,
        activation=config.activation,
        norm_placement=config.norm_placement,
        norm_eps=config.norm_eps,
        residual=stack.residual,
        attention_normalization=stack.attention_normalization,
        attention_top_k=stack.attention_top_k,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        **settings,
    )
    if not stack.attention_scale and stack.attention_temperature == 1:
        return block
    scale = stack.attention_scale or block.key_dim**-0.5
    temperature = stack.attention_temperature
    return replace(block, attention_scale=scale / temperature, attention_bias_scale=1 / temperature)


def _layer_positions(positions: str) -> str:
    """The scheme where it belongs to layers; one that is added to embeddings is none of theirs."""
    return positions if positions in LAYER_POSITIONS else "none"


def _same_layers(
    block: BlockConfig, config: TransformerConfig | GptConfig, num_layers: int, positions_name: str, *, is_causal: bool
) -> StackDescription:
    """Layers that differ in their blocks alone; `positions_name` is that of the scheme's weights."""
    layers = [
        LayerDescription(
            block=index,
            window=config.attention_window,
            positions=_layer_positions(config.positions),
            is_causal=is_causal,
        )
        for index in range(num_layers)
    ]
    return StackDescription(block, tuple(layers), (f"{positions_name}.relative_attention_bias",))
