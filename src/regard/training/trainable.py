"""Which parameters of a model are trained: frozen ones, LoRA, and the learning rate of each layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from regard.checkpoint.hf.causal import has_scaled_scores
from regard.config.models import HEAD_PREFIXES
from regard.config.training import LoraConfig, TrainableConfig
from regard.errors import ConfigError, nearest
from regard.models.base import Model
from regard.models.layers.lora import LoraSettings, add_lora, is_lora_weight

OUTPUT_PREFIX = "lm_head"  # of the output projection of language models and decoders
# Learning rate with LoRA where the user sets none: ten times that of full fine-tuning.
LORA_LEARNING_RATE_SCALE = 220.0  # over the squared hidden size
MAX_LORA_LEARNING_RATE = 2e-3
_LAYER = re.compile(r"(\w+\.layers\.\d+)\.")


@dataclass(frozen=True)
class Trainable:
    """A model whose frozen parameters need no gradient, and what is known about those that are trained."""

    model: Model
    learning_rate_scales: Mapping[str, float] | None  # factor of the learning rate by weight name; None: all are 1
    description: str  # for the user; empty where all is trained


def select_trainable(
    model: Model, config: TrainableConfig, lora: LoraConfig, *, seed: int, trained: Sequence[str] = ()
) -> Trainable:
    """Freeze parameters, add LoRA, and scale the learning rates of layers, all in place.

    With LoRA, parameters whose names begin with one of `trained` are trained besides LoRA.

    >>> from regard.config.models import BertConfig, StackConfig
    >>> from regard.models.bert import Bert
    >>> stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=8)
    >>> model = Bert(BertConfig(vocab_size=11, hidden_size=4, stack=stack, head="label", num_labels=3))
    >>> trainable = select_trainable(model, TrainableConfig(freeze="*embedding*,encoder.*"), LoraConfig(), seed=1)
    >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ['pooler.weight', 'pooler.bias', 'classifier.weight', 'classifier.bias']
    >>> trainable.description
    'trained: 35 of 2,315 parameters; frozen: *embedding*,encoder.*'
    """
    descriptions = []
    if lora.rank:
        _add_lora(model, lora, seed, tuple(trained))
        descriptions.append(f"LoRA of rank {lora.rank} on {', '.join(lora.target_parts)}")
    if config.freeze:
        freeze_parameters(model, config.freeze)
        descriptions.append(f"frozen: {config.freeze}")
    scales = None
    if config.layer_lr_decay < 1:
        scales = layer_rate_scales([name for name, _ in model.named_parameters()], config.layer_lr_decay)
    return Trainable(model, scales, description=_describe(model, descriptions))


def _add_lora(model: Model, config: LoraConfig, seed: int, trained: tuple[str, ...]) -> None:
    settings = LoraSettings(config.rank, config.alpha, dropout=config.dropout)
    names = add_lora(model, settings, config.target_parts, seed)
    if not names:
        raise ConfigError(
            f"lora.targets ({config.targets}): the model has no Transformer layer with such a projection; "
            "LoRA is for Transformers"
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad = is_lora_weight(name) or name.startswith(trained)


def check_adapter_fits(lora: LoraConfig, base: str, hf_config: Mapping[str, Any]) -> None:
    """Raise where an adapter is written whose base model has weights that differ from ours by a scale.

    `hf_config` is the `config.json` of the base model.
    """
    if lora.rank and lora.keep_adapter and has_scaled_scores(hf_config):
        raise ConfigError(
            f"{base} scales the attention scores of each layer (scale_attn_by_inverse_layer_idx or "
            "scale_attn_weights), which our weights contain, so that an adapter of ours does not fit it: leave out "
            "--lora.keep_adapter; the saved model has LoRA merged"
        )


def lora_learning_rate(hidden_size: int) -> float:
    """Learning rate with LoRA for a model of this hidden size.

    >>> round(lora_learning_rate(384), 5), round(lora_learning_rate(768), 5)
    (0.00149, 0.00037)
    """
    return min(MAX_LORA_LEARNING_RATE, LORA_LEARNING_RATE_SCALE / hidden_size**2)


def freeze_parameters(model: Model, patterns: str) -> None:
    """Freeze the parameters whose names match one of the shell patterns, which commas separate."""
    parameters = dict(model.named_parameters())
    for pattern in patterns.split(","):
        pattern = pattern.strip()
        matches = [name for name in parameters if fnmatchcase(name, pattern)]
        if not matches:
            raise ConfigError(
                f"trainable.freeze: no weight of the model matches {pattern!r}"
                f"{nearest(pattern, [*parameters, *_module_patterns(parameters)])}; its names are like "
                f"{_example_names(parameters)}"
            )
        for name in matches:
            parameters[name].requires_grad = False
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError(f"trainable.freeze ({patterns}) freezes all weights: nothing is left to train")


def _module_patterns(names: Iterable[str]) -> list[str]:
    """Patterns for the weights of each module.

    >>> _module_patterns(["encoder.layers.0.weight"])
    ['encoder.*', 'encoder.layers.*', 'encoder.layers.0.*']
    """
    patterns: dict[str, None] = {}
    for name in names:
        path = name.split(".")
        patterns |= {".".join([*path[:depth], "*"]): None for depth in range(1, len(path))}
    return list(patterns)


def _example_names(names: Mapping[str, object]) -> str:
    """First weight name of each top-level module."""
    examples: dict[str, str] = {}
    for name in names:
        examples.setdefault(name.partition(".")[0], name)
    return ", ".join(examples.values())


def layer_rate_scales(names: Sequence[str], decay: float) -> dict[str, float]:
    """Factor of the learning rate by weight name: it falls from the head through the layers to the embeddings.

    Names are in order of definition. The head has factor 1, the last layer `decay`, the embeddings the least.

    >>> names = ["token_embedding.weight", "encoder.layers.0.a", "encoder.layers.1.a", "classifier.weight"]
    >>> list(layer_rate_scales(names, 0.5).values())
    [0.125, 0.25, 0.5, 1.0]
    """
    layers = list(dict.fromkeys(match[1] for match in map(_LAYER.match, names) if match))
    if not layers:
        raise ConfigError(
            "trainable.layer_lr_decay needs a model with layers, a Transformer: leave out --layer-lr-decay"
        )
    scales = {}
    depth = 0  # layers up to here, this one included
    for name in names:
        match = _LAYER.match(name)
        if match:
            depth = layers.index(match[1]) + 1
        is_head = name.startswith((*HEAD_PREFIXES, OUTPUT_PREFIX))
        distance = 0 if is_head else len(layers) - depth + (1 if match or not depth else 0)
        scales[name] = decay**distance
    return scales


def _describe(model: Model, descriptions: Sequence[str]) -> str:
    if not descriptions:
        return ""
    num_trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return f"trained: {num_trained:,} of {model.num_parameters():,} parameters; {'; '.join(descriptions)}"
