"""Training RNN classifiers: with and without frozen features, over seeds, resuming bit by bit, refused data."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.checkpoint.native import load_text_model
from regard.config.rnn_models import ElmoConfig, RnnClassifierConfig
from regard.config.task_runs import ClassifyRun
from regard.errors import CheckpointError, ConfigError, DataError, UsageError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.pipeline.load import load_classifier
from regard.tasks.classification import TextClassificationObjective
from regard.training.multi_seed import mean_and_std
from regard.training.run import train_run
from tests.rnn_text import saved_elmo
from tests.training.listener import Listener, sittings
from tests.training.logs import log_without_throughput

SMALL = {
    "preset": "custom",
    "rnn_classifier.encoder.hidden_size": 8,
    "rnn_classifier.encoder.embedding_size": 8,
    "tokenizer.kind": "words",
    "training.batch_tokens": 64,
    "training.threads": 1,
    "training.precision": "float32",
}
FRUITS = ("apple", "pear", "plum", "fig")
BEASTS = ("dog", "cat", "cow", "hen")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Texts with a fruit or a beast among other words, labelled accordingly."""
    rng = random.Random(1)
    rows = []
    for index in range(160):
        words = [f"x{rng.randrange(9)}" for _ in range(rng.randint(2, 6))]
        label = "beast" if index % 2 else "fruit"
        words.insert(rng.randrange(len(words)), rng.choice(BEASTS if index % 2 else FRUITS))
        rows.append(f"{' '.join(words)}\t{label}")
    path = tmp_path / "data.tsv"
    path.write_text("\n".join(rows), "utf-8")
    return path


@pytest.fixture
def elmo(tmp_path: Path) -> Path:
    return saved_elmo(tmp_path / "elmo", [*FRUITS, *BEASTS, "x1 x2"])


def config(data: Path, **changes: object) -> ClassifyRun:
    return ClassifyRun.build({**SMALL, "data.train": (str(data),), **changes})


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_text_model(folder, RnnClassifierConfig, "classify").weights


def have_same_weights(first: Path, second: Path) -> bool:
    first_weights = load_weights(first)
    second_weights = load_weights(second)
    return first_weights.keys() == second_weights.keys() and all(
        torch.equal(weight, second_weights[name]) for name, weight in first_weights.items()
    )


@pytest.mark.parametrize("features", [False, True])
def test_it_learns_the_labels(data: Path, elmo: Path, tmp_path: Path, features: bool) -> None:
    listener = Listener()
    settings = {"training.epochs": 12.0, "fine_tuning.features": str(elmo) if features else ""}
    report = train_run(config(data, **settings), tmp_path / "run", listeners=[listener])
    assert report.metrics["valid_accuracy"] == 100
    assert report.metrics["valid_macro_f1"] == 100
    lines = listener.of("plan")[0]["lines"]
    assert any("labels: 2 (beast" in line for line in lines)
    assert any("computed once for all texts" in line for line in lines) is features
    task = json.loads((tmp_path / "run/task.json").read_text())
    assert task["labels"] == ["beast", "fruit"]
    assert ("features" in task) is features
    if features:
        assert sum(task["features"]["weights"]) == pytest.approx(1)
        assert task["features"]["weights"] != [1 / 3] * 3


def test_it_is_compared_with_a_bag_of_words_model(data: Path, tmp_path: Path) -> None:
    listener = Listener()
    settings = {"training.steps": 2, "fine_tuning.test": str(data)}
    report = train_run(config(data, **settings), tmp_path / "run", listeners=[listener])
    assert report.metrics["test_baseline"] == 100
    gain = report.metrics["test_accuracy"] - 100
    assert report.metrics["test_gain"] == pytest.approx(gain)
    notes = [note["text"] for note in listener.of("note")]
    assert any("baseline (bag of words) accuracy 100.00; reading in context" in note for note in notes)
    without = train_run(config(data, **settings, **{"fine_tuning.baseline": False}), tmp_path / "without")
    assert "test_baseline" not in without.metrics


def test_features_are_frozen_and_copied_to_the_run_directory(data: Path, elmo: Path, tmp_path: Path) -> None:
    before = load_text_model(elmo, ElmoConfig, "elmo")
    train_run(config(data, **{"training.steps": 3, "fine_tuning.features": str(elmo)}), tmp_path / "run")
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["data_digests"]["features"] == before.digest
    shutil.move(tmp_path / "run", tmp_path / "moved")
    shutil.rmtree(elmo)
    after = load_text_model(tmp_path / "moved/features", ElmoConfig, "elmo")
    assert after.digest == before.digest
    assert all(torch.equal(after.weights[name], before.weights[name]) for name in before.weights)
    assert load_classifier(tmp_path / "moved", threads=1)("a big apple") in ("fruit", "beast")


def test_features_that_do_not_fit_into_memory_give_the_same_result(data: Path, elmo: Path, tmp_path: Path) -> None:
    settings = {"training.steps": 4, "fine_tuning.features": str(elmo)}
    train_run(config(data, **settings), tmp_path / "cached")
    listener = Listener()
    train_run(
        config(data, **settings, **{"fine_tuning.feature_cache_mb": 0}), tmp_path / "uncached", listeners=[listener]
    )
    assert any("computed anew in each batch" in line for line in listener.of("plan")[0]["lines"])
    cached_weights = load_weights(tmp_path / "cached")
    torch.testing.assert_close(cached_weights, load_weights(tmp_path / "uncached"), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("features", [False, True])
def test_an_interrupted_run_ends_in_the_same_bits(
    data: Path, elmo: Path, tmp_path: Path, features: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"training.steps": 14, "training.save_every": 3, "training.evaluate_every": 5}
    settings |= {"fine_tuning.features": str(elmo)} if features else {}  # type: ignore[dict-item]
    train_run(config(data, **settings), tmp_path / "uninterrupted")
    num_starts = sittings(
        TextClassificationObjective, lambda: train_run(config(data, **settings), tmp_path / "killed"), monkeypatch
    )
    assert num_starts > 1
    assert have_same_weights(tmp_path / "uninterrupted", tmp_path / "killed")
    assert log_without_throughput(tmp_path / "uninterrupted") == log_without_throughput(tmp_path / "killed")


def test_several_seeds_give_mean_and_deviation_and_the_best_model(data: Path, elmo: Path, tmp_path: Path) -> None:
    settings = {"training.steps": 6, "fine_tuning.test": str(data), "fine_tuning.features": str(elmo)}
    listener = Listener()
    report = train_run(config(data, **settings, **{"fine_tuning.seeds": 3}), tmp_path / "run", listeners=[listener])
    singles = [json.loads((tmp_path / f"run/seeds/{seed}/run.json").read_text())["result"] for seed in (1, 2, 3)]
    for name in ("valid_accuracy", "test_accuracy", "test_macro_f1"):
        scores = [single["metrics"][name] for single in singles]
        assert report.metrics[name] == pytest.approx(sum(scores) / 3)
    assert report.metrics["valid_loss_deviation"] > 0
    assert (report.step, report.unit) == (3, "seed")
    task = json.loads((tmp_path / "run/task.json").read_text())
    best = max(task["seeds"]["each"], key=lambda seed: (seed["valid_accuracy"], -seed["valid_loss"]))
    assert task["seeds"]["best"] == best["seed"]
    assert have_same_weights(tmp_path / "run", tmp_path / f"run/seeds/{best['seed']}")
    shutil.rmtree(tmp_path / "run/seeds")
    assert load_classifier(tmp_path / "run", threads=1)("a big apple") in ("fruit", "beast")
    single = train_run(config(data, **settings, **{"training.seed": 2}), tmp_path / "uninterrupted")
    assert single.metrics == singles[1]["metrics"]
    assert len(listener.of("plan")) == 1 == len(listener.of("done"))


def test_seeds_resume_where_they_stopped(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"training.steps": 6, "fine_tuning.seeds": 2}
    uninterrupted = train_run(config(data, **settings), tmp_path / "uninterrupted")
    original_loss = TextClassificationObjective.loss
    calls = 0

    def interrupted_loss(self: TextClassificationObjective, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 9:  # in the run of the second seed; the timing of the first run is cached
            raise KeyboardInterrupt
        return original_loss(self, *arguments)

    monkeypatch.setattr(TextClassificationObjective, "loss", interrupted_loss)
    with pytest.raises(KeyboardInterrupt):
        train_run(config(data, **settings), tmp_path / "killed")
    assert not (tmp_path / "killed/config.json").exists()
    report = train_run(config(data, **settings), tmp_path / "killed")
    assert report.metrics == uninterrupted.metrics
    assert have_same_weights(tmp_path / "uninterrupted", tmp_path / "killed")


def test_seeds_resume_although_the_folder_of_their_features_is_gone(
    data: Path, elmo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"training.steps": 6, "fine_tuning.seeds": 2, "fine_tuning.features": str(elmo)}
    uninterrupted = train_run(config(data, **settings), tmp_path / "uninterrupted")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TextClassificationObjective, "loss", _interrupt)
        train_run(config(data, **settings), tmp_path / "killed")
    assert not (tmp_path / "killed/seeds/2").exists()
    shutil.rmtree(elmo)
    report = train_run(config(data, **settings), tmp_path / "killed")
    assert report.metrics == uninterrupted.metrics
    assert have_same_weights(tmp_path / "uninterrupted", tmp_path / "killed")
    assert load_classifier(tmp_path / "killed", threads=1)("a big apple") in ("fruit", "beast")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_mean_and_deviation_are_those_of_a_sample() -> None:
    assert mean_and_std([{"a": 1.0}, {"a": 2.0}, {"a": 6.0}]) == {"a": 3.0, "a_deviation": pytest.approx(7**0.5)}
    assert mean_and_std([{"a": 1.0}]) == {"a": 1.0, "a_deviation": 0.0}


def test_truncated_texts_are_reported(data: Path, tmp_path: Path) -> None:
    listener = Listener()
    train_run(config(data, **{"training.steps": 1, "data.max_length": 4}), tmp_path / "run", listeners=[listener])
    lines = listener.of("plan")[0]["lines"]
    note = r"training: \d+ of 144 texts truncated \(rows of 4 tokens\): .* are not read: see --max-length"
    assert any(re.fullmatch(note, line) for line in lines)
    label = load_classifier(tmp_path / "run", threads=1)("apple pear plum fig dog cat")
    assert label.truncated == 2


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ("a\tone\nb\tone\n", {}, r"bad\.tsv: all 2 texts have the label 'one'"),
        ("a\tone\nb\t \n", {}, r"bad\.tsv:2: the label is blank"),
        ("a\tone\nb\ttwo\n", {"data.read.label": "mood", "data.read.text": "text"}, "no column 'text'"),
        ("a\tone\nb\ttwo\n", {}, "set validation data with --valid"),
        ("a\tone\nb\ttwo\n", {"data.valid": "data.tsv"}, r"data\.tsv:1: the label 'fruit' is not one that was learned"),
        ("a\tone\nb\ttwo\n", {"fine_tuning.features": "nowhere"}, "nowhere: no such folder"),
        ("a\tone\nb\ttwo\n", {"fine_tuning.features": "."}, r"no config\.json in it"),
        ("a\tone\nb\ttwo\n", {"preset": "big"}, "preset must be one of auto, tiny, small, base"),
    ],
)
def test_wrong_data_and_settings_are_refused(
    data: Path, tmp_path: Path, rows: str, changes: dict[str, object], message: str
) -> None:
    (tmp_path / "bad.tsv").write_text(rows)
    settings: dict[str, object] = {**SMALL, "data.train": (str(tmp_path / "bad.tsv"),), **changes}
    if "data.valid" in changes:
        settings["data.valid"] = (str(data),)
    elif "--valid" not in message:
        settings["data.valid"] = (str(tmp_path / "bad.tsv"),)
    if "fine_tuning.features" in changes:
        settings["fine_tuning.features"] = str(tmp_path / str(changes["fine_tuning.features"]))
    if settings["preset"] != "custom":
        settings = {name: value for name, value in settings.items() if not name.startswith("rnn_classifier.")}
    with pytest.raises((DataError, UsageError, CheckpointError, ConfigError), match=message) as error:
        train_run(ClassifyRun.build({**settings}), tmp_path / "run")
    assert error.value.exit_code == 2


def test_a_folder_without_features_is_refused(data: Path, elmo: Path, tmp_path: Path) -> None:
    train_run(config(data, **{"training.steps": 1}), tmp_path / "plain")
    for seeds in (1, 2):
        settings = {"fine_tuning.features": str(tmp_path / "plain"), "fine_tuning.seeds": seeds}
        with pytest.raises(CheckpointError, match="plain: .* whose layers are not features: ELMo, a BERT-style"):
            train_run(config(data, **settings), tmp_path / "run")
        assert not (tmp_path / "run/features").exists()


def test_other_features_than_those_of_training_are_refused(data: Path, elmo: Path, tmp_path: Path) -> None:
    train_run(config(data, **{"training.steps": 1, "fine_tuning.features": str(elmo)}), tmp_path / "run")
    shutil.rmtree(tmp_path / "run/features")
    saved_elmo(tmp_path / "run/features", ["other words"])
    with pytest.raises(CheckpointError, match="not the features that the model was trained with"):
        load_classifier(tmp_path / "run", threads=1)


def test_initial_weights_depend_on_the_seed() -> None:
    from regard.config.rnn_models import RnnTextConfig

    weights = []
    for seed in (1, 1, 2):
        model = build_model(
            RnnClassifierConfig(num_labels=2, encoder=RnnTextConfig(vocab_size=5, embedding_size=3, hidden_size=3))
        )
        initialize_weights(model, seed)
        weights.append(model.classifier.weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
