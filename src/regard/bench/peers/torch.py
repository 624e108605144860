"""What tutorials of torch write: `nn.Transformer` in a loop, and a recurrent decoder that goes step by step.

Both with the fast optimiser that torch offers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.attention.positions import sinusoids
from regard.bench.child import Job, Turns, seconds
from regard.bench.peers import Peer
from regard.bench.peers.loop import DROPOUT, START, padded_batches, training_loop, updating
from regard.bench.recurrent import CLIP, FEEDING, Shape
from regard.bench.settings import Size

AT_ONCE = "output at once"  # the projection to the vocabulary stands after the loop, not in it
FORMATS = ("float32", "bf16")
PEER = Peer(
    "torch",
    {"torch": "torch"},
    {"training": FORMATS, "recurrent": (*FORMATS, *(f"{name} {AT_ONCE}" for name in FORMATS))},
    quick={"training": ("bf16",), "recurrent": (f"float32 {AT_ONCE}", f"bf16 {AT_ONCE}")},
)


class PlainTransformer(nn.Module):
    """The model as tutorials write it: tied embeddings, sines for places."""

    def __init__(self, size: Size, places: int) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        nn.init.normal_(self.words.weight, 0, size.width**-0.5)
        self.register_buffer("places", sinusoids(torch.arange(places), size.width))
        self.body = nn.Transformer(
            size.width, size.heads, size.layers, size.layers, size.feedforward, DROPOUT, batch_first=True
        )
        self.drop = nn.Dropout(DROPOUT)
        self.scale = math.sqrt(size.width)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of every target place."""
        ahead = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        blank = source == 0
        hidden: Tensor = self.body(
            self._embedded(source),
            self._embedded(target),
            tgt_mask=ahead,
            src_key_padding_mask=blank,
            tgt_key_padding_mask=target == 0,
            memory_key_padding_mask=blank,
            tgt_is_causal=True,
        )
        return hidden @ self.words.weight.t()

    def _embedded(self, ids: Tensor) -> Tensor:
        places: Tensor = self.places  # type: ignore[assignment]
        embedded: Tensor = self.drop(self.words(ids) * self.scale + places[: ids.shape[1]])
        return embedded


def training(job: Job, turns: Turns) -> None:
    """Train it."""
    size = Size(**job.facts["size"])
    longest = max(max(map(max, batch)) for batch in job.facts["lengths"])
    model = PlainTransformer(size, max(512, longest + 1))
    training_loop(job, turns, model, model, start=START)


class StepByStep(nn.Module):
    """An LSTM both ways, and a decoder that looks at its states before each step (Bahdanau et al. 2015)."""

    def __init__(self, shape: Shape, at_once: bool) -> None:
        super().__init__()
        width, self.at_once = shape.width, at_once
        self.source, self.target = (nn.Embedding(shape.vocabulary, width, 0) for _ in range(2))
        self.encoder = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * width, width)
        self.query, self.key, self.weigh = nn.Linear(width, width), nn.Linear(2 * width, width), nn.Linear(width, 1)
        self.cell = nn.LSTM(3 * width, width, batch_first=True)
        self.combine, self.output = nn.Linear(3 * width, width), nn.Linear(width, shape.vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of every target place."""
        blank = source == 0
        packed = nn.utils.rnn.pack_padded_sequence(
            self.source(source), (~blank).sum(1), batch_first=True, enforce_sorted=False
        )
        read, (last, _) = self.encoder(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(read, batch_first=True)
        keys, given, made = self.key(states), self.target(target), []
        state = torch.tanh(self.bridge(torch.cat([last[0], last[1]], dim=1)))[None]
        cell = torch.zeros_like(state)
        for step in range(target.shape[1]):
            scores = self.weigh(torch.tanh(self.query(state[-1])[:, None] + keys)).squeeze(2)
            weights = scores.masked_fill(blank, -1e4).softmax(1)
            seen = (weights[:, None] @ states.to(weights.dtype)).to(given.dtype)
            inputs = torch.cat([given[:, step : step + 1], seen], dim=2)
            out, (state, cell) = self.cell(inputs, (state.to(given.dtype), cell.to(given.dtype)))
            out = torch.tanh(self.combine(torch.cat([out, seen.to(out.dtype)], dim=2)))
            made.append(out if self.at_once else self.output(out))
        written = torch.cat(made, dim=1)
        return self.output(written) if self.at_once else written


def recurrent(job: Job, turns: Turns) -> None:
    """Train it; what it gives stands beside each of our models."""
    precision, _, way = job.variant.partition(" ")
    shape = Shape(**job.facts["shape"])
    model = StepByStep(shape, at_once=way == AT_ONCE)
    batches, tokens = padded_batches(job, START, shape.vocabulary)
    updates = updating(model, model, batches, bf16=precision == "bf16", clip=CLIP, smoothing=0.0)
    turns.serve(dict.fromkeys(FEEDING, lambda: tokens / seconds(updates)))
