"""Adapter of Hugging Face's translation models: config fields, decoding settings and weight names, both ways.

Post-norm Transformers are written as `marian`, pre-norm ones as `pegasus` (the same sinusoids). What neither type can
express, and recurrent models, are written under our own names and a model type of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from regard.checkpoint.hf.adapter import (
    Shapes,
    WeightMatcher,
    check_vocab_size,
    field_value,
    modernize_ending,
    nested_value,
    read_activation,
    with_float32_dtype,
    write_activation,
)
from regard.checkpoint.unused_weights import BUFFER
from regard.checkpoint.weights import Array, Arrays
from regard.config.inference import DecodingConfig
from regard.config.models import TransformerConfig
from regard.config.rnn_models import Seq2SeqConfig, TranslationModelConfig
from regard.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor

NATIVE_TYPES: dict[str, type[TranslationModelConfig]] = {
    "regard-transformer": TransformerConfig,
    "regard-seq2seq": Seq2SeqConfig,
}
ARCHITECTURES = {
    "marian": "MarianMTModel",
    "pegasus": "PegasusForConditionalGeneration",
    "regard-transformer": "RegardTransformer",
    "regard-seq2seq": "RegardSeq2Seq",
}
# HF config field, our setting
HF_FIELDS = (
    ("vocab_size", "source_vocab_size"),
    ("decoder_vocab_size", "target_vocab_size"),
    ("share_encoder_decoder_embeddings", "share_embeddings"),
    ("tie_word_embeddings", "tie_embeddings"),
    ("d_model", "hidden_size"),
    ("encoder_layers", "encoder.num_layers"),
    ("encoder_attention_heads", "encoder.num_heads"),
    ("encoder_ffn_dim", "encoder.feed_forward_size"),
    ("decoder_layers", "decoder.num_layers"),
    ("decoder_attention_heads", "decoder.num_heads"),
    ("decoder_ffn_dim", "decoder.feed_forward_size"),
    ("activation_function", "activation"),
    ("max_position_embeddings", "max_positions"),
    ("scale_embedding", "scale_embedding"),
    ("dropout", "dropout"),
    ("attention_dropout", "attention_dropout"),
    ("activation_dropout", "activation_dropout"),
    ("pad_token_id", "pad_id"),
    ("eos_token_id", "eos_id"),
    ("decoder_start_token_id", "bos_id"),
)
# defaults of absent fields
_DEFAULTS: dict[str, Any] = {
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "d_model": 1024,
    "encoder_layers": 12,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_layers": 12,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
    "scale_embedding": False,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
_FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "marian": {"vocab_size": 58101, "pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100},
    "pegasus": {"vocab_size": 50265, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
}
_NORM_PLACEMENTS = {"marian": "post", "pegasus": "pre"}
_NORM_EPS = 1e-5  # a constant of both classes, not a field
# our module of a block, HF modules; several HF modules are rows of one of ours, in this order
_ENCODER_BLOCK = (
    ("attention.qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("attention.out", ("self_attn.out_proj",)),
    ("attention_norm", ("self_attn_layer_norm",)),
    ("feed_forward.up", ("fc1",)),
    ("feed_forward.down", ("fc2",)),
    ("feed_forward_norm", ("final_layer_norm",)),
)
_DECODER_BLOCK = (
    *_ENCODER_BLOCK,
    ("cross_attention.query", ("encoder_attn.q_proj",)),
    ("cross_attention.key_value", ("encoder_attn.k_proj", "encoder_attn.v_proj")),
    ("cross_attention.out", ("encoder_attn.out_proj",)),
    ("cross_attention_norm", ("encoder_attn_layer_norm",)),
)
_SOURCE_EMBEDDING = "encoder.embed_tokens.weight"
_TARGET_EMBEDDING = "decoder.embed_tokens.weight"
_SHARED_EMBEDDING = "shared.weight"
_OUTPUT = "lm_head.weight"
_BIAS = "final_logits_bias"
_POSITIONS = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")
_PREFIX = "model."  # of all weights but the output projection and its bias; optional when read
_OLDER_ENDINGS = (("norm.gamma", "norm.weight"), ("norm.beta", "norm.bias"))
# HF decoding field, our setting
_DECODING = (("num_beams", "beam"), ("length_penalty", "length_penalty"), ("no_repeat_ngram_size", "no_repeat_ngram"))
_SAMPLING = (("do_sample", "sample"), ("temperature", "temperature"), ("top_k", "top_k"), ("top_p", "top_p"))
_MAX_POSITION_TABLE = 2**24  # elements of the sinusoids, which no file holds
ModelConfig = TypeVar("ModelConfig", bound=TranslationModelConfig)


def translator_model_type(config: TranslationModelConfig) -> tuple[str, str]:
    """Model type of a config in `config.json`, and the reason if it is one of ours.

    >>> translator_model_type(TransformerConfig(norm_placement="post"))
    ('marian', '')
    >>> translator_model_type(TransformerConfig(positions="rotary"))
    ('regard-transformer', 'positions are rotary, not sinusoidal')
    """
    native_type = f"regard-{config.family}"
    if isinstance(config, Seq2SeqConfig):
        return native_type, "a recurrent model"
    if config.positions != "sinusoidal":
        return native_type, f"positions are {config.positions}, not sinusoidal"
    if config.norm_eps != _NORM_EPS:
        return native_type, f"norm_eps is {config.norm_eps:g}, not {_NORM_EPS:g}"
    if config.norm_placement not in _NORM_PLACEMENTS.values():
        return native_type, f"norm_placement is {config.norm_placement}, neither pre nor post"
    if changed := config.encoder.changed_parts() or config.decoder.changed_parts():
        return native_type, f"the block has {' and '.join(changed)}"
    if config.attention_window:
        return native_type, f"attention_window is {config.attention_window}"
    if config.norm_placement == "post":
        return "marian", ""
    if not (config.share_embeddings and config.tie_embeddings):
        return native_type, "a pre-norm model with separate or untied embeddings"
    return "pegasus", ""


def config_to_hf(config: TranslationModelConfig, original: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Content of `config.json`. Fields of an imported folder's `original` that we do not know are written back."""
    original = original or {}
    model_type, _ = translator_model_type(config)
    if original and original.get("model_type") == model_type and _describes(original, config):
        return with_float32_dtype(original)
    fields: dict[str, Any] = {"model_type": model_type, "architectures": [ARCHITECTURES[model_type]]}
    values = config.to_dict()
    if model_type in NATIVE_TYPES:
        return {**original, **fields, "regard": values}
    fields["is_encoder_decoder"] = True
    for hf_name, name in HF_FIELDS:
        fields[hf_name] = nested_value(values, name)
    fields["activation_function"] = write_activation(values["activation"])
    fields |= {"bos_token_id": None, "forced_eos_token_id": config.eos_id, "use_cache": True}
    return with_float32_dtype({**original, **fields})


def config_from_hf(fields: Mapping[str, Any], where: str) -> TranslationModelConfig:
    """Convert a `config.json` to our config; whether there is an output bias only the weights show.

    >>> config_from_hf({"model_type": "marian", "activation_function": "swish"}, "config.json").activation
    'silu'
    """
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        problem = f"a model of type {model_type!r:.60}" if model_type else "no model_type"
        raise CheckpointError(f"{where}: {problem}, which is not a translation model: {', '.join(ARCHITECTURES)} are")
    try:
        if model_type in NATIVE_TYPES:
            values = _read_object(fields, "regard", where)
            return _check_sizes(NATIVE_TYPES[model_type].from_dict(values, where=where), where)
        settings = _read_settings(fields, model_type, where)
        return _check_sizes(TransformerConfig().override(settings), where)
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {error}") from None


def _read_settings(fields: Mapping[str, Any], model_type: str, where: str) -> dict[str, Any]:
    """Our settings, by dotted path, of a `marian` or `pegasus` config."""
    settings: dict[str, Any] = {"norm_placement": _NORM_PLACEMENTS[model_type], "norm_eps": _NORM_EPS}
    defaults = _DEFAULTS | _FAMILY_DEFAULTS[model_type]
    for hf_name, name in HF_FIELDS:
        default = settings["source_vocab_size"] if hf_name == "decoder_vocab_size" else defaults[hf_name]
        settings[name] = field_value(fields, hf_name, default, where)
    check_vocab_size(fields, "vocab_size", where)
    settings["activation"] = read_activation(settings["activation"])
    if settings["share_embeddings"]:
        settings["target_vocab_size"] = settings["source_vocab_size"]
    return settings


def decoding_to_hf(config: TranslationModelConfig, decoding: DecodingConfig) -> dict[str, Any]:
    """Content of `generation_config.json`."""
    pairs = _DECODING + (_SAMPLING if decoding.sample else ())
    return {
        **{hf_name: getattr(decoding, name) for hf_name, name in pairs},
        "max_length": config.max_positions,
        "pad_token_id": config.pad_id,
        "eos_token_id": config.eos_id,
        "decoder_start_token_id": config.bos_id,
        "forced_eos_token_id": config.eos_id,
        "bad_words_ids": [[token_id] for token_id in sorted({config.pad_id, config.bos_id} - {config.eos_id})],
    }


def decoding_from_hf(fields: Mapping[str, Any], where: str) -> DecodingConfig:
    """Decoding settings of a `generation_config.json`, or of the same fields in an older `config.json`.

    >>> decoding_from_hf({"num_beams": 4, "max_length": 512}, "generation_config.json").beam
    4
    """
    pairs = _DECODING + (_SAMPLING if fields.get("do_sample") is True else ())
    settings = {name: fields[hf_name] for hf_name, name in pairs if fields.get(hf_name) is not None}
    try:
        return DecodingConfig.from_dict(settings, where=where)
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {error}") from None


def to_hf_weights(config: TranslationModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights to the names of the config's model type; fused matrices are split, tied copies left out."""
    if isinstance(config, Seq2SeqConfig) or translator_model_type(config)[0] in NATIVE_TYPES:
        return dict(weights)
    hf_weights: dict[str, Tensor] = {}
    for name, hf_names in _weight_table(config).items():
        tensor = weights[name]
        if hf_names == (_BIAS,):
            tensor = tensor[None]  # [1, vocabulary]
        for hf_name, part in zip(hf_names, tensor.chunk(len(hf_names)), strict=True):
            hf_weights[_with_prefix(hf_name)] = part.clone()
    if config.norm_placement == "pre":  # their class stores the sinusoids too, and warns where they are missing
        for hf_name in _POSITIONS:
            hf_weights[_with_prefix(hf_name)] = _sinusoids(config.max_positions, config.hidden_size)
    if not config.tie_embeddings:  # their flag for an untied output also unties the two inputs: write all copies
        for name, copies in _tied_copies(config).items():
            for copy in copies:
                hf_weights[_with_prefix(copy)] = weights[name].clone()
    return hf_weights


class TranslatorWeightMatcher(WeightMatcher):
    """Match the tensors of a file with the weights of a translation model."""

    def __init__(self, config: TranslationModelConfig, shapes: Shapes, expected: Shapes) -> None:
        """Match the file's `shapes` with the `expected` ones of our weights, or raise `CheckpointError`."""
        self.config = config
        if isinstance(config, TransformerConfig) and translator_model_type(config)[0] not in NATIVE_TYPES:
            super().__init__(
                shapes,
                stored={_normalize_name(name): name for name in shapes},
                table=_weight_table(config),
                copies=_tied_copies(config),
            )
            self._buffers = [hf_name for hf_name in _POSITIONS if hf_name in self._stored]
            for hf_name in self._buffers:
                self._check_shape(hf_name, (config.max_positions, config.hidden_size))
        else:
            names = {name: name for name in shapes}
            super().__init__(shapes, stored=names, table={name: (name,) for name in expected}, copies={})
        self._use_copies()
        self._compare(expected)
        self._stored_to_read = set(self.tensors_to_read)
        self._fill_report()

    def assemble(self, arrays: Mapping[str, Array]) -> Arrays:
        """Our weights from the float32 arrays that were read."""
        hf_arrays = self._by_hf_name(arrays)
        for hf_name in self._buffers:
            if not _is_sinusoidal(hf_arrays[hf_name]):
                raise CheckpointError(f"{self._stored[hf_name]}: not the sinusoids that this model type has")
        for name, copies in self._copies.items():
            used = self._table[name][0]
            for copy in copies:
                if not np.array_equal(hf_arrays[copy], hf_arrays[used]):
                    self._note_difference(copy, used)
        weights: Arrays = {}
        for name, hf_names in self._table.items():
            weights[name] = self._concatenate(hf_arrays, hf_names)
        if "lm_head_bias" in weights:
            weights["lm_head_bias"] = weights["lm_head_bias"].flatten()
        return weights

    def _use_copies(self) -> None:
        """Read the first tied copy of a weight that the file itself lacks."""
        for name, copies in self._copies.items():
            if copies and self._table[name][0] not in self._stored:
                self._table[name] = copies[:1]

    def _compare(self, expected: Shapes) -> None:
        """Check that the file has each of our weights in its shape."""
        for name, (rows, *other_dims) in expected.items():
            hf_names = self._table[name]
            part_shape = (rows // len(hf_names), *other_dims)
            for hf_name in hf_names:
                if hf_name not in self._stored:
                    self.report.missing.append(hf_name if hf_names == (name,) else _with_prefix(hf_name))
                elif hf_name == _BIAS:
                    self._check_shape(hf_name, part_shape, (1, rows))
                else:
                    self._check_shape(hf_name, part_shape)
        self._check_missing(self.report.missing)

    def _current_name(self, hf_name: str, stored: str) -> str | None:
        if stored not in self._stored_to_read or hf_name in self._buffers:
            return None
        return stored if stored == hf_name else _with_prefix(hf_name)

    def _ignored_reason(self, hf_name: str) -> str:
        return BUFFER if hf_name in self._buffers else "not a weight that this type of model has"


def _sinusoids(length: int, width: int) -> Tensor:
    import torch

    from regard.attention.positions import sinusoids

    return sinusoids(torch.arange(length), width)


def _is_sinusoidal(table: Array) -> bool:  # [positions, width]
    """Whether a table holds sinusoids: sines in the first half of its columns, cosines in the second."""
    if table.ndim != 2:
        return False
    length, width = table.shape
    half = (width + 1) // 2
    frequencies = 10_000.0 ** (-np.arange(half) * 2 / width)
    angles = np.arange(length)[:, None] * frequencies
    expected = np.concatenate([np.sin(angles), np.cos(angles)[:, : width - half]], axis=1)
    return bool(np.allclose(table, expected, rtol=1e-5, atol=2e-3))


def has_output_bias(names: Iterable[str]) -> bool:
    """Whether a folder's weights include a bias of the output projection."""
    return _BIAS in names


def _weight_table(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    """Our weight names, each with the HF names whose tensors are its rows."""
    table: dict[str, tuple[str, ...]]
    if config.share_embeddings:
        table = {"token_embedding.weight": (_SHARED_EMBEDDING,)}
    else:
        table = {"source_embedding.weight": (_SOURCE_EMBEDDING,), "target_embedding.weight": (_TARGET_EMBEDDING,)}
    if not config.tie_embeddings:
        table["lm_head.weight"] = (_OUTPUT,)
    if config.output_bias:
        table["lm_head_bias"] = (_BIAS,)
    table |= _stack_table("encoder", config.encoder.num_layers, _ENCODER_BLOCK, config.norm_placement == "pre")
    table |= _stack_table("decoder", config.decoder.num_layers, _DECODER_BLOCK, config.norm_placement == "pre")
    return table


def _stack_table(
    side: str, num_layers: int, block: tuple[tuple[str, tuple[str, ...]], ...], has_final_norm: bool
) -> dict[str, tuple[str, ...]]:
    """Weight names of the encoder or the decoder."""
    modules: dict[str, tuple[str, ...]] = {}
    for layer in range(num_layers):
        for name, hf_names in block:
            modules[f"layers.{layer}.{name}"] = tuple(f"layers.{layer}.{hf_name}" for hf_name in hf_names)
    if has_final_norm:
        modules["final_norm"] = ("layer_norm",)
    table = {}
    for name, hf_names in modules.items():
        for leaf in ("weight", "bias"):
            table[f"{side}.{name}.{leaf}"] = tuple(f"{side}.{hf_name}.{leaf}" for hf_name in hf_names)
    return table


def _tied_copies(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    """HF names that may hold a copy of one of our weights."""
    output = (_OUTPUT,) if config.tie_embeddings else ()
    if config.share_embeddings:
        return {"token_embedding.weight": (_SOURCE_EMBEDDING, _TARGET_EMBEDDING, *output)}
    return {"target_embedding.weight": output}


def _normalize_name(name: str) -> str:
    """Name in a file without what may vary: the prefix, and older spellings of norms."""
    return modernize_ending(name.removeprefix(_PREFIX), _OLDER_ENDINGS)


def _with_prefix(hf_name: str) -> str:
    return hf_name if hf_name in (_OUTPUT, _BIAS) else _PREFIX + hf_name


def _describes(original: Mapping[str, Any], config: TranslationModelConfig) -> bool:
    """Whether the fields of an imported folder still describe the config."""
    try:
        return config_from_hf(original, "").override({"output_bias": config.output_bias}) == config
    except CheckpointError:
        return False


def _read_object(fields: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{where}: {name} must be an object, not {value!r:.60}")
    return value


def _check_sizes(config: ModelConfig, where: str) -> ModelConfig:
    """Return the config if its sizes are plausible and its token ids are in the vocabulary."""
    if config.max_positions * config.hidden_size > _MAX_POSITION_TABLE:
        max_positions = _MAX_POSITION_TABLE // config.hidden_size
        raise CheckpointError(
            f"{where}: max_position_embeddings or max_positions is {config.max_positions}: at most {max_positions} "
            f"are read of a model with hidden size {config.hidden_size}"
        )
    smaller_vocab_size = min(config.source_vocab_size, config.target_vocab_size)
    for name in ("pad_id", "eos_id", "bos_id"):
        vocab_size = smaller_vocab_size if name == "pad_id" else config.target_vocab_size
        token_id = getattr(config, name)
        if token_id >= vocab_size:
            raise CheckpointError(f"{where}: {name} is token {token_id}, but the vocabulary has {vocab_size}")
    return config
