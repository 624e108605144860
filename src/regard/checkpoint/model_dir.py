"""What reading any model folder shares, whatever the model: where it is, whose task it is, whether it is whole.

A model as a folder in Hugging Face layout: others read what we write, and we read theirs.

config.json                 what the model is, in their terms (`hf_names`)
model.safetensors           weights under their names; several files with an index when large (read only)
tokenizer.json              text to tokens; target_tokenizer.json beside it where the target side has its own
tokenizer_config.json       special tokens and longest row, for others
generation_config.json      how translations are searched for
task.json                   what is ours alone: the task and its settings
README.md                   the model card
MANIFEST.json               size and digest of each file
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from regard.checkpoint import atomic, weights
from regard.checkpoint.disk import DISK, Disk
from regard.checkpoint.hf import causal, encoder_decoders, encoders, sentencepiece
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import (
    CARD,
    CONFIG,
    TASK_FILE,
    VERSION,
    read_task,
    read_task_file,
    resolve_model_path,
    retry_while_replaced,
    verify,
)
from regard.checkpoint.tokenizer_files import (
    TARGET_TOKENIZER,
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_vocabulary,
    read_tokenizer,
    tokenizer_config,
)
from regard.checkpoint.weights import WeightReport
from regard.config.inference import DecodingConfig
from regard.config.rnn_models import TranslationModelConfig
from regard.errors import CheckpointError, ConfigError
from regard.models import FAMILIES
from regard.models.base import meta_device
from regard.text.tokenizer import Tokenizer


class FamilyConfig(Protocol):
    """The config of a model of some family."""

    @property
    def family(self) -> str:
        """Which model it is: a name of `FAMILIES`."""
        ...


def expected_shapes(config: FamilyConfig) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a config's weights without making them."""
    with meta_device():
        return {name: tuple(tensor.shape) for name, tensor in FAMILIES[config.family][1](config).state_dict().items()}


def folder_task(folder: str | Path) -> str:
    """Return the task of a folder's, or published, model: what it was trained for, its head's, or to translate."""
    return retry_while_replaced(resolve_model(folder), lambda place: _task_at(resolve_model_path(place)))


def is_encoder_folder(folder: str | Path) -> bool:
    """Whether a folder, or what is published under this name, holds an encoder."""
    return retry_while_replaced(
        resolve_model(folder), lambda place: encoders.is_encoder(atomic.read_json(resolve_model_path(place) / CONFIG))
    )


def _task_at(path: Path) -> str:
    task, fields = read_task_file(path), atomic.read_json(path / CONFIG)
    if not task and fields.get("model_type") in causal.KINDS:
        return "generate"
    if task or not encoders.is_encoder(fields):
        return str(task.get("task", "translate"))
    return encoders.TASKS[encoders.detect_head(fields, read_tensor_entries(path), str(path / CONFIG))[0]]


def has_only_pickled_weights(folder: Path) -> bool:
    """Whether a folder's weights are pickled and nothing else."""
    safe = any((folder / name).exists() for name in (weights.FILE, weights.INDEX))
    return not safe and any((folder / name).exists() for name in (weights.PICKLED_FILE, weights.PICKLED_INDEX))


def read_tensor_entries(path: Path) -> dict[str, weights.TensorEntry]:
    """Return the entries of all weight files of a folder."""
    if (path / weights.FILE).exists():
        return weights.read_header(path / weights.FILE)
    if (path / weights.INDEX).exists():
        placed = atomic.read_json(path / weights.INDEX).get("weight_map")
        plain = isinstance(placed, dict) and all(isinstance(name, str) for name in placed.values())
        shards = sorted(set(placed.values())) if plain and placed else []
        if not shards or any(Path(name).name != name for name in shards):
            raise CheckpointError(f"{path / weights.INDEX}: weight_map must name files of this folder")
        return {name: entry for shard in shards for name, entry in weights.read_header(path / shard).items()}
    if has_only_pickled_weights(path):
        raise CheckpointError(
            f"{path}: only old pickled weights ({weights.PICKLED_FILE}), which are not opened here: "
            f"turn the folder into a safe one with `regard convert {path} OUT --to regard`"
        )
    raise CheckpointError(f"{path / weights.FILE}: no such file; the folder holds no weights")


@contextmanager
def name_folder_in_errors(path: Path) -> Iterator[None]:
    """Name the folder in whatever is wrong with its weights."""
    try:
        yield
    except CheckpointError as error:
        message = str(error)
        raise CheckpointError(message if str(path) in message else f"{path}: weights: {message}") from None


def check_weights(config: FamilyConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's weights as they are written, after comparing them with what its config asks for."""
    floats = {name: tensor.detach().cpu().float() for name, tensor in weights.items()}
    expected = expected_shapes(config)
    if {name: tuple(tensor.shape) for name, tensor in floats.items()} != expected:
        different = sorted(expected.keys() ^ floats.keys())[:5]
        raise ValueError(f"the weights are not those of the config; names that differ: {different}")
    return floats


def publish_model(
    folder: str | Path,
    hf_config: Mapping[str, Any],
    named: Mapping[str, Tensor],
    *,
    task: str,
    metadata: Mapping[str, Any],
    card: str,
    extra_files: Mapping[str, bytes],
    weight_files: Mapping[str, atomic.Content] | None = None,
) -> None:
    """Write a model so that readers find the old one or the new one whole; other files there stay.

    `fields` is its `config.json`, weights are under the names there; `facts` go into `task.json` (without a task there
    is none), `besides` are the family's own files, `instead` those that are written instead of the weights.
    """
    held: Mapping[str, atomic.Content] = (
        {weights.FILE: weights.serialize_tensors(named)} if weight_files is None else weight_files
    )
    contents: dict[str, atomic.Content] = {**held, **extra_files, CARD: card.encode()}
    if task:
        contents[TASK_FILE] = atomic.json_bytes({"task": task, "version": VERSION, **metadata})
    contents[CONFIG] = atomic.json_bytes(hf_config)
    atomic.publish(Path(folder), contents, size=weights.tensor_bytes(named))


TASK = "translate"
GENERATION = "generation_config.json"


@dataclass(frozen=True)
class LoadedTranslator:
    """A model as its folder holds it."""

    config: TranslationModelConfig
    weights: dict[str, Tensor]  # under our names, float32
    source: Tokenizer
    target: Tokenizer
    decoding: DecodingConfig
    task: dict[str, Any]  # task.json; nothing for a folder from elsewhere
    hf_config: dict[str, Any] = field(default_factory=dict)  # config.json as it stands, to be written back
    report: WeightReport = field(default_factory=WeightReport)


def save_translator(
    folder: str | Path,
    model_config: TranslationModelConfig,
    model_weights: Mapping[str, Tensor],
    *,
    tokenizers: Mapping[str, Tokenizer],
    decoding: DecodingConfig,
    task: Mapping[str, Any],
    card: str,
    fields: Mapping[str, Any] | None = None,
    weight_files: Mapping[str, atomic.Content] | None = None,
    disk: Disk = DISK,
) -> None:
    """Write a model into a folder so that readers find the old one or the new one whole; other files there stay.

    `tokenizers` has "source" and "target"; `fields` are the `config.json` of the folder that the model came from,
    if it did: what we do not know in it is written back. `instead` are files to write instead of the weights.
    """
    floats = check_weights(model_config, model_weights)
    source, target = tokenizers["source"], tokenizers["target"]
    theirs = encoder_decoders.to_theirs(model_config, floats)
    contents: dict[str, atomic.Content] = {
        **({weights.FILE: weights.serialize_tensors(theirs)} if weight_files is None else weight_files),
        TOKENIZER: source.to_json().encode(),
        TOKENIZER_CONFIG: atomic.json_bytes(_tokenizer_config(source, model_config)),
        GENERATION: atomic.json_bytes(encoder_decoders.write_decoding(model_config, decoding)),
        TASK_FILE: atomic.json_bytes({"task": TASK, "version": VERSION, **task, "decoding": decoding.to_dict()}),
        CARD: card.encode(),
    }
    if source.digest != target.digest:
        contents[TARGET_TOKENIZER] = target.to_json().encode()
    contents[CONFIG] = atomic.json_bytes(encoder_decoders.write_config(model_config, fields))
    atomic.publish(Path(folder), contents, size=weights.tensor_bytes(theirs), disk=disk)


Reader = Callable[[Path, TranslationModelConfig], tuple[TranslationModelConfig, dict[str, Tensor], WeightReport]]


def load_translator(
    folder: str | Path, *, weights_from: Path | None = None, read_weights: Reader | None = None, weights_file: str = ""
) -> LoadedTranslator:
    """Return the model of a folder or published name, ours or a Marian or Pegasus one, after checking all of it.

    `weights_from` is another folder to read the weights from, for one whose own were converted first. A folder that a
    training run replaces at this moment is read again. `read` reads other weights, those in the file `beside`.
    """
    return retry_while_replaced(
        resolve_model(folder), lambda place: _load(place, weights_from, read_weights, weights_file)
    )


def _load(folder: Path, weights_from: Path | None, read: Reader | None, beside: str) -> LoadedTranslator:
    path = resolve_model_path(folder)
    task = read_task(path, TASK)
    fields = atomic.read_json(path / CONFIG)
    where = str(path / CONFIG)
    config = encoder_decoders.read_config(fields, where)
    verify(path, (CONFIG, weights.FILE, TOKENIZER, TARGET_TOKENIZER, GENERATION, TASK_FILE, beside))
    if read is None:
        config, loaded, report = read_weights(path, config, read_tensor_entries(weights_from or path))
    else:
        config, loaded, report = read(path, config)
    source, target = _read_tokenizers(path, fields)
    check_vocabulary(path, source, config.source_vocab_size, "source")
    check_vocabulary(path, target, config.target_vocab_size, "target")
    return LoadedTranslator(config, loaded, source, target, _read_decoding(path, fields, task), task, fields, report)


def read_weights(
    path: Path, config: TranslationModelConfig, entries: Mapping[str, weights.TensorEntry]
) -> tuple[TranslationModelConfig, dict[str, Tensor], WeightReport]:
    """Return the config (with an output bias if there is one), our weights and a report of the names found.

    Names and shapes are compared with what the config asks for before any tensor is read.
    """
    if config.output_bias is False and encoder_decoders.has_output_bias(entries):
        config = config.override({"output_bias": True})
    with name_folder_in_errors(path):
        shapes = {name: entry.shape for name, entry in entries.items()}
        matched = encoder_decoders.TranslatorWeightMatcher(config, shapes, expected_shapes(config))
        return config, matched.assemble(weights.read_float_tensors(entries, matched.wanted)), matched.report


def _read_decoding(path: Path, fields: Mapping[str, Any], task: Mapping[str, Any]) -> DecodingConfig:
    ours = task.get("decoding")
    if isinstance(ours, dict):
        try:
            return DecodingConfig.from_dict(ours, where=str(path / TASK_FILE))
        except (ConfigError, OverflowError, TypeError, ValueError) as error:
            raise CheckpointError(str(error)) from None
    theirs = atomic.read_json(path / GENERATION) if (path / GENERATION).exists() else {}
    return encoder_decoders.read_decoding({**fields, **theirs}, str(path / GENERATION))


def _read_tokenizers(path: Path, fields: Mapping[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of both sides; one for both unless the folder holds two."""
    if (path / TOKENIZER).exists():
        source = read_tokenizer(path / TOKENIZER)
        return source, read_tokenizer(path / TARGET_TOKENIZER) if (path / TARGET_TOKENIZER).exists() else source
    if sentencepiece.has_sentencepiece(path):
        return sentencepiece.read_sentencepiece(path)
    raise CheckpointError(f"{path}: no {TOKENIZER}, and no {' and '.join(sentencepiece.FILES)} either")


def _tokenizer_config(tokenizer: Tokenizer, config: TranslationModelConfig) -> dict[str, Any]:
    """Return what tells other tools which tokens are special and how long a row may be."""
    roles = {"pad_token": config.pad_id, "eos_token": config.eos_id, "unk_token": tokenizer.unk_id}
    return tokenizer_config(tokenizer, {**roles, "bos_token": tokenizer.bos_id}, config.max_positions)
