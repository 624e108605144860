"""`FeaturePipeline`: ELMo features of texts, all layers of the language model for each word or token."""

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
from regard.models.elmo import Elmo
from regard.pipeline.pickling import PicklablePipeline
from regard.pipeline.records.text_model_records import layer_mix_attention
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.elmo import DEFAULT_SEQUENCE_LENGTH, predict_both_directions
from regard.tasks.frozen_features import FrozenFeatures
from regard.tasks.scoring import Scoring
from regard.tasks.token_stream import TokenStream
from regard.view.record.parts import Omission
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

TASK = "elmo"
UNITS = ("words", "tokens")


@dataclass(frozen=True)
class TextFeatures(PipelineResult):
    """Features of one text for each of its words or tokens."""

    text: str
    spans: list[tuple[int, int]]  # characters of the text
    layers: NDArray[np.float32]  # [layers, words, features]; the lowest layer is the embedding

    @property
    def words(self) -> list[str]:
        """The text at each span."""
        return [self.text[start:end] for start, end in self.spans]

    def mix(self, weights: Sequence[float] | None = None, scale: float = 1.0) -> NDArray[np.float32]:
        """Weighted sum of the layers; the weights default to a uniform mix."""
        if weights is None:
            layer_weights = np.full(len(self.layers), 1 / len(self.layers))
        else:
            layer_weights = np.asarray(weights, float)
        if layer_weights.shape != (len(self.layers),):
            raise UsageError(f"{len(self.layers)} layers need as many weights, not {list(layer_weights.shape)}")
        return (scale * np.tensordot(layer_weights, self.layers, axes=1)).astype(np.float32)  # [words, features]


class FeaturePipeline(PicklablePipeline):
    """Extracts ELMo features from texts."""

    task_name = TASK

    def __init__(self, features: FrozenFeatures[Elmo], sequence_length: int = DEFAULT_SEQUENCE_LENGTH) -> None:
        self.model = features
        self.sequence_length = sequence_length  # tokens of a row in training

    def features(self, texts: Sequence[str], *, unit: str = "words") -> list[TextFeatures]:
        """Extract the layers of each text, for each word (separated by white space) or each token."""
        if isinstance(texts, str):
            raise UsageError("features takes a list of texts: put the text into a list")
        if unit not in UNITS:
            raise UsageError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")
        find_spans = _word_spans if unit == "words" else self._token_spans
        spans = [find_spans(text) for text in texts]
        results = []
        for text, text_spans, layers in zip(texts, spans, self.model.extract(texts, spans), strict=True):
            features = TextFeatures(text, text_spans, layers=layers.transpose(1, 0, 2))
            results.append(attach_recorder(features, partial(_build_record, features), self.model.model.backend_name))
        return results

    def _token_spans(self, text: str) -> list[tuple[int, int]]:
        return self.model.tokenizer.encode(text).spans

    def evaluate(self, documents: Documents, *, metrics: Sequence[str] = ()) -> dict[str, Any]:
        """Loss and perplexity of running text, left to right and right to left, and metrics by name."""
        stream = TokenStream.from_documents(documents, self.model.tokenizer, self.sequence_length)
        predictions = predict_both_directions(self.model.model, stream)
        scores = Scoring(self.task_name, tuple(metrics)).compute_final(predictions)
        return {"documents": len(documents), "tokens": len(stream.ids), **scores}

    def __call__(self, text: str) -> TextFeatures:
        """Extract the layers of one text, word by word."""
        return self.features([text])[0]


def _word_spans(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", text)]


def _build_record(features: TextFeatures, config: RecordConfig) -> Record:
    """Record a text with a uniform mix of its layers: an ELMo model has no attention."""
    words = features.words
    num_layers = len(features.layers)
    mix, mix_texts = layer_mix_attention([1 / num_layers] * num_layers)
    source = RecordText(features.text, tuple(words), tuple(range(len(words))), spans=tuple(features.spans))
    omission = Omission(
        "a language model by itself has a uniform mix of its layers",
        "the layer weights that a classifier or tagger would learn",
    )
    return Record(features.text, {"source": source, **mix_texts}, (mix,), task=TASK, omissions=(omission,))
