"""Views in the terminal: as wide as asked, without signs that reorder lines, one for every task."""

from __future__ import annotations

import unicodedata

import pytest
from rich.cells import cell_len

from regard.errors import UsageError
from regard.view.terminal_views import TERMINAL_VIEWS, render_view
from tests.view.hostile import hostile_records, hostile_strings
from tests.view.samples import answered_record, sample_record
from tests.view.test_figure import record_for


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("view", TERMINAL_VIEWS)
def test_every_view_fits_the_window(view: str, width: int) -> None:
    lines = render_view(record_for(view), view, width=width).split("\n")
    assert len(lines) > 2
    if view != "align":  # whose names of columns need their place
        assert max(map(cell_len, lines)) <= max(width, 100 if view in ("heads", "hops") else width)


def test_the_row_that_is_asked_for_is_told_with_its_weights() -> None:
    record = sample_record()
    lines = render_view(record, "look", width=80, words=False, token="2017", attention="decoder.cross").split("\n")
    assert lines[0] == "2017 attends to"
    weights = record.attention[0].matrix(1, 2)[0]
    assert float(lines[1].split()[-1]) == pytest.approx(float(weights.max()), abs=0.006)


def test_answers_are_ranked() -> None:
    lines = render_view(answered_record(), width=80).split("\n")
    assert [line.split("  ")[0] for line in lines] == ["animal", "The animal", "(no answer)"]


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no such view: stps \(did you mean steps\?\)"):
        render_view(sample_record(), "stps", width=80)


@pytest.mark.parametrize("view", ["align", "look", "heads", "steps", "beams", "verdict"])
def test_no_sign_moves_the_cursor_or_turns_the_line(view: str) -> None:
    for record in hostile_records(hostile_strings(), each=100):
        text = render_view(record, view, width=100, words=False).replace("\n", "").replace("\u200e", "")
        assert not [sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp", "Cs")]
