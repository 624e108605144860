"""Files of a model folder that its predictions depend on: config, weights and tokenizers. Free of torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from regard.checkpoint.atomic import digest_file
from regard.checkpoint.hf import sentencepiece
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CONFIG, resolve_model_path
from regard.checkpoint.model_dir import read_tensor_entries
from regard.checkpoint.tokenizer_files import (
    BPE_MERGES,
    BPE_VOCAB,
    TARGET_TOKENIZER,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WORDPIECE_VOCAB,
)

_TOKENIZER_FILES = dict.fromkeys(
    (TOKENIZER, TARGET_TOKENIZER, TOKENIZER_CONFIG, WORDPIECE_VOCAB, BPE_VOCAB, BPE_MERGES, *sentencepiece.FILES)
)


def model_files(path: Path) -> list[str]:
    """Names of the files in a folder that predictions depend on."""
    weight_files = sorted({entry.file.name for entry in read_tensor_entries(path).values()})
    return [CONFIG, *weight_files, *present_files(path, _TOKENIZER_FILES)]


def present_files(path: Path, names: Iterable[str]) -> list[str]:
    """Those of the names that are files of a folder."""
    return [name for name in names if (path / name).exists()]


def folder_digest(folder: str | Path) -> str:
    """SHA-256 of everything that the predictions of a model folder depend on."""
    path = resolve_model_path(resolve_model(folder))
    digest = hashlib.sha256()
    for name in model_files(path):
        digest.update(bytes.fromhex(digest_file(path / name)))
    return digest.hexdigest()
