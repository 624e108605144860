"""Attention snapshots: saved at each evaluation, the same after an interruption, shown as records."""

from __future__ import annotations

import json
import re
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import numpy as np
import pytest

from regard import cli
from regard.attention.trace import trace
from regard.checkpoint.model_dir import load_translator
from regard.data.synthetic import generate_rows
from regard.errors import CheckpointError, UsageError
from regard.interpret.training_records import SnapshotListener, training_records
from regard.models import build_model
from regard.packed_tokens import Tokens
from regard.pipeline.loaders import train
from regard.training.snapshots import FOLDER, choose_example, load_snapshot, snapshot_steps
from regard.view.page import page
from regard.view.record.record import Record
from tests.encoders import saved_encoder
from tests.scale import HANG_GUARD

SETTINGS: dict[str, Any] = {
    "preset": "custom",
    "kind": "words",
    "steps": 6,
    "evaluate_every": 2,
    "threads": 1,
    "precision": "float32",
    "batch_tokens": 200,
    "average_checkpoints": 0,
    "model__hidden_size": 16,
    "model__encoder__num_layers": 1,
    "model__encoder__num_heads": 2,
    "model__encoder__feed_forward_size": 16,
    "model__decoder__num_layers": 2,
    "model__decoder__num_heads": 2,
    "model__decoder__feed_forward_size": 16,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    rows = generate_rows("spoken", 60, split="all")
    path.write_text("".join(f"{row.source}\t{row.target}\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="module")
def run(pairs: Path) -> tuple[Path, list[Record]]:
    """A run directory, and the records that a listener received during training."""
    received: list[Record] = []
    folder = pairs.parent / "run"
    train("translate", pairs, out=folder, listeners=[SnapshotListener(folder, received.append)], **SETTINGS)
    return folder, received


def test_every_evaluation_has_a_snapshot_and_a_record(run: tuple[Path, list[Record]]) -> None:
    folder, received = run
    assert snapshot_steps(folder) == [2, 4, 6]
    records = training_records(folder)
    assert [record.id for record in records] == ["step-2", "step-4", "step-6"] == [record.id for record in received]
    first = records[0]
    last = records[-1]
    assert [attention.name for attention in last.attention] == ["encoder.self", "decoder.cross"]
    assert last["decoder.cross"].layers == (0, 1) and last["decoder.cross"].is_generated
    assert first.texts == last.texts and last.provenance["step"] == 6 and "loss" in str(last.provenance["measured"])
    assert not np.array_equal(first["decoder.cross"].weights, last["decoder.cross"].weights)
    np.testing.assert_allclose(last["decoder.cross"].weights.sum(-1), 1, atol=5e-3)
    assert len(page(records, title="learning")) > 10_000
    assert sum(path.stat().st_size for path in (folder / FOLDER).iterdir()) < 100_000
    assert [record.id for record in training_records(folder, max_records=2)] == ["step-2", "step-6"]
    page_path = folder.parent / "learning.html"
    assert cli.run(["see", str(folder), "--history", "--out", str(page_path)]) == 0
    assert page_path.stat().st_size > 10_000
    assert cli.run(["see", str(folder), "one", "--history", "--out", str(page_path)]) == 2


def test_a_snapshot_has_the_attention_of_the_saved_model(run: tuple[Path, list[Record]]) -> None:
    folder, _ = run
    saved = load_translator(folder)
    snapshot = load_snapshot(folder, int(saved.metadata["step"])).attention
    model = build_model(saved.config)
    model.load_state_dict(saved.weights)
    assert snapshot.target is not None
    source_ids = [*saved.source.encode(snapshot.source.text).ids, saved.source.eos_id]
    target_ids = saved.target.encode(snapshot.target.text).ids
    with trace() as captured:
        model.eval().target_logprobs(Tokens.from_rows([source_ids]), Tokens.from_rows([target_ids]))
    assert set(captured) == set(snapshot.weights)
    for site in captured:
        np.testing.assert_allclose(captured[site].weights[0], snapshot.weights[site], atol=2e-3)
    assert snapshot.source.words[-1] == snapshot.target.words[-1] == -1 and snapshot.source.words[:2] == [0, 1]


def test_resuming_deletes_snapshots_after_the_checkpoint(pairs: Path, run: tuple[Path, list[Record]]) -> None:
    folder, _ = run
    expected = {path.name: path.read_bytes() for path in (folder / FOLDER).iterdir()}
    resumed = pairs.parent / "resumed"
    (resumed / FOLDER).mkdir(parents=True)
    (resumed / "run.lock").touch()
    (resumed / FOLDER / "step-99.json").write_text("{}")
    train("translate", pairs, out=resumed, **SETTINGS)
    assert {path.name: path.read_bytes() for path in (resumed / FOLDER).iterdir()} == expected


def test_a_fine_tuned_encoder_has_snapshots(tmp_path: Path) -> None:
    adjectives = ("long", "short", "dull", "odd")
    texts = [f"{label} film and {adjective} plot" for label in ("good", "bad") for adjective in adjectives]
    data = tmp_path / "texts.csv"
    data.write_text("text,label\n" + "".join(f"{text},{text.split()[0]}\n" for text in texts * 3), "utf-8")
    folder = tmp_path / "run"
    settings: dict[str, Any] = {
        "pretrained": str(saved_encoder(tmp_path / "encoder", texts)),
        "architecture": "pretrained",
    }
    settings |= {"steps": 2, "evaluate_every": 1, "threads": 1, "precision": "float32"}
    train("classify", data, out=folder, valid=[data], **settings)
    records = training_records(folder)
    assert [record.id for record in records] == ["step-1", "step-2"]
    assert records[0].task == "classify" and [*records[0].texts] == ["source"]
    assert records[0]["encoder.self"].shape[:2] == (2, 2)
    assert records[0].texts["source"].special[0] and not records[0].texts["source"].special[1]


def test_a_page_is_served_while_training_runs(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastapi", reason="a served page needs the extra `serve`")
    pytest.importorskip("uvicorn", reason="a served page needs the extra `serve`")
    options = ["--preset", "custom", "--tokenizer", "words", "--steps", "2", "--evaluate-every", "1", "--threads", "1"]
    sizes = {
        "hidden_size": 8,
        "encoder.num_layers": 1,
        "decoder.num_layers": 1,
        "encoder.num_heads": 1,
        "decoder.num_heads": 1,
    }
    options += [f"--model.{name}={size}" for name, size in sizes.items()]
    out = str(pairs.parent / "watched")
    assert cli.run(["train", "translate", str(pairs), "--out", out, "--watch", "--precision", "float32", *options]) == 0
    address = re.search(
        r"page while training runs: (http://127\.0\.0\.1:\d+)/\S*(\?token=\S+)", capsys.readouterr().err
    )
    assert address is not None
    opener = build_opener(HTTPCookieProcessor(CookieJar()))
    response = json.loads(opener.open(f"{address[1]}/records.json{address[2]}", timeout=HANG_GUARD).read())
    assert [record["id"] for record in response["records"]] == ["step-2", "step-1"] and response["live"]


@pytest.mark.parametrize(("task", "site"), [("masked-lm", "encoder.self"), ("causal-lm", "decoder.self")])
def test_language_models_have_snapshots(tmp_path: Path, task: str, site: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\na dog ran over the hill\n" * 60, "utf-8")
    settings: dict[str, Any] = {"preset": "tiny", "steps": 1, "evaluate_every": 1}
    settings |= {"threads": 1, "precision": "float32", "batch_tokens": 256, "sequence_length": 16}
    train(task, text, out=tmp_path / "run", **settings)
    (record,) = training_records(tmp_path / "run")
    assert [attention.name for attention in record.attention] == [site]
    assert record[site].is_causal == (task == "causal-lm")
    num_tokens = len(record.texts["source"].tokens)
    visible = np.arange(num_tokens) + 1 if task == "causal-lm" else np.full(num_tokens, num_tokens)
    assert np.array_equal(record[site].visible_keys(0), visible)
    assert record[site].has_residual
    assert len(record.texts["source"].tokens) >= 15 and "the" in record.texts["source"].text


def test_runs_without_snapshots_and_damaged_ones_are_rejected(tmp_path: Path, run: tuple[Path, list[Record]]) -> None:
    with pytest.raises(UsageError, match="kept no snapshots"):
        training_records(tmp_path)
    path = tmp_path / FOLDER / "step-3.json"
    path.parent.mkdir()
    path.write_text('{"form": 9}')
    with pytest.raises(CheckpointError, match="format 9 cannot be read"):
        load_snapshot(tmp_path, 3)
    path.write_text('{"form": 2, "step": 3}')
    with pytest.raises(CheckpointError, match="damaged"):
        load_snapshot(tmp_path, 3)


def test_the_chosen_example_has_a_suitable_length() -> None:
    assert choose_example(np.array([[2, 2], [15, 9], [15, 15]])) == 1
    assert choose_example(np.array([[400, 2], [500, 2]])) is None
