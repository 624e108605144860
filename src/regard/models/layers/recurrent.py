"""The recurrent encoder, and the decoder that looks at what the encoder read – at each step, or not at all.

Reading a text: layers from one end to the other, a mix of layers, one state for a whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.attend import attend
from regard.attention.cache import CrossKeyValues
from regard.attention.dropout import Noise, apply_dropout
from regard.attention.masks import BoundMask
from regard.attention.packed_batch import PackedBatch
from regard.attention.scores import (
    Additive,
    Bilinear,
    Concat,
    Dot,
    Normalize,
    ReinforceSample,
    Score,
    additive_scores,
    gumbel_argmax,
    hard_argmax,
    softmax,
)
from regard.config.rnn_models import Seq2SeqConfig
from regard.models.layers.cells import CELLS, Cell, LoopMatrix, State, to_accumulation_dtype

SITE = "decoder.attention"  # where a step of the decoder looks at the source


class TimeMajor:
    """Where packed tokens stand when all rows are read step by step, from their first token or from their last."""

    def __init__(self, batch: PackedBatch, backwards: bool = False) -> None:
        self.batch = batch
        row, place = batch.padded_indices // max(1, batch.max_length), batch.padded_indices % max(1, batch.max_length)
        step = batch.lengths[row] - 1 - place if backwards else place
        self.padded_indices = step * batch.num_rows + row  # [filled], among [T · B]
        numbers = torch.arange(batch.num_rows, device=row.device)
        self.last_indices = (batch.lengths.clamp_min(1) - 1) * batch.num_rows + numbers  # [B], each row's last step
        steps = torch.arange(batch.max_length, device=row.device)
        self.ended = None if batch.is_rectangular else steps[:, None] >= batch.lengths  # [T, B]

    def pad(self, hidden: Tensor) -> Tensor:
        """Return the states [N, I] step by step, [T, B, I]; zeros where a row has ended."""
        count, longest = self.batch.num_rows, self.batch.max_length
        inputs = hidden.new_zeros(longest * count, hidden.shape[1]).index_copy_(
            0, self.padded_indices, hidden[: self.batch.num_tokens]
        )
        return inputs.view(longest, count, -1)

    def pack(self, outputs: Tensor) -> Tensor:
        """Return what came out step by step, [T, B, D], at each token, [N, D]."""
        packed = outputs.flatten(0, 1).index_select(0, self.padded_indices)
        if self.batch.num_padding:
            packed = torch.cat([packed, packed.new_zeros(self.batch.num_padding, packed.shape[1])])
        return packed

    def run(self, cell: Cell, hidden: Tensor, start: State) -> tuple[Tensor, State]:
        """Return the outputs at each token, [N, D] for states [N, I], and each row's last state."""
        outputs, state = cell.forward(self.pad(hidden), start, self.ended)
        return self.pack(outputs), (outputs.flatten(0, 1).index_select(0, self.last_indices), *state[1:])


class RecurrentEncoder(nn.Module):
    """Layers of cells that read rows forwards, or forwards and backwards side by side."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.dropout, self.directions = config.dropout, config.num_directions
        widths = [config.embedding_size] + [self.directions * config.hidden_size] * (config.num_layers - 1)
        kind = CELLS[config.cell]
        self.layers = nn.ModuleList(
            nn.ModuleList(kind(inputs, config.hidden_size) for _ in range(self.directions)) for inputs in widths
        )

    def forward(self, hidden: Tensor, batch: PackedBatch, noise: Noise | None) -> tuple[Tensor, list[State]]:
        """Return the states at each token [N, directions · D], and each layer's last ones [B, directions · D]."""
        walks = [TimeMajor(batch, backwards=number == 1) for number in range(self.directions)]
        last = []
        for number, cells in enumerate(self.layers):
            if number:
                hidden = apply_dropout(hidden, self.dropout, noise, f"encoder.{number}")
            sides: list[Cell] = list(cells)  # type: ignore[call-overload]
            read = [
                walk.run(cell, hidden, zero_state(cell, batch.num_rows))
                for walk, cell in zip(walks, sides, strict=True)
            ]
            hidden = torch.cat([outputs for outputs, _ in read], dim=-1)
            last.append(tuple(torch.cat(parts, dim=-1) for parts in zip(*(state for _, state in read), strict=True)))
        return hidden, last


@dataclass(frozen=True)
class DecoderState:
    """What the decoder knows before a step."""

    layers: list[State]
    feed: Tensor | None = None  # [R, ·], what goes in beside the token: the last output, or the whole source's state

    def select(self, rows: Tensor) -> DecoderState:
        """Return the rows with these numbers, in this order; rows may repeat."""
        layers = [tuple(part.index_select(0, rows) for part in state) for state in self.layers]
        return DecoderState(layers, None if self.feed is None else self.feed.index_select(0, rows))


@dataclass(frozen=True)
class DecoderOutput:
    """What comes out of the decoder."""

    hidden: Tensor  # [N, O], from which the next tokens are told
    state: DecoderState  # after each row's last step
    sample_log_prob: Tensor | None  # [N], log-chances of the places that were drawn, where rewards are to train them


class RecurrentDecoder(nn.Module):
    """Layers of cells whose output, with what it sees of the source, becomes what tells the next token.

    What is seen only ever enters sums – those of the output, and those of the first cell where it is fed. So the source
    is projected to what it adds to those sums once, and a look is a mix of that.
    """

    def __init__(self, config: Seq2SeqConfig, written: int) -> None:
        super().__init__()
        self.config = config
        read = config.hidden_size * config.num_directions
        attends, repeated = config.attention != "none", config.source_context == "every"
        fed = {"none": 0, "context": read, "output": written}[config.input_feeding]
        kind, width = CELLS[config.cell], config.hidden_size
        first = config.embedding_size + (width if repeated else 0)
        self.layers = nn.ModuleList(
            kind(width if number else first, width, 0 if number else fed) for number in range(config.num_layers)
        )
        if config.bridge == "dense":
            self.bridge = nn.ModuleList(
                nn.ModuleList(nn.Linear(read, width) for _ in range(kind.parts)) for _ in range(config.num_layers)
            )
        self.score = _score(config, read)
        self.readout = nn.Linear(width, written)
        if attends or repeated:
            self.readout_context = nn.Linear(read if attends else width, written, bias=False)

    @property
    def cells(self) -> list[Cell]:
        """The cells, from the lowest to the highest."""
        return list(self.layers)  # type: ignore[arg-type]

    def initial_state(self, encoder_states: Sequence[State]) -> DecoderState:
        """Return the state before the first token, from the encoder's last ones."""
        config, layers = self.config, list(encoder_states)
        if config.bridge == "dense":
            layers = [self._cross(number, state) for number, state in enumerate(encoder_states)]
        if config.source_context == "every":
            return DecoderState(layers, layers[-1][0])
        if config.input_feeding == "output":
            return DecoderState(layers, layers[-1][0].new_zeros(len(layers[-1][0]), self.readout.out_features))
        return DecoderState(layers)

    def _cross(self, number: int, state: State) -> State:
        bridges = self.bridge[number]
        assert isinstance(bridges, nn.ModuleList)
        output, *cell = (bridge(part) for bridge, part in zip(bridges, state, strict=True))
        return torch.tanh(output), *cell

    def precompute_keys_values(self, hidden: Tensor, batch: PackedBatch) -> CrossKeyValues | None:
        """Return keys and values of the source's states [N, D]: prepared keys, and what is added to sums."""
        if self.score is None:
            return None
        matrix = self.readout_context.weight
        if self.config.input_feeding == "context":
            matrix = torch.cat([self.cells[0].feed_weight, matrix])
        key, value = self.score.prepare(hidden), functional.linear(hidden, matrix)
        return CrossKeyValues(*(to_accumulation_dtype(batch.pad(made)).unsqueeze(1) for made in (key, value)))

    def forward(
        self,
        hidden: Tensor,  # [N, E]
        batch: PackedBatch,
        state: DecoderState,
        memory: CrossKeyValues | None,
        mask: BoundMask | None,
        noise: Noise | None = None,
    ) -> DecoderOutput:
        """Return what the rows' tokens lead to; rows that look at one source sentence stand side by side."""
        if self.config.input_feeding != "none":
            assert memory is not None
            return self._input_feeding_loop(hidden, batch, state, _LoopAttention(self, memory, mask, noise), noise)
        beside = None if state.feed is None else _spread(state.feed, batch)
        if beside is not None:
            hidden = torch.cat([hidden, beside], dim=-1)
        walk, layers = TimeMajor(batch), []
        for number, cell in enumerate(self.cells):
            hidden = apply_dropout(hidden, self.config.dropout, noise, f"decoder.{number}") if number else hidden
            hidden, last = walk.run(cell, hidden, state.layers[number])
            layers.append(last)
        sums, told = self.readout(hidden), None
        if memory is not None:
            normalize = self.normalize(noise)
            query = to_accumulation_dtype(batch.pad(hidden)).view(len(memory.key), 1, -1, hidden.shape[1])
            seen = attend(
                query, memory.key, memory.value, mask=mask, score=self.attention_score, normalize=normalize, site=SITE
            )
            sums = sums + batch.pack(seen.view(batch.num_rows, batch.max_length, -1))
            told = (
                batch.pack(normalize.log_prob.view(batch.num_rows, -1))
                if isinstance(normalize, ReinforceSample)
                else None
            )
        elif beside is not None:
            sums = sums + self.readout_context(beside)
        return self._written(torch.tanh(sums.to(hidden.dtype)), DecoderState(layers, state.feed), told, noise)

    def _input_feeding_loop(
        self, states: Tensor, rows: PackedBatch, state: DecoderState, look: _LoopAttention, noise: Noise | None
    ) -> DecoderOutput:
        """The pass in which each step needs the one before: a loop, with nothing in it that can be done outside."""
        cells = _CellStack(self.cells, self.config.dropout, noise)
        sums = rows.pad(
            to_accumulation_dtype(functional.linear(states, self.cells[0].input_weight, self.cells[0].bias))
        ).unbind(1)
        layers, beside, made = state.layers, state.feed, []
        if beside is None:  # what the last state sees goes into the cell
            fed, shown = look.value.split([sums[0].shape[1], self.readout.out_features], dim=2)
            held, looked = LoopMatrix(fed), []
            for given in sums:
                looked.append(look(layers[-1][0]))
                layers = cells.step(given + held.matmul(looked[-1]).flatten(0, 1), layers)
                made.append(layers[-1][0])
            read = self.readout(rows.pack(torch.stack(made, dim=1)).to(states.dtype))
            seen = (torch.cat(looked, dim=1) @ shown).view(rows.num_rows, rows.max_length, -1)
            hidden = torch.tanh((read + rows.pack(seen)).to(states.dtype))
        else:
            feed, readout, held = (
                LoopMatrix(self.cells[0].feed_weight.t()),
                LoopMatrix(self.readout.weight.t()),
                LoopMatrix(look.value),
            )
            bias = to_accumulation_dtype(self.readout.bias)
            for given in sums:
                layers = cells.step(given + feed.matmul(beside), layers)
                top = layers[-1][0]
                beside = torch.tanh(readout.matmul(top) + bias + held.matmul(look(top)).flatten(0, 1))
                made.append(beside)
            hidden = rows.pack(torch.stack(made, dim=1)).to(states.dtype)
        told = rows.pack(torch.cat(look.log_probs, dim=2).squeeze(1)) if look.log_probs else None
        return self._written(hidden, DecoderState(layers, beside), told, noise)

    def _written(self, hidden: Tensor, state: DecoderState, told: Tensor | None, noise: Noise | None) -> DecoderOutput:
        return DecoderOutput(apply_dropout(hidden, self.config.dropout, noise, "decoder.out"), state, told)

    @property
    def attention_score(self) -> Score:
        """The score, where there is attention."""
        assert self.score is not None
        return self.score

    def normalize(self, noise: Noise | None, step: int = 0) -> Normalize:
        """Return how scores become weights: one place is chosen by chance in training and by rank in use."""
        if self.config.attention_mode == "soft":
            return softmax
        if noise is None:
            return hard_argmax
        draw = ReinforceSample if self.config.attention_mode == "reinforce" else gumbel_argmax
        return draw(noise, f"{SITE}.{step}")


class _CellStack:
    """The cells of a loop above one another, one step at a time."""

    def __init__(self, cells: Sequence[Cell], dropout: float, noise: Noise | None) -> None:
        self.dropout, self.noise = dropout, noise
        self.steppers = [cell.step_function() for cell in cells]
        self.entries = [(LoopMatrix(cell.input_weight.t()), to_accumulation_dtype(cell.bias)) for cell in cells[1:]]
        self.steps = 0

    def step(self, sums: Tensor, layers: Sequence[State]) -> list[State]:
        """Return each layer's next state, given the sums of the lowest one's inputs."""
        made = [self.steppers[0](sums, layers[0])]
        for number, (entry, bias) in enumerate(self.entries, start=1):
            below = apply_dropout(made[-1][0], self.dropout, self.noise, f"decoder.{number}.{self.steps}")
            made.append(self.steppers[number](entry.matmul(below) + bias, layers[number]))
        self.steps += 1
        return made


class _LoopAttention:
    """A look at the source in each step of a loop.

    `attend` mixes the places themselves, and so returns where each row looks. The mix of values is left to the loop,
    which makes the gradient of the values once for all steps.
    """

    def __init__(
        self, decoder: RecurrentDecoder, memory: CrossKeyValues, mask: BoundMask | None, noise: Noise | None
    ) -> None:
        self.decoder, self.key, self.mask, self.noise = decoder, memory.key, mask, noise
        sentences, _, places, _ = memory.key.shape
        self.positions = torch.eye(places, dtype=memory.key.dtype, device=memory.key.device).expand(
            sentences, 1, -1, -1
        )
        self.value = memory.value.squeeze(1)  # [S, K, V]
        self.score = _LoopScore(decoder.attention_score, memory.key)
        self.log_probs: list[Tensor] = []  # log-chances of the places drawn in each step
        self.steps = 0

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return where rows look, [S, rows of a sentence, K] for their states [R, D]."""
        query = to_accumulation_dtype(hidden).view(len(self.key), 1, -1, hidden.shape[1])
        normalize = self.decoder.normalize(self.noise, self.steps)
        weights = attend(
            query, self.key, self.positions, mask=self.mask, score=self.score, normalize=normalize, site=SITE
        )
        if isinstance(normalize, ReinforceSample):
            self.log_probs.append(normalize.log_prob)
        self.steps += 1
        return weights.squeeze(1)


class _LoopScore:
    """A score in a loop: what its queries meet is held."""

    def __init__(self, score: Score, key: Tensor) -> None:
        self.score = score
        if isinstance(score, Additive):
            self.held, self.weigh = LoopMatrix(score.query.weight.t()), score.weigh.weight[0].to(key.dtype)
        else:
            self.held = LoopMatrix(key.squeeze(1).mT)

    def prepare(self, key: Tensor) -> Tensor:
        return self.score.prepare(key)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the scores [B, 1, Q, K]."""
        if isinstance(self.score, Additive):
            return additive_scores(self.held.matmul(query.flatten(0, 2)).view(*query.shape[:3], -1), key, self.weigh)
        return self.held.matmul(query.squeeze(1)).unsqueeze(1)


def _score(config: Seq2SeqConfig, read: int) -> Additive | Bilinear | Dot | None:
    width = config.hidden_size
    match config.score:
        case "none":
            return None
        case "dot":
            return Dot()
        case "bilinear":
            return Bilinear(width, read)
        case "concat":
            return Concat(width, read, width)
        case _:
            return Additive(width, read, width)


def zero_state(cell: Cell, rows: int) -> State:
    """Return the state of a cell that has read nothing."""
    return (cell.input_weight.new_zeros(rows, cell.hidden_size),) * cell.parts


def _spread(hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Return each row's state [B, D] at each of its tokens, [N, D]."""
    spread = hidden.repeat_interleave(batch.lengths, dim=0)
    return torch.cat([spread, spread.new_zeros(batch.num_padding, spread.shape[1])]) if batch.num_padding else spread


class StackedRNN(nn.Module):
    """Cells above one another that read rows from one end; what every layer says of every token is there to be used.

    Whole sequences in fused kernels. Nothing of a row that has ended is used, so rows of unequal length need no mask.
    """

    def __init__(self, cell: str, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CELLS[cell](width, width) for _ in range(layers))

    def forward(self, hidden: Tensor, walk: TimeMajor, dropout: float, noise: Noise | None, site: str) -> list[Tensor]:
        """Return each layer's outputs step by step, [T, B, D], for states [N, D]."""
        steps, made = walk.pad(hidden), list[Tensor]()
        for number, layer in enumerate(self.layers):
            cell: Cell = layer  # type: ignore[assignment]
            given = apply_dropout(made[-1], dropout, noise, f"{site}.{number}") if made else steps
            made.append(cell.forward(given, zero_state(cell, walk.batch.num_rows), None)[0])
        return made
