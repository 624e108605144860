"""Text to tokens and back: exact round trips, spans and word numbers into the original text."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config.data import TokenizerConfig
from regard.errors import DataError
from regard.text.tokenizer import SPECIALS, Tokenizer
from regard.text.train import train_tokenizer

CORPUS = [
    "Two dogs run in the snow.",
    "Zwei Hunde laufen über die verschneite Straße.",
    "L'été, c'est naïf – “dit-il” – 1 234,50 €!",
    "Ένας σκύλος τρέχει; две собаки бегут (быстро).",
    "犬が雪の中を走る。 नमस्ते दुनिया",
] * 20

# What the library's tables and Python's agree on: characters assigned for long.
LETTERS = st.characters(codec="utf-8", exclude_categories=("Cs", "Cn", "Co"), max_codepoint=0x1FFFF)
TEXTS = st.text(LETTERS) | st.text("aeé\u0301\u0308 \u00a0ß€.,()</s>😀\u200d\u1100\u1161\u11a8\u2028")


@pytest.fixture(scope="module")
def byte_pairs() -> Tokenizer:
    return train_tokenizer(CORPUS, TokenizerConfig(vocab_size=600))


def test_special_tokens_have_their_places(byte_pairs: Tokenizer) -> None:
    assert (byte_pairs.pad_id, byte_pairs.eos_id, byte_pairs.unk_id, byte_pairs.bos_id) == (0, 1, 2, 3)
    assert byte_pairs.subwords(range(4)) == list(SPECIALS)
    assert 400 < byte_pairs.vocab_size <= 600


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_byte_pairs_give_every_text_back(byte_pairs: Tokenizer, text: str) -> None:
    seen = byte_pairs.encode(text)
    assert byte_pairs.decode(seen.ids) == unicodedata.normalize("NFC", text)
    assert not set(seen.ids) & {0, 1, 2, 3}
    assert byte_pairs.encode_batch([text, "x"])[0] == seen.ids


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_spans_and_words_fit_the_original_text(byte_pairs: Tokenizer, text: str) -> None:
    seen = byte_pairs.encode(text)
    words = text.split()
    covered = set()
    for (start, stop), word in zip(seen.spans, seen.word_ids, strict=True):
        assert 0 <= start <= stop <= len(text)
        covered.update(range(start, stop))
        part = text[start:stop]
        if part.strip():
            assert not part[0].isspace()
            assert len(text[: start + 1].split()) - 1 == word
            assert part.split()[0] in words[word]
        assert 0 <= word < max(len(words), 1)
    assert covered >= {place for place, letter in enumerate(text) if not letter.isspace()}
    assert set(range(len(words))) <= set(seen.word_ids)


def test_a_word_has_the_same_pieces_wherever_it_stands(byte_pairs: Tokenizer) -> None:
    first, inside = byte_pairs.encode("Hunde").ids, byte_pairs.encode("Zwei Hunde").ids
    assert inside[-len(first) :] == first
    assert byte_pairs.encode("").ids == []
    assert byte_pairs.decode([]) == ""


def test_spans_of_a_decomposed_text(byte_pairs: Tokenizer) -> None:
    seen = byte_pairs.encode("  nai\u0308f  2x ")
    assert byte_pairs.decode(seen.ids) == "  naïf  2x "
    places = [{*range(start, stop)} for start, stop in seen.spans]
    by_word = [
        set().union(*(place for place, word in zip(places, seen.word_ids, strict=True) if word == number))
        for number in (0, 1)
    ]
    assert by_word[0] - {0, 1} == {2, 3, 4, 5, 6}
    assert by_word[1] - {7, 8, 11} == {9, 10}


def test_special_tokens_in_a_text_are_text() -> None:
    for kind in ("bpe", "unigram", "wordpiece", "words", "characters"):
        tokenizer = train_tokenizer(["a </s> <pad> < / s p > x"] * 9, TokenizerConfig(kind=kind))
        ids = tokenizer.encode("x </s><pad> <s>").ids
        assert not {tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id} & set(ids), kind
        assert tokenizer.decode([*tokenizer.encode("x").ids, tokenizer.eos_id, tokenizer.pad_id]) == "x"


def test_pieces_can_be_read(byte_pairs: Tokenizer) -> None:
    seen = byte_pairs.encode("the Straße 😀")
    assert "".join(seen.subwords[:-4]).replace("▁", " ").strip() == "the Straße"
    assert seen.subwords[-4:] == ["\\xf0", "\\x9f", "\\x98", "\\x80"]
    assert byte_pairs.subwords(seen.ids) == seen.subwords


def test_dumps_and_loads(byte_pairs: Tokenizer) -> None:
    again = Tokenizer.from_json(byte_pairs.to_json())
    assert again.to_json() == byte_pairs.to_json()
    assert again.digest == byte_pairs.digest
    assert again.encode_batch(CORPUS) == byte_pairs.encode_batch(CORPUS)


def test_half_a_surrogate_pair_is_refused(byte_pairs: Tokenizer) -> None:
    with pytest.raises(DataError, match="half a surrogate pair"):
        byte_pairs.encode("a\ud800b")
    with pytest.raises(DataError, match="half a surrogate pair"):
        byte_pairs.encode_batch(["fine", "\udfff"])
