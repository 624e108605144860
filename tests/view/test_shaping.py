"""Text for converters without shaping: seen order, joined letters, widths."""

from __future__ import annotations

import unicodedata

import pytest

from regard.view.lettering import clusters, shortened, wide
from regard.view.shaping import joined, seen_order


@pytest.mark.parametrize(
    "text, seen",
    [
        ("plain", "plain"),
        ("café", "café"),
        ("שלום", "םולש"),
        ("שלום!", "!םולש"),
        ("(שלום)", "(םולש)"),
        ("שנת 2017", "2017 תנש"),
        ("word שלום", "word םולש"),
    ],
)
def test_words_from_the_right_are_turned(text: str, seen: str) -> None:
    assert seen_order(text) == seen


def test_arabic_letters_take_the_form_of_their_place() -> None:
    kinds = [unicodedata.decomposition(sign).partition(" ")[0] for sign in joined("كتب")]
    assert kinds == ["<initial>", "<medial>", "<final>"]
    kinds = [unicodedata.decomposition(sign).partition(" ")[0] for sign in joined("دار")]
    assert kinds == ["<isolated>", "<isolated>", "<isolated>"]  # these letters do not join to the left
    assert unicodedata.name(joined("لا")) == "ARABIC LIGATURE LAM WITH ALEF ISOLATED FORM"


def test_marks_stay_on_their_letters() -> None:
    pointed = "שָׁלוֹם"
    assert clusters(seen_order(pointed)) == clusters(pointed)[::-1]
    assert joined("كَتَب")[0] == joined("كتب")[0]  # a vowel sign does not part letters


def test_cut_text_fits_its_room() -> None:
    for text in ("Donaudampfschiff", "e\u0301" * 30, "日本語の文章です", "W" * 50):
        cut = shortened(text, 7, 40)
        assert wide(cut, 7) <= 40.5
        assert cut.endswith("…")
        assert not cut.removesuffix("…").endswith("e")  # the accent was not cut from its letter
