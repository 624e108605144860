"""Text in, answer out, and on request where the model looked."""

from regard.pipeline.answering import AnsweringPipeline, SpanAnswer
from regard.pipeline.classification import ClassificationPipeline, Label
from regard.pipeline.embedding import Embedded, EmbeddingPipeline, Near, nearest_rows
from regard.pipeline.features import FeaturePipeline, TextFeatures
from regard.pipeline.filling import Fill, Filled, FillingPipeline
from regard.pipeline.folders import (
    load,
    load_answerer,
    load_classifier,
    load_embedder,
    load_features,
    load_filler,
    load_generator,
    load_stories,
    load_tagger,
    load_translator,
    train,
)
from regard.pipeline.generation import Generated, GenerationPipeline
from regard.pipeline.parts import Part
from regard.pipeline.seeing import Sight
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
