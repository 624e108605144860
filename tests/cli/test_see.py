"""`regard see` from the command line: output formats, saved records, ablation, and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from regard import cli
from regard.view.record.record import Record
from tests.encoders import saved_encoder

TEXT = "two small dogs run home"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved_encoder(tmp_path_factory.mktemp("see") / "model", [TEXT, "the old cat sleeps"]))


def test_attention_is_written_in_every_format(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    assert cli.run(["see", folder, TEXT, "--out", str(path), "--threads", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["out"] == str(path)
    record = Record.read(path)
    assert record.attention[0].shape == (2, 2, 7, 7) and record.task == "embed"
    assert record.provenance["model"] == "model" and record.provenance["version"] and record.qkv
    heads = ["--heads", "encoder.0.self:1", "--view", "lines"]
    for ending in (".html", ".svg", ".tex"):
        assert cli.run(["see", str(path), "--out", str(tmp_path / f"x{ending}"), *heads]) == 0
        assert (tmp_path / f"x{ending}").stat().st_size > 500
    capsys.readouterr()
    assert cli.run(["see", str(path), "--json", "--full-layers", "1", *heads]) == 0
    record_json = json.loads(capsys.readouterr().out)
    assert record_json["view"]["best"] is None
    assert {key: record_json["view"][key] for key in ("attention", "layer", "head", "view")} == {
        "attention": "encoder.self",
        "layer": 0,
        "head": 1,
        "view": "lines",
    }
    assert [block["codec"] for block in record_json["attention"][0]["blocks"]] == ["sparse", "root8"]


def test_heads_of_the_command_line_are_not_the_best_alignment_head(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    assert cli.run(["see", folder, TEXT, "--out", str(path), "--threads", "1"]) == 0
    replace(Record.read(path), best=("encoder.self", 1, 0)).save(path)
    assert cli.run(["see", str(path), "--heads", "encoder.0.self:1", "--out", str(tmp_path / "y.json")]) == 0
    view = json.loads((tmp_path / "y.json").read_text())["view"]
    assert (view["attention"], view["layer"], view["heads"]) == ("encoder.self", 0, [1])
    assert view["best"] == {"attention": "encoder.self", "layer": 1, "head": 0}
    assert Record.read(path).view == {}
    written_again = Record.read(tmp_path / "y.json")
    assert written_again.best == ("encoder.self", 1, 0) and written_again.view["heads"] == [1]
    assert written_again.to_dict()["view"] == view


def test_an_ablated_model_is_compared_with_the_whole_one(folder: str, tmp_path: Path) -> None:
    out = tmp_path / "both.html"
    arguments = ["see", folder, TEXT, "--ablate", "encoder.0.self:1", "--compare", "--threads", "1", "--out", str(out)]
    assert cli.run(arguments) == 0
    assert out.read_text("utf-8").count('"regard":3') == 3  # the page and two records


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["TEXT", "--out", "x.xyz"], "must be one of .html, .json"),
        (["TEXT", "--out", "x.htm"], "did you mean .html?"),
        (["TEXT", "--view", "matrx"], "did you mean matrix?"),
        (["TEXT", "--out", "x.json", "--heads", "encoder.7.self:0"], "did you mean encoder.1.self?"),
        (["TEXT", "--out", "x.json", "--store-qkv", "encoder.0.self:9"], "did you mean encoder.0.self:1?"),
        (["TEXT", "--out", "x.json", "--full-layers", "a"], "numbers separated by commas"),
        (["TEXT", "--out", "x.json", "--compare"], "nothing to compare"),
        (["TEXT", "--ablate", "encoder.5.self:1", "--out", "x.json"], "did you mean encoder.1.self?"),
        ([" ", "--out", "x.json"], "the text is blank"),
        (["--out", "x.json"], "the text is missing"),
    ],
)
def test_an_error_is_one_message(
    folder: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [TEXT if argument == "TEXT" else argument for argument in arguments]
    assert cli.run(["see", folder, *arguments, "--threads", "1"]) == 2
    assert message in capsys.readouterr().err


def test_a_record_that_is_too_large_for_a_file_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.errors import UsageError
    from regard.view import export
    from tests.view.samples import sample_record

    monkeypatch.setattr(export, "MAX_ATTENTION_WEIGHTS", 100)
    with pytest.raises(UsageError, match="too many for one file"):
        export.check_export_size(sample_record())
