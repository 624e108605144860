"""Hugging Face's names for translators' config fields and weights, both ways; encoders and gpt2 have their own files.

Norm-after translators are their `marian`, norm-before ones their `pegasus` (same sinusoids, norms at other places);
what neither can express, and recurrent models, keep our own names under a type of ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.attention.positions import sinusoids
from regard.checkpoint.hf.adapter import ACTIVATIONS, field_value, with_float32_dtype
from regard.checkpoint.weights import WeightReport
from regard.config.inference import DecodingConfig
from regard.config.models import TransformerConfig
from regard.config.rnn_models import Seq2SeqConfig, TranslationModelConfig
from regard.errors import CheckpointError, ConfigError

OWN: dict[str, type[TranslationModelConfig]] = {"regard-translator": TransformerConfig, "regard-seq2seq": Seq2SeqConfig}
ARCHITECTURES = {
    "marian": "MarianMTModel",
    "pegasus": "PegasusForConditionalGeneration",
    "regard-translator": "RegardTranslator",
    "regard-seq2seq": "RegardRecurrent",
}
# their config field, ours
_FIELDS = (
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
# what an absent field means to them
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
_NORMS = {"marian": "after", "pegasus": "before"}
_EPSILON = 1e-5  # fixed in both of their classes, no field
# our part of a block, theirs; several of theirs are rows of one of ours, in this order
_ENCODER_BLOCK = (
    ("attention.qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("attention.out", ("self_attn.out_proj",)),
    ("attention_norm", ("self_attn_layer_norm",)),
    ("feedforward.inner", ("fc1",)),
    ("feedforward.outer", ("fc2",)),
    ("feedforward_norm", ("final_layer_norm",)),
)
_DECODER_BLOCK = (
    *_ENCODER_BLOCK,
    ("cross.query", ("encoder_attn.q_proj",)),
    ("cross.key_value", ("encoder_attn.k_proj", "encoder_attn.v_proj")),
    ("cross.out", ("encoder_attn.out_proj",)),
    ("cross_norm", ("encoder_attn_layer_norm",)),
)
_SOURCE, _TARGET, _SHARED = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "shared.weight"
_OUTPUT, _BIAS = "lm_head.weight", "final_logits_bias"
_POSITIONS = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")
_PREFIX = "model."  # of everything but the output projection and its bias; optional when read
# their decoding field, ours
_DECODING = (("num_beams", "beam"), ("length_penalty", "length_penalty"), ("no_repeat_ngram_size", "no_repeat_ngram"))
_SAMPLING = (("do_sample", "sample"), ("temperature", "temperature"), ("top_k", "top_k"), ("top_p", "top_p"))
Writing = TypeVar("Writing", bound=TranslationModelConfig)


def translator_model_type(config: TranslationModelConfig) -> tuple[str, str]:
    """Return the type that a model has in `config.json`, and why if it is our own.

    >>> translator_model_type(TransformerConfig(norm="after"))
    ('marian', '')
    >>> translator_model_type(TransformerConfig(positions="rotary"))
    ('regard-translator', 'positions are rotary, not sinusoidal')
    """
    own = f"regard-{config.family}"
    if isinstance(config, Seq2SeqConfig):
        return own, "a recurrent model"
    if config.positions != "sinusoidal":
        return own, f"positions are {config.positions}, not sinusoidal"
    if config.norm_eps != _EPSILON:
        return own, f"epsilon is {config.norm_eps:g}, not {_EPSILON:g}"
    if config.norm == "after":
        return "marian", ""
    if not (config.share_embeddings and config.tie_embeddings):
        return own, "a norm-before model with separate or untied embeddings"
    return "pegasus", ""


def write_config(config: TranslationModelConfig, kept: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the content of `config.json`; `kept` is an imported folder's, whose other fields are written back."""
    kind, _ = translator_model_type(config)
    if kept and kept.get("model_type") == kind and _same(kept, config):
        return with_float32_dtype(kept)
    if kind in OWN:
        own = {"model_type": kind, "architectures": [ARCHITECTURES[kind]], "regard": config.to_dict()}
        return {**(kept or {}), **own}
    values = config.to_dict()
    fields: dict[str, Any] = {"model_type": kind, "architectures": [ARCHITECTURES[kind]], "is_encoder_decoder": True}
    for theirs, ours in _FIELDS:
        fields[theirs] = _at(values, ours)
    spelled = values["activation"]
    fields["activation_function"] = next(theirs for theirs, ours in ACTIVATIONS if ours == spelled)
    fields |= {"bos_token_id": None, "forced_eos_token_id": config.eos_id, "use_cache": True}
    return with_float32_dtype({**(kept or {}), **fields})


def read_config(fields: Mapping[str, Any], where: str) -> TranslationModelConfig:
    """Return the config that a `config.json` describes; whether there is an output bias, its weights tell.

    >>> read_config({"model_type": "marian", "activation_function": "swish"}, "config.json").activation
    'silu'
    """
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        shown = f"a model of type {kind!r:.60}" if kind else "no model_type"
        raise CheckpointError(f"{where}: {shown}, which is not read as a translator: {', '.join(ARCHITECTURES)} are")
    try:
        if kind in OWN:
            return _sane(OWN[kind].from_dict(_object(fields, "regard", where), where=where), where)
        changes: dict[str, Any] = {"norm": _NORMS[kind], "norm_eps": _EPSILON}
        defaults = _DEFAULTS | _FAMILY_DEFAULTS[kind]
        for theirs, ours in _FIELDS:
            default = changes["source_vocab_size"] if theirs == "decoder_vocab_size" else defaults[theirs]
            changes[ours] = field_value(fields, theirs, default, where)
        spelled = changes["activation"]
        changes["activation"] = dict(ACTIVATIONS).get(spelled, spelled)
        if changes["share_embeddings"]:
            changes["target_vocab_size"] = changes["source_vocab_size"]
        return _sane(TransformerConfig().override(changes), where)
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {error}") from None


def write_decoding(config: TranslationModelConfig, decoding: DecodingConfig) -> dict[str, Any]:
    """Return the content of `generation_config.json`."""
    pairs = _DECODING + (_SAMPLING if decoding.sample else ())
    return {
        **{theirs: getattr(decoding, ours) for theirs, ours in pairs},
        "max_length": config.max_positions,
        "pad_token_id": config.pad_id,
        "eos_token_id": config.eos_id,
        "decoder_start_token_id": config.bos_id,
        "forced_eos_token_id": config.eos_id,
        "bad_words_ids": [[token] for token in sorted({config.pad_id, config.bos_id} - {config.eos_id})],
    }


def read_decoding(fields: Mapping[str, Any], where: str) -> DecodingConfig:
    """Return how a folder's `generation_config.json` (or the same fields of an old `config.json`) wants to be searched.

    >>> read_decoding({"num_beams": 4, "max_length": 512}, "generation_config.json").beam
    4
    """
    pairs = _DECODING + (_SAMPLING if fields.get("do_sample") is True else ())
    found = {ours: fields[theirs] for theirs, ours in pairs if fields.get(theirs) is not None}
    try:
        return DecodingConfig.from_dict(found, where=where)
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {error}") from None


def to_theirs(config: TranslationModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the names of the config's model type; fused matrices are split, tied copies left out."""
    if isinstance(config, Seq2SeqConfig) or translator_model_type(config)[0] in OWN:
        return dict(weights)
    written: dict[str, Tensor] = {}
    for ours, theirs in _table(config).items():
        tensor = weights[ours]
        if theirs == (_BIAS,):
            tensor = tensor[None]  # [1, V]
        written |= {_prefixed(name): part.clone() for name, part in zip(theirs, tensor.chunk(len(theirs)), strict=True)}
    if config.norm == "before":  # their class stores the sinusoids too, and complains when it has to make them
        table = sinusoids(torch.arange(config.max_positions), config.hidden_size)
        written |= {_prefixed(name): table.clone() for name in _POSITIONS}
    if not config.tie_embeddings:  # the flag for untied outputs also unties the two inputs, so all are spelled out
        for ours, copies in _copies(config).items():
            written |= {_prefixed(copy): weights[ours].clone() for copy in copies}
    return written


class TranslatorWeightMatcher:
    """Which of a folder's tensors make up our weights: found by name and shape before any is read."""

    def __init__(
        self,
        config: TranslationModelConfig,
        shapes: Mapping[str, tuple[int, ...]],
        expected: Mapping[str, tuple[int, ...]],
    ) -> None:
        """Match the file's `shapes` with the `expected` ones of our weights, or raise `CheckpointError`."""
        theirs = (
            config if isinstance(config, TransformerConfig) and translator_model_type(config)[0] not in OWN else None
        )
        own = theirs is None
        self.config = config
        self.report = WeightReport()
        self._names = {_plain(name, own): name for name in shapes}  # their plain name → name in the file
        self._shapes = {_plain(name, own): shape for name, shape in shapes.items()}
        self._table: dict[str, tuple[str, ...]] = {ours: (ours,) for ours in expected}
        self._copies: dict[str, tuple[str, ...]] = {}
        if theirs is not None:
            self._table, self._copies = _table(theirs), _copies(theirs)
        for ours, copies in self._copies.items():
            if self._table[ours][0] not in self._names:
                self._table[ours] = tuple(copy for copy in copies if copy in self._names)[:1] or self._table[ours]
        self._compare(expected)
        self._positions = [name for name in _POSITIONS if name in self._names and not own]
        self._sort()

    @property
    def wanted(self) -> list[str]:
        """The names, as in the file, of the tensors to read."""
        present = [copy for copies in self._copies.values() for copy in copies if copy in self._names]
        plain = [part for theirs in self._table.values() for part in theirs]
        return [self._names[name] for name in dict.fromkeys([*plain, *present, *self._positions])]

    def assemble(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return our weights, in float32, from the tensors read under their names."""
        plain = {name: tensors[stored].float() for name, stored in self._names.items() if stored in tensors}
        for name in self._positions:
            table = plain[name]
            if not torch.allclose(table, sinusoids(torch.arange(len(table)), table.shape[1]), atol=2e-3):
                raise CheckpointError(f"{self._names[name]}: not the sinusoids that this model type has")
        for ours, copies in self._copies.items():
            first = self._table[ours][0]
            for copy in copies:
                if copy in plain and not torch.equal(plain[copy], plain[first]):
                    self.report.notes.append(f"{copy} differs from {first} although they are tied: {first} is used")
        joined = {ours: torch.cat([plain[part] for part in theirs]) for ours, theirs in self._table.items()}
        if "output_bias" in joined:
            joined["output_bias"] = joined["output_bias"].flatten()
        return joined

    def _compare(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Check that each of our weights is there in its shape."""
        for ours, shape in expected.items():
            theirs = self._table[ours]
            rows, *rest = shape
            part = (rows // len(theirs), *rest)
            for name in theirs:
                if name not in self._shapes:
                    self.report.missing.append(_prefixed(name) if theirs != (ours,) else name)
                elif self._shapes[name] not in ((part, (1, rows)) if name == _BIAS else (part,)):
                    found, named = list(self._shapes[name]), self._names[name]
                    raise CheckpointError(f"{named} has shape {found}, config.json asks for {list(part)}")
        if self.report.missing:
            some = ", ".join(self.report.missing[:5])
            raise CheckpointError(f"{len(self.report.missing)} weights are missing, {some} among them")

    def _sort(self) -> None:
        """Fill the report's lists."""
        wanted = set(self.wanted)
        for plain, stored in self._names.items():
            if stored not in wanted or plain in self._positions:
                self.report.ignored.append(stored)
            elif stored in (plain, _prefixed(plain)):
                self.report.loaded.append(stored)
            else:
                self.report.renamed[stored] = _prefixed(plain)


def has_output_bias(names: Iterable[str]) -> bool:
    """Whether a folder's weights hold a bias of the output projection."""
    return _BIAS in names


def _table(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    """Return our weight names, each with theirs, which lie below one another in it."""
    table: dict[str, tuple[str, ...]]
    if config.share_embeddings:
        table = {"words.weight": (_SHARED,)}
    else:
        table = {"source_words.weight": (_SOURCE,), "target_words.weight": (_TARGET,)}
    if not config.tie_embeddings:
        table["output.weight"] = (_OUTPUT,)
    if config.output_bias:
        table["output_bias"] = (_BIAS,)
    for side, layers, block in (
        ("encoder", config.encoder.num_layers, _ENCODER_BLOCK),
        ("decoder", config.decoder.num_layers, _DECODER_BLOCK),
    ):
        parts = [
            (f"blocks.{layer}.{ours}", tuple(f"layers.{layer}.{name}" for name in theirs))
            for layer in range(layers)
            for ours, theirs in block
        ]
        if config.norm == "before":
            parts.append(("norm", ("layer_norm",)))
        for ours, theirs in parts:
            for kind in ("weight", "bias"):
                table[f"{side}.{ours}.{kind}"] = tuple(f"{side}.{name}.{kind}" for name in theirs)
    return table


def _copies(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    """Return which of their names may hold a second copy of one of our weights."""
    tied = (_OUTPUT,) if config.tie_embeddings else ()
    return {"words.weight": (_SOURCE, _TARGET, *tied)} if config.share_embeddings else {"target_words.weight": tied}


def _plain(name: str, own: bool) -> str:
    """Return a name in the file without what may vary: the prefix, and old spellings of norms."""
    if own:
        return name
    name = name.removeprefix(_PREFIX)
    for old, new in (("norm.gamma", "norm.weight"), ("norm.beta", "norm.bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def _prefixed(name: str) -> str:
    return name if name in (_OUTPUT, _BIAS) else _PREFIX + name


def _same(kept: Mapping[str, Any], config: TranslationModelConfig) -> bool:
    """Whether the fields of an imported folder still describe the config."""
    try:
        return read_config(kept, "").override({"output_bias": config.output_bias}) == config
    except CheckpointError:
        return False


def _object(fields: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{where}: {name} must be an object, not {value!r:.60}")
    return value


def _sane(config: Writing, where: str) -> Writing:
    """Return the config if its sizes are ones that a model can have and its token numbers are in the vocabulary."""
    sizes = [config.source_vocab_size, config.target_vocab_size, config.hidden_size, config.max_positions]
    numbers = [config.dropout]
    if isinstance(config, TransformerConfig):
        sizes += [config.encoder.feed_forward_size, config.decoder.feed_forward_size]
        numbers += [config.attention_dropout, config.activation_dropout, config.norm_eps]
    else:
        sizes.append(config.embedding_size)
    if max(sizes) > 2**24 or config.max_positions * config.hidden_size > 2**30 or not all(map(math.isfinite, numbers)):
        raise CheckpointError(f"{where}: sizes beyond any model's: {tuple(sizes)}")
    for name in ("pad_id", "eos_id", "bos_id"):
        limit = (
            min(config.source_vocab_size, config.target_vocab_size) if name == "pad_id" else config.target_vocab_size
        )
        if getattr(config, name) >= limit:
            raise CheckpointError(f"{where}: {name} is token {getattr(config, name)}, but the vocabulary has {limit}")
    return config


def _at(values: Mapping[str, Any], path: str) -> Any:
    for name in path.split("."):
        values = values[name]
    return values
