"""Counts for encoder–decoders: floating-point operations of an update, and size of the state while generating.

Operations are those of matrix products: two for each multiplication with a weight, of queries with keys, and of weights
with values; the backward pass takes twice the forward pass. Additions of biases, norms and activations are not counted.
"""

from __future__ import annotations

from regard.config.block import BlockConfig
from regard.config.description import transformer_decoder, transformer_encoder
from regard.config.models import TransformerConfig
from regard.config.rnn_models import Seq2SeqConfig

BACKWARD = 2  # operations of the backward pass, relative to the forward pass
GATES = {"lstm": 4, "gru": 3}
STATES = {"lstm": 2, "gru": 1}  # tensors that a cell hands to its next step
TranslatorConfig = TransformerConfig | Seq2SeqConfig


def update_operations(config: TranslatorConfig, source: int, target: int) -> int:
    """Operations of forward and backward pass for one pair of so many source and target tokens.

    >>> config = TransformerConfig(source_vocab_size=11, target_vocab_size=11, hidden_size=8)
    >>> update_operations(config, 2, 0) < update_operations(config, 4, 0)
    True
    """
    if isinstance(config, TransformerConfig):
        multiplications = _count_transformer(config, source, target)
    else:
        multiplications = _count_seq2seq(config, source, target)
    return (1 + BACKWARD) * 2 * multiplications


def _count_transformer(config: TransformerConfig, source: int, target: int) -> int:
    """Multiplications of the forward pass."""
    encoder = _Widths(transformer_encoder(config).block)
    decoder = _Widths(transformer_decoder(config).block)
    encoder_layer = source * (encoder.projections + encoder.feed_forward) + source**2 * encoder.pair
    decoder_layer = target * (decoder.projections + decoder.feed_forward) + target**2 * decoder.pair
    cross = target * (decoder.query + decoder.output) + source * decoder.key_value + source * target * decoder.pair
    return (
        config.encoder.num_layers * encoder_layer
        + config.decoder.num_layers * (decoder_layer + cross)
        + target * config.hidden_size * config.target_vocab_size
    )


class _Widths:
    """Weights that a token is multiplied with in a layer, and multiplications for each pair of query and key."""

    def __init__(self, block: BlockConfig) -> None:
        hidden = block.hidden_size
        self.cached = sum(block.key_value_widths)  # keys and values of a token
        self.query = hidden * block.query_width
        self.key_value = hidden * self.cached
        self.output = hidden * block.output_width
        self.projections = self.query + self.key_value + self.output
        self.feed_forward = 2 * hidden * block.feed_forward_size
        self.pair = block.query_width + block.output_width


def _count_seq2seq(config: Seq2SeqConfig, source: int, target: int) -> int:
    """Multiplications of the forward pass; values are projected once per source token, as the model does."""
    hidden = config.hidden_size
    gates = GATES[config.cell]
    encoder_width = config.num_directions * hidden
    output = config.embedding_size if config.tie_embeddings else hidden
    inputs = [config.embedding_size, *[encoder_width] * (config.num_layers - 1)]
    per_source = sum(config.num_directions * gates * hidden * (width + hidden) for width in inputs)
    repeated = hidden if config.source_context == "every" else 0
    inputs = [config.embedding_size + repeated, *[hidden] * (config.num_layers - 1)]
    per_target = sum(gates * hidden * (width + hidden) for width in inputs)
    per_target += hidden * output + output * config.target_vocab_size + repeated * output
    if config.input_feeding == "output":
        per_target += gates * hidden * output
    count = source * per_source + target * per_target
    if config.bridge == "dense":
        count += config.num_layers * STATES[config.cell] * encoder_width * hidden
    if config.attention == "none":
        return count
    value_width = _value_width(config, output)
    keys = 0 if config.attention == "dot" else encoder_width * hidden
    queries = hidden * hidden if config.attention in ("additive", "concat") else 0
    count += source * (keys + encoder_width * value_width) + target * queries
    return count + source * target * (hidden + value_width)


def _value_width(config: Seq2SeqConfig, output: int) -> int:
    """Width of the projected values: the readout's sums, and those of the first cell where it gets the context."""
    return output + (GATES[config.cell] * config.hidden_size if config.input_feeding == "context" else 0)


def state_numbers(config: TranslatorConfig, source: int, target: int) -> int:
    """Numbers that are kept while a sentence is generated, after so many source and target tokens.

    An RNN without attention keeps the states of its cells, whatever the length; with attention, also keys and values of
    the source. A Transformer keeps keys and values of all tokens: its key–value cache.

    >>> rnn = Seq2SeqConfig(source_vocab_size=11, target_vocab_size=11, attention="none", hidden_size=64)
    >>> state_numbers(rnn, 16, 16), state_numbers(rnn, 1024, 1024)
    (128, 128)
    """
    if isinstance(config, TransformerConfig):
        return config.decoder.num_layers * (source + target) * _Widths(transformer_decoder(config).block).cached
    cells = config.num_layers * STATES[config.cell] * config.hidden_size
    if config.attention == "none":
        return cells + (config.hidden_size if config.source_context == "every" else 0)
    output = config.embedding_size if config.tie_embeddings else config.hidden_size
    fed = output if config.input_feeding == "output" else 0
    return cells + fed + source * (config.hidden_size + _value_width(config, output))
