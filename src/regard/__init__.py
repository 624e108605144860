"""Attention models on your own text: train, run and visualise them.

    model = regard.load("runs/en-de")
    translation = model("Two dogs run in the snow.")
    print(translation, translation.score, translation.alignment)

`load` opens run directories, model folders and models of the hub by name. Its result is called with a text:

    translation          TranslationPipeline          model(text) is a Translation, a str
    classification       ClassificationPipeline       model(text) is a Label, a str
    tagging              TokenClassificationPipeline  model(text).entities are exact spans of the text
    question answering   QuestionAnsweringPipeline    model(question, passage) is an Answer, a span of the passage
    story QA             StoryQAPipeline              model(sentences, question) is a StoryAnswer, a str
    masked LM            FillMaskPipeline             model("A [MASK] text.").masks are predictions for each mask
    causal LM            GenerationPipeline           model("Once upon") is a Generation, a str
    encoder, no head     EmbeddingPipeline            model(text) is a vector
    ELMo                 FeaturePipeline              model(text).layers are features of the words

`regard.nn` has parts for custom models and training loops, `regard.search` generates with them.

Names are resolved on first use, so that `import regard` does not import torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import regard.hardware  # noqa: F401  # limits OpenMP spinning, which works only before torch is imported

if TYPE_CHECKING:
    from regard import nn as nn
    from regard import search as search
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
    from regard.pipeline.translation import TranslationPipeline
    from regard.pipeline.translation_result import Translation
    from regard.plugins import register
    from regard.text.tokenizer import Tokenizer
    from regard.view.export import see

__version__ = "0.1.0"

# oneDNN caches up to 1,024 primitives of each kind, some megabytes each, and training produces ever new shapes. A
# smaller cache is as fast and needs a fraction of the memory. torch reads the variables on its first matrix product.
for _variable in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, "128")

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
    "register",
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
    "Translation": "pipeline.translation_result",
    "TranslationPipeline": "pipeline.translation",
    "UsageError": "errors",
    "ablate": "attention.intervention",
    "attend": "attention.attend",
    "load": "pipeline.load",
    "register": "plugins",
    "see": "view.export",
    "trace": "attention.trace",
    "trace_module": "interpret.hooks",
    "train": "pipeline.loaders",
}


_LAZY_MODULES = ("nn", "search")  # public modules, imported on first use


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(f"regard.{name}")
    if name not in _LAZY_EXPORTS:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    module = importlib.import_module(f"regard.{_LAZY_EXPORTS[name]}")
    export = getattr(module, name)
    globals()[name] = export
    return export


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LAZY_MODULES})
