"""Figures: what is drawn is what was recorded, in any view, width and theme; and what was cut is said."""

from __future__ import annotations

import re
import struct
import sys
import warnings
import xml.etree.ElementTree as tree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from regard.errors import UsageError
from regard.view.drawing import Grid, TextLine
from regard.view.figure import FIGURE_VIEWS, Figure, default_view, figure
from regard.view.figures.flow import rollout, rollout_steps
from regard.view.figures.hops import hop_weights
from regard.view.palette import LEVELS, weight_levels
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from regard.view.selection import select_attention
from tests.view.hostile import hostile_records, hostile_strings
from tests.view.samples import answered_record, distributions, sample_record, whole_record

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {"svg", "title", "desc", "rect", "path", "circle", "text", "g"}


def told_record() -> Record:
    """Two hops over three sentences."""
    side = RecordText.from_labels("a b c", ["Mary went home.", "John slept.", "Mary sat."])
    hops = np.array([[[[0.75, 0.0, 0.25]]], [[[0.1, 0.2, 0.7]]]], dtype=np.float32)
    question = RecordText.from_labels("Where is Mary?", ["Where is Mary?"])
    seen = AttentionRecord("hop", "question", "source", hops, (0, 1))
    return Record("Where is Mary?", {"source": side, "question": question}, (seen,), task="stories")


def needs_converter() -> None:
    """Skip where CairoSVG, or the library that it needs, is not there."""
    try:
        import cairosvg  # noqa: F401
    except (ImportError, OSError) as error:
        pytest.skip(f"CairoSVG cannot be used here ({error}): no PNG, no PDF")


def record_for(view: str) -> Record:
    return told_record() if view == "hops" else whole_record()


def words_of(made: Figure) -> list[str]:
    return [mark.text for mark in made.drawing.marks if isinstance(mark, TextLine)]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", FIGURE_VIEWS)
def test_every_view_is_a_drawing_that_keeps_text_and_stays_on_its_paper(view: str, theme: str) -> None:
    made = figure(record_for(view), view, theme=theme)
    root = tree.fromstring(made.svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= DRAWN
    assert root.get("width") == "84mm"
    left, top, width, height = map(float, (root.get("viewBox") or "").split())
    assert (left, top) == (-2, -2)
    assert 30 < height < 700
    for element in root.iter(f"{SVG}text"):
        assert -2 <= float(element.get("x", 0)) <= width, element.text
        assert float(element.get("y", 0)) <= height, element.text
    assert len(list(root.iter(f"{SVG}text"))) > 5
    assert (
        re.search(r"raw|Probability|log-probability|full at|relative to", " ".join(words_of(made))) or view == "verdict"
    )


def test_light_and_dark_have_grounds_of_their_own_and_zero_is_the_ground() -> None:
    light, dark = (figure(sample_record(), "align", theme=theme).svg for theme in ("light", "dark"))
    assert 'fill="#ffffff"/>' in light and 'fill="#13151a"/>' in dark
    assert "#ffffff" not in dark


def test_shades_are_the_weights() -> None:
    record = sample_record()
    made = figure(record, "align", words=True, attention="decoder.cross", layer=0, head=1)
    table = select_attention(record, "decoder.0.cross:1", words=True).table
    grid = next(mark for mark in made.drawing.marks if isinstance(mark, Grid))
    assert np.array_equal(grid.levels, weight_levels(table))
    assert np.allclose(table.sum(axis=1), 1, atol=1e-5)
    assert np.abs(np.square(grid.levels / LEVELS) - table).max() < 0.04
    drawn = tree.fromstring(made.svg).find(f".//{SVG}g")
    assert drawn is not None
    cells = sum(len(re.findall("M", path.get("d") or "")) for path in drawn)
    assert cells == int((grid.levels > 0).sum())  # nothing is drawn for zero


def test_the_best_head_is_shown_first_and_a_mean_where_none_is_known() -> None:
    assert "decoder.1.cross:2, best alignment head" in " ".join(words_of(figure(sample_record(), "align")))
    plain = replace(sample_record(), best=None)
    assert "decoder.1.cross, mean of 3 heads" in " ".join(words_of(figure(plain, "align")))


def test_a_head_that_aligns_one_step_later_is_read_then() -> None:
    record = replace(sample_record(), view={"shift": 1})
    chosen, plain = select_attention(record), select_attention(sample_record())
    assert np.array_equal(chosen.table[:-2], plain.table[1:-1])
    assert not chosen.table[-1].any()  # the end mark is never given to the decoder
    assert "read when a token is the next step" in " ".join(words_of(figure(record, "align")))
    assert np.array_equal(
        select_attention(record, "decoder.0.cross:2").table,
        select_attention(sample_record(), "decoder.0.cross:2").table,
    )


@pytest.mark.parametrize("width, shown", [("column", 84), ("page", 174), (120, 120), ("100mm", 100)])
def test_widths_are_those_of_papers(width: str | float, shown: float) -> None:
    assert figure(sample_record(), "align", width=width).millimetres[0] == pytest.approx(shown, abs=0.1)


@pytest.mark.parametrize(
    "wish, message",
    [
        ({"view": "algin"}, r"no such view: algin \(did you mean align\?\)"),
        ({"width": "collumn"}, r"width must be column, page or millimetres, not 'collumn' \(did you mean column\?\)"),
        ({"width": 5}, "width must be 40 to 1000 millimetres, not 5"),
        ({"theme": "drak"}, r"theme must be one of light, dark, not 'drak' \(did you mean dark\?\)"),
        ({"norm": "rows"}, r"norm must be one of raw, row, content, not 'rows' \(did you mean row\?\)"),
        ({"attention": "decoder.crss"}, r"no decoder.crss: it has .* \(did you mean decoder.cross\?\)"),
        ({"layer": 7}, "decoder.cross has no layer 7"),
        ({"layer": 1, "head": 9}, "decoder.cross has no head 9"),
        ({"attention": "decoder.1.cross:0", "layer": 0}, "names layer 1, but layer 0 is requested"),
        ({"view": "look", "token": "2071"}, "there is no row 2071"),
        ({"view": "look", "token": "nothing"}, "no row is labelled 'nothing'"),
        ({"view": "hops"}, "the record has no hops"),
    ],
)
def test_what_there_is_not_is_refused(wish: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        figure(sample_record(), **{"view": "align", **wish})  # type: ignore[arg-type]


@pytest.mark.parametrize("view", ["steps", "beams", "maths", "place", "verdict"])
def test_a_view_without_its_numbers_says_what_is_missing(view: str) -> None:
    with pytest.raises(UsageError, match="the record has no"):
        figure(sample_record(), view)


def test_a_record_is_first_shown_by_what_it_is() -> None:
    assert default_view(sample_record()) == "align"
    assert default_view(answered_record()) == "verdict"
    assert default_view(told_record()) == "hops"
    assert default_view(replace(sample_record(), view={"view": "heads"})) == "heads"


def test_normalised_rows_are_named_below() -> None:
    record = sample_record()
    by_row = select_attention(record, "encoder.0.self:0", norm="row")
    assert np.allclose(by_row.table.max(axis=1), 1)
    content = select_attention(record, "encoder.0.self:0", norm="content")
    assert np.allclose(content.table[:, -1], 0) and np.allclose(content.table.sum(axis=1), 1, atol=1e-5)
    assert "relative to the largest of its row" in " ".join(words_of(figure(record, "align", norm="row"))).replace(
        "'", "’"
    )


@pytest.mark.parametrize("count, note", [(60, "every 2nd token is labelled"), (1500, "columns 1 to")])
def test_long_texts_are_drawn_as_far_as_they_fit_and_the_rest_is_said(count: int, note: str) -> None:
    side = RecordText.from_subwords("x", [f"t{number}" for number in range(count)], range(count))
    seen = AttentionRecord("encoder.self", "source", "source", np.eye(count, dtype=np.float32)[None, None], (0,))
    made = figure(Record("x", {"source": side}, (seen,)), "align")
    assert any(note in one for one in made.notes), made.notes
    assert note in " ".join(words_of(made)).replace("Every", "every").replace("Columns", "columns")
    assert len(made.svg) < 400_000


def test_names_that_are_too_long_end_in_an_ellipsis_and_a_note_says_so() -> None:
    made = figure(sample_record(source="Donaudampfschifffahrtsgesellschaftskapitän fuhr"), "align", words=True)
    assert any(word.startswith("Donau") and word.endswith("…") for word in words_of(made))
    assert "“…” marks shortened text" in made.notes


def test_right_to_left_words_keep_their_side() -> None:
    made = figure(sample_record(source="שלום עולם", target="مرحبا بالعالم"), "align", words=True)
    texts = [element for element in tree.fromstring(made.svg).iter(f"{SVG}text") if element.text in ("مرحبا", "שלום")]
    assert [element.get("direction") for element in texts] == ["rtl", "rtl"]
    row = next(element for element in texts if element.text == "مرحبا")
    assert row.get("text-anchor", "start") == "start"  # of a line from the right, the start is its right end


def test_what_reaches_a_token_adds_up_and_follows_the_layers() -> None:
    record = sample_record()
    seen = record["encoder.self"]
    tokens = select_attention(record, "encoder.self").columns
    passed = rollout_steps(seen, tokens)
    reach = rollout(passed, 2)
    assert np.allclose(reach.sum(axis=1), 1, atol=1e-5)
    means = [0.5 * np.eye(len(tokens)) + 0.5 * seen.weights[layer].mean(axis=0) for layer in (0, 1)]
    assert np.allclose(reach[0], (means[1] @ means[0])[2], atol=1e-5)


def test_hops_are_shares_of_sentences() -> None:
    sentences, shares = hop_weights(told_record())
    assert sentences[0] == "Mary went home." and shares.shape == (2, 3)
    assert {".75", ".70", "Where is Mary?"} <= set(words_of(figure(told_record(), "hops")))


def test_spans_show_curves_and_ranked_answers() -> None:
    words = words_of(figure(answered_record(), "verdict"))
    assert {"start", "end", "animal", "The animal", "(no answer)", "80.0 %"} <= set(words)


@pytest.mark.parametrize("view", ["align", "look", "heads", "steps", "beams", "place", "verdict", "flow"])
def test_hostile_texts_stay_text(view: str) -> None:
    for record in hostile_records(hostile_strings(), each=25):
        if view == "flow":
            seen = replace(record.attention[0], columns="source", kept=distributions((1, 2, 25, 25), 1))
            record = replace(record, attention=(seen,))
        root = tree.fromstring(figure(record, view, words=False).svg)
        for element in root.iter():
            assert element.tag.removeprefix(SVG) in DRAWN
            assert not [name for name in element.attrib if name.startswith("on") or "href" in name]


def test_png_and_pdf(tmp_path: Path) -> None:
    needs_converter()
    made = figure(sample_record(), "align")
    png = made.save(tmp_path / "figure.png", dpi=150).read_bytes()
    assert png.startswith(b"\x89PNG")
    wide, tall = struct.unpack(">II", png[16:24])
    assert wide == pytest.approx(150 * 84 / 25.4, abs=2)
    assert tall == pytest.approx(150 * made.millimetres[1] / 25.4, abs=2)
    pdf = made.save(tmp_path / "figure.PDF").read_bytes()
    assert pdf.startswith(b"%PDF") and b"/Font" in pdf


@pytest.mark.parametrize("ending", ["png", "pdf"])
@pytest.mark.parametrize(
    ("source", "scripts"),
    [
        ("नमस्ते दुनिया", "Devanagari"),
        ("سلام عليكم", "Arabic"),
        ("שלום עולם", "Hebrew"),
        ("日本 です", "CJK, Hiragana"),
    ],
)
def test_svg_is_recommended_once_for_complex_scripts(source: str, scripts: str, ending: str, tmp_path: Path) -> None:
    needs_converter()
    with pytest.warns(UserWarning) as caught:
        figure(sample_record(source=source), "align", words=True).save(tmp_path / f"figure.{ending}", dpi=40)
    assert [str(warning.message) for warning in caught] == [
        f"PNG and PDF are drawn without shaping: letters of {scripts} may be missing, unjoined or in the wrong order; "
        "write .svg for them"
    ]


def test_nothing_is_said_of_scripts_that_are_drawn_well(tmp_path: Path) -> None:
    needs_converter()
    drawn = figure(sample_record(source="Ångström Ωμέγα Москва tiếng"), "align", words=True)
    shaped = figure(sample_record(source="سلام عليكم"), "align", words=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn.save(tmp_path / "figure.png", dpi=40)
        shaped.save(tmp_path / "figure.svg")
    assert 'direction="rtl"' in (tmp_path / "figure.svg").read_text("utf-8")


def test_without_cairosvg_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(UsageError, match=r"pip install 'regard\[figures\]', or write .svg or .tex"):
        figure(sample_record(), "align").save(tmp_path / "figure.png")


@pytest.mark.parametrize(
    "name, message", [("x.gif", "as .gif: the extension must be one of"), ("x", "a file without an extension")]
)
def test_other_endings_are_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        figure(sample_record(), "align").save(tmp_path / name)
    assert not list(tmp_path.iterdir())
