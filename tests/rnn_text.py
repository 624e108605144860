"""Small folders of language models, for tests of those who use them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.checkpoint.native import save_rnn_text
from regard.config.data import TokenizerConfig
from regard.config.rnn_models import ElmoConfig
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.text.train import train_tokenizer


def saved_elmo(folder: Path, texts: Sequence[str], width: int = 5) -> Path:
    """Write a language model with weights by chance and a tokenizer learned from the texts."""
    tokenizer = train_tokenizer([*texts] * 3, TokenizerConfig())
    config = ElmoConfig(vocab_size=tokenizer.vocab_size, hidden_size=width, boundary_id=tokenizer.eos_id)
    model = build_model(config)
    initialize_weights(model, 1)
    facts = {"step": 1, "data": {}, "metrics": {}}
    save_rnn_text(folder, config, model.state_dict(), tokenizer=tokenizer, task="language", facts=facts, card="")
    return folder
