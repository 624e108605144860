"""Training RNN taggers: with and without frozen features, resuming bit by bit, and from the command line."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.checkpoint.native import load_text_model
from regard.cli import run
from regard.config.rnn_models import ElmoConfig, RnnTaggerConfig
from regard.config.task_runs import TagRun
from regard.errors import ConfigError
from regard.pipeline.load import load, load_tagger
from regard.tasks.tagging import RnnSentences, word_spans
from regard.tasks.tagging_objectives import RnnTaggingObjective
from regard.tasks.text_model import TextPreprocessor
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
PERSONS = ("ada", "alan", "grace")
CITIES = ("london", "paris", "rome")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Sentences in which a name is a person after `by` only: its most frequent tag is not enough."""
    rng = random.Random(1)
    sentences = []
    for index in range(160):
        name = rng.choice(PERSONS)
        city = rng.choice(CITIES)
        has_last_name = index % 2 == 1
        if index % 3:
            words = ["by O", f"{name} B-person", *(["lee I-person"] if has_last_name else [])]
        else:
            words = ["near O", f"{name} O", *(["lee O"] if has_last_name else [])]
        sentences.append([*words, "in O", f"{city} B-place"])
    path = tmp_path / "words.conll"
    path.write_text("\n\n".join("\n".join(sentence) for sentence in sentences) + "\n", "utf-8")
    return path


@pytest.fixture
def elmo(tmp_path: Path) -> Path:
    return saved_elmo(tmp_path / "elmo", [*PERSONS, *CITIES, "by near in lee"])


def config(data: Path, **changes: object) -> TagRun:
    return TagRun.build({**SMALL, "data.train": (str(data),), **changes})


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_text_model(folder, RnnTaggerConfig, "tag").weights


def test_a_tagger_learns_with_features_that_are_copied_to_its_folder(data: Path, elmo: Path, tmp_path: Path) -> None:
    listener = Listener()
    features = load_text_model(elmo, ElmoConfig, "elmo")
    settings = {"training.epochs": 10.0, "fine_tuning.features": str(elmo), "fine_tuning.test": str(data)}
    report = train_run(config(data, **settings), tmp_path / "run", listeners=[listener])
    assert report.metrics["valid_f1"] == report.metrics["test_f1"] == 100
    assert report.metrics["test_baseline"] < 95
    assert any("reading in context helped by" in note["text"] for note in listener.of("note"))
    task = json.loads((tmp_path / "run/task.json").read_text())
    assert task["features"]["digest"] == features.digest
    assert sum(task["features"]["weights"]) == pytest.approx(1)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    shutil.rmtree(elmo)
    model = load(tmp_path / "moved", threads=1)
    entities = model("by grace lee in rome").entities
    assert [(entity.text, entity.label, entity.start, entity.end) for entity in entities] == [
        ("grace lee", "person", 3, 12),
        ("rome", "place", 16, 20),
    ]
    assert [entity.text for entity in model("near grace in rome").entities] == ["rome"]


def test_an_interrupted_run_ends_in_the_same_bits(
    data: Path, elmo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"training.steps": 14, "training.save_every": 3, "training.evaluate_every": 5}
    run_config = config(
        data, **settings, **{"fine_tuning.features": str(elmo), "fine_tuning.class_weights": "balanced"}
    )
    train_run(run_config, tmp_path / "uninterrupted")
    num_starts = sittings(RnnTaggingObjective, lambda: train_run(run_config, tmp_path / "killed"), monkeypatch)
    assert num_starts > 1
    weights = load_weights(tmp_path / "uninterrupted")
    resumed_weights = load_weights(tmp_path / "killed")
    assert all(torch.equal(weight, resumed_weights[name]) for name, weight in weights.items())


def test_the_command_line_trains_runs_and_evaluates_it(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    command = f"train tag {data} --out {out} --epochs 12 --threads 1 --tokenizer words --batch-tokens 64"
    assert run(command.split()) == 0
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


def test_truncated_words_are_tagged_outside_and_counted(data: Path, tmp_path: Path) -> None:
    train_run(config(data, **{"training.steps": 2, "data.max_length": 3}), tmp_path / "run")
    model = load_tagger(tmp_path / "run", threads=1)
    tags = model("by ada in paris").tags
    assert len(tags) == 4
    assert tags[3] == "O"
    assert (model.truncation_report.truncated_texts, model.truncation_report.truncated_tokens) == (1, 1)


def test_words_are_tagged_at_their_first_tokens(elmo: Path) -> None:
    tokenizer = load_text_model(elmo, ElmoConfig, "elmo").tokenizer
    words = ["grace", "in", "london"]
    sentences = RnnSentences.encode(TextPreprocessor(tokenizer, 99), [" ".join(words)], [word_spans(words)])
    starts = [sentences.spans[0][position][0] for position in sentences.positions[0]]
    assert starts == [start for start, _ in word_spans(words)]
    np.testing.assert_array_equal(sentences.word_ids[0], [0, 1, 2])


def test_settings_of_fine_tuning_are_refused(data: Path, elmo: Path) -> None:
    with pytest.raises(ConfigError, match="fine_tuning.freeze_encoder .* is for --arch pretrained"):
        config(data, **{"fine_tuning.freeze_encoder": True})
    settings = {"pretrained": "a/bert", "data.train": (str(data),)}
    with pytest.raises(ConfigError, match="means nothing to --arch pretrained: it is for --arch rnn"):
        TagRun.build({**settings, "fine_tuning.features": str(elmo)})
