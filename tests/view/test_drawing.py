"""Text where no font can be asked: letters with their marks, widths, cuts."""

from __future__ import annotations

import unicodedata

from regard.view.drawing import clusters, text_width, truncate_text


def test_marks_stay_on_their_letters() -> None:
    for pointed, letters in (("שָׁלוֹם", 4), ("كَتَب", 3), ("e\u0301a", 2)):
        assert "".join(clusters(pointed)) == pointed
        assert len(clusters(pointed)) == letters
        assert not any(unicodedata.category(cluster[0]) == "Mn" for cluster in clusters(pointed))


def test_cut_text_fits_its_room() -> None:
    for text in ("Donaudampfschiff", "e\u0301" * 30, "日本語の文章です", "W" * 50):
        cut = truncate_text(text, 7, 40)
        assert text_width(cut, 7) <= 40.5
        assert cut.endswith("…")
        assert not cut.removesuffix("…").endswith("e")  # the accent was not cut from its letter
