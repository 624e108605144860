"""Special tokens around texts: what an encoder reads, with types and the places in the text that tokens came from.

Texts as rows that an encoder reads: special tokens around them, long ones in overlapping windows, nothing silent.

What classifying, tagging and answering share.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers

from regard.errors import CheckpointError, UsageError
from regard.text.tokenizer import Tokenizer
from regard.tokens import Tokens

MASKS = ("[MASK]", "<mask>")  # what the token is called that stands for a hidden word


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """What a template puts around one text or two, with types."""

    before: tuple[int, ...]
    between: tuple[int, ...]  # of two texts
    after: tuple[int, ...]
    token_types: tuple[int, ...]  # of: before, the first text, between, the second text, after

    @property
    def num_special(self) -> int:
        """How many tokens it adds."""
        return len(self.before) + len(self.between) + len(self.after)


@dataclass(frozen=True)
class EncodedInput:
    """A text or a pair as an encoder reads it."""

    ids: list[int]
    token_types: list[int]
    spans: list[tuple[int, int]]  # characters of the token's own text; empty for special tokens
    sides: list[int]  # -1 for special tokens, 0 for the first text, 1 for the second
    word_ids: list[int]  # number of the white-space-separated word; -1 for special tokens


@dataclass(frozen=True)
class Truncation:
    """How much of the texts was left out because they were too long."""

    texts: int
    tokens: int  # of all texts, special ones not counted
    cut_texts: int
    cut_tokens: int
    max_length: int

    def line(self) -> str:
        """Say it in a line.

        >>> Truncation(texts=3, tokens=900, cut_texts=1, cut_tokens=88, max_length=512).line()
        '1 of 3 texts cut to 512 tokens: 88 of 900 tokens (9.8%) were not read'
        >>> Truncation(texts=3, tokens=90, cut_texts=0, cut_tokens=0, max_length=512).line()
        'nothing cut: 3 texts, 90 tokens'
        """
        if not self.cut_texts:
            return f"nothing cut: {self.texts:,} texts, {self.tokens:,} tokens"
        share = f"{100 * self.cut_tokens / self.tokens:.2g}%"
        return (
            f"{self.cut_texts:,} of {self.texts:,} texts cut to {self.max_length:,} tokens: "
            f"{self.cut_tokens:,} of {self.tokens:,} tokens ({share}) were not read"
        )

    def __add__(self, other: Truncation) -> Truncation:
        """Return what was left out of both."""
        return Truncation(
            self.texts + other.texts,
            self.tokens + other.tokens,
            self.cut_texts + other.cut_texts,
            self.cut_tokens + other.cut_tokens,
            max(self.max_length, other.max_length),
        )

    def to_dict(self) -> dict[str, int]:
        """Return it as plain values."""
        return dict(vars(self))


class SpecialTokens:
    """Puts texts into a tokenizer's own template.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_tokenizer
    >>> framing = SpecialTokens(with_mask_token(train_tokenizer(["low lower lowest"] * 9, TokenizerConfig(vocab_size=270))))
    >>> framing.add([7, 8], [9])
    ([3, 7, 8, 1, 9, 1], [0, 0, 0, 0, 1, 1])
    >>> seen = framing.encode("low")
    >>> seen.spans, seen.sides
    ([(0, 0), (0, 3), (0, 0)], [-1, 0, -1])
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.start, self.end, self.pad, self.unknown = (
            tokenizer.bos_id,
            tokenizer.eos_id,
            tokenizer.pad_id,
            tokenizer.unk_id,
        )
        numbers = [number for name in MASKS if (number := tokenizer.backend.token_to_id(name)) is not None]
        self.mask = numbers[0] if numbers else -1
        self.alone, self.pair = (_frame(tokenizer.backend, pair) for pair in (False, True))

    def num_special(self, pair: bool = False) -> int:
        """Return how many special tokens are put around a text or a pair."""
        return (self.pair if pair else self.alone).num_special

    def add(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """Return the tokens of a text or a pair with the special ones around them, and the types of all."""
        frame = self.alone if second is None else self.pair
        parts = (frame.before, first, frame.between, () if second is None else second, frame.after)
        ids = [number for part in parts for number in part]
        return ids, [kind for part, kind in zip(parts, frame.token_types, strict=True) for _ in part]

    def encode(self, text: str, pair: str | None = None, *, parse_special: bool = False) -> EncodedInput:
        """Return a text or a pair with places; with `marks` a special token that is written in a text is one."""
        tokenizer = self._finding if parse_special else self.tokenizer
        texts = [tokenizer.encode(text)] + ([] if pair is None else [tokenizer.encode(pair)])
        frame = self.alone if pair is None else self.pair
        ids, types = self.add(*(encoded.ids for encoded in texts))
        opening = len(frame.before)
        spans, sides, words = [(0, 0)] * opening, [-1] * opening, [-1] * opening
        gaps = [frame.between, frame.after] if pair is not None else [frame.after]
        for side, (encoded, gap) in enumerate(zip(texts, gaps, strict=True)):
            spans += [*encoded.spans, *[(0, 0)] * len(gap)]
            sides += [side] * len(encoded.ids) + [-1] * len(gap)
            words += [*encoded.word_ids, *[-1] * len(gap)]
        return EncodedInput(ids, types, spans, sides, words)

    def encode_batch(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int, parse_special: bool = False
    ) -> tuple[Tokens, Truncation]:
        """Return texts or pairs as rows of at most `longest` tokens, and what had to be cut.

        Of a pair the longer text is cut first, token by token.
        """
        room = max_length - self.num_special(pairs is not None)
        if room < 1:
            raise UsageError(f"rows of {max_length} tokens have no room for a text: {max_length - room + 1} are needed")
        tokenizer = self._finding if parse_special else self.tokenizer
        first = tokenizer.encode_batch(texts)
        if pairs is not None and len(pairs) != len(texts):
            raise UsageError(f"{len(texts)} texts need as many second texts, not {len(pairs)}")
        second = None if pairs is None else tokenizer.encode_batch(pairs)
        rows, types, tokens, cut_texts, cut_tokens = [], [], 0, 0, 0
        for number, one in enumerate(first):
            two = None if second is None else second[number]
            whole = len(one) + (0 if two is None else len(two))
            tokens += whole
            if whole > room:
                cut_texts, cut_tokens = cut_texts + 1, cut_tokens + whole - room
                left, right = truncate_pair(len(one), 0 if two is None else len(two), room)
                one, two = one[:left], None if two is None else two[:right]
            ids, kinds = self.add(one, two)
            rows.append(ids)
            types += kinds
        packed = Tokens.from_rows(rows)
        segments = np.asarray(types, dtype=np.int32)
        account = Truncation(len(rows), tokens, cut_texts, cut_tokens, max_length)
        return Tokens(packed.ids, packed.offsets, segments), account

    @cached_property
    def _finding(self) -> _SpecialTokenFinder:
        return _SpecialTokenFinder(tokenizers.Tokenizer.from_str(self.tokenizer.to_json()), self.tokenizer.to_json())


class _SpecialTokenFinder(Tokenizer):
    """A tokenizer that does find special tokens in a text."""

    def __init__(self, backend: tokenizers.Tokenizer, text: str = "") -> None:
        super().__init__(backend, text)
        backend.encode_special_tokens = False
        self._controls = set()


def truncate_pair(first: int, second: int, max_length: int) -> tuple[int, int]:
    """Return the lengths of two texts that fit, the longer one cut first; of an odd room it keeps the more.

    >>> truncate_pair(9, 3, 8), truncate_pair(9, 8, 7), truncate_pair(8, 8, 7), truncate_pair(9, 0, 8)
    ((5, 3), (4, 3), (3, 4), (8, 0))
    """
    shorter = min(first, second, max_length // 2)
    return (max_length - shorter, shorter) if first > second else (shorter, max_length - shorter)


def _frame(backend: tokenizers.Tokenizer, pair: bool) -> SpecialTokenTemplate:
    """Return what the tokenizer's template puts around texts, found by trying it."""
    try:
        found = backend.encode("a", "a") if pair else backend.encode("a")
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library's panics are no Exceptions
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"the tokenizer's template cannot be used: {reason}") from None
    sides = [-1 if side is None else side for side in found.sequence_ids]
    first = [place for place, side in enumerate(sides) if side == 0]
    last = [place for place, side in enumerate(sides) if side == (1 if pair else 0)]
    if not first or not last:
        raise CheckpointError("the tokenizer makes no tokens of a text: another one is needed")
    stop = first[-1] + 1
    parts = (slice(0, first[0]), slice(stop, last[0]), slice(last[-1] + 1, len(sides)))
    before, between, after = (tuple(found.ids[part]) for part in parts)
    kinds = found.type_ids

    def kind(part: slice) -> int:
        return kinds[part][0] if kinds[part] else 0

    types = (kind(parts[0]), kinds[first[0]], kind(parts[1]), kinds[last[0]], kind(parts[2]))
    return SpecialTokenTemplate(before, between if pair else (), after, types)


def with_special_tokens(tokenizer: Tokenizer, cls: str, sep: str, *, double: bool = False) -> Tokenizer:
    """Return the tokenizer with a template: start A end, and for pairs start A end B end, of types 0 and 1.

    With `double`, two ends stand between the texts, and all types are 0 (RoBERTa).
    """
    content = json.loads(tokenizer.to_json())
    second = 0 if double else 1

    def special(token: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": kind}}

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    single = [special(cls, 0), text("A", 0), special(sep, 0)]
    doubled = [special(sep, 0)] if double else []
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *doubled, text("B", second), special(sep, second)],
        "special_tokens": {
            token: {"id": token, "ids": [tokenizer.backend.token_to_id(token)], "tokens": [token]}
            for token in dict.fromkeys((cls, sep))
        },
    }
    old = content.get("post_processor") or {}
    keeps = old.get("type") == "ByteLevel"  # decides which places tokens come from, and adds none
    whole = {"type": "Sequence", "processors": [old, template]} if keeps else template
    return Tokenizer.from_json(json.dumps({**content, "post_processor": whole}), where="this tokenizer")


def with_mask_token(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer learned here with a token for hidden words and a template, as an encoder needs them."""
    content = json.loads(tokenizer.to_json())
    name = MASKS[1]
    if tokenizer.backend.token_to_id(name) is None:
        flags = {"single_word": False, "lstrip": True, "rstrip": True, "normalized": False}  # spaces around are its own
        content["added_tokens"] = [
            *(content.get("added_tokens") or []),
            {"id": tokenizer.vocab_size, "content": name, **flags, "special": True},
        ]
        tokenizer = Tokenizer.from_json(json.dumps(content), where="this tokenizer")
    start, end = (str(tokenizer.backend.id_to_token(number)) for number in (tokenizer.bos_id, tokenizer.eos_id))
    return with_special_tokens(tokenizer, start, end)


@dataclass
class TruncationReport:
    """What became of texts that are too long, in tokens without special ones."""

    texts: int = 0
    tokens: int = 0
    max_length: int = 0  # tokens of a row
    windowed: int = 0  # texts that are read in several windows
    windows: int = 0  # rows in all
    truncated_texts: int = 0
    truncated_tokens: int = 0
    blank: int = 0  # texts besides that have nothing to read

    def format(self) -> str:
        """Say it in a line.

        >>> TruncationReport(texts=2, tokens=900, max_length=512, windowed=1, windows=3).format()
        'nothing cut: 2 texts, 900 tokens; 1 of them longer than 512 tokens, read in windows (3 windows in all)'
        """
        cut = f"nothing cut: {self.texts:,} texts, {self.tokens:,} tokens"
        if self.truncated_texts:
            cut = f"{self.truncated_texts:,} of {self.texts:,} texts are cut: {self.truncated_tokens:,} of {self.tokens:,} tokens"
            cut += " are not read"
        if self.blank:
            cut += f"; {self.blank:,} more without a word, left unlabelled"
        if not self.windowed:
            return cut
        beyond = f"{self.windowed:,} of them longer than {self.max_length:,} tokens"
        return f"{cut}; {beyond}, read in windows ({self.windows:,} windows in all)"

    def to_dict(self) -> dict[str, int]:
        """Return it as plain values."""
        return dict(vars(self))

    def add(self, other: TruncationReport) -> None:
        """Take another account in."""
        for name in ("texts", "tokens", "windowed", "windows", "truncated_texts", "truncated_tokens", "blank"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_length = max(self.max_length, other.max_length)
