"""Text to tokens and back: exact round trips, spans and word ids in the original text."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config.data import TokenizerConfig
from regard.errors import DataError
from regard.text.tokenizer import SPECIAL_TOKENS, Tokenizer
from regard.text.train import train_tokenizer

CORPUS = [
    "Two dogs run in the snow.",
    "Zwei Hunde laufen über die verschneite Straße.",
    "L'été, c'est naïf – “dit-il” – 1 234,50 €!",
    "Ένας σκύλος τρέχει; две собаки бегут (быстро).",
    "犬が雪の中を走る。 नमस्ते दुनिया",
] * 20

# Characters that were assigned long ago, on which the library's tables and Python's agree.
LETTERS = st.characters(codec="utf-8", exclude_categories=("Cs", "Cn", "Co"), max_codepoint=0x1FFFF)
TEXTS = st.text(LETTERS) | st.text("aeé\u0301\u0308 \u00a0ß€.,()</s>😀\u200d\u1100\u1161\u11a8\u2028")


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_tokenizer(CORPUS, TokenizerConfig(vocab_size=600))


def test_special_tokens_have_the_first_ids(bpe: Tokenizer) -> None:
    assert (bpe.pad_id, bpe.eos_id, bpe.unk_id, bpe.bos_id) == (0, 1, 2, 3)
    assert bpe.subwords(range(4)) == list(SPECIAL_TOKENS)
    assert 400 < bpe.vocab_size <= 600


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_byte_level_bpe_decodes_every_text_exactly(bpe: Tokenizer, text: str) -> None:
    encoding = bpe.encode(text)
    assert bpe.decode(encoding.ids) == unicodedata.normalize("NFC", text)
    assert not set(encoding.ids) & {0, 1, 2, 3}
    assert bpe.encode_batch([text, "x"])[0] == encoding.ids


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_spans_and_words_fit_the_original_text(bpe: Tokenizer, text: str) -> None:
    encoding = bpe.encode(text)
    words = text.split()
    covered = set()
    for (start, end), word_id in zip(encoding.spans, encoding.word_ids, strict=True):
        assert 0 <= start <= end <= len(text)
        covered.update(range(start, end))
        subword = text[start:end]
        if subword.strip():
            assert not subword[0].isspace()
            assert len(text[: start + 1].split()) - 1 == word_id
            assert subword.split()[0] in words[word_id]
        assert 0 <= word_id < max(len(words), 1)
    assert covered >= {offset for offset, character in enumerate(text) if not character.isspace()}
    assert set(range(len(words))) <= set(encoding.word_ids)


def test_a_word_has_the_same_subwords_at_every_position(bpe: Tokenizer) -> None:
    word = bpe.encode("Hunde").ids
    text = bpe.encode("Zwei Hunde").ids
    assert text[-len(word) :] == word
    assert bpe.encode("").ids == []
    assert bpe.decode([]) == ""


def test_spans_cover_decomposed_characters(bpe: Tokenizer) -> None:
    encoding = bpe.encode("  nai\u0308f  2x ")
    assert bpe.decode(encoding.ids) == "  naïf  2x "
    covered: dict[int, set[int]] = {0: set(), 1: set()}  # by word
    for (start, end), word_id in zip(encoding.spans, encoding.word_ids, strict=True):
        covered[word_id] |= {*range(start, end)}
    assert covered[0] - {0, 1} == {2, 3, 4, 5, 6}
    assert covered[1] - {7, 8, 11} == {9, 10}


def test_special_tokens_in_a_text_are_text() -> None:
    for kind in ("bpe", "unigram", "wordpiece", "words", "characters"):
        tokenizer = train_tokenizer(["a </s> <pad> < / s p > x"] * 9, TokenizerConfig(kind=kind))
        ids = tokenizer.encode("x </s><pad> <s>").ids
        assert not {tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id} & set(ids), kind
        assert tokenizer.decode([*tokenizer.encode("x").ids, tokenizer.eos_id, tokenizer.pad_id]) == "x"


def test_subwords_are_readable(bpe: Tokenizer) -> None:
    encoding = bpe.encode("the Straße 😀")
    assert "".join(encoding.subwords[:-4]).replace("▁", " ").strip() == "the Straße"
    assert encoding.subwords[-4:] == ["\\xf0", "\\x9f", "\\x98", "\\x80"]
    assert bpe.subwords(encoding.ids) == encoding.subwords


def test_a_tokenizer_is_the_same_after_json(bpe: Tokenizer) -> None:
    reloaded = Tokenizer.from_json(bpe.to_json())
    assert reloaded.to_json() == bpe.to_json()
    assert reloaded.digest == bpe.digest
    assert reloaded.encode_batch(CORPUS) == bpe.encode_batch(CORPUS)


def test_a_lone_surrogate_is_refused(bpe: Tokenizer) -> None:
    with pytest.raises(DataError, match="a lone surrogate"):
        bpe.encode("a\ud800b")
    with pytest.raises(DataError, match="a lone surrogate"):
        bpe.encode_batch(["fine", "\udfff"])
