"""A tagger: a reader gives a state for each token, the output scores the tags of words at their first tokens."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.noise import Noise, drop
from regard.config.model import TaggerConfig
from regard.models.reader import Reader, ReadingModel, Texts


class Tagger(ReadingModel):
    """Reads sentences, scores the tags of words.

    >>> from regard.config.model import ReaderConfig
    >>> from regard.tokens import Tokens
    >>> model = Tagger(TaggerConfig(labels=3, encoder=ReaderConfig(vocabulary=11, embedding=5, width=7)))
    >>> model.scores(Texts(Tokens.from_rows([[5, 6, 7], [8]]))).shape
    (4, 3)
    """

    def __init__(self, config: TaggerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Reader(config.encoder)
        self.output = nn.Linear(self.encoder.width, config.labels)

    def forward(self, texts: Texts, places: Tensor, noise: Noise | None = None) -> Tensor:
        """Return the scores of all tags at these places among all tokens, [places, tags]."""
        states, _ = self.states(texts, noise)
        scores: Tensor = self.output(drop(states[places], self.config.dropout, noise, "tagged"))
        return scores

    @torch.inference_mode()
    def scores(self, texts: Texts) -> NDArray[np.float32]:
        """Return the scores of all tags for each token, [N, tags]."""
        return self.output(self.states(texts, None)[0]).float().cpu().numpy()
