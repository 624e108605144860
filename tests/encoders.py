"""Small folders of encoders, for tests of those who fine-tune and use them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.checkpoint.encoder_folder import save_encoder
from regard.config.data import TokenizerConfig
from regard.config.model import EncoderConfig, StackConfig
from regard.models.encoder import Encoder, start_encoder
from regard.text.framing import with_marks
from regard.text.learn import learn


def saved_encoder(folder: Path, texts: Sequence[str], *, width: int = 32, places: int = 64) -> Path:
    """Write a small encoder with weights by chance and a tokenizer of words learned from the texts."""
    tokenizer = with_marks(learn([*texts] * 3, TokenizerConfig(kind="words")))
    stack = StackConfig(layers=2, heads=2, feedforward=2 * width)
    config = EncoderConfig(
        vocabulary=tokenizer.size, width=width, stack=stack, places=places, dropout=0.0, attention_dropout=0.0
    )
    model = Encoder(config.override({"head_dropout": 0.0}))
    start_encoder(model, 1, 0.1)
    save_encoder(folder, model.config, model.state_dict(), tokenizer=tokenizer, task="", facts={}, card="")
    return folder
