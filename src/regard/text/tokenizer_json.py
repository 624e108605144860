"""Validation of a `tokenizer.json` before the library opens it: a damaged or hostile file gets a message, not a crash.

Sizes, types and references are checked, in particular where the library would crash on them. Names of models and
components, and the syntax of patterns, are left to the library.
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

MAX_CHARACTERS = 64 * 1024 * 1024  # of a file
MAX_TOKEN_LENGTH = 10_000
MAX_WORD_LENGTH = 10_000  # WordPiece's max_input_chars_per_word: its time is quadratic in it
MAX_COMPONENT_TEXT = 10_000  # characters of a text or pattern in a component
MAX_NESTING = 4  # sequences of components within each other
WORD_PATTERN = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"  # of our byte-level BPE
WHITE_SPACE_PATTERN = r"\s"
COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_FIELDS = {"version", "truncation", "padding", "added_tokens", *COMPONENTS, "model"}


def validate_tokenizer_json(text: str, where: str) -> tuple[str, int]:
    """Validate a file; return its content without padding, truncation and dropout, and its vocabulary size.

    >>> validate_tokenizer_json('{"model": {"type": "BPE", "vocab": []}}', "tokenizer.json")
    Traceback (most recent call last):
    regard.errors.CheckpointError: tokenizer.json: model.vocab: an object of tokens and their ids is needed
    """
    content = _parse(text, where)
    for name in content:
        if name not in _FIELDS:
            raise _error(where, name, f"unknown field{nearest(name, _FIELDS)}")
    model = content.get("model")
    if not isinstance(model, dict):
        raise _error(where, "model", "an object is needed")
    vocabulary = _check_model(model, where)
    vocab_size = _check_added_tokens(content.get("added_tokens"), vocabulary, where)
    for name in COMPONENTS:
        _check_component(content.get(name), name, where)
    content = content | {"truncation": None, "padding": None, "decoder": content.get("decoder")}
    return _to_json(content), vocab_size


def _to_json(content: Mapping[str, Any]) -> str:
    """Same as `json.dumps(content, ensure_ascii=False, indent=1)`, but faster for large vocabularies.

    >>> content = {"model": {"type": "WordLevel", "vocab": {"a": 0, 'ä"': 1}, "unk_token": None}, "version": "1.0"}
    >>> _to_json(content) == json.dumps(content, ensure_ascii=False, indent=1)
    True
    """
    model = content["model"]
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not vocabulary:
        return json.dumps(content, ensure_ascii=False, indent=1)
    vocabulary_json = _object_to_json({token: str(token_id) for token, token_id in vocabulary.items()}, 3)
    model_fields = {
        name: vocabulary_json if name == "vocab" else _value_to_json(setting, 2) for name, setting in model.items()
    }
    model_json = _object_to_json(model_fields, 2)
    fields = {name: model_json if name == "model" else _value_to_json(setting, 1) for name, setting in content.items()}
    return _object_to_json(fields, 1)


def _value_to_json(setting: Any, depth: int) -> str:
    return json.dumps(setting, ensure_ascii=False, indent=1).replace("\n", "\n" + " " * depth)


def _object_to_json(fields: Mapping[str, str], depth: int) -> str:
    """Object whose values are JSON already."""
    lines = (f"{' ' * depth}{encode_basestring(name)}: {encoded}" for name, encoded in fields.items())
    return "{\n" + ",\n".join(lines) + "\n" + " " * (depth - 1) + "}"


def _error(where: str, field: str, what: str) -> CheckpointError:
    return CheckpointError(f"{where}: {field}: {what}")


def _parse(text: str, where: str) -> dict[str, Any]:
    if len(text) > MAX_CHARACTERS:
        raise CheckpointError(
            f"{where}: {len(text):,} characters are more than a tokenizer needs (at most {MAX_CHARACTERS:,})"
        )
    try:
        content = json.loads(text)
    except RecursionError:
        raise CheckpointError(f"{where}: not a tokenizer: nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(f"{where}: not readable as JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{where}: not a tokenizer: a JSON object is needed, not {type(content).__name__}")
    return content


def _check_model(model: dict[str, Any], where: str) -> dict[str, int]:
    """Check the fields of the model and remove its dropout; return token → id."""
    model_type = model.setdefault("type", _guess_model_type(model))
    if not isinstance(model_type, str):
        raise _error(where, "model.type", f"{str(model_type)[:40]!r} is not a text")
    if model_type == "Unigram":
        vocabulary = _check_unigram_vocabulary(model, where)
    else:
        vocabulary = _check_vocabulary(model.get("vocab"), where)
    if model_type == "BPE":
        _check_merges(model, vocabulary, where)
        model["dropout"] = None
    if model_type == "WordPiece":
        max_length = model.get("max_input_chars_per_word", 100)
        if not _is_integer(max_length) or not 1 <= max_length <= MAX_WORD_LENGTH:
            what = f"{max_length!r} is not between 1 and {MAX_WORD_LENGTH}"
            raise _error(where, "model.max_input_chars_per_word", what)
    unk_token = model.get("unk_token")
    needs_unk_token = model_type in ("WordPiece", "WordLevel")
    is_known = isinstance(unk_token, str) and unk_token in vocabulary
    if (unk_token is not None or needs_unk_token) and not is_known:
        raise _error(where, "model.unk_token", f"{unk_token!r} is not in the vocabulary")
    return vocabulary


def _guess_model_type(model: Mapping[str, Any]) -> str:
    """Type of a model in an old file that does not name it."""
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def _is_integer(setting: object) -> bool:
    return isinstance(setting, int) and not isinstance(setting, bool)


def _check_token(token: object, field: str, where: str) -> str:
    if not isinstance(token, str) or not token or len(token) > MAX_TOKEN_LENGTH:
        what = f"{str(token)[:40]!r} is not a token: 1 to {MAX_TOKEN_LENGTH} characters of text are"
        raise _error(where, field, what)
    if not token.isascii() and any("\ud800" <= character <= "\udfff" for character in token):
        raise _error(where, field, f"{ascii(token)[:40]} contains a lone surrogate")
    return token


def _check_vocabulary(vocabulary: object, where: str) -> dict[str, int]:
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise _error(where, "model.vocab", "an object of tokens and their ids is needed")
    for token, token_id in vocabulary.items():
        if token:
            _check_token(token, "model.vocab", where)
        if not _is_integer(token_id) or not 0 <= token_id < 2**31:
            what = f"{token[:40]!r} has the id {token_id!r}: integers from 0 are needed"
            raise _error(where, "model.vocab", what)
    if len(set(vocabulary.values())) < len(vocabulary):
        raise _error(where, "model.vocab", "two tokens have the same id")
    return vocabulary


def _check_unigram_vocabulary(model: Mapping[str, Any], where: str) -> dict[str, int]:
    entries = model.get("vocab")
    if not isinstance(entries, list) or not entries:
        raise _error(where, "model.vocab", "a list of tokens and their scores is needed")
    vocabulary: dict[str, int] = {}
    for token_id, entry in enumerate(entries):
        field = f"model.vocab[{token_id}]"
        if not isinstance(entry, list) or len(entry) != 2:
            raise _error(where, field, "a token and its score are needed")
        token, score = entry
        _check_token(token, field, where)
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            raise _error(where, field, f"the score {score!r} is not a finite number")
        if token in vocabulary:
            raise _error(where, field, f"{token[:40]!r} occurs twice")
        vocabulary[token] = token_id
    unk_id = model.get("unk_id")
    if unk_id is not None and (not _is_integer(unk_id) or not 0 <= unk_id < len(entries)):
        raise _error(where, "model.unk_id", f"{unk_id!r} is not the id of a token")
    return vocabulary


def _check_merges(model: Mapping[str, Any], vocabulary: Mapping[str, int], where: str) -> None:
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise _error(where, "model.merges", "a list is needed")
    prefix = model.get("continuing_subword_prefix") or ""
    if not isinstance(prefix, str):
        raise _error(where, "model.continuing_subword_prefix", f"{prefix!r} is not a text")
    for index, merge in enumerate(merges):
        field = f"model.merges[{index}]"
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(token, str) for token in pair):
            raise _error(where, field, f"{str(merge)[:40]!r} is not a pair of tokens")
        left, right = pair
        if right[: len(prefix)] != prefix:
            raise _error(where, field, f"{right[:40]!r} does not begin with {prefix!r}")
        for token in (left, right, left + right[len(prefix) :]):
            if token not in vocabulary:
                raise _error(where, field, f"{token[:40]!r} is not in the vocabulary")


def _check_added_tokens(added_tokens: object, vocabulary: Mapping[str, int], where: str) -> int:
    """Check added tokens; return the vocabulary size with them. Ids must be contiguous."""
    if added_tokens is not None and not isinstance(added_tokens, list):
        raise _error(where, "added_tokens", "a list is needed")
    ids = dict(vocabulary)
    for index, token in enumerate(added_tokens or []):
        field = f"added_tokens[{index}]"
        if not isinstance(token, dict) or not _is_integer(token.get("id")):
            raise _error(where, field, "an object with id and content is needed")
        content = _check_token(token.get("content"), f"{field}.content", where)
        for flag in ("single_word", "lstrip", "rstrip", "normalized", "special"):
            if not isinstance(token.get(flag), bool):
                raise _error(where, f"{field}.{flag}", "true or false is needed")
        if ids.setdefault(content, token["id"]) != token["id"]:
            what = f"{content[:40]!r} has the id {token['id']} here and {ids[content]} elsewhere"
            raise _error(where, field, what)
    missing = set(range(len(ids))) - set(ids.values())
    if missing:
        raise _error(where, "model.vocab", f"no token has the id {min(missing)}: ids must be contiguous from 0")
    return len(ids)


def _check_component(component: object, field: str, where: str, depth: int = 0) -> None:
    """Check the types and sizes of one component and of those inside it."""
    if component is None:
        return
    if not isinstance(component, dict):
        raise _error(where, field, "an object is needed")
    kind = component.get("type")
    if not isinstance(kind, str):
        raise _error(where, f"{field}.type", f"{str(kind)[:40]!r} is not a text")
    if depth > MAX_NESTING:
        raise _error(where, field, f"nested too deeply: at most {MAX_NESTING} sequences within each other")
    for name, setting in component.items():
        if isinstance(setting, list) and kind == "Sequence" and name != "precompiled_charsmap":
            for index, inner in enumerate(setting):
                _check_component(inner, f"{field}.{name}[{index}]", where, depth + 1)
        else:
            _check_setting(name, setting, f"{field}.{name}", where)
    length = component.get("length", 1)
    if kind == "FixedLength" and (not _is_integer(length) or length < 1):
        raise _error(where, f"{field}.length", f"{length!r} is not an integer from 1")
    if kind == "Strip" and "content" in component:  # a decoder's; a normalizer has none
        _check_strip_decoder(component, field, where)


def _check_setting(name: str, setting: object, field: str, where: str) -> None:
    """Check one setting of a component that is not a list of other components."""
    if name == "precompiled_charsmap":
        _check_charsmap(setting, field, where)
    elif name == "pattern" and isinstance(setting, dict):
        for syntax, pattern in setting.items():
            _check_text(pattern, f"{field}.{syntax}", where)
    elif isinstance(setting, str):
        _check_text(setting, field, where)


def _check_text(text: object, field: str, where: str) -> None:
    if not isinstance(text, str) or len(text) > MAX_COMPONENT_TEXT:
        raise _error(where, field, f"a text of at most {MAX_COMPONENT_TEXT:,} characters is needed")


def _check_strip_decoder(decoder: Mapping[str, Any], field: str, where: str) -> None:
    """Refuse settings on which the library would crash when it strips the end of a text."""
    stop = decoder.get("stop")
    if stop not in (0, 1):
        raise _error(where, f"{field}.stop", f"{stop!r} is not 0 or 1")
    if stop == 1 and decoder["content"] != " ":
        content = str(decoder["content"])[:40]
        raise _error(where, f"{field}.content", f"{content!r} cannot be stripped at the end, only a space can")


def _check_charsmap(charsmap: object, field: str, where: str) -> None:
    """Check SentencePiece's compiled table of replacements: a trie whose links must all stay inside it.

    The trie is a double array, as in the Darts library. A unit holds a label, an offset to its children (combined with
    the unit's own index by exclusive or), and a flag: whether it has a value, which is an offset into the texts.
    """
    damaged = _error(where, field, "the table is damaged")
    try:
        raw = base64.b64decode(charsmap if isinstance(charsmap, str) else "", validate=True)
    except (binascii.Error, ValueError):
        raise damaged from None
    if not raw:
        raise damaged
    trie_bytes = int.from_bytes(raw[:4], "little")
    if len(raw) < 4 or trie_bytes % 4 or not trie_bytes or 4 + trie_bytes > len(raw):
        raise damaged
    units = np.frombuffer(raw, dtype="<u4", count=trie_bytes // 4, offset=4).astype(np.int64)
    num_text_bytes = len(raw) - 4 - trie_bytes
    labels = np.arange(1, 256)
    is_visited = np.zeros(len(units), dtype=bool)
    indices = np.zeros(1, dtype=np.int64)  # units of the current depth
    while len(indices):
        is_visited[indices] = True
        current = units[indices]
        base = indices ^ ((current >> 10) << ((current & (1 << 9)) >> 6))
        if (base | 0xFF).max() >= len(units):
            raise damaged
        has_value = (current >> 8) & 1 == 1
        values = units[base[has_value]] & 0x7FFFFFFF
        if len(values) and values.max() >= num_text_bytes:
            raise damaged
        children = (base[:, None] ^ labels[None, :]).ravel()
        is_child = (units[children] & 0x800000FF) == np.broadcast_to(labels, (len(base), 255)).ravel()
        indices = np.unique(children[is_child])
        indices = indices[~is_visited[indices]]
