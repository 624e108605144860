"""Views in the terminal: they fit the width, print no control characters, and cover every task."""

from __future__ import annotations

import unicodedata

import pytest
from rich.cells import cell_len

from regard.components import VIEWS
from regard.errors import UsageError
from regard.view.terminal_views import render_view
from tests.view.hostile import hostile_records, hostile_strings
from tests.view.samples import answered_record, sample_record
from tests.view.test_figure import record_for

TERMINAL_VIEWS = [name for name, view in VIEWS.items() if view.render is not None]


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("view", TERMINAL_VIEWS)
def test_every_view_fits_the_terminal(view: str, width: int) -> None:
    lines = render_view(record_for(view), view, width=width).split("\n")
    assert len(lines) > 2
    if view != "matrix":  # its column labels need more
        min_width = 100 if view in ("heads", "hops") else width
        assert max(map(cell_len, lines)) <= max(width, min_width)


def test_the_requested_row_is_shown_with_its_weights() -> None:
    record = sample_record()
    lines = render_view(record, "lines", width=80, words=False, token="2017", attention="decoder.cross").split("\n")
    assert lines[0] == "2017 attends to"
    weights = record.attention[0].matrix(1, 2)[0]
    assert float(lines[1].split()[-1]) == pytest.approx(float(weights.max()), abs=0.006)


def test_answers_are_ranked_by_probability() -> None:
    lines = render_view(answered_record(), width=80).split("\n")
    assert [line.split("  ")[0] for line in lines] == ["animal", "The animal", "(no answer)"]


def test_an_unknown_view_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"unknown view 'decodng' \(did you mean decoding\?\)"):
        render_view(sample_record(), "decodng", width=80)


@pytest.mark.parametrize("view", ["matrix", "lines", "heads", "decoding", "beam-tree", "prediction"])
def test_no_character_moves_the_cursor_or_reorders_the_line(view: str) -> None:
    for record in hostile_records(hostile_strings(), each=100):
        output = render_view(record, view, width=100, words=False).replace("\n", "").replace("\u200e", "")
        control_categories = ("Cc", "Cf", "Zl", "Zp", "Cs")
        assert not [character for character in output if unicodedata.category(character) in control_categories]
