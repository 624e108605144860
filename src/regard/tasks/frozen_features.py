"""Frozen features: layers of a trained model at the tokens of another model (Peters et al. 2018; Devlin et al. 2019).

`FrozenFeatures` reads texts with its own tokenizer, long ones in windows, and aligns the hidden states of its subwords
with character spans: the tokens of an RNN, or words. Any `FeatureModel` serves: ELMo, an encoder, a causal language
model, or the encoder of a translation model.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.batching import length_sorted_batches
from regard.errors import UsageError
from regard.packed_tokens import Tokens
from regard.tasks.windows import BATCH_TOKENS, OVERLAP_DIVISOR, window_spans
from regard.text.special_tokens import TruncationReport
from regard.text.tokenizer import Tokenizer

Layers = NDArray[np.float32]  # [T, layers, F]
Spans = Sequence[tuple[int, int]]
SORT_WINDOW = 256  # texts that are sorted by length together
CONCATENATED_LAYERS = 4  # of `last4`
UNLIMITED = 1 << 30  # tokens of a row of a model that reads texts of any length


class FeatureModel(Protocol):
    """Model whose layers serve as features."""

    @property
    def backend_name(self) -> str: ...
    def layer_states(self, tokens: Tokens, /) -> list[NDArray[np.float32]]: ...  # of each layer, [N, F]


ModelT = TypeVar("ModelT", bound=FeatureModel)


@dataclass(frozen=True)
class FeatureLayers:
    """Selected layers of a model: several are mixed by learned weights, or concatenated."""

    name: str  # last, last4, mix, or the number of a layer
    layers: tuple[int, ...]  # their numbers; 0 is the embedding
    size: int  # width of each
    is_concatenated: bool = False

    @classmethod
    def select(cls, name: str, model: FeatureModel) -> Self:
        """Select layers of a model among those that are as wide as the last; embeddings may have another width."""
        sizes = [states.shape[1] for states in model.layer_states(Tokens.from_rows([[0]]))]
        size = sizes[-1]
        layers = tuple(layer for layer, width in enumerate(sizes) if width == size)
        if name == "mix":
            return cls(name, layers, size=size)
        if name == "last":
            return cls(name, layers[-1:], size=size)
        if name == "last4":
            blocks = tuple(layer for layer in layers if layer > 0)
            return cls(name, blocks[-CONCATENATED_LAYERS:], size=size, is_concatenated=True)
        if int(name) not in layers:
            raise UsageError(
                f"--feature-layers {name}: the model of the features has layers {layers[0]} to {layers[-1]}"
            )
        return cls(name, (int(name),), size=size)


@dataclass(frozen=True)
class FrozenFeatures(Generic[ModelT]):
    """A frozen model, its tokenizer, and the layers that serve as features."""

    model: ModelT
    tokenizer: Tokenizer
    selection: FeatureLayers
    digest: str  # of the model folder
    family: str = "elmo"
    before: tuple[int, ...] = ()  # special tokens that the model reads before a text
    after: tuple[int, ...] = ()
    max_length: int = UNLIMITED  # tokens of a row with its special tokens
    is_isolated: bool = True  # from traces and ablations, which are meant for the model that reads the features

    @property
    def num_layers(self) -> int:
        """Number of layers that are mixed."""
        return 1 if self.selection.is_concatenated else len(self.selection.layers)

    @property
    def hidden_size(self) -> int:
        """Width of each layer that is mixed; of concatenated ones, of all together."""
        return self.selection.size * len(self.selection.layers) // self.num_layers

    def count_windows(self, texts: Sequence[str]) -> TruncationReport:
        """Count the windows in which texts are read; nothing is truncated."""
        lengths = [len(ids) for ids in self.tokenizer.encode_batch(texts)]
        windows = [len(self._windows(length)) for length in lengths]
        return TruncationReport(
            texts=len(texts),
            tokens=sum(lengths),
            max_length=self.max_length,
            windowed=sum(count > 1 for count in windows),
            windows=sum(windows),
        )

    def _windows(self, num_tokens: int) -> list[tuple[int, int]]:
        capacity = self.max_length - len(self.before) - len(self.after)
        return window_spans(num_tokens, capacity, capacity // OVERLAP_DIVISOR)

    def extract(self, texts: Sequence[str], spans: Sequence[Spans]) -> Iterator[Layers]:
        """Yield the layers of each text at its character spans: the mean of the subwords that overlap a span."""
        for start in range(0, len(texts), SORT_WINDOW):
            stop = start + SORT_WINDOW
            yield from self._extract_sorted(texts[start:stop], spans[start:stop])

    def _extract_sorted(self, texts: Sequence[str], spans: Sequence[Spans]) -> list[Layers]:
        encodings = [self.tokenizer.encode(text) for text in texts]
        unk_id = max(self.tokenizer.unk_id, 0)
        ids = [encoding.ids or [unk_id] for encoding in encodings]
        windows = [self._windows(len(text_ids)) for text_ids in ids]
        rows = [
            [*self.before, *ids[text][start:stop], *self.after]
            for text, text_windows in enumerate(windows)
            for start, stop in text_windows
        ]
        row_layers = iter(self._read_rows(rows))
        features = []
        for text, text_windows in enumerate(windows):
            layers = join_windows([next(row_layers) for _ in text_windows], text_windows)
            features.append(pool_spans(layers, encodings[text].spans or [(0, 1)], spans[text]))
        return features

    def _read_rows(self, rows: Sequence[list[int]]) -> list[Layers]:
        """Selected layers of each row, without its special tokens."""
        row_layers: list[Layers] = [np.zeros((0, 0, 0), np.float32)] * len(rows)
        lengths = np.array([[len(row)] for row in rows], dtype=np.int64).reshape(-1, 1)
        for indices in length_sorted_batches(lengths, max_tokens=BATCH_TOKENS):
            tokens = Tokens.from_rows([rows[index] for index in indices])
            context = contextvars.Context() if self.is_isolated else contextvars.copy_context()
            layers = self._select(context.run(self.model.layer_states, tokens))
            for index, of_row in zip(indices, np.split(layers, tokens.offsets[1:-1]), strict=True):
                row_layers[index] = of_row[len(self.before) : len(of_row) - len(self.after)]
        return row_layers

    def _select(self, states: Sequence[NDArray[np.float32]]) -> Layers:
        layers = np.stack([states[layer] for layer in self.selection.layers], axis=1)
        return layers.reshape(len(layers), 1, -1) if self.selection.is_concatenated else layers


def join_windows(window_layers: Sequence[Layers], windows: Sequence[tuple[int, int]]) -> Layers:
    """Layers of a text from those of its windows; of an overlap, each window gives its half.

    >>> layers = np.arange(6, dtype=np.float32).reshape(6, 1, 1)
    >>> join_windows([layers[:4], 10 + layers[2:]], [(0, 4), (2, 6)])[:, 0, 0].tolist()
    [0.0, 1.0, 2.0, 13.0, 14.0, 15.0]
    """
    if len(windows) == 1:
        return window_layers[0]
    cuts = [(start + stop) // 2 for (_, stop), (start, _) in pairwise(windows)]
    starts = [0, *cuts]
    stops = [*cuts, windows[-1][1]]
    parts = [
        layers[first - start : last - start]
        for layers, (start, _), first, last in zip(window_layers, windows, starts, stops, strict=True)
    ]
    return np.concatenate(parts)


def pool_spans(layers: NDArray[np.float32], subwords: Spans, spans: Spans) -> Layers:
    """Mean of the layers [P, …] of the subwords that overlap each span; the next subword where none does.

    >>> pool_spans(np.array([[[1.0]], [[3.0]], [[8.0]]]), [(0, 2), (2, 5), (6, 9)], [(0, 5), (6, 9)])[:, 0, 0].tolist()
    [2.0, 8.0]
    """
    subword_starts = np.array([start for start, _ in subwords])
    subword_ends = np.array([end for _, end in subwords])
    span_array = np.array(spans, dtype=np.int64).reshape(-1, 2)
    first = np.minimum(np.searchsorted(subword_ends, span_array[:, 0], side="right"), len(subwords) - 1)
    stop = np.maximum(np.searchsorted(subword_starts, span_array[:, 1], side="left"), first + 1)
    indices = np.arange(len(subwords))
    overlaps = ((indices >= first[:, None]) & (indices < stop[:, None])).astype(np.float32)  # [spans, subwords]
    flat_layers = layers.reshape(len(subwords), -1)
    means: NDArray[np.float32] = (overlaps / overlaps.sum(1, keepdims=True)) @ flat_layers
    return means.reshape(len(span_array), *layers.shape[1:])
