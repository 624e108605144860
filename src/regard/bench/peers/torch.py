"""`torch.nn.Transformer` in a loop as tutorials write it, with the fast optimiser that torch offers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.attention.positions import sinusoids
from regard.bench.child import Job, Turns
from regard.bench.peers import Peer
from regard.bench.peers.loop import DROPOUT, START, training_loop
from regard.bench.settings import Size

PEER = Peer("torch", {"torch": "torch"}, {"training": ("float32", "bf16")}, quick={"training": ("bf16",)})


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
