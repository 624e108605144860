"""Small translation models with large random weights, with sentences and tokenizers, for tests of model folders."""

from __future__ import annotations

import functools
import gzip
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.checkpoint.model_dir import save_translator
from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import StackConfig, TransformerConfig
from regard.decoding.search import search
from regard.models.transformer import Transformer
from regard.packed_tokens import Tokens
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer

MULTI30K = Path(__file__).parents[3] / "shared" / "data" / "multi30k"
TEXTS = {
    "source": "two dogs run in the snow while a small girl with red shoes looks at them from her old house",
    "target": "zwei hunde laufen im schnee während ein kleines mädchen mit roten schuhen ihnen zusieht",
}


def random_sentences(side: str, count: int, seed: int = 0) -> list[str]:
    """Sentences of random words from the text of one side."""
    rng = random.Random(f"{side} {seed}")
    words = TEXTS[side].split()
    return [" ".join(rng.choices(words, k=rng.randint(1, 9))).capitalize() + "." for _ in range(count)]


def read_multi30k(name: str, count: int) -> list[str]:
    """Read the first lines of a Multi30k file; skip the test where the corpus is absent."""
    if not (MULTI30K / name).exists():
        pytest.skip("../shared/data/multi30k is absent")
    text = gzip.decompress((MULTI30K / name).read_bytes()).decode()
    return text.split("\n")[:count]


@functools.cache
def train_on_sentences(sides: tuple[str, ...], vocab_size: int) -> Tokenizer:
    """Train a tokenizer on random sentences of one side or of both."""
    texts = []
    for side in sides:
        texts += random_sentences(side, 300)
    return train_tokenizer(texts, TokenizerConfig(vocab_size=vocab_size))


def tokenizers(shared: bool) -> dict[str, Tokenizer]:
    """Source and target tokenizer: the same one, or two with different vocabulary sizes."""
    if shared:
        tokenizer = train_on_sentences(("source", "target"), 331)
        return {"source": tokenizer, "target": tokenizer}
    return {
        "source": train_on_sentences(("source",), 293),
        "target": train_on_sentences(("target",), 307),
    }


def small_config(**changes: Any) -> TransformerConfig:
    """Config of a small model; `changes` replace fields."""
    trained = tokenizers(changes.get("share_embeddings", True))
    defaults = {
        "source_vocab_size": trained["source"].vocab_size,
        "target_vocab_size": trained["target"].vocab_size,
        "hidden_size": 22,
        "encoder": StackConfig(num_layers=2, num_heads=2, feed_forward_size=31),
        "decoder": StackConfig(num_layers=3, num_heads=11, feed_forward_size=37),
        "max_positions": 61,
    }
    return TransformerConfig(**{**defaults, **changes})


def random_model(config: TransformerConfig, seed: int = 0) -> Transformer:
    """Build a model with large weights: small ones hide errors and yield the same translation for all texts."""
    model = Transformer(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.5 if parameter.dim() > 1 else 0.15, generator=generator)
            parameter *= 4 if "cross_attention.out" in name or "cross_attention.key_value" in name else 1
            parameter += name.endswith("norm.weight")
    return model


def save(folder: Path, model: Transformer, **changes: Any) -> None:
    """Save a model in a folder; `changes` replace arguments of `save_translator`."""
    defaults: Mapping[str, Any] = {
        "tokenizers": tokenizers(model.config.share_embeddings),
        "decoding": DecodingConfig(beam=3, length_penalty=0.7),
        "metadata": {"step": 7},
        "card": "# A small model\n",
    }
    save_translator(folder, model.config, model.state_dict(), **{**defaults, **changes})


def translate_greedily(model: Transformer, rows: list[list[int]], max_length: int) -> list[list[int]]:
    """Translate source sequences greedily; the end token is left out."""
    beams = search(model, Tokens.from_rows(rows), DecodingConfig(beam=1), max_lengths=[max_length] * len(rows))
    return [hypotheses[0].ids for hypotheses in beams]


@torch.no_grad()
def compute_logits(model: Transformer, source: list[int], target: list[int]) -> torch.Tensor:
    """Logits of the token after each target token, [target tokens, vocabulary]."""
    hidden = model(Tokens.from_rows([source]), Tokens.from_rows([target]))
    return hidden @ model.output_weight.T + (0 if model.lm_head_bias is None else model.lm_head_bias)
