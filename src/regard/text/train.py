"""Learn a tokenizer from text: the same one from the same text.

Learn the tokenizer of a masked-word model: BERT's WordPiece, or any of our kinds with a mask token.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.config.data import TokenizerConfig
from regard.errors import ConfigError, DataError
from regard.text.special_tokens import with_mask_token, with_special_tokens
from regard.text.tokenizer import SPACE, SPECIALS, Tokenizer
from regard.text.tokenizer_json import WHITE, WORDS
from regard.text.unigram import train_unigram

UNKNOWN = "<unk>"
LARGEST = 32_000  # tokens of a chosen vocabulary
BYTES = 256
FEW_LINES = 1000


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Return a tokenizer learned from texts; the same texts in the same order give the same tokenizer.

    `bpe` gives every text back exactly, apart from the normal form and lower case asked for; `characters` does
    so for characters it has seen; `unigram`, `wordpiece` and `words` also turn all white space into spaces.

    >>> tokenizer = train_tokenizer(["aa bb", "aa cc"] * 9, TokenizerConfig(kind="words"))
    >>> tokenizer.subwords(tokenizer.encode("aa dd").ids), tokenizer.decode(tokenizer.encode("cc aa").ids)
    (['▁aa', '<unk>'], 'cc aa')
    """
    lines = list(texts)
    if not any(line.strip() for line in lines):
        raise DataError("no text to learn a tokenizer from", advice="give at least one line that is not blank")
    size = config.vocab_size or choose_vocabulary_size(lines, config.kind)
    least = len(SPECIALS) + (BYTES if config.kind == "bpe" else 1)
    if size < least:
        raise ConfigError(f"a vocabulary of {size} is too small for {config.kind}: at least {least} are needed")
    backend = _LEARNERS[config.kind](lines, size, _normalizers(config))
    backend.add_special_tokens(list(SPECIALS))
    end = SPECIALS[1]
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, SPECIALS.index(end))]
    )
    return Tokenizer(backend)


def choose_vocabulary_size(texts: Iterable[str], kind: str = "bpe") -> int:
    """Return a vocabulary size that suits the corpus.

    Subwords: the alphabet, and a piece for each distinct word, but no more than the corpus can teach: six times
    the root of its running words (about 5,500 in all for 29,000 sentence pairs), and at most 32,000. Words and
    characters: all, up to 32,000. Trainers stop earlier when nothing is left to join, or nothing frequent.

    >>> choose_vocabulary_size(["a b c d", "d c b a"] * 100)
    264
    >>> choose_vocabulary_size(["a b c d", "d c b a"] * 100, "unigram")
    16
    """
    if kind == "characters":
        texts = list(texts)
        return min(len(SPECIALS) + len(set().union(*texts, " ")), LARGEST)
    counts = _counted(texts, re.compile(r"[^\W\d_]+|\d|[^\w\s]|_"))
    letters = {letter for word in counts for letter in word}
    if kind == "words":
        return min(len(SPECIALS) + 2 * len(counts) + 1, LARGEST)
    alphabet = BYTES if kind == "bpe" else len(letters) + 1
    taught = min(len(counts), 6 * math.isqrt(sum(counts.values())))
    size = min(len(SPECIALS) + alphabet + taught, LARGEST)
    return size + -size % 8  # matrix products like whole blocks


def _counted(texts: Iterable[str], words: re.Pattern[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words.findall(text))
    return counts


def _normalizers(config: TokenizerConfig) -> list[normalizers.Normalizer]:
    """Return the steps that the config asks for, to stand before a kind's own."""
    steps: list[normalizers.Normalizer] = []
    if config.normalization != "none":
        steps.append({"NFC": normalizers.NFC, "NFKC": normalizers.NFKC}[config.normalization]())
    if config.lowercase:
        steps.append(normalizers.Lowercase())
    return steps


def _byte_pairs(lines: list[str], size: int, steps: list[normalizers.Normalizer]) -> tokenizers.Tokenizer:
    """Byte-level BPE: a space goes before the text, so that a word has the same pieces wherever it stands."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Prepend(" ")])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _train(
        backend,
        lines,
        trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            special_tokens=list(SPECIALS),
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return backend


def _marked(model: models.Model, steps: list[normalizers.Normalizer]) -> tokenizers.Tokenizer:
    """Return a tokenizer whose words carry the space before them as ▁, punctuation apart."""
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence(
        [*steps, normalizers.Replace(Regex(WHITE), " "), normalizers.Prepend(" ")]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="never"),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    return backend


def _train(backend: tokenizers.Tokenizer, lines: list[str], trainer: trainers.Trainer) -> None:
    backend.train_from_iterator(lines, trainer, length=len(lines))


def _words(lines: list[str], size: int, steps: list[normalizers.Normalizer]) -> tokenizers.Tokenizer:
    """Whole words and signs; from a thousand lines on only those that occur twice or more."""
    backend = _marked(models.WordLevel(unk_token=UNKNOWN), steps)
    _train(
        backend,
        lines,
        trainers.WordLevelTrainer(
            vocab_size=size,
            min_frequency=2 if len(lines) >= FEW_LINES else 1,
            special_tokens=list(SPECIALS),
            show_progress=False,
        ),
    )
    return backend


def _word_pieces(lines: list[str], size: int, steps: list[normalizers.Normalizer]) -> tokenizers.Tokenizer:
    """WordPiece: the pieces that pair merging finds, taken greedily from the left, longest first.

    The library's own WordPiece trainer merges pairs too, but in an order that changes from run to run. A word's
    first piece is told from the others by its ▁, so continuing pieces need no prefix.
    """
    found = _marked(models.BPE(unk_token=UNKNOWN), steps)
    _train(
        found,
        lines,
        trainers.BpeTrainer(vocab_size=size, min_frequency=2, special_tokens=list(SPECIALS), show_progress=False),
    )
    return _marked(
        models.WordPiece(
            found.get_vocab(), unk_token=UNKNOWN, continuing_subword_prefix="", max_input_chars_per_word=100
        ),
        steps,
    )


def _characters(lines: list[str], size: int, steps: list[normalizers.Normalizer]) -> tokenizers.Tokenizer:
    """Single characters, spaces too: pair merging without a single merge."""
    normal = normalizers.Sequence(steps)
    counts = Counter(letter for line in lines for letter in normal.normalize_str(line))
    kept = sorted(counts, key=lambda letter: (-counts[letter], letter))[: size - len(SPECIALS)]
    vocabulary = {token: number for number, token in enumerate([*SPECIALS, *kept])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=UNKNOWN))
    backend.normalizer = normal
    backend.decoder = decoders.Fuse()
    return backend


def _unigram(lines: list[str], size: int, steps: list[normalizers.Normalizer]) -> tokenizers.Tokenizer:
    shell = _marked(models.Unigram(), steps)
    words: Counter[str] = Counter()
    for line in lines:
        normal = shell.normalizer.normalize_str(line)
        words.update(word for word, _ in shell.pre_tokenizer.pre_tokenize_str(normal))
    pieces = [(special, 0.0) for special in SPECIALS] + train_unigram(words, size - len(SPECIALS))
    return _marked(models.Unigram(pieces, SPECIALS.index(UNKNOWN), False), steps)


_LEARNERS: Mapping[str, Callable[[list[str], int, list[normalizers.Normalizer]], tokenizers.Tokenizer]] = {
    "bpe": _byte_pairs,
    "unigram": _unigram,
    "wordpiece": _word_pieces,
    "words": _words,
    "characters": _characters,
}
PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
MASKED_SPECIALS = (PAD, UNK, CLS, SEP, MASK)  # numbered from 0
MORE = "##"  # before a piece that continues a word
ALPHABET = 1000  # letters at most
FEW_LETTERS = 100  # beyond these, at most every eighth token is a letter


def train_masked_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Return a tokenizer that has a mask token, learned from texts.

    >>> from regard.text.special_tokens import SpecialTokens
    >>> tokenizer = train_masked_tokenizer(["one two"] * 9, TokenizerConfig(kind="words"))
    >>> tokenizer.subwords(SpecialTokens(tokenizer).encode("one <mask> two", parse_special=True).ids)
    ['<s>', '▁one', '<mask>', '▁two', '</s>']
    """
    return (
        train_wordpiece(texts, config)
        if config.kind == "wordpiece"
        else with_mask_token(train_tokenizer(texts, config))
    )


def train_wordpiece(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Return BERT's kind of tokenizer learned from texts: the same one from the same texts in the same order.

    Words are split at white space and punctuation; a piece that continues a word begins with ##. The pieces are those
    that pair merging finds, taken greedily from the left, longest first. The library's own trainer numbers its pieces
    in an order that changes from run to run.

    >>> tokenizer = train_wordpiece(["low lower lowest, low"] * 9, TokenizerConfig(lowercase=True))
    >>> tokenizer.subwords(tokenizer.encode("Lows, new").ids)
    ['low', '##s', ',', '[UNK]']
    """
    lines = list(texts)
    if not any(line.strip() for line in lines):
        raise DataError("no text to learn a tokenizer from", advice="give at least one line that is not blank")
    size = config.vocab_size or _chosen_size(lines)
    if size <= len(MASKED_SPECIALS):
        raise ConfigError(f"a vocabulary of {size} is too small: at least {len(MASKED_SPECIALS) + 1} are needed")
    normal = _normalizer(config)
    pieces = [*MASKED_SPECIALS, *_pieces(lines, size - len(MASKED_SPECIALS), normal)]
    backend = tokenizers.Tokenizer(
        models.WordPiece(
            {piece: number for number, piece in enumerate(pieces)},
            unk_token=UNK,
            continuing_subword_prefix=MORE,
            max_input_chars_per_word=100,
        )
    )
    backend.normalizer, backend.pre_tokenizer = normal, pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(MORE, cleanup=True)
    backend.add_special_tokens(list(MASKED_SPECIALS))
    return with_special_tokens(Tokenizer(backend), CLS, SEP)


def _normalizer(config: TokenizerConfig) -> normalizers.Normalizer:
    """BERT's own; with lower case it takes accents off, so that a normal form before it would change nothing."""
    own = normalizers.BertNormalizer(lowercase=config.lowercase)
    if config.normalization == "none" or (config.lowercase and config.normalization == "NFC"):
        return own
    before = {"NFC": normalizers.NFC, "NFKC": normalizers.NFKC}[config.normalization]()
    return normalizers.Sequence([before, own])


def _chosen_size(lines: list[str]) -> int:
    """Return a size that suits the corpus: a letter is two pieces, as a word begins with it or goes on with it."""
    size = choose_vocabulary_size(lines, "wordpiece") + min(len(set().union(*lines)), ALPHABET)
    return size + -size % 64


def _pieces(lines: list[str], size: int, normal: normalizers.Normalizer) -> list[str]:
    """Return the pieces, letters first, then what pair merging joins, in the order in which it does."""
    found = tokenizers.Tokenizer(models.BPE(unk_token=UNK))
    found.normalizer = normal
    # a word's first letter is told from the others by a mark before it
    marked = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    found.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), marked])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[UNK],
        limit_alphabet=min(ALPHABET, max(FEW_LETTERS, size // 8)),
        show_progress=False,
    )
    found.train_from_iterator(lines, trainer, length=len(lines))
    numbers = found.get_vocab()
    merged = [token for token in sorted(numbers, key=lambda token: numbers[token]) if token not in (UNK, SPACE)]
    letters = [token for token in merged if len(token) == 1]
    inner = [MORE + letter for letter in letters if not _alone(letter)]
    joined = [token[1:] if token.startswith(SPACE) else MORE + token for token in merged if len(token) > 1]
    return list(dict.fromkeys([*letters, *inner, *joined]))[:size]


def _alone(letter: str) -> bool:
    """Whether a letter is always a word by itself: punctuation."""
    return unicodedata.category(letter).startswith("P") or (letter.isascii() and not letter.isalnum())
