"""Small ELMo folders for tests of models that use their features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.checkpoint.native import save_text_model
from regard.config.data import TokenizerConfig
from regard.config.rnn_models import ElmoConfig
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.text.train import train_tokenizer


def saved_elmo(folder: Path, texts: Sequence[str], hidden_size: int = 5) -> Path:
    """Write an ELMo model with random weights and a tokenizer trained on the texts."""
    tokenizer = train_tokenizer([*texts] * 3, TokenizerConfig())
    config = ElmoConfig(vocab_size=tokenizer.vocab_size, hidden_size=hidden_size, boundary_id=tokenizer.eos_id)
    model = build_model(config)
    initialize_weights(model, 1)
    metadata = {"step": 1, "data_digests": {}, "metrics": {}}
    save_text_model(folder, config, model.state_dict(), tokenizer=tokenizer, task="elmo", metadata=metadata, card="")
    return folder
