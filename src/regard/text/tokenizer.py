"""`Tokenizer`: text to token ids and back, over the `tokenizers` library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import tokenizers

from regard.errors import CheckpointError, DataError
from regard.text.tokenizer_json import COMPONENTS, validate_tokenizer_json

SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>", "<s>")  # of every tokenizer trained with Regard; their ids count from 0
SPACE = "▁"  # a space in subwords
OTHER_SIDE = "\u2063"  # invisible prefix of subwords of the other side's tokenizer: they are decoded, never encoded
_SAMPLE_TEXT = "A canary, 1 é."

# Names of the same token in other tokenizers, the preferred one first.
_SPECIAL_TOKEN_NAMES = {
    "pad_id": ("<pad>", "[PAD]"),
    "eos_id": ("</s>", "[SEP]", "<|endoftext|>"),
    "unk_id": ("<unk>", "[UNK]"),
    "bos_id": ("<s>", "[CLS]"),
}


@dataclass(frozen=True)
class Encoding:
    """One text as tokens, with the characters that each token comes from."""

    ids: list[int]
    subwords: list[str]  # readable, with ▁ for a space
    spans: list[tuple[int, int]]  # characters of the original text, without the white space before a word
    word_ids: list[int]  # index of the white-space-separated word; a token of white space counts to the next word


class Tokenizer:
    """Text to token ids and back; adds no special tokens, and does not recognise any in a text.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_tokenizer
    >>> tokenizer = train_tokenizer(["low lower lowest"] * 9, TokenizerConfig(vocab_size=270))
    >>> encoding = tokenizer.encode("lower </s>")
    >>> tokenizer.eos_id in encoding.ids, encoding.spans[-1], encoding.word_ids[-1]
    (False, (9, 10), 1)
    >>> tokenizer.decode([*encoding.ids, tokenizer.eos_id])
    'lower </s>'
    """

    pad_id: int  # -1 where a foreign tokenizer has no such token
    eos_id: int
    unk_id: int
    bos_id: int

    def __init__(self, backend: tokenizers.Tokenizer, text: str = "") -> None:
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = True  # "</s>" in a text is text
        self.backend = backend
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self.pad_id = self.find_token_id(_SPECIAL_TOKEN_NAMES["pad_id"])
        self.eos_id = self.find_token_id(_SPECIAL_TOKEN_NAMES["eos_id"])
        self.unk_id = self.find_token_id(_SPECIAL_TOKEN_NAMES["unk_id"])
        self.bos_id = self.find_token_id(_SPECIAL_TOKEN_NAMES["bos_id"])
        added_tokens = backend.get_added_tokens_decoder()
        self._special_ids = {token_id for token_id, token in added_tokens.items() if token.special}
        self._control_ids = self._special_ids - {self.unk_id}
        # Validating the library's JSON brings it into the form in which it is read again.
        self._json = text or validate_tokenizer_json(backend.to_str(), "this tokenizer")[0]
        decoder = json.dumps(json.loads(self._json)["decoder"])
        self._strips_end = '"stop": 1' in decoder
        self._bytes = _byte_alphabet() if '"ByteLevel"' in decoder else {}

    def find_token_id(self, names: Sequence[str]) -> int:
        """Id of the first of these tokens that the vocabulary has; -1 if it has none."""
        ids = [self.backend.token_to_id(name) for name in names]
        return next((token_id for token_id in ids if token_id is not None), -1)

    def encode(self, text: str) -> Encoding:
        """Encode one text with subwords, character spans and word ids."""
        encoding = self._run([text])[0]
        ids = self._replace_control_tokens(encoding.ids)
        spans = [_trim_span(text, start, end) for start, end in encoding.offsets]
        spans = _extend_over_merged_characters(spans, text)
        return Encoding(ids, self.subwords(ids), spans=spans, word_ids=_find_word_ids(text, spans))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of many texts; faster than `encode`, which also returns spans."""
        return [self._replace_control_tokens(encoding.ids) for encoding in self._run(texts, fast=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens."""
        ids = [int(token_id) for token_id in ids]
        if self._strips_end:
            text_ids = [token_id for token_id in ids if token_id not in self._special_ids]
            if not "".join(self.subwords(text_ids)).strip(SPACE):
                return ""  # the library would panic on stripping a text of spaces only
        return str(self.backend.decode(ids, skip_special_tokens=True))

    def subwords(self, ids: Sequence[int]) -> list[str]:
        """Each token in readable form: a space as ▁, an incomplete character as its bytes.

        >>> from regard.config.data import TokenizerConfig
        >>> from regard.text.train import train_tokenizer
        >>> tokenizer = train_tokenizer(["two"] * 9, TokenizerConfig())
        >>> tokenizer.subwords([*tokenizer.encode("two é").ids, tokenizer.eos_id])
        ['▁two', '▁', '\\\\xc3', '\\\\xa9', '</s>']
        """
        return [self._subword(int(token_id)) for token_id in ids]

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of all special tokens, the unknown one included."""
        return frozenset({*self._special_ids, self.unk_id} - {-1})

    def to_json(self) -> str:
        """Content of a `tokenizer.json`, the same for the same tokenizer."""
        return self._json

    def without_special_tokens(self) -> Tokenizer:
        """The same tokenizer without the special tokens that other tools would add to a text: for prompts."""
        content = {**json.loads(self._json), "post_processor": None}
        return Tokenizer.from_json(json.dumps(content), where="this tokenizer")

    @classmethod
    def from_json(cls, text: str, *, where: str = "tokenizer.json") -> Tokenizer:
        """Tokenizer of a `tokenizer.json`, ours or foreign; the file is validated before it is opened."""
        content, vocab_size = validate_tokenizer_json(text, where)
        tokenizer, reason = cls._try_open(content)
        if tokenizer is None:
            raise CheckpointError(f"{where}: {cls._faulty_components(content)}: cannot be opened: {reason}")
        if tokenizer.vocab_size != vocab_size:
            raise CheckpointError(
                f"{where}: added_tokens: {vocab_size} tokens in the file, {tokenizer.vocab_size} after opening"
            )
        return tokenizer

    @classmethod
    def _try_open(cls, content: str) -> tuple[Tokenizer | None, str]:
        """Tokenizer that encodes and decodes a sample, or None and the library's complaint."""
        try:
            tokenizer = cls(tokenizers.Tokenizer.from_str(content), content)
            tokenizer.decode(tokenizer.encode(_SAMPLE_TEXT).ids)
            return tokenizer, ""
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic of the library is no Exception
            return None, _first_line(error)

    @classmethod
    def _faulty_components(cls, content: str) -> str:
        """Names of the components without which the tokenizer opens; `model` if there are none."""
        fields = json.loads(content)
        faulty = []
        for name in COMPONENTS:
            if fields.get(name) is None:
                continue
            tokenizer, _ = cls._try_open(json.dumps({**fields, name: None}))
            if tokenizer is not None:
                faulty.append(name)
        return ", ".join(faulty) or "model"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of `to_json()`."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def _run(self, texts: Sequence[str], *, fast: bool = False) -> list[tokenizers.Encoding]:
        encode = self.backend.encode_batch_fast if fast else self.backend.encode_batch
        try:
            return list(encode(texts if isinstance(texts, list) else list(texts), add_special_tokens=False))
        except TypeError:
            if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
                raise DataError(
                    "a text contains a lone surrogate",
                    advice="it was decoded wrongly: read it again with the right encoding",
                ) from None
            raise
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the library's, which is no Exception
                raise
            raise CheckpointError(f"the tokenizer failed on a text: {_first_line(error)}") from None

    def _replace_control_tokens(self, ids: list[int]) -> list[int]:
        """Replace control tokens that a text spells out by the unknown token, or drop them."""
        if self._control_ids.isdisjoint(ids):
            return ids
        if self.unk_id < 0:
            return [token_id for token_id in ids if token_id not in self._control_ids]
        return [self.unk_id if token_id in self._control_ids else token_id for token_id in ids]

    def _subword(self, token_id: int) -> str:
        token = str(self.backend.id_to_token(token_id) or "")
        is_byte_level = self._bytes and token_id not in self._control_ids
        if is_byte_level and all(character in self._bytes for character in token):
            token = bytes(self._bytes[character] for character in token).decode(errors="backslashreplace")
        return token.replace(" ", SPACE)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _byte_alphabet() -> dict[str, int]:
    """Byte of each character of a byte-level token (table of GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


def _trim_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Span without the white space before its first visible character."""
    visible = text[start:end].lstrip()
    return (end - len(visible), end) if visible else (start, end)


def _extend_over_merged_characters(spans: list[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Extend spans over characters that normalization merges into the one before; the library omits them."""
    if text.isascii():
        return spans
    is_covered = bytearray(len(text) + 1)
    for start, end in spans:
        is_covered[start:end] = b"\1" * (end - start)
    extended_ends = {}
    for _, end in spans:
        extended = end
        while extended < len(text) and not is_covered[extended] and not text[extended].isspace():
            extended += 1
        extended_ends[end] = extended
    return [(start, extended_ends[end]) for start, end in spans]


def _find_word_ids(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Index of the white-space-separated word that each span belongs to."""
    is_word_start = [
        not character.isspace() and (offset == 0 or text[offset - 1].isspace()) for offset, character in enumerate(text)
    ]
    words_started = list(accumulate(is_word_start, initial=0))  # before each character
    last_word = max(words_started[-1] - 1, 0)
    word_ids = []
    for start, end in spans:
        is_white_space = not text[start:end].strip()
        word_id = words_started[end] if is_white_space else max(words_started[start + 1] - 1, 0)
        word_ids.append(min(word_id, last_word))
    return word_ids
