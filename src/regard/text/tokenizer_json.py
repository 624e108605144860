"""Check a `tokenizer.json` before the library opens it: a damaged or hostile file gets one clear line, not a crash.

Sizes, types and references are checked here, also where the library would crash on them. Which models, components and
patterns there are is the library's to say.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

import numpy as np

from regard.errors import CheckpointError, nearest

LARGEST = 64 * 1024 * 1024  # characters of a file
LONGEST_TOKEN = 10_000
LONGEST_WORD = 10_000  # WordPiece's max_input_chars_per_word: its time is quadratic in it
MAX_COMPONENT_TEXT = 10_000  # characters of a text or pattern in a component
MAX_NESTING = 4  # sequences of components within each other
WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"  # what byte-level BPE learned here splits by
WHITE = r"\s"
_TOP = {"version", "truncation", "padding", "added_tokens"} | {
    "normalizer",
    "pre_tokenizer",
    "post_processor",
    "decoder",
    "model",
}
COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def validate_tokenizer_json(text: str, where: str) -> tuple[str, int]:
    """Return the file's content without padding, truncation and dropout, and its number of tokens.

    >>> validate_tokenizer_json('{"model": {"type": "BPE", "vocab": []}}', "tokenizer.json")
    Traceback (most recent call last):
    regard.errors.CheckpointError: tokenizer.json: model.vocab: an object of tokens and their numbers is needed
    """
    data = _parsed(text, where)
    for name in data:
        if name not in _TOP:
            raise _fault(where, name, f"unknown field{nearest(name, _TOP)}")
    model = data.get("model")
    if not isinstance(model, dict):
        raise _fault(where, "model", "an object is needed")
    vocabulary = _check_model(model, where)
    size = _check_added(data.get("added_tokens"), vocabulary, where)
    for name in COMPONENTS:
        _check_component(data.get(name), name, where)
    data = data | {"truncation": None, "padding": None, "decoder": data.get("decoder")}
    return _written(data), size


def _written(data: Mapping[str, Any]) -> str:
    """Return what `json.dumps(data, ensure_ascii=False, indent=1)` gives, sooner where there are many tokens.

    >>> data = {"model": {"type": "WordLevel", "vocab": {"a": 0, 'ä"': 1}, "unk_token": None}, "version": "1.0"}
    >>> _written(data) == json.dumps(data, ensure_ascii=False, indent=1)
    True
    """
    model = data["model"]
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not vocabulary:
        return json.dumps(data, ensure_ascii=False, indent=1)
    numbers = _object({token: str(number) for token, number in vocabulary.items()}, 3)
    parts = {name: numbers if name == "vocab" else _value(part, 2) for name, part in model.items()}
    return _object({name: _object(parts, 2) if name == "model" else _value(part, 1) for name, part in data.items()}, 1)


def _value(part: Any, depth: int) -> str:
    return json.dumps(part, ensure_ascii=False, indent=1).replace("\n", "\n" + " " * depth)


def _object(parts: Mapping[str, str], depth: int) -> str:
    lines = (f"{' ' * depth}{encode_basestring(name)}: {part}" for name, part in parts.items())
    return "{\n" + ",\n".join(lines) + "\n" + " " * (depth - 1) + "}"


def _fault(where: str, field: str, what: str) -> CheckpointError:
    return CheckpointError(f"{where}: {field}: {what}")


def _parsed(text: str, where: str) -> dict[str, Any]:
    if len(text) > LARGEST:
        raise CheckpointError(
            f"{where}: {len(text):,} characters are more than a tokenizer needs (at most {LARGEST:,})"
        )
    try:
        data = json.loads(text)
    except RecursionError:
        raise CheckpointError(f"{where}: not a tokenizer: nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(f"{where}: not readable as JSON: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{where}: not a tokenizer: a JSON object is needed, not {type(data).__name__}")
    return data


def _check_model(model: dict[str, Any], where: str) -> dict[str, int]:
    """Return token → number after checking the model's fields; dropout is taken out."""
    kind = model.setdefault("type", _guessed(model))
    if not isinstance(kind, str):
        raise _fault(where, "model.type", f"{str(kind)[:40]!r} is not a text")
    vocabulary = _unigram(model, where) if kind == "Unigram" else _numbered(model.get("vocab"), where)
    if kind == "BPE":
        _check_merges(model, vocabulary, where)
        model["dropout"] = None
    if kind == "WordPiece":
        longest = model.get("max_input_chars_per_word", 100)
        if not _whole(longest) or not 1 <= longest <= LONGEST_WORD:
            raise _fault(where, "model.max_input_chars_per_word", f"{longest!r} is not between 1 and {LONGEST_WORD}")
    unknown = model.get("unk_token")
    is_needed = kind in ("WordPiece", "WordLevel")
    if (unknown is not None or is_needed) and (not isinstance(unknown, str) or unknown not in vocabulary):
        raise _fault(where, "model.unk_token", f"{unknown!r} is not in the vocabulary")
    return vocabulary


def _guessed(model: Mapping[str, Any]) -> str:
    """Return the type of a model in an old file that does not name it."""
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_token(token: object, field: str, where: str) -> str:
    if not isinstance(token, str) or not token or len(token) > LONGEST_TOKEN:
        raise _fault(where, field, f"{str(token)[:40]!r} is not a token: 1 to {LONGEST_TOKEN} characters of text are")
    if not token.isascii() and any("\ud800" <= letter <= "\udfff" for letter in token):
        raise _fault(where, field, f"{ascii(token)[:40]} holds half a surrogate pair")
    return token


def _numbered(vocabulary: object, where: str) -> dict[str, int]:
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise _fault(where, "model.vocab", "an object of tokens and their numbers is needed")
    for token, number in vocabulary.items():
        if token:
            _check_token(token, "model.vocab", where)
        if not _whole(number) or not 0 <= number < 2**31:
            raise _fault(
                where, "model.vocab", f"{token[:40]!r} has the number {number!r}: whole numbers from 0 are needed"
            )
    if len(set(vocabulary.values())) < len(vocabulary):
        raise _fault(where, "model.vocab", "two tokens have the same number")
    return vocabulary


def _unigram(model: Mapping[str, Any], where: str) -> dict[str, int]:
    rows = model.get("vocab")
    if not isinstance(rows, list) or not rows:
        raise _fault(where, "model.vocab", "a list of tokens and their scores is needed")
    vocabulary: dict[str, int] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != 2:
            raise _fault(where, f"model.vocab[{number}]", "a token and its score are needed")
        token, score = row
        _check_token(token, f"model.vocab[{number}]", where)
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            raise _fault(where, f"model.vocab[{number}]", f"the score {score!r} is not a finite number")
        if token in vocabulary:
            raise _fault(where, f"model.vocab[{number}]", f"{token[:40]!r} stands twice")
        vocabulary[token] = number
    unknown = model.get("unk_id")
    if unknown is not None and (not _whole(unknown) or not 0 <= unknown < len(rows)):
        raise _fault(where, "model.unk_id", f"{unknown!r} is not a token's number")
    return vocabulary


def _check_merges(model: Mapping[str, Any], vocabulary: Mapping[str, int], where: str) -> None:
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise _fault(where, "model.merges", "a list is needed")
    prefix = model.get("continuing_subword_prefix") or ""
    if not isinstance(prefix, str):
        raise _fault(where, "model.continuing_subword_prefix", f"{prefix!r} is not a text")
    for place, merge in enumerate(merges):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise _fault(where, f"model.merges[{place}]", f"{str(merge)[:40]!r} is not a pair of tokens")
        left, right = parts
        if right[: len(prefix)] != prefix:
            raise _fault(where, f"model.merges[{place}]", f"{right[:40]!r} does not begin with {prefix!r}")
        for token in (left, right, left + right[len(prefix) :]):
            if token not in vocabulary:
                raise _fault(where, f"model.merges[{place}]", f"{token[:40]!r} is not in the vocabulary")


def _check_added(added: object, vocabulary: Mapping[str, int], where: str) -> int:
    """Return how many tokens there are in all; their numbers must be dense."""
    if added is not None and not isinstance(added, list):
        raise _fault(where, "added_tokens", "a list is needed")
    numbers = dict(vocabulary)
    for place, token in enumerate(added or []):
        field = f"added_tokens[{place}]"
        if not isinstance(token, dict) or not _whole(token.get("id")):
            raise _fault(where, field, "an object with id and content is needed")
        content = _check_token(token.get("content"), f"{field}.content", where)
        for flag in ("single_word", "lstrip", "rstrip", "normalized", "special"):
            if not isinstance(token.get(flag), bool):
                raise _fault(where, f"{field}.{flag}", "true or false is needed")
        if numbers.setdefault(content, token["id"]) != token["id"]:
            raise _fault(
                where, field, f"{content[:40]!r} is number {token['id']} here and {numbers[content]} elsewhere"
            )
    missing = set(range(len(numbers))) - set(numbers.values())
    if missing:
        raise _fault(where, "model.vocab", f"no token has the number {min(missing)}: numbers must be dense from 0")
    return len(numbers)


def _check_component(component: object, field: str, where: str, depth: int = 0) -> None:
    """Check the types and sizes of one component and of those inside it."""
    if component is None:
        return
    if not isinstance(component, dict):
        raise _fault(where, field, "an object is needed")
    kind = component.get("type")
    if not isinstance(kind, str):
        raise _fault(where, f"{field}.type", f"{str(kind)[:40]!r} is not a text")
    if depth > MAX_NESTING:
        raise _fault(where, field, f"nested too deeply: at most {MAX_NESTING} sequences within each other")
    for name, setting in component.items():
        if name == "precompiled_charsmap":
            _check_charsmap(setting, f"{field}.{name}", where)
        elif name == "pattern" and isinstance(setting, dict):
            for syntax, pattern in setting.items():
                _check_text(pattern, f"{field}.{name}.{syntax}", where)
        elif isinstance(setting, str):
            _check_text(setting, f"{field}.{name}", where)
        elif isinstance(setting, list) and kind == "Sequence":
            for index, inner in enumerate(setting):
                _check_component(inner, f"{field}.{name}[{index}]", where, depth + 1)
    length = component.get("length", 1)
    if kind == "FixedLength" and (not _whole(length) or length < 1):
        raise _fault(where, f"{field}.length", f"{length!r} is not a whole number from 1")
    if kind == "Strip" and "content" in component:  # a decoder's; a normalizer has none
        _check_stripping(component, field, where)


def _check_text(text: object, field: str, where: str) -> None:
    if not isinstance(text, str) or len(text) > MAX_COMPONENT_TEXT:
        raise _fault(where, field, f"a text of at most {MAX_COMPONENT_TEXT:,} characters is needed")


def _check_stripping(decoder: Mapping[str, Any], field: str, where: str) -> None:
    """Refuse what the library would crash on when it strips the end of a text."""
    stop = decoder.get("stop")
    if stop not in (0, 1):
        raise _fault(where, f"{field}.stop", f"{stop!r} is not 0 or 1")
    if stop == 1 and decoder["content"] != " ":
        content = str(decoder["content"])[:40]
        raise _fault(where, f"{field}.content", f"{content!r} cannot be stripped at the end, only a space can")


def _check_charsmap(value: object, field: str, where: str) -> None:
    """Check SentencePiece's compiled table of replacements: a trie whose links all stay inside it.

    The table is a double array as in the Darts library: a unit holds a label, a link to its children (to be
    combined with its own place by exclusive or) and whether a value stands there, an offset into the texts.
    """
    broken = _fault(where, field, "the table is damaged")
    try:
        raw = base64.b64decode(value if isinstance(value, str) else "", validate=True)
    except (binascii.Error, ValueError):
        raise broken from None
    if not raw:
        raise broken
    size = int.from_bytes(raw[:4], "little")
    if len(raw) < 4 or size % 4 or not size or 4 + size > len(raw):
        raise broken
    units = np.frombuffer(raw, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
    texts = len(raw) - 4 - size
    labels = np.arange(256)
    seen = np.zeros(len(units), dtype=bool)
    places = np.zeros(1, dtype=np.int64)
    while len(places):
        seen[places] = True
        found = units[places]
        base = places ^ ((found >> 10) << ((found & (1 << 9)) >> 6))
        if (base | 0xFF).max() >= len(units):
            raise broken
        values = units[base[(found >> 8) & 1 == 1]] & 0x7FFFFFFF
        if len(values) and values.max() >= texts:
            raise broken
        children = (base[:, None] ^ labels[None, 1:]).ravel()
        real = (units[children] & 0x800000FF) == np.broadcast_to(labels[1:], (len(base), 255)).ravel()
        places = np.unique(children[real])
        places = places[~seen[places]]
