"""Text without font metrics: grapheme clusters, estimated widths, truncation."""

from __future__ import annotations

import unicodedata

from regard.view.drawing import clusters, text_width, truncate_text


def test_combining_marks_stay_with_their_letters() -> None:
    for text, num_letters in (("שָׁלוֹם", 4), ("كَتَب", 3), ("e\u0301a", 2)):
        assert "".join(clusters(text)) == text
        assert len(clusters(text)) == num_letters
        assert not any(unicodedata.category(cluster[0]) == "Mn" for cluster in clusters(text))


def test_truncated_text_fits_its_width() -> None:
    for text in ("Donaudampfschiff", "e\u0301" * 30, "日本語の文章です", "W" * 50):
        truncated = truncate_text(text, 7, 40)
        assert text_width(truncated, 7) <= 40.5
        assert truncated.endswith("…")
        assert not truncated.removesuffix("…").endswith("e")  # the accent stays with its letter
