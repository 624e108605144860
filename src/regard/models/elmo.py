"""ELMo: two recurrent language models, from the left and from the right, whose layers are features of the tokens.

They share the embedding, which is also the output projection, and nothing else (Peters et al. 2018). A text stands
between two boundary tokens: the model from the left reads the first one, the model from the right the last one.
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
from regard.models.layers.recurrent import StackedRNN
from regard.models.layers.time_major import TimeMajor
from regard.packed_tokens import Tokens

HiddenAndTargets = tuple[Tensor, Tensor]  # hidden states [N, D] and the token that each of them predicts [N]


class Elmo(Model):
    """Bidirectional language model: the next token from those before, the previous token from those after.

    >>> model = Elmo(ElmoConfig(vocab_size=11, hidden_size=6))
    >>> [loss.item() > 0 for loss in model.losses(Tokens.from_rows([[1, 5, 6, 7, 1]]))]
    [True, True]
    >>> model.features(Tokens.from_rows([[5, 6, 7], [8]])).shape
    (4, 3, 12)
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.forward_lm = StackedRNN(config.cell, config.hidden_size, config.num_layers)
        self.backward_lm = StackedRNN(config.cell, config.hidden_size, config.num_layers)

    @property
    def num_feature_layers(self) -> int:
        """Number of feature layers: the embedding and the recurrent layers."""
        return 1 + self.config.num_layers

    @property
    def feature_size(self) -> int:
        """Width of a feature layer: both directions side by side."""
        return 2 * self.config.hidden_size

    def _embed(self, ids: Tensor, site: str, noise: Noise | None) -> Tensor:
        hidden = self.token_embedding(ids) * math.sqrt(self.config.hidden_size)
        return apply_dropout(hidden, self.config.dropout, noise, site)

    def _run_direction(self, tokens: Tokens, backwards: bool, noise: Noise | None) -> tuple[list[Tensor], TimeMajor]:
        """Outputs of every layer of one direction as time steps, [T, B, D], and their layout."""
        rnn = self.backward_lm if backwards else self.forward_lm
        site = "from_right" if backwards else "from_left"
        ids, batch = self.to_tensors(tokens)
        time_major = TimeMajor(batch, backwards)
        return rnn(self._embed(ids, site, noise), time_major, self.config.dropout, noise, site), time_major

    def _predict_direction(
        self, tokens: Tokens, targets: Tokens, backwards: bool, noise: Noise | None
    ) -> HiddenAndTargets:
        layers, time_major = self._run_direction(tokens, backwards, noise)
        hidden = apply_dropout(time_major.pack(layers[-1]), self.config.dropout, noise, f"out.{int(backwards)}")
        target_ids, _ = self.to_tensors(targets)
        return hidden, target_ids

    def _predict(self, tokens: Tokens, noise: Noise | None) -> tuple[HiddenAndTargets, HiddenAndTargets]:
        """Hidden states of the last layer and their targets, from the left and from the right."""
        earlier = drop_last_tokens(tokens)
        later = drop_first_tokens(tokens)
        from_left = self._predict_direction(earlier, later, False, noise)
        from_right = self._predict_direction(later, earlier, True, noise)
        return from_left, from_right

    def loss(self, tokens: Tokens, *, smoothing: float = 0.0, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
        """Sums of the label-smoothed and of the plain cross-entropy over both directions.

        From the left, every token but the first of a sequence is predicted; from the right, every one but the last.
        """
        (left_hidden, left_targets), (right_hidden, right_targets) = self._predict(tokens, noise)
        hidden = torch.cat([left_hidden, right_hidden])
        targets = torch.cat([left_targets, right_targets])
        return vocabulary_loss(hidden, self.token_embedding.weight, self.lm_head_bias, targets, smoothing)

    @torch.no_grad()
    def losses(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Sums of the plain cross-entropy from the left and from the right."""
        left, right = (
            vocabulary_loss(hidden, self.token_embedding.weight, self.lm_head_bias, targets)[1]
            for hidden, targets in self._predict(tokens, None)
        )
        return left, right

    @torch.inference_mode()
    def features(self, texts: Tokens) -> NDArray[np.float32]:
        """Features of every token, [N, layers, 2D].

        The lowest layer is the token embedding, twice. The layers above encode the text up to and including the token,
        from the left and from the right.
        """
        boundary = np.array([self.config.boundary_id], dtype=np.int32)
        left_texts = Tokens.from_rows([np.concatenate([boundary, text]) for text in texts])
        right_texts = Tokens.from_rows([np.concatenate([text, boundary]) for text in texts])
        ids, _ = self.to_tensors(texts)
        embedded = self._embed(ids, "", None)
        layers = [torch.cat([embedded, embedded], dim=1)]
        left_indices = self._indices_without(left_texts, left_texts.offsets[:-1])
        right_indices = self._indices_without(right_texts, right_texts.offsets[1:] - 1)
        left_layers, left_time_major = self._run_direction(left_texts, False, None)
        right_layers, right_time_major = self._run_direction(right_texts, True, None)
        for left_layer, right_layer in zip(left_layers, right_layers, strict=True):
            left = left_time_major.pack(left_layer).index_select(0, left_indices)
            right = right_time_major.pack(right_layer).index_select(0, right_indices)
            layers.append(torch.cat([left, right], dim=1))
        return torch.stack(layers, dim=1).float().cpu().numpy()

    def layer_states(self, texts: Tokens) -> list[NDArray[np.float32]]:
        """Features of every token by layer, each [N, 2D]; the first are the embeddings."""
        return list(self.features(texts).swapaxes(0, 1))

    def _indices_without(self, tokens: Tokens, boundaries: NDArray[np.int32]) -> Tensor:
        """Indices of all packed tokens but the boundaries."""
        indices = np.delete(np.arange(len(tokens.ids)), boundaries)
        return torch.from_numpy(indices).to(self.device())


def drop_last_tokens(tokens: Tokens) -> Tokens:
    """The sequences without their last tokens.

    >>> drop_last_tokens(Tokens.from_rows([[5, 6], [7, 8, 9]])).ids.tolist()
    [5, 7, 8]
    """
    return _drop_tokens(tokens, tokens.offsets[1:] - 1)


def drop_first_tokens(tokens: Tokens) -> Tokens:
    """The sequences without their first tokens.

    >>> drop_first_tokens(Tokens.from_rows([[5, 6], [7, 8, 9]])).ids.tolist()
    [6, 8, 9]
    """
    return _drop_tokens(tokens, tokens.offsets[:-1])


def _drop_tokens(tokens: Tokens, indices: NDArray[np.int32]) -> Tokens:
    """Drop one token of each sequence, by its packed index."""
    num_dropped = np.arange(len(tokens.offsets), dtype=np.int32)
    return Tokens(np.delete(tokens.ids, indices), np.subtract(tokens.offsets, num_dropped, dtype=np.int32))
