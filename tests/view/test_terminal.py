from __future__ import annotations

import numpy as np
from rich.cells import cell_len

from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from regard.view.terminal import render_record, shade
from tests.view.samples import sample_record


def diagonal(sources: list[str], targets: list[str]) -> Record:
    weights = np.zeros((1, 1, len(targets), len(sources)), np.float32)
    weights[0, 0, np.arange(len(targets)), np.arange(len(targets)) % len(sources)] = 1
    texts = {
        name: RecordText(" ".join(words), tuple(words), tuple(range(len(words))))
        for name, words in (("source", sources), ("target", targets))
    }
    return Record("", texts, (AttentionRecord("decoder.cross", "target", "source", weights, (0,)),))


def test_shades_grow_with_the_weight_and_zero_is_blank() -> None:
    shades = [shade(weight) for weight in np.linspace(0, 1, 50)]
    order = " ░▒▓█"
    assert [order.index(one) for one in shades] == sorted(order.index(one) for one in shades)
    assert (shades[0], shades[-1]) == (" ", "█")


def test_wide_letters_keep_the_columns_aligned() -> None:
    lines = render_record(diagonal(["2017年", "3月", "3日"], ["金曜日", "two", "é"])).splitlines()
    header, rows = lines[:3], lines[3:]
    corners = [cell_len(line[: line.index("┌")]) for line in header]
    blocks = [cell_len(line[: line.index("█")]) for line in rows]
    assert corners == blocks == [7, 9, 11]


def test_more_columns_than_fit_are_drawn_in_bands() -> None:
    words = [f"w{number}" for number in range(40)]
    drawn = render_record(diagonal(words, words), width=60)
    assert max(cell_len(line) for line in drawn.splitlines()) <= 60
    assert all(f"┌─{word}" in drawn for word in words)
    assert drawn.count("█") == 40


def test_plain_output_has_no_colours_and_hides_no_control_sign() -> None:
    record = diagonal(["\x1b[31mred", "\u202eback"], ["one", "two"])
    assert "\x1b" not in render_record(record)
    assert "\u202e" not in render_record(record)
    assert "\x1b[36m" in render_record(record, colour=True)
    assert render_record(record, ascii_only=True).isascii() is False  # the numbers of unseen signs stand in brackets
    assert render_record(sample_record(), ascii_only=True).isascii()


def test_right_to_left_labels_do_not_turn_the_line_around() -> None:
    lines = render_record(diagonal(["الجمعة", "3"], ["2017", "מרץ"])).splitlines()
    assert lines[0].startswith("\u200e") and lines[3].startswith("\u200e")
    assert not lines[1].startswith("\u200e")


def test_long_labels_are_cut() -> None:
    drawn = render_record(diagonal(["x" * 60, "y"], ["z" * 60, "y"]))
    assert max(cell_len(line) for line in drawn.splitlines()) < 60
    assert "…" in drawn
