"""`regard figure`: from a model and a text, or from a record, to a file or the terminal."""

from __future__ import annotations

import json
import xml.etree.ElementTree as tree
from pathlib import Path

import pytest

from regard.cli import run
from regard.view.record.record import Record
from tests.encoders import saved_encoder
from tests.view.samples import whole_record
from tests.view.test_figure import needs_converter

TEXTS = ["two dogs run in the snow", "a man looks at the street"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(whole_record().save(tmp_path_factory.mktemp("record") / "record.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved_encoder(tmp_path_factory.mktemp("encoder") / "model", TEXTS))


def test_the_attention_of_a_model_is_drawn(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figure.svg"
    command = ["figure", folder, TEXTS[0], "--threads", "1"]
    assert run([*command, "--view", "matrix", "--site", "encoder.1.self:0", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["view"], result["out"], result["millimetres"][0]) == ("matrix", str(out), 84.0)
    assert "encoder.1.self:0" in "".join(tree.fromstring(out.read_text()).itertext())
    assert run([*command, "--view", "math", "--token", "dogs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("dogs")
    rows = lines[2 : lines.index("")]
    weights = [float(row.split()[-1]) for row in rows]
    assert sum(weights) == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("ending", ["svg", "tex", "pdf", "png"])
def test_a_record_is_drawn_by_the_ending_of_the_file(saved: str, tmp_path: Path, ending: str) -> None:
    if ending in ("pdf", "png"):
        needs_converter()
    out = tmp_path / f"figure.{ending}"
    assert run(["figure", saved, "--view", "decoding", "--width", "page", "--theme", "dark", "--out", str(out)]) == 0
    signatures = {"svg": b"<svg", "tex": b"%", "pdf": b"%PDF", "png": b"\x89PNG"}
    assert out.read_bytes().startswith(signatures[ending])


def test_without_a_file_the_view_is_printed(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["figure", saved, "--view", "prediction"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["tired", "█████▋", "70.0", "%"]
    assert run(["figure", saved, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == Record.read(saved).title


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--view", "matrx"], "unknown view 'matrx' (did you mean matrix?)"),
        (
            ["--out", "figure.gif"],
            "a figure cannot be written as .gif: the extension must be one of .svg, .png, .pdf, .tex",
        ),
        (["--width", "wide"], "width must be column, page or millimetres"),
        (["--site", "decoder.9.cross"], "decoder.cross has no layer 9"),
        (["a text"], "is a record: it has its own text"),
        (["--view", "math", "--layer", "0"], "the record has no queries, keys and values of that head"),
    ],
)
def test_an_error_is_one_message(
    saved: str, arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["figure", saved, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_model_needs_a_text(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["figure", folder]) == 2
    assert "the text is missing: write it after the model" in capsys.readouterr().err
