"""Text in, answer out, and on request where the model looked.

Names are resolved on first use: what the engine answers by itself does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.pipeline.answering import AnsweringPipeline, SpanAnswer
    from regard.pipeline.classification import ClassificationPipeline, Label
    from regard.pipeline.embedding import Embedded, EmbeddingPipeline, Near, nearest_rows
    from regard.pipeline.features import FeaturePipeline, TextFeatures
    from regard.pipeline.filling import Fill, Filled, FillingPipeline
    from regard.pipeline.folders import (
        load_answerer,
        load_classifier,
        load_features,
        load_filler,
        load_generator,
        load_stories,
        load_tagger,
        train,
    )
    from regard.pipeline.generation import Generated, GenerationPipeline
    from regard.pipeline.opening import load, load_embedder, load_translator
    from regard.pipeline.parts import Part
    from regard.pipeline.sights import Sight, Sights
    from regard.pipeline.stories import Answer, Looked, StoryPipeline
    from regard.pipeline.tagging import TaggedText, TaggingPipeline
    from regard.pipeline.translation import Scored, Translation, TranslationPipeline

__all__ = [
    "Answer",
    "AnsweringPipeline",
    "ClassificationPipeline",
    "Embedded",
    "EmbeddingPipeline",
    "FeaturePipeline",
    "Fill",
    "Filled",
    "FillingPipeline",
    "Generated",
    "GenerationPipeline",
    "Label",
    "Looked",
    "Near",
    "Part",
    "Scored",
    "Sight",
    "Sights",
    "SpanAnswer",
    "StoryPipeline",
    "TaggedText",
    "TaggingPipeline",
    "TextFeatures",
    "Translation",
    "TranslationPipeline",
    "load",
    "load_answerer",
    "load_classifier",
    "load_embedder",
    "load_features",
    "load_filler",
    "load_generator",
    "load_stories",
    "load_tagger",
    "load_translator",
    "nearest_rows",
    "train",
]

_HOMES = {
    "Answer": "stories",
    "AnsweringPipeline": "answering",
    "ClassificationPipeline": "classification",
    "Embedded": "embedding",
    "EmbeddingPipeline": "embedding",
    "FeaturePipeline": "features",
    "Fill": "filling",
    "Filled": "filling",
    "FillingPipeline": "filling",
    "Generated": "generation",
    "GenerationPipeline": "generation",
    "Label": "classification",
    "Looked": "stories",
    "Near": "embedding",
    "Part": "parts",
    "Scored": "translation",
    "Sight": "sights",
    "Sights": "sights",
    "SpanAnswer": "answering",
    "StoryPipeline": "stories",
    "TaggedText": "tagging",
    "TaggingPipeline": "tagging",
    "TextFeatures": "features",
    "Translation": "translation",
    "TranslationPipeline": "translation",
    "load": "opening",
    "load_answerer": "folders",
    "load_classifier": "folders",
    "load_embedder": "opening",
    "load_features": "folders",
    "load_filler": "folders",
    "load_generator": "folders",
    "load_stories": "folders",
    "load_tagger": "folders",
    "load_translator": "opening",
    "nearest_rows": "embedding",
    "train": "folders",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard.pipeline' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"regard.pipeline.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
