"""Taggers with words of their own: what they learn, with frozen features and without, after a stop, and in use."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.checkpoint.native import load_rnn_text
from regard.cli import run
from regard.config.defaults import task_defaults
from regard.config.rnn_models import ElmoConfig, RnnTaggerConfig
from regard.config.runs import RunConfig
from regard.errors import ConfigError
from regard.pipeline.load import load
from regard.pipeline.loaders import load_tagger
from regard.tasks.rnn_text import RnnPreprocessor
from regard.tasks.tagging import RnnSentences, RnnTaggingObjective, word_spans
from regard.training.run import train_run
from tests.rnn_text import saved_elmo
from tests.training.listener import Listener, sittings

SMALL = {
    "preset": "custom",
    "rnn_tagger.encoder.hidden_size": 8,
    "rnn_tagger.encoder.embedding_size": 8,
    "tokenizer.kind": "words",
    "training.batch_tokens": 64,
    "training.threads": 1,
    "training.precision": "float32",
}
NAMES, PLACES = ("ada", "alan", "grace"), ("london", "paris", "rome")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Sentences in which the same word is a person after `by` and nothing after `near`: the usual tag is not enough."""
    chance, rows = random.Random(1), []
    for number in range(160):
        name, place = chance.choice(NAMES), chance.choice(PLACES)
        last = ["lee I-person"] if number % 2 else []
        person = [f"{name} B-person", *last] if number % 3 else [f"{name} O"]
        rows.append([f"{'by' if number % 3 else 'near'} O", *person, "in O", f"{place} B-place"])
        if not number % 3 and last:
            rows[-1].insert(2, "lee O")
    path = tmp_path / "words.conll"
    path.write_text("\n\n".join("\n".join(row) for row in rows) + "\n", "utf-8")
    return path


@pytest.fixture
def elmo(tmp_path: Path) -> Path:
    return saved_elmo(tmp_path / "elmo", [*NAMES, *PLACES, "by near in lee"])


def config(data: Path, **changes: object) -> RunConfig:
    return RunConfig().override({**task_defaults("tag"), **SMALL, "data.train": (str(data),), **changes})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_rnn_text(folder, RnnTaggerConfig, "tag").weights


def test_a_tagger_learns_with_features_that_move_with_it(data: Path, elmo: Path, tmp_path: Path) -> None:
    listener, features = Listener(), load_rnn_text(elmo, ElmoConfig, "language")
    settings = {"training.epochs": 10.0, "fine_tuning.features": str(elmo), "fine_tuning.test": str(data)}
    report = train_run(config(data, **settings), tmp_path / "run", listeners=[listener])
    assert report.metrics["valid_f1"] == report.metrics["test_f1"] == 100
    assert report.metrics["test_baseline"] < 95
    assert any("reading in context helped by" in one["text"] for one in listener.of("note"))
    task = json.loads((tmp_path / "run/task.json").read_text())
    assert task["features"]["digest"] == features.digest
    assert sum(task["features"]["weights"]) == pytest.approx(1)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    shutil.rmtree(elmo)
    model = load(tmp_path / "moved", threads=1)
    found = model("by grace lee in rome")
    assert [(one.text, one.label, one.start, one.end) for one in found.entities] == [
        ("grace lee", "person", 3, 12),
        ("rome", "place", 16, 20),
    ]
    assert [one.text for one in model("near grace in rome").entities] == ["rome"]


def test_interrupted_at_any_step_it_ends_in_the_same_bits(
    data: Path, elmo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"training.steps": 14, "training.save_every": 3, "training.evaluate_every": 5}
    made = config(data, **settings, **{"fine_tuning.features": str(elmo), "fine_tuning.class_weights": "balanced"})
    train_run(made, tmp_path / "alone")
    begun = sittings(RnnTaggingObjective, lambda: train_run(made, tmp_path / "killed"), monkeypatch)
    assert begun > 1
    one, other = weights(tmp_path / "alone"), weights(tmp_path / "killed")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_command_line_trains_uses_and_scores_it(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    words = f"train tag {data} --out {out} --epochs 12 --threads 1 --tokenizer words --batch-tokens 64"
    assert run(words.split()) == 0
    capfd.readouterr()
    assert run(["tag", out, "by ada in paris", "--threads", "1"]) == 0
    assert [line.split("\t")[:3] for line in capfd.readouterr().out.splitlines()] == [
        ["0", "person", "ada"],
        ["0", "place", "paris"],
    ]
    assert run(["evaluate", out, str(data), "--threads", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["f1"] > 99
    assert run(["info", out]) == 0
    assert "labels: O, B-person" in capfd.readouterr().out


def test_words_beyond_what_is_read_are_outside_and_counted(data: Path, tmp_path: Path) -> None:
    train_run(config(data, **{"training.steps": 2, "data.max_length": 3}), tmp_path / "run")
    model = load_tagger(tmp_path / "run", threads=1)
    found = model("by ada in paris")
    assert len(found.tags) == 4
    assert found.tags[3] == "O"
    assert (model.account.truncated_texts, model.account.truncated_tokens) == (1, 1)


def test_words_are_decided_at_their_first_tokens(elmo: Path) -> None:
    tokenizer = load_rnn_text(elmo, ElmoConfig, "language").tokenizer
    words = ["grace", "in", "london"]
    read = RnnSentences.read(RnnPreprocessor(tokenizer, 99), [" ".join(words)], [word_spans(words)])
    firsts = [read.spans[0][place][0] for place in read.positions[0]]
    assert firsts == [start for start, _ in word_spans(words)]
    np.testing.assert_array_equal(read.words[0], [0, 1, 2])


def test_settings_of_the_other_way_are_refused(data: Path, elmo: Path) -> None:
    with pytest.raises(ConfigError, match="fine_tuning.freeze_encoder .* is for --arch bert"):
        config(data, **{"fine_tuning.freeze_encoder": True})
    tuned = {**task_defaults("tag", start_from="a/bert"), "pretrained": "a/bert", "data.train": (str(data),)}
    with pytest.raises(ConfigError, match="leave out --from"):
        RunConfig().override({**tuned, "fine_tuning.features": str(elmo)})
