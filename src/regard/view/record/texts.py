"""The texts of a record: their tokens, which word each is of, and how they are written."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import UsageError

_UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Cs")  # controls, format signs, line ends, lone surrogates
DIRECTIONS = ("auto", "ltr", "rtl")


@dataclass(frozen=True)
class RecordText:
    """One text of a record with its tokens: what the rows or the columns of a matrix stand for.

    >>> side = RecordText.from_subwords("two dogs", ["two", " dog", "s", "</s>"], word_ids=[0, 1, 1, -1])
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
    direction: str = "auto"  # ltr, rtl, or as the text itself says
    segment: tuple[int, ...] = ()  # which text of a pair a token is of; nothing: there is one text

    def __post_init__(self) -> None:
        for name, values in (("words", self.words), ("spans", self.spans), ("segment", self.segment)):
            if len(values) != len(self.tokens) and (values or name == "words"):
                raise UsageError(f"{name} ({len(values)}) and tokens ({len(self.tokens)}) of a side must be as many")
        if self.direction not in DIRECTIONS:
            raise UsageError(f"a side's direction is one of {', '.join(DIRECTIONS)}, not {self.direction!r}")

    @classmethod
    def from_subwords(
        cls,
        text: str,
        subwords: Sequence[str],
        word_ids: Sequence[int],
        spans: Sequence[Sequence[int]] = (),
        language: str = "",
        segment: Sequence[int] = (),
    ) -> RecordText:
        """Return a side from lists as a tokenizer gives them."""
        pairs = tuple((int(start), int(end)) for start, end in spans)
        numbers = tuple(int(word) for word in word_ids)
        return cls(text, tuple(subwords), numbers, pairs, language, segment=tuple(int(one) for one in segment))

    @classmethod
    def from_labels(cls, text: str, labels: Sequence[str]) -> RecordText:
        """Return a side whose rows or columns are no words of its text, but have names of their own.

        >>> RecordText.from_labels("One. Two words.", ["One.", "Two words."]).units(words=True)
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

    def to_dict(self) -> dict[str, Any]:
        """Return the side's JSON form."""
        return {
            "text": self.text,
            "lang": self.language,
            "dir": self.direction,
            "tokens": list(self.tokens),
            "span": [list(span) for span in self.spans],
            "word": list(self.words),
            "special": list(self.special),
            "segment": list(self.segment),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RecordText:
        """Return the side read from its JSON form."""
        spans = tuple((int(start), int(end)) for start, end in values.get("span", ()))
        return cls(
            values["text"],
            tuple(values["tokens"]),
            tuple(values["word"]),
            spans,
            values.get("lang", ""),
            values.get("dir", "auto"),
            tuple(values.get("segment", ())),
        )


def escape_invisible(text: str) -> str:
    r"""Return text whose control signs, which could hide or reorder what stands around them, are shown by number.

    >>> escape_invisible("a\u202eb\tc")
    'a⟨202E⟩b⟨0009⟩c'
    """
    return "".join(f"⟨{ord(sign):04X}⟩" if unicodedata.category(sign) in _UNSEEN else sign for sign in text)
