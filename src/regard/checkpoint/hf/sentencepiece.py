"""SentencePiece models with a separate vocabulary, as in Marian folders, converted to our tokenizers. Free of torch."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.checkpoint import atomic
from regard.errors import CheckpointError
from regard.text.tokenizer import OTHER_SIDE, Tokenizer

FILES = ("source.spm", "target.spm", "vocab.json")
_TARGET_VOCABULARY = "target_vocab.json"
_EOS = "</s>"
_UNKNOWN = "<unk>"
_SPECIAL_TOKENS = (_EOS, _UNKNOWN, "<pad>")
_SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}
_MAX_BYTES = 64 << 20  # of a model file
_MAX_SUBWORD_LENGTH = 256  # characters of a subword that merges are built for
_UNIGRAM = 1  # SentencePiece's numbers of model types
_BPE = 2
_NORMAL = 1  # … and of subword types
_USER_DEFINED = 4
_BYTE = 6
_UNKNOWN_PENALTY = 10.0  # SentencePiece scores unknown characters so much below the lowest score
_VARINT = 0  # wire types of protocol buffers
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5


def has_sentencepiece(folder: Path) -> bool:
    """Whether a folder holds SentencePiece models and their vocabulary."""
    return all((folder / name).exists() for name in FILES)


def read_sentencepiece(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """Read the tokenizers of source and target; their token ids are those of `vocab.json`."""
    source_file, target_file, vocabulary_file = FILES
    source_vocabulary = _read_vocabulary(folder / vocabulary_file)
    target_vocabulary = source_vocabulary
    if (folder / _TARGET_VOCABULARY).exists():
        target_vocabulary = _read_vocabulary(folder / _TARGET_VOCABULARY)
    source = _build_tokenizer(folder / source_file, source_vocabulary)
    target = _build_tokenizer(folder / target_file, target_vocabulary)
    return source, target


def _build_tokenizer(path: Path, vocabulary: Mapping[str, int]) -> Tokenizer:
    """Build a tokenizer that splits text as a SentencePiece model does, with the token ids of a vocabulary.

    A subword that the vocabulary lacks is never produced: its text is split further. A character that only the other
    side's model has keeps its token id from there, also several in a row. A language token such as `>>de<<` is one
    token.
    """
    model = _read_model(path)
    user_defined = {subword.text for subword in model.subwords if subword.kind == _USER_DEFINED}
    unsplit = [text for text in vocabulary if text in user_defined or _is_language(text)]
    added_tokens = [_added_token(text, vocabulary[text]) for text in [*_SPECIAL_TOKENS, *unsplit]]
    metaspace = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always" if model.has_dummy_prefix else "never",
        "split": True,
    }
    content = {
        "version": "1.0",
        "added_tokens": added_tokens,
        "normalizer": {"type": "Sequence", "normalizers": _build_normalizers(model)},
        "pre_tokenizer": metaspace,
        "post_processor": _post_processor(vocabulary[_EOS]),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": OTHER_SIDE}, "content": ""},
                *([{"type": "ByteFallback"}] if model.has_byte_fallback else []),
                metaspace,
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 1},
            ],
        },
        "model": _build_unigram(model, vocabulary) if model.kind == _UNIGRAM else _build_bpe(model, vocabulary),
    }
    return Tokenizer.from_json(json.dumps(content, ensure_ascii=False), where=str(path))


def _post_processor(eos_id: int) -> dict[str, Any]:
    """Template that appends the end of the sequence."""
    eos = {"SpecialToken": {"id": _EOS, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [_SEQUENCE, eos],
        "pair": [_SEQUENCE, {"Sequence": {"id": "B", "type_id": 0}}, eos],
        "special_tokens": {_EOS: {"id": _EOS, "ids": [eos_id], "tokens": [_EOS]}},
    }


def _build_unigram(model: _SentencePieceModel, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    scores = model.scores
    normal_scores = [subword.score for subword in model.subwords if subword.kind == _NORMAL]
    unknown_score = min(normal_scores, default=0.0) - _UNKNOWN_PENALTY
    rows = []
    for text in _list_subwords(vocabulary, scores):
        is_foreign_character = text not in scores and len(text) == 1  # its own id, at the score of an unknown one
        rows.append([text, unknown_score if is_foreign_character else scores.get(text, 0.0)])
    return {
        "type": "Unigram",
        "unk_id": vocabulary[_UNKNOWN],
        "vocab": rows,
        "byte_fallback": model.has_byte_fallback,
    }


def _build_bpe(model: _SentencePieceModel, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """Build BPE whose merges are all ways to join two subwords into a third, best score first."""
    scores = model.scores
    token_ids = {text: token_id for token_id, text in enumerate(_list_subwords(vocabulary, scores))}
    merges = []  # (score, left, right)
    for text, score in scores.items():
        if text not in token_ids:
            continue
        for split in range(1, min(len(text), _MAX_SUBWORD_LENGTH)):
            left = text[:split]
            right = text[split:]
            if left in token_ids and right in token_ids:
                merges.append((score, left, right))
    merges.sort(key=lambda merge: (-merge[0], len(merge[1])))
    return {
        "type": "BPE",
        "unk_token": _UNKNOWN,
        "fuse_unk": True,
        "byte_fallback": model.has_byte_fallback,
        "vocab": token_ids,
        "merges": [[left, right] for _, left, right in merges],
    }


def _list_subwords(vocabulary: Mapping[str, int], scores: Mapping[str, float]) -> list[str]:
    """Subwords by token id; those that this side's model cannot produce get a prefix, missing ids a placeholder."""
    by_id = {token_id: text for text, token_id in vocabulary.items()}
    subwords = []
    for token_id in range(max(by_id) + 1):
        text = by_id.get(token_id, f"<gap {token_id}>")
        is_own = text in scores or text in _SPECIAL_TOKENS or len(text) == 1 or _is_language(text)
        subwords.append(text if is_own else OTHER_SIDE + text)
    return subwords


def _build_normalizers(model: _SentencePieceModel) -> list[dict[str, Any]]:
    normalizers: list[dict[str, Any]] = []
    if model.charsmap:
        charsmap = base64.b64encode(model.charsmap).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if model.has_trimmed_spaces:
        normalizers.append({"type": "Strip", "strip_left": True, "strip_right": True})
        normalizers.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return normalizers


def _added_token(text: str, token_id: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": text, **flags, "special": text in _SPECIAL_TOKENS}


def _is_language(text: str) -> bool:
    return text.startswith(">>") and text.endswith("<<")


def _read_vocabulary(path: Path) -> dict[str, int]:
    """Read subwords and their token ids after validating them."""
    vocabulary = atomic.read_json(path, max_bytes=_MAX_BYTES)
    for text, token_id in vocabulary.items():
        if type(token_id) is not int or not 0 <= token_id < 2 * len(vocabulary) or not text:
            raise CheckpointError(f"{path}: {text!r:.60} has the id {token_id!r:.60}: whole numbers from 0 are needed")
    if len(set(vocabulary.values())) < len(vocabulary):
        raise CheckpointError(f"{path}: two subwords have the same id")
    for token in _SPECIAL_TOKENS:
        if token not in vocabulary:
            raise CheckpointError(f"{path}: no token {token}")
    return vocabulary


@dataclass(frozen=True)
class _Subword:
    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class _SentencePieceModel:
    """What tokenization needs of a SentencePiece file."""

    subwords: list[_Subword]
    kind: int
    has_byte_fallback: bool
    has_suffix_spaces: bool  # ▁ follows words instead of preceding them
    charsmap: bytes
    has_dummy_prefix: bool  # a space precedes the text
    has_trimmed_spaces: bool  # runs of spaces become one, those at the ends none

    @property
    def scores(self) -> dict[str, float]:
        """Subwords that text can be split into, with their scores."""
        kinds = (_NORMAL, _USER_DEFINED, _BYTE)
        return {subword.text: subword.score for subword in self.subwords if subword.kind in kinds}


def _read_model(path: Path) -> _SentencePieceModel:
    """Read the few fields that are needed of a SentencePiece file, which is a protocol buffer."""
    data = atomic.read_bytes(path, max_bytes=_MAX_BYTES)
    try:
        subwords = [
            _parse_subword(dict(_iterate_fields(value))) for field, value in _iterate_fields(data) if field == 1
        ]
        specs = {field: dict(_iterate_fields(value)) for field, value in _iterate_fields(data) if field in (2, 3)}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error):
        raise CheckpointError(f"{path}: not a sound SentencePiece model") from None
    trainer = specs.get(2, {})
    normalizer = specs.get(3, {})
    model = _SentencePieceModel(
        subwords,
        kind=trainer.get(3, _UNIGRAM),
        has_byte_fallback=bool(trainer.get(35, 0)),
        has_suffix_spaces=bool(trainer.get(24, 0)),
        charsmap=normalizer.get(2, b""),
        has_dummy_prefix=bool(normalizer.get(3, 1)),
        has_trimmed_spaces=bool(normalizer.get(4, 1)),
    )
    if not model.scores:
        raise CheckpointError(f"{path}: not a sound SentencePiece model: it has no subwords")
    if model.kind not in (_UNIGRAM, _BPE) or model.has_suffix_spaces:
        raise CheckpointError(f"{path}: only SentencePiece models of type unigram and bpe with ▁ before words are read")
    return model


def _parse_subword(fields: dict[int, Any]) -> _Subword:
    return _Subword(fields[1].decode(), float(fields.get(2, 0.0)), kind=int(fields.get(3, _NORMAL)))


def _iterate_fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a protocol buffer message, by its published wire format."""
    if not isinstance(data, bytes):
        raise TypeError
    offset = 0
    while offset < len(data):
        key, offset = _read_varint(data, offset)
        field = key >> 3
        wire_type = key & 7
        if wire_type == _VARINT:
            value, offset = _read_varint(data, offset)
            yield field, value
        elif wire_type == _FIXED32:
            yield field, struct.unpack_from("<f", data, offset)[0]
            offset += 4
        else:
            if wire_type == _FIXED64:
                length = 8
            elif wire_type == _BYTES:
                length, offset = _read_varint(data, offset)
            else:
                raise ValueError
            if offset + length > len(data):
                raise ValueError
            yield field, data[offset : offset + length]
            offset += length


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Read an integer of seven bits per byte; return it and the offset after it."""
    value = 0
    for index in range(10):
        byte = data[offset + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, offset + index + 1
    raise ValueError
