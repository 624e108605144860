"""`FeaturePipeline`: what the layers of a language model say of the words of a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.inference import RecordConfig
from regard.data.documents import Documents
from regard.errors import UsageError
from regard.pipeline.records.encoder import layer_mix_attention
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.elmo import ElmoFeatures, elmo_scores
from regard.tasks.token_stream import TokenStream
from regard.view.record.parts import Omission
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

UNITS = ("words", "tokens")


@dataclass(frozen=True)
class TextFeatures(PipelineResult):
    """The layers of one text, at each of its words or tokens."""

    text: str
    spans: list[tuple[int, int]]  # characters of the text
    layers: NDArray[np.float32]  # [layers, T, F]; the lowest are the words themselves

    @property
    def words(self) -> list[str]:
        """The text at each span."""
        return [self.text[start:stop] for start, stop in self.spans]

    def mix(self, weights: Sequence[float] | None = None, scale: float = 1.0) -> NDArray[np.float32]:
        """Return one vector for each word, [T, F]: the layers, weighted as given or all alike."""
        shares = np.full(len(self.layers), 1 / len(self.layers)) if weights is None else np.asarray(weights, float)
        if shares.shape != (len(self.layers),):
            raise UsageError(f"{len(self.layers)} layers need as many weights, not {list(shares.shape)}")
        return (scale * np.tensordot(shares, self.layers, axes=1)).astype(np.float32)


class FeaturePipeline:
    """Texts in, layers of features out."""

    def __init__(self, features: ElmoFeatures) -> None:
        self.model = features

    def features(self, texts: Sequence[str], *, unit: str = "words") -> list[TextFeatures]:
        """Return the layers of each text, a vector for each white-space-separated word or for each token."""
        if isinstance(texts, str):
            raise UsageError("features takes a list of texts: put the text into one")
        if unit not in UNITS:
            raise UsageError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")
        if unit == "words":
            spans = [[found.span() for found in re.finditer(r"\S+", text)] for text in texts]
        else:
            spans = [self.model.tokenizer.encode(text).spans for text in texts]
        found = self.model.extract(texts, spans)
        made = [
            TextFeatures(text, places, layers.transpose(1, 0, 2))
            for text, places, layers in zip(texts, spans, found, strict=True)
        ]
        return [attach_recorder(one, partial(_recorded, one)) for one in made]

    def scores(self, documents: Documents) -> dict[str, Any]:
        """Return loss and perplexity of running text, from the left and from the right."""
        text = TokenStream.of(documents, self.model.tokenizer, self.model.sequence_length)
        facts: dict[str, Any] = {"documents": len(documents), "tokens": len(text.ids)}
        return {**facts, **elmo_scores(self.model.model, text)}

    def __call__(self, text: str) -> TextFeatures:
        """Return the layers of one text, word by word."""
        return self.features([text])[0]


def _recorded(told: TextFeatures, seeing: RecordConfig) -> Record:
    """Return the record of a text's layers: nothing looks anywhere, and all layers count alike."""
    names = told.words
    count = len(told.layers)
    mix, sides = layer_mix_attention([1 / count] * count)
    source = RecordText(told.text, tuple(names), tuple(range(len(names))), tuple(told.spans))
    cut = Omission(
        "a language model alone mixes its layers alike", "the shares that a classifier or tagger would learn"
    )
    return Record(told.text, {"source": source, **sides}, (mix,), task="embed", cut=(cut,))
