"""Figures: weights, labels and notes in every view, width and theme; hostile texts; files in every format."""

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

from regard.components import VIEWS
from regard.errors import UsageError
from regard.view.drawing import Disc, Grid, TextLine
from regard.view.figure import Figure, default_view, figure
from regard.view.figures.flow_figure import rollout, rollout_steps
from regard.view.figures.hops_figure import hop_weights
from regard.view.palette import LEVELS, weight_levels
from regard.view.record.attention import AttentionRecord
from regard.view.record.parts import LabelProbabilities
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from regard.view.selection import select_attention
from regard.view.terminal import EMPTY_MEMORIES
from tests.view.hostile import hostile_records, hostile_strings
from tests.view.samples import (
    HEAD_SIZE,
    answered_record,
    distributions,
    sample_record,
    unscaled_sparse_record,
    whole_record,
)

SVG = "{http://www.w3.org/2000/svg}"
FIGURES = [name for name, view in VIEWS.items() if view.draw is not None]
ALLOWED_TAGS = {"svg", "title", "desc", "rect", "path", "circle", "text", "g"}


def story_record() -> Record:
    """Two hops over three sentences."""
    story = RecordText.from_labels("a b c", ["Mary went home.", "John slept.", "Mary sat."])
    question = RecordText.from_labels("Where is Mary?", ["Where is Mary?"])
    weights = np.array([[[[0.75, 0.0, 0.25]]], [[[0.1, 0.2, 0.7]]]], dtype=np.float32)
    hops = AttentionRecord("hop", "question", "source", weights, (0, 1))
    return Record("Where is Mary?", {"source": story, "question": question}, (hops,), task="story-qa")


def needs_converter() -> None:
    """Skip the test where CairoSVG, or the Cairo library, is not installed."""
    try:
        import cairosvg  # noqa: F401
    except (ImportError, OSError) as error:
        pytest.skip(f"CairoSVG cannot be imported ({error}): no PNG, no PDF")


def record_for(view: str) -> Record:
    """A record that has what a view shows."""
    return story_record() if view == "hops" else whole_record()


def text_lines(drawn: Figure) -> list[str]:
    return [mark.text for mark in drawn.drawing.marks if isinstance(mark, TextLine)]


def text_of(drawn: Figure) -> str:
    return " ".join(text_lines(drawn))


def diagonal_record(num_tokens: int) -> Record:
    """A long text in which every token attends to itself."""
    text = RecordText.from_subwords("x", [f"t{index}" for index in range(num_tokens)], range(num_tokens))
    weights = np.eye(num_tokens, dtype=np.float32)[None, None]
    return Record("x", {"source": text}, (AttentionRecord("encoder.self", "source", "source", weights, (0,)),))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", FIGURES)
def test_every_view_is_an_svg_with_real_text_inside_its_frame(view: str, theme: str) -> None:
    drawn = figure(record_for(view), view, theme=theme)
    root = tree.fromstring(drawn.svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= ALLOWED_TAGS
    assert root.get("width") == "84mm"
    left, top, width, height = map(float, (root.get("viewBox") or "").split())
    assert (left, top) == (-2, -2)
    assert 30 < height < 700
    for element in root.iter(f"{SVG}text"):
        assert -2 <= float(element.get("x", 0)) <= width, element.text
        assert float(element.get("y", 0)) <= height, element.text
    assert len(list(root.iter(f"{SVG}text"))) > 5
    has_scale_note = re.search(r"Raw weight|Probability|log-probability|full colour at|relative to", text_of(drawn))
    assert has_scale_note or view == "prediction"


def test_themes_have_their_own_background_which_is_the_colour_of_zero() -> None:
    light = figure(sample_record(), "matrix", theme="light").svg
    dark = figure(sample_record(), "matrix", theme="dark").svg
    assert 'fill="#ffffff"/>' in light
    assert 'fill="#13151a"/>' in dark
    assert "#ffffff" not in dark


def test_shades_encode_the_weights() -> None:
    record = sample_record()
    drawn = figure(record, "matrix", words=True, attention="decoder.cross", layer=0, head=1)
    table = select_attention(record, "decoder.0.cross:1", words=True).table
    grid = next(mark for mark in drawn.drawing.marks if isinstance(mark, Grid))
    assert np.array_equal(grid.levels, weight_levels(table))
    assert np.allclose(table.sum(axis=1), 1, atol=1e-5)
    assert np.abs(np.square(grid.levels / LEVELS) - table).max() < 0.04
    cell_paths = tree.fromstring(drawn.svg).find(f".//{SVG}g")
    assert cell_paths is not None
    num_cells = sum(len(re.findall("M", path.get("d") or "")) for path in cell_paths)
    assert num_cells == int((grid.levels > 0).sum())  # nothing is drawn for zero


def test_the_best_head_is_shown_first_or_the_mean_of_the_last_layer() -> None:
    assert "decoder.1.cross:2, best alignment head" in text_of(figure(sample_record(), "matrix"))
    without_best = replace(sample_record(), best=None)
    assert "decoder.1.cross, mean of 3 heads" in text_of(figure(without_best, "matrix"))


def test_a_head_that_aligns_the_decoder_input_is_shifted_by_one_row() -> None:
    record = replace(sample_record(), view={"shift": 1})
    shifted = select_attention(record)
    unshifted = select_attention(sample_record())
    assert np.array_equal(shifted.table[:-2], unshifted.table[1:-1])
    assert not shifted.table[-1].any()  # the decoder never reads the end token
    assert "read when a token is the next step" in text_of(figure(record, "matrix"))
    assert np.array_equal(
        select_attention(record, "decoder.0.cross:2").table,
        select_attention(sample_record(), "decoder.0.cross:2").table,
    )


@pytest.mark.parametrize("width, millimetres", [("column", 84), ("page", 174), (120, 120), ("100mm", 100)])
def test_widths_are_columns_pages_or_millimetres(width: str | float, millimetres: float) -> None:
    assert figure(sample_record(), "matrix", width=width).millimetres[0] == pytest.approx(millimetres, abs=0.1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"view": "matrx"}, r"unknown view 'matrx' \(did you mean matrix\?\)"),
        ({"width": "collumn"}, r"width must be column, page or millimetres, not 'collumn' \(did you mean column\?\)"),
        ({"width": 5}, "width must be 40 to 1000 millimetres, not 5"),
        ({"theme": "drak"}, r"theme must be one of light, dark, not 'drak' \(did you mean dark\?\)"),
        ({"norm": "rows"}, r"norm must be one of raw, row, content, not 'rows' \(did you mean row\?\)"),
        ({"attention": "decoder.crss"}, r"no decoder.crss: it has .* \(did you mean decoder.cross\?\)"),
        ({"layer": 7}, "decoder.cross has no layer 7"),
        ({"layer": 1, "head": 9}, "decoder.cross has no head 9"),
        ({"attention": "decoder.1.cross:0", "layer": 0}, "names layer 1, but layer 0 is requested"),
        ({"view": "lines", "token": "2071"}, "there is no row 2071"),
        ({"view": "lines", "token": "nothing"}, "no row is labelled 'nothing'"),
        ({"view": "hops"}, "the record has no hops"),
    ],
)
def test_invalid_arguments_are_refused_with_a_suggestion(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        figure(sample_record(), **{"view": "matrix", **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("view", ["decoding", "beam-tree", "math", "positions", "prediction"])
def test_a_view_names_the_part_that_the_record_lacks(view: str) -> None:
    with pytest.raises(UsageError, match="the record has no"):
        figure(sample_record(), view)


def test_the_default_view_depends_on_the_record() -> None:
    assert default_view(sample_record()) == "matrix"
    assert default_view(answered_record()) == "prediction"
    assert default_view(story_record()) == "hops"
    assert default_view(replace(sample_record(), view={"view": "heads"})) == "heads"


def test_normalised_rows_are_explained_in_a_note() -> None:
    record = sample_record()
    by_row = select_attention(record, "encoder.0.self:0", norm="row")
    assert np.allclose(by_row.table.max(axis=1), 1)
    content = select_attention(record, "encoder.0.self:0", norm="content")
    assert np.allclose(content.table[:, -1], 0)
    assert np.allclose(content.table.sum(axis=1), 1, atol=1e-5)
    assert "relative to the largest of its row" in text_of(figure(record, "matrix", norm="row"))


@pytest.mark.parametrize("num_tokens, note", [(60, "every 2nd token is labelled"), (1500, "columns 1 to")])
def test_long_texts_are_drawn_in_part_and_a_note_names_the_rest(num_tokens: int, note: str) -> None:
    drawn = figure(diagonal_record(num_tokens), "matrix")
    assert any(note in drawn_note for drawn_note in drawn.notes), drawn.notes
    assert note in text_of(drawn).replace("Every", "every").replace("Columns", "columns")
    assert len(drawn.svg) < 400_000


def test_long_labels_end_in_an_ellipsis_and_a_note_explains_it() -> None:
    drawn = figure(sample_record(source="Donaudampfschifffahrtsgesellschaftskapitän fuhr"), "matrix", words=True)
    assert any(line.startswith("Donau") and line.endswith("…") for line in text_lines(drawn))
    assert "“…” marks shortened text" in drawn.notes


def test_right_to_left_labels_keep_their_direction_and_alignment() -> None:
    drawn = figure(sample_record(source="שלום עולם", target="مرحبا بالعالم"), "matrix", words=True)
    texts = tree.fromstring(drawn.svg).iter(f"{SVG}text")
    labels = [element for element in texts if element.text in ("مرحبا", "שלום")]
    assert [element.get("direction") for element in labels] == ["rtl", "rtl"]
    row_label = next(element for element in labels if element.text == "مرحبا")
    assert row_label.get("text-anchor", "start") == "start"  # a right-to-left line starts at its right end


def test_rollout_rows_are_distributions_and_multiply_the_layers() -> None:
    record = sample_record()
    attention = record["encoder.self"]
    tokens = select_attention(record, "encoder.self").columns
    steps = rollout_steps(attention, tokens)
    token_rollout = rollout(steps, 2)
    assert np.allclose(token_rollout.sum(axis=1), 1, atol=1e-5)
    layers = [0.5 * np.eye(len(tokens)) + 0.5 * attention.weights[layer].mean(axis=0) for layer in (0, 1)]
    assert np.allclose(token_rollout[0], (layers[1] @ layers[0])[2], atol=1e-5)


def test_the_rollout_of_a_model_without_residual_connections_is_its_attention() -> None:
    record = unscaled_sparse_record()
    attention = record["encoder.self"]
    tokens = select_attention(record, "encoder.self").columns
    layers = [attention.weights[layer].mean(axis=0) for layer in (0, 1)]
    flow = rollout(rollout_steps(attention, tokens), 2)
    assert np.allclose(flow[0], (layers[1] @ layers[0])[2], atol=1e-5)
    assert "without residual connections" in text_of(figure(record, "flow"))
    assert "passed on by the residual connection" in text_of(figure(sample_record(), "flow"))


def test_the_steps_of_the_computation_are_named_after_the_model() -> None:
    record = unscaled_sparse_record()
    (head,) = record.qkv
    lines = text_lines(figure(record, "math", token=0))
    assert {"query · key", "no scaling + bias", "sparsemax", ".75", ".25"} <= set(lines)
    assert not any("√" in line or "softmax" in line for line in lines)
    assert record.texts["source"].tokens[2] == "al" and "al" not in lines  # the masked key
    other_score = replace(record, qkv=(replace(head, scale=None, temperature=2.0),))
    lines = text_lines(figure(other_score, "math", token=0))
    assert {"score", "× 0.5"} <= set(lines) and "query · key" not in lines
    scaled = text_lines(figure(whole_record(), "math", token=0))
    assert {"query · key", f"÷ √{HEAD_SIZE}", "softmax"} <= set(scaled)


def test_a_query_whose_keys_are_all_masked_is_refused() -> None:
    record = unscaled_sparse_record()
    (head,) = record.qkv
    masked = replace(head, scores=np.full_like(head.scores, -np.inf), weights=np.zeros_like(head.weights))
    with pytest.raises(UsageError, match="the mask hides all keys of query 0"):
        figure(replace(record, qkv=(masked,)), "math", token=0)


def test_the_message_about_missing_encodings_is_true_for_every_model() -> None:
    with pytest.raises(UsageError, match="no positional encodings: .* ALiBi and relative positions"):
        figure(sample_record(), "positions")


def test_hops_are_weights_over_sentences() -> None:
    sentences, weights = hop_weights(story_record())
    assert sentences[0] == "Mary went home."
    assert weights.shape == (2, 3)
    assert {".75", ".70", "Where is Mary?"} <= set(text_lines(figure(story_record(), "hops")))


def test_empty_memories_have_no_number() -> None:
    record = story_record()
    story = RecordText.from_labels("a b c", [*record.texts["source"].tokens[:2], EMPTY_MEMORIES])
    lines = text_lines(figure(replace(record, texts={**record.texts, "source": story}), "hops"))
    assert lines[lines.index(EMPTY_MEMORIES) - 1] == "–"
    assert "2" in lines and "3" not in lines


def test_short_labels_of_a_prediction_are_not_shortened() -> None:
    prediction = LabelProbabilities(("bad", "good"), (0.25, 0.75))
    assert text_lines(figure(Record("", {}, (), prediction=prediction), "prediction"))[0] == "good"


def test_the_largest_weight_of_a_row_has_a_dot_unless_several_are_equal() -> None:
    text = RecordText("a b", ("a", "b"), (0, 1))
    weights = np.array([[[[0.5, 0.5], [0.9, 0.1]]]], dtype=np.float32)
    attention = AttentionRecord("encoder.self", "source", "source", weights, (0,))
    dots = [
        mark
        for mark in figure(Record("", {"source": text}, (attention,)), "matrix").drawing.marks
        if isinstance(mark, Disc)
    ]
    assert len(dots) == 1


def test_answers_show_start_and_end_curves_and_a_ranking() -> None:
    lines = text_lines(figure(answered_record(), "prediction"))
    assert {"start", "end", "animal", "The animal", "(no answer)", "80.0 %"} <= set(lines)


@pytest.mark.parametrize(
    "view", ["matrix", "lines", "heads", "decoding", "beam-tree", "positions", "prediction", "flow"]
)
def test_hostile_texts_stay_text(view: str) -> None:
    for record in hostile_records(hostile_strings(), each=25):
        if view == "flow":
            self_attention = replace(record.attention[0], columns="source", stored=distributions((1, 2, 25, 25), 1))
            record = replace(record, attention=(self_attention,))
        root = tree.fromstring(figure(record, view, words=False).svg)
        for element in root.iter():
            assert element.tag.removeprefix(SVG) in ALLOWED_TAGS
            assert not [name for name in element.attrib if name.startswith("on") or "href" in name]


def test_png_has_the_requested_resolution_and_pdf_keeps_fonts(tmp_path: Path) -> None:
    needs_converter()
    drawn = figure(sample_record(), "matrix")
    png = drawn.save(tmp_path / "figure.png", dpi=150).read_bytes()
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert width == pytest.approx(150 * 84 / 25.4, abs=2)
    assert height == pytest.approx(150 * drawn.millimetres[1] / 25.4, abs=2)
    pdf = drawn.save(tmp_path / "figure.PDF").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"/Font" in pdf


@pytest.mark.parametrize("extension", ["png", "pdf"])
@pytest.mark.parametrize(
    ("source", "scripts"),
    [
        ("नमस्ते दुनिया", "Devanagari"),
        ("سلام عليكم", "Arabic"),
        ("שלום עולם", "Hebrew"),
        ("日本 です", "CJK, Hiragana"),
    ],
)
def test_svg_is_recommended_once_for_complex_scripts(source: str, scripts: str, extension: str, tmp_path: Path) -> None:
    needs_converter()
    with pytest.warns(UserWarning) as caught:
        figure(sample_record(source=source), "matrix", words=True).save(tmp_path / f"figure.{extension}", dpi=40)
    assert [str(warning.message) for warning in caught] == [
        f"PNG and PDF are drawn without shaping: letters of {scripts} may be missing, unjoined or in the wrong order; "
        "write .svg for them"
    ]


def test_there_is_no_warning_for_simple_scripts_or_for_svg(tmp_path: Path) -> None:
    needs_converter()
    simple = figure(sample_record(source="Ångström Ωμέγα Москва tiếng"), "matrix", words=True)
    arabic = figure(sample_record(source="سلام عليكم"), "matrix", words=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simple.save(tmp_path / "figure.png", dpi=40)
        arabic.save(tmp_path / "figure.svg")
    assert 'direction="rtl"' in (tmp_path / "figure.svg").read_text("utf-8")


def test_without_cairosvg_the_message_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(UsageError, match=r"pip install 'regard\[figures\]', or write .svg or .tex"):
        figure(sample_record(), "matrix").save(tmp_path / "figure.png")


@pytest.mark.parametrize(
    "name, message", [("x.gif", "as .gif: the extension must be one of"), ("x", "a file without an extension")]
)
def test_unknown_extensions_are_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        figure(sample_record(), "matrix").save(tmp_path / name)
    assert not list(tmp_path.iterdir())
