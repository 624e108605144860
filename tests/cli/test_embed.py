"""`regard embed` and `regard similar` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from regard.cli import run
from tests.checkpoint.hf.encoders import save_transformers_model

pytest.importorskip("transformers", reason="transformers is not installed: no model to build")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder")
    save_transformers_model("bert", "masked", path)
    return path


def test_embeddings_are_written_to_a_file_and_reused_for_search(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines.txt"
    vectors = tmp_path / "vectors.npy"
    lines.write_text("w1 w2\nw3\n" + "w4 " * 40 + "\n")
    assert run(["embed", str(folder), "--in", str(lines), "--out", str(vectors), "--json", "--threads", "1"]) == 0
    output = capsys.readouterr()
    report = json.loads(output.out)
    assert (report["texts"], report["embedding_size"], report["truncation"]["truncated_tokens"]) == (3, 14, 40 - 21)
    assert "1 of 3 texts truncated (rows of 23 tokens)" in output.err
    assert np.load(vectors).shape == (3, 14)
    search = ["similar", str(folder), "w3", "--corpus", str(lines), "--top-k", "1", "--json", "--threads", "1"]
    assert run(search) == 0
    result = json.loads(capsys.readouterr().out)
    assert run([*search, "--vectors", str(vectors)]) == 0
    assert json.loads(capsys.readouterr().out) == result
    (nearest,) = result["neighbours"]
    assert (nearest["line"], nearest["similarity"]) == (2, pytest.approx(1, abs=1e-5))


def test_two_texts_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["similar", str(folder), "w1 w2", "w1 w2", "--threads", "1"]) == 0
    assert capsys.readouterr().out.strip() == "1.0000"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["similar", "FOLDER", "w1"], "one text cannot be compared"),
        (["similar", "FOLDER"], "pass texts as arguments, or a file"),
        (["similar", "FOLDER", "w1", "w2", "--vectors", "x.npy"], "name that file too"),
        (["embed", "FOLDER", "w1", "--out", "vectors.txt"], "name it *.npy"),
        (["embed", "FOLDER/none", "w1"], "no such folder"),
        (["embed", "FOLDER", "w1", "--max-length", "99"], "23 tokens at most"),
    ],
)
def test_an_error_is_one_message(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([argument.replace("FOLDER", str(folder)) for argument in arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_hub_name_without_a_network_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert run(["embed", "nobody/nothing-of-the-kind", "w1"]) == 2
    assert "there is no network to fetch it now" in capsys.readouterr().err
