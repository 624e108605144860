"""Model folders with random weights, for measurements that do not depend on what a model has learned."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers import workload
from regard.checkpoint.model_dir import save_translator
from regard.config.inference import DecodingConfig
from regard.config.models import TransformerConfig
from regard.models import build_model
from regard.models.base import initialize_weights


def save_random_translator(folder: Path, config: TransformerConfig, decoding: DecodingConfig, card: str = "") -> Path:
    """Write a translator between synthetic words, the same on both sides."""
    model = build_model(config)
    initialize_weights(model, 1)
    tokenizer = workload.build_tokenizer(config.source_vocab_size)
    save_translator(
        folder,
        config,
        model.state_dict(),
        tokenizers={"source": tokenizer, "target": tokenizer},
        decoding=decoding,
        metadata={},
        card=card,
    )
    return folder
