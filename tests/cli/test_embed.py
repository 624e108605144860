from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from regard.cli import run
from tests.checkpoint.hf.encoders import made

pytest.importorskip("transformers", reason="transformers is not installed: no model to make")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("encoder")
    made("bert", "masked", place)
    return place


def test_vectors_go_to_a_file_and_are_searched_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, vectors = tmp_path / "lines.txt", tmp_path / "vectors.npy"
    lines.write_text("w1 w2\nw3\n" + "w4 " * 40 + "\n")
    assert run(["embed", str(folder), "--in", str(lines), "--out", str(vectors), "--json", "--threads", "1"]) == 0
    seen = capsys.readouterr()
    told = json.loads(seen.out)
    assert (told["texts"], told["width"], told["truncation"]["cut_tokens"]) == (3, 14, 40 - 21)
    assert "1 of 3 texts truncated (rows of 23 tokens)" in seen.err
    assert np.load(vectors).shape == (3, 14)
    asked = ["similar", str(folder), "w3", "--among", str(lines), "--best", "1", "--json", "--threads", "1"]
    assert run(asked) == 0
    first = json.loads(capsys.readouterr().out)
    assert run([*asked, "--vectors", str(vectors)]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert (first[0]["nearest"][0]["line"], first[0]["nearest"][0]["cosine"]) == (2, pytest.approx(1, abs=1e-5))


def test_two_texts_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["similar", str(folder), "w1 w2", "w1 w2", "--threads", "1"]) == 0
    assert capsys.readouterr().out.strip() == "1.0000"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["similar", "FOLDER", "w1"], "one text alone is like nothing"),
        (["similar", "FOLDER"], "give texts, or a file"),
        (["similar", "FOLDER", "w1", "w2", "--vectors", "x.npy"], "name that file too"),
        (["embed", "FOLDER", "w1", "--out", "vectors.txt"], "name it *.npy"),
        (["embed", "FOLDER/none", "w1"], "no such folder"),
        (["embed", "FOLDER", "w1", "--max-length", "99"], "23 tokens at most"),
    ],
)
def test_mistakes_are_told(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([word.replace("FOLDER", str(folder)) for word in arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_published_name_without_a_network_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert run(["embed", "nobody/nothing-of-the-kind", "w1"]) == 2
    assert "there is no network to fetch it now" in capsys.readouterr().err
