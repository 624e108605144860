"""Readers with words of their own: recurrent layers both ways, frozen features beside the words where there are any.

A classifier: an encoder gives a state for each token, pooling makes one of them, the output scores the labels.

A tagger: a reader gives a state for each token, the output scores the tags of words at their first tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.dropout import Noise, apply_dropout
from regard.attention.packed_batch import PackedBatch
from regard.config.rnn_models import RnnClassifierConfig, RnnTaggerConfig, RnnTextConfig, Seq2SeqConfig
from regard.models.base import Model
from regard.models.layers.losses import vocabulary_loss
from regard.models.layers.pooling import POOLING, Pooling, ScalarMix
from regard.models.layers.recurrent import RecurrentEncoder
from regard.tokens import Tokens


@dataclass(frozen=True)
class TextBatch:
    """What an encoder reads: rows of tokens, and what is known of each token beforehand."""

    tokens: Tokens
    features: NDArray[np.float16] | None = None  # [N, layers, F]


class RnnTextEncoder(nn.Module):
    """The words of a text, with a mix of frozen layers beside each, read both ways (Peters et al. 2018, section 3)."""

    def __init__(self, config: RnnTextConfig) -> None:
        super().__init__()
        self.config = config
        self.width = 2 * config.hidden_size
        self.words = nn.Embedding(config.vocab_size, config.embedding_size)
        self.mix = ScalarMix(config.num_feature_layers) if config.num_feature_layers else None
        settings = Seq2SeqConfig(
            cell=config.cell,
            embedding_size=config.embedding_size + config.feature_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            dropout=config.dropout,
        )
        self.recurrent = RecurrentEncoder(settings)

    def forward(self, ids: Tensor, batch: PackedBatch, features: Tensor | None, noise: Noise | None) -> Tensor:
        """Return a state for each token, [N, width]."""
        states = self.words(ids)
        if self.mix is not None:
            assert features is not None
            states = torch.cat([states, self.mix(features.to(states.dtype))], dim=1)
        states, _ = self.recurrent(apply_dropout(states, self.config.dropout, noise, "words"), batch, noise)
        return states

    def mix_weights(self) -> tuple[list[float], float]:
        """Return how much of each frozen layer is in the mix, and its scale; nothing where there are none."""
        return ([], 0.0) if self.mix is None else (self.mix.layer_weights().tolist(), self.mix.scale.item())


class RnnTextModel(Model):
    """A model whose encoder is a `Reader`."""

    encoder: RnnTextEncoder

    def hidden_states(self, batch: TextBatch, noise: Noise | None) -> tuple[Tensor, PackedBatch]:
        """Return a state for each token, [N, width], and how the texts lie in them."""
        ids, rows = self.to_tensors(batch.tokens)
        features = None if batch.features is None else torch.from_numpy(batch.features).to(self.device())
        return self.encoder(ids, rows, features, noise), rows


class RnnClassifier(RnnTextModel):
    """Reads texts, scores labels.

    >>> from regard.config.rnn_models import RnnTextConfig
    >>> from regard.tokens import Tokens
    >>> model = RnnClassifier(RnnClassifierConfig(num_labels=3, encoder=RnnTextConfig(vocab_size=11, embedding_size=5, hidden_size=7)))
    >>> model.probabilities(TextBatch(Tokens.from_rows([[5, 6, 7], [8]]))).shape
    (2, 3)
    """

    def __init__(self, config: RnnClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = RnnTextEncoder(config.encoder)
        self.pooling = Pooling(config.pooling, self.encoder.width)
        self.output = nn.Linear(self.encoder.width, config.num_labels)

    def attention_sites(self) -> dict[str, int]:
        """Return every place where this model looks: all tokens of a text, if pooling does."""
        return {POOLING: 1} if self.pooling.kind == "attention" else {}

    def forward(self, texts: TextBatch, noise: Noise | None = None) -> Tensor:
        """Return one state for each text, [B, width]."""
        pooled = self.pooling(*self.hidden_states(texts, noise))
        return apply_dropout(pooled, self.config.dropout, noise, "pooled")

    def loss(
        self, texts: TextBatch, labels: NDArray[np.int64], *, smoothing: float = 0.0, noise: Noise | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of the smoothed and of the plain loss over the texts."""
        wanted = torch.from_numpy(labels).to(self.device())
        return vocabulary_loss(self(texts, noise), self.output.weight, self.output.bias, wanted, smoothing)

    @torch.inference_mode()
    def probabilities(self, batch: TextBatch) -> NDArray[np.float32]:
        """Return the probability of each label for each text, [B, labels]."""
        return torch.softmax(self.output(self(batch)).float(), dim=1).cpu().numpy()


class RnnTagger(RnnTextModel):
    """Reads sentences, scores the tags of words.

    >>> from regard.config.rnn_models import RnnTextConfig
    >>> from regard.tokens import Tokens
    >>> model = RnnTagger(RnnTaggerConfig(num_labels=3, encoder=RnnTextConfig(vocab_size=11, embedding_size=5, hidden_size=7)))
    >>> model.logits(TextBatch(Tokens.from_rows([[5, 6, 7], [8]]))).shape
    (4, 3)
    """

    def __init__(self, config: RnnTaggerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = RnnTextEncoder(config.encoder)
        self.output = nn.Linear(self.encoder.width, config.num_labels)

    def forward(self, texts: TextBatch, places: Tensor, noise: Noise | None = None) -> Tensor:
        """Return the scores of all tags at these places among all tokens, [places, tags]."""
        states, _ = self.hidden_states(texts, noise)
        scores: Tensor = self.output(apply_dropout(states[places], self.config.dropout, noise, "tagged"))
        return scores

    @torch.inference_mode()
    def logits(self, batch: TextBatch) -> NDArray[np.float32]:
        """Return the scores of all tags for each token, [N, tags]."""
        return self.output(self.hidden_states(batch, None)[0]).float().cpu().numpy()
