"""Tokenizer files of a model folder: tokenizer.json and tokenizer_config.json, or vocabulary files of older folders.

vocab.txt                      WordPiece, one subword per line (BERT)
vocab.json and merges.txt      byte-level BPE (GPT-2, RoBERTa)
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

TOKENIZER = "tokenizer.json"
TARGET_TOKENIZER = "target_tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
WORDPIECE_VOCAB = "vocab.txt"
BPE_VOCAB = "vocab.json"
BPE_MERGES = "merges.txt"
NO_TEMPLATE = ("", "", False)
END_OF_TEXT = "<|endoftext|>"
MAX_VOCABULARY_BYTES = 64 << 20  # of a JSON file that lists a vocabulary
_MAX_BYTES = 256 << 20  # of a tokenizer file
_WORDPIECE_SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json file; its content is validated first."""
    return Tokenizer.from_json(_read_text(path), where=str(path))


def read_folder_tokenizer(path: Path, template: tuple[str, str, bool] = NO_TEMPLATE) -> Tokenizer:
    """Read a folder's tokenizer, from tokenizer.json or from the files of older folders.

    `template` (start token, end token, whether two end tokens separate a pair) is that of the folder's model type. It
    applies to tokenizers that define no template of their own.
    """
    start, end, double = template
    file = path / TOKENIZER
    tokenizer = read_tokenizer(file) if file.exists() else _read_vocabulary_files(path)
    is_known = all(tokenizer.backend.token_to_id(token) is not None for token in (start, end))
    if is_known and not SpecialTokens(tokenizer).num_special():
        return with_special_tokens(tokenizer, start, end, double_separator=double)
    return tokenizer


def read_tokenizer_with_end(path: Path) -> Tokenizer:
    """Read a causal model's tokenizer; the files of older folders do not mark the end of text as a special token."""
    tokenizer = read_folder_tokenizer(path)
    end_id = tokenizer.backend.token_to_id(END_OF_TEXT)
    if end_id is None or end_id in tokenizer.special_ids:
        return tokenizer
    tokenizer.backend.add_special_tokens([END_OF_TEXT])
    return Tokenizer(tokenizer.backend)


def read_tokenizer_config(path: Path) -> dict[str, Any]:
    """Read a folder's tokenizer_config.json; empty where there is none."""
    file = path / TOKENIZER_CONFIG
    return atomic.read_json(file) if file.exists() else {}


def check_vocabulary(path: Path, tokenizer: Tokenizer, size: int, side: str = "") -> None:
    """Raise where a tokenizer has more tokens than the embedding of its folder's model."""
    if tokenizer.vocab_size > size:
        name = f"{side} tokenizer" if side else "tokenizer"
        raise CheckpointError(
            f"{path}: the {name} has {tokenizer.vocab_size} tokens, but {CONFIG} says {size}: "
            "the model was trained with another tokenizer"
        )


def tokenizer_config(
    tokenizer: Tokenizer,
    roles: Mapping[str, int],
    max_length: int,
    inputs: Sequence[str] = ("input_ids", "attention_mask"),
) -> dict[str, Any]:
    """Content of tokenizer_config.json for other tools. `roles` maps roles to token ids; -1 stands for no token."""
    tokens = {role: tokenizer.backend.id_to_token(token_id) for role, token_id in roles.items() if token_id >= 0}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "model_input_names": list(inputs),
        **{role: token for role, token in tokens.items() if token is not None},
    }


def wordpiece_tokenizer(lines: Sequence[str], settings: Mapping[str, Any], where: str) -> Tokenizer:
    """Build BERT's tokenizer from a vocabulary; `settings` is the content of `tokenizer_config.json`.

    >>> lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "na", "##ive"]
    >>> tokenizer = wordpiece_tokenizer(lines, {"do_lower_case": True}, "vocab.txt")
    >>> tokenizer.subwords(tokenizer.encode("Naïve").ids), tokenizer.encode("Naïve").spans
    (['na', '##ive'], [(0, 2), (2, 5)])
    """
    vocabulary = {subword: token_id for token_id, subword in enumerate(lines)}
    special_tokens = {
        role: _token_text(settings.get(role), default) for role, default in _WORDPIECE_SPECIAL_TOKENS.items()
    }
    for role in ("unk_token", "sep_token", "cls_token"):
        if special_tokens[role] not in vocabulary:
            raise CheckpointError(f"{where}: no token {special_tokens[role]!r}, which the tokenizer needs ({role})")
    if len(vocabulary) != len(lines):
        count = len(lines) - len(vocabulary)
        raise CheckpointError(f"{where}: {count} duplicate lines: each token has one id")
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=special_tokens["unk_token"]))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case") is not False,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([token for token in special_tokens.values() if token in vocabulary])
    return with_special_tokens(Tokenizer(backend), special_tokens["cls_token"], special_tokens["sep_token"])


def byte_level_bpe_tokenizer(
    vocabulary: Mapping[str, int], merges: Sequence[str], settings: Mapping[str, Any]
) -> Tokenizer:
    """Build RoBERTa's tokenizer from a vocabulary and its merges, in order of priority."""
    splits = [line.partition(" ") for line in merges]
    pairs = [(left, right) for left, _, right in splits if right]
    backend = tokenizers.Tokenizer(models.BPE(dict(vocabulary), pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space") is True)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    backend.add_special_tokens([token for token in ("<s>", "<pad>", "</s>", "<unk>") if token in vocabulary])
    if "<mask>" in vocabulary:
        backend.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer = Tokenizer(backend)
    if tokenizer.bos_id < 0 or tokenizer.eos_id < 0:
        return tokenizer
    return with_special_tokens(tokenizer, "<s>", "</s>", double_separator=True)


def _read_vocabulary_files(path: Path) -> Tokenizer:
    """Build the tokenizer of an older folder from its vocabulary files."""
    settings = read_tokenizer_config(path)
    if (path / WORDPIECE_VOCAB).exists():
        return wordpiece_tokenizer(_read_lines(path / WORDPIECE_VOCAB), settings, str(path / WORDPIECE_VOCAB))
    if (path / BPE_VOCAB).exists() and (path / BPE_MERGES).exists():
        vocabulary = atomic.read_json(path / BPE_VOCAB, max_bytes=MAX_VOCABULARY_BYTES)
        merges = [line for line in _read_lines(path / BPE_MERGES) if line and not line.startswith("#version")]
        return byte_level_bpe_tokenizer(vocabulary, merges, settings)
    raise CheckpointError(
        f"{path}: no {TOKENIZER}, no {WORDPIECE_VOCAB}, and no {BPE_VOCAB} with {BPE_MERGES}: a tokenizer is needed"
    )


def _read_lines(path: Path) -> list[str]:
    return [line.removesuffix("\r") for line in _read_text(path).removesuffix("\n").split("\n")]


def _read_text(path: Path) -> str:
    try:
        return atomic.read_bytes(path, max_bytes=_MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8: {error}") from None


def _token_text(setting: object, default: str) -> str:
    """Text of a special token from its setting: a text, or an object with `content`."""
    content = setting.get("content") if isinstance(setting, Mapping) else setting
    return content if isinstance(content, str) else default
