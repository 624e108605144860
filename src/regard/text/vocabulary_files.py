"""Vocabularies in the files of older folders, as tokenizers: one word piece a line, or byte-level pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import CheckpointError
from regard.text.framing import with_template
from regard.text.tokenizer import Tokenizer

_NAMED = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def word_pieces(lines: Sequence[str], settings: Mapping[str, Any], where: str) -> Tokenizer:
    """Return BERT's tokenizer of a vocabulary; `settings` are those of a `tokenizer_config.json`.

    >>> lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "na", "##ive"]
    >>> tokenizer = word_pieces(lines, {"do_lower_case": True}, "vocab.txt")
    >>> tokenizer.pieces(tokenizer.encode("Naïve").ids), tokenizer.encode("Naïve").spans
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
    return with_template(Tokenizer(backend), names["cls_token"], names["sep_token"])


def byte_pairs(vocabulary: Mapping[str, int], merges: Sequence[str], settings: Mapping[str, Any]) -> Tokenizer:
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
    return with_template(made, "<s>", "</s>", double=True) if made.start >= 0 and made.end >= 0 else made


def _token(value: object, default: str) -> str:
    """Return a token's name from a setting: a text, or an object with its content."""
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else default
