"""Hops in the terminal: what was looked at is shown, what was not is counted, and lines keep to their width."""

from __future__ import annotations

import numpy as np
from rich.cells import cell_len

from regard.view.terminal import NOTHING, bar, hop_table

SENTENCES = ["Mary went to the kitchen.", "John slept.", "Mary got the milk there."]
HOPS = np.array([[0.5, 0.001, 0.499], [0.0, 0.0, 0.25]], dtype=np.float32)


def test_a_row_for_each_sentence_that_was_looked_at() -> None:
    head, first, second, nothing, rest = hop_table(SENTENCES, HOPS)
    assert head.split() == ["hop", "1", "hop", "2"]
    assert first == "1 Mary went to the kitchen.  ████      50 %"
    assert second == "3 Mary got the milk there.   ████      50 %  ██        25 %"
    assert nothing == f"- {NOTHING}".ljust(45) + "██████    75 %"
    assert rest == "1 other sentence has hardly any weight"
    assert first.index("█") == head.index("hop 1")
    assert nothing.index("█") == head.index("hop 2")


def test_bars_grow_with_the_share() -> None:
    wide = [bar(share / 64).rstrip() for share in range(65)]
    assert len(set(wide)) == 65
    assert {cell_len(bar(share)) for share in (-1.0, 0.0, 0.3, 1.0, 2.0)} == {8}


def test_long_and_strange_sentences_keep_to_the_width() -> None:
    told = ["very " * 40 + "long", "日本語の文 " * 20, "a\u202eb"]
    lines = hop_table(told, np.full((3, 3), 1 / 3, dtype=np.float32), width=83, forgotten=1)
    assert max(map(cell_len, lines)) <= 83
    assert "…" in lines[1] and "…" in lines[2]
    assert "⟨202E⟩" in lines[3]
    assert lines[-1] == "sentences beyond the model's memory: the first 1 of 3"
    assert len({line.index("█") if line.isascii() else cell_len(line[: line.index("█")]) for line in lines[1:4]}) == 1
