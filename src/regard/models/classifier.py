"""A classifier: an encoder gives a state for each token, pooling makes one of them, the output scores the labels."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.noise import Noise, drop
from regard.blocks.heads import vocabulary_loss
from regard.blocks.reading import POOLING, Pooling
from regard.config.model import ClassifierConfig
from regard.models.reader import Reader, ReadingModel, Texts


class Classifier(ReadingModel):
    """Reads texts, scores labels.

    >>> from regard.config.model import ReaderConfig
    >>> from regard.tokens import Tokens
    >>> model = Classifier(ClassifierConfig(labels=3, encoder=ReaderConfig(vocabulary=11, embedding=5, width=7)))
    >>> model.chances(Texts(Tokens.from_rows([[5, 6, 7], [8]]))).shape
    (2, 3)
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Reader(config.encoder)
        self.pooling = Pooling(config.pooling, self.encoder.width)
        self.output = nn.Linear(self.encoder.width, config.labels)

    def sites(self) -> dict[str, int]:
        """Return every place where this model looks: all tokens of a text, if pooling does."""
        return {POOLING: 1} if self.pooling.kind == "attention" else {}

    def forward(self, texts: Texts, noise: Noise | None = None) -> Tensor:
        """Return one state for each text, [B, width]."""
        pooled = self.pooling(*self.states(texts, noise))
        return drop(pooled, self.config.dropout, noise, "pooled")

    def loss(
        self, texts: Texts, labels: NDArray[np.int64], *, smoothing: float = 0.0, noise: Noise | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of the smoothed and of the plain loss over the texts."""
        wanted = torch.from_numpy(labels).to(self.device())
        return vocabulary_loss(self(texts, noise), self.output.weight, self.output.bias, wanted, smoothing)

    @torch.inference_mode()
    def chances(self, texts: Texts) -> NDArray[np.float32]:
        """Return the probability of each label for each text, [B, labels]."""
        return torch.softmax(self.output(self(texts)).float(), dim=1).cpu().numpy()
