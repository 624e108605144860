"""Model folders in Hugging Face layout: what all families share, and loading and saving of translation models.

config.json                 the model's config, in Hugging Face's terms (`hf`)
model.safetensors           weights under Hugging Face's names; large models have several files and an index (read only)
tokenizer.json              tokenizer; target_tokenizer.json beside it where the target side has its own
tokenizer_config.json       special tokens and maximal length, for other tools
generation_config.json      decoding settings
task.json                   task, and settings that only Regard has
README.md                   model card
MANIFEST.json               size and digest of each file
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from regard.checkpoint import atomic, weights
from regard.checkpoint.disk import DISK, Disk
from regard.checkpoint.hf import causal, encoder_decoders, encoders, sentencepiece
from regard.checkpoint.hf.plausibility import find_doubts
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import (
    CARD,
    CONFIG,
    TASK_FILE,
    VERSION,
    read_task,
    read_task_file,
    read_verified,
    resolve_model_path,
    retry_while_replaced,
)
from regard.checkpoint.model_types import check_model_type, native_family
from regard.checkpoint.source import TranslatorSource
from regard.checkpoint.tokenizer_files import (
    TARGET_TOKENIZER,
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_vocabulary,
    read_tokenizer,
    tokenizer_config,
)
from regard.checkpoint.unused_weights import check_unused_weights, warn_about
from regard.checkpoint.weights import Arrays, WeightReport
from regard.components import FAMILIES, tables_of
from regard.config.inference import DecodingConfig
from regard.config.models import TransformerConfig
from regard.config.rnn_models import TranslationModelConfig
from regard.config.settings import Config
from regard.errors import CheckpointError, ConfigError
from regard.registry import TASKS, resolve, task_of_head
from regard.tables import PACKAGE
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models.base import Model

TASK = "translate"
GENERATION = "generation_config.json"


class FamilyConfig(Protocol):
    """Config of a model family."""

    @property
    def family(self) -> str:
        """Name of the family in `FAMILIES`."""
        ...


def build_meta_model(config: FamilyConfig) -> Model:
    """Build a torch model with shapes only."""
    from regard.models.base import meta_device

    model_class = resolve(FAMILIES[config.family].model)
    with meta_device():
        model: Model = model_class(config)
    return model


def expected_shapes(config: FamilyConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a config's weights, without allocating them."""
    return {name: tuple(tensor.shape) for name, tensor in build_meta_model(config).state_dict().items()}


ShapeReader = Callable[[Any], dict[str, tuple[int, ...]]]  # config → names and shapes of its weights


def folder_task(folder: str | Path) -> str:
    """Task of a folder's or hub model: the one it was trained for, that of its head, or translation."""
    return retry_while_replaced(resolve_model(folder), lambda path: _read_folder_task(resolve_model_path(path)))


def is_encoder_folder(folder: str | Path) -> bool:
    """Whether a folder or hub model is an encoder."""
    return retry_while_replaced(resolve_model(folder), lambda path: _is_encoder(resolve_model_path(path)))


def folder_family(folder: str | Path) -> str:
    """Family of a folder with a model type of our own; empty for one of Hugging Face's types."""

    def read(path: Path) -> str:
        hf_config = atomic.read_json(resolve_model_path(path) / CONFIG)
        check_model_type(hf_config, str(path / CONFIG))
        return native_family(hf_config.get("model_type"))

    return retry_while_replaced(resolve_model(folder), read)


def _is_encoder(path: Path) -> bool:
    hf_config = atomic.read_json(path / CONFIG)
    check_model_type(hf_config, str(path / CONFIG))
    return encoders.is_encoder(hf_config)


def _read_folder_task(path: Path) -> str:
    metadata = read_task_file(path)
    hf_config = atomic.read_json(path / CONFIG)
    check_model_type(hf_config, str(path / CONFIG))
    if metadata:
        task = str(metadata.get("task", TASK))
        if task not in TASKS:
            raise CheckpointError(f"{path}: a model for the task {task!r}, which is unknown: install its plugin")
        return task
    if not encoders.is_encoder(hf_config):
        return causal.TASK if hf_config.get("model_type") in causal.CAUSAL_TYPES else TASK
    head, _ = encoders.detect_head(hf_config, read_tensor_entries(path), str(path / CONFIG))
    return task_of_head(head)


def has_only_pickled_weights(folder: Path) -> bool:
    """Whether a folder has pickled weights and no safetensors."""
    has_safetensors = any((folder / name).exists() for name in (weights.FILE, weights.INDEX))
    has_pickles = any((folder / name).exists() for name in (weights.PICKLED_FILE, weights.PICKLED_INDEX))
    return has_pickles and not has_safetensors


def read_tensor_entries(path: Path) -> dict[str, weights.TensorEntry]:
    """Read the headers of all weight files of a folder."""
    if (path / weights.FILE).exists():
        return weights.read_header(path / weights.FILE)
    if (path / weights.INDEX).exists():
        entries: dict[str, weights.TensorEntry] = {}
        for shard in _read_shard_names(path / weights.INDEX):
            entries |= weights.read_header(path / shard)
        return entries
    if has_only_pickled_weights(path):
        raise CheckpointError(
            f"{path}: only pickled weights ({weights.PICKLED_FILE}), which Regard does not open directly: "
            f"turn the folder into a safe one with `regard convert {path} OUT --to regard`"
        )
    raise CheckpointError(f"{path / weights.FILE}: no such file; the folder holds no weights")


def _read_shard_names(index: Path) -> list[str]:
    """Files that an index of safetensors names."""
    weight_map = atomic.read_json(index).get("weight_map")
    is_valid = isinstance(weight_map, dict) and all(isinstance(name, str) for name in weight_map.values())
    names = sorted(set(weight_map.values())) if is_valid and weight_map else []
    if not names or any(Path(name).name != name for name in names):
        raise CheckpointError(f"{index}: weight_map must name files of this folder")
    return names


@contextmanager
def name_folder_in_errors(path: Path) -> Iterator[None]:
    """Add the folder's name to errors about its weights."""
    try:
        yield
    except CheckpointError as error:
        message = str(error)
        raise CheckpointError(message if str(path) in message else f"{path}: weights: {message}") from None


def check_weights(config: FamilyConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as float32 on the CPU, after comparing names and shapes with the config."""
    floats = {name: tensor.detach().cpu().float() for name, tensor in weights.items()}
    expected = expected_shapes(config)
    if {name: tuple(tensor.shape) for name, tensor in floats.items()} != expected:
        different = sorted(expected.keys() ^ floats.keys())[:5]
        raise ValueError(f"the weights do not fit the config; names that differ: {different}")
    return floats


def publish_model(
    folder: str | Path,
    hf_config: Mapping[str, Any],
    hf_weights: Mapping[str, Tensor],
    *,
    task: str,
    metadata: Mapping[str, Any],
    card: str,
    extra_files: Mapping[str, bytes],
    weight_files: Mapping[str, atomic.Content] | None = None,
    config: FamilyConfig | None = None,
) -> None:
    """Write a model atomically; other files of the folder stay.

    `hf_config` is the content of `config.json`; the weights have the names of its model type. `metadata` goes into
    `task.json`, with the plugins that the task and the `config` need; without a task there is no such file.
    `extra_files` are the family's own, `weight_files` replace the safetensors file.
    """
    if weight_files is None:
        weight_files = {weights.FILE: weights.serialize_tensors(hf_weights)}
    contents: dict[str, atomic.Content] = {**weight_files, **extra_files, CARD: card.encode()}
    if task:
        plugins = plugin_entry(task, config)
        contents[TASK_FILE] = atomic.json_bytes({"task": task, "version": VERSION, **plugins, **metadata})
    contents[CONFIG] = atomic.json_bytes(hf_config)
    atomic.publish(Path(folder), contents, size=weights.tensor_bytes(hf_weights))


def plugin_entry(task: str, config: Any = None) -> dict[str, list[str]]:
    """Entry of task.json on the packages that add the task, the family and other parts; empty where Regard has all."""
    owners = {TASKS.owner(task)}
    if config is not None:
        owners.add(FAMILIES.owner(config.family))
    if isinstance(config, Config):
        owners |= _setting_owners(config)
    plugins = sorted(owners - {PACKAGE})
    return {"plugins": plugins} if plugins else {}


def _setting_owners(config: Config) -> set[str]:
    """Packages that add what the settings name."""
    owners = set()
    for setting in config.knobs():
        value = str(attrgetter(setting.path)(config))
        owners |= {table.owner(value) for table in tables_of(setting.choices) if value in table.entries}
    return owners


def save_translator(
    folder: str | Path,
    config: TranslationModelConfig,
    model_weights: Mapping[str, Tensor],
    *,
    tokenizers: Mapping[str, Tokenizer],
    decoding: DecodingConfig,
    metadata: Mapping[str, Any],
    card: str,
    original_config: Mapping[str, Any] | None = None,
    weight_files: Mapping[str, atomic.Content] | None = None,
    disk: Disk = DISK,
) -> None:
    """Write a translation model atomically; other files of the folder stay.

    `tokenizers` has "source" and "target". Fields of `original_config`, the `config.json` that the model was imported
    with, are kept unchanged where Regard does not use them. `weight_files` are written instead of the safetensors file:
    the packed weights of the engine.
    """
    hf_weights = encoder_decoders.to_hf_weights(config, check_weights(config, model_weights))
    if weight_files is None:
        weight_files = {weights.FILE: weights.serialize_tensors(hf_weights)}
    source = tokenizers["source"]
    target = tokenizers["target"]
    contents: dict[str, atomic.Content] = {
        **weight_files,
        TOKENIZER: source.to_json().encode(),
        TOKENIZER_CONFIG: atomic.json_bytes(_tokenizer_config(source, config)),
        GENERATION: atomic.json_bytes(encoder_decoders.decoding_to_hf(config, decoding)),
        TASK_FILE: atomic.json_bytes(
            {
                "task": TASK,
                "version": VERSION,
                **plugin_entry(TASK, config),
                **metadata,
                "decoding": decoding.to_dict(),
            }
        ),
        CARD: card.encode(),
    }
    if source.digest != target.digest:
        contents[TARGET_TOKENIZER] = target.to_json().encode()
    contents[CONFIG] = atomic.json_bytes(encoder_decoders.config_to_hf(config, original_config))
    atomic.publish(Path(folder), contents, size=weights.tensor_bytes(hf_weights), disk=disk)


def load_translator(
    folder: str | Path, *, weights_from: Path | None = None, read_shapes: ShapeReader = expected_shapes
) -> TranslatorSource:
    """Load and validate a translation model from a folder or the hub: one of ours, Marian or Pegasus.

    `weights_from` is another folder to read the weights from, for pickled weights that were converted first.
    `read_shapes` gives the shapes that the weights must have.
    """
    return read_verified(resolve_model(folder), lambda path: _read_translator(path, weights_from, read_shapes))


def _read_translator(path: Path, weights_from: Path | None, read_shapes: ShapeReader) -> TranslatorSource:
    metadata = read_task(path, TASK)
    hf_config = atomic.read_json(path / CONFIG)
    check_model_type(hf_config, str(path / CONFIG))
    config = encoder_decoders.config_from_hf(hf_config, str(path / CONFIG))
    entries = read_tensor_entries(weights_from or path)
    if config.output_bias is False and encoder_decoders.has_output_bias(entries):
        config = config.override({"output_bias": True})
    arrays, report = _read_weights(path, config, entries, read_shapes)
    is_foreign = hf_config.get("model_type") not in encoder_decoders.NATIVE_TYPES and not atomic.has_manifest(path)
    if is_foreign and isinstance(config, TransformerConfig):
        warn_about(find_doubts(path, hf_config, config, str(path / CONFIG)))
    check_unused_weights(path, report)
    source, target = read_translator_tokenizers(path, config)
    return TranslatorSource(
        path=path,
        config=config,
        metadata=metadata,
        hf_config=hf_config,
        arrays=arrays,
        report=report,
        source=source,
        target=target,
        decoding=read_decoding(path, hf_config, metadata),
    )


def _read_weights(
    path: Path, config: TranslationModelConfig, entries: Mapping[str, weights.TensorEntry], read_shapes: ShapeReader
) -> tuple[Arrays, WeightReport]:
    """Read a translation model's weights; names and shapes are compared with the config before any tensor is read."""
    with name_folder_in_errors(path):
        shapes = {name: entry.shape for name, entry in entries.items()}
        matcher = encoder_decoders.TranslatorWeightMatcher(config, shapes, read_shapes(config))
        arrays = weights.read_float_arrays(entries, matcher.tensors_to_read)
        return matcher.assemble(arrays), matcher.report


def read_decoding(path: Path, hf_config: Mapping[str, Any], metadata: Mapping[str, Any]) -> DecodingConfig:
    """Decoding settings of task.json, else of generation_config.json and config.json."""
    settings = metadata.get("decoding")
    if isinstance(settings, dict):
        try:
            return DecodingConfig.from_dict(settings, where=str(path / TASK_FILE))
        except (ConfigError, OverflowError, TypeError, ValueError) as error:
            raise CheckpointError(str(error)) from None
    file = path / GENERATION
    generation_config = atomic.read_json(file) if file.exists() else {}
    return encoder_decoders.decoding_from_hf({**hf_config, **generation_config}, str(file))


def read_translator_tokenizers(path: Path, config: TranslationModelConfig) -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers of source and target, which fit the config; the same one unless the folder holds two."""
    source, target = _read_tokenizers(path)
    check_vocabulary(path, source, config.source_vocab_size, "source")
    check_vocabulary(path, target, config.target_vocab_size, "target")
    return source, target


def _read_tokenizers(path: Path) -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers of source and target; the same one unless the folder holds two."""
    if (path / TOKENIZER).exists():
        source = read_tokenizer(path / TOKENIZER)
        has_target = (path / TARGET_TOKENIZER).exists()
        return source, read_tokenizer(path / TARGET_TOKENIZER) if has_target else source
    if sentencepiece.has_sentencepiece(path):
        return sentencepiece.read_sentencepiece(path)
    raise CheckpointError(f"{path}: no {TOKENIZER}, and no {' and '.join(sentencepiece.FILES)} either")


def _tokenizer_config(tokenizer: Tokenizer, config: TranslationModelConfig) -> dict[str, Any]:
    roles = {
        "pad_token": config.pad_id,
        "eos_token": config.eos_id,
        "unk_token": tokenizer.unk_id,
        "bos_token": tokenizer.bos_id,
    }
    return tokenizer_config(tokenizer, roles, config.max_positions)
