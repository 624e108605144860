"""What a model is made of: the config of every family, each declared in a file of its own."""

from regard.config.elmo import ELMO_PRESETS, ElmoConfig
from regard.config.encoder import ENCODER_HEADS, ENCODER_PRESETS, SIGHTS, EncoderConfig
from regard.config.gpt import GPT_PRESETS, GptConfig
from regard.config.memory import UNSEEN, MemoryConfig, MemoryTrainingConfig
from regard.config.reader import POOLINGS, READER_PRESETS, ClassifierConfig, ReaderConfig, TaggerConfig
from regard.config.recurrent import CELLS, HARD, RECURRENT_PRESETS, SCORES, RecurrentConfig
from regard.config.stack import ACTIVATIONS, StackConfig
from regard.config.translator import POSITIONS, TRANSLATOR_PRESETS, TranslatorConfig

WritingConfig = TranslatorConfig | RecurrentConfig  # models that read one text and write another

__all__ = [
    "ACTIVATIONS",
    "CELLS",
    "ELMO_PRESETS",
    "ENCODER_HEADS",
    "ENCODER_PRESETS",
    "GPT_PRESETS",
    "HARD",
    "POOLINGS",
    "POSITIONS",
    "READER_PRESETS",
    "RECURRENT_PRESETS",
    "SCORES",
    "SIGHTS",
    "TRANSLATOR_PRESETS",
    "UNSEEN",
    "ClassifierConfig",
    "ElmoConfig",
    "EncoderConfig",
    "GptConfig",
    "MemoryConfig",
    "MemoryTrainingConfig",
    "ReaderConfig",
    "RecurrentConfig",
    "StackConfig",
    "TaggerConfig",
    "TranslatorConfig",
    "WritingConfig",
]
