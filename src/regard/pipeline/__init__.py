"""Text in, answer out, and on request where the model looked."""

from regard.pipeline.classification import ClassificationPipeline, Label
from regard.pipeline.features import FeaturePipeline, TextFeatures
from regard.pipeline.folders import load, load_classifier, load_features, load_stories, load_translator, train
from regard.pipeline.parts import Part
from regard.pipeline.seeing import Sight
from regard.pipeline.stories import Answer, Looked, StoryPipeline
from regard.pipeline.translation import Scored, Translation, TranslationPipeline

__all__ = [
    "Answer",
    "ClassificationPipeline",
    "FeaturePipeline",
    "Label",
    "Looked",
    "Part",
    "Scored",
    "Sight",
    "StoryPipeline",
    "TextFeatures",
    "Translation",
    "TranslationPipeline",
    "load",
    "load_classifier",
    "load_features",
    "load_stories",
    "load_translator",
    "train",
]
