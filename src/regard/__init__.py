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

import regard.hardware  # noqa: F401  # sets how OpenMP threads wait, which must be done before torch is imported

if TYPE_CHECKING:
    from regard.attention.attend import attend
    from regard.attention.intervention import ablate
    from regard.attention.trace import trace
    from regard.config.inference import DecodingConfig
    from regard.config.models import TransformerConfig
    from regard.config.runs import RunConfig
    from regard.config.training import TrainingConfig
    from regard.errors import CheckpointError, ConfigError, DataError, DiskError, RegardError, TrainingError, UsageError
    from regard.interpret.hooks import trace_module
    from regard.pipeline.classification import ClassificationPipeline, Label
    from regard.pipeline.embedding import EmbeddingPipeline, Embeddings
    from regard.pipeline.features import FeaturePipeline, TextFeatures
    from regard.pipeline.fill_mask import FilledText, FillMaskPipeline
    from regard.pipeline.generation import Generation, GenerationPipeline
    from regard.pipeline.load import load
    from regard.pipeline.loaders import train
    from regard.pipeline.question_answering import Answer, QuestionAnsweringPipeline
    from regard.pipeline.story_qa import StoryAnswer, StoryQAPipeline
    from regard.pipeline.tagging import TaggedText, TokenClassificationPipeline
    from regard.pipeline.translation import Translation, TranslationPipeline
    from regard.text.tokenizer import Tokenizer
    from regard.view.export import see

__version__ = "0.1.0"

# torch keeps up to 1,024 prepared matrix products of each kind, some megabytes each; training meets ever new shapes.
# Fewer are as fast and keep a small model's training at a fraction of the memory. Read by torch on its first product.
for _capacity in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_capacity, "128")

__all__ = [
    "Answer",
    "CheckpointError",
    "ClassificationPipeline",
    "ConfigError",
    "DataError",
    "DecodingConfig",
    "DiskError",
    "EmbeddingPipeline",
    "Embeddings",
    "FeaturePipeline",
    "FillMaskPipeline",
    "FilledText",
    "Generation",
    "GenerationPipeline",
    "Label",
    "QuestionAnsweringPipeline",
    "RegardError",
    "RunConfig",
    "StoryAnswer",
    "StoryQAPipeline",
    "TaggedText",
    "TextFeatures",
    "TokenClassificationPipeline",
    "Tokenizer",
    "TrainingConfig",
    "TrainingError",
    "TransformerConfig",
    "Translation",
    "TranslationPipeline",
    "UsageError",
    "ablate",
    "attend",
    "load",
    "see",
    "trace",
    "trace_module",
    "train",
]

_LAZY_EXPORTS = {  # public name → module
    "Answer": "pipeline.question_answering",
    "CheckpointError": "errors",
    "ClassificationPipeline": "pipeline.classification",
    "ConfigError": "errors",
    "DataError": "errors",
    "DecodingConfig": "config.inference",
    "DiskError": "errors",
    "EmbeddingPipeline": "pipeline.embedding",
    "Embeddings": "pipeline.embedding",
    "FeaturePipeline": "pipeline.features",
    "FillMaskPipeline": "pipeline.fill_mask",
    "FilledText": "pipeline.fill_mask",
    "Generation": "pipeline.generation",
    "GenerationPipeline": "pipeline.generation",
    "Label": "pipeline.classification",
    "QuestionAnsweringPipeline": "pipeline.question_answering",
    "RegardError": "errors",
    "RunConfig": "config.runs",
    "StoryAnswer": "pipeline.story_qa",
    "StoryQAPipeline": "pipeline.story_qa",
    "TaggedText": "pipeline.tagging",
    "TextFeatures": "pipeline.features",
    "TokenClassificationPipeline": "pipeline.tagging",
    "Tokenizer": "text.tokenizer",
    "TrainingConfig": "config.training",
    "TrainingError": "errors",
    "TransformerConfig": "config.models",
    "Translation": "pipeline.translation",
    "TranslationPipeline": "pipeline.translation",
    "UsageError": "errors",
    "ablate": "attention.intervention",
    "attend": "attention.attend",
    "load": "pipeline.load",
    "see": "view.export",
    "trace": "attention.trace",
    "trace_module": "interpret.hooks",
    "train": "pipeline.loaders",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_EXPORTS:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"regard.{_LAZY_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
