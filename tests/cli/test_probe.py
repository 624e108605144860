"""`regard probe` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.cli import run
from tests.encoders import saved_encoder
from tests.task_data import write_task_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_task_data(tmp_path_factory.mktemp("probe"))
    lines = (folder / "tags.conll").read_text().splitlines()
    columns = [f"{line} {len(line) % 3}" if line else "" for line in lines]
    (folder / "columns.conll").write_text("\n".join(columns))
    return folder


def test_a_report_has_every_form(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["probe", str(folder / "encoder"), str(folder / "columns.conll"), "--threads", "1", "--sample", "50"]
    out = {suffix: folder / f"report.{suffix}" for suffix in ("json", "tsv", "html")}
    for path in out.values():
        assert run([*command, "--label", "2", "--out", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "tags from each layer of" in printed and "baselines: " in printed and "best layer: " in printed
    report = json.loads(out["json"].read_text())
    assert [layer["layer"] for layer in report["layers"]] == [0, 1, 2]
    assert (report["train_sentences"], report["test_sentences"], report["labels"]) == (40, 10, ["O", "B-X", "I-X"])
    titles, *rows = [line.split("\t") for line in out["tsv"].read_text().splitlines()]
    assert titles == ["layer", "accuracy %", "low", "high", "control", "selectivity", "gain", "p"]
    assert [row[1] for row in rows] == [f"{layer['score']['value']:.1f}" for layer in report["layers"]]
    page = out["html"].read_text()
    assert page.count("<svg") == 1 and "control task" in page and "<script" not in page
    assert run([*command, "--label", "3", "--target", "depth", "--json"]) == 0
    depths = json.loads(capsys.readouterr().out)
    assert (depths["target"], depths["metric"], depths["labels"]) == ("depth", "R²", [])
    assert depths["layers"] != report["layers"]


def test_a_test_file_is_scored_and_not_trained_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (folder / "tags.conll").read_text().split("\n\n")
    (folder / "test.conll").write_text("\n\n".join(lines[:20]))
    command = ["probe", str(folder / "encoder"), str(folder / "tags.conll"), "--threads", "1", "--json"]
    assert run([*command, "--test", str(folder / "test.conll"), "--target", "position"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["train_sentences"], report["test_sentences"]) == (60, 20)
    assert report["data"] == "tags.conll test.conll"
    assert report["layers"][0]["score"]["value"] > 0.9 > 0.2 > report["word_baseline"]["value"]  # learned positions


def test_ablated_heads_change_the_layers_above_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "probe",
        str(folder / "encoder"),
        str(folder / "tags.conll"),
        "--threads",
        "1",
        "--sample",
        "40",
        "--json",
    ]
    reports = []
    for options in ([], ["--ablate", "encoder.1.self:0"]):
        assert run([*command, "--target", "position", *options]) == 0
        reports.append(json.loads(capsys.readouterr().out)["layers"])
    assert reports[0][:2] == reports[1][:2]
    assert reports[0][2] != reports[1][2]
    assert run([*command, "--ablate", "encoder.7.self:0"]) == 2
    assert "did you mean encoder.1.self" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "depth"], "is not a whole number"),
        (["--target", "position", "--metric", "accuracy"], "the metric accuracy is for tags"),
        (["--metric", "f1"], "no metric 'f1'"),
        (["--source", "FILES"], "sources are for the decoder"),
        (["--side", "decoder"], "encoder"),
        (["--out", "report.png"], "the report is written as .html, .json, .tsv"),
        (["--label", "7"], "no column '7' for --label"),
    ],
)
def test_what_makes_no_sense_is_refused(
    options: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = folder / "sources.txt"
    sources.write_text("a\n" * 80)
    arguments = [str(sources) if option == "FILES" else option for option in options]
    assert run(["probe", str(folder / "encoder"), str(folder / "tags.conll"), "--threads", "1", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_sources_are_one_for_each_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = folder / "three.txt"
    sources.write_text("a\n" * 3)
    command = [
        "probe",
        str(saved_encoder(folder / "other", ["a b c"])),
        str(folder / "tags.conll"),
        "--side",
        "decoder",
    ]
    assert run([*command, "--source", str(sources)]) == 2
    assert "3 lines for 80 sentences: exactly one each is needed" in capsys.readouterr().err
    assert run([*command, "--source", str(sources), "--test", str(folder / "tags.conll")]) == 2
    assert "leave out --test" in capsys.readouterr().err
