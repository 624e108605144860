"""Texts of a record with their tokens and word indices."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import UsageError
from regard.view.record.json_form import TextDict

_INVISIBLE_CATEGORIES = ("Cc", "Cf", "Zl", "Zp", "Cs")  # controls, format characters, line ends, lone surrogates
DIRECTIONS = ("auto", "ltr", "rtl")


@dataclass(frozen=True)
class RecordText:
    """One text of a record with its tokens, which label the rows or columns of a matrix.

    >>> text = RecordText.from_subwords("two dogs", ["two", " dog", "s", "</s>"], word_ids=[0, 1, 1, -1])
    >>> text.special
    (False, False, False, True)
    >>> text.units(words=True)
    [('two', [0]), ('dogs', [1, 2]), ('</s>', [3])]
    """

    text: str
    tokens: tuple[str, ...]
    word_ids: tuple[int, ...]  # word index of each token (words are separated by white space); -1: special token
    spans: tuple[tuple[int, int], ...] = ()  # character span of each token in `text`, where known
    language: str = ""
    direction: str = "auto"  # ltr, rtl, or detected from the text
    token_types: tuple[int, ...] = ()  # token type of each token; empty for a single text

    def __post_init__(self) -> None:
        for name, values in (("word_ids", self.word_ids), ("spans", self.spans), ("token_types", self.token_types)):
            if len(values) != len(self.tokens) and (values or name == "word_ids"):
                raise UsageError(f"{name} must have one value per token: {len(values)} for {len(self.tokens)} tokens")
        if self.direction not in DIRECTIONS:
            raise UsageError(f"direction must be one of {', '.join(DIRECTIONS)}, not {self.direction!r}")

    @classmethod
    def from_subwords(
        cls,
        text: str,
        subwords: Sequence[str],
        word_ids: Sequence[int],
        spans: Sequence[Sequence[int]] = (),
        language: str = "",
        token_types: Sequence[int] = (),
    ) -> RecordText:
        """Build a text from the lists that a tokenizer returns."""
        return cls(
            text,
            tuple(subwords),
            word_ids=tuple(int(word_id) for word_id in word_ids),
            spans=tuple((int(start), int(end)) for start, end in spans),
            language=language,
            token_types=tuple(int(token_type) for token_type in token_types),
        )

    @classmethod
    def from_labels(cls, text: str, labels: Sequence[str]) -> RecordText:
        """Build a text whose rows or columns have labels of their own instead of words.

        >>> RecordText.from_labels("One. Two words.", ["One.", "Two words."]).units(words=True)
        [('One.', [0]), ('Two words.', [1])]
        """
        num_words = len(text.split())
        return cls(text, tuple(labels), word_ids=tuple(range(num_words, num_words + len(labels))))

    @property
    def special(self) -> tuple[bool, ...]:
        """Which tokens are special tokens."""
        return tuple(word_id < 0 for word_id in self.word_ids)

    def units(self, *, words: bool) -> list[tuple[str, list[int]]]:
        """Labels of a matrix with their token indices, one per word or per token.

        A text of a single word is labelled by its tokens.
        """
        if not words or len(set(self.word_ids) - {-1}) < 2:
            return [(token.strip() or token, [index]) for index, token in enumerate(self.tokens)]
        groups: list[list[int]] = []
        for index, word_id in enumerate(self.word_ids):
            if index and word_id >= 0 and self.word_ids[index - 1] == word_id:
                groups[-1].append(index)
            else:
                groups.append([index])
        words_by_id = dict(enumerate(self.text.split()))
        return [(words_by_id.get(self.word_ids[group[0]], self.tokens[group[0]]), group) for group in groups]

    def to_dict(self) -> TextDict:
        """Convert to the JSON form."""
        return {
            "text": self.text,
            "lang": self.language,
            "dir": self.direction,
            "tokens": list(self.tokens),
            "spans": [list(span) for span in self.spans],
            "word_ids": list(self.word_ids),
            "special": list(self.special),
            "token_types": list(self.token_types),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RecordText:
        """Read the JSON form."""
        return cls(
            values["text"],
            tuple(values["tokens"]),
            word_ids=tuple(values["word_ids"]),
            spans=tuple((int(start), int(end)) for start, end in values.get("spans", ())),
            language=values.get("lang", ""),
            direction=values.get("dir", "auto"),
            token_types=tuple(values.get("token_types", ())),
        )


def escape_invisible(text: str) -> str:
    r"""Replace control characters, which could hide or reorder the text around them, by their code points.

    >>> escape_invisible("a\u202eb\tc")
    'a⟨202E⟩b⟨0009⟩c'
    """
    return "".join(
        f"⟨{ord(character):04X}⟩" if unicodedata.category(character) in _INVISIBLE_CATEGORIES else character
        for character in text
    )
