"""Frozen features of a model folder of any family that has them: ELMo, encoder, causal language model, translator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint import atomic
from regard.checkpoint.causal_dir import MODEL_TYPES, load_causal_lm
from regard.checkpoint.encoder_dir import load_encoder
from regard.checkpoint.hf.encoder_decoders import ARCHITECTURES
from regard.checkpoint.hf.encoders import is_encoder
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CONFIG, resolve_model_path
from regard.checkpoint.model_dir import load_translator
from regard.checkpoint.model_files import folder_digest
from regard.checkpoint.model_types import check_model_type, native_type
from regard.checkpoint.native import LoadedTextModel, load_text_model
from regard.config.models import GptConfig
from regard.config.rnn_models import ElmoConfig, TranslationModelConfig
from regard.errors import CheckpointError
from regard.models import build_model
from regard.models.base import Model, Packable, move_to_device
from regard.models.elmo import Elmo
from regard.tasks.frozen_features import FeatureLayers, FeatureModel, FrozenFeatures
from regard.text.special_tokens import SpecialTokens

AnyFeatures = FrozenFeatures[Any]
# layers that are read by default
ELMO_LAYERS = "mix"  # Peters et al. (2018), equation 1
ENCODER_LAYERS = "last4"  # best without fine-tuning in Devlin et al. (2019), table 7
CAUSAL_LAYERS = "mix"  # the last layers are specialised in the next token (Liu et al. 2019)
TRANSLATOR_LAYERS = "last"  # of the encoder (McCann et al. 2017)
_ELMO_TYPE = native_type(ElmoConfig().family)


def load_frozen_features(
    folder: str | Path, layers: str = "auto", *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> AnyFeatures:
    """Load a model as frozen features, whatever its family; `layers` is a choice of `--feature-layers`."""
    load = find_feature_loader(folder)
    features = load(resolve_model(folder), layers)
    prepare_features(features, device, dtype)
    return features


def find_feature_loader(folder: str | Path) -> Callable[[Path, str], AnyFeatures]:
    """Function that loads a folder as frozen features; a folder whose layers are not features is refused."""
    path = resolve_model_path(resolve_model(folder))
    fields = atomic.read_json(path / CONFIG)
    check_model_type(fields, str(path / CONFIG))
    model_type = fields.get("model_type")
    if is_encoder(fields):
        return _load_encoder
    if model_type in MODEL_TYPES:
        return _load_causal_lm
    if model_type in ARCHITECTURES:
        return _load_translator
    if model_type == _ELMO_TYPE:
        return _load_elmo
    raise CheckpointError(
        f"{folder}: a model of type {model_type!r:.60}, whose layers are not features: ELMo, a BERT-style encoder, "
        "a causal language model or a translation model is needed"
    )


def prepare_features(features: AnyFeatures, device: str, dtype: torch.dtype) -> None:
    """Freeze the model of the features, move it to its device and prepack it."""
    model: Model = features.model
    move_to_device(model, device, dtype).eval().requires_grad_(False)
    if isinstance(model, Packable):
        model.pack()


def _select(layers: str, default: str, model: FeatureModel) -> FeatureLayers:
    return FeatureLayers.select(default if layers == "auto" else layers, model)


def elmo_features(loaded: LoadedTextModel[ElmoConfig], layers: str = "auto") -> FrozenFeatures[Elmo]:
    """Features of an ELMo folder that was read."""
    model: Elmo = build_model(loaded.config)
    model.load_state_dict(loaded.weights)
    selection = _select(layers, ELMO_LAYERS, model)
    return FrozenFeatures(model, loaded.tokenizer, selection=selection, digest=loaded.digest)


def _load_elmo(path: Path, layers: str) -> AnyFeatures:
    return elmo_features(load_text_model(path, ElmoConfig, "elmo"), layers)


def _load_encoder(path: Path, layers: str) -> AnyFeatures:
    source = load_encoder(path, head="plain")
    model = source.model()
    template = SpecialTokens(source.tokenizer).single_template
    return FrozenFeatures(
        model,
        source.tokenizer,
        selection=_select(layers, CAUSAL_LAYERS if source.config.causal else ENCODER_LAYERS, model),
        digest=folder_digest(path),
        family=source.config.family,
        before=template.before,
        after=template.after,
        max_length=source.max_length,
    )


def _load_causal_lm(path: Path, layers: str) -> AnyFeatures:
    source = load_causal_lm(path)
    model = _build(source.config, source.weights)
    eos_id = source.config.eos_id
    return FrozenFeatures(
        model,
        source.tokenizer,
        selection=_select(layers, CAUSAL_LAYERS, model),
        digest=folder_digest(path),
        family=source.config.family,
        before=(eos_id,) if eos_id >= 0 else (),  # the boundary of documents in training
        max_length=source.config.max_positions,
    )


def _load_translator(path: Path, layers: str) -> AnyFeatures:
    source = load_translator(path)
    model = _build(source.config, source.weights)
    return FrozenFeatures(
        model,
        source.source,
        selection=_select(layers, TRANSLATOR_LAYERS, model),
        digest=folder_digest(path),
        family=source.config.family,
        after=(source.config.eos_id,),
        max_length=source.config.max_positions,
    )


def _build(config: GptConfig | TranslationModelConfig, weights: dict[str, torch.Tensor]) -> Any:
    model: Model = build_model(config)
    model.load_state_dict(weights)
    return model
