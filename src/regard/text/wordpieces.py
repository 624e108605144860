"""Learn the tokenizer of a masked-word model: BERT's WordPiece, or any of our kinds with a mask token."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from regard.config.data import TokenizerConfig
from regard.errors import ConfigError, DataError
from regard.text.framing import with_marks, with_template
from regard.text.learn import chosen_size, learn
from regard.text.tokenizer import SPACE, Tokenizer

PAD, UNKNOWN, FIRST, LAST, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
MASKED_SPECIALS = (PAD, UNKNOWN, FIRST, LAST, MASK)  # numbered from 0
MORE = "##"  # before a piece that continues a word
ALPHABET = 1000  # letters at most
FEW_LETTERS = 100  # beyond these, at most every eighth token is a letter


def learn_masked(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Return a tokenizer that has a mask token, learned from texts.

    >>> from regard.text.framing import Framing
    >>> tokenizer = learn_masked(["one two"] * 9, TokenizerConfig(kind="words"))
    >>> tokenizer.pieces(Framing(tokenizer).read("one <mask> two", marks=True).ids)
    ['<s>', '▁one', '<mask>', '▁two', '</s>']
    """
    return learn_word_pieces(texts, config) if config.kind == "wordpiece" else with_marks(learn(texts, config))


def learn_word_pieces(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Return BERT's kind of tokenizer learned from texts: the same one from the same texts in the same order.

    Words are split at white space and punctuation; a piece that continues a word begins with ##. The pieces are those
    that pair merging finds, taken greedily from the left, longest first. The library's own trainer numbers its pieces
    in an order that changes from run to run.

    >>> tokenizer = learn_word_pieces(["low lower lowest, low"] * 9, TokenizerConfig(lowercase=True))
    >>> tokenizer.pieces(tokenizer.encode("Lows, new").ids)
    ['low', '##s', ',', '[UNK]']
    """
    lines = list(texts)
    if not any(line.strip() for line in lines):
        raise DataError("no text to learn a tokenizer from", advice="give at least one line that is not blank")
    size = config.size or _chosen_size(lines)
    if size <= len(MASKED_SPECIALS):
        raise ConfigError(f"a vocabulary of {size} is too small: at least {len(MASKED_SPECIALS) + 1} are needed")
    normal = _normalizer(config)
    pieces = [*MASKED_SPECIALS, *_pieces(lines, size - len(MASKED_SPECIALS), normal)]
    backend = tokenizers.Tokenizer(
        models.WordPiece(
            {piece: number for number, piece in enumerate(pieces)},
            unk_token=UNKNOWN,
            continuing_subword_prefix=MORE,
            max_input_chars_per_word=100,
        )
    )
    backend.normalizer, backend.pre_tokenizer = normal, pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(MORE, cleanup=True)
    backend.add_special_tokens(list(MASKED_SPECIALS))
    return with_template(Tokenizer(backend), FIRST, LAST)


def _normalizer(config: TokenizerConfig) -> normalizers.Normalizer:
    """BERT's own; with lower case it takes accents off, so that a normal form before it would change nothing."""
    own = normalizers.BertNormalizer(lowercase=config.lowercase)
    if config.normalization == "none" or (config.lowercase and config.normalization == "NFC"):
        return own
    before = {"NFC": normalizers.NFC, "NFKC": normalizers.NFKC}[config.normalization]()
    return normalizers.Sequence([before, own])


def _chosen_size(lines: list[str]) -> int:
    """Return a size that suits the corpus: a letter is two pieces, as a word begins with it or goes on with it."""
    size = chosen_size(lines, "wordpiece") + min(len(set().union(*lines)), ALPHABET)
    return size + -size % 64


def _pieces(lines: list[str], size: int, normal: normalizers.Normalizer) -> list[str]:
    """Return the pieces, letters first, then what pair merging joins, in the order in which it does."""
    found = tokenizers.Tokenizer(models.BPE(unk_token=UNKNOWN))
    found.normalizer = normal
    # a word's first letter is told from the others by a mark before it
    marked = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    found.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), marked])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[UNKNOWN],
        limit_alphabet=min(ALPHABET, max(FEW_LETTERS, size // 8)),
        show_progress=False,
    )
    found.train_from_iterator(lines, trainer, length=len(lines))
    numbers = found.get_vocab()
    merged = [token for token in sorted(numbers, key=lambda token: numbers[token]) if token not in (UNKNOWN, SPACE)]
    letters = [token for token in merged if len(token) == 1]
    inner = [MORE + letter for letter in letters if not _alone(letter)]
    joined = [token[1:] if token.startswith(SPACE) else MORE + token for token in merged if len(token) > 1]
    return list(dict.fromkeys([*letters, *inner, *joined]))[:size]


def _alone(letter: str) -> bool:
    """Whether a letter is always a word by itself: punctuation."""
    return unicodedata.category(letter).startswith("P") or (letter.isascii() and not letter.isalnum())
