"""Hugging Face's `gpt2` and our causal model, both ways: config fields and weight names.

Their linear layers are stored input-first, so every matrix is turned over on the way; query, key and value are one
matrix there as here, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.checkpoint.hf_fields import ACTIVATIONS, field_value, in_float32
from regard.checkpoint.weight_report import WeightReport
from regard.config.gpt import GptConfig
from regard.errors import CheckpointError, ConfigError

KIND, ARCHITECTURE = "gpt2", "GPT2LMHeadModel"
PREFIX = "transformer."  # of everything but the output projection; optional when read
_WORDS, _PLACES, _OUTPUT = "wte.weight", "wpe.weight", "lm_head.weight"
_LARGEST = 2**24  # of any size

# their config field, ours, what an absent one means to them
_FIELDS: tuple[tuple[str, str, Any], ...] = (
    ("vocab_size", "vocabulary", 50257),
    ("n_positions", "places", 1024),
    ("n_embd", "width", 768),
    ("n_layer", "stack.layers", 12),
    ("n_head", "stack.heads", 12),
    ("layer_norm_epsilon", "epsilon", 1e-5),
    ("resid_pdrop", "dropout", 0.1),
    ("attn_pdrop", "attention_dropout", 0.1),
    ("tie_word_embeddings", "tied", True),
)
# our part of a block, theirs, whether it is a matrix that is turned over
_BLOCK = (
    ("attention_norm", "ln_1", False),
    ("attention.qkv", "attn.c_attn", True),
    ("attention.out", "attn.c_proj", True),
    ("feedforward_norm", "ln_2", False),
    ("feedforward.inner", "mlp.c_fc", True),
    ("feedforward.outer", "mlp.c_proj", True),
)


def own_reason(config: GptConfig) -> str:
    """Say why a model cannot be a `gpt2` folder; nothing where it can.

    >>> own_reason(GptConfig(positions="learned")), own_reason(GptConfig())
    ('', 'positions are rotary, not learned')
    """
    return "" if config.positions == "learned" else f"positions are {config.positions}, not learned"


def read_config(fields: Mapping[str, Any], where: str) -> GptConfig:
    """Return our config of a `config.json` of type gpt2.

    >>> read_config({"model_type": "gpt2", "n_embd": 64, "n_head": 4}, "config.json").stack.feedforward
    256
    """
    if fields.get("add_cross_attention"):
        raise CheckpointError(f"{where}: add_cross_attention is true: a model that looks at another text is not read")
    fields = {"n_positions": fields.get("n_ctx"), **fields}
    changes = {ours: field_value(fields, theirs, default, where) for theirs, ours, default in _FIELDS}
    changes["positions"] = "learned"
    changes["stack.feedforward"] = field_value(fields, "n_inner", 4 * changes["width"], where)
    spelled = field_value(fields, "activation_function", "gelu_new", where)
    changes["activation"] = dict(ACTIVATIONS).get(spelled, spelled)
    ended = fields.get("eos_token_id", 50256) is not None  # a field that says null is not an absent one
    changes["end"] = field_value(fields, "eos_token_id", 50256, where) if ended else -1
    try:
        config = GptConfig().override(changes)
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {error}") from None
    sizes = (config.vocabulary, config.width, config.places, config.stack.feedforward)
    if max(sizes) > _LARGEST or min(sizes) < 1:
        raise CheckpointError(f"{where}: sizes beyond any model's: {sizes}")
    if config.end >= config.vocabulary:
        config = config.override({"end": -1})  # small models often keep the number of the large one's end
    return config


def write_config(config: GptConfig, kept: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the content of `config.json`; `kept` is an imported folder's, whose other fields are written back."""
    if kept and kept.get("model_type") == KIND and not _scaled(kept) and read_config(kept, "") == config:
        return in_float32(kept)
    values = config.to_dict()
    told = {theirs: _at(values, ours) for theirs, ours, _ in _FIELDS}
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS)}
    end = None if config.end < 0 else config.end
    return {
        **(kept or {}),
        "model_type": KIND,
        "architectures": [ARCHITECTURE],
        "dtype": "float32",
        **told,
        "n_inner": config.stack.feedforward,
        "activation_function": names[config.activation],
        "embd_pdrop": config.dropout,
        "bos_token_id": end,
        "eos_token_id": end,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }


def _at(values: Mapping[str, Any], path: str) -> Any:
    for name in path.split("."):
        values = values[name]
    return values


def names(config: GptConfig) -> dict[str, tuple[str, bool]]:
    """Return our weight names, each with theirs and whether the matrix is turned over."""
    table = {"words.weight": (_WORDS, False), "positions.weight": (_PLACES, False)}
    parts = [("stack.norm", "ln_f", False)]
    for layer in range(config.stack.layers):
        parts += [(f"stack.blocks.{layer}.{ours}", f"h.{layer}.{theirs}", turned) for ours, theirs, turned in _BLOCK]
    for ours, theirs, turned in parts:
        table[f"{ours}.weight"], table[f"{ours}.bias"] = (f"{theirs}.weight", turned), (f"{theirs}.bias", False)
    if not config.tied:
        table["output.weight"] = (_OUTPUT, False)
    return table


def to_theirs(config: GptConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under their names, the tied output left out."""
    made = {}
    for ours, (theirs, turned) in names(config).items():
        name = theirs if theirs == _OUTPUT else PREFIX + theirs
        made[name] = (weights[ours].t() if turned else weights[ours]).contiguous().clone()
    return made


class Weights:
    """Which of a folder's tensors make up our weights: found by name and shape before any is read."""

    def __init__(
        self, config: GptConfig, shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Match the file's `shapes` with the `expected` ones of our weights, or raise `CheckpointError`."""
        self.config, self.report, self._table = config, WeightReport(), names(config)
        stored = {name.removeprefix(PREFIX): name for name in shapes}
        theirs = [name for name, _ in self._table.values()]
        self.report.missing = [name for name in theirs if name not in stored]
        if self.report.missing:
            some = ", ".join(self.report.missing[:5])
            raise CheckpointError(f"{len(self.report.missing)} weights are missing, {some} among them")
        for ours, (name, turned) in self._table.items():
            shape = expected[ours][::-1] if turned else expected[ours]
            if shapes[stored[name]] != shape:
                found = list(shapes[stored[name]])
                raise CheckpointError(f"{stored[name]} has shape {found}, config.json asks for {list(shape)}")
        self._stored = {name: stored[name] for name in theirs}
        self._copy = stored[_OUTPUT] if config.tied and _OUTPUT in stored else ""
        self._sort(stored)

    def _sort(self, stored: Mapping[str, str]) -> None:
        """Fill the report's lists; buffers of the causal mask are no weights."""
        for plain, name in stored.items():
            if plain not in self._stored:
                self.report.ignored.append(name)
            elif name == PREFIX + plain or plain == _OUTPUT:
                self.report.found.append(name)
            else:
                self.report.renamed[name] = PREFIX + plain

    @property
    def wanted(self) -> list[str]:
        """The names, as in the file, of the tensors to read."""
        return [*self._stored.values(), *([self._copy] if self._copy else [])]

    def assemble(self, tensors: Mapping[str, Tensor], fields: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return our weights, in float32, from the tensors read under their names."""
        if self._copy and not tensors[self._copy].equal(tensors[self._stored[_WORDS]]):
            self.report.notes.append(f"{self._copy} differs from {_WORDS} although they are tied: {_WORDS} is used")
        made = {}
        for ours, (name, turned) in self._table.items():
            tensor = tensors[self._stored[name]].float()
            made[ours] = tensor.t().contiguous() if turned else tensor
        for layer in range(self.config.stack.layers):
            if (factor := _scaling(self.config, fields, layer)) != 1:  # ours scale all layers alike
                for kind in ("weight", "bias"):
                    made[f"stack.blocks.{layer}.attention.qkv.{kind}"][: self.config.width] *= factor
        return made


def _scaling(config: GptConfig, fields: Mapping[str, Any], layer: int) -> float:
    """Return what the scores of a layer are multiplied with beside the usual root of a head's width."""
    factor = 1.0 if fields.get("scale_attn_weights", True) else math.sqrt(config.width // config.stack.heads)
    return factor / (layer + 1) if fields.get("scale_attn_by_inverse_layer_idx") else factor


def _scaled(fields: Mapping[str, Any]) -> bool:
    """Whether a folder's scores are scaled in a way that ours carry in their weights."""
    return fields.get("scale_attn_weights") is False or bool(fields.get("scale_attn_by_inverse_layer_idx"))
