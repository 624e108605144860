"""`Tokenizer`: text to token numbers and back, over the `tokenizers` library."""

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

SPECIALS = ("<pad>", "</s>", "<unk>", "<s>")  # of every learned tokenizer, numbered from 0
SPACE = "▁"  # shown for a space in pieces

# What others call the same token, first found wins.
_NAMES = {
    "pad_id": ("<pad>", "[PAD]"),
    "eos_id": ("</s>", "[SEP]", "<|endoftext|>"),
    "unk_id": ("<unk>", "[UNK]"),
    "bos_id": ("<s>", "[CLS]"),
}


@dataclass(frozen=True)
class Encoding:
    """One text as tokens, with the places that the tokens came from."""

    ids: list[int]
    subwords: list[str]  # readable, a space shown as ▁
    spans: list[tuple[int, int]]  # characters of the original text, without the white space before a word
    word_ids: list[int]  # number of the white-space-separated word; a piece of white space counts to the next word


class Tokenizer:
    """Text to token numbers and back; never adds special tokens, and never finds any in a text.

    >>> from regard.config.data import TokenizerConfig
    >>> from regard.text.train import train_tokenizer
    >>> tokenizer = train_tokenizer(["low lower lowest"] * 9, TokenizerConfig(vocab_size=270))
    >>> seen = tokenizer.encode("lower </s>")
    >>> tokenizer.eos_id in seen.ids, seen.spans[-1], seen.word_ids[-1]
    (False, (9, 10), 1)
    >>> tokenizer.decode([*seen.ids, tokenizer.eos_id])
    'lower </s>'
    """

    pad_id: int  # the special tokens' numbers; -1 where a foreign tokenizer has none
    eos_id: int
    unk_id: int
    bos_id: int

    def __init__(self, backend: tokenizers.Tokenizer, text: str = "") -> None:
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = True  # "</s>" in a text is text
        self.backend = backend
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        for role, names in _NAMES.items():
            found = [number for name in names if (number := backend.token_to_id(name)) is not None]
            setattr(self, role, found[0] if found else -1)
        self._specials = {number for number, token in backend.get_added_tokens_decoder().items() if token.special}
        self._controls = self._specials - {self.unk_id}
        # reading it gives the same text again
        self._text = text or validate_tokenizer_json(backend.to_str(), "this tokenizer")[0]
        decoder = json.dumps(json.loads(self._text)["decoder"])
        self._strips = '"stop": 1' in decoder
        self._bytes = _byte_alphabet() if '"ByteLevel"' in decoder else {}

    def encode(self, text: str) -> Encoding:
        """Return one text's tokens with their pieces, character spans and word numbers."""
        found = self._run([text])[0]
        ids = self._plain(found.ids)
        spans = _whole([_trimmed(text, start, stop) for start, stop in found.offsets], text)
        return Encoding(ids, self.subwords(ids), spans, _word_numbers(text, spans))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token numbers of many texts: the fast way when nothing else is needed."""
        return [self._plain(found.ids) for found in self._run(texts, fast=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token numbers, special tokens left out."""
        numbers = [int(number) for number in ids]
        if self._strips and not "".join(self.subwords([n for n in numbers if n not in self._specials])).strip(SPACE):
            return ""  # the library would fail to strip a text of nothing but spaces at both ends
        return str(self.backend.decode(numbers, skip_special_tokens=True))

    def subwords(self, ids: Sequence[int]) -> list[str]:
        """Return each token as people can read it: a space as ▁, half a character as its bytes.

        >>> from regard.config.data import TokenizerConfig
        >>> from regard.text.train import train_tokenizer
        >>> tokenizer = train_tokenizer(["two"] * 9, TokenizerConfig())
        >>> tokenizer.subwords([*tokenizer.encode("two é").ids, tokenizer.eos_id])
        ['▁two', '▁', '\\\\xc3', '\\\\xa9', '</s>']
        """
        return [self._readable(int(number)) for number in ids]

    @property
    def special_ids(self) -> frozenset[int]:
        """The numbers of all special tokens, the unknown one included."""
        return frozenset({*self._specials, self.unk_id} - {-1})

    def to_json(self) -> str:
        """Return the content of a `tokenizer.json`, the same for the same tokenizer."""
        return self._text

    def without_special_tokens(self) -> Tokenizer:
        """Return the same tokenizer without what other tools would put around a text: for texts to be continued."""
        return Tokenizer.from_json(
            json.dumps({**json.loads(self._text), "post_processor": None}), where="this tokenizer"
        )

    @classmethod
    def from_json(cls, text: str, *, where: str = "tokenizer.json") -> Tokenizer:
        """Return the tokenizer of a `tokenizer.json`, ours or foreign, checked before it is opened."""
        clean, size = validate_tokenizer_json(text, where)
        made, reason = cls._opened(clean)
        if made is None:
            data = json.loads(clean)
            present = [name for name in COMPONENTS if data.get(name) is not None]
            faulty = [name for name in present if cls._opened(json.dumps({**data, name: None}))[0] is not None]
            raise CheckpointError(f"{where}: {', '.join(faulty) or 'model'}: cannot be opened: {reason}")
        if made.vocab_size != size:
            raise CheckpointError(f"{where}: added_tokens: {size} tokens in the file, {made.vocab_size} after opening")
        return made

    @classmethod
    def _opened(cls, text: str) -> tuple[Tokenizer | None, str]:
        """Return the tokenizer, tried out, or nothing and the library's complaint."""
        try:
            made = cls(tokenizers.Tokenizer.from_str(text), text)
            made.decode(made.encode("A canary, 1 é.").ids)
            return made, ""
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # the library's panics are no Exceptions
            return None, _first_line(error)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of `dumps()`."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def _run(self, texts: Sequence[str], *, fast: bool = False) -> list[tokenizers.Encoding]:
        run = self.backend.encode_batch_fast if fast else self.backend.encode_batch
        try:
            return list(run(texts if isinstance(texts, list) else list(texts), add_special_tokens=False))
        except TypeError:
            if any("\ud800" <= letter <= "\udfff" for text in texts for letter in text):
                raise DataError(
                    "a text holds half a surrogate pair",
                    advice="it was decoded wrongly: read it again with the right encoding",
                ) from None
            raise
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the library's, which is no Exception
                raise
            raise CheckpointError(f"the tokenizer failed on a text: {_first_line(error)}") from None

    def _plain(self, ids: list[int]) -> list[int]:
        """Return the tokens with control tokens that a text spelled out made unknown."""
        if self._controls.isdisjoint(ids):
            return ids
        if self.unk_id < 0:
            return [number for number in ids if number not in self._controls]
        return [self.unk_id if number in self._controls else number for number in ids]

    def _readable(self, number: int) -> str:
        token = str(self.backend.id_to_token(number) or "")
        if self._bytes and number not in self._controls and all(letter in self._bytes for letter in token):
            token = bytes(self._bytes[letter] for letter in token).decode(errors="backslashreplace")
        return token.replace(" ", SPACE)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _byte_alphabet() -> dict[str, int]:
    """Return which byte each letter of a byte-level token stands for (GPT-2's table)."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + place): byte for place, byte in enumerate(moved)}


def _trimmed(text: str, start: int, stop: int) -> tuple[int, int]:
    """Return the span without white space before its first visible character."""
    visible = text[start:stop].lstrip()
    return (stop - len(visible), stop) if visible else (start, stop)


def _whole(spans: list[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Return the spans with characters that normalization merged into the one before, which the library leaves out."""
    if text.isascii():
        return spans
    covered = bytearray(len(text) + 1)
    for start, stop in spans:
        covered[start:stop] = b"\1" * (stop - start)
    longer = {}
    for _, stop in spans:
        end = stop
        while end < len(text) and not covered[end] and not text[end].isspace():
            end += 1
        longer[stop] = end
    return [(start, longer[stop]) for start, stop in spans]


def _word_numbers(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return the number of the white-space-separated word that each span belongs to."""
    begins = [not letter.isspace() and (place == 0 or text[place - 1].isspace()) for place, letter in enumerate(text)]
    begun = list(accumulate(begins, initial=0))  # words begun before each place
    last = max(begun[-1] - 1, 0)
    numbers = []
    for start, stop in spans:
        blank = not text[start:stop].strip()
        numbers.append(min(begun[stop] if blank else max(begun[start + 1] - 1, 0), last))
    return numbers
