"""The record: texts and attention weights of one answer, the only thing that views know.

A record is made of plain text and NumPy arrays; `to_dict` and `from_dict` are its JSON form, in which weights are
bytes of 255·√w (`root8`), deflated and written in base64.
"""

from __future__ import annotations

import base64
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError

SCHEMA = 1
Weights = NDArray[np.float32]
_UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Cs")  # controls, format signs, line ends, lone surrogates


@dataclass(frozen=True)
class Side:
    """One text of a record with its tokens: what the rows or the columns of a matrix stand for.

    >>> side = Side.of_pieces("two dogs", ["two", " dog", "s", "</s>"], words=[0, 1, 1, -1])
    >>> side.special
    (False, False, False, True)
    >>> side.units(words=True)
    [('two', [0]), ('dogs', [1, 2]), ('</s>', [3])]
    """

    text: str
    tokens: tuple[str, ...]
    words: tuple[int, ...]  # which word of the text, parted by white space, a token is of; -1: a special token
    spans: tuple[tuple[int, int], ...] = ()  # characters of `text`, one pair a token, where known
    language: str = ""

    def __post_init__(self) -> None:
        for name, values in (("words", self.words), ("spans", self.spans or self.tokens)):
            if len(values) != len(self.tokens):
                raise UsageError(f"{name} ({len(values)}) and tokens ({len(self.tokens)}) of a side must be as many")

    @classmethod
    def of_pieces(
        cls,
        text: str,
        pieces: Sequence[str],
        words: Sequence[int],
        spans: Sequence[tuple[int, int]] = (),
        language: str = "",
    ) -> Side:
        """Return a side from lists as a tokenizer gives them."""
        pairs = tuple((int(start), int(end)) for start, end in spans)
        return cls(text, tuple(pieces), tuple(int(word) for word in words), pairs, language)

    @classmethod
    def of_labels(cls, text: str, labels: Sequence[str]) -> Side:
        """Return a side whose rows or columns are no words of its text, but have names of their own.

        >>> Side.of_labels("One. Two words.", ["One.", "Two words."]).units(words=True)
        [('One.', [0]), ('Two words.', [1])]
        """
        beyond = len(text.split())
        return cls(text, tuple(labels), tuple(range(beyond, beyond + len(labels))))

    @property
    def special(self) -> tuple[bool, ...]:
        """Which tokens are special: no part of the text."""
        return tuple(word < 0 for word in self.words)

    def units(self, *, words: bool) -> list[tuple[str, list[int]]]:
        """Return what a matrix is labelled with: (label, token numbers) for each word, or for each token.

        A text of a single word has nothing to tell as one: its tokens are given.
        """
        if not words or len(set(self.words) - {-1}) < 2:
            return [(token.strip() or token, [number]) for number, token in enumerate(self.tokens)]
        groups: list[list[int]] = []
        for number, word in enumerate(self.words):
            if number and word >= 0 and self.words[number - 1] == word:
                groups[-1].append(number)
            else:
                groups.append([number])
        named = dict(enumerate(self.text.split()))
        return [(named.get(self.words[members[0]], self.tokens[members[0]]), members) for members in groups]


@dataclass(frozen=True)
class Attention:
    """The weights of one kind of attention: every layer and head, rows that looked by columns looked at."""

    name: str  # the site without its layer number: encoder.self, decoder.self, decoder.cross
    rows: str  # which side the rows are: source or target
    columns: str
    weights: Weights  # [layers, H, Q, K]
    layers: tuple[int, ...]
    produced: bool = False  # rows are named after the token they produced

    def __post_init__(self) -> None:
        if self.weights.ndim != 4 or self.weights.shape[0] != len(self.layers):
            raise UsageError(f"{self.name}: weights {self.weights.shape} must be [{len(self.layers)} layers, H, Q, K]")
        if self.weights.size and not (np.isfinite(self.weights).all() and self.weights.min() >= 0):
            raise UsageError(f"{self.name}: weights must be finite and not negative")

    @property
    def own(self) -> bool:
        """Whether tokens look at their own text."""
        return self.rows == self.columns


@dataclass(frozen=True)
class Record:
    """One answer and where each head looked while giving it."""

    title: str
    texts: Mapping[str, Side]  # source, target
    attention: tuple[Attention, ...]
    task: str = "translate"
    made: Mapping[str, str] = field(default_factory=dict)  # version, model, when, …
    best: tuple[str, int, int] | None = None  # (attention name, layer, head) that a view opens with

    def __post_init__(self) -> None:
        for seen in self.attention:
            need = (len(self.texts[seen.rows].tokens), len(self.texts[seen.columns].tokens))
            if seen.weights.shape[2:] != need:
                raise UsageError(f"{seen.name}: weights {seen.weights.shape} do not fit the tokens {need}")

    def head(self, name: str = "", layer: int = -1, head: int = -1) -> tuple[Attention, Weights]:
        """Return an attention and one head's weights [Q, K]; by default the best head, else the last layer's mean."""
        if self.best and not name:
            name, layer, head = self.best
        for seen in self.attention:
            if seen.name == name or not name:
                chosen = seen.weights[seen.layers.index(layer) if layer >= 0 else -1]
                return seen, chosen[head] if head >= 0 else chosen.mean(axis=0)
        raise UsageError(f"the record has no {name}: it has {', '.join(seen.name for seen in self.attention)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the record's JSON form."""
        best = self.best or (self.attention[0].name, self.attention[0].layers[-1], 0)
        return {
            "regard": SCHEMA,
            "title": self.title,
            "task": self.task,
            "made": dict(self.made),
            "texts": {name: _side_to_dict(side) for name, side in self.texts.items()},
            "attention": [self._attention_to_dict(seen) for seen in self.attention],
            "view": {"attn": best[0], "layer": best[1], "head": best[2], "measured": self.best is not None},
        }

    def _attention_to_dict(self, seen: Attention) -> dict[str, Any]:
        return {
            "name": seen.name,
            "rows": seen.rows,
            "cols": seen.columns,
            "rowmeans": "produced" if seen.produced else "token",
            "causal": seen.own and seen.rows == "target",
            "layers": list(seen.layers),
            "heads": seen.weights.shape[1],
            "blocks": [
                {"layer": layer, "shape": list(weights.shape), "code": "root8", "data": pack(weights)}
                for layer, weights in zip(seen.layers, seen.weights, strict=True)
            ],
            "stats": head_stats(seen, self.texts[seen.columns].special),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """Return the record read from its JSON form; weights come back to within 1/255 of their root."""
        if values.get("regard") != SCHEMA:
            raise UsageError(f"a record of schema {values.get('regard')!r} cannot be read: this version reads {SCHEMA}")
        attention = tuple(
            Attention(
                one["name"],
                one["rows"],
                one["cols"],
                np.stack([unpack(block["data"], block["shape"]) for block in one["blocks"]]),
                tuple(one["layers"]),
                one["rowmeans"] == "produced",
            )
            for one in values["attention"]
        )
        view = values["view"]
        best = (view["attn"], view["layer"], view["head"]) if view["measured"] else None
        texts = {name: _side_from_dict(side) for name, side in values["texts"].items()}
        return cls(values["title"], texts, attention, values["task"], values["made"], best)


def _side_to_dict(side: Side) -> dict[str, Any]:
    return {
        "text": side.text,
        "lang": side.language,
        "tokens": list(side.tokens),
        "span": [list(span) for span in side.spans],
        "word": list(side.words),
        "special": list(side.special),
    }


def _side_from_dict(values: Mapping[str, Any]) -> Side:
    return Side.of_pieces(values["text"], values["tokens"], values["word"], values["span"], values["lang"])


def visible(text: str) -> str:
    r"""Return text whose control signs, which could hide or reorder what stands around them, are shown by number.

    >>> visible("a\u202eb\tc")
    'a⟨202E⟩b⟨0009⟩c'
    """
    return "".join(f"⟨{ord(sign):04X}⟩" if unicodedata.category(sign) in _UNSEEN else sign for sign in text)


def pack(weights: NDArray[np.floating[Any]]) -> str:
    """Return weights as `root8`: bytes of 255·√w, deflated, in base64.

    >>> unpack(pack(np.array([[0.0, 0.25, 1.0]])), [1, 3]).round(2).tolist()
    [[0.0, 0.25, 1.0]]
    """
    roots = np.rint(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)
    return base64.b64encode(zlib.compress(roots.tobytes(), 9)).decode("ascii")


def unpack(data: str, shape: Sequence[int]) -> Weights:
    """Return the weights that `pack` wrote."""
    roots = np.frombuffer(zlib.decompress(base64.b64decode(data)), dtype=np.uint8).reshape(tuple(shape))
    return np.asarray(np.square(roots / 255), dtype=np.float32)


def head_stats(seen: Attention, special: Sequence[bool]) -> dict[str, list[list[Any]]]:
    """Return entropy (in bits), mass on special columns and a plain label for each layer and head."""
    weights = seen.weights.astype(np.float64)
    entropy = -(weights * np.log2(np.maximum(weights, 1e-12))).sum(axis=-1).mean(axis=-1)  # [layers, H]
    on_special = weights[..., np.asarray(special, dtype=bool)].sum(axis=-1).mean(axis=-1)
    labels = [
        [_label(seen.own, weights[layer, head], float(on_special[layer, head])) for head in range(weights.shape[1])]
        for layer in range(weights.shape[0])
    ]
    return {"entropy": entropy.round(3).tolist(), "special": on_special.round(3).tolist(), "label": labels}


def _label(own: bool, weights: NDArray[np.float64], on_special: float) -> str:
    """Return what a head mostly does, in two words; more than half of its attention must agree."""
    rows, columns = weights.shape
    if on_special > 0.5:
        return "end mark"
    if own:
        for offset, label in ((-1, "previous"), (0, "itself"), (1, "next")):
            looking = rows - abs(offset)  # the first or the last row has no such neighbour
            if looking > 0 and np.trace(weights, offset) / looking > 0.5:
                return label
    if weights.max(axis=-1).mean() > 0.5:
        return "sharp"
    spread = -(weights * np.log(np.maximum(weights, 1e-12))).sum(axis=-1).mean()
    return "broad" if columns > 2 and spread > 0.75 * np.log(columns) else "mixed"
