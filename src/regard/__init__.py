"""Attention models from your own files: train, translate, and see where the model looked.

    model = regard.load("runs/en-de")
    said = model("Two dogs run in the snow.")
    print(said, said.score, said.alignment)

`load` opens every kind of folder, and published models by their names; what it returns is called with a text:

    translator           TranslationPipeline     model(text) is a Translation, a str
    classifier           ClassificationPipeline  model(text) is a Label, a str
    tagger               TaggingPipeline         model(text).found are entities, exact spans of the text
    answerer             AnsweringPipeline       model(question, passage) is a SpanAnswer
    memory network       StoryPipeline           model(sentences, question) is an Answer, a str
    masked-word model    FillingPipeline         model("A [MASK] text.").gaps are words with probabilities
    causal model         GenerationPipeline      model("Once upon") is a Generated, a str
    encoder, no head     EmbeddingPipeline       model(text) is a vector
    ELMo-like model      FeaturePipeline         model(text).layers are features of words

Names are resolved on first use, so that `import regard` costs no import of torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import regard.machine  # noqa: F401  # sets how OpenMP threads wait, which must be done before torch is imported

if TYPE_CHECKING:
    from regard.attention.attend import attend
    from regard.attention.intervention import off
    from regard.attention.trace import trace
    from regard.config.decoding import DecodingConfig
    from regard.config.model import TranslatorConfig
    from regard.config.run import RunConfig
    from regard.config.training import TrainingConfig
    from regard.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        DiskError,
        RegardError,
        TrainingError,
        UsageError,
    )
    from regard.pipeline import (
        Answer,
        AnsweringPipeline,
        ClassificationPipeline,
        Embedded,
        EmbeddingPipeline,
        FeaturePipeline,
        Filled,
        FillingPipeline,
        Generated,
        GenerationPipeline,
        Label,
        SpanAnswer,
        StoryPipeline,
        TaggedText,
        TaggingPipeline,
        TextFeatures,
        Translation,
        TranslationPipeline,
        load,
        train,
    )
    from regard.pipeline.showing import see
    from regard.pipeline.watching import watch
    from regard.text.tokenizer import Tokenizer

__version__ = "0.1.0"

# torch keeps up to 1,024 prepared matrix products of each kind, some megabytes each; training meets ever new shapes.
# Fewer are as fast and keep a small model's training at a fraction of the memory. Read by torch on its first product.
for _capacity in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_capacity, "128")

__all__ = [
    "Answer",
    "AnsweringPipeline",
    "CheckpointError",
    "ClassificationPipeline",
    "ConfigError",
    "DataError",
    "DecodingConfig",
    "DiskError",
    "Embedded",
    "EmbeddingPipeline",
    "FeaturePipeline",
    "Filled",
    "FillingPipeline",
    "Generated",
    "GenerationPipeline",
    "Label",
    "RegardError",
    "RunConfig",
    "SpanAnswer",
    "StoryPipeline",
    "TaggedText",
    "TaggingPipeline",
    "TextFeatures",
    "Tokenizer",
    "TrainingConfig",
    "TrainingError",
    "Translation",
    "TranslationPipeline",
    "TranslatorConfig",
    "UsageError",
    "attend",
    "load",
    "off",
    "see",
    "trace",
    "train",
    "watch",
]

_HOMES = {
    "Answer": "pipeline",
    "AnsweringPipeline": "pipeline",
    "CheckpointError": "errors",
    "ClassificationPipeline": "pipeline",
    "ConfigError": "errors",
    "DataError": "errors",
    "DecodingConfig": "config.decoding",
    "DiskError": "errors",
    "Embedded": "pipeline",
    "EmbeddingPipeline": "pipeline",
    "FeaturePipeline": "pipeline",
    "Filled": "pipeline",
    "FillingPipeline": "pipeline",
    "Generated": "pipeline",
    "GenerationPipeline": "pipeline",
    "Label": "pipeline",
    "RegardError": "errors",
    "RunConfig": "config.run",
    "SpanAnswer": "pipeline",
    "StoryPipeline": "pipeline",
    "TaggedText": "pipeline",
    "TaggingPipeline": "pipeline",
    "TextFeatures": "pipeline",
    "Tokenizer": "text.tokenizer",
    "TrainingConfig": "config.training",
    "TrainingError": "errors",
    "Translation": "pipeline",
    "TranslationPipeline": "pipeline",
    "TranslatorConfig": "config.model",
    "UsageError": "errors",
    "attend": "attention.attend",
    "load": "pipeline",
    "off": "attention.intervention",
    "see": "pipeline.showing",
    "trace": "attention.trace",
    "train": "pipeline",
    "watch": "pipeline.watching",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"regard.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
