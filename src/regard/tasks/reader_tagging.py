"""Tagging by a reader with words of its own: sentences as its tokens, each word decided at its first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.noise import Noise
from regard.models.reader import Texts
from regard.models.tagger import Tagger
from regard.tasks.base import RowTask
from regard.tasks.encoding import summed_losses
from regard.tasks.perception import Numbers, Perception, TextRows
from regard.tasks.tagging import Scored, Spans, first_pieces, packed_places


@dataclass
class WordRows(TextRows):
    """Sentences, and where in them words are decided; a word beyond what is read is not."""

    places: list[Numbers] = field(default_factory=list)  # in a sentence, the first tokens of its words
    words: list[Numbers] = field(default_factory=list)  # their numbers

    @classmethod
    def read(cls, perception: Perception, texts: Sequence[str], spans: Sequence[Spans]) -> WordRows:
        """Return texts whose words stand at these spans of characters."""
        made = cls(**vars(perception.read(texts)))
        for where, pieces in zip(spans, made.spans, strict=True):
            found = first_pieces(where, pieces)
            made.words.append(np.flatnonzero(found >= 0))
            made.places.append(found[made.words[-1]])
        return made

    @property
    def owners(self) -> Sequence[int]:
        """The sentence of each row: itself."""
        return range(len(self))

    def told(self, model: Tagger) -> Scored:
        """Yield what a model says of all tokens, some sentences at a time."""
        return ((numbers, texts.tokens.offsets, model.scores(texts)) for numbers, texts in self.batches())


@dataclass(frozen=True)
class WordBatch:
    """Sentences and the tags of their words."""

    texts: Texts
    places: Numbers  # among all tokens
    tags: Numbers

    @property
    def count(self) -> int:
        """Words: each has one tag."""
        return max(1, len(self.tags))

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.texts.tokens)} sentences of up to {self.texts.tokens.lengths.max()} tokens"


class ReaderTaggingTask(RowTask[WordRows]):
    """Knows what a batch of tagged sentences means to a reader with words of its own."""

    counted = "words"

    def __init__(
        self,
        train: WordRows,
        tags: Sequence[Numbers],
        *,
        seed: int,
        digest: str,
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(train, seed=seed, digest=digest, weights=weights)
        self.tags = [given[words] for given, words in zip(tags, train.words, strict=True)]

    def batch(self, numbers: Numbers, epoch: int) -> WordBatch:
        """Return training sentences and their tags."""
        texts = self.train.batch(numbers)
        places = packed_places(self.train.places, numbers, texts.tokens.offsets)
        return WordBatch(texts, places, np.concatenate([self.tags[number] for number in numbers]))

    def loss(self, model: Tagger, batch: WordBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the batch's words."""
        scores = model(batch.texts, torch.from_numpy(batch.places).to(model.device()), noise).float()
        return summed_losses(scores, torch.from_numpy(batch.tags), smoothing, self.weights)
