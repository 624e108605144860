"""SentencePiece models with a separate vocabulary, as Marian folders have them, as tokenizers of ours."""

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
from regard.text.tokenizer import Tokenizer

FILES = ("source.spm", "target.spm", "vocab.json")
_TARGET_VOCABULARY = "target_vocab.json"
_SPECIALS = ("</s>", "<unk>", "<pad>")
_SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}
_LONGEST = 64 << 20  # bytes of a model file
_LONGEST_PIECE = 256  # characters of a piece that merges are made for
_UNIGRAM, _PAIRS = 1, 2  # SentencePiece's numbers for its model types
_NORMAL, _USER_DEFINED, _BYTE = 1, 4, 6  # … and for the kinds of its pieces
_UNKNOWN_PENALTY = 10.0  # what SentencePiece takes off the lowest score for a character that it does not know
_ELSEWHERE = "\u2063"  # invisible mark before pieces of the other side's model: they are decoded, never found in text


def has_sentencepiece(folder: Path) -> bool:
    """Whether a folder holds SentencePiece models and their vocabulary."""
    return all((folder / name).exists() for name in FILES)


def read_sentencepiece(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of the source and target side; their numbers are those of `vocab.json`."""
    vocabulary = _vocabulary(folder / FILES[2])
    separate = folder / _TARGET_VOCABULARY
    other = _vocabulary(separate) if separate.exists() else vocabulary
    return _tokenizer(folder / FILES[0], vocabulary), _tokenizer(folder / FILES[1], other)


def _tokenizer(path: Path, vocabulary: Mapping[str, int]) -> Tokenizer:
    """Return a tokenizer that cuts text as a SentencePiece model does and numbers pieces as a vocabulary does.

    A piece that the vocabulary lacks is never made: its text is cut into smaller ones. A letter that only the other
    side's model knows has its number from there, also when several stand in a row. A language mark such as `>>de<<`
    is one token.
    """
    model = _model(path)
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always" if model.prefix else "never"}
    chosen = {piece.text for piece in model.subwords if piece.kind == _USER_DEFINED}
    whole = [name for name in vocabulary if name in chosen or _is_language(name)]
    end = _SPECIALS[0]
    content = {
        "version": "1.0",
        "added_tokens": [_added(name, vocabulary[name], name in _SPECIALS) for name in [*_SPECIALS, *whole]],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": metaspace | {"split": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_SEQUENCE, {"SpecialToken": {"id": end, "type_id": 0}}],
            "pair": [_SEQUENCE, {"Sequence": {"id": "B", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}],
            "special_tokens": {end: {"id": end, "ids": [vocabulary[end]], "tokens": [end]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _ELSEWHERE}, "content": ""},
                *([{"type": "ByteFallback"}] if model.byte_fallback else []),
                metaspace | {"split": True},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 1},
            ],
        },
        "model": (_unigram if model.kind == _UNIGRAM else _pairs)(model, vocabulary),
    }
    return Tokenizer.from_json(json.dumps(content, ensure_ascii=False), where=str(path))


def _unigram(model: _SentencePieceModel, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    scores = model.scores
    unknown = min((piece.score for piece in model.subwords if piece.kind == _NORMAL), default=0.0) - _UNKNOWN_PENALTY
    rows = []
    for name in _names(vocabulary, scores):
        foreign_letter = name not in scores and len(name) == 1  # its own number, for the price of an unknown one
        rows.append([name, unknown if foreign_letter else scores.get(name, 0.0)])
    return {"type": "Unigram", "unk_id": vocabulary["<unk>"], "vocab": rows, "byte_fallback": model.byte_fallback}


def _pairs(model: _SentencePieceModel, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """Return BPE whose merges are all ways to make a piece of two others, best piece first."""
    scores = model.scores
    known = {name: number for number, name in enumerate(_names(vocabulary, scores))}
    merges = [
        (score, name[:cut], name[cut:])
        for name, score in scores.items()
        for cut in range(1, min(len(name), _LONGEST_PIECE))
        if name in known and name[:cut] in known and name[cut:] in known
    ]
    merges.sort(key=lambda merge: (-merge[0], len(merge[1])))
    return {
        "type": "BPE",
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "vocab": known,
        "merges": [[left, right] for _, left, right in merges],
    }


def _names(vocabulary: Mapping[str, int], own: Mapping[str, float]) -> list[str]:
    """Return the pieces by number; those that this side's model does not make carry a mark, gaps are filled."""
    by_number = {number: name for name, number in vocabulary.items()}
    names = []
    for number in range(max(by_number) + 1):
        name = by_number.get(number, f"<gap {number}>")
        matched = name in own or name in _SPECIALS or len(name) == 1 or _is_language(name)
        names.append(name if matched else _ELSEWHERE + name)
    return names


def _normalizers(model: _SentencePieceModel) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.trim:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return steps


def _added(name: str, number: int, special: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, **plain, "special": special}


def _is_language(name: str) -> bool:
    return name.startswith(">>") and name.endswith("<<")


def _vocabulary(path: Path) -> dict[str, int]:
    """Return pieces and their numbers after checking that they can be used."""
    vocabulary = atomic.read_json(path)
    for name, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < 2 * len(vocabulary) or not name:
            raise CheckpointError(f"{path}: {name!r:.60} has the number {number!r:.60}: whole ones from 0 are needed")
    if len(set(vocabulary.values())) < len(vocabulary):
        raise CheckpointError(f"{path}: two pieces have the same number")
    for name in _SPECIALS:
        if name not in vocabulary:
            raise CheckpointError(f"{path}: no piece {name}")
    return vocabulary


@dataclass(frozen=True)
class _Piece:
    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class _SentencePieceModel:
    """What of a SentencePiece file matters for cutting text."""

    subwords: list[_Piece]
    kind: int
    byte_fallback: bool
    suffix: bool  # the mark of a space stands after words, not before
    charsmap: bytes
    prefix: bool  # a space is put before the text
    trim: bool  # runs of spaces become one, those at the ends none

    @property
    def scores(self) -> dict[str, float]:
        """The pieces that text can be cut into, with their scores."""
        return {piece.text: piece.score for piece in self.subwords if piece.kind in (_NORMAL, _USER_DEFINED, _BYTE)}


def _model(path: Path) -> _SentencePieceModel:
    """Return what a SentencePiece file holds: a protocol buffer, of which a few fields are needed."""
    data = atomic.read_bytes(path, max_bytes=_LONGEST)
    try:
        pieces = [_piece(dict(_fields(value))) for number, value in _fields(data) if number == 1]
        parts = {number: dict(_fields(value)) for number, value in _fields(data) if number in (2, 3)}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error):
        raise CheckpointError(f"{path}: not a sound SentencePiece model") from None
    trainer, normalizer = parts.get(2, {}), parts.get(3, {})
    model = _SentencePieceModel(
        pieces,
        kind=trainer.get(3, _UNIGRAM),
        byte_fallback=bool(trainer.get(35, 0)),
        suffix=bool(trainer.get(24, 0)),
        charsmap=normalizer.get(2, b""),
        prefix=bool(normalizer.get(3, 1)),
        trim=bool(normalizer.get(4, 1)),
    )
    if not model.scores:
        raise CheckpointError(f"{path}: not a sound SentencePiece model: no pieces in it")
    if model.kind not in (_UNIGRAM, _PAIRS) or model.suffix:
        raise CheckpointError(f"{path}: only SentencePiece models of type unigram and bpe with ▁ before words are read")
    return model


def _piece(fields: dict[int, Any]) -> _Piece:
    return _Piece(fields[1].decode(), float(fields.get(2, 0.0)), int(fields.get(3, _NORMAL)))


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a protocol buffer message (its published wire format)."""
    if not isinstance(data, bytes):
        raise TypeError
    place = 0
    while place < len(data):
        key, place = _whole(data, place)
        number, form = key >> 3, key & 7
        if form == 0:
            value, place = _whole(data, place)
            yield number, value
        elif form == 5:
            yield number, struct.unpack_from("<f", data, place)[0]
            place += 4
        else:
            length, place = (8, place) if form == 1 else _whole(data, place) if form == 2 else (len(data) + 1, place)
            if place + length > len(data):
                raise ValueError
            yield number, data[place : place + length]
            place += length


def _whole(data: bytes, place: int) -> tuple[int, int]:
    """Return the whole number that begins at a place, seven bits a byte, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[place + shift // 7] & 0x7F) << shift
        if data[place + shift // 7] < 0x80:
            return value, place + shift // 7 + 1
    raise ValueError
