"""Special tokens around texts: the input of an encoder, with token types and the characters that tokens come from.

`TruncationReport` counts what encoding leaves out of texts that are too long.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers

from regard.errors import CheckpointError, UsageError
from regard.packed_tokens import Tokens
from regard.text.tokenizer import Encoding, Tokenizer

MASK_TOKENS = ("[MASK]", "<mask>")  # names of the mask token
PAD_TOKEN = "<pad>"  # of tokenizers that lack one


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """Special tokens around one text or two, with token types."""

    before: tuple[int, ...]
    between: tuple[int, ...]  # of two texts
    after: tuple[int, ...]
    token_types: tuple[int, ...]  # of: before, the first text, between, the second text, after

    @property
    def num_special(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)


@dataclass(frozen=True)
class EncodedInput:
    """A text or a pair as the input of an encoder."""

    ids: list[int]
    token_types: list[int]
    spans: list[tuple[int, int]]  # characters of the token in its text; empty for special tokens
    sides: list[int]  # -1 for special tokens, 0 for the first text, 1 for the second
    word_ids: list[int]  # index of the white-space-separated word; -1 for special tokens


@dataclass
class TruncationReport:
    """Texts that are too long, and what was done with them; special tokens are not counted."""

    texts: int = 0
    tokens: int = 0
    max_length: int = 0  # tokens of a row
    windowed: int = 0  # texts that are read in several windows
    windows: int = 0  # rows in all
    truncated_texts: int = 0
    truncated_tokens: int = 0
    blank: int = 0  # further texts, without any word

    def format(self) -> str:
        """The report in one line.

        >>> TruncationReport(texts=3, tokens=900, max_length=512, truncated_texts=1, truncated_tokens=88).format()
        '1 of 3 texts truncated (rows of 512 tokens): 88 of 900 tokens (9.8%) are not read'
        >>> TruncationReport(texts=2, tokens=900, max_length=512, windowed=1, windows=3).format()
        'nothing truncated: 2 texts, 900 tokens; 1 of them longer than 512 tokens, read in windows (3 windows in all)'
        """
        line = f"nothing truncated: {self.texts:,} texts, {self.tokens:,} tokens"
        if self.truncated_texts:
            percent = f"{100 * self.truncated_tokens / self.tokens:.2g}%"
            line = (
                f"{self.truncated_texts:,} of {self.texts:,} texts truncated (rows of {self.max_length:,} tokens): "
                f"{self.truncated_tokens:,} of {self.tokens:,} tokens ({percent}) are not read"
            )
        if self.blank:
            line += f"; {self.blank:,} more without a word, left unlabelled"
        if self.windowed:
            line += f"; {self.windowed:,} of them longer than {self.max_length:,} tokens"
            line += f", read in windows ({self.windows:,} windows in all)"
        return line

    def to_dict(self) -> dict[str, int]:
        """The counts as JSON values."""
        return dict(vars(self))

    def add(self, other: TruncationReport) -> None:
        """Add the counts of another report to this one."""
        self.texts += other.texts
        self.tokens += other.tokens
        self.max_length = max(self.max_length, other.max_length)
        self.windowed += other.windowed
        self.windows += other.windows
        self.truncated_texts += other.truncated_texts
        self.truncated_tokens += other.truncated_tokens
        self.blank += other.blank

    def __add__(self, other: TruncationReport) -> TruncationReport:
        """Sum of two reports."""
        total = replace(self)
        total.add(other)
        return total


class SpecialTokens:
    """Puts texts into a tokenizer's own template of special tokens.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_tokenizer
    >>> tokenizer = train_tokenizer(["low lower lowest"] * 9, TokenizerConfig(vocab_size=270))
    >>> special_tokens = SpecialTokens(with_mask_token(tokenizer))
    >>> special_tokens.add([7, 8], [9])
    ([3, 7, 8, 1, 9, 1], [0, 0, 0, 0, 1, 1])
    >>> encoded = special_tokens.encode("low")
    >>> encoded.spans, encoded.sides
    ([(0, 0), (0, 3), (0, 0)], [-1, 0, -1])
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.bos_id = tokenizer.bos_id
        self.eos_id = tokenizer.eos_id
        self.pad_id = tokenizer.pad_id
        self.unk_id = tokenizer.unk_id
        self.mask_id = tokenizer.find_token_id(MASK_TOKENS)
        self.single_template = _probe_template(tokenizer.backend, pair=False)
        self.pair_template = _probe_template(tokenizer.backend, pair=True)

    def num_special(self, pair: bool = False) -> int:
        """Number of special tokens around a text or a pair."""
        return self._template(pair).num_special

    def _template(self, pair: bool) -> SpecialTokenTemplate:
        return self.pair_template if pair else self.single_template

    def add(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """Put special tokens around the ids of a text or a pair; return all ids and their token types."""
        template = self._template(second is not None)
        segments = (template.before, first, template.between, () if second is None else second, template.after)
        ids: list[int] = []
        token_types: list[int] = []
        for segment, token_type in zip(segments, template.token_types, strict=True):
            ids += segment
            token_types += [token_type] * len(segment)
        return ids, token_types

    def encode(self, text: str, pair: str | None = None, *, parse_special: bool = False) -> EncodedInput:
        """Encode a text or a pair with spans; `parse_special` recognises special tokens that a text spells out."""
        tokenizer = self._special_token_parser if parse_special else self.tokenizer
        first = tokenizer.encode(text)
        second = None if pair is None else tokenizer.encode(pair)
        template = self._template(second is not None)
        segments = [(-1, _special_encoding(template.before)), (0, first)]
        if second is not None:
            segments += [(-1, _special_encoding(template.between)), (1, second)]
        segments.append((-1, _special_encoding(template.after)))
        ids, token_types = self.add(first.ids, None if second is None else second.ids)
        return EncodedInput(
            ids,
            token_types,
            spans=[span for _, encoding in segments for span in encoding.spans],
            sides=[side for side, encoding in segments for _ in encoding.ids],
            word_ids=[word_id for _, encoding in segments for word_id in encoding.word_ids],
        )

    def encode_batch(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int, parse_special: bool = False
    ) -> tuple[Tokens, TruncationReport]:
        """Encode texts or pairs as rows of at most `max_length` tokens; report what is truncated.

        Of a pair, the longer text is truncated first, token by token.
        """
        max_text_tokens = max_length - self.num_special(pairs is not None)
        if max_text_tokens < 1:
            min_length = max_length - max_text_tokens + 1
            raise UsageError(f"rows of {max_length} tokens have no room for a text: {min_length} are needed")
        tokenizer = self._special_token_parser if parse_special else self.tokenizer
        first_ids = tokenizer.encode_batch(texts)
        if pairs is not None and len(pairs) != len(texts):
            raise UsageError(f"{len(texts)} texts need as many second texts, not {len(pairs)}")
        second_ids = None if pairs is None else tokenizer.encode_batch(pairs)
        report = TruncationReport(texts=len(texts), max_length=max_length, windows=len(texts))
        rows = []
        token_types: list[int] = []
        for index, first in enumerate(first_ids):
            second = None if second_ids is None else second_ids[index]
            first_length = len(first)
            second_length = 0 if second is None else len(second)
            excess = first_length + second_length - max_text_tokens
            report.tokens += first_length + second_length
            if excess > 0:
                report.truncated_texts += 1
                report.truncated_tokens += excess
                first_length, second_length = truncate_pair(first_length, second_length, max_text_tokens)
                first = first[:first_length]
                second = None if second is None else second[:second_length]
            row, row_types = self.add(first, second)
            rows.append(row)
            token_types += row_types
        packed = Tokens.from_rows(rows)
        return Tokens(packed.ids, packed.offsets, np.asarray(token_types, dtype=np.int32)), report

    @cached_property
    def _special_token_parser(self) -> _SpecialTokenParser:
        content = self.tokenizer.to_json()
        return _SpecialTokenParser(tokenizers.Tokenizer.from_str(content), content)


def _special_encoding(ids: Sequence[int]) -> Encoding:
    """Encoding of special tokens, which come from no characters and belong to no word."""
    return Encoding(list(ids), subwords=[], spans=[(0, 0)] * len(ids), word_ids=[-1] * len(ids))


class _SpecialTokenParser(Tokenizer):
    """A tokenizer that recognises special tokens that a text spells out."""

    def __init__(self, backend: tokenizers.Tokenizer, text: str = "") -> None:
        super().__init__(backend, text)
        backend.encode_special_tokens = False
        self._control_ids = set()


def truncate_pair(first: int, second: int, max_length: int) -> tuple[int, int]:
    """Lengths of two texts that fit, the longer one truncated first; if it is still longer, it gets the odd token.

    >>> truncate_pair(9, 3, 8), truncate_pair(9, 8, 7), truncate_pair(8, 8, 7), truncate_pair(9, 0, 8)
    ((5, 3), (4, 3), (3, 4), (8, 0))
    """
    shorter = min(first, second, max_length // 2)
    longer = max_length - shorter
    return (longer, shorter) if first > second else (shorter, longer)


def _probe_template(backend: tokenizers.Tokenizer, *, pair: bool) -> SpecialTokenTemplate:
    """Derive the template of a tokenizer from a sample: post-processors have no common description."""
    try:
        sample = backend.encode("a", "a") if pair else backend.encode("a")
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic of the library is no Exception
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"the tokenizer's template cannot be used: {reason}") from None
    last_side = 1 if pair else 0
    first = [position for position, side in enumerate(sample.sequence_ids) if side == 0]
    last = [position for position, side in enumerate(sample.sequence_ids) if side == last_side]
    if not first or not last:
        raise CheckpointError("the tokenizer produces no tokens for a text: another one is needed")
    before = slice(0, first[0])
    between = slice(first[-1] + 1, last[0])
    after = slice(last[-1] + 1, len(sample.ids))

    def first_type(segment: slice) -> int:
        return sample.type_ids[segment][0] if sample.type_ids[segment] else 0

    return SpecialTokenTemplate(
        before=tuple(sample.ids[before]),
        between=tuple(sample.ids[between]) if pair else (),
        after=tuple(sample.ids[after]),
        token_types=(
            first_type(before),
            sample.type_ids[first[0]],
            first_type(between),
            sample.type_ids[last[0]],
            first_type(after),
        ),
    )


def with_special_tokens(tokenizer: Tokenizer, cls: str, sep: str, *, double_separator: bool = False) -> Tokenizer:
    """Tokenizer with the template `cls A sep`, and for pairs `cls A sep B sep` with token types 0 and 1.

    With `double_separator`, two separators are between the texts, and all token types are 0 (RoBERTa).
    """
    single = [_template_token(cls), _template_text("A"), _template_token(sep)]
    if double_separator:
        pair = [*single, _template_token(sep), _template_text("B"), _template_token(sep)]
    else:
        pair = [*single, _template_text("B", 1), _template_token(sep, 1)]
    return _with_template(tokenizer, single, pair, (cls, sep))


def with_delimiters(tokenizer: Tokenizer) -> Tokenizer:
    """Tokenizer of a causal model that ends texts with the end-of-text token: `A eos`, and for pairs `A eos B eos`.

    The state of the last token stands for the whole text (Radford et al. 2018). A tokenizer with a template of its own
    keeps it. Padding is another token, as transformers finds the last token of a row by it: `<pad>`, added where it is
    missing.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_tokenizer
    >>> tokenizer = train_tokenizer(["low lower lowest"] * 9, TokenizerConfig(vocab_size=270)).without_special_tokens()
    >>> SpecialTokens(with_delimiters(tokenizer)).add([7, 8], [9])
    ([7, 8, 1, 9, 1], [0, 0, 0, 0, 0])
    """
    if tokenizer.pad_id < 0:
        tokenizer = _with_added_token(tokenizer, PAD_TOKEN)
    if SpecialTokens(tokenizer).num_special():
        return tokenizer
    if tokenizer.eos_id < 0:
        raise CheckpointError("the tokenizer has no end-of-text token, which has to end the texts of a causal model")
    eos = str(tokenizer.backend.id_to_token(tokenizer.eos_id))
    single = [_template_text("A"), _template_token(eos)]
    return _with_template(tokenizer, single, [*single, _template_text("B"), _template_token(eos)], (eos,))


def _template_token(token: str, token_type: int = 0) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": token_type}}


def _template_text(name: str, token_type: int = 0) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": token_type}}


def _with_template(
    tokenizer: Tokenizer, single: Sequence[Any], pair: Sequence[Any], special_tokens: Sequence[str]
) -> Tokenizer:
    """Tokenizer with a template for one text and one for two."""
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {
            token: {"id": token, "ids": [tokenizer.backend.token_to_id(token)], "tokens": [token]}
            for token in dict.fromkeys(special_tokens)
        },
    }
    content = json.loads(tokenizer.to_json())
    original = content.get("post_processor") or {}
    post_processor = template
    if original.get("type") == "ByteLevel":  # adds no tokens, but trims the offsets
        post_processor = {"type": "Sequence", "processors": [original, template]}
    return Tokenizer.from_json(json.dumps({**content, "post_processor": post_processor}), where="this tokenizer")


def with_mask_token(tokenizer: Tokenizer) -> Tokenizer:
    """A trained tokenizer with a mask token and a template, as an encoder needs them."""
    mask = MASK_TOKENS[1]
    if tokenizer.backend.token_to_id(mask) is None:
        tokenizer = _with_added_token(tokenizer, mask, lstrip=True, rstrip=True)  # white space around it belongs to it
    bos = str(tokenizer.backend.id_to_token(tokenizer.bos_id))
    eos = str(tokenizer.backend.id_to_token(tokenizer.eos_id))
    return with_special_tokens(tokenizer, bos, eos)


def _with_added_token(tokenizer: Tokenizer, token: str, *, lstrip: bool = False, rstrip: bool = False) -> Tokenizer:
    """Tokenizer with one more special token, after all others."""
    content = json.loads(tokenizer.to_json())
    added_token = {
        "id": tokenizer.vocab_size,
        "content": token,
        "single_word": False,
        "lstrip": lstrip,
        "rstrip": rstrip,
        "normalized": False,
        "special": True,
    }
    content["added_tokens"] = [*(content.get("added_tokens") or []), added_token]
    return Tokenizer.from_json(json.dumps(content), where="this tokenizer")
