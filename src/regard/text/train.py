"""Train tokenizers, deterministically: of our kinds, and BERT's WordPiece for masked language models."""

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
from regard.text.tokenizer import SPACE, SPECIAL_TOKENS, Tokenizer
from regard.text.tokenizer_json import WHITE_SPACE_PATTERN, WORD_PATTERN
from regard.text.unigram import train_unigram

UNK_TOKEN = "<unk>"
MAX_CHOSEN_SIZE = 32_000  # tokens of a vocabulary whose size is chosen
NUM_BYTES = 256
FEW_LINES = 1000  # below, a word that occurs once is a token, too
MAX_INPUT_CHARACTERS = 100  # of a word that WordPiece splits

PAD = "[PAD]"
UNK = "[UNK]"
CLS = "[CLS]"
SEP = "[SEP]"
MASK = "[MASK]"
BERT_SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)  # their ids count from 0
CONTINUATION_PREFIX = "##"  # before a subword that continues a word
MAX_ALPHABET = 1000  # characters of a WordPiece vocabulary
MIN_ALPHABET = 100  # above, at most every eighth token is a character

NormalizerSteps = list[normalizers.Normalizer]


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Train a tokenizer; the same texts in the same order give the same tokenizer.

    `bpe` decodes every text exactly, except for the normal form and lower case of the config; `characters` does so for
    characters of the training texts; `unigram`, `wordpiece` and `words` also turn all white space into spaces.

    >>> tokenizer = train_tokenizer(["aa bb", "aa cc"] * 9, TokenizerConfig(kind="words"))
    >>> tokenizer.subwords(tokenizer.encode("aa dd").ids), tokenizer.decode(tokenizer.encode("cc aa").ids)
    (['▁aa', '<unk>'], 'cc aa')
    """
    lines = _check_not_blank(texts)
    size = config.vocab_size or choose_vocabulary_size(lines, config.kind)
    min_size = len(SPECIAL_TOKENS) + (NUM_BYTES if config.kind == "bpe" else 1)
    if size < min_size:
        raise ConfigError(f"a vocabulary of {size} is too small for {config.kind}: at least {min_size} are needed")
    backend = _TRAINERS[config.kind](lines, size, _normalizer_steps(config))
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    eos = SPECIAL_TOKENS[1]
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, SPECIAL_TOKENS.index(eos))]
    )
    return Tokenizer(backend)


def _check_not_blank(texts: Iterable[str]) -> list[str]:
    lines = list(texts)
    if not any(line.strip() for line in lines):
        raise DataError("no text to train a tokenizer on", advice="at least one line that is not blank is needed")
    return lines


def choose_vocabulary_size(texts: Iterable[str], kind: str = "bpe") -> int:
    """Vocabulary size that suits the corpus.

    Subwords: the alphabet and one subword for each distinct word, but at most six times the square root of the running
    words (about 5,500 in all for 29,000 sentence pairs), and at most 32,000. Words and characters: all, up to 32,000.
    Trainers stop earlier when no frequent pair is left to merge.

    >>> choose_vocabulary_size(["a b c d", "d c b a"] * 100)
    264
    >>> choose_vocabulary_size(["a b c d", "d c b a"] * 100, "unigram")
    16
    """
    if kind == "characters":
        characters = set().union(*texts, " ")
        return min(len(SPECIAL_TOKENS) + len(characters), MAX_CHOSEN_SIZE)
    word_counts = _count_matches(texts, re.compile(r"[^\W\d_]+|\d|[^\w\s]|_"))
    if kind == "words":
        return min(len(SPECIAL_TOKENS) + 2 * len(word_counts) + 1, MAX_CHOSEN_SIZE)
    characters = {character for word in word_counts for character in word}
    alphabet_size = NUM_BYTES if kind == "bpe" else len(characters) + 1
    num_subwords = min(len(word_counts), 6 * math.isqrt(sum(word_counts.values())))
    size = min(len(SPECIAL_TOKENS) + alphabet_size + num_subwords, MAX_CHOSEN_SIZE)
    return _round_up(size, 8)


def _round_up(size: int, multiple: int) -> int:
    """Round a vocabulary size up, for the blocks of matrix products."""
    return size + -size % multiple


def _count_matches(texts: Iterable[str], pattern: re.Pattern[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(pattern.findall(text))
    return counts


def _normalizer_steps(config: TokenizerConfig) -> NormalizerSteps:
    """Normalization steps of the config, which come before those of a kind of tokenizer."""
    steps: NormalizerSteps = []
    if config.normalization != "none":
        steps.append(_unicode_normalizer(config.normalization))
    if config.lowercase:
        steps.append(normalizers.Lowercase())
    return steps


def _unicode_normalizer(normal_form: str) -> normalizers.Normalizer:
    return {"NFC": normalizers.NFC, "NFKC": normalizers.NFKC}[normal_form]()


def _train_bpe(lines: list[str], size: int, steps: NormalizerSteps) -> tokenizers.Tokenizer:
    """Byte-level BPE; a space is put before the text, so that a word has the same subwords at its beginning."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Prepend(" ")])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    _train(backend, lines, trainer)
    return backend


def _metaspace_tokenizer(model: models.Model, steps: NormalizerSteps) -> tokenizers.Tokenizer:
    """Tokenizer whose words carry the space before them as ▁; punctuation and digits are separate."""
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence(
        [*steps, normalizers.Replace(Regex(WHITE_SPACE_PATTERN), " "), normalizers.Prepend(" ")]
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


def _train_words(lines: list[str], size: int, steps: NormalizerSteps) -> tokenizers.Tokenizer:
    """Whole words and signs; in a corpus of a thousand lines or more, only those that occur at least twice."""
    backend = _metaspace_tokenizer(models.WordLevel(unk_token=UNK_TOKEN), steps)
    trainer = trainers.WordLevelTrainer(
        vocab_size=size,
        min_frequency=2 if len(lines) >= FEW_LINES else 1,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    _train(backend, lines, trainer)
    return backend


def _train_metaspace_wordpiece(lines: list[str], size: int, steps: NormalizerSteps) -> tokenizers.Tokenizer:
    """WordPiece with the subwords of BPE: the longest subword that fits, from left to right.

    The library's own WordPiece trainer merges pairs, too, but in an order that changes from run to run. The first
    subword of a word is marked by its ▁, so those that continue a word need no prefix.
    """
    bpe = _metaspace_tokenizer(models.BPE(unk_token=UNK_TOKEN), steps)
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    _train(bpe, lines, trainer)
    wordpiece = models.WordPiece(
        bpe.get_vocab(),
        unk_token=UNK_TOKEN,
        continuing_subword_prefix="",
        max_input_chars_per_word=MAX_INPUT_CHARACTERS,
    )
    return _metaspace_tokenizer(wordpiece, steps)


def _train_characters(lines: list[str], size: int, steps: NormalizerSteps) -> tokenizers.Tokenizer:
    """Single characters, spaces included: BPE without any merge."""
    normalizer = normalizers.Sequence(steps)
    counts = Counter(character for line in lines for character in normalizer.normalize_str(line))
    characters = sorted(counts, key=lambda character: (-counts[character], character))[: size - len(SPECIAL_TOKENS)]
    vocabulary = {token: token_id for token_id, token in enumerate([*SPECIAL_TOKENS, *characters])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=UNK_TOKEN))
    backend.normalizer = normalizer
    backend.decoder = decoders.Fuse()
    return backend


def _train_unigram(lines: list[str], size: int, steps: NormalizerSteps) -> tokenizers.Tokenizer:
    """Unigram model over the words that the tokenizer will see."""
    untrained = _metaspace_tokenizer(models.Unigram(), steps)
    word_counts: Counter[str] = Counter()
    for line in lines:
        normalized = untrained.normalizer.normalize_str(line)
        word_counts.update(word for word, _ in untrained.pre_tokenizer.pre_tokenize_str(normalized))
    special = [(token, 0.0) for token in SPECIAL_TOKENS]
    subwords = train_unigram(word_counts, size - len(SPECIAL_TOKENS))
    return _metaspace_tokenizer(models.Unigram(special + subwords, SPECIAL_TOKENS.index(UNK_TOKEN), False), steps)


def build_word_tokenizer(words: Iterable[str]) -> Tokenizer:
    """Tokenizer of these words, which are what stands between white space, with a template for texts and pairs.

    >>> tokenizer = build_word_tokenizer(["mary", "box-lid", "."])
    >>> tokenizer.subwords(tokenizer.encode("mary sat . box-lid").ids)
    ['▁mary', '<unk>', '▁.', '▁box-lid']
    """
    tokens = [*SPECIAL_TOKENS, *(f"{SPACE}{word}" for word in words)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNK_TOKEN))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(WHITE_SPACE_PATTERN), " "), normalizers.Prepend(" ")]
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    eos = SPECIAL_TOKENS[1]
    bos = SPECIAL_TOKENS[3]
    return with_special_tokens(Tokenizer(backend), bos, eos)


_TRAINERS: Mapping[str, Callable[[list[str], int, NormalizerSteps], tokenizers.Tokenizer]] = {
    "bpe": _train_bpe,
    "unigram": _train_unigram,
    "wordpiece": _train_metaspace_wordpiece,
    "words": _train_words,
    "characters": _train_characters,
}


def train_masked_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Train a tokenizer that has a mask token.

    >>> from regard.text.special_tokens import SpecialTokens
    >>> tokenizer = train_masked_tokenizer(["one two"] * 9, TokenizerConfig(kind="words"))
    >>> tokenizer.subwords(SpecialTokens(tokenizer).encode("one <mask> two", parse_special=True).ids)
    ['<s>', '▁one', '<mask>', '▁two', '</s>']
    """
    if config.kind == "wordpiece":
        return train_wordpiece(texts, config)
    return with_mask_token(train_tokenizer(texts, config))


def train_wordpiece(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Train BERT's kind of tokenizer; the same texts in the same order give the same tokenizer.

    Words are split at white space and punctuation; a subword that continues a word begins with ##. The subwords are
    those of BPE: the longest one that fits is taken, from left to right. The library's own trainer orders its subwords
    differently in every run.

    >>> tokenizer = train_wordpiece(["low lower lowest, low"] * 9, TokenizerConfig(lowercase=True))
    >>> tokenizer.subwords(tokenizer.encode("Lows, new").ids)
    ['low', '##s', ',', '[UNK]']
    """
    lines = _check_not_blank(texts)
    size = config.vocab_size or choose_wordpiece_size(lines)
    if size <= len(BERT_SPECIAL_TOKENS):
        raise ConfigError(f"a vocabulary of {size} is too small: at least {len(BERT_SPECIAL_TOKENS) + 1} are needed")
    normalizer = _bert_normalizer(config)
    subwords = wordpiece_subwords(lines, size - len(BERT_SPECIAL_TOKENS), normalizer)
    vocabulary = {token: token_id for token_id, token in enumerate([*BERT_SPECIAL_TOKENS, *subwords])}
    wordpiece = models.WordPiece(
        vocabulary,
        unk_token=UNK,
        continuing_subword_prefix=CONTINUATION_PREFIX,
        max_input_chars_per_word=MAX_INPUT_CHARACTERS,
    )
    backend = tokenizers.Tokenizer(wordpiece)
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(CONTINUATION_PREFIX, cleanup=True)
    backend.add_special_tokens(list(BERT_SPECIAL_TOKENS))
    return with_special_tokens(Tokenizer(backend), CLS, SEP)


def _bert_normalizer(config: TokenizerConfig) -> normalizers.Normalizer:
    """BERT's normalizer, after that of the config."""
    bert = normalizers.BertNormalizer(lowercase=config.lowercase)
    # With lower case it strips accents, so NFC before it would change nothing.
    if config.normalization == "none" or (config.lowercase and config.normalization == "NFC"):
        return bert
    return normalizers.Sequence([_unicode_normalizer(config.normalization), bert])


def choose_wordpiece_size(lines: list[str]) -> int:
    """Vocabulary size that suits the corpus; a character counts twice, as the start of a word and within one."""
    num_characters = len(set().union(*lines))
    size = choose_vocabulary_size(lines, "wordpiece") + min(num_characters, MAX_ALPHABET)
    return _round_up(size, 64)


def wordpiece_subwords(lines: list[str], size: int, normalizer: normalizers.Normalizer) -> list[str]:
    """Subwords in WordPiece form: characters first, then merged ones in the order of their merges."""
    bpe = tokenizers.Tokenizer(models.BPE(unk_token=UNK))
    bpe.normalizer = normalizer
    # ▁ before a word distinguishes its first character from the others.
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), metaspace])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[UNK],
        limit_alphabet=min(MAX_ALPHABET, max(MIN_ALPHABET, size // 8)),
        show_progress=False,
    )
    _train(bpe, lines, trainer)
    vocabulary = bpe.get_vocab()
    tokens = [token for token in sorted(vocabulary, key=lambda token: vocabulary[token]) if token not in (UNK, SPACE)]
    characters = [token for token in tokens if len(token) == 1]
    continuing = [CONTINUATION_PREFIX + character for character in characters if not _is_punctuation(character)]
    merged = [
        token[1:] if token.startswith(SPACE) else CONTINUATION_PREFIX + token for token in tokens if len(token) > 1
    ]
    return list(dict.fromkeys([*characters, *continuing, *merged]))[:size]


def _is_punctuation(character: str) -> bool:
    """Whether BERT's pre-tokenizer makes a character a word of its own."""
    return unicodedata.category(character).startswith("P") or (character.isascii() and not character.isalnum())
