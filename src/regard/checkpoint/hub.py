"""Published models by name: a folder here, one fetched before, or one fetched now."""

from __future__ import annotations

import re
from pathlib import Path

from regard.errors import CheckpointError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")
_FILES = ["*.json", "*.txt", "*.model", "*.spm", "model*.safetensors", "1_Pooling/*", "2_Normalize/*"]
_OLD = ["pytorch_model*.bin"]


def is_hub_name(name: str) -> bool:
    """Whether a text could be a published model's name, and is no place on this machine.

    >>> is_hub_name("sentence-transformers/all-MiniLM-L6-v2"), is_hub_name("./runs/x")
    (True, False)
    """
    path = Path(name)
    inside = len(path.parts) > 1 and path.parent.exists()  # a folder that is not there, in one that is
    return bool(_NAME.fullmatch(name)) and not path.exists() and not inside


def resolve_model(name: str | Path) -> Path:
    """Return the folder of a model: a place on this machine, or a published name, fetched unless it was before.

    A revision may follow the name after @.
    """
    if not isinstance(name, str) or not is_hub_name(name):
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository, _, revision = name.partition("@")

    def fetch(patterns: list[str], *, cached: bool) -> Path:
        found = snapshot_download(
            repository, revision=revision or None, allow_patterns=patterns, local_files_only=cached, etag_timeout=5
        )
        return Path(found)

    try:
        kept = fetch(_FILES, cached=True)
        if _is_whole(kept):
            return kept
    except (LocalEntryNotFoundError, HFValidationError):
        pass
    try:
        place = fetch(_FILES, cached=False)
        return place if _is_whole(place) else fetch([*_FILES, *_OLD], cached=False)
    except (RepositoryNotFoundError, GatedRepoError, RevisionNotFoundError) as error:
        why = {GatedRepoError: "it is published, but not for everybody", RevisionNotFoundError: "no such revision"}
        reason = why.get(type(error), "no model is published under this name")
        raise CheckpointError(f"{name}: no such folder, and {reason}: check the spelling") from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError):
        raise CheckpointError(
            f"{name}: no such folder, and no published model of this name was fetched before; there is no network to "
            "fetch it now: give a local folder, or try again with a network"
        ) from None
    except Exception as error:  # the library's transport raises many kinds
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{name}: no such folder, and it cannot be fetched: {reason}") from None


def _is_whole(folder: Path) -> bool:
    """Whether a fetched folder holds a config and weights."""
    weights = [*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*.bin")]
    return (folder / "config.json").exists() and bool(weights)
