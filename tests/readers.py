"""Small folders of language models, for tests of those who use them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.checkpoint.reader_folder import save_reader
from regard.config.data import TokenizerConfig
from regard.config.model import ElmoConfig
from regard.models import build
from regard.models.base import start_weights
from regard.text.learn import learn


def saved_elmo(folder: Path, texts: Sequence[str], width: int = 5) -> Path:
    """Write a language model with weights by chance and a tokenizer learned from the texts."""
    tokenizer = learn([*texts] * 3, TokenizerConfig())
    config = ElmoConfig(vocabulary=tokenizer.size, width=width, boundary=tokenizer.end)
    model = build(config)
    start_weights(model, 1)
    facts = {"step": 1, "data": {}, "metrics": {}}
    save_reader(folder, config, model.state_dict(), tokenizer=tokenizer, task="language", facts=facts, card="")
    return folder
