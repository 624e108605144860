"""Hugging Face's `gpt2` and `gpt_neox` and our causal model, both ways: config fields and weight names.

Learned positions make a `gpt2`, rotary ones a `gpt_neox` whose parts follow one another. The first stores its matrices
input-first, so they are turned over on the way, with query, key and value below one another as here; the second has
them below one another head by head.

A row for each type of Hugging Face's causal models: what it calls config fields and weights, and how they lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.checkpoint.hf.adapter import ACTIVATIONS, field_value, with_float32_dtype
from regard.checkpoint.weights import WeightReport
from regard.config.models import GptConfig
from regard.errors import CheckpointError, ConfigError

_LARGEST = 2**24  # of any size


def causal_model_type(config: GptConfig) -> tuple[str, str]:
    """Return the type that others know such a model by, and if there is none, why.

    >>> causal_model_type(GptConfig()), causal_model_type(GptConfig(positions="learned"))
    (('gpt_neox', ''), ('gpt2', ''))
    >>> causal_model_type(GptConfig(positions="sinusoidal"))
    ('', 'positions are sinusoidal, neither learned nor rotary')
    """
    found = next((name for name, kind in KINDS.items() if kind.positions == config.positions), "")
    known = " nor ".join(kind.positions for kind in KINDS.values())
    return found, "" if found else f"positions are {config.positions}, neither {known}"


def read_config(fields: Mapping[str, Any], where: str) -> GptConfig:
    """Return our config of a `config.json` of one of these types.

    >>> read_config({"model_type": "gpt2", "n_embd": 64, "n_head": 4}, "config.json").stack.feed_forward_size
    256
    """
    name = str(fields.get("model_type"))
    kind = KINDS[name]
    _refuse(fields, name, where)
    fields = {"n_positions": fields.get("n_ctx"), **fields}
    changes = {ours: field_value(fields, theirs, default, where) for theirs, ours, default in kind.fields}
    changes["positions"] = kind.positions
    if "stack.feed_forward_size" not in changes:
        changes["stack.feed_forward_size"] = field_value(fields, "n_inner", 4 * changes["hidden_size"], where)
    spelled = field_value(fields, *kind.activation, where)
    changes["activation"] = dict(ACTIVATIONS).get(spelled, spelled)
    ended = fields.get("eos_token_id", kind.end) is not None  # a field that says null is not an absent one
    changes["eos_id"] = field_value(fields, "eos_token_id", kind.end, where) if ended else -1
    try:
        config = GptConfig().override(changes)
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {error}") from None
    sizes = (config.vocab_size, config.hidden_size, config.max_positions, config.stack.feed_forward_size)
    if max(sizes) > _LARGEST or min(sizes) < 1:
        raise CheckpointError(f"{where}: sizes beyond any model's: {sizes}")
    if config.eos_id >= config.vocab_size:
        config = config.override({"eos_id": -1})  # small models often keep the number of the large one's end
    return config


def _refuse(fields: Mapping[str, Any], name: str, where: str) -> None:
    """Raise where a `config.json` asks for what our causal model does not compute."""
    if fields.get("add_cross_attention"):
        raise CheckpointError(f"{where}: add_cross_attention is true: a model that looks at another text is not read")
    if name != "gpt_neox":
        return
    said = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(said, Mapping):
        raise CheckpointError(f"{where}: rope_parameters must be an object, not {said!r:.60}")
    read: dict[str, tuple[Any, Any]] = {  # what it says, what is read
        "use_parallel_residual": (fields.get("use_parallel_residual", True), False),
        "attention_bias": (fields.get("attention_bias", True), True),
        "rope_type": (said.get("rope_type", said.get("type", "default")), "default"),
        "rope_theta": (said.get("rope_theta", fields.get("rotary_emb_base", BASE)), BASE),
        "rotary_pct": (said.get("partial_rotary_factor", fields.get("rotary_pct", 0.25)), 1.0),
    }
    for name_of_field, (found, only) in read.items():
        if found != only:
            raise CheckpointError(f"{where}: {name_of_field} is {found!r:.60}: of {name} only {only!r} is read")


def write_config(config: GptConfig, kept: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the content of `config.json`; `kept` is an imported folder's, whose other fields are written back."""
    name, _ = causal_model_type(config)
    kind = KINDS[name]
    kept = kept if kept and kept.get("model_type") == name else {}
    if kept and not _scaled(kept) and read_config(kept, "") == config:
        return with_float32_dtype(kept)
    values = config.to_dict()
    told = {theirs: _at(values, ours) for theirs, ours, _ in kind.fields}
    if "intermediate_size" not in told:
        told["n_inner"] = config.stack.feed_forward_size
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS)}
    end = None if config.eos_id < 0 else config.eos_id
    return {
        **kept,
        "model_type": name,
        "architectures": [kind.architecture],
        "dtype": "float32",
        **told,
        kind.activation[0]: names[config.activation],
        **dict.fromkeys(kind.dropouts, config.dropout),
        "bos_token_id": end,
        "eos_token_id": end,
        **kind.written,
    }


def _at(values: Mapping[str, Any], path: str) -> Any:
    for name in path.split("."):
        values = values[name]
    return values


def _names(config: GptConfig, kind: CausalType) -> dict[str, tuple[str, str]]:
    """Return our weight names, each with theirs and how it lies there."""
    table = {ours: (theirs, "") for ours, theirs in kind.trunk}
    parts = [("stack.norm", kind.norm, "")]
    for layer in range(config.stack.num_layers):
        before = kind.layer.format(layer)
        parts += [(f"stack.blocks.{layer}.{ours}", before + theirs, lies) for ours, theirs, lies in kind.block]
    for ours, theirs, lies in parts:
        table[f"{ours}.weight"] = (f"{theirs}.weight", lies)
        table[f"{ours}.bias"] = (f"{theirs}.bias", "" if lies == TRANSPOSED else lies)
    if not config.tie_embeddings:
        table["output.weight"] = (kind.output, "")
    return table


def _lain(tensor: Tensor, lies: str, first: int, second: int) -> Tensor:
    """Return a weight as it lies on the other side; by head, `first` times `second` groups change places."""
    if lies == TRANSPOSED:
        return tensor.t()
    return (
        tensor.reshape(first, second, -1).transpose(0, 1).reshape(tensor.shape)
        if lies == INTERLEAVED_BY_HEAD
        else tensor
    )


def to_theirs(config: GptConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under their names, the tied output left out."""
    kind, made = KINDS[causal_model_type(config)[0]], {}
    for ours, (theirs, lies) in _names(config, kind).items():
        name = theirs if theirs == kind.output else kind.prefix + theirs
        made[name] = _lain(weights[ours], lies, 3, config.stack.num_heads).contiguous().clone()
    return made


class CausalWeightMatcher:
    """Which of a folder's tensors make up our weights: found by name and shape before any is read."""

    def __init__(
        self, config: GptConfig, shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Match the file's `shapes` with the `expected` ones of our weights, or raise `CheckpointError`."""
        self.config, self.report, self.kind = config, WeightReport(), KINDS[causal_model_type(config)[0]]
        self._table, output = _names(config, self.kind), self.kind.output
        stored = {name.removeprefix(self.kind.prefix): name for name in shapes}
        theirs = [name for name, _ in self._table.values()]
        self.report.missing = [name for name in theirs if name not in stored]
        if self.report.missing:
            some = ", ".join(self.report.missing[:5])
            raise CheckpointError(f"{len(self.report.missing)} weights are missing, {some} among them")
        for ours, (name, lies) in self._table.items():
            shape = expected[ours][::-1] if lies == TRANSPOSED else expected[ours]
            if shapes[stored[name]] != shape:
                found = list(shapes[stored[name]])
                raise CheckpointError(f"{stored[name]} has shape {found}, config.json asks for {list(shape)}")
        self._stored = {name: stored[name] for name in theirs}
        self._copy = stored[output] if config.tie_embeddings and output in stored else ""
        self._sort(stored)

    def _sort(self, stored: Mapping[str, str]) -> None:
        """Fill the report's lists; buffers of the causal mask are no weights."""
        for plain, name in stored.items():
            if plain not in self._stored:
                self.report.ignored.append(name)
            elif name == self.kind.prefix + plain or plain == self.kind.output:
                self.report.loaded.append(name)
            else:
                self.report.renamed[name] = self.kind.prefix + plain

    @property
    def wanted(self) -> list[str]:
        """The names, as in the file, of the tensors to read."""
        return [*self._stored.values(), *([self._copy] if self._copy else [])]

    def assemble(self, tensors: Mapping[str, Tensor], fields: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return our weights, in float32, from the tensors read under their names."""
        words = self._table["words.weight"][0]
        if self._copy and not tensors[self._copy].equal(tensors[self._stored[words]]):
            self.report.notes.append(f"{self._copy} differs from {words} although they are tied: {words} is used")
        made = {}
        for ours, (name, lies) in self._table.items():
            tensor = tensors[self._stored[name]].float()
            made[ours] = _lain(tensor, lies, self.config.stack.num_heads, 3).contiguous()
        for layer in range(self.config.stack.num_layers):
            if (factor := _scaling(self.config, fields, layer)) != 1:  # ours scale all layers alike
                for leaf in ("weight", "bias"):
                    made[f"stack.blocks.{layer}.attention.qkv.{leaf}"][: self.config.hidden_size] *= factor
        return made


def _scaling(config: GptConfig, fields: Mapping[str, Any], layer: int) -> float:
    """Return what the scores of a layer are multiplied with beside the usual root of a head's width."""
    factor = 1.0 if fields.get("scale_attn_weights", True) else math.sqrt(config.hidden_size // config.stack.num_heads)
    return factor / (layer + 1) if fields.get("scale_attn_by_inverse_layer_idx") else factor


def _scaled(fields: Mapping[str, Any]) -> bool:
    """Whether a folder's scores are scaled in a way that ours carry in their weights."""
    return fields.get("scale_attn_weights") is False or bool(fields.get("scale_attn_by_inverse_layer_idx"))


TRANSPOSED, INTERLEAVED_BY_HEAD = "turned over", "by head"  # how a weight of theirs lies, where not as ours does
BASE = 10_000.0  # of the wavelengths of rotary positions


@dataclass(frozen=True)
class CausalType:
    """What one of their types calls things."""

    architecture: str
    positions: str  # ours that it has
    prefix: str  # of everything but the output projection; optional when read
    fields: tuple[tuple[str, str, Any], ...]  # their config field, ours, what an absent one means to them
    activation: tuple[str, str]  # their config field and what an absent one means
    end: int  # the token that an absent field means
    trunk: tuple[tuple[str, str], ...]  # our weight, theirs
    norm: str  # the last one
    layer: str  # before a block's weights, with the layer's number
    block: tuple[tuple[str, str, str], ...]  # our part of a block, theirs, how its matrix lies
    output: str
    written: Mapping[str, Any]  # fields that new folders have besides
    dropouts: tuple[str, ...] = ()  # further fields of theirs for our one dropout


KINDS = {
    "gpt2": CausalType(
        architecture="GPT2LMHeadModel",
        positions="learned",
        prefix="transformer.",
        fields=(
            ("vocab_size", "vocab_size", 50257),
            ("n_positions", "max_positions", 1024),
            ("n_embd", "hidden_size", 768),
            ("n_layer", "stack.num_layers", 12),
            ("n_head", "stack.num_heads", 12),
            ("layer_norm_epsilon", "norm_eps", 1e-5),
            ("resid_pdrop", "dropout", 0.1),
            ("attn_pdrop", "attention_dropout", 0.1),
            ("tie_word_embeddings", "tie_embeddings", True),
        ),
        activation=("activation_function", "gelu_new"),
        end=50256,
        trunk=(("words.weight", "wte.weight"), ("positions.weight", "wpe.weight")),
        norm="ln_f",
        layer="h.{}.",
        block=(
            ("attention_norm", "ln_1", ""),
            ("attention.qkv", "attn.c_attn", TRANSPOSED),
            ("attention.out", "attn.c_proj", TRANSPOSED),
            ("feedforward_norm", "ln_2", ""),
            ("feedforward.inner", "mlp.c_fc", TRANSPOSED),
            ("feedforward.outer", "mlp.c_proj", TRANSPOSED),
        ),
        output="lm_head.weight",
        written={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
        dropouts=("embd_pdrop",),
    ),
    "gpt_neox": CausalType(
        architecture="GPTNeoXForCausalLM",
        positions="rotary",
        prefix="gpt_neox.",
        fields=(
            ("vocab_size", "vocab_size", 50432),
            ("max_position_embeddings", "max_positions", 2048),
            ("hidden_size", "hidden_size", 6144),
            ("num_hidden_layers", "stack.num_layers", 44),
            ("num_attention_heads", "stack.num_heads", 64),
            ("intermediate_size", "stack.feed_forward_size", 24576),
            ("layer_norm_eps", "norm_eps", 1e-5),
            ("hidden_dropout", "dropout", 0.0),
            ("attention_dropout", "attention_dropout", 0.0),
            ("tie_word_embeddings", "tie_embeddings", False),
        ),
        activation=("hidden_act", "gelu"),
        end=2,
        trunk=(("words.weight", "embed_in.weight"),),
        norm="final_layer_norm",
        layer="layers.{}.",
        block=(
            ("attention_norm", "input_layernorm", ""),
            ("attention.qkv", "attention.query_key_value", INTERLEAVED_BY_HEAD),
            ("attention.out", "attention.dense", ""),
            ("feedforward_norm", "post_attention_layernorm", ""),
            ("feedforward.inner", "mlp.dense_h_to_4h", ""),
            ("feedforward.outer", "mlp.dense_4h_to_h", ""),
        ),
        output="embed_out.weight",
        written={
            "use_parallel_residual": False,
            "attention_bias": True,
            # the same said twice, for newer and for older readers
            "rope_parameters": {"rope_type": "default", "rope_theta": BASE, "partial_rotary_factor": 1.0},
            "rotary_pct": 1.0,
            "rotary_emb_base": 10_000,
        },
    ),
}
