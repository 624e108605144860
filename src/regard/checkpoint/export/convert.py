"""Turn a model folder into one that other tools read, or one from elsewhere into ours."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.positions import sinusoids
from regard.checkpoint import atomic, causal_dir, native, pickle_weights, weights
from regard.checkpoint.encoder_dir import LoadedEncoder, load_encoder, save_encoder, serialize_tokenizer
from regard.checkpoint.export import onnx
from regard.checkpoint.export.engine import save_engine_causal, save_engine_encoder, save_engine_translator
from regard.checkpoint.export.shortlist import TrainedShortlist
from regard.checkpoint.hf import causal, encoder_decoders, encoders
from regard.checkpoint.hf.encoder_types import KINDS
from regard.checkpoint.hf.sentence_transformers import MODULES, read_modules, serialize_modules, write_pooling
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CARD, CONFIG, TASK_FILE
from regard.checkpoint.model_dir import (
    LoadedTranslator,
    folder_task,
    has_only_pickled_weights,
    load_translator,
    read_tensor_entries,
    save_translator,
)
from regard.checkpoint.native import copy_native
from regard.checkpoint.run_dir import folder_kind
from regard.checkpoint.tokenizer_files import TOKENIZER
from regard.checkpoint.weights import WeightReport
from regard.config.defaults import usage_hint
from regard.config.models import StackConfig, TransformerConfig
from regard.errors import CheckpointError, ConfigError, UsageError, nearest
from regard.tasks.masked_lm import COUNTS
from regard.text.tokenizer import Tokenizer

TOOLS = {"huggingface": "transformers", "ctranslate2": "CTranslate2", "onnx": "ONNX"}
OWN_KINDS = {*native.MEMORY_NETWORK_TYPES, *native.RNN_TEXT_TYPES}  # families that others do not know
_NEVER = -1e4  # bias of tokens that are never written: beyond any logit, within half precision


@dataclass(frozen=True)
class ConversionResult:
    """What a conversion made."""

    folder: Path
    model_type: str  # what the folder is to those who read it
    report: WeightReport


def convert(
    folder: str | Path,
    out: str | Path,
    *,
    format: str = "huggingface",
    precision: str | None = None,
    shortlist: Sequence[str | Path] = (),
) -> ConversionResult:
    """Write a model, ours, from elsewhere or a published one, into a new folder for others or for us.

    `huggingface` is for `transformers` (a refusal says what it cannot express), `ctranslate2` for CTranslate2, `onnx`
    for ONNX run-times (encoders, with any head), and `regard` for ourselves: a folder with safe weights and one kind of
    tokenizer file, whatever it came as. With a `precision` it is for our engine, in that number format, ready to use;
    from the parallel text of a `shortlist` it learns which few words a translation is chosen from, and what that costs.
    """
    if format not in _WRITERS:
        raise ConfigError(f"to must be one of {', '.join(_WRITERS)}, not {format!r}{nearest(format, _WRITERS)}")
    folder, out = resolve_model(folder), Path(out)
    if folder_kind(out) != "none":
        raise UsageError(f"{out} exists and is not empty: choose a new folder for the converted model")
    if shortlist and precision is None:
        raise ConfigError("a shortlist is for the engine: give --precision float32, bf16 or int8, too")
    atomic.recover(out)  # of an attempt that was killed
    if not (folder.is_dir() and has_only_pickled_weights(folder)):
        return _converted(folder, out, format, None, precision, shortlist)
    with tempfile.TemporaryDirectory() as room:
        pickle_weights.convert_pickled_weights(folder, Path(room))
        return _converted(folder, out, format, Path(room), precision, shortlist)


def _converted(
    folder: Path,
    out: Path,
    to: str,
    weights_from: Path | None,
    precision: str | None,
    shortlist: Sequence[str | Path],
) -> ConversionResult:
    """Write a folder's model; its weights may have been put somewhere else before."""
    config = atomic.published_path(folder) / CONFIG
    fields = atomic.read_json(config) if config.is_file() else {}
    if shortlist and fields and fields.get("model_type") not in encoder_decoders.ARCHITECTURES:
        raise UsageError(f"{folder}: a shortlist is for translators, which this is not")
    if encoders.is_encoder(fields):
        return _convert_encoder(folder, out, to, weights_from, precision)
    if fields.get("model_type") in causal_dir.TYPES:
        return _convert_gpt(folder, out, to, weights_from, precision)
    if precision is not None and fields.get("model_type") in OWN_KINDS:
        raise UsageError(
            f"{folder} cannot be written for the engine: it computes translators, encoders and causal models"
        )
    if fields.get("model_type") in OWN_KINDS:
        return _convert_own(folder, out, to, str(fields["model_type"]))
    if fields and fields.get("model_type") not in encoder_decoders.ARCHITECTURES:
        known = (*KINDS, *causal_dir.TYPES, *encoder_decoders.ARCHITECTURES, encoders.OWN, *sorted(OWN_KINDS))
        kind = fields.get("model_type")
        raise CheckpointError(f"{config}: a model of type {kind!r:.60}, which is not read: {', '.join(known)} are")
    model = load_translator(folder, weights_from=weights_from)
    if precision is not None:
        listed = TrainedShortlist.train(model, shortlist) if shortlist else None
        engine = save_engine_translator(
            model, folder, out, precision, _card(folder), listed.shortlist if listed else None
        )
        model.report.notes += listed.describe_effect(model, engine) if listed else []
        return ConversionResult(
            out, f"{encoder_decoders.translator_model_type(model.config)[0]} for the engine, {precision}", model.report
        )
    return ConversionResult(out, _WRITERS[to](model, folder, out), model.report)


def _convert_encoder(
    folder: Path, out: Path, to: str, weights_from: Path | None, precision: str | None
) -> ConversionResult:
    _refuse(folder, to, "ctranslate2", "an encoder; translators can")
    model = load_encoder(folder, weights_from=weights_from)
    kind, why = encoders.hf_model_type(model.config, model.model_type)
    if to == "onnx":
        _to_onnx(model, kind, folder, out)
        return ConversionResult(out, f"onnx, a {model.config.head} {kind}", model.report)
    if kind == encoders.OWN and to == "huggingface" and precision is None:
        raise UsageError(f"{folder} cannot be written for transformers: {why}")
    sentences = (model.path / MODULES).exists()
    modules = read_modules(model.path)
    besides = (serialize_modules(modules) if sentences else {}) | _counts(model.path)
    if precision is not None:
        save_engine_encoder(model, folder, out, precision, _card(folder), besides)
        if sentences:
            write_pooling(out, modules, model.config.hidden_size)
        return ConversionResult(out, f"{kind} for the engine, {precision}", model.report)
    save_encoder(
        out,
        model.config,
        model.weights,
        tokenizer=model.tokenizer,
        task=str(model.task.get("task", "")),
        facts={name: value for name, value in model.task.items() if name not in ("task", "version")},
        card=_card(folder),
        labels=model.labels,
        problem=model.problem_type,
        kind=model.model_type,
        fields=model.hf_config,
        max_length=model.max_length,
        extra_files=besides,
    )
    if sentences:
        write_pooling(out, modules, model.config.hidden_size)
    return ConversionResult(out, kind, model.report)


def _to_onnx(model: LoadedEncoder, kind: str, folder: Path, out: Path) -> None:
    """Write an encoder's graph, and beside it the tokenizer, the labels and what was tuned."""
    labels = encoders.LabelNames(model.labels, model.problem_type)
    contents: dict[str, atomic.Content] = {
        onnx.FILE: onnx.drawn(model.config, model.weights, str(folder)),
        CONFIG: atomic.json_bytes(encoders.write_config(model.config, kind, labels, model.hf_config)),
        **serialize_tokenizer(model.tokenizer, model.config, model.max_length),
        **({TASK_FILE: atomic.json_bytes(model.task)} if model.task else {}),
        CARD: _card(folder).encode(),
    }
    atomic.write_folder(out, contents)


def _counts(path: Path) -> dict[str, bytes]:
    """Return the file of how often each token was met in pre-training, where a folder has it."""
    return {COUNTS: (path / COUNTS).read_bytes()} if (path / COUNTS).is_file() else {}


def _convert_gpt(
    folder: Path, out: Path, to: str, weights_from: Path | None, precision: str | None
) -> ConversionResult:
    _refuse(folder, to, "ctranslate2", "a causal language model; translators can")
    _refuse(folder, to, "onnx", "a causal language model; encoders can")
    model = causal_dir.load_causal_lm(folder, weights_from=weights_from)
    kind, why = causal.causal_model_type(model.config)
    if precision is not None:
        save_engine_causal(model, folder, out, precision, _card(folder))
        return ConversionResult(out, f"{kind or causal_dir.OWN} for the engine, {precision}", model.report)
    if why and to == "huggingface":
        raise UsageError(f"{folder} cannot be written for transformers: {why}")
    causal_dir.save_causal_lm(
        out,
        model.config,
        model.weights,
        tokenizer=model.tokenizer,
        facts={name: value for name, value in model.task.items() if name not in ("task", "version")},
        card=_card(folder),
        fields=model.hf_config,
    )
    return ConversionResult(out, kind or causal_dir.OWN, model.report)


def _convert_own(folder: Path, out: Path, to: str, kind: str) -> ConversionResult:
    """Copy a model of a family that others do not know, without what a run has beside it."""
    task = folder_task(folder)
    if to != "regard":
        raise UsageError(
            f"{folder} cannot be written for {TOOLS[to]}: a {kind.removeprefix('regard-').replace('-', ' ')} model is "
            f"for Regard alone{usage_hint(task)}; --to regard copies it"
        )
    copy_native(folder, out, (CONFIG, weights.FILE, TOKENIZER, native.VOCABULARY, TASK_FILE, CARD))
    if (folder / native.FEATURES).is_dir():
        native.copy_features(folder / native.FEATURES, out)
    found = list(read_tensor_entries(atomic.published_path(folder)))
    return ConversionResult(out, kind, WeightReport(loaded=found))


def _refuse(folder: Path, to: str, refused: str, why: str) -> None:
    if to == refused:
        raise UsageError(f"{folder} cannot be written for {TOOLS[to]}: {why}")


def _card(folder: Path) -> str:
    card = folder / "README.md"
    return card.read_text(encoding="utf-8", errors="replace") if card.is_file() else f"# {folder.name}\n"


def _to_regard(model: LoadedTranslator, folder: Path, out: Path) -> str:
    return _save(model, folder, out)


def _to_huggingface(model: LoadedTranslator, folder: Path, out: Path) -> str:
    kind, why = encoder_decoders.translator_model_type(model.config)
    if kind in encoder_decoders.OWN:
        other = "; --to ctranslate2 may do" if isinstance(model.config, TransformerConfig) else ""
        raise UsageError(
            f"{folder} cannot be written for transformers: {why}, which neither Marian nor Pegasus has{other}"
        )
    return _save(model, folder, out)


def _save(model: LoadedTranslator, folder: Path, out: Path) -> str:
    save_translator(
        out,
        model.config,
        model.weights,
        tokenizers={"source": model.source, "target": model.target},
        decoding=model.decoding,
        task={name: value for name, value in model.task.items() if name != "decoding"},
        card=_card(folder),
        fields=model.hf_config,
    )
    return encoder_decoders.translator_model_type(model.config)[0]


def _to_ctranslate2(model: LoadedTranslator, folder: Path, out: Path) -> str:
    spec = _specification(model, folder)
    with tempfile.TemporaryDirectory() as room:
        spec.save(room)
        contents: dict[str, atomic.Content] = {path.name: path.read_bytes() for path in sorted(Path(room).iterdir())}
    contents["tokenizer.json"] = model.source.to_json().encode()
    if model.source.digest != model.target.digest:
        contents["target_tokenizer.json"] = model.target.to_json().encode()
    atomic.write_folder(out, contents)
    return "ctranslate2"


def _specification(model: LoadedTranslator, folder: Path) -> Any:
    """Return CTranslate2's description of a model, with its weights."""
    try:
        from ctranslate2.specs import common_spec, transformer_spec
    except ImportError:
        raise UsageError("CTranslate2 is not installed: `pip install 'regard[convert]'`") from None
    config = model.config
    if not isinstance(config, TransformerConfig):
        raise UsageError(f"{folder} cannot be written for CTranslate2: a recurrent model")
    activations = {
        "relu": common_spec.Activation.RELU,
        "gelu": common_spec.Activation.GELU,
        "gelu_tanh": common_spec.Activation.GELUTanh,
        "silu": common_spec.Activation.SWISH,
        "tanh": common_spec.Activation.Tanh,
        "quick_gelu": common_spec.Activation.GELUSigmoid,
    }
    if config.positions == "rotary":
        raise UsageError(f"{folder} cannot be written for CTranslate2: rotary positions in an encoder–decoder")
    settings = {"pre_norm": config.norm == "before", "activation": activations[config.activation]}
    weights = {name: tensor.numpy() for name, tensor in model.weights.items()}
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(config.encoder.num_layers, config.encoder.num_heads, **settings),
        transformer_spec.TransformerDecoderSpec(config.decoder.num_layers, config.decoder.num_heads, **settings),
    )
    sides = (
        ("source", "encoder", spec.encoder, spec.encoder.embeddings[0], config.encoder),
        ("target", "decoder", spec.decoder, spec.decoder.embeddings, config.decoder),
    )
    for side, part, stack, embedding, shape in sides:
        embedding.weight = weights["words.weight" if config.share_embeddings else f"{side}_words.weight"]
        stack.scale_embeddings = config.scale_embedding
        stack.position_encodings.encodings = _places(config, model.weights, side)
        _fill_stack(stack, part, shape, weights)
    spec.decoder.projection.weight = (
        weights["output.weight"] if not config.tie_embeddings else spec.decoder.embeddings.weight
    )
    bias = weights.get("output_bias", np.zeros(config.target_vocab_size, np.float32)).copy()
    bias[sorted({config.pad_id, config.bos_id} - {config.eos_id})] = _NEVER
    spec.decoder.projection.bias = bias
    spec.config.add_attribute("layer_norm_epsilon", config.norm_eps)
    source, target = _names(model.source, config.source_vocab_size), _names(model.target, config.target_vocab_size)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.unk_token = target[model.target.unk_id] if model.target.unk_id >= 0 else target[config.eos_id]
    spec.config.bos_token = spec.config.decoder_start_token = target[config.bos_id]
    spec.config.eos_token = target[config.eos_id]
    spec.validate()
    spec.optimize()
    return spec


def _fill_stack(stack: Any, part: str, shape: StackConfig, weights: dict[str, np.ndarray]) -> None:
    def fill(target: Any, name: str, kinds: tuple[str, str] = ("weight", "bias")) -> None:
        for kind, stored in zip(kinds, ("weight", "bias"), strict=True):
            setattr(target, kind, weights[f"{part}.{name}.{stored}"])

    norm = ("gamma", "beta")
    for number in range(shape.num_layers):
        layer, block = stack.layer[number], f"blocks.{number}"
        fill(layer.self_attention.linear[0], f"{block}.attention.qkv")
        fill(layer.self_attention.linear[1], f"{block}.attention.out")
        fill(layer.self_attention.layer_norm, f"{block}.attention_norm", norm)
        fill(layer.ffn.linear_0, f"{block}.feedforward.inner")
        fill(layer.ffn.linear_1, f"{block}.feedforward.outer")
        fill(layer.ffn.layer_norm, f"{block}.feedforward_norm", norm)
        if part == "decoder":
            fill(layer.attention.linear[0], f"{block}.cross.query")
            fill(layer.attention.linear[1], f"{block}.cross.key_value")
            fill(layer.attention.linear[2], f"{block}.cross.out")
            fill(layer.attention.layer_norm, f"{block}.cross_norm", norm)
    if f"{part}.norm.weight" in weights:
        fill(stack.layer_norm, "norm", norm)


def _places(config: TransformerConfig, weights: dict[str, Tensor], side: str) -> np.ndarray:
    """Return the table that is added to the words, [places, D]."""
    if config.positions == "learned":
        return weights[f"{side}_positions.weight"].numpy()
    if config.positions == "sinusoidal":
        return sinusoids(torch.arange(config.max_positions), config.hidden_size).numpy()
    return np.zeros((config.max_positions, config.hidden_size), np.float32)


def _names(tokenizer: Tokenizer, size: int) -> list[str]:
    """Return the vocabulary as text, one name for each row of the embedding."""
    return [tokenizer.backend.id_to_token(number) or f"<row {number}>" for number in range(size)]


def _no_onnx(model: LoadedTranslator, folder: Path, out: Path) -> str:
    raise UsageError(f"{folder} cannot be written for ONNX: a translator; encoders can, and --to ctranslate2 may do")


_WRITERS: dict[str, Callable[[LoadedTranslator, Path, Path], str]] = {
    "huggingface": _to_huggingface,
    "regard": _to_regard,
    "ctranslate2": _to_ctranslate2,
    "onnx": _no_onnx,
}
