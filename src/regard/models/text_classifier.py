"""Base of text classifiers with a vocabulary of their own: RNNs, and the families of plugins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.attention.dropout import Noise
from regard.models.base import Model
from regard.packed_tokens import Tokens


@dataclass(frozen=True)
class TextBatch:
    """Input of a text model with its own vocabulary: token ids, and frozen features of each token."""

    tokens: Tokens
    features: NDArray[np.float16] | None = None  # [N, layers, F]


class LabelConfig(Protocol):
    """Config of a text classifier."""

    @property
    def family(self) -> str: ...
    @property
    def num_labels(self) -> int: ...


class TextClassifierModel(Model):
    """A text classifier. A subclass computes `label_logits`, and has the embedding of its input tokens.

    >>> from regard.config.text_classifier import TextClassifierConfig
    >>> class FirstToken(TextClassifierModel):
    ...     def __init__(self, config):
    ...         super().__init__()
    ...         self.config = config
    ...         self.token_embedding = nn.Embedding(config.vocab_size, config.num_labels)
    ...     def label_logits(self, batch, noise=None):
    ...         ids, packed = self.to_tensors(batch.tokens)
    ...         return self.token_embedding(ids)[packed.first_indices]
    >>> model = FirstToken(TextClassifierConfig(vocab_size=11, num_labels=3))
    >>> model.probabilities(TextBatch(Tokens.from_rows([[5, 6, 7], [8]]))).shape
    (2, 3)
    """

    config: LabelConfig

    def input_embedding(self) -> nn.Embedding:
        """Embedding of the input tokens: `token_embedding`, unless a subclass has another one."""
        embedding = self.token_embedding
        assert isinstance(embedding, nn.Embedding)
        return embedding

    def label_logits(self, batch: TextBatch, noise: Noise | None = None) -> Tensor:
        """Logits of the labels of each text, [B, labels]; with noise, in training."""
        raise NotImplementedError

    def loss(
        self, batch: TextBatch, labels: NDArray[np.int64], *, smoothing: float = 0.0, noise: Noise | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sums of the label-smoothed and of the plain cross-entropy over the texts."""
        logits = self.label_logits(batch, noise).float()
        targets = torch.from_numpy(labels).to(logits.device)
        smoothed = cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
        return smoothed, cross_entropy(logits.detach(), targets, reduction="sum")

    @torch.inference_mode()
    def probabilities(self, batch: TextBatch) -> NDArray[np.float32]:
        """Label probabilities of each text, [B, labels]."""
        return torch.softmax(self.label_logits(batch).float(), dim=1).cpu().numpy()

    def mix_weights(self) -> tuple[list[float], float]:
        """Softmax weights of the frozen layers and the scale of their mix; empty and 0 without frozen layers."""
        return [], 0.0
