"""The recurrent encoder, and the decoder that looks at what the encoder read – at each step, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.attend import attend
from regard.attention.cache import Memory
from regard.attention.masks import PlacedMask
from regard.attention.noise import Noise, drop
from regard.attention.rows import Rows
from regard.attention.scores import (
    Additive,
    Bilinear,
    Concat,
    Dot,
    Drawn,
    Normalize,
    Score,
    hard,
    sampled,
    softmax,
    tanh_sums,
)
from regard.blocks.cells import CELLS, Cell, Held, State, wide
from regard.config.model import RecurrentConfig

SITE = "decoder.attention"  # where a step of the decoder looks at the source


class Walk:
    """Where packed tokens stand when all rows are read step by step, from their first token or from their last."""

    def __init__(self, rows: Rows, backwards: bool = False) -> None:
        self.rows = rows
        row, place = rows.at // max(1, rows.longest), rows.at % max(1, rows.longest)
        step = rows.lengths[row] - 1 - place if backwards else place
        self.at = step * rows.count + row  # [filled], among [T · B]
        numbers = torch.arange(rows.count, device=row.device)
        self.last = (rows.lengths.clamp_min(1) - 1) * rows.count + numbers  # [B], each row's last step
        steps = torch.arange(rows.longest, device=row.device)
        self.over = None if rows.even else steps[:, None] >= rows.lengths  # [T, B]

    def spread(self, states: Tensor) -> Tensor:
        """Return the states [N, I] step by step, [T, B, I]; zeros where a row has ended."""
        count, longest = self.rows.count, self.rows.longest
        inputs = states.new_zeros(longest * count, states.shape[1]).index_copy_(0, self.at, states[: self.rows.filled])
        return inputs.view(longest, count, -1)

    def gather(self, outputs: Tensor) -> Tensor:
        """Return what came out step by step, [T, B, D], at each token, [N, D]."""
        packed = outputs.flatten(0, 1).index_select(0, self.at)
        if self.rows.spare:
            packed = torch.cat([packed, packed.new_zeros(self.rows.spare, packed.shape[1])])
        return packed

    def run(self, cell: Cell, states: Tensor, start: State) -> tuple[Tensor, State]:
        """Return the outputs at each token, [N, D] for states [N, I], and each row's last state."""
        outputs, state = cell.run(self.spread(states), start, self.over)
        return self.gather(outputs), (outputs.flatten(0, 1).index_select(0, self.last), *state[1:])


class RecurrentEncoder(nn.Module):
    """Layers of cells that read rows forwards, or forwards and backwards side by side."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.dropout, self.directions = config.dropout, config.sides
        widths = [config.embedding] + [self.directions * config.width] * (config.layers - 1)
        kind = CELLS[config.cell]
        self.layers = nn.ModuleList(
            nn.ModuleList(kind(inputs, config.width) for _ in range(self.directions)) for inputs in widths
        )

    def forward(self, states: Tensor, rows: Rows, noise: Noise | None) -> tuple[Tensor, list[State]]:
        """Return the states at each token [N, directions · D], and each layer's last ones [B, directions · D]."""
        walks = [Walk(rows, backwards=number == 1) for number in range(self.directions)]
        last = []
        for number, cells in enumerate(self.layers):
            if number:
                states = drop(states, self.dropout, noise, f"encoder.{number}")
            sides: list[Cell] = list(cells)  # type: ignore[call-overload]
            read = [walk.run(cell, states, blank(cell, rows.count)) for walk, cell in zip(walks, sides, strict=True)]
            states = torch.cat([outputs for outputs, _ in read], dim=-1)
            last.append(tuple(torch.cat(parts, dim=-1) for parts in zip(*(state for _, state in read), strict=True)))
        return states, last


@dataclass(frozen=True)
class DecoderState:
    """What the decoder knows before a step."""

    layers: list[State]
    beside: Tensor | None = None  # [R, ·], what goes in beside the token: the last output, or the whole source's state

    def select(self, rows: Tensor) -> DecoderState:
        """Return the rows with these numbers, in this order; rows may repeat."""
        layers = [tuple(part.index_select(0, rows) for part in state) for state in self.layers]
        return DecoderState(layers, None if self.beside is None else self.beside.index_select(0, rows))


@dataclass(frozen=True)
class Written:
    """What comes out of the decoder."""

    hidden: Tensor  # [N, O], from which the next tokens are told
    state: DecoderState  # after each row's last step
    told: Tensor | None  # [N], log-chances of the places that were drawn, where rewards are to train them


class RecurrentDecoder(nn.Module):
    """Layers of cells whose output, with what it sees of the source, becomes what tells the next token.

    What is seen only ever enters sums – those of the output, and those of the first cell where it is fed. So the source
    is projected to what it adds to those sums once, and a look is a mix of that.
    """

    def __init__(self, config: RecurrentConfig, written: int) -> None:
        super().__init__()
        self.config = config
        read = config.width * config.sides
        attends, repeated = config.attention != "none", config.context == "every"
        fed = {"none": 0, "context": read, "output": written}[config.input_feeding]
        kind, width = CELLS[config.cell], config.width
        first = config.embedding + (width if repeated else 0)
        self.layers = nn.ModuleList(
            kind(width if number else first, width, 0 if number else fed) for number in range(config.layers)
        )
        if config.bridge == "dense":
            self.bridge = nn.ModuleList(
                nn.ModuleList(nn.Linear(read, width) for _ in range(kind.parts)) for _ in range(config.layers)
            )
        self.score = _score(config, read)
        self.readout = nn.Linear(width, written)
        if attends or repeated:
            self.readout_context = nn.Linear(read if attends else width, written, bias=False)

    @property
    def cells(self) -> list[Cell]:
        """The cells, from the lowest to the highest."""
        return list(self.layers)  # type: ignore[arg-type]

    def begin(self, last: Sequence[State]) -> DecoderState:
        """Return the state before the first token, from the encoder's last ones."""
        config, layers = self.config, list(last)
        if config.bridge == "dense":
            layers = [self._cross(number, state) for number, state in enumerate(last)]
        if config.context == "every":
            return DecoderState(layers, layers[-1][0])
        if config.input_feeding == "output":
            return DecoderState(layers, layers[-1][0].new_zeros(len(layers[-1][0]), self.readout.out_features))
        return DecoderState(layers)

    def _cross(self, number: int, state: State) -> State:
        bridges = self.bridge[number]
        assert isinstance(bridges, nn.ModuleList)
        output, *cell = (bridge(part) for bridge, part in zip(bridges, state, strict=True))
        return torch.tanh(output), *cell

    def remember(self, states: Tensor, rows: Rows) -> Memory | None:
        """Return keys and values of the source's states [N, D]: prepared keys, and what is added to sums."""
        if self.score is None:
            return None
        matrix = self.readout_context.weight
        if self.config.input_feeding == "context":
            matrix = torch.cat([self.cells[0].feed, matrix])
        key, value = self.score.prepare(states), functional.linear(states, matrix)
        return Memory(*(wide(rows.pad(made)).unsqueeze(1) for made in (key, value)))

    def forward(
        self,
        states: Tensor,  # [N, E]
        rows: Rows,
        state: DecoderState,
        memory: Memory | None,
        mask: PlacedMask | None,
        noise: Noise | None = None,
    ) -> Written:
        """Return what the rows' tokens lead to; rows that look at one source sentence stand side by side."""
        if self.config.input_feeding != "none":
            assert memory is not None
            return self._fed(states, rows, state, _Look(self, memory, mask, noise), noise)
        beside = None if state.beside is None else _spread(state.beside, rows)
        if beside is not None:
            states = torch.cat([states, beside], dim=-1)
        walk, layers = Walk(rows), []
        for number, cell in enumerate(self.cells):
            states = drop(states, self.config.dropout, noise, f"decoder.{number}") if number else states
            states, last = walk.run(cell, states, state.layers[number])
            layers.append(last)
        sums, told = self.readout(states), None
        if memory is not None:
            normalize = self.normalize(noise)
            query = wide(rows.pad(states)).view(len(memory.key), 1, -1, states.shape[1])
            seen = attend(
                query, memory.key, memory.value, mask=mask, score=self.comparing, normalize=normalize, site=SITE
            )
            sums = sums + rows.pack(seen.view(rows.count, rows.longest, -1))
            told = rows.pack(normalize.told.view(rows.count, -1)) if isinstance(normalize, Drawn) else None
        elif beside is not None:
            sums = sums + self.readout_context(beside)
        return self._written(torch.tanh(sums.to(states.dtype)), DecoderState(layers, state.beside), told, noise)

    def _fed(self, states: Tensor, rows: Rows, state: DecoderState, look: _Look, noise: Noise | None) -> Written:
        """The pass in which each step needs the one before: a loop, with nothing in it that can be done outside."""
        cells = _Cells(self.cells, self.config.dropout, noise)
        sums = rows.pad(wide(functional.linear(states, self.cells[0].entry, self.cells[0].bias))).unbind(1)
        layers, beside, made = state.layers, state.beside, []
        if beside is None:  # what the last state sees goes into the cell
            fed, shown = look.value.split([sums[0].shape[1], self.readout.out_features], dim=2)
            held, looked = Held(fed), []
            for given in sums:
                looked.append(look(layers[-1][0]))
                layers = cells.step(given + held.times(looked[-1]).flatten(0, 1), layers)
                made.append(layers[-1][0])
            read = self.readout(rows.pack(torch.stack(made, dim=1)).to(states.dtype))
            seen = (torch.cat(looked, dim=1) @ shown).view(rows.count, rows.longest, -1)
            hidden = torch.tanh((read + rows.pack(seen)).to(states.dtype))
        else:
            feed, readout, held = Held(self.cells[0].feed.t()), Held(self.readout.weight.t()), Held(look.value)
            bias = wide(self.readout.bias)
            for given in sums:
                layers = cells.step(given + feed.times(beside), layers)
                top = layers[-1][0]
                beside = torch.tanh(readout.times(top) + bias + held.times(look(top)).flatten(0, 1))
                made.append(beside)
            hidden = rows.pack(torch.stack(made, dim=1)).to(states.dtype)
        told = rows.pack(torch.cat(look.told, dim=2).squeeze(1)) if look.told else None
        return self._written(hidden, DecoderState(layers, beside), told, noise)

    def _written(self, hidden: Tensor, state: DecoderState, told: Tensor | None, noise: Noise | None) -> Written:
        return Written(drop(hidden, self.config.dropout, noise, "decoder.out"), state, told)

    @property
    def comparing(self) -> Score:
        """The score, where there is attention."""
        assert self.score is not None
        return self.score

    def normalize(self, noise: Noise | None, step: int = 0) -> Normalize:
        """Return how scores become weights: one place is chosen by chance in training and by rank in use."""
        if self.config.look == "soft":
            return softmax
        if noise is None:
            return hard
        draw = Drawn if self.config.look == "reinforce" else sampled
        return draw(noise, f"{SITE}.{step}")


class _Cells:
    """The cells of a loop above one another, one step at a time."""

    def __init__(self, cells: Sequence[Cell], dropout: float, noise: Noise | None) -> None:
        self.dropout, self.noise = dropout, noise
        self.steppers = [cell.stepper() for cell in cells]
        self.entries = [(Held(cell.entry.t()), wide(cell.bias)) for cell in cells[1:]]
        self.steps = 0

    def step(self, sums: Tensor, layers: Sequence[State]) -> list[State]:
        """Return each layer's next state, given the sums of the lowest one's inputs."""
        made = [self.steppers[0](sums, layers[0])]
        for number, (entry, bias) in enumerate(self.entries, start=1):
            below = drop(made[-1][0], self.dropout, self.noise, f"decoder.{number}.{self.steps}")
            made.append(self.steppers[number](entry.times(below) + bias, layers[number]))
        self.steps += 1
        return made


class _Look:
    """A look at the source in each step of a loop.

    `attend` mixes the places themselves, and so returns where each row looks. The mix of values is left to the loop,
    which makes the gradient of the values once for all steps.
    """

    def __init__(self, decoder: RecurrentDecoder, memory: Memory, mask: PlacedMask | None, noise: Noise | None) -> None:
        self.decoder, self.key, self.mask, self.noise = decoder, memory.key, mask, noise
        sentences, _, places, _ = memory.key.shape
        self.places = torch.eye(places, dtype=memory.key.dtype, device=memory.key.device).expand(sentences, 1, -1, -1)
        self.value = memory.value.squeeze(1)  # [S, K, V]
        self.score = _HeldScore(decoder.comparing, memory.key)
        self.told: list[Tensor] = []  # log-chances of the places drawn in each step
        self.steps = 0

    def __call__(self, states: Tensor) -> Tensor:
        """Return where rows look, [S, rows of a sentence, K] for their states [R, D]."""
        query = wide(states).view(len(self.key), 1, -1, states.shape[1])
        normalize = self.decoder.normalize(self.noise, self.steps)
        weights = attend(query, self.key, self.places, mask=self.mask, score=self.score, normalize=normalize, site=SITE)
        if isinstance(normalize, Drawn):
            self.told.append(normalize.told)
        self.steps += 1
        return weights.squeeze(1)


class _HeldScore:
    """A score in a loop: what its queries meet is held."""

    def __init__(self, score: Score, key: Tensor) -> None:
        self.score = score
        if isinstance(score, Additive):
            self.held, self.weigh = Held(score.query.weight.t()), score.weigh.weight[0].to(key.dtype)
        else:
            self.held = Held(key.squeeze(1).mT)

    def prepare(self, key: Tensor) -> Tensor:
        return self.score.prepare(key)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the scores [B, 1, Q, K]."""
        if isinstance(self.score, Additive):
            return tanh_sums(self.held.times(query.flatten(0, 2)).view(*query.shape[:3], -1), key, self.weigh)
        return self.held.times(query.squeeze(1)).unsqueeze(1)


def _score(config: RecurrentConfig, read: int) -> Additive | Bilinear | Dot | None:
    width = config.width
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


def blank(cell: Cell, rows: int) -> State:
    """Return the state of a cell that has read nothing."""
    return (cell.entry.new_zeros(rows, cell.width),) * cell.parts


def _spread(states: Tensor, rows: Rows) -> Tensor:
    """Return each row's state [B, D] at each of its tokens, [N, D]."""
    spread = states.repeat_interleave(rows.lengths, dim=0)
    return torch.cat([spread, spread.new_zeros(rows.spare, spread.shape[1])]) if rows.spare else spread
