"""Models by name: a local folder, a cached download from the Hugging Face hub, or a new download.

The folder of a LoRA adapter stands for its base model with the adapter merged into it.
"""

from __future__ import annotations

import re
from pathlib import Path

from regard.errors import CheckpointError

ADAPTER_CONFIG = "adapter_config.json"  # of a LoRA adapter's folder
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")
_FILES = ["*.json", "*.txt", "*.model", "*.spm", "model*.safetensors", "1_Pooling/*", "2_Normalize/*"]
_PICKLED_FILES = ["pytorch_model*.bin"]


def is_hub_name(name: str) -> bool:
    """Whether a text could be the name of a hub model and is no path on this machine.

    >>> is_hub_name("sentence-transformers/all-MiniLM-L6-v2"), is_hub_name("./runs/x")
    (True, False)
    """
    path = Path(name)
    has_local_parent = len(path.parts) > 1 and path.parent.exists()  # a missing folder in an existing one
    return bool(_NAME.fullmatch(name)) and not path.exists() and not has_local_parent


def resolve_model(name: str | Path) -> Path:
    """Local folder of a model: the path itself, or the cached or new download of a hub name.

    A revision may follow the name after `@`.
    """
    if not isinstance(name, str) or not is_hub_name(name):
        return _merge_adapter(Path(name))
    cached = _find_cached(name)
    return cached if cached is not None else _download(name)


def is_on_disk(name: str) -> bool:
    """Whether a model is a path on this machine, or a hub model that was downloaded earlier.

    >>> is_on_disk("no/such-model")
    False
    """
    return _find_cached(name) is not None if is_hub_name(name) else Path(name).exists()


def _merge_adapter(folder: Path) -> Path:
    """The folder itself, or that of the merged model where it holds an adapter."""
    if not (folder / ADAPTER_CONFIG).is_file():
        return folder
    from regard.checkpoint.adapters import merge_adapter_folder

    return merge_adapter_folder(folder)


def _find_cached(name: str) -> Path | None:
    """Folder of an earlier download, if it is complete."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = _fetch(name, _FILES, local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return folder if _is_complete(folder) else None


def _download(name: str) -> Path:
    """Download a hub model; pickled weights only where there are no others."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = _fetch(name, _FILES, local_files_only=False)
        if _is_complete(folder):
            return folder
        return _fetch(name, [*_FILES, *_PICKLED_FILES], local_files_only=False)
    except (RepositoryNotFoundError, GatedRepoError, RevisionNotFoundError) as error:
        reasons = {
            GatedRepoError: "access to this model on the hub is restricted",
            RevisionNotFoundError: "the model on the hub has no such revision",
        }
        reason = reasons.get(type(error), "no model on the hub has this name")
        raise CheckpointError(f"{name}: no such folder, and {reason}: check the spelling") from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError):
        raise CheckpointError(
            f"{name}: no such folder, and no model of this name is in the cache; there is no network to "
            "fetch it now: pass a local folder, or try again with a network"
        ) from None
    except Exception as error:  # the library's transport raises many types
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{name}: no such folder, and it cannot be fetched: {reason}") from None


def _fetch(name: str, patterns: list[str], *, local_files_only: bool) -> Path:
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    folder = snapshot_download(
        repository,
        revision=revision or None,
        allow_patterns=patterns,
        local_files_only=local_files_only,
        etag_timeout=5,
    )
    return Path(folder)


def _is_complete(folder: Path) -> bool:
    """Whether a downloaded folder holds a config and weights."""
    weights = [*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*.bin")]
    return (folder / "config.json").exists() and bool(weights)
