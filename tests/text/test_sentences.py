"""Sentences by rule: where they end, where they do not, and that no character is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.text.sentences import find_phrase, is_word_character, split_lines, split_long, split_sentences


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=60) | st.text(st.sampled_from("aB. !?\n\r\t\"'“”)。।؟3"), max_size=40))
def test_sentences_and_separators_restore_the_text(text):
    for split in (split_sentences, split_lines):
        parts = split(text)
        assert parts.text() == text
        assert len(parts.separators) == len(parts.sentences) + 1
        assert all(sentence and sentence == sentence.strip() for sentence in parts.sentences)
        assert not any(separator.strip() for separator in parts.separators)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One two. Three four.", 2),
        ("Really?! Yes… No.", 3),
        ('He said "Stop." Then he left.', 2),
        ("»Halt!« Sie blieb stehen. (Ja.) Nein.", 4),
        ("Mr. Smith met Dr. J. R. Jones at 3.14 p.m. sharp.", 1),
        ("Er kam am 3. März um 17 Uhr. Dann ging er.", 2),
        ("Das ist z.B. Brot, d.h. Essen. Gut.", 2),
        ("Voir M. Dupont. Il est là. ", 2),
        ("See No. 7 and Fig. 3. I said no. Then I left.", 2),
        ("The U.S. Army came.", 1),
        ('"Go!" she said.', 1),
        ("www.example.com is up. It works.", 2),
        ("¿Qué? ¡No! Sí.", 3),
        ("今天好。明天也好！你呢？", 3),
        ("「行こう。」と言った。", 2),
        ("यह एक वाक्य है। यह दूसरा है।", 2),
        ("هل هذا جيد؟ نعم.", 2),
        ("یہ اچھا ہے۔ وہ بھی۔", 2),
        ("one\ntwo\r\nthree\rfour", 4),
        ("2017. 3. 13. 오전", 1),
        ("9 avr. 1924", 1),
        ("30 авг. 1996 г.", 1),
        ("We left. 20 people stayed behind. 7 came.", 2),
        ("no end at all", 1),
        ("...", 1),
        ("", 0),
        (" \n\t ", 0),
    ],
)
def test_sentences_end_where_a_reader_expects(text, count):
    assert len(split_sentences(text).sentences) == count, split_sentences(text).sentences


def test_a_huge_line_is_split_too():
    parts = split_sentences("A b c. " * 200_000 + "x" * 1_000_000)
    assert len(parts.sentences) == 200_000


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab ,"), min_size=1, max_size=60), st.integers(1, 9))
def test_long_sentences_are_split_into_parts_that_fit(text, max_tokens):
    spans = [(offset, offset + 1) for offset, letter in enumerate(text) if not letter.isspace()]
    parts = split_long(text, spans, max_tokens)
    assert parts.text() == text
    assert all(sum(not letter.isspace() for letter in part) <= max_tokens for part in parts.sentences)


def test_commas_are_preferred_to_spaces_and_spaces_to_nothing():
    def split(text, max_tokens):
        return split_long(text, [(offset, offset + 1) for offset in range(len(text))], max_tokens).sentences

    assert split("aaaa bbb, cc dd", 13) == ["aaaa bbb,", "cc dd"]
    assert split("aaaa bbb cc dd", 13) == ["aaaa bbb cc", "dd"]
    assert split("aaaaaaa", 3) == ["aaa", "aaa", "a"]


def test_phrases_match_whole_words_only():
    assert find_phrase("a doghouse for the dog", "dog") == 19
    assert find_phrase("U.S. and so", "U.S.") == 0
    assert find_phrase("कुत्ता", "क") < 0, "a vowel sign belongs to the word"
    assert find_phrase("x", "") < 0
    assert not is_word_character("")
