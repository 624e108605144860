"""Recurrent encoder, recurrent decoder with or without attention to the source, and stacked unidirectional RNNs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.attend import attend
from regard.attention.cache import CrossKeyValues
from regard.attention.dropout import Noise, apply_dropout
from regard.attention.masks import BoundMask
from regard.attention.packed_batch import PackedBatch
from regard.attention.scores import (
    Normalize,
    ReinforceSample,
    Score,
    build_normalizer,
    gumbel_argmax,
    hard_argmax,
)
from regard.components import SCORES
from regard.config.rnn_models import Seq2SeqConfig
from regard.models.layers.cells import CELLS, Cell, CellStack, LoopMatrix, State, to_accumulation_dtype, zero_state
from regard.models.layers.loop_attention import DECODER_ATTENTION_SITE, LoopAttention
from regard.models.layers.time_major import TimeMajor


class RecurrentEncoder(nn.Module):
    """Layers of cells that read a text forwards, or forwards and backwards (Schuster & Paliwal 1997)."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.num_directions = config.num_directions
        output_size = self.num_directions * config.hidden_size
        input_sizes = [config.embedding_size] + [output_size] * (config.num_layers - 1)
        cell_class = CELLS[config.cell]
        self.layers = nn.ModuleList(
            nn.ModuleList(cell_class(input_size, config.hidden_size) for _ in range(self.num_directions))
            for input_size in input_sizes
        )

    def forward(self, hidden: Tensor, batch: PackedBatch, noise: Noise | None) -> tuple[Tensor, list[State]]:
        """Hidden states of all tokens [N, directions · D], and each layer's last states [B, directions · D]."""
        hidden_states, last_states = self.run_layers(hidden, batch, noise)
        return hidden_states[-1], last_states

    def run_layers(self, hidden: Tensor, batch: PackedBatch, noise: Noise | None) -> tuple[list[Tensor], list[State]]:
        """Hidden states of all tokens after each layer, and each layer's last states."""
        time_majors = [TimeMajor(batch, backwards=direction == 1) for direction in range(self.num_directions)]
        hidden_states: list[Tensor] = []
        last_states: list[State] = []
        for layer, cells in enumerate(self.layers):
            if layer:
                hidden = apply_dropout(hidden, self.dropout, noise, f"encoder.{layer}")
            outputs: list[Tensor] = []
            states: list[State] = []
            for time_major, cell in zip(time_majors, cells, strict=True):  # type: ignore[call-overload]
                output, state = time_major.run(cell, hidden, zero_state(cell, batch.num_rows))
                outputs.append(output)
                states.append(state)
            hidden = torch.cat(outputs, dim=-1)
            hidden_states.append(hidden)
            last_states.append(tuple(torch.cat(directions, dim=-1) for directions in zip(*states, strict=True)))
        return hidden_states, last_states


@dataclass(frozen=True)
class DecoderState:
    """State of the decoder before a step."""

    layers: list[State]
    feed: Tensor | None = None  # [R, ·], extra input of each step: the last output, or the source's last state
    position: int = 0  # of the next token

    def select(self, rows: Tensor) -> DecoderState:
        """State of these rows in this order; rows may repeat."""
        layers = [tuple(tensor.index_select(0, rows) for tensor in state) for state in self.layers]
        feed = None if self.feed is None else self.feed.index_select(0, rows)
        return DecoderState(layers, feed, self.position)


@dataclass(frozen=True)
class DecoderOutput:
    """Output of the decoder."""

    hidden: Tensor  # [N, O], input of the output projection
    state: DecoderState  # after the last step of each row
    sample_log_prob: Tensor | None  # [N], log-probabilities of sampled keys, for REINFORCE


class RecurrentDecoder(nn.Module):
    """Layers of cells and a readout of their output and the attention context.

    The context only enters sums: those of the readout, and those of the first cell with input feeding. So the source is
    projected onto these sums once, as the values of attention.
    """

    def __init__(self, config: Seq2SeqConfig, output_size: int) -> None:
        super().__init__()
        self.config = config
        hidden_size = config.hidden_size
        encoder_size = hidden_size * config.num_directions
        has_attention = config.attention != "none"
        repeats_source = config.source_context == "every"
        feed_size = {"none": 0, "context": encoder_size, "output": output_size}[config.input_feeding]
        input_size = config.embedding_size + (hidden_size if repeats_source else 0)
        cell_class = CELLS[config.cell]
        self.layers = nn.ModuleList()
        for layer in range(config.num_layers):
            is_first = layer == 0
            cell = cell_class(input_size if is_first else hidden_size, hidden_size, feed_size if is_first else 0)
            self.layers.append(cell)
        if config.bridge == "dense":
            self.bridge = nn.ModuleList(
                nn.ModuleList(nn.Linear(encoder_size, hidden_size) for _ in range(cell_class.num_states))
                for _ in range(config.num_layers)
            )
        self.score = _build_score(config, encoder_size)
        self.readout = nn.Linear(hidden_size, output_size)
        if has_attention or repeats_source:
            context_size = encoder_size if has_attention else hidden_size
            self.context_readout = nn.Linear(context_size, output_size, bias=False)

    @property
    def cells(self) -> list[Cell]:
        """The cells, from the lowest layer to the highest."""
        return list(self.layers)  # type: ignore[arg-type]

    def initial_state(self, encoder_states: Sequence[State]) -> DecoderState:
        """State before the first token, from the encoder's last states."""
        config = self.config
        layers = list(encoder_states)
        if config.bridge == "dense":
            layers = [self._bridge_state(layer, state) for layer, state in enumerate(encoder_states)]
        top_output = layers[-1][0]
        if config.source_context == "every":
            return DecoderState(layers, top_output)
        if config.input_feeding == "output":
            return DecoderState(layers, top_output.new_zeros(len(top_output), self.readout.out_features))
        return DecoderState(layers)

    def _bridge_state(self, layer: int, state: State) -> State:
        """Map an encoder state to the decoder's size; only the output has an activation."""
        bridges = self.bridge[layer]
        assert isinstance(bridges, nn.ModuleList)
        output, *cell = (bridge(tensor) for bridge, tensor in zip(bridges, state, strict=True))
        return torch.tanh(output), *cell

    def precompute_keys_values(self, hidden: Tensor, batch: PackedBatch) -> CrossKeyValues | None:
        """Prepared keys of the source's hidden states [N, D], and their projection onto the sums as values."""
        if self.score is None:
            return None
        value_weight = self.context_readout.weight
        if self.config.input_feeding == "context":
            value_weight = torch.cat([self.cells[0].feed_weight, value_weight])
        key = self.score.prepare(hidden)
        value = functional.linear(hidden, value_weight)
        padded_key = to_accumulation_dtype(batch.pad(key)).unsqueeze(1)
        padded_value = to_accumulation_dtype(batch.pad(value)).unsqueeze(1)
        return CrossKeyValues(padded_key, padded_value)

    def forward(
        self,
        hidden: Tensor,  # [N, E]
        batch: PackedBatch,
        state: DecoderState,
        source: CrossKeyValues | None,
        mask: BoundMask | None,
        noise: Noise | None = None,
    ) -> DecoderOutput:
        """Decode whole target sequences; rows that attend to the same source sentence are adjacent."""
        if self.config.input_feeding != "none":
            assert source is not None
            attention = LoopAttention(self, source, mask, noise, state.position)
            return self._input_feeding_loop(hidden, batch, state, attention, noise)
        source_state = None if state.feed is None else _repeat_per_token(state.feed, batch)
        if source_state is not None:
            hidden = torch.cat([hidden, source_state], dim=-1)
        time_major = TimeMajor(batch)
        layers: list[State] = []
        for layer, cell in enumerate(self.cells):
            if layer:
                hidden = apply_dropout(hidden, self.config.dropout, noise, f"decoder.{layer}")
            hidden, last_state = time_major.run(cell, hidden, state.layers[layer])
            layers.append(last_state)
        readout = self.readout(hidden)
        log_prob = None
        if source is not None:
            step_mask = self._mask_steps(mask, batch, state.position, len(source.key))
            context, log_prob = self._attend(hidden, batch, source, step_mask, noise)
            readout = readout + context
        elif source_state is not None:
            readout = readout + self.context_readout(source_state)
        output = torch.tanh(readout.to(hidden.dtype))
        next_state = DecoderState(layers, state.feed, state.position + batch.max_length)
        return self._build_output(output, next_state, log_prob, noise)

    def _mask_steps(
        self, mask: BoundMask | None, batch: PackedBatch, first_position: int, num_sentences: int
    ) -> BoundMask | None:
        """The mask at the positions of all steps of a batch: with local attention, each has a window of its own."""
        if mask is None or not self.config.attention_window:
            return mask
        positions = torch.arange(first_position, first_position + batch.max_length, device=mask.key.device)
        return BoundMask(mask.mask, positions.repeat(batch.num_rows // num_sentences)[None], mask.key)

    def _attend(
        self, hidden: Tensor, batch: PackedBatch, source: CrossKeyValues, mask: BoundMask | None, noise: Noise | None
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of all steps at once: the context [N, O], and log-probabilities [N] of sampled keys."""
        normalize = self.normalize(noise)
        query = to_accumulation_dtype(batch.pad(hidden)).view(len(source.key), 1, -1, hidden.shape[1])
        context = attend(
            query,
            source.key,
            source.value,
            mask=mask,
            score=self.attention_score,
            normalize=normalize,
            site=DECODER_ATTENTION_SITE,
        )
        packed = batch.pack(context.view(batch.num_rows, batch.max_length, -1))
        if not isinstance(normalize, ReinforceSample):
            return packed, None
        return packed, batch.pack(normalize.log_prob.view(batch.num_rows, -1))

    def _input_feeding_loop(
        self, hidden: Tensor, batch: PackedBatch, state: DecoderState, attention: LoopAttention, noise: Noise | None
    ) -> DecoderOutput:
        """Decode step by step, where each step needs the one before; everything else is outside the loop."""
        cells = CellStack(self.cells, self.config.dropout, noise)
        first_cell = self.cells[0]
        input_sums = functional.linear(hidden, first_cell.input_weight, first_cell.bias)
        step_sums = batch.pad(to_accumulation_dtype(input_sums)).unbind(1)
        if state.feed is None:
            output, layers = self._feed_context(step_sums, batch, state.layers, cells, attention, hidden.dtype)
            feed = None
        else:
            output, layers, feed = self._feed_output(step_sums, batch, state, cells, attention, hidden.dtype)
        log_prob = None
        if attention.log_probs:
            log_prob = batch.pack(torch.cat(attention.log_probs, dim=2).squeeze(1))
        next_state = DecoderState(layers, feed, state.position + batch.max_length)
        return self._build_output(output, next_state, log_prob, noise)

    def _feed_context(
        self,
        step_sums: Sequence[Tensor],  # T times [R, gates · D]
        batch: PackedBatch,
        layers: list[State],
        cells: CellStack,
        attention: LoopAttention,
        dtype: torch.dtype,
    ) -> tuple[Tensor, list[State]]:
        """Feed the context of the previous output into the first cell (Bahdanau et al. 2015)."""
        value_sizes = [step_sums[0].shape[1], self.readout.out_features]
        fed_values, readout_values = attention.value.split(value_sizes, dim=2)
        feed_values = LoopMatrix(fed_values)
        weights: list[Tensor] = []
        outputs: list[Tensor] = []
        for sums in step_sums:
            weights.append(attention(layers[-1][0]))
            layers = cells.step(sums + feed_values.matmul(weights[-1]).flatten(0, 1), layers)
            outputs.append(layers[-1][0])
        readout = self.readout(batch.pack(torch.stack(outputs, dim=1)).to(dtype))
        context = (torch.cat(weights, dim=1) @ readout_values).view(batch.num_rows, batch.max_length, -1)
        return torch.tanh((readout + batch.pack(context)).to(dtype)), layers

    def _feed_output(
        self,
        step_sums: Sequence[Tensor],  # T times [R, gates · D]
        batch: PackedBatch,
        state: DecoderState,
        cells: CellStack,
        attention: LoopAttention,
        dtype: torch.dtype,
    ) -> tuple[Tensor, list[State], Tensor]:
        """Feed the previous readout into the first cell (Luong et al. 2015, section 3.3)."""
        layers = state.layers
        feed = state.feed
        assert feed is not None
        feed_weight = LoopMatrix(self.cells[0].feed_weight.t())
        readout_weight = LoopMatrix(self.readout.weight.t())
        values = LoopMatrix(attention.value)
        bias = to_accumulation_dtype(self.readout.bias)
        outputs: list[Tensor] = []
        for sums in step_sums:
            layers = cells.step(sums + feed_weight.matmul(feed), layers)
            top_output = layers[-1][0]
            # the order of the next two lines decides in which order the gradients of top_output are summed
            readout = readout_weight.matmul(top_output) + bias
            context = values.matmul(attention(top_output)).flatten(0, 1)
            feed = torch.tanh(readout + context)
            outputs.append(feed)
        return batch.pack(torch.stack(outputs, dim=1)).to(dtype), layers, feed

    def _build_output(
        self, hidden: Tensor, state: DecoderState, log_prob: Tensor | None, noise: Noise | None
    ) -> DecoderOutput:
        dropped = apply_dropout(hidden, self.config.dropout, noise, "decoder.out")
        return DecoderOutput(dropped, state, sample_log_prob=log_prob)

    @property
    def attention_score(self) -> Score:
        """The score of a decoder with attention."""
        assert self.score is not None
        return self.score

    def normalize(self, noise: Noise | None, step: int = 0) -> Normalize:
        """Normaliser of the scores, or hard attention to one key: sampled in training, the argmax in inference."""
        config = self.config
        if config.hard_attention == "none":
            return build_normalizer(
                config.attention_normalization, config.attention_top_k, config.attention_temperature
            )
        if noise is None:
            return hard_argmax
        sampler = ReinforceSample if self.config.hard_attention == "reinforce" else gumbel_argmax
        return sampler(noise, f"{DECODER_ATTENTION_SITE}.{step}")


def _build_score(config: Seq2SeqConfig, encoder_size: int) -> Any:
    """The attention score of a decoder, a module where it has weights; None without attention."""
    if config.attention == "none":
        return None
    return SCORES[config.attention].build(config.hidden_size, encoder_size, config.hidden_size)


def _repeat_per_token(hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Repeat the state of each sequence [B, D] for each of its tokens, [N, D]."""
    repeated = hidden.repeat_interleave(batch.lengths, dim=0)
    if batch.num_padding:
        repeated = torch.cat([repeated, repeated.new_zeros(batch.num_padding, repeated.shape[1])])
    return repeated


class StackedRNN(nn.Module):
    """Unidirectional layers of cells, with the outputs of every layer.

    Whole sequences run in fused kernels. Nothing is used of a sequence after its end, so no mask is needed.
    """

    def __init__(self, cell: str, hidden_size: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CELLS[cell](hidden_size, hidden_size) for _ in range(num_layers))

    def forward(
        self, hidden: Tensor, time_major: TimeMajor, dropout: float, noise: Noise | None, site: str
    ) -> list[Tensor]:
        """Outputs of every layer as time steps, [T, B, D], for packed states [N, D]."""
        inputs = time_major.pad(hidden)
        layer_outputs: list[Tensor] = []
        for layer, module in enumerate(self.layers):
            cell: Cell = module  # type: ignore[assignment]
            if layer:
                inputs = apply_dropout(layer_outputs[-1], dropout, noise, f"{site}.{layer}")
            outputs, _ = cell.forward(inputs, zero_state(cell, time_major.batch.num_rows), None)
            layer_outputs.append(outputs)
        return layer_outputs
