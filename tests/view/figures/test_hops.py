"""Hops in the terminal: sentences with attention are shown, the others counted, and lines fit the width."""

from __future__ import annotations

import numpy as np
from rich.cells import cell_len

from regard.view.terminal import EMPTY_MEMORIES, bar, hop_table

SENTENCES = ["Mary went to the kitchen.", "John slept.", "Mary got the milk there."]
HOPS = np.array([[0.5, 0.001, 0.499], [0.0, 0.0, 0.25]], dtype=np.float32)


def test_every_sentence_with_attention_has_a_row_and_the_others_are_counted() -> None:
    header, first, second, nothing, omitted = hop_table(SENTENCES, HOPS)
    assert header.split() == ["hop", "1", "hop", "2"]
    assert first == "1 Mary went to the kitchen.  ████      50 %"
    assert second == "3 Mary got the milk there.   ████      50 %  ██        25 %"
    assert nothing == f"- {EMPTY_MEMORIES}".ljust(45) + "██████    75 %"
    assert omitted == "1 other sentence has a weight below 0.5 %"
    assert first.index("█") == header.index("hop 1")
    assert nothing.index("█") == header.index("hop 2")


def test_bars_grow_with_the_weight() -> None:
    bars = [bar(eighths / 64).rstrip() for eighths in range(65)]
    assert len(set(bars)) == 65
    assert {cell_len(bar(weight)) for weight in (-1.0, 0.0, 0.3, 1.0, 2.0)} == {8}


def test_long_wide_and_invisible_characters_fit_the_width() -> None:
    sentences = ["very " * 40 + "long", "日本語の文 " * 20, "a\u202eb"]
    lines = hop_table(sentences, np.full((3, 3), 1 / 3, dtype=np.float32), width=83, num_truncated=1)
    assert max(map(cell_len, lines)) <= 83
    assert "…" in lines[1] and "…" in lines[2]
    assert "⟨202E⟩" in lines[3]
    assert lines[-1] == "sentences beyond the model's memory: the first 1 of 3"
    bar_columns = {cell_len(line[: line.index("█")]) for line in lines[1:4]}
    assert len(bar_columns) == 1
