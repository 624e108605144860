"""Frozen features: what the layers of a language model say of the words of a text; nothing here learns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.checkpoint.reader_folder import load_reader
from regard.config.model import ElmoConfig
from regard.data.batching import sorted_batches
from regard.models import build
from regard.models.elmo import Elmo
from regard.text.tokenizer import Tokenizer
from regard.tokens import Tokens

Layers = NDArray[np.float32]  # [T, layers, F]
Spans = Sequence[tuple[int, int]]
ROW = 64  # tokens of a row of running text, where a folder says nothing
BUDGET = 4096  # tokens that are read together
AHEAD = 256  # texts that are sorted by length together


@dataclass(frozen=True)
class Features:
    """A frozen model and its tokenizer."""

    model: Elmo
    tokenizer: Tokenizer
    digest: str  # of their folder
    row: int = ROW  # tokens of a row, as in training

    @classmethod
    def opened(cls, folder: str | Path, device: str = "cpu") -> Features:
        """Return the features of a folder that `regard train language` made."""
        loaded = load_reader(folder, ElmoConfig, "language")
        model = build(loaded.config)
        model.load_state_dict(loaded.weights)
        frozen = model.to(device).eval().requires_grad_(False)
        return cls(frozen, loaded.tokenizer, loaded.digest, int(loaded.task.get("row", ROW)))

    @property
    def layers(self) -> int:
        """How many layers there are, the words themselves included."""
        return self.model.depth

    @property
    def width(self) -> int:
        """How wide each layer is."""
        return self.model.feature_width

    def at(self, texts: Sequence[str], spans: Sequence[Spans]) -> Iterator[Layers]:
        """Yield for each text the layers at its spans of characters: the mean of the tokens that touch a span."""
        for first in range(0, len(texts), AHEAD):
            yield from self._some(texts[first : first + AHEAD], spans[first : first + AHEAD])

    def _some(self, texts: Sequence[str], spans: Sequence[Spans]) -> list[Layers]:
        read = [self.tokenizer.encode(text) for text in texts]
        unknown = max(self.tokenizer.unknown, 0)
        rows = [encoding.ids or [unknown] for encoding in read]
        made: list[Layers] = [np.zeros((0, self.layers, self.width), np.float32)] * len(texts)
        lengths = np.array([[len(row)] for row in rows], dtype=np.int64).reshape(-1, 1)
        for numbers in sorted_batches(lengths, budget=BUDGET):
            tokens = Tokens.from_rows([rows[number] for number in numbers])
            found = np.split(self.model.features(tokens), tokens.offsets[1:-1])
            for number, layers in zip(numbers, found, strict=True):
                made[number] = joined(layers, read[number].spans or [(0, 1)], spans[number])
        return made


def joined(layers: NDArray[np.float32], pieces: Spans, spans: Spans) -> Layers:
    """Return the mean of the layers [P, …] of those pieces that touch each span; where none does, of the next one.

    >>> joined(np.array([[[1.0]], [[3.0]], [[8.0]]]), [(0, 2), (2, 5), (6, 9)], [(0, 5), (6, 9)])[:, 0, 0].tolist()
    [2.0, 8.0]
    """
    begins, ends = (np.array([piece[side] for piece in pieces]) for side in (0, 1))
    wanted = np.array(spans, dtype=np.int64).reshape(-1, 2)
    first = np.minimum(np.searchsorted(ends, wanted[:, 0], side="right"), len(pieces) - 1)
    last = np.maximum(np.searchsorted(begins, wanted[:, 1], side="left"), first + 1)
    places = np.arange(len(pieces))
    touched = ((places >= first[:, None]) & (places < last[:, None])).astype(np.float32)  # [spans, pieces]
    mean: NDArray[np.float32] = (touched / touched.sum(1, keepdims=True)) @ layers.reshape(len(pieces), -1)
    return mean.reshape(len(wanted), *layers.shape[1:])
