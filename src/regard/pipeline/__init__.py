"""Text in, translation out, and on request where the model looked."""

from regard.pipeline.folders import load, train
from regard.pipeline.parts import Part
from regard.pipeline.seeing import Sight
from regard.pipeline.translation import Scored, Translation, TranslationPipeline

__all__ = ["Part", "Scored", "Sight", "Translation", "TranslationPipeline", "load", "train"]
