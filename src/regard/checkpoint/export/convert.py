"""Convert a model folder for other tools or for the engine, or a folder from elsewhere into one of ours."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.checkpoint import atomic, causal_dir, native, pickle_weights, weights
from regard.checkpoint.encoder_dir import load_encoder, save_encoder, serialize_tokenizer
from regard.checkpoint.export import onnx
from regard.checkpoint.export.ctranslate2 import save_ctranslate2
from regard.checkpoint.export.engine import (
    save_engine_causal,
    save_engine_encoder,
    save_engine_translator,
    without_keys,
)
from regard.checkpoint.export.shortlist import TrainedShortlist
from regard.checkpoint.feature_dir import FEATURES, copy_features
from regard.checkpoint.hf import causal, encoder_decoders, encoders
from regard.checkpoint.hf.encoder_types import ENCODER_TYPES, NATIVE_TYPE
from regard.checkpoint.hf.sentence_transformers import MODULES, read_modules, serialize_modules, write_pooling
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CARD, CONFIG, TASK_FILE, read_task_file
from regard.checkpoint.model_dir import (
    folder_task,
    has_only_pickled_weights,
    load_translator,
    read_tensor_entries,
    save_translator,
)
from regard.checkpoint.model_types import check_model_type, native_family
from regard.checkpoint.native import copy_native
from regard.checkpoint.run_dir import folder_kind
from regard.checkpoint.source import EncoderSource, TranslatorSource
from regard.checkpoint.tokenizer_files import TOKENIZER
from regard.checkpoint.weights import WeightReport
from regard.config.models import TransformerConfig
from regard.errors import ConfigError, UsageError, nearest
from regard.registry import usage_hint
from regard.tasks.masked_lm import TOKEN_COUNTS_FILE

FORMATS = ("huggingface", "regard", "ctranslate2", "onnx")
TOOLS = {"huggingface": "transformers", "ctranslate2": "CTranslate2", "onnx": "ONNX"}
_OTHER_TYPES = (*ENCODER_TYPES, NATIVE_TYPE, *causal_dir.MODEL_TYPES, *encoder_decoders.ARCHITECTURES)


@dataclass(frozen=True)
class ConversionResult:
    """Folder that a conversion wrote."""

    folder: Path
    model_type: str  # for the tools that read it
    report: WeightReport

    def to_dict(self) -> dict[str, Any]:
        """JSON form of the result."""
        return {"folder": str(self.folder), "model_type": self.model_type, "report": vars(self.report)}


@dataclass(frozen=True)
class _ConversionRequest:
    """Arguments of `convert`, and where the weights are."""

    folder: Path
    out: Path
    format: str
    precision: str | None
    shortlist: Sequence[str | Path]
    weights_from: Path | None = None

    def reject(self, reason: str) -> UsageError:
        """Error that the model cannot be written in the requested format."""
        tool = "the engine" if self.precision is not None else TOOLS[self.format]
        return UsageError(f"{self.folder} cannot be written for {tool}: {reason}")

    def read_card(self) -> str:
        """Model card of the folder; a heading where there is none."""
        card = self.folder / CARD
        if not card.is_file():
            return f"# {self.folder.name}\n"
        return card.read_text(encoding="utf-8", errors="replace")


def convert(
    folder: str | Path,
    out: str | Path,
    *,
    format: str = "huggingface",
    precision: str | None = None,
    shortlist: Sequence[str | Path] = (),
) -> ConversionResult:
    """Convert a model folder, ours or from elsewhere, or a hub model into a new folder.

    `huggingface` is for `transformers` (an error says what it cannot express), `ctranslate2` for CTranslate2, `onnx`
    for ONNX run-times (encoders with any head, causal language models), `regard` for ourselves: a folder with
    safetensors and tokenizer.json, whatever the source has. With a `precision` it is an engine folder in that
    precision. `shortlist` names files of parallel text, from which the engine folder gets a shortlist; its effect is
    measured and reported.
    """
    if format not in FORMATS:
        raise ConfigError(f"to must be one of {', '.join(FORMATS)}, not {format!r}{nearest(format, FORMATS)}")
    folder = resolve_model(folder)
    out = Path(out)
    if folder_kind(out) != "none":
        raise UsageError(f"{out} exists and is not empty: choose a new folder for the converted model")
    if shortlist and precision is None:
        raise ConfigError("a shortlist is for the engine: pass --precision float32, bf16 or int8, too")
    atomic.recover(out)  # from an interrupted conversion
    if not (folder.is_dir() and has_only_pickled_weights(folder)):
        return _convert(_ConversionRequest(folder, out, format=format, precision=precision, shortlist=shortlist))
    with tempfile.TemporaryDirectory() as temporary:
        pickle_weights.convert_pickled_weights(folder, Path(temporary))
        request = _ConversionRequest(
            folder,
            out,
            format=format,
            precision=precision,
            shortlist=shortlist,
            weights_from=Path(temporary),
        )
        return _convert(request)


def _convert(request: _ConversionRequest) -> ConversionResult:
    """Convert by the family of the folder's model."""
    config_file = atomic.published_path(request.folder) / CONFIG
    read_task_file(config_file.parent)  # first: the version shows an older folder
    hf_config = atomic.read_json(config_file) if config_file.is_file() else {}
    if hf_config:
        check_model_type(hf_config, str(config_file))
    model_type = hf_config.get("model_type")
    is_translator = not hf_config or model_type in encoder_decoders.ARCHITECTURES
    if request.shortlist and not is_translator:
        raise UsageError(f"{request.folder}: a shortlist is for translators, which this is not")
    if encoders.is_encoder(hf_config):
        return _convert_encoder(request)
    if model_type in causal_dir.MODEL_TYPES:
        return _convert_causal_lm(request)
    if model_type not in _OTHER_TYPES and native_family(model_type):
        return _convert_native(request, str(model_type))
    return _convert_translator(request)


def _convert_translator(request: _ConversionRequest) -> ConversionResult:
    model = load_translator(request.folder, weights_from=request.weights_from)
    model_type, reason = encoder_decoders.translator_model_type(model.config)
    if request.precision is not None:
        _save_engine_translator(model, request, request.precision)
        return ConversionResult(request.out, f"{model_type} for the engine, {request.precision}", model.report)
    if request.format == "onnx":
        raise request.reject("a translation model; encoders and causal language models can: try --to ctranslate2")
    if request.format == "ctranslate2":
        save_ctranslate2(model, request.folder, request.out)
        return ConversionResult(request.out, "ctranslate2", model.report)
    if request.format == "huggingface" and model_type in encoder_decoders.NATIVE_TYPES:
        advice = "; --to ctranslate2 may do" if isinstance(model.config, TransformerConfig) else ""
        raise request.reject(f"{reason}, which neither Marian nor Pegasus has{advice}")
    save_translator(
        request.out,
        model.config,
        model.weights,
        tokenizers={"source": model.source, "target": model.target},
        decoding=model.decoding,
        metadata=without_keys(model.metadata, "decoding"),
        card=request.read_card(),
        original_config=model.hf_config,
    )
    return ConversionResult(request.out, model_type, model.report)


def _save_engine_translator(model: TranslatorSource, request: _ConversionRequest, precision: str) -> None:
    """Write an engine folder; the report describes the effect of the shortlist, if there is one."""
    card = request.read_card()
    if not request.shortlist:
        save_engine_translator(model, request.folder, request.out, precision, card)
        return
    trained = TrainedShortlist.train(model, request.shortlist)
    engine = save_engine_translator(model, request.folder, request.out, precision, card, trained.shortlist)
    model.report.notes.extend(trained.describe_effect(model, engine))


def _convert_encoder(request: _ConversionRequest) -> ConversionResult:
    if request.format == "ctranslate2":
        raise UsageError(f"{request.folder} cannot be written for CTranslate2: an encoder; translators can")
    model = load_encoder(request.folder, weights_from=request.weights_from)
    model_type, reason = encoders.hf_model_type(model.config, model.model_type)
    if request.format == "onnx":
        _save_onnx(model, model_type, request)
        return ConversionResult(request.out, f"onnx, a {model.config.head} {model_type}", model.report)
    if model_type == NATIVE_TYPE and request.format == "huggingface" and request.precision is None:
        raise request.reject(reason)
    modules = read_modules(model.path)
    has_modules = (model.path / MODULES).exists()
    extra_files = _read_counts(model.path)
    if has_modules:
        extra_files = serialize_modules(modules) | extra_files
    if request.precision is not None:
        save_engine_encoder(model, request.folder, request.out, request.precision, request.read_card(), extra_files)
        described_type = f"{model_type} for the engine, {request.precision}"
    else:
        _save_encoder(model, request, extra_files)
        described_type = model_type
    if has_modules:
        write_pooling(request.out, modules, model.config.hidden_size)
    return ConversionResult(request.out, described_type, model.report)


def _save_encoder(model: EncoderSource, request: _ConversionRequest, extra_files: dict[str, bytes]) -> None:
    save_encoder(
        request.out,
        model.config,
        model.weights,
        tokenizer=model.tokenizer,
        task=str(model.metadata.get("task", "")),
        metadata=without_keys(model.metadata, "task", "version"),
        card=request.read_card(),
        labels=model.labels,
        problem_type=model.problem_type,
        preferred_type=model.model_type,
        original_config=model.hf_config,
        max_length=model.max_length,
        extra_files=extra_files,
    )


def _save_onnx(model: EncoderSource, model_type: str, request: _ConversionRequest) -> None:
    """Write an encoder's graph, and beside it config, labels, tokenizer and tuned settings."""
    labels = encoders.LabelNames(model.labels, model.problem_type)
    hf_config = encoders.config_to_hf(model.config, model_type, labels, model.hf_config)
    contents: dict[str, atomic.Content] = {
        onnx.FILE: onnx.serialize_encoder(model.config, model.weights, str(request.folder)),
        CONFIG: atomic.json_bytes(hf_config),
        **serialize_tokenizer(model.tokenizer, model.config, model.max_length),
    }
    if model.metadata:
        contents[TASK_FILE] = atomic.json_bytes(model.metadata)
    contents[CARD] = request.read_card().encode()
    atomic.write_folder(request.out, contents)


def _read_counts(path: Path) -> dict[str, bytes]:
    """File of the token counts of pre-training, where a folder has it."""
    return {TOKEN_COUNTS_FILE: (path / TOKEN_COUNTS_FILE).read_bytes()} if (path / TOKEN_COUNTS_FILE).is_file() else {}


def _convert_causal_lm(request: _ConversionRequest) -> ConversionResult:
    if request.format == "ctranslate2":
        raise UsageError(
            f"{request.folder} cannot be written for CTranslate2: a causal language model; translators can"
        )
    model = causal_dir.load_causal_lm(request.folder, weights_from=request.weights_from)
    hf_type, reason = causal.causal_model_type(model.config)
    model_type = hf_type or causal.NATIVE_TYPE
    if request.precision is not None and request.format != "onnx":
        save_engine_causal(model, request.folder, request.out, request.precision, request.read_card())
        return ConversionResult(request.out, f"{model_type} for the engine, {request.precision}", model.report)
    if reason and request.format == "huggingface":
        raise request.reject(reason)
    weight_files: dict[str, atomic.Content] | None = None
    if request.format == "onnx":
        weight_files = {onnx.FILE: onnx.serialize_causal_lm(model.config, model.weights, str(request.folder))}
    causal_dir.save_causal_lm(
        request.out,
        model.config,
        model.weights,
        tokenizer=model.tokenizer,
        metadata=without_keys(model.metadata, "task", "version"),
        card=request.read_card(),
        original_config=model.hf_config,
        weight_files=weight_files,
    )
    described_type = f"onnx, a causal {model_type}" if request.format == "onnx" else model_type
    return ConversionResult(request.out, described_type, model.report)


def _convert_native(request: _ConversionRequest, model_type: str) -> ConversionResult:
    """Copy a model of a family that only Regard has, without the other files of a run."""
    folder = request.folder
    if request.precision is not None:
        raise request.reject("it computes translators, encoders and causal models")
    task = folder_task(folder)
    if request.format != "regard":
        raise request.reject(
            f"a model of type {model_type} is for Regard alone{usage_hint(task)}; --to regard copies it"
        )
    copy_native(folder, request.out, (CONFIG, weights.FILE, TOKENIZER, native.VOCABULARY, TASK_FILE, CARD))
    if (folder / FEATURES).is_dir():
        copy_features(folder / FEATURES, request.out)
    names = list(read_tensor_entries(atomic.published_path(folder)))
    return ConversionResult(request.out, model_type, WeightReport(loaded=names))
