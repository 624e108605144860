"""`--ablate` in every verb that runs a model, and `regard heads` as a user types it."""

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
from regard.interpret.head_report import COLUMNS
from regard.registry import TASKS, resolve
from regard.view.record.parts import METHODS
from regard.view.record.record import Record
from tests.encoders import saved_encoder
from tests.engine.conftest import translator

TEXTS = ["the cat sat on the mat", "a dog ran over the hill", "the dog sat"]
MODEL_VERBS = (
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
    "probe",
    "see",
    "figure",
)


@pytest.fixture(scope="module")
def translator_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = workload.build_tokenizer(97)
    model = translator(output_bias=True)
    folder = tmp_path_factory.mktemp("models") / "plain"
    tokenizers = {"source": tokenizer, "target": tokenizer}
    settings: dict[str, Any] = {"decoding": DecodingConfig(beam=1), "metadata": {}, "card": "# x\n"}
    save_translator(folder, model.config, model.state_dict(), tokenizers=tokenizers, **settings)
    return folder


def test_every_verb_that_runs_a_model_can_ablate_heads() -> None:
    for verb in MODEL_VERBS:
        command = cli.regard.get_command(None, verb)  # type: ignore[arg-type]
        assert command is not None
        assert any("--ablate" in option.opts for option in command.params), verb


def test_ablation_changes_translations_on_both_backends(
    translator_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(workload.draw_texts([9], 97))
    command = ["translate", str(translator_folder), text, "--no-split", "--max-length-a", "1", "--json"]
    assert cli.run(command) == 0
    baseline = capsys.readouterr()
    sites = [f"decoder.{layer}.{kind}" for layer in (0, 1) for kind in ("self", "cross")]
    assert cli.run([*command, "--ablate", ",".join(sites[:2]), "--ablate", sites[2], "--ablate", f"{sites[3]}:0"]) == 0
    ablated = capsys.readouterr()
    assert ablated.out != baseline.out
    arguments = ["--ablate", ",".join(sites[:2]), "--ablate", sites[2], "--ablate", f"{sites[3]}:0"]
    assert cli.run([*command, "--backend", "torch", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == json.loads(ablated.out)["text"]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("encoder.7.self:0", "did you mean encoder.1.self?"),
        ("decoder.0.cross:4", "did you mean decoder.0.cross:3?"),
        ("encoder", "the model has no encoder"),
        ("encoder.0.self:one", "names no head"),
    ],
)
def test_an_unknown_head_is_refused_before_anything_is_written(
    translator_folder: Path, capsys: pytest.CaptureFixture[str], head: str, message: str
) -> None:
    assert cli.run(["translate", str(translator_folder), "w1 w2", "--ablate", head]) == 2
    output = capsys.readouterr()
    assert message in output.err and not output.out


def test_ablation_changes_embeddings_and_scores(
    translator_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = saved_encoder(tmp_path / "encoder", TEXTS)
    vectors = []
    for ablation in ([], ["--ablate", "encoder.0.self:1"]):
        assert cli.run(["embed", str(encoder), TEXTS[0], "--json", "--threads", "1", *ablation]) == 0
        vectors.append(json.loads(capsys.readouterr().out)["vector"])
    assert np.abs(np.subtract(*vectors)).max() > 1e-4
    pairs = tmp_path / "pairs.tsv"
    texts = workload.draw_texts([5, 3, 4, 6], 97)
    pairs.write_text(f"{texts[0]}\t{texts[1]}\n{texts[2]}\t{texts[3]}\n", "utf-8")
    lines = []
    for ablation in ([], ["--ablate", "encoder.0.self:1"]):
        assert cli.run(["score", str(translator_folder), str(pairs), "--threads", "1", *ablation]) == 0
        lines.append(capsys.readouterr().out)
    assert lines[0] != lines[1]
    evaluation = [
        "evaluate",
        str(translator_folder),
        str(pairs),
        "--beam",
        "1",
        "--json",
        "--ablate",
        "decoder.1.cross",
    ]
    assert cli.run(evaluation) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 2


def test_heads_are_reported_as_a_table_a_page_and_lines(
    translator_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = workload.draw_texts([5, 3, 4, 6, 7, 2], 97)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{texts[index]}\t{texts[index + 1]}\n" for index in (0, 2, 4)), "utf-8")
    alignments = tmp_path / "alignments.txt"
    alignments.write_text("0-0 1-1\n0-0\n1-0\n")
    command = ["heads", str(translator_folder), str(pairs), "--sample", "3", "--threads", "1"]
    assert cli.run([*command, "--alignment", str(alignments), "--all"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"20 heads of {translator_folder} ablated one by one on 3 of 3 sentences of pairs.tsv")
    assert "best alignment head: decoder." in output and "alignment error" in output
    assert sum(line.startswith(("encoder.", "decoder.")) for line in output.splitlines()) == 20
    assert cli.run([*command, "--json", "--metric", "bleu", "--out", str(tmp_path / "heads.html")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["metric"] == "bleu" and len(report["heads"]) == 20 and report["sample"] == 3
    page = (tmp_path / "heads.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert all(f">{head['head']}<" in page for head in report["heads"]), "the page has all heads"
    assert cli.run([*command, "--out", str(tmp_path / "heads.tsv")]) == 0
    assert len((tmp_path / "heads.tsv").read_text("utf-8").splitlines()) == 21
    capsys.readouterr()
    for arguments, message in (
        (["--metric", "blu"], "did you mean bleu?"),
        (["--out", str(tmp_path / "heads.pdf")], "is written as .html, .json, .tsv"),
        (["--alignment", str(pairs)], "pairs.tsv:1"),
    ):
        assert cli.run([*command, *arguments]) == 2
        assert message in capsys.readouterr().err


def test_a_record_holds_attribution_and_importance(
    translator_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(workload.draw_texts([4], 97))
    path = tmp_path / "record.json"
    command = ["see", str(translator_folder), text, "--out", str(path), "--threads", "1"]
    assert cli.run([*command, "--attribution", "--importance"]) == 0
    record = Record.read(path)
    assert [attribution.method for attribution in record.attribution] == list(METHODS)
    assert all(len(attribution.values) == len(record.texts["source"].tokens) for attribution in record.attribution)
    importance = record["decoder.cross"].importance
    assert importance is not None and np.shape(importance["values"]) == (2, 4)
    encoder = saved_encoder(tmp_path / "encoder", TEXTS)
    assert cli.run(["see", str(encoder), TEXTS[0], "--importance", "--out", str(path)]) == 0
    importance = Record.read(path)["encoder.self"].importance
    assert importance is not None and importance["metric"] == "1 − cosine" and min(map(min, importance["values"])) > 0
    capsys.readouterr()
    assert cli.run(["see", str(encoder), TEXTS[0], "--attribution", "--out", str(path)]) == 2
    assert "attribution is for labels" in capsys.readouterr().err


def test_synthetic_word_alignments_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "spoken.tsv"
    alignments = tmp_path / "alignments.txt"
    assert cli.run(["data", "make", "spoken", "--count", "20", "--out", str(out), "--alignment", str(alignments)]) == 0
    rows = list(generate_rows("spoken", 20))
    assert out.read_text("utf-8").splitlines() == [f"{row.source}\t{row.target}" for row in rows]
    assert alignments.read_text().splitlines() == [" ".join(f"{i}-{j}" for i, j in row.links) for row in rows]
    assert cli.run(["data", "make", "copy", "--count", "2", "--out", str(out), "--alignment", str(alignments)]) == 2
    assert "copy has no word alignments" in capsys.readouterr().err


def test_the_help_names_every_metric_and_every_column(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["heads", "--help"]) == 0
    text = " ".join(capfd.readouterr().out.split())
    subjects = [resolve(task.head_study.partition(".read")[0]) for task in TASKS.values() if task.head_study]
    assert len(subjects) >= 7
    metrics = {name for subject in subjects for name in subject.metrics}
    columns = {title for title, _, _ in COLUMNS}
    for option, names in {"--metric NAME": metrics, "--sort COLUMN": columns}.items():
        description = text.partition(option)[2].partition("[default: ")[0]
        assert [name for name in names if name not in description] == []
