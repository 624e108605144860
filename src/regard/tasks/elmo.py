"""Language modelling as a task: documents end to end in rows of one length, batches and losses out.

Frozen features: what the layers of a language model say of the words of a text; nothing here learns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.dropout import Noise
from regard.checkpoint.native import load_rnn_text
from regard.config.rnn_models import ElmoConfig
from regard.data.batching import length_sorted_batches
from regard.models import build_model
from regard.models.elmo import Elmo
from regard.tasks.metrics import perplexity
from regard.tasks.token_stream import EVALUATED, Numbers, StreamObjective, TokenStream
from regard.text.tokenizer import Tokenizer
from regard.tokens import Tokens


@dataclass(frozen=True)
class ElmoBatch:
    """Rows of running text."""

    rows: Tokens

    @property
    def num_predictions(self) -> int:
        """Predictions: all tokens of a row but one, from either side."""
        return 2 * (len(self.rows.ids) - len(self.rows))

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.rows)} rows of {self.rows.lengths.max()} tokens"


class ElmoObjective(StreamObjective):
    """Knows what a batch of running text means to a model that tells it from the left and from the right."""

    def batch(self, numbers: Numbers, epoch: int) -> ElmoBatch:
        """Return training rows as this epoch cuts them."""
        return ElmoBatch(self.train.rows(numbers, self.epoch_offset(epoch)))

    def loss(self, model: Elmo, batch: ElmoBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the batch's predictions."""
        return model.loss(batch.rows, smoothing=smoothing, noise=noise)


def direction_losses(model: Elmo, stream: TokenStream) -> tuple[float, float]:
    """Return the plain loss a token from the left and from the right."""
    sums, count = np.zeros(2), 0
    for first in range(0, len(stream), EVALUATED):
        rows = stream.rows(np.arange(first, min(first + EVALUATED, len(stream))))
        sums += [float(loss) for loss in model.losses(rows)]
        count += len(rows.ids) - len(rows)
    left, right = sums / count
    return float(left), float(right)


def elmo_scores(model: Elmo, stream: TokenStream) -> dict[str, float]:
    """Return loss and perplexity of text, from the left, from the right and on average."""
    forward, backward = direction_losses(model, stream)
    loss = (forward + backward) / 2
    return {
        "loss": loss,
        "perplexity": perplexity(loss, 1),
        "perplexity_forward": perplexity(forward, 1),
        "perplexity_backward": perplexity(backward, 1),
    }


Layers = NDArray[np.float32]  # [T, layers, F]
Spans = Sequence[tuple[int, int]]
ROW = 64  # tokens of a row of running text, where a folder says nothing
BUDGET = 4096  # tokens that are read together
AHEAD = 256  # texts that are sorted by length together


@dataclass(frozen=True)
class ElmoFeatures:
    """A frozen model and its tokenizer."""

    model: Elmo
    tokenizer: Tokenizer
    digest: str  # of their folder
    sequence_length: int = ROW  # tokens of a row, as in training

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> ElmoFeatures:
        """Return the features of a folder that `regard train language` made."""
        loaded = load_rnn_text(folder, ElmoConfig, "language")
        model = build_model(loaded.config)
        model.load_state_dict(loaded.weights)
        frozen = model.to(device).eval().requires_grad_(False)
        return cls(frozen, loaded.tokenizer, loaded.digest, int(loaded.task.get("row", ROW)))

    @property
    def layers(self) -> int:
        """How many layers there are, the words themselves included."""
        return self.model.num_feature_layers

    @property
    def hidden_size(self) -> int:
        """How wide each layer is."""
        return self.model.feature_width

    def extract(self, texts: Sequence[str], spans: Sequence[Spans]) -> Iterator[Layers]:
        """Yield for each text the layers at its spans of characters: the mean of the tokens that touch a span."""
        for first in range(0, len(texts), AHEAD):
            yield from self._some(texts[first : first + AHEAD], spans[first : first + AHEAD])

    def _some(self, texts: Sequence[str], spans: Sequence[Spans]) -> list[Layers]:
        read = [self.tokenizer.encode(text) for text in texts]
        unknown = max(self.tokenizer.unk_id, 0)
        rows = [encoding.ids or [unknown] for encoding in read]
        made: list[Layers] = [np.zeros((0, self.layers, self.hidden_size), np.float32)] * len(texts)
        lengths = np.array([[len(row)] for row in rows], dtype=np.int64).reshape(-1, 1)
        for numbers in length_sorted_batches(lengths, max_tokens=BUDGET):
            tokens = Tokens.from_rows([rows[number] for number in numbers])
            found = np.split(self.model.features(tokens), tokens.offsets[1:-1])
            for number, layers in zip(numbers, found, strict=True):
                made[number] = pool_spans(layers, read[number].spans or [(0, 1)], spans[number])
        return made


def pool_spans(layers: NDArray[np.float32], subwords: Spans, spans: Spans) -> Layers:
    """Return the mean of the layers [P, …] of those pieces that touch each span; where none does, of the next one.

    >>> pool_spans(np.array([[[1.0]], [[3.0]], [[8.0]]]), [(0, 2), (2, 5), (6, 9)], [(0, 5), (6, 9)])[:, 0, 0].tolist()
    [2.0, 8.0]
    """
    begins, ends = (np.array([piece[side] for piece in subwords]) for side in (0, 1))
    wanted = np.array(spans, dtype=np.int64).reshape(-1, 2)
    first = np.minimum(np.searchsorted(ends, wanted[:, 0], side="right"), len(subwords) - 1)
    last = np.maximum(np.searchsorted(begins, wanted[:, 1], side="left"), first + 1)
    places = np.arange(len(subwords))
    touched = ((places >= first[:, None]) & (places < last[:, None])).astype(np.float32)  # [spans, pieces]
    mean: NDArray[np.float32] = (touched / touched.sum(1, keepdims=True)) @ layers.reshape(len(subwords), -1)
    return mean.reshape(len(wanted), *layers.shape[1:])
