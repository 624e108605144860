"""A model that reads text by one tokenizer, as a folder (`own_folder`): language models, classifiers, taggers.

Beside a classifier's or tagger's own files, `features/` holds its frozen features: a whole folder of this kind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from regard.checkpoint import files, weights
from regard.checkpoint.location import CARD, CONFIG, TASK_FILE, opened, patiently, read_task, verify
from regard.checkpoint.own_folder import copy_own, own_config, own_type, own_weights, save_own
from regard.checkpoint.tokenizer_files import TOKENIZER, check_vocabulary, read_tokenizer
from regard.config.model import ClassifierConfig, ElmoConfig, TaggerConfig
from regard.text.tokenizer import Tokenizer

FEATURES = "features"  # the folder in a classifier's or tagger's folder
KINDS = {own_type(kind().family): kind for kind in (ElmoConfig, ClassifierConfig, TaggerConfig)}
_READ = (CONFIG, weights.FILE, TOKENIZER, TASK_FILE)

Family = TypeVar("Family", ElmoConfig, ClassifierConfig, TaggerConfig)


@dataclass(frozen=True)
class LoadedReader(Generic[Family]):
    """A model as its folder holds it."""

    config: Family
    weights: dict[str, Tensor]  # float32
    tokenizer: Tokenizer
    task: dict[str, Any]  # task.json
    digest: str  # of config, weights and tokenizer
    path: Path  # where it was read


def save_reader(
    folder: str | Path,
    config: ElmoConfig | ClassifierConfig | TaggerConfig,
    model_weights: Mapping[str, Tensor],
    *,
    tokenizer: Tokenizer,
    task: str,
    facts: Mapping[str, Any],
    card: str,
) -> None:
    """Write a model for a task so that readers find the old one or the new one whole."""
    besides = {TOKENIZER: tokenizer.dumps().encode()}
    save_own(folder, config, model_weights, task=task, facts=facts, card=card, besides=besides)


def load_reader(folder: str | Path, kind: type[Family], task: str) -> LoadedReader[Family]:
    """Return the model of a folder after checking all of it; one for another task is refused."""
    return patiently(Path(folder), lambda place: _load(place, kind, task))


def _load(folder: Path, kind: type[Family], name: str) -> LoadedReader[Family]:
    path = opened(folder)
    task = read_task(path, name)
    config = own_config(files.read_json(path / CONFIG), {own_type(kind().family): kind}, str(path / CONFIG))
    verify(path, _READ)
    loaded, tokenizer = own_weights(path, config), read_tokenizer(path / TOKENIZER)
    size = config.vocabulary if isinstance(config, ElmoConfig) else config.encoder.vocabulary
    check_vocabulary(path, tokenizer, size)
    return LoadedReader(config, loaded, tokenizer, task, _digest(path), path)


def _digest(path: Path) -> str:
    """Return the SHA-256 of what decides a model's answers: its config, weights and tokenizer."""
    digest = hashlib.sha256()
    for name in (CONFIG, weights.FILE, TOKENIZER):
        with open(path / name, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def copy_features(source: str | Path, folder: str | Path) -> None:
    """Put a whole copy of the features' folder into a classifier's folder, so that it can be moved."""
    copy_own(source, Path(folder) / FEATURES, (*_READ, CARD))
