"""Two recurrent language models over one text, from the left and from the right: their layers are features of words.

They share the table of words, which is also the output, and nothing else (Peters et al. 2018). A text stands between
two boundary tokens: the model from the left reads the first one, the model from the right the last one.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.dropout import Noise, apply_dropout
from regard.config.rnn_models import ElmoConfig
from regard.models.base import Model
from regard.models.layers.losses import vocabulary_loss
from regard.models.layers.recurrent import StackedRNN, TimeMajor
from regard.tokens import Tokens

Told = tuple[Tensor, Tensor]  # states [N, D] and the token that each is to tell [N]


class Elmo(Model):
    """Tells the next token from those before, the last token from those after, and what it knows of each token.

    >>> model = Elmo(ElmoConfig(vocab_size=11, hidden_size=6))
    >>> [loss.item() > 0 for loss in model.losses(Tokens.from_rows([[1, 5, 6, 7, 1]]))]
    [True, True]
    >>> model.features(Tokens.from_rows([[5, 6, 7], [8]])).shape
    (4, 3, 12)
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.from_left = StackedRNN(config.cell, config.hidden_size, config.num_layers)
        self.from_right = StackedRNN(config.cell, config.hidden_size, config.num_layers)

    @property
    def num_feature_layers(self) -> int:
        """How many layers of features there are: the words and what each layer of cells says."""
        return 1 + self.config.num_layers

    @property
    def feature_width(self) -> int:
        """How wide each of them is: both directions side by side."""
        return 2 * self.config.hidden_size

    def _embed(self, ids: Tensor, site: str, noise: Noise | None) -> Tensor:
        return apply_dropout(self.words(ids) * math.sqrt(self.config.hidden_size), self.config.dropout, noise, site)

    def _read(self, tokens: Tokens, backwards: bool, noise: Noise | None) -> tuple[list[Tensor], TimeMajor]:
        """Return what each layer of one direction says step by step, [T, B, D], and where tokens stand in it."""
        reading, site = (self.from_right, "from_right") if backwards else (self.from_left, "from_left")
        ids, rows = self.to_tensors(tokens)
        walk = TimeMajor(rows, backwards)
        return reading(self._embed(ids, site, noise), walk, self.config.dropout, noise, site), walk

    def _told(self, rows: Tokens, noise: Noise | None) -> tuple[Told, Told]:
        """Return, from the left and from the right, the last layer's states and what they are to tell."""
        earlier, later = drop_last_tokens(rows), drop_first_tokens(rows)
        made = []
        for given, wanted, backwards in ((earlier, later, False), (later, earlier, True)):
            layers, walk = self._read(given, backwards, noise)
            hidden = apply_dropout(walk.pack(layers[-1]), self.config.dropout, noise, f"out.{int(backwards)}")
            made.append((hidden, self.to_tensors(wanted)[0]))
        return made[0], made[1]

    def loss(self, rows: Tokens, *, smoothing: float = 0.0, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
        """Return the sums of the smoothed and of the plain loss over both directions.

        Every token of a row but the first is told from the left, every one but the last from the right.
        """
        left, right = self._told(rows, noise)
        hidden, targets = torch.cat([left[0], right[0]]), torch.cat([left[1], right[1]])
        return vocabulary_loss(hidden, self.words.weight, self.output_bias, targets, smoothing)

    @torch.no_grad()
    def losses(self, rows: Tokens) -> tuple[Tensor, Tensor]:
        """Return the sums of the plain loss from the left and from the right."""
        left, right = (
            vocabulary_loss(hidden, self.words.weight, self.output_bias, targets)[1]
            for hidden, targets in self._told(rows, None)
        )
        return left, right

    @torch.inference_mode()
    def features(self, texts: Tokens) -> NDArray[np.float32]:
        """Return each layer's features of each token of whole texts, [N, layers, 2D].

        The lowest layer is the words themselves, twice; those above have what was read up to and including the token,
        from the left and from the right.
        """
        boundary = np.array([self.config.boundary_id], dtype=np.int32)
        left = Tokens.from_rows([np.concatenate([boundary, text]) for text in texts])
        right = Tokens.from_rows([np.concatenate([text, boundary]) for text in texts])
        words = self._embed(self.to_tensors(texts)[0], "", None)
        layers = [torch.cat([words, words], dim=1)]
        every = np.arange(len(left.ids))
        own = [  # where tokens stand that are no boundaries
            torch.from_numpy(np.delete(every, boundaries)).to(self.device())
            for boundaries in (left.offsets[:-1], right.offsets[1:] - 1)
        ]
        read = [self._read(left, False, None), self._read(right, True, None)]
        for number in range(self.config.num_layers):
            sides = [
                walk.pack(made[number]).index_select(0, kept) for (made, walk), kept in zip(read, own, strict=True)
            ]
            layers.append(torch.cat(sides, dim=1))
        return torch.stack(layers, dim=1).float().cpu().numpy()


def drop_last_tokens(rows: Tokens) -> Tokens:
    """Return the rows without their last tokens.

    >>> drop_last_tokens(Tokens.from_rows([[5, 6], [7, 8, 9]])).ids.tolist()
    [5, 7, 8]
    """
    return _without(rows, rows.offsets[1:] - 1)


def drop_first_tokens(rows: Tokens) -> Tokens:
    """Return the rows without their first tokens.

    >>> drop_first_tokens(Tokens.from_rows([[5, 6], [7, 8, 9]])).ids.tolist()
    [6, 8, 9]
    """
    return _without(rows, rows.offsets[:-1])


def _without(rows: Tokens, places: NDArray[np.int32]) -> Tokens:
    fewer = np.arange(len(rows.offsets), dtype=np.int32)
    return Tokens(np.delete(rows.ids, places), np.subtract(rows.offsets, fewer, dtype=np.int32))
