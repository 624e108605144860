"""A folder's tokenizer: one file, or those of older folders; and what tells others of its special tokens.

Vocabularies in the files of older folders, as tokenizers: one word piece a line, or byte-level pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.checkpoint import atomic
from regard.checkpoint.locate import CONFIG
from regard.errors import CheckpointError
from regard.text.special_tokens import SpecialTokens, with_special_tokens
from regard.text.tokenizer import Tokenizer

TOKENIZER, TARGET_TOKENIZER = "tokenizer.json", "target_tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
PIECES, PAIRS, MERGES = "vocab.txt", "vocab.json", "merges.txt"  # of older folders
_LIMIT = 256 << 20  # bytes of a tokenizer file
_NONE = ("", "", False)


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a file, checked before it is opened."""
    return Tokenizer.from_json(_text(path), where=str(path))


def read_folder_tokenizer(path: Path, template: tuple[str, str, bool] = _NONE) -> Tokenizer:
    """Return a folder's tokenizer, of one file or of older ones.

    The template – first token, last token, whether two stand between a pair – is that of the folder's type, for
    tokenizers that say nothing of it.
    """
    start, end, double = template
    found = read_tokenizer(path / TOKENIZER) if (path / TOKENIZER).exists() else _older_tokenizer(path)
    known = all(found.backend.token_to_id(name) is not None for name in (start, end))
    return (
        with_special_tokens(found, start, end, double=double)
        if known and not SpecialTokens(found).num_special()
        else found
    )


def read_tokenizer_config(path: Path) -> dict[str, Any]:
    """Return what a folder says of its tokenizer beside it, if anything."""
    return atomic.read_json(path / TOKENIZER_CONFIG) if (path / TOKENIZER_CONFIG).exists() else {}


def _older_tokenizer(path: Path) -> Tokenizer:
    settings = read_tokenizer_config(path)
    if (path / PIECES).exists():
        return wordpiece_tokenizer(_lines(path / PIECES), settings, str(path / PIECES))
    if (path / PAIRS).exists() and (path / MERGES).exists():
        numbers = atomic.read_json(path / PAIRS)
        merges = [line for line in _lines(path / MERGES) if line and not line.startswith("#version")]
        return byte_level_bpe_tokenizer(numbers, merges, settings)
    raise CheckpointError(f"{path}: no {TOKENIZER}, no {PIECES}, and no {PAIRS} with {MERGES}: a tokenizer is needed")


def _lines(path: Path) -> list[str]:
    return [line.removesuffix("\r") for line in _text(path).removesuffix("\n").split("\n")]


def _text(path: Path) -> str:
    try:
        return atomic.read_bytes(path, max_bytes=_LIMIT).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8: {error}") from None


def check_vocabulary(path: Path, tokenizer: Tokenizer, size: int, side: str = "") -> None:
    """Raise where a tokenizer has more tokens than the model of its folder."""
    if tokenizer.vocab_size > size:
        raise CheckpointError(
            f"{path}: the {side}{' ' if side else ''}tokenizer has {tokenizer.vocab_size} tokens, but {CONFIG} says {size}: "
            "it is not the one that the weights were trained with"
        )


def tokenizer_config(
    tokenizer: Tokenizer,
    roles: Mapping[str, int],
    max_length: int,
    inputs: Sequence[str] = ("input_ids", "attention_mask"),
) -> dict[str, Any]:
    """Return what tells other tools which tokens are special and how long a row may be; a role of -1 has no token."""
    named = {role: tokenizer.backend.id_to_token(number) for role, number in roles.items() if number >= 0}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "model_input_names": list(inputs),
        **{role: token for role, token in named.items() if token is not None},
    }


_NAMED = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def wordpiece_tokenizer(lines: Sequence[str], settings: Mapping[str, Any], where: str) -> Tokenizer:
    """Return BERT's tokenizer of a vocabulary; `settings` are those of a `tokenizer_config.json`.

    >>> lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "na", "##ive"]
    >>> tokenizer = wordpiece_tokenizer(lines, {"do_lower_case": True}, "vocab.txt")
    >>> tokenizer.subwords(tokenizer.encode("Naïve").ids), tokenizer.encode("Naïve").spans
    (['na', '##ive'], [(0, 2), (2, 5)])
    """
    vocabulary = {piece: number for number, piece in enumerate(lines)}
    names = {role: _token(settings.get(role), default) for role, default in _NAMED.items()}
    for role in ("unk_token", "sep_token", "cls_token"):
        if names[role] not in vocabulary:
            raise CheckpointError(f"{where}: no token {names[role]!r} in it, which the tokenizer needs ({role})")
    if len(vocabulary) != len(lines):
        raise CheckpointError(f"{where}: {len(lines) - len(vocabulary)} lines stand twice: each token has one number")
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=names["unk_token"]))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case") is not False,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([name for name in names.values() if name in vocabulary])
    return with_special_tokens(Tokenizer(backend), names["cls_token"], names["sep_token"])


def byte_level_bpe_tokenizer(
    vocabulary: Mapping[str, int], merges: Sequence[str], settings: Mapping[str, Any]
) -> Tokenizer:
    """Return RoBERTa's tokenizer of a vocabulary and its merges, best first."""
    pairs = [(left, right) for left, _, right in (line.partition(" ") for line in merges) if right]
    backend = tokenizers.Tokenizer(models.BPE(dict(vocabulary), pairs))
    prefix = settings.get("add_prefix_space") is True
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    names = [name for name in ("<s>", "<pad>", "</s>", "<unk>") if name in vocabulary]
    backend.add_special_tokens(names)
    if "<mask>" in vocabulary:
        backend.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, normalized=False)])
    made = Tokenizer(backend)
    return with_special_tokens(made, "<s>", "</s>", double=True) if made.bos_id >= 0 and made.eos_id >= 0 else made


def _token(value: object, default: str) -> str:
    """Return a token's name from a setting: a text, or an object with its content."""
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else default
