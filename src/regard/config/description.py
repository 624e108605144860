"""Descriptions of stacks, which torch models and the engine share: the block, and what differs between layers."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.block import BiasConfig, BlockConfig
from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig

LAYER_POSITIONS = ("rotary", "alibi", "relative")  # schemes that belong to layers, not to the embedding


@dataclass(frozen=True, kw_only=True)
class LayerDescription:
    """One layer of a stack: whose block it uses, what it attends to, and its positional scheme."""

    block: int
    window: int = 0  # tokens on either side that a token attends to, earlier ones in a decoder; 0: all
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
    block = BlockConfig(
        hidden_size=config.hidden_size,
        num_heads=config.stack.num_heads,
        feed_forward_size=config.stack.feed_forward_size,
        activation=config.activation,
        norm_placement=config.norm_placement,
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=0.0,
        gated=config.gated,
        bias=BiasConfig.uniform(config.bias),
        first_attention_norm=config.first_attention_norm,
    )
    layers = [
        LayerDescription(
            block=config.layer_group(layer),
            window=config.attention_window if config.is_local(layer) else 0,
            positions="rotary" if config.positions == "rotary" else "none",
            theta=config.local_rope_theta if config.is_local(layer) else config.rope_theta,
        )
        for layer in range(config.stack.num_layers)
    ]
    return StackDescription(block, tuple(layers))


def gpt_stack(config: GptConfig) -> StackDescription:
    """The decoder of a causal language model."""
    block = BlockConfig(
        hidden_size=config.hidden_size,
        num_heads=config.stack.num_heads,
        feed_forward_size=config.stack.feed_forward_size,
        activation=config.activation,
        norm_placement="pre",
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=0.0,
    )
    return _same_layers(block, config.stack.num_layers, config.positions, "positions")


def transformer_encoder(config: TransformerConfig) -> StackDescription:
    """The encoder of an encoder–decoder."""
    return _transformer_stack(config, config.encoder, "source_positions", cross_attention=False)


def transformer_decoder(config: TransformerConfig) -> StackDescription:
    """The decoder of an encoder–decoder."""
    return _transformer_stack(config, config.decoder, "target_positions", cross_attention=True)


def _transformer_stack(
    config: TransformerConfig, stack: StackConfig, positions_name: str, *, cross_attention: bool
) -> StackDescription:
    block = BlockConfig(
        hidden_size=config.hidden_size,
        num_heads=stack.num_heads,
        feed_forward_size=stack.feed_forward_size,
        activation=config.activation,
        norm_placement=config.norm_placement,
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        cross_attention=cross_attention,
    )
    return _same_layers(block, stack.num_layers, config.positions, positions_name)


def _same_layers(block: BlockConfig, num_layers: int, positions: str, positions_name: str) -> StackDescription:
    """Layers that differ in their blocks alone; `positions_name` is that of the scheme's weights."""
    layer_positions = positions if positions in LAYER_POSITIONS else "none"
    layers = [LayerDescription(block=index, positions=layer_positions) for index in range(num_layers)]
    return StackDescription(block, tuple(layers), (f"{positions_name}.relative_attention_bias",))
