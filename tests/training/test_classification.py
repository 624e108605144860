"""Training classifiers: what they learn, with frozen features and without, over seeds, and after a stop bit by bit."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.checkpoint.reader_folder import load_reader
from regard.config.model import ClassifierConfig, ElmoConfig
from regard.config.run import RunConfig
from regard.config.tasks import usual
from regard.errors import CheckpointError, ConfigError, DataError, UsageError
from regard.models import build
from regard.models.base import start_weights
from regard.pipeline import load_classifier
from regard.tasks.classification import ClassificationTask
from regard.training.run import train_run
from regard.training.seeds import spread
from tests.readers import saved_elmo
from tests.training.listener import Listener, sittings

SMALL = {
    "preset": "custom",
    "classifier.encoder.width": 8,
    "classifier.encoder.embedding": 8,
    "tokenizer.kind": "words",
    "training.batch_tokens": 64,
    "training.threads": 1,
    "training.precision": "float32",
}
FRUITS, BEASTS = ("apple", "pear", "plum", "fig"), ("dog", "cat", "cow", "hen")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Texts with a fruit or a beast among other words; which of them, the label says."""
    chance, rows = random.Random(1), []
    for number in range(160):
        words = [f"x{chance.randrange(9)}" for _ in range(chance.randint(2, 6))]
        kind = number % 2
        words.insert(chance.randrange(len(words)), chance.choice((FRUITS, BEASTS)[kind]))
        rows.append(f"{' '.join(words)}\t{('fruit', 'beast')[kind]}")
    path = tmp_path / "data.tsv"
    path.write_text("\n".join(rows), "utf-8")
    return path


@pytest.fixture
def elmo(tmp_path: Path) -> Path:
    return saved_elmo(tmp_path / "elmo", [*FRUITS, *BEASTS, "x1 x2"])


def config(data: Path, **changes: object) -> RunConfig:
    return RunConfig().override({**usual("classify"), **SMALL, "data.train": (str(data),), **changes})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_reader(folder, ClassifierConfig, "classify").weights


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("features", [False, True])
def test_it_learns_the_labels(data: Path, elmo: Path, tmp_path: Path, features: bool) -> None:
    listener = Listener()
    settings = {"training.epochs": 12.0, "classify.features": str(elmo) if features else ""}
    report = train_run(config(data, **settings), tmp_path / "run", watchers=[listener])
    assert report.metrics["valid_accuracy"] == 100
    assert report.metrics["valid_macro_f1"] == 100
    lines = listener.of("plan")[0]["lines"]
    assert any("labels: 2 (beast" in line for line in lines)
    assert any("made once for all texts and kept" in line for line in lines) is features
    task = json.loads((tmp_path / "run/task.json").read_text())
    assert task["labels"] == ["beast", "fruit"]
    assert ("features" in task) is features
    if features:
        assert sum(task["features"]["weights"]) == pytest.approx(1)
        assert task["features"]["weights"] != [1 / 3] * 3


def test_features_stay_as_they_are_and_move_with_the_classifier(data: Path, elmo: Path, tmp_path: Path) -> None:
    before = load_reader(elmo, ElmoConfig, "language")
    train_run(config(data, **{"training.steps": 3, "classify.features": str(elmo)}), tmp_path / "run")
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["data"]["features"] == before.digest
    shutil.move(tmp_path / "run", tmp_path / "moved")
    shutil.rmtree(elmo)
    after = load_reader(tmp_path / "moved/features", ElmoConfig, "language")
    assert after.digest == before.digest
    assert all(torch.equal(after.weights[name], before.weights[name]) for name in before.weights)
    assert load_classifier(tmp_path / "moved", threads=1)("a big apple") in ("fruit", "beast")


def test_features_that_do_not_fit_are_made_anew_with_the_same_result(data: Path, elmo: Path, tmp_path: Path) -> None:
    settings = {"training.steps": 4, "classify.features": str(elmo)}
    train_run(config(data, **settings), tmp_path / "kept")
    listener = Listener()
    train_run(config(data, **settings, **{"classify.features_memory": 0}), tmp_path / "anew", watchers=[listener])
    assert any("made anew in each batch" in line for line in listener.of("plan")[0]["lines"])
    torch.testing.assert_close(weights(tmp_path / "kept"), weights(tmp_path / "anew"), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("features", [False, True])
def test_interrupted_at_any_step_it_ends_in_the_same_bits(
    data: Path, elmo: Path, tmp_path: Path, features: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"training.steps": 14, "training.save_every": 3, "training.evaluate_every": 5}
    settings |= {"classify.features": str(elmo)} if features else {}  # type: ignore[dict-item]
    train_run(config(data, **settings), tmp_path / "alone")
    begun = sittings(ClassificationTask, lambda: train_run(config(data, **settings), tmp_path / "killed"), monkeypatch)
    assert begun > 1
    assert same(tmp_path / "alone", tmp_path / "killed")
    assert (tmp_path / "alone/log.jsonl").read_bytes() == (tmp_path / "killed/log.jsonl").read_bytes()


def test_several_seeds_give_mean_and_spread_and_the_best_model(data: Path, elmo: Path, tmp_path: Path) -> None:
    settings = {"training.steps": 6, "classify.test": str(data), "classify.features": str(elmo)}
    listener = Listener()
    report = train_run(config(data, **settings, **{"classify.seeds": 3}), tmp_path / "run", watchers=[listener])
    singles = [json.loads((tmp_path / f"run/seeds/{seed}/run.json").read_text())["finished"] for seed in (1, 2, 3)]
    for name in ("valid_accuracy", "test_accuracy", "test_macro_f1"):
        values = [single["metrics"][name] for single in singles]
        assert report.metrics[name] == pytest.approx(sum(values) / 3)
    assert report.metrics["valid_loss_deviation"] > 0
    assert (report.step, report.unit) == (3, "seed")
    task = json.loads((tmp_path / "run/task.json").read_text())
    best = max(task["seeds"]["each"], key=lambda one: (one["valid_accuracy"], -one["valid_loss"]))
    assert task["seeds"]["best"] == best["seed"]
    assert same(tmp_path / "run", tmp_path / f"run/seeds/{best['seed']}")
    shutil.rmtree(tmp_path / "run/seeds")
    assert load_classifier(tmp_path / "run", threads=1)("a big apple") in ("fruit", "beast")
    alone = train_run(config(data, **settings, **{"training.seed": 2}), tmp_path / "alone")
    assert alone.metrics == singles[1]["metrics"]
    assert len(listener.of("plan")) == 1 == len(listener.of("done"))


def test_seeds_go_on_where_they_stopped(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"training.steps": 6, "classify.seeds": 2}
    alone = train_run(config(data, **settings), tmp_path / "alone")
    honest, calls = ClassificationTask.loss, 0

    def dying(self: ClassificationTask, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 9:  # in the second seed's run; the first run stored what timing found
            raise KeyboardInterrupt
        return honest(self, *arguments)

    monkeypatch.setattr(ClassificationTask, "loss", dying)
    with pytest.raises(KeyboardInterrupt):
        train_run(config(data, **settings), tmp_path / "killed")
    assert not (tmp_path / "killed/config.json").exists()
    report = train_run(config(data, **settings), tmp_path / "killed")
    assert report.metrics == alone.metrics
    assert same(tmp_path / "alone", tmp_path / "killed")


def test_mean_and_spread_are_those_of_the_textbook() -> None:
    assert spread([{"a": 1.0}, {"a": 2.0}, {"a": 6.0}]) == {"a": 3.0, "a_deviation": pytest.approx(7**0.5)}
    assert spread([{"a": 1.0}]) == {"a": 1.0, "a_deviation": 0.0}


def test_what_is_cut_is_told(data: Path, tmp_path: Path) -> None:
    listener = Listener()
    train_run(config(data, **{"training.steps": 1, "data.max_length": 4}), tmp_path / "run", watchers=[listener])
    assert any("training texts are cut after 4 tokens" in line for line in listener.of("plan")[0]["lines"])
    label = load_classifier(tmp_path / "run", threads=1)("apple pear plum fig dog cat")
    assert label.cut == 2


@pytest.mark.parametrize(
    ("rows", "changes", "words"),
    [
        ("a\tone\nb\tone\n", {}, r"bad\.tsv: all 2 texts have the label 'one'"),
        ("a\tone\nb\t \n", {}, r"bad\.tsv:2: the label is blank"),
        ("a\tone\nb\ttwo\n", {"data.read.label": "mood", "data.read.text": "text"}, "no column 'text'"),
        ("a\tone\nb\ttwo\n", {}, "give validation data with --valid"),
        ("a\tone\nb\ttwo\n", {"data.valid": "data.tsv"}, r"data\.tsv:1: the label 'fruit' is not one that was learned"),
        ("a\tone\nb\ttwo\n", {"classify.features": "nowhere"}, "nowhere: no such folder"),
        ("a\tone\nb\ttwo\n", {"classify.features": "."}, r"no config\.json in it"),
        ("a\tone\nb\ttwo\n", {"preset": "big"}, "preset must be one of tiny, small, base"),
    ],
)
def test_what_it_refuses(data: Path, tmp_path: Path, rows: str, changes: dict[str, object], words: str) -> None:
    (tmp_path / "bad.tsv").write_text(rows)
    given: dict[str, object] = {**SMALL, "data.train": (str(tmp_path / "bad.tsv"),), **changes}
    if "data.valid" in changes:
        given["data.valid"] = (str(data),)
    else:
        given["data.valid"] = (str(tmp_path / "bad.tsv"),) if "--valid" not in words else ()
    if "classify.features" in changes:
        given["classify.features"] = str(tmp_path / str(changes["classify.features"]))
    if given["preset"] != "custom":
        given = {name: value for name, value in given.items() if not name.startswith("classifier.")}
    with pytest.raises((DataError, UsageError, CheckpointError, ConfigError), match=words) as error:
        train_run(RunConfig().override({**usual("classify"), **given}), tmp_path / "run")
    assert error.value.exit_code == 2


def test_a_folder_that_holds_no_features_is_refused_as_such(data: Path, elmo: Path, tmp_path: Path) -> None:
    train_run(config(data, **{"training.steps": 1}), tmp_path / "plain")
    with pytest.raises(CheckpointError, match="a model for the task 'classify'; one for 'language' is needed"):
        train_run(config(data, **{"classify.features": str(tmp_path / "plain")}), tmp_path / "run")
    assert not (tmp_path / "run/features").exists()


def test_other_features_than_it_learned_with_are_refused(data: Path, elmo: Path, tmp_path: Path) -> None:
    train_run(config(data, **{"training.steps": 1, "classify.features": str(elmo)}), tmp_path / "run")
    shutil.rmtree(tmp_path / "run/features")
    saved_elmo(tmp_path / "run/features", ["other words"])
    with pytest.raises(CheckpointError, match="not the features that the classifier was trained with"):
        load_classifier(tmp_path / "run", threads=1)


def test_a_model_starts_from_its_seed() -> None:
    from regard.config.model import ReaderConfig

    made = []
    for seed in (1, 1, 2):
        model = build(ClassifierConfig(labels=2, encoder=ReaderConfig(vocabulary=5, embedding=3, width=3)))
        start_weights(model, seed)
        made.append(model.output.weight.detach().clone())
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
