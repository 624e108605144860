"""Settings of Transformer blocks, one row each: what a setting changes, what can be learned, and who else has it.

Every column is required, so that a setting without a test is an error here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint.causal_dir import load_causal_lm, save_causal_lm
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.model_dir import load_translator, save_translator
from regard.config.inference import DecodingConfig
from regard.config.models import BertConfig, GptConfig, TransformerConfig
from regard.models import build_model
from regard.text.tokenizer import Tokenizer

CONFIGS: dict[str, type[Any]] = {"transformer": TransformerConfig, "bert": BertConfig, "gpt": GptConfig}
# The rows change this model in all families. BERT has one layer with global and one with local attention.
BASE = {"norm_placement": "pre", "positions": "sinusoidal", "stack.num_layers": 2, "stack.num_heads": 2}
VOCAB_SIZE = 23

# Mean probability of the tokens of a copy, at least and at most; chance is 0.2.
Bounds = tuple[float, float]
LEARNED: Bounds = (0.9, 1.0)
SLOWLY: Bounds = (0.7, 1.0)  # of models that need more updates than a test has
PARTLY: Bounds = (0.4, 1.0)  # the digits; their order needs more updates than a test has
UNORDERED: Bounds = (0.4, 0.75)  # the digits, not their order
CHANCE: Bounds = (0.15, 0.3)

QKV = "*attention.qkv.*"
CROSS_QUERY = "*cross_attention.query.*"
CROSS_KEY_VALUE = "*cross_attention.key_value.*"
OUT = "*attention.out.weight"
BLOCK_NORMS = "*.layers.*_norm.*"
FINAL_NORM = "*.final_norm.*"
Settings = dict[str, Any]
Refusals = tuple[tuple[Settings, str], ...]
UNKNOWN_POSITIONS: Refusals = (({"positions": "absolute"}, "positions must be one of sinusoidal, "),)
UNKNOWN_PLACEMENT: Refusals = (
    ({"norm_placement": "middle"}, "norm_placement must be one of pre, post, both, none, not 'middle'"),
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A setting of the base model, by the names of encoders and causal models, and what must follow from it."""

    settings: Settings
    weights: tuple[str, ...]  # patterns of exactly those weights that get another shape, appear or disappear
    copy: dict[str, Bounds]  # how well a model of each family learns to copy
    engine: str  # why the engine leaves it to torch; empty where it computes it
    huggingface: tuple[str, ...]  # families that transformers has with it
    ctranslate2: bool  # whether CTranslate2 has it
    refused: Refusals  # further settings that make no sense with it, or of it; and the message

    def __str__(self) -> str:
        return ",".join(f"{name.removeprefix('stack.')}={value}" for name, value in self.settings.items()) or "base"


def copied(transformer: Bounds = LEARNED, bert: Bounds = LEARNED, gpt: Bounds = LEARNED) -> dict[str, Bounds]:
    return {"transformer": transformer, "bert": bert, "gpt": gpt}


PARTS = [
    Part(
        settings={},
        weights=(),
        copy=copied(),
        engine="",
        huggingface=("transformer", "bert", "gpt"),
        ctranslate2=True,
        refused=(({"stack.num_heads": 5}, r"num_heads \(5\) must divide hidden_size"),),
    ),
    Part(
        settings={"stack.attention_scale": 1.0},
        weights=(),
        copy=copied(transformer=SLOWLY),
        engine="",
        huggingface=(),
        ctranslate2=False,
        refused=(({"stack.attention_scale": -1.0}, r"attention_scale \(-1.0\) must be at least 0"),),
    ),
    Part(
        settings={"stack.head_size": 10},
        weights=(QKV, CROSS_QUERY, CROSS_KEY_VALUE, OUT),
        copy=copied(),
        engine="",
        huggingface=(),
        ctranslate2=False,
        refused=(
            ({"stack.head_size": -1}, r"head_size \(-1\) must be at least 1"),
            ({"stack.head_size": 5, "positions": "rotary"}, "rotary positions need an even head size, not .*head_size"),
        ),
    ),
    Part(
        settings={"stack.value_size": 5},
        weights=(QKV, CROSS_KEY_VALUE, OUT),
        copy=copied(),
        engine="",
        huggingface=(),
        ctranslate2=False,
        refused=(({"stack.value_size": -1}, r"value_size \(-1\) must be at least 1"),),
    ),
    Part(
        settings={"stack.residual": False},
        weights=(),
        copy=copied(transformer=SLOWLY, bert=SLOWLY),
        engine="",
        huggingface=(),
        ctranslate2=False,
        refused=(({"stack.residual": 2}, "residual must be true or false, not 2"),),
    ),
    Part(
        settings={"stack.attention_temperature": 2.0},
        weights=(),
        copy=copied(),
        engine="",
        huggingface=(),
        ctranslate2=False,
        refused=(
            ({"stack.attention_temperature": 0.0}, r"attention_temperature \(0.0\) must be at least 0.001"),
            ({"stack.attention_normalization": "uniform"}, r"temperature \(2\) means nothing to equal weights"),
        ),
    ),
    Part(
        settings={"stack.attention_normalization": "sparsemax"},
        weights=(),
        copy=copied(transformer=SLOWLY),
        engine="it has no sparsemax attention",
        huggingface=(),
        ctranslate2=False,
        refused=(
            ({"stack.attention_normalization": "softmin"}, r"must be one of softmax, .*not 'softmin'"),
            ({"stack.attention_top_k": 3}, r"attention_top_k \(3\) is for top-k attention: .* not sparsemax"),
        ),
    ),
    Part(
        settings={"stack.attention_normalization": "top-k", "stack.attention_top_k": 2},
        weights=(),
        copy=copied(),
        engine="it has no top-k attention",
        huggingface=(),
        ctranslate2=False,
        refused=(
            ({"stack.attention_top_k": 0}, r"attention_top_k \(0\) must be at least 1"),
            ({"stack.attention_normalization": "softmax"}, r"attention_top_k \(2\) is for top-k .* not softmax"),
        ),
    ),
    Part(
        settings={"stack.attention_normalization": "uniform"},
        weights=(),
        copy=copied(transformer=SLOWLY, bert=PARTLY, gpt=SLOWLY),
        engine="it has no uniform attention",
        huggingface=(),
        ctranslate2=False,
        refused=(({"stack.attention_temperature": 0.5}, r"temperature \(0.5\) means nothing to equal weights"),),
    ),
    Part(
        settings={"norm_placement": "post"},
        weights=(FINAL_NORM,),
        copy=copied(),
        engine="",
        huggingface=("transformer", "bert"),
        ctranslate2=True,
        refused=UNKNOWN_PLACEMENT,
    ),
    Part(
        settings={"norm_placement": "both"},
        weights=("*_output_norm.*",),
        copy=copied(),
        engine="",
        huggingface=(),
        ctranslate2=False,
        refused=UNKNOWN_PLACEMENT,
    ),
    Part(
        settings={"norm_placement": "none"},
        weights=(BLOCK_NORMS, FINAL_NORM),
        copy=copied(),
        engine="",
        huggingface=(),
        ctranslate2=False,
        refused=UNKNOWN_PLACEMENT,
    ),
    Part(
        settings={"attention_window": 1},
        weights=(),
        copy=copied(gpt=CHANCE),  # a copied token is more than two layers' windows away
        engine="",
        huggingface=(),
        ctranslate2=False,
        refused=(({"attention_window": -1}, r"attention_window \(-1\) must be at least 0"),),
    ),
    Part(
        settings={"positions": "learned"},
        weights=("*position*.weight",),
        copy=copied(),
        engine="",
        huggingface=("bert", "gpt"),
        ctranslate2=True,
        refused=UNKNOWN_POSITIONS,
    ),
    Part(
        settings={"positions": "interleaved"},
        weights=(),
        copy=copied(),
        engine="it has no interleaved positions",
        huggingface=(),
        ctranslate2=False,
        refused=UNKNOWN_POSITIONS,
    ),
    Part(
        settings={"positions": "concatenated"},
        weights=("*position*.projection.weight",),
        copy=copied(),
        engine="it has no concatenated positions",
        huggingface=(),
        ctranslate2=False,
        refused=UNKNOWN_POSITIONS,
    ),
    Part(
        settings={"positions": "relative"},
        weights=("*position*.relative_attention_bias.weight",),
        copy=copied(),
        engine="",
        huggingface=(),
        ctranslate2=False,
        refused=UNKNOWN_POSITIONS,
    ),
    Part(
        settings={"positions": "alibi"},
        weights=(),
        copy=copied(transformer=UNORDERED, bert=UNORDERED, gpt=SLOWLY),  # distances have no direction
        engine="",
        huggingface=(),
        ctranslate2=False,
        refused=UNKNOWN_POSITIONS,
    ),
    Part(
        settings={"positions": "rotary"},
        weights=(),
        copy=copied(),
        engine="",
        huggingface=("gpt",),
        ctranslate2=False,
        refused=(({"stack.head_size": 5}, "rotary positions need an even head size, not .*head_size 5"),),
    ),
    Part(
        settings={"positions": "none"},
        weights=(),
        copy=copied(transformer=UNORDERED, bert=UNORDERED, gpt=SLOWLY),  # a causal model counts tokens without them
        engine="",
        huggingface=(),
        ctranslate2=True,
        refused=UNKNOWN_POSITIONS,
    ),
]
PARTS_OF_THE_ENGINE = [part for part in PARTS if not part.engine]


def family_settings(family: str, settings: Settings) -> Settings:
    """Settings by the names of a family: those of the stack are settings of both stacks of a Transformer."""
    if family != "transformer":
        return dict(settings)
    renamed: Settings = {}
    for name, value in settings.items():
        inner = name.removeprefix("stack.")
        renamed |= {name: value} if inner == name else {f"encoder.{inner}": value, f"decoder.{inner}": value}
    return renamed


def build_config(
    family: str,
    settings: Settings,
    *,
    vocab_size: int = VOCAB_SIZE,
    hidden_size: int = 12,
    feed_forward_size: int = 20,
) -> Any:
    """Config of a small model; `settings` come before those of the base model."""
    is_translator = family == "transformer"
    vocabularies = ("source_vocab_size", "target_vocab_size") if is_translator else ("vocab_size",)
    sizes = {"hidden_size": hidden_size, "stack.feed_forward_size": feed_forward_size, "max_positions": 40}
    changes = {**dict.fromkeys(vocabularies, vocab_size), **sizes, **BASE, **settings}
    return CONFIGS[family]().override(family_settings(family, changes))


def build(family: str, settings: Settings, **sizes: int) -> Any:
    """A small model with large random weights, so that a mistake shows."""
    model = build_model(build_config(family, settings, **sizes))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter.normal_(0, 0.4, generator=generator)
    return model.eval()


def save_folder(folder: Path, model: Any, tokenizer: Tokenizer) -> None:
    """Write the folder of a model of any family."""
    texts: dict[str, Any] = {"metadata": {}, "card": ""}
    weights = model.state_dict()
    match model.config.family:
        case "transformer":
            pair = {"source": tokenizer, "target": tokenizer}
            save_translator(folder, model.config, weights, tokenizers=pair, decoding=DecodingConfig(), **texts)
        case "bert":
            save_encoder(folder, model.config, weights, tokenizer=tokenizer, task="", **texts)
        case "gpt":
            save_causal_lm(folder, model.config, weights, tokenizer=tokenizer, **texts)


LOADERS: dict[str, Any] = {"transformer": load_translator, "bert": load_encoder, "gpt": load_causal_lm}
