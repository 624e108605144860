"""`--off` in every verb that runs a model, and `regard heads` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import workload
from regard import cli
from regard.checkpoint.model_dir import save_translator
from regard.config.inference import DecodingConfig
from regard.data.synthetic import generate_rows
from regard.engine.library import unavailable_reason
from regard.view.record.parts import METHODS
from regard.view.record.record import Record
from tests.encoders import saved_encoder
from tests.engine.conftest import translator

TEXTS = ["the cat sat on the mat", "a dog ran over the hill", "the dog sat"]
RUNNING = (
    "translate",
    "classify",
    "tag",
    "answer",
    "fill",
    "embed",
    "generate",
    "evaluate",
    "score",
    "similar",
    "heads",
    "see",
    "figure",
)


@pytest.fixture(scope="module")
def translating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words, model = workload.build_tokenizer(97), translator(output_bias=True)
    place = tmp_path_factory.mktemp("models") / "plain"
    tokenizers = {"source": words, "target": words}
    settings: dict[str, Any] = {"decoding": DecodingConfig(beam=1), "task": {}, "card": "# x\n"}
    save_translator(place, model.config, model.state_dict(), tokenizers=tokenizers, **settings)
    return place


def test_every_verb_that_runs_a_model_can_switch_heads_off() -> None:
    for verb in RUNNING:
        command = cli.regard.get_command(None, verb)  # type: ignore[arg-type]
        assert command is not None
        assert any("--off" in option.opts for option in command.params), verb


def test_translations_change_and_the_engine_hands_over(translating: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(workload.draw_texts([9], 97))
    wanted = ["translate", str(translating), text, "--no-split", "--max-length-a", "1", "--json"]
    assert cli.run(wanted) == 0
    plain = capsys.readouterr()
    sites = [f"decoder.{layer}.{kind}" for layer in (0, 1) for kind in ("self", "cross")]
    assert cli.run([*wanted, "--off", ",".join(sites[:2]), "--off", sites[2], "--off", f"{sites[3]}:0"]) == 0
    changed = capsys.readouterr()
    assert changed.out != plain.out
    assert ("torch computes" in changed.err) == (not unavailable_reason())
    assert "torch computes" not in plain.err
    assert cli.run([*wanted, "--backend", "torch", "--off", sites[0]]) == 0
    assert "torch computes" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("encoder.7.self:0", "did you mean encoder.1.self?"),
        ("decoder.0.cross:4", "did you mean decoder.0.cross:3?"),
        ("encoder", "the model has no encoder"),
        ("encoder.0.self:one", "names no head"),
    ],
)
def test_a_head_that_is_not_there_is_refused_before_anything_is_written(
    translating: Path, capsys: pytest.CaptureFixture[str], head: str, message: str
) -> None:
    assert cli.run(["translate", str(translating), "w1 w2", "--off", head]) == 2
    said = capsys.readouterr()
    assert message in said.err and not said.out


def test_vectors_and_scores(translating: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = saved_encoder(tmp_path / "encoder", TEXTS)
    found = []
    for more in ([], ["--off", "encoder.0.self:1"]):
        assert cli.run(["embed", str(encoder), TEXTS[0], "--json", "--threads", "1", *more]) == 0
        found.append(json.loads(capsys.readouterr().out)["vector"])
    assert np.abs(np.subtract(*found)).max() > 1e-4
    pairs = tmp_path / "pairs.tsv"
    rows = workload.draw_texts([5, 3, 4, 6], 97)
    pairs.write_text(f"{rows[0]}\t{rows[1]}\n{rows[2]}\t{rows[3]}\n", "utf-8")
    lines = []
    for more in ([], ["--off", "encoder.0.self:1"]):
        assert cli.run(["score", str(translating), str(pairs), "--threads", "1", *more]) == 0
        lines.append(capsys.readouterr().out)
    assert lines[0] != lines[1]
    for verb in ("evaluate",):
        assert cli.run([verb, str(translating), str(pairs), "--beam", "1", "--json", "--off", "decoder.1.cross"]) == 0
        assert json.loads(capsys.readouterr().out)["sentences"] == 2


def test_heads_as_a_table_a_page_and_lines(
    translating: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = workload.draw_texts([5, 3, 4, 6, 7, 2], 97)
    pairs, links = tmp_path / "pairs.tsv", tmp_path / "links.txt"
    pairs.write_text("".join(f"{rows[place]}\t{rows[place + 1]}\n" for place in (0, 2, 4)), "utf-8")
    links.write_text("0-0 1-1\n0-0\n1-0\n")
    wanted = ["heads", str(translating), str(pairs), "--sample", "3", "--threads", "1"]
    assert cli.run([*wanted, "--alignment", str(links), "--all"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"20 heads of {translating} ablated one by one on 3 of 3 sentences of pairs.tsv")
    assert "best aligning head: decoder." in said.out and "alignment error" in said.out
    assert sum(line.startswith(("encoder.", "decoder.")) for line in said.out.splitlines()) == 20
    assert cli.run([*wanted, "--json", "--metric", "bleu", "--out", str(tmp_path / "heads.html")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["metric"] == "bleu" and len(facts["heads"]) == 20 and facts["sample"] == 3
    assert (tmp_path / "heads.html").read_text("utf-8").startswith("<!doctype html>")
    assert cli.run([*wanted, "--out", str(tmp_path / "heads.tsv")]) == 0
    assert len((tmp_path / "heads.tsv").read_text("utf-8").splitlines()) == 21
    capsys.readouterr()
    for wrong, message in (
        (["--metric", "blu"], "did you mean bleu?"),
        (["--out", str(tmp_path / "heads.pdf")], "is written as .html, .json, .tsv"),
        (["--alignment", str(pairs)], "pairs.tsv:1"),
    ):
        assert cli.run([*wanted, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_a_record_with_reasons(translating: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, place = " ".join(workload.draw_texts([4], 97)), tmp_path / "record.json"
    wanted = ["see", str(translating), text, "--out", str(place), "--threads", "1"]
    assert cli.run([*wanted, "--attribution", "--importance"]) == 0
    record = Record.read(place)
    assert [one.method for one in record.attribution] == list(METHODS)
    assert all(len(one.values) == len(record.texts["source"].tokens) for one in record.attribution)
    importance = record["decoder.cross"].importance
    assert importance is not None and np.shape(importance["by"]) == (2, 4)
    encoder = saved_encoder(tmp_path / "encoder", TEXTS)
    assert cli.run(["see", str(encoder), TEXTS[0], "--importance", "--out", str(place)]) == 0
    found = Record.read(place)["encoder.self"].importance
    assert found is not None and found["metric"] == "1 − cosine" and min(map(min, found["by"])) > 0
    capsys.readouterr()
    assert cli.run(["see", str(encoder), TEXTS[0], "--attribution", "--out", str(place)]) == 2
    assert "attribution is for labels" in capsys.readouterr().err


def test_made_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, links = tmp_path / "spoken.tsv", tmp_path / "links.txt"
    assert cli.run(["data", "make", "spoken", "--count", "20", "--out", str(out), "--alignment", str(links)]) == 0
    rows = list(generate_rows("spoken", 20))
    assert out.read_text("utf-8").splitlines() == [f"{row.source}\t{row.target}" for row in rows]
    assert links.read_text().splitlines() == [" ".join(f"{a}-{b}" for a, b in row.links) for row in rows]
    assert cli.run(["data", "make", "copy", "--count", "2", "--out", str(out), "--alignment", str(links)]) == 2
    assert "not known" in capsys.readouterr().err
