"""Texts split into sentences and joined again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config.data import TokenizerConfig
from regard.errors import UsageError
from regard.pipeline.sentence_pairs import pair_sentences, split_into_sentences, split_pair
from regard.text.sentences import Sentences
from regard.text.train import train_tokenizer

TEXT = st.text(st.sampled_from("ab. ,!?\n\tÄ犬。\u2028\u0301𝄞"), max_size=80)


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer(["a b ab. Ä 犬。"] * 9, TokenizerConfig(kind="bpe"))


@settings(max_examples=300, deadline=None)
@given(text=TEXT, max_length=st.integers(8, 30), split=st.booleans())
def test_nothing_is_lost_and_everything_fits(tokenizer, text, max_length, split):
    try:
        (sentences,), token_ids = split_into_sentences([text], tokenizer, max_length, split=split, keep_whole=[False])
    except UsageError as error:
        assert not split
        assert str(max_length) in str(error)
        return
    assert sentences.text() == text
    assert all(sentence.strip() == sentence and sentence for sentence in sentences.sentences)
    assert token_ids == tokenizer.encode_batch(sentences.sentences)
    assert all(len(ids) < max_length for ids in token_ids)
    assert all("\n" not in sentence for sentence in sentences.sentences)


@settings(max_examples=200, deadline=None)
@given(text=TEXT)
def test_word_indices_count_through_the_text(tokenizer, text):
    (sentences,), _ = split_into_sentences([text], tokenizer, 10_000, split=True, keep_whole=[False])
    words = text.split()
    for pair in pair_sentences(sentences, sentences, [[]] * len(sentences.sentences)):
        pair_words = pair.source.split()
        assert pair_words[0] in words[pair.source_word]
        assert pair.source_word + len(pair_words) <= len(words)


def test_sentences_are_paired_where_both_texts_have_equally_many(tokenizer):
    pairs = split_pair("A b. B a.", "Ab. Ba ba.", tokenizer, split=True)
    assert [(pair.source, pair.text, pair.source_word, pair.target_word) for pair in pairs] == [
        ("A b.", "Ab.", 0, 0),
        ("B a.", "Ba ba.", 2, 1),
    ]
    assert len(split_pair("A b. B a.", "Ab ba.", tokenizer, split=True)) == 1
    assert len(split_pair("A b. B a.", "Ab. Ba ba.", tokenizer, split=False)) == 1
    assert split_pair("", " ", tokenizer, split=True) == []


def test_sentences_without_white_space_get_it_where_the_translation_needs_it():
    source = Sentences(["今天好。", "明天也好。"], ["", "", ""])
    assert source.replace(["Today.", "Tomorrow."]).text() == "Today. Tomorrow."
    assert source.replace(["本日。", "明日。"]).text() == "本日。明日。"
