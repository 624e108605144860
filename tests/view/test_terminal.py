"""Alignments in the terminal: shades, aligned columns, bands, control characters, right-to-left labels."""

from __future__ import annotations

import numpy as np
from rich.cells import cell_len

from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from regard.view.terminal import render_record, shade
from tests.view.samples import sample_record


def diagonal_record(source_words: list[str], target_words: list[str]) -> Record:
    """A translation whose only head aligns the words in order."""
    rows = np.arange(len(target_words))
    weights = np.zeros((1, 1, len(target_words), len(source_words)), np.float32)
    weights[0, 0, rows, rows % len(source_words)] = 1
    attention = AttentionRecord("decoder.cross", "target", "source", weights, (0,))
    return Record("", {"source": text_of(source_words), "target": text_of(target_words)}, (attention,))


def text_of(words: list[str]) -> RecordText:
    return RecordText(" ".join(words), tuple(words), tuple(range(len(words))))


def test_shades_grow_with_the_weight_and_zero_is_blank() -> None:
    shades = [shade(weight) for weight in np.linspace(0, 1, 50)]
    darkness = [" ░▒▓█".index(character) for character in shades]
    assert darkness == sorted(darkness)
    assert shades[0] == " "
    assert shades[-1] == "█"


def test_wide_characters_keep_the_columns_aligned() -> None:
    lines = render_record(diagonal_record(["2017年", "3月", "3日"], ["金曜日", "two", "é"])).splitlines()
    header = lines[:3]
    rows = lines[3:]
    corners = [cell_len(line[: line.index("┌")]) for line in header]
    blocks = [cell_len(line[: line.index("█")]) for line in rows]
    assert corners == blocks == [7, 9, 11]


def test_more_columns_than_fit_are_drawn_in_bands() -> None:
    words = [f"w{index}" for index in range(40)]
    output = render_record(diagonal_record(words, words), width=60)
    assert max(cell_len(line) for line in output.splitlines()) <= 60
    assert all(f"┌─{word}" in output for word in words)
    assert output.count("█") == 40


def test_plain_output_has_no_colours_and_escapes_control_characters() -> None:
    record = diagonal_record(["\x1b[31mred", "\u202eback"], ["one", "two"])
    assert "\x1b" not in render_record(record)
    assert "\u202e" not in render_record(record)
    assert "\x1b[36m" in render_record(record, colour=True)
    assert render_record(record, ascii_only=True).isascii() is False  # code points stand in angle brackets
    assert render_record(sample_record(), ascii_only=True).isascii()


def test_right_to_left_labels_do_not_reorder_the_line() -> None:
    lines = render_record(diagonal_record(["الجمعة", "3"], ["2017", "מרץ"])).splitlines()
    assert lines[0].startswith("\u200e")
    assert lines[3].startswith("\u200e")
    assert not lines[1].startswith("\u200e")


def test_long_labels_are_truncated() -> None:
    output = render_record(diagonal_record(["x" * 60, "y"], ["z" * 60, "y"]))
    assert max(cell_len(line) for line in output.splitlines()) < 60
    assert "…" in output
