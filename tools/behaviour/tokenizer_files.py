"""Files `tokenizer.json`, one of each model type, built with the library `tokenizers` from fixed vocabularies.

Vocabularies are listed, not trained: no trainer's ties decide them.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tools.behaviour.corpus import CITIES, NAMES, UNICODE_WORDS, WORDS

BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ALBERT_SPECIALS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
SEQ2SEQ_SPECIALS = ("<pad>", "</s>", "<unk>", "<s>")
MARIAN_SPECIALS = ("</s>", "<unk>", "<pad>")
GPT_SPECIALS = ("<|endoftext|>",)
MERGE_COUNT = 120
SUFFIXES = ("s", "ed", "er", "ing", "en", "ly", "e")


def build_wordpiece(specials: Sequence[str] = BERT_SPECIALS) -> Tokenizer:
    """Lower-casing WordPiece with BERT's template; every second word is a token of its own."""
    characters = [*string.ascii_lowercase, *string.digits, *string.punctuation, "é", "ü", "м", "и", "р", "日", "本"]
    words = _listed_words(lowercase=True)[::2]
    tokens = [*specials, *characters, *(f"##{token}" for token in (*string.ascii_lowercase, *string.digits))]
    tokens += [f"##{suffix}" for suffix in SUFFIXES if len(suffix) > 1]
    vocabulary = _numbered([*tokens, *words])
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _framed(tokenizer, specials, "[CLS]", "[SEP]")


def build_byte_level_bpe(specials: Sequence[str] = ROBERTA_SPECIALS) -> Tokenizer:
    """Byte-level BPE as in GPT-2 and RoBERTa."""
    corpus = [f" {word}" for word in _listed_words()]
    merges = _learn_merges(corpus, MERGE_COUNT)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = _numbered([*specials, *alphabet, *(left + right for left, right in merges)])
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if "<s>" not in specials:
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
        return tokenizer
    return _framed(tokenizer, specials, "<s>", "</s>", separators=2)


def build_unigram(specials: Sequence[str], *, start: str = "", end: str = "", separators: int = 1) -> Tokenizer:
    """Unigram over words with a marker for spaces, as SentencePiece has it."""
    pieces = [f"▁{word}" for name in _listed_words() for word in name.split()]
    characters = ["▁", *string.ascii_letters, *string.digits, *string.punctuation, *"éüöåмирПвет日本語你好"]
    tokens = [*specials, *pieces, *SUFFIXES, *characters]
    scored = [(token, -1.0 - 0.01 * rank) for rank, token in enumerate(dict.fromkeys(tokens))]
    scored = [(token, score - 6.0 * (len(token) == 1)) for token, score in scored]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=list(specials).index("<unk>")))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _framed(tokenizer, specials, start, end, separators=separators)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> Path:
    """Write `tokenizer.json` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def _listed_words(*, lowercase: bool = False) -> list[str]:
    words = [*WORDS, *NAMES, *CITIES, *UNICODE_WORDS[:12]]
    return sorted({word.lower() if lowercase else word for name in words for word in name.split()})


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def _framed(tokenizer: Tokenizer, specials: Sequence[str], start: str, end: str, separators: int = 1) -> Tokenizer:
    """Declare special tokens and, where there is an end token, a template of single texts and pairs."""
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, lstrip=token == "<mask>", normalized=False) for token in specials]
    )
    if end:
        second = 1 if separators == 1 and start else 0
        opening = f"{start}:0 " if start else ""
        between = " ".join([f"{end}:0"] * separators)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{opening}$A:0 {end}:0",
            pair=f"{opening}$A:0 {between} $B:{second} {end}:{second}",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (start, end) if token],
        )
    return tokenizer


def _learn_merges(corpus: Sequence[str], count: int) -> list[tuple[str, str]]:
    """The most frequent pairs, one after the other; of equally frequent ones the first by code points."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = [tuple(word) for text in corpus for word, _ in byte_level.pre_tokenize_str(text)]
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = [tuple(_merged(word, best)) for word in words]
    return merges


def _merged(word: Sequence[str], pair: tuple[str, str]) -> Iterator[str]:
    position = 0
    while position < len(word):
        is_pair = tuple(word[position : position + 2]) == pair
        yield "".join(pair) if is_pair else word[position]
        position += 2 if is_pair else 1
