"""RNN text classifier and tagger: a recurrent encoder, usually of both directions, with its own vocabulary.

Frozen features, such as those of ELMo, may be concatenated with the embeddings. The classifier pools the hidden states
of a text; the tagger labels words at their first tokens.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.dropout import Noise, apply_dropout
from regard.attention.packed_batch import PackedBatch
from regard.attention.scores import build_normalizer
from regard.attention.sites import POOLING_SITE
from regard.config.rnn_models import RnnClassifierConfig, RnnTaggerConfig, RnnTextConfig, Seq2SeqConfig
from regard.models.base import Model, to_arrays
from regard.models.layers.losses import vocabulary_loss
from regard.models.layers.pooling import Pooling, ScalarMix
from regard.models.layers.recurrent import RecurrentEncoder
from regard.models.text_classifier import TextBatch, TextClassifierModel


class RnnTextEncoder(nn.Module):
    """Embeddings and a scalar mix of frozen layers, read in one or both directions (Peters et al. 2018, section 3)."""

    def __init__(self, config: RnnTextConfig) -> None:
        super().__init__()
        self.config = config
        self.output_size = config.num_directions * config.hidden_size
        self.token_embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.scalar_mix = ScalarMix(config.num_feature_layers) if config.num_feature_layers else None
        recurrent_config = Seq2SeqConfig(
            cell=config.cell,
            embedding_size=config.embedding_size + config.feature_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            directions=config.directions,
            dropout=config.dropout,
        )
        self.recurrent = RecurrentEncoder(recurrent_config)

    def forward(self, ids: Tensor, batch: PackedBatch, features: Tensor | None, noise: Noise | None) -> Tensor:
        """Hidden states of all tokens, [N, directions · D]."""
        embedded = self.embed(ids, features)
        hidden, _ = self.recurrent(apply_dropout(embedded, self.config.dropout, noise, "words"), batch, noise)
        return hidden

    def embed(self, ids: Tensor, features: Tensor | None) -> Tensor:
        """Embeddings of all tokens, with the mix of their frozen features."""
        embedded: Tensor = self.token_embedding(ids)
        if self.scalar_mix is None:
            return embedded
        assert features is not None
        return torch.cat([embedded, self.scalar_mix(features.to(embedded.dtype))], dim=1)

    def layer_states(self, ids: Tensor, batch: PackedBatch, features: Tensor | None) -> list[Tensor]:
        """Embeddings of all tokens and hidden states after each layer."""
        embedded = self.embed(ids, features)
        hidden_states, _ = self.recurrent.run_layers(embedded, batch, None)
        return [embedded, *hidden_states]

    def mix_weights(self) -> tuple[list[float], float]:
        """Softmax weights of the frozen layers and the scale of their mix; empty and 0 without frozen layers."""
        if self.scalar_mix is None:
            return [], 0.0
        return self.scalar_mix.layer_weights().tolist(), self.scalar_mix.scale.item()


class RnnTextModel(Model):
    """A model with an RNN text encoder."""

    encoder: RnnTextEncoder

    def input_embedding(self) -> nn.Embedding:
        """Embedding of the input tokens."""
        return self.encoder.token_embedding

    def mix_weights(self) -> tuple[list[float], float]:
        """Softmax weights of the frozen layers and the scale of their mix; empty and 0 without frozen layers."""
        return self.encoder.mix_weights()

    def hidden_states(self, batch: TextBatch, noise: Noise | None) -> tuple[Tensor, PackedBatch]:
        """Hidden states of all tokens, [N, directions · D], and their layout."""
        ids, packed = self.to_tensors(batch.tokens)
        return self.encoder(ids, packed, self._features(batch), noise), packed

    @torch.inference_mode()
    def layer_states(self, batch: TextBatch) -> list[NDArray[np.float32]]:
        """Embeddings of all tokens and hidden states after each layer, each [N, ·]."""
        ids, packed = self.to_tensors(batch.tokens)
        return to_arrays(self.encoder.layer_states(ids, packed, self._features(batch)))

    def _features(self, batch: TextBatch) -> Tensor | None:
        return None if batch.features is None else torch.from_numpy(batch.features).to(self.device())


class RnnClassifier(RnnTextModel, TextClassifierModel):
    """Text classifier: encoder, pooling, linear output.

    >>> from regard.config.rnn_models import RnnTextConfig
    >>> from regard.packed_tokens import Tokens
    >>> encoder = RnnTextConfig(vocab_size=11, embedding_size=5, hidden_size=7)
    >>> model = RnnClassifier(RnnClassifierConfig(num_labels=3, encoder=encoder))
    >>> model.probabilities(TextBatch(Tokens.from_rows([[5, 6, 7], [8]]))).shape
    (2, 3)
    """

    def __init__(self, config: RnnClassifierConfig) -> None:
        super().__init__()
        self.config: RnnClassifierConfig = config
        self.encoder = RnnTextEncoder(config.encoder)
        normalize = build_normalizer(
            config.attention_normalization, config.attention_top_k, config.attention_temperature
        )
        self.pooling = Pooling(
            config.pooling, self.encoder.output_size, config.encoder.num_directions, normalize=normalize
        )
        self.classifier = nn.Linear(self.encoder.output_size, config.num_labels)

    def attention_sites(self) -> dict[str, int]:
        """Attention sites of the model, with their number of heads: the pooling's, if it has attention."""
        return {POOLING_SITE: 1} if self.pooling.kind == "attention" else {}

    def forward(self, batch: TextBatch, noise: Noise | None = None) -> Tensor:
        """Pooled hidden state of each text, [B, directions · D]."""
        hidden, packed = self.hidden_states(batch, noise)
        return apply_dropout(self.pooling(hidden, packed), self.config.dropout, noise, "pooled")

    def loss(
        self, batch: TextBatch, labels: NDArray[np.int64], *, smoothing: float = 0.0, noise: Noise | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sums of the label-smoothed and of the plain cross-entropy over the texts."""
        targets = torch.from_numpy(labels).to(self.device())
        return vocabulary_loss(self(batch, noise), self.classifier.weight, self.classifier.bias, targets, smoothing)

    def label_logits(self, batch: TextBatch, noise: Noise | None = None) -> Tensor:
        """Logits of the labels of each text, [B, labels]."""
        logits: Tensor = self.classifier(self(batch, noise))
        return logits


class RnnTagger(RnnTextModel):
    """Tagger: encoder, linear output at the selected tokens.

    >>> from regard.config.rnn_models import RnnTextConfig
    >>> from regard.packed_tokens import Tokens
    >>> encoder = RnnTextConfig(vocab_size=11, embedding_size=5, hidden_size=7)
    >>> model = RnnTagger(RnnTaggerConfig(num_labels=3, encoder=encoder))
    >>> model.logits(TextBatch(Tokens.from_rows([[5, 6, 7], [8]]))).shape
    (4, 3)
    """

    def __init__(self, config: RnnTaggerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = RnnTextEncoder(config.encoder)
        self.classifier = nn.Linear(self.encoder.output_size, config.num_labels)

    def forward(self, batch: TextBatch, indices: Tensor, noise: Noise | None = None) -> Tensor:
        """Tag logits of the tokens with these packed indices, [M, tags]."""
        hidden, _ = self.hidden_states(batch, noise)
        logits: Tensor = self.classifier(apply_dropout(hidden[indices], self.config.dropout, noise, "tagged"))
        return logits

    @torch.inference_mode()
    def logits(self, batch: TextBatch) -> NDArray[np.float32]:
        """Tag logits of all tokens, [N, tags]."""
        hidden, _ = self.hidden_states(batch, None)
        return self.classifier(hidden).float().cpu().numpy()
