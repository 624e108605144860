"""LoRA adapters in peft's format: a small folder beside a base model.

adapter_config.json         rank, scale and modules, and the name of the base model
adapter_model.safetensors   A and B of each module, and whole modules that were trained besides (the head)
config.json, tokenizer …    of the adapted model, where Regard wrote the folder; otherwise those of the base are used

A folder of this kind is read as a model: base and adapter are merged into a folder in the user's cache, which keeps
few of them (`adapter_cache`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.checkpoint import atomic, weights
from regard.checkpoint.adapter_cache import use_merged
from regard.checkpoint.hf import causal, encoder_decoders, encoder_weights
from regard.checkpoint.hub import ADAPTER_CONFIG, is_hub_name, resolve_model
from regard.checkpoint.locate import CARD, CONFIG, resolve_model_path, verify, verifying
from regard.checkpoint.model_dir import FamilyConfig, build_meta_model, read_tensor_entries
from regard.config.models import BertConfig, GptConfig, TransformerConfig
from regard.errors import CheckpointError
from regard.models.layers.lora import LORA_A, LORA_B, adapted_layers, block_matrix

ADAPTER_FOLDER = "adapter"  # in the folder of the adapted model
ADAPTER_WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."  # of all names in an adapter file
TASK_TYPES = {  # ending of a class in transformers → peft's task type
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "MTModel": "SEQ_2_SEQ_LM",
}
HEAD_TASK_TYPES = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS")  # whose adapters bring a head that the base may lack
PLAIN_LORA: dict[str, Any] = {  # settings of peft that change what an adapter computes → their value in plain LoRA
    "bias": "none",
    "use_dora": False,
    "lora_bias": False,
    "use_qalora": False,
    "use_bdlora": None,
    "layer_replication": None,
    "trainable_token_indices": None,
    "target_parameters": None,
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "kasa_config": None,
    "monteclora_config": None,
    "megatron_config": None,
}
CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")  # initialisations that take B·A out of the base
_CLASSIFIER = re.compile(r"(classifier|score)(\.out_proj)?\.weight")
_COPIED_FILES = ("*.json", "*.txt", "*.model", "*.spm", "*/config.json")
_CACHE_VERSION = 1


@dataclass(frozen=True)
class Adapter:
    """A trained LoRA adapter."""

    base: str  # folder or hub name of the model that is adapted
    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]  # adapted projections
    lora_weights: Mapping[str, Tensor]  # A and B under our names
    trained: tuple[str, ...]  # beginnings of our names of weights that were trained besides


# ---- writing


def save_adapter(folder: Path, config: FamilyConfig, model_weights: Mapping[str, Tensor], adapter: Adapter) -> None:
    """Write the adapter of a model, which was saved in `folder`, to the folder `adapter` in it."""
    path = resolve_model_path(folder)
    hf_config = atomic.read_json(path / CONFIG)
    model_type = str(hf_config.get("model_type"))
    tensors, modules = _to_peft(config, model_type, model_weights, adapter)
    saved_modules, saved_tensors = _trained_modules(config, model_type, model_weights, adapter.trained)
    adapter_config = _adapter_config(adapter, modules) | {
        "task_type": _task_type(hf_config),
        "modules_to_save": saved_modules or None,
        "fan_in_fan_out": model_type == "gpt2",
    }
    _write_adapter(folder, adapter_config, tensors | saved_tensors)


def update_adapter(folder: Path) -> None:
    """Copy the files of a model that was saved again with the same weights to its adapter."""
    adapter_folder = folder / ADAPTER_FOLDER
    tensors = weights.read_tensors(adapter_folder / ADAPTER_WEIGHTS)
    _write_adapter(folder, atomic.read_json(adapter_folder / ADAPTER_CONFIG), tensors)


def _write_adapter(folder: Path, adapter_config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write an adapter beside its model, with a copy of the model's files except weights and card."""
    path = resolve_model_path(folder)
    names = set(atomic.read_manifest(path)) - {weights.FILE, CARD}
    contents: dict[str, atomic.Content] = {name: (path / name).read_bytes() for name in sorted(names)}
    contents[ADAPTER_CONFIG] = atomic.json_bytes(adapter_config)
    contents[ADAPTER_WEIGHTS] = weights.serialize_tensors(tensors)
    atomic.write_folder(folder / ADAPTER_FOLDER, contents, size=weights.tensor_bytes(tensors))


def _task_type(hf_config: Mapping[str, Any]) -> str | None:
    """Task type of peft for a model's config.json; None where peft has none that computes the same.

    >>> _task_type({"architectures": ["BertForTokenClassification"]})
    'TOKEN_CLS'
    """
    architecture = str((hf_config.get("architectures") or [""])[0])
    task_type = next((name for suffix, name in TASK_TYPES.items() if architecture.endswith(suffix)), None)
    # peft's class for question answering drops the token types, which tell a question from its passage
    return None if task_type == "QUESTION_ANS" else task_type


def _convert_names(config: FamilyConfig, model_type: str, model_weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights under Hugging Face's names; rows of fused ones are split."""
    if isinstance(config, BertConfig):
        return encoder_weights.to_hf_weights(config, model_type, model_weights)
    if isinstance(config, GptConfig):
        is_native = model_type not in causal.CAUSAL_TYPES
        return dict(model_weights) if is_native else causal.to_hf_weights(config, model_weights)
    assert isinstance(config, TransformerConfig)
    return encoder_decoders.to_hf_weights(config, model_weights)


def _to_peft(
    config: FamilyConfig, model_type: str, model_weights: Mapping[str, Tensor], adapter: Adapter
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """A and B of each Hugging Face module, by peft's names, and the rank of each module.

    The conversion of weights splits and permutes rows. B has the rows of its weight, so it is converted in its place,
    and beside it a mask that says where the rows come from.
    """
    parts_by_layer = adapted_layers(build_meta_model(config), adapter.targets)
    layers = list(parts_by_layer)
    blocks = {}
    masks = {}
    for index, (layer, parts) in enumerate(parts_by_layer.items()):
        lora_b = adapter.lora_weights[f"{layer}.{LORA_B}"].detach().cpu().float()
        blocks[f"{layer}.weight"] = block_matrix(lora_b, parts)
        masks[f"{layer}.weight"] = block_matrix(torch.full_like(lora_b, index + 1), parts)
    zeros = {name: _column(tensor, 0) for name, tensor in model_weights.items()}
    hf_zeros = _convert_names(config, model_type, zeros)
    hf_blocks = _convert_names(config, model_type, zeros | blocks)
    hf_masks = _convert_names(config, model_type, zeros | masks)
    tensors = {}
    ranks = {}
    for hf_name, mask in hf_masks.items():
        if not mask.any() or hf_zeros[hf_name].any():  # not adapted, or a constant of their format
            continue
        is_transposed = model_type == "gpt2"
        block = hf_blocks[hf_name].t() if is_transposed else hf_blocks[hf_name]
        columns = (mask.t() if is_transposed else mask).any(0)
        layer = layers[int(mask.max()) - 1]
        module = hf_name.removesuffix(".weight")
        lora_a = adapter.lora_weights[f"{layer}.{LORA_A}"].detach().cpu().float()
        tensors[f"{PREFIX}{module}.{LORA_A}.weight"] = lora_a[columns].contiguous()
        tensors[f"{PREFIX}{module}.{LORA_B}.weight"] = block[:, columns].contiguous()
        ranks[module] = int(columns.sum())
    return tensors, ranks


def _column(tensor: Tensor, value: float) -> Tensor:
    """A tensor with the rows of another one but a single column, filled with a value."""
    return tensor.new_full((len(tensor), 1) if tensor.dim() > 1 else tensor.shape, value)


def _trained_modules(
    config: FamilyConfig, model_type: str, model_weights: Mapping[str, Tensor], trained: tuple[str, ...]
) -> tuple[list[str], dict[str, Tensor]]:
    """Modules that were trained as a whole, and their weights by peft's names."""
    masks = {name: _column(tensor, name.startswith(trained)) for name, tensor in model_weights.items()}
    hf_masks = _convert_names(config, model_type, masks)
    hf_weights = _convert_names(config, model_type, {name: tensor.cpu() for name, tensor in model_weights.items()})
    names = [name for name, mask in hf_masks.items() if mask.any() and bool((mask == 1).all())]
    modules = {_outermost_module(name, names, hf_weights) for name in names}
    return sorted(modules), {PREFIX + name: hf_weights[name] for name in names}


def _outermost_module(name: str, trained: Sequence[str], names: Iterable[str]) -> str:
    """Outermost module of a weight, among these `names`, whose weights are all trained.

    >>> names = ["bert.embeddings.weight", "bert.pooler.dense.weight", "bert.pooler.dense.bias"]
    >>> _outermost_module("bert.pooler.dense.bias", names[1:], names)
    'bert.pooler'
    """
    path = name.split(".")[:-1]
    prefixes = [".".join(path[:depth]) for depth in range(1, len(path) + 1)]
    untrained = set(names) - set(trained)
    return next(prefix for prefix in prefixes if not any(other.startswith(f"{prefix}.") for other in untrained))


def _adapter_config(adapter: Adapter, ranks: Mapping[str, int]) -> dict[str, Any]:
    """Content of adapter_config.json; a fused module has the sum of the ranks of its parts, and the same scale."""
    rank = min(ranks.values())
    alpha = adapter.alpha * rank / adapter.rank
    others = {module: module_rank for module, module_rank in ranks.items() if module_rank != rank}
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": adapter.base if is_hub_name(adapter.base) else str(Path(adapter.base).resolve()),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": adapter.dropout,
        "target_modules": sorted(ranks),
        "rank_pattern": others,
        "alpha_pattern": {module: alpha * module_rank / rank for module, module_rank in others.items()},
        "bias": "none",
        "inference_mode": True,
    }


# ---- reading


def merge_adapter_folder(folder: Path) -> Path:
    """Merge an adapter's folder with its base; return the merged folder, which is in the user's cache."""
    file = folder / ADAPTER_CONFIG
    config = atomic.read_json(file)
    _check_supported(config, file)
    verify(folder)
    base = resolve_model_path(_resolve_base(config, folder))
    return use_merged(_cache_key(folder, base), lambda merged: _write_merged(merged, folder, base, config))


def _write_merged(merged: Path, folder: Path, base: Path, config: Mapping[str, Any]) -> None:
    """Write the model of a base and an adapter."""
    with verifying(base):
        tensors = weights.to_tensors(weights.read_arrays(read_tensor_entries(base)))
    adapter_tensors = weights.read_tensors(folder / ADAPTER_WEIGHTS)
    merged_tensors = AdapterMerger(config, tensors, adapter_tensors, where=f"{folder}: base {base}").merge()
    contents = _copied_files(base) | _copied_files(folder)
    contents.pop(ADAPTER_CONFIG)
    if not (folder / CONFIG).exists():
        contents[CONFIG] = atomic.json_bytes(_patch_config(atomic.read_json(base / CONFIG), config, merged_tensors))
        contents.pop("task.json", None)  # of the base, which may have another head
    contents[weights.FILE] = weights.serialize_tensors(merged_tensors)
    atomic.write_folder(merged, contents, size=weights.tensor_bytes(merged_tensors))


def _check_supported(config: Mapping[str, Any], file: Path) -> None:
    """Raise for adapters that are not plain LoRA."""
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{file}: an adapter of type {config.get('peft_type')!r:.40}; LORA is read")
    for name, plain_value in PLAIN_LORA.items():
        if config.get(name, plain_value) not in (plain_value, None):
            raise CheckpointError(
                f"{file}: {name} is {config[name]!r:.40}; plain LoRA is read: merge it with peft's merge_and_unload"
            )
    initialization = config.get("init_lora_weights")
    if str(initialization).startswith(CHANGED_BASES):
        raise CheckpointError(
            f"{file}: init_lora_weights is {initialization!r:.40}, which changes the base model, too: save the adapter "
            "with path_initial_model_for_weight_conversion, or merge it with peft's merge_and_unload"
        )


def _resolve_base(config: Mapping[str, Any], folder: Path) -> Path:
    """Folder of the base model: a path, also relative to the adapter, or a hub name."""
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{folder / ADAPTER_CONFIG}: base_model_name_or_path must name the base model")
    if (folder / name).is_dir():
        return resolve_model(folder / name)
    if config.get("revision") and is_hub_name(name) and "@" not in name:
        name = f"{name}@{config['revision']}"
    try:
        base = resolve_model(name)
    except CheckpointError as error:
        raise CheckpointError(f"{folder / ADAPTER_CONFIG}: base_model_name_or_path: {error}") from None
    if not base.is_dir():
        raise CheckpointError(
            f"{folder}: the base model {name} of this adapter is not there: put it there, or correct "
            f"base_model_name_or_path in {ADAPTER_CONFIG} and delete {atomic.MANIFEST} beside it"
        )
    return base


def _cache_key(folder: Path, base: Path) -> str:
    """Digest of the adapter's files, and of names, sizes and times of those of the base."""
    digest = hashlib.sha256(f"{_CACHE_VERSION} {base.resolve()}".encode())
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    for file in sorted(path for path in base.iterdir() if path.is_file()):
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]


def _copied_files(folder: Path) -> dict[str, atomic.Content]:
    """Files of a model's folder except weights, card and manifest."""
    files = [file for pattern in _COPIED_FILES for file in sorted(folder.glob(pattern)) if file.is_file()]
    skipped = (atomic.MANIFEST, "run.json", weights.INDEX)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.name not in skipped}


def _patch_config(
    base_config: dict[str, Any], adapter_config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Config of the base with the head that the adapter adds."""
    config = dict(base_config)
    task_type = adapter_config.get("task_type")
    architectures = config.get("architectures")
    if task_type in HEAD_TASK_TYPES and isinstance(architectures, list) and architectures:
        suffix = next(ending for ending, ending_type in TASK_TYPES.items() if ending_type == task_type)
        config["architectures"] = [re.sub(r"(Model|For\w+)$", "", str(architectures[0])) + suffix]
    for name, tensor in tensors.items():
        if _CLASSIFIER.fullmatch(name) and len(config.get("id2label") or {}) != len(tensor):
            config["id2label"] = {str(index): f"LABEL_{index}" for index in range(len(tensor))}
            config["label2id"] = {f"LABEL_{index}": index for index in range(len(tensor))}
    return config


class AdapterMerger:
    """Merges the tensors of an adapter with those of its base, all under Hugging Face's names.

    A base that was saved without a head lacks the prefix of its model class (`bert.`), which the adapter has, or the
    other way round.
    """

    def __init__(
        self, config: Mapping[str, Any], base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], where: str
    ) -> None:
        self.config = config
        self.base = base
        self.adapter = {_plain_name(name): tensor for name, tensor in adapter.items()}
        self.where = where

    def merge(self) -> dict[str, Tensor]:
        """Base weights with s·B·A added, and the modules that the adapter replaces."""
        modules = [name.removesuffix(f".{LORA_A}.weight") for name in self.adapter if name.endswith(f"{LORA_A}.weight")]
        if not modules:
            raise CheckpointError(f"{self.where}: the adapter has no LoRA weights")
        base_prefix, adapter_prefix = self._match_prefixes(modules[0])
        merged = {base_prefix + name: tensor for name, tensor in self.base.items()}
        lora_names = set()
        for module in modules:
            names = (f"{module}.{LORA_A}.weight", f"{module}.{LORA_B}.weight")
            lora_names |= set(names)
            name = f"{adapter_prefix}{module}.weight"
            if name not in merged or names[1] not in self.adapter:
                raise CheckpointError(f"{self.where}: the adapter is for {module}, which the base lacks")
            merged[name] = self._add_product(merged[name].float(), module, name)
        for name, tensor in self.adapter.items():
            if name in lora_names:
                continue
            if "lora_" in name or "trainable_tokens" in name:
                raise CheckpointError(f"{self.where}: {name} is not plain LoRA: merge it with peft's merge_and_unload")
            merged[adapter_prefix + name] = tensor.float()
        return merged

    def _match_prefixes(self, module: str) -> tuple[str, str]:
        """Prefixes to add to the names of base and adapter, so that they agree; at most one is not empty."""
        name = f"{module}.weight"
        prefix, _, suffix = name.partition(".")
        if name not in self.base and suffix in self.base:
            return f"{prefix}.", ""
        for base_name in self.base:
            base_prefix = base_name.removesuffix(name)
            if base_name.endswith(f".{name}") and base_prefix.count(".") == 1:
                return "", base_prefix
        return "", ""

    def _add_product(self, weight: Tensor, module: str, name: str) -> Tensor:
        lora_a = self.adapter[f"{module}.{LORA_A}.weight"].float()
        lora_b = self.adapter[f"{module}.{LORA_B}.weight"].float()
        product = lora_b @ lora_a if lora_b.shape[1] == len(lora_a) else lora_b.new_zeros(0)
        if self.config.get("fan_in_fan_out"):
            product = product.t()
        if product.shape != weight.shape:
            raise CheckpointError(
                f"{self.where}: {name} has shape {list(weight.shape)}, and the adapter is for one of "
                f"{[len(lora_b), lora_a.shape[1]]}: it was trained for another model"
            )
        return weight + self._scale(module, len(lora_a)) * product

    def _scale(self, module: str, rank: int) -> float:
        """Factor of B·A in a module; a pattern names a module or the end of its name."""
        alpha_pattern = dict(self.config.get("alpha_pattern") or {})
        matches = (value for pattern, value in alpha_pattern.items() if re.match(rf"(.*\.)?({pattern})$", module))
        alpha = float(next(matches, self.config.get("lora_alpha", 8)))
        return alpha / (rank**0.5 if self.config.get("use_rslora") else rank)


def _plain_name(name: str) -> str:
    """Name of an adapter's tensor without what peft adds to it."""
    plain = name.removeprefix(PREFIX).replace(".modules_to_save.", ".").replace(".original_module.", ".")
    return plain.replace(".default.", ".")
