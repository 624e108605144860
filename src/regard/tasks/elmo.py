"""ELMo: bidirectional language modelling, and features of the trained model (Peters et al. 2018).

`ElmoObjective` predicts each token of a stream from the tokens on its left and from those on its right. `ElmoFeatures`
extracts the layers of a frozen model at the words of a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.dropout import Noise
from regard.checkpoint.native import load_text_model
from regard.config.rnn_models import ElmoConfig
from regard.data.batching import length_sorted_batches
from regard.models import build_model
from regard.models.elmo import Elmo
from regard.packed_tokens import Tokens
from regard.tasks.predictions import PredictedBothDirections
from regard.tasks.token_stream import EVALUATION_ROWS, Indices, StreamObjective, TokenStream
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ElmoBatch:
    """Rows of a stream."""

    rows: Tokens

    @property
    def num_predictions(self) -> int:
        """All tokens of a row but one, in each direction."""
        return 2 * (len(self.rows.ids) - len(self.rows))

    @property
    def description(self) -> str:
        """Size of the batch, as text."""
        return f"{len(self.rows)} rows of {self.rows.lengths.max()} tokens"


class ElmoObjective(StreamObjective):
    """Prediction of each token from its left and from its right context."""

    def batch(self, indices: Indices, epoch: int) -> ElmoBatch:
        """Training rows at the offset of this epoch."""
        return ElmoBatch(self.train.rows(indices, self.epoch_offset(epoch)))

    def loss(self, model: Elmo, batch: ElmoBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Sums of the smoothed and the plain loss over the batch's predictions."""
        return model.loss(batch.rows, smoothing=smoothing, noise=noise)


def direction_losses(model: Elmo, stream: TokenStream) -> tuple[float, float]:
    """Plain loss per token of the forward and of the backward language model."""
    sums = np.zeros(2)
    count = 0
    for start in range(0, len(stream), EVALUATION_ROWS):
        rows = stream.rows(np.arange(start, min(start + EVALUATION_ROWS, len(stream))))
        sums += [float(loss) for loss in model.losses(rows)]
        count += len(rows.ids) - len(rows)
    forward, backward = sums / count
    return float(forward), float(backward)


def predict_both_directions(model: Elmo, stream: TokenStream) -> PredictedBothDirections:
    """Predict the tokens of a stream from the left and from the right; the loss is the mean of both directions."""
    forward, backward = direction_losses(model, stream)
    return PredictedBothDirections(loss=(forward + backward) / 2, forward_loss=forward, backward_loss=backward)


Layers = NDArray[np.float32]  # [T, layers, F]
Spans = Sequence[tuple[int, int]]
DEFAULT_SEQUENCE_LENGTH = 64  # default sequence length of training
BATCH_TOKENS = 4096  # tokens of a batch in feature extraction
SORT_WINDOW = 256  # texts that are sorted by length together


@dataclass(frozen=True)
class ElmoFeatures:
    """A frozen model and its tokenizer."""

    model: Elmo
    tokenizer: Tokenizer
    digest: str  # of the model folder
    sequence_length: int = DEFAULT_SEQUENCE_LENGTH  # tokens of a row in training

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> ElmoFeatures:
        """Load the features of an ELMo model folder."""
        loaded = load_text_model(folder, ElmoConfig, "elmo")
        model = build_model(loaded.config)
        model.load_state_dict(loaded.weights)
        frozen = model.to(device).eval().requires_grad_(False)
        return cls(
            frozen,
            loaded.tokenizer,
            digest=loaded.digest,
            sequence_length=int(loaded.metadata.get("row", DEFAULT_SEQUENCE_LENGTH)),
        )

    @property
    def num_layers(self) -> int:
        """Number of layers, including the token embeddings."""
        return self.model.num_feature_layers

    @property
    def hidden_size(self) -> int:
        """Width of each layer."""
        return self.model.feature_size

    def extract(self, texts: Sequence[str], spans: Sequence[Spans]) -> Iterator[Layers]:
        """Yield the layers of each text at its character spans: the mean of the subwords that overlap a span."""
        for start in range(0, len(texts), SORT_WINDOW):
            stop = start + SORT_WINDOW
            yield from self._extract_window(texts[start:stop], spans[start:stop])

    def _extract_window(self, texts: Sequence[str], spans: Sequence[Spans]) -> list[Layers]:
        encodings = [self.tokenizer.encode(text) for text in texts]
        unk_id = max(self.tokenizer.unk_id, 0)
        rows = [encoding.ids or [unk_id] for encoding in encodings]
        features: list[Layers] = [np.zeros((0, self.num_layers, self.hidden_size), np.float32)] * len(texts)
        lengths = np.array([[len(row)] for row in rows], dtype=np.int64).reshape(-1, 1)
        for indices in length_sorted_batches(lengths, max_tokens=BATCH_TOKENS):
            tokens = Tokens.from_rows([rows[index] for index in indices])
            row_layers = np.split(self.model.features(tokens), tokens.offsets[1:-1])
            for index, layers in zip(indices, row_layers, strict=True):
                subwords = encodings[index].spans or [(0, 1)]
                features[index] = pool_spans(layers, subwords, spans[index])
        return features


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
