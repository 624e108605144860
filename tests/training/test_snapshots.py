"""Where a model looks while it learns: kept at each evaluation, the same after an interruption, shown as records."""

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
from regard.pipeline.loaders import train
from regard.tokens import Tokens
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
    place = tmp_path_factory.mktemp("data") / "pairs.tsv"
    rows = generate_rows("spoken", 60, split="all")
    place.write_text("".join(f"{row.source}\t{row.target}\n" for row in rows), "utf-8")
    return place


@pytest.fixture(scope="module")
def run(pairs: Path) -> tuple[Path, list[Record]]:
    put: list[Record] = []
    folder = pairs.parent / "run"
    train("translate", pairs, out=folder, listeners=[SnapshotListener(folder, put.append)], **SETTINGS)
    return folder, put


def test_every_evaluation_is_kept_and_told(run: tuple[Path, list[Record]]) -> None:
    folder, put = run
    assert snapshot_steps(folder) == [2, 4, 6]
    records = training_records(folder)
    assert [record.id for record in records] == ["step-2", "step-4", "step-6"] == [record.id for record in put]
    first, last = records[0], records[-1]
    assert [seen.name for seen in last.attention] == ["encoder.self", "decoder.cross"]
    assert last["decoder.cross"].layers == (0, 1) and last["decoder.cross"].produced
    assert first.texts == last.texts and last.made["step"] == 6 and "loss" in str(last.made["measured"])
    assert not np.array_equal(first["decoder.cross"].weights, last["decoder.cross"].weights)
    np.testing.assert_allclose(last["decoder.cross"].weights.sum(-1), 1, atol=5e-3)
    assert len(page(records, title="learning")) > 10_000
    assert sum(path.stat().st_size for path in (folder / FOLDER).iterdir()) < 100_000
    assert [record.id for record in training_records(folder, max_records=2)] == ["step-2", "step-6"]
    place = folder.parent / "learning.html"
    assert cli.run(["see", str(folder), "--epochs", "--out", str(place)]) == 0
    assert place.stat().st_size > 10_000
    assert cli.run(["see", str(folder), "one", "--epochs", "--out", str(place)]) == 2


def test_what_is_kept_is_what_the_kept_model_does(run: tuple[Path, list[Record]]) -> None:
    folder, _ = run
    found = load_translator(folder)
    kept = load_snapshot(folder, int(found.task["step"])).attention
    model = build_model(found.config)
    model.load_state_dict(found.weights)
    assert kept.target is not None
    source, target = found.source.encode(kept.source.text).ids, found.target.encode(kept.target.text).ids
    with trace() as seen:
        model.eval().target_logprobs(Tokens.from_rows([[*source, found.source.eos_id]]), Tokens.from_rows([target]))
    assert set(seen) == set(kept.weights)
    for site in seen:
        np.testing.assert_allclose(seen[site].weights[0], kept.weights[site], atol=2e-3)
    assert kept.source.words[-1] == kept.target.words[-1] == -1 and kept.source.words[:2] == [0, 1]


def test_going_on_forgets_what_came_after_the_checkpoint(pairs: Path, run: tuple[Path, list[Record]]) -> None:
    folder, _ = run
    kept = {path.name: path.read_bytes() for path in (folder / FOLDER).iterdir()}
    again = pairs.parent / "again"
    (again / FOLDER).mkdir(parents=True)
    (again / "run.lock").touch()
    (again / FOLDER / "step-99.json").write_text("{}")
    train("translate", pairs, out=again, **SETTINGS)
    assert {path.name: path.read_bytes() for path in (again / FOLDER).iterdir()} == kept


def test_a_fine_tuned_encoder_is_seen_too(tmp_path: Path) -> None:
    texts = [f"{word} film and {other} plot" for word in ("good", "bad") for other in ("long", "short", "dull", "odd")]
    data = tmp_path / "texts.csv"
    data.write_text("text,label\n" + "".join(f"{one},{one.split()[0]}\n" for one in texts * 3), "utf-8")
    folder = tmp_path / "run"
    settings: dict[str, Any] = {"pretrained": str(saved_encoder(tmp_path / "encoder", texts)), "architecture": "bert"}
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
    flags = ["--preset", "custom", "--tokenizer", "words", "--steps", "2", "--evaluate-every", "1", "--threads", "1"]
    sizes = {
        "hidden_size": 8,
        "encoder.num_layers": 1,
        "decoder.num_layers": 1,
        "encoder.num_heads": 1,
        "decoder.num_heads": 1,
    }
    flags += [word for name, value in sizes.items() for word in (f"--model.{name}", str(value))]
    out = str(pairs.parent / "watched")
    assert cli.run(["train", "translate", str(pairs), "--out", out, "--watch", "--precision", "float32", *flags]) == 0
    address = re.search(
        r"page while training runs: (http://127\.0\.0\.1:\d+)/\S*(\?token=\S+)", capsys.readouterr().err
    )
    assert address is not None
    opener = build_opener(HTTPCookieProcessor(CookieJar()))
    found = json.loads(opener.open(f"{address[1]}/records.json{address[2]}", timeout=HANG_GUARD).read())
    assert [one["id"] for one in found["records"]] == ["step-2", "step-1"] and found["live"]


@pytest.mark.parametrize(("arch", "kind"), [("bert", "encoder.self"), ("gpt", "decoder.self")])
def test_language_models_are_seen_too(tmp_path: Path, arch: str, kind: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\na dog ran over the hill\n" * 60, "utf-8")
    settings: dict[str, Any] = {"architecture": arch, "preset": "tiny", "steps": 1, "evaluate_every": 1, "threads": 1}
    train("language", text, out=tmp_path / "run", precision="float32", batch_tokens=256, sequence_length=16, **settings)
    (record,) = training_records(tmp_path / "run")
    assert [one.name for one in record.attention] == [kind] and record[kind].causal == (arch == "gpt")
    assert len(record.texts["source"].tokens) >= 15 and "the" in record.texts["source"].text


def test_runs_without_pictures_and_damaged_ones(tmp_path: Path, run: tuple[Path, list[Record]]) -> None:
    with pytest.raises(UsageError, match="kept no snapshots"):
        training_records(tmp_path)
    place = tmp_path / FOLDER / "step-3.json"
    place.parent.mkdir()
    place.write_text('{"form": 9}')
    with pytest.raises(CheckpointError, match="form 9 cannot be read"):
        load_snapshot(tmp_path, 3)
    place.write_text('{"form": 1, "step": 3}')
    with pytest.raises(CheckpointError, match="damaged"):
        load_snapshot(tmp_path, 3)


def test_the_shown_example_is_of_a_good_length() -> None:
    assert choose_example(np.array([[2, 2], [15, 9], [15, 15]])) == 1
    assert choose_example(np.array([[400, 2], [500, 2]])) is None
