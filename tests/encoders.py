"""Small encoder folders for tests of fine-tuning and inference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from regard.checkpoint.encoder_dir import save_encoder
from regard.config.data import TokenizerConfig
from regard.config.models import BertConfig, StackConfig
from regard.models.bert import Bert, initialize_bert
from regard.text.train import train_masked_tokenizer, train_wordpiece


def saved_encoder(
    folder: Path, texts: Sequence[str], *, hidden_size: int = 32, max_positions: int = 64, kind: str = "words"
) -> Path:
    """Write a small encoder with random weights and a tokenizer trained on the texts."""
    tokenizer = train_masked_tokenizer([*texts] * 3, TokenizerConfig(kind=kind))
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=2 * hidden_size)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=hidden_size,
        stack=stack,
        max_positions=max_positions,
        dropout=0.0,
        attention_dropout=0.0,
    )
    model = Bert(config.override({"classifier_dropout": 0.0}))
    initialize_bert(model, 1, 0.1)
    save_encoder(folder, model.config, model.state_dict(), tokenizer=tokenizer, task="", metadata={}, card="")
    return folder


def save_random_hf_bert(folder: Path, architecture: str, texts: Sequence[str]) -> Path:
    """Write a random model as transformers saves it, with large weights: small ones hide errors."""
    import transformers

    tokenizer = train_wordpiece(texts, TokenizerConfig(lowercase=True, vocab_size=90))
    config = transformers.BertConfig(
        vocab_size=96,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=24,
        initializer_range=0.3,
    )
    torch.manual_seed(1)
    getattr(transformers, architecture)(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    return folder
