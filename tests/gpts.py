"""Small GPT folders for tests of fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.checkpoint.causal_dir import save_causal_lm
from regard.checkpoint.tokenizer_files import END_OF_TEXT
from regard.config.data import TokenizerConfig
from regard.config.models import GptConfig, StackConfig
from regard.models.base import initialize_weights
from regard.models.gpt import Gpt
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer


def saved_gpt(folder: Path, texts: Sequence[str], *, has_pad: bool = True, **changes: Any) -> Path:
    """Write a small GPT with random weights and a byte-level tokenizer trained on the texts.

    Without `has_pad` the tokenizer is like that of GPT-2, whose only special token ends texts.
    """
    tokenizer = train_tokenizer([*texts] * 3, TokenizerConfig(vocab_size=360)).without_special_tokens()
    if not has_pad:
        tokenizer = with_end_of_text_alone(tokenizer)
    config = GptConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        stack=StackConfig(num_layers=2, num_heads=2, feed_forward_size=64),
        max_positions=64,
        positions="learned",
        dropout=0.0,
        eos_id=tokenizer.eos_id,
    )
    model = Gpt(config.override(changes))
    initialize_weights(model, 1)
    save_causal_lm(folder, model.config, model.state_dict(), tokenizer=tokenizer, metadata={}, card="")
    return folder


def with_end_of_text_alone(tokenizer: Tokenizer) -> Tokenizer:
    """The byte-level tokenizer with `<|endoftext|>` as only special token."""
    content = json.loads(tokenizer.to_json())
    special_tokens = [token["content"] for token in content["added_tokens"]]
    subwords = [subword for subword in content["model"]["vocab"] if subword not in special_tokens]
    content["model"]["vocab"] = {subword: index for index, subword in enumerate([END_OF_TEXT, *subwords])}
    content["model"]["unk_token"] = None
    content["added_tokens"] = [{**content["added_tokens"][0], "id": 0, "content": END_OF_TEXT}]
    return Tokenizer.from_json(json.dumps(content), where="this tokenizer")
