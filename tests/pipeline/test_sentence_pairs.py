"""Texts cut into parts and put together again."""

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
@given(text=TEXT, longest=st.integers(8, 30), split=st.booleans())
def test_nothing_is_lost_and_everything_fits(tokenizer, text, longest, split):
    try:
        (found,), tokens = split_into_sentences([text], tokenizer, longest, split=split, keep_whole=[False])
    except UsageError as error:
        assert not split
        assert str(longest) in str(error)
        return
    assert found.text() == text
    assert all(sentence.strip() == sentence and sentence for sentence in found.sentences)
    assert tokens == tokenizer.encode_batch(found.sentences)
    assert all(len(ids) < longest for ids in tokens)
    assert all("\n" not in sentence for sentence in found.sentences)


@settings(max_examples=200, deadline=None)
@given(text=TEXT)
def test_words_are_counted_through(tokenizer, text):
    (found,), _ = split_into_sentences([text], tokenizer, 10_000, split=True, keep_whole=[False])
    words = text.split()
    for part in pair_sentences(found, found, [[]] * len(found.sentences)):
        inside = part.source.split()
        assert inside[0] in words[part.source_word]
        assert part.source_word + len(inside) <= len(words)


def test_pairs_go_sentence_by_sentence_where_both_have_as_many(tokenizer):
    two = split_pair("A b. B a.", "Ab. Ba ba.", tokenizer, split=True)
    assert [(part.source, part.text, part.source_word, part.target_word) for part in two] == [
        ("A b.", "Ab.", 0, 0),
        ("B a.", "Ba ba.", 2, 1),
    ]
    assert len(split_pair("A b. B a.", "Ab ba.", tokenizer, split=True)) == 1
    assert len(split_pair("A b. B a.", "Ab. Ba ba.", tokenizer, split=False)) == 1
    assert split_pair("", " ", tokenizer, split=True) == []


def test_sentences_without_a_gap_get_one_where_the_answer_needs_it():
    read = Sentences(["今天好。", "明天也好。"], ["", "", ""])
    assert read.replace(["Today.", "Tomorrow."]).text() == "Today. Tomorrow."
    assert read.replace(["本日。", "明日。"]).text() == "本日。明日。"
