"""A folder's tokenizer: one file, or those of older folders; and what tells others of its special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.checkpoint import files
from regard.checkpoint.location import CONFIG
from regard.errors import CheckpointError
from regard.text.framing import Framing, with_template
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary_files import byte_pairs, word_pieces

TOKENIZER, TARGET_TOKENIZER = "tokenizer.json", "target_tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
PIECES, PAIRS, MERGES = "vocab.txt", "vocab.json", "merges.txt"  # of older folders
_LIMIT = 256 << 20  # bytes of a tokenizer file
_NONE = ("", "", False)


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a file, checked before it is opened."""
    return Tokenizer.loads(_text(path), where=str(path))


def read_folder_tokenizer(path: Path, template: tuple[str, str, bool] = _NONE) -> Tokenizer:
    """Return a folder's tokenizer, of one file or of older ones.

    The template – first token, last token, whether two stand between a pair – is that of the folder's type, for
    tokenizers that say nothing of it.
    """
    start, end, double = template
    found = read_tokenizer(path / TOKENIZER) if (path / TOKENIZER).exists() else _older_tokenizer(path)
    known = all(found.backend.token_to_id(name) is not None for name in (start, end))
    return with_template(found, start, end, double=double) if known and not Framing(found).room() else found


def read_settings(path: Path) -> dict[str, Any]:
    """Return what a folder says of its tokenizer beside it, if anything."""
    return files.read_json(path / TOKENIZER_CONFIG) if (path / TOKENIZER_CONFIG).exists() else {}


def _older_tokenizer(path: Path) -> Tokenizer:
    settings = read_settings(path)
    if (path / PIECES).exists():
        return word_pieces(_lines(path / PIECES), settings, str(path / PIECES))
    if (path / PAIRS).exists() and (path / MERGES).exists():
        numbers = files.read_json(path / PAIRS)
        merges = [line for line in _lines(path / MERGES) if line and not line.startswith("#version")]
        return byte_pairs(numbers, merges, settings)
    raise CheckpointError(f"{path}: no {TOKENIZER}, no {PIECES}, and no {PAIRS} with {MERGES}: a tokenizer is needed")


def _lines(path: Path) -> list[str]:
    return [line.removesuffix("\r") for line in _text(path).removesuffix("\n").split("\n")]


def _text(path: Path) -> str:
    try:
        return files.read_bytes(path, most=_LIMIT).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8: {error}") from None


def check_vocabulary(path: Path, tokenizer: Tokenizer, size: int, side: str = "") -> None:
    """Raise where a tokenizer has more tokens than the model of its folder."""
    if tokenizer.size > size:
        raise CheckpointError(
            f"{path}: the {side}{' ' if side else ''}tokenizer has {tokenizer.size} tokens, but {CONFIG} says {size}: "
            "it is not the one that the weights were trained with"
        )


def tokenizer_config(
    tokenizer: Tokenizer,
    roles: Mapping[str, int],
    longest: int,
    inputs: Sequence[str] = ("input_ids", "attention_mask"),
) -> dict[str, Any]:
    """Return what tells other tools which tokens are special and how long a row may be; a role of -1 has no token."""
    named = {role: tokenizer.backend.id_to_token(number) for role, number in roles.items() if number >= 0}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
        "model_input_names": list(inputs),
        **{role: token for role, token in named.items() if token is not None},
    }
