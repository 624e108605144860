"""Texts split into sentences and joined again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config.data import TokenizerConfig
from regard.errors import UsageError
from regard.pipeline.sentence_pairs import pair_sentences, split_into_sentences, split_pair
from regard.text.sentences import Sentences
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer

TEXTS = st.text(st.sampled_from("ab. ,!?\n\tÄ犬。\u2028\u0301𝄞"), max_size=80)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["a b ab. Ä 犬。"] * 9, TokenizerConfig(kind="bpe"))


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, max_length=st.integers(8, 30), split=st.booleans())
def test_sentences_add_up_to_the_text_and_fit_the_model(
    tokenizer: Tokenizer, text: str, max_length: int, split: bool
) -> None:
    try:
        (sentences,), token_ids = split_into_sentences([text], tokenizer, max_length, split=split, keep_whole=[False])
    except UsageError as error:
        assert not split
        assert str(max_length) in str(error)
        return
    assert sentences.text() == text
    for sentence in sentences.sentences:
        assert sentence
        assert sentence == sentence.strip()
        assert "\n" not in sentence
    assert token_ids == tokenizer.encode_batch(sentences.sentences)
    assert all(len(ids) < max_length for ids in token_ids)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_word_indices_count_through_the_text(tokenizer: Tokenizer, text: str) -> None:
    (sentences,), _ = split_into_sentences([text], tokenizer, 10_000, split=True, keep_whole=[False])
    words = text.split()
    for pair in pair_sentences(sentences, sentences, [[]] * len(sentences.sentences)):
        pair_words = pair.source.split()
        assert pair_words[0] in words[pair.source_word]
        assert pair.source_word + len(pair_words) <= len(words)


def test_sentences_are_paired_where_both_texts_have_equally_many(tokenizer: Tokenizer) -> None:
    first, second = split_pair("A b. B a.", "Ab. Ba ba.", tokenizer, split=True)
    assert (first.source, first.text) == ("A b.", "Ab.")
    assert (first.source_word, first.target_word) == (0, 0)
    assert (second.source, second.text) == ("B a.", "Ba ba.")
    assert (second.source_word, second.target_word) == (2, 1)
    assert len(split_pair("A b. B a.", "Ab ba.", tokenizer, split=True)) == 1
    assert len(split_pair("A b. B a.", "Ab. Ba ba.", tokenizer, split=False)) == 1
    assert split_pair("", " ", tokenizer, split=True) == []


def test_sentences_without_white_space_get_it_where_the_translation_needs_it() -> None:
    source = Sentences(["今天好。", "明天也好。"], ["", "", ""])
    assert source.replace(["Today.", "Tomorrow."]).text() == "Today. Tomorrow."
    assert source.replace(["本日。", "明日。"]).text() == "本日。明日。"
