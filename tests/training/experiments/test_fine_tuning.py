"""Encoders fine-tuned to classify, tag and answer: learned, kept, calibrated, resumed, used, read by others."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.cli import run
from regard.cli.train import build_run
from regard.engine.library import unavailable_reason
from regard.errors import ConfigError
from regard.pipeline.loaders import load_answerer, load_classifier, load_tagger
from regard.tasks.tagging import TaggingObjective
from regard.training.run import train_run
from tests.encoders import saved_encoder

Output = pytest.CaptureFixture[str]
MOODS = {"good": ("lovely", "bright", "warm"), "bad": ("dull", "grim", "cold")}
THINGS = [f"w{number}" for number in range(6)]
NAMES = {"person": ("ada", "alan", "grace"), "place": ("london", "paris", "rome")}
FAST = "--threads 1 --precision float32 --learning-rate 0.003 --batch-tokens 64 --evaluate-every 60".split()


def moods(count: int, seed: int = 1) -> list[tuple[str, str]]:
    chance = random.Random(seed)
    made = []
    for number in range(count):
        mood = ("good", "bad")[number % 2]
        made.append((f"the {chance.choice(THINGS)} was {chance.choice(MOODS[mood])}", mood))
    return made


def sentences(count: int, seed: int = 1) -> list[list[tuple[str, str]]]:
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        person, place = (chance.choice(NAMES[kind]) for kind in ("person", "place"))
        last = [("lee", "I-person")] if chance.random() < 0.5 else []
        made.append([("the", "O"), (person, "B-person"), *last, ("was", "O"), ("in", "O"), (place, "B-place")])
    return made


def questions(count: int, seed: int = 1, none: bool = False) -> dict[str, object]:
    chance = random.Random(seed)
    paragraphs = []
    for number in range(count):
        person, place = (chance.choice(NAMES[kind]) for kind in ("person", "place"))
        passage = f"the {chance.choice(THINGS)} was warm and {person} was in {place} and all was bright"
        found = [("who was it", person), ("where was it", place)]
        asked: list[dict[str, object]] = [
            {"question": word, "answers": [{"text": text, "answer_start": passage.index(text)}]} for word, text in found
        ]
        if none:
            asked.append({"id": f"{number}-none", "question": "dull grim cold", "answers": [], "is_impossible": True})
        paragraphs.append({"context": passage, "qas": asked})
    return {"data": [{"paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data of all kinds and an encoder that can read it, though it has learned nothing yet."""
    folder = tmp_path_factory.mktemp("tuning")
    for name, rows in (("train", moods(160)), ("test", moods(40, 2))):
        (folder / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
        several = [f"{text}\t{label}{'; w0' if 'w0' in text else ''}\n" for text, label in rows]
        (folder / f"{name}-several.tsv").write_text("".join(several))
        pairs = [f"{text}\tthe {random.Random(text).choice(THINGS)}\t{label}\n" for text, label in rows]
        (folder / f"{name}-pairs.tsv").write_text("".join(pairs))
    for name, found in (("train", sentences(120)), ("test", sentences(30, 2))):
        text = "\n\n".join("\n".join(f"{word}\t{tag}" for word, tag in sentence) for sentence in found)
        (folder / f"{name}.conll").write_text(text + "\n")
    (folder / "train.json").write_text(json.dumps(questions(120)))
    (folder / "none.json").write_text(json.dumps(questions(80, none=True)))
    (folder / "test.json").write_text(json.dumps(questions(20, 2)))
    texts = [text for text, _ in moods(50)] + [" ".join(w for w, _ in one) for one in sentences(40)]
    saved_encoder(folder / "encoder", [*texts, "who was it", "where was it", "and all"])
    return folder


def tuned(room: Path, task: str, data: str, out: str, *more: str) -> Path:
    test = data.replace("train", "test").replace("none", "test")
    words = ["train", task, str(room / data), "--from", str(room / "encoder"), "--test", str(room / test)]
    assert run([*words, "--out", str(room / out), *FAST, *more]) == 0
    return room / out


@pytest.fixture(scope="module")
def mood(room: Path) -> Path:
    return tuned(room, "classify", "train.tsv", "mood", "--epochs", "12")


@pytest.fixture(scope="module")
def names(room: Path) -> Path:
    return tuned(room, "tag", "train.conll", "names", "--epochs", "12")


@pytest.fixture(scope="module")
def answers(room: Path) -> Path:
    return tuned(room, "answer", "train.json", "answers", "--epochs", "12", "--batch-tokens", "160")


def metrics(folder: Path) -> dict[str, float]:
    found = json.loads((folder / "task.json").read_text())["metrics"]
    assert isinstance(found, dict)
    return found


def test_a_classifier_is_learned_and_calibrated(mood: Path) -> None:
    found = metrics(mood)
    assert found["test_accuracy"] > 95
    assert found["test_calibration_error"] < 0.1
    assert {"test_baseline", "test_gain", "test_gain_interval"} <= set(found)
    model = load_classifier(mood, threads=1)
    assert model("the w1 was lovely") == "good"
    assert model.task["temperature"] > 0
    long = model("the w1 was grim " * 40)
    assert (long, long.truncated) == ("bad", 0)
    assert long.windows > 2
    assert "read in windows" in model.account.format()
    assert model.classify([" ", ""]) == ["", ""]
    assert "; 2 more without a word, left unlabelled" in model.account.format()


def test_texts_are_classified_by_command(mood: Path, capfd: Output) -> None:
    assert run(["classify", str(mood), "the w1 was lovely", "the w2 was grim", "--threads", "1", "--json"]) == 0
    out, error = capfd.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["label"] for one in found] == ["good", "bad"]
    assert found[0]["windows"] == 1
    assert "nothing cut: 2 texts" in error


def test_an_error_book_is_written(room: Path, mood: Path, tmp_path: Path, capfd: Output) -> None:
    (tmp_path / "test.tsv").write_text("the w1 was lovely\tbad\nthe w2 was <grim>\tbad\nthe w3 was warm\tgood\n")
    book = tmp_path / "book.html"
    assert run(["evaluate", str(mood), str(tmp_path / "test.tsv"), "--errors", str(book), "--threads", "1"]) == 0
    page = book.read_text()
    assert "1 of 3 texts" in page
    assert "Doubtful labels" in page
    assert "test.tsv:1" in page
    assert "<script" not in page
    assert "calibration error" in capfd.readouterr().out


@pytest.mark.skipif(bool(unavailable_reason()), reason="the engine is not built")
def test_what_coarser_numbers_cost_is_measured(mood: Path, tmp_path: Path, capfd: Output) -> None:
    (tmp_path / "test.tsv").write_text("the w1 was lovely\tgood\nthe w2 was grim\tbad\n")
    for precision in ("float32", "int8"):
        assert run(["evaluate", str(mood), str(tmp_path / "test.tsv"), "--precision", precision, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["accuracy"] == 100


def test_an_unknown_label_is_refused_with_its_place(mood: Path, tmp_path: Path, capfd: Output) -> None:
    (tmp_path / "test.tsv").write_text("the w1 was lovely\tgood\nthe w2 was grim\tbat\n")
    assert run(["evaluate", str(mood), str(tmp_path / "test.tsv"), "--threads", "1"]) == 2
    assert "test.tsv:2: the label 'bat' is not one that was learned (did you mean bad?)" in capfd.readouterr().err


def test_a_single_label_is_refused(room: Path, tmp_path: Path, capfd: Output) -> None:
    (tmp_path / "one.tsv").write_text("a\tgood\nb\tgood\n")
    words = ["train", "classify", str(tmp_path / "one.tsv"), "--from", str(room / "encoder")]
    assert run([*words, "--out", str(tmp_path / "run"), *FAST]) == 2
    assert "all 2 texts have the label 'good'" in capfd.readouterr().err


def test_several_labels_have_thresholds(room: Path) -> None:
    folder = tuned(room, "classify", "train-several.tsv", "several", "--epochs", "14", "--label-separator", ";")
    found = metrics(folder)
    assert found["test_macro_f1"] > 80
    assert found["test_macro_f1"] >= found["test_macro_f1_before"] - 10
    assert found["valid_macro_f1"] >= found["valid_macro_f1_before"]
    model = load_classifier(folder, threads=1)
    assert set(model.task["thresholds"]) == {"good", "bad", "w0"}
    assert set(model("the w0 was lovely").labels) == {"good", "w0"}
    config = json.loads((folder / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"


def test_pairs_are_read_as_pairs(room: Path, capfd: Output) -> None:
    columns = ["--text", "1", "--pair", "2", "--label", "3"]
    folder = tuned(room, "classify", "train-pairs.tsv", "pairs", "--epochs", "12", *columns, "--weights", "balanced")
    assert metrics(folder)["test_accuracy"] > 90
    capfd.readouterr()
    assert run(["classify", str(folder), "the w1 was lovely\tthe w2", "--threads", "1"]) == 0
    assert capfd.readouterr().out.startswith("good\t")
    assert run(["classify", str(folder), "the w1 was lovely", "--threads", "1"]) == 2
    assert "put a tab between the two" in capfd.readouterr().err


def test_a_frozen_encoder_stays_as_it_is(room: Path) -> None:
    from regard.checkpoint.encoder_dir import load_encoder

    folder = tuned(room, "classify", "train.tsv", "frozen", "--epochs", "20", "--frozen")
    before, after = load_encoder(room / "encoder").weights, load_encoder(folder).weights
    assert all(np.array_equal(before[name], after[name]) for name in before if name.startswith(("stack", "words")))
    assert not np.array_equal(before["pooler.weight"], after["pooler.weight"])
    assert metrics(folder)["test_accuracy"] > 60


def test_lower_layers_learn_less(room: Path) -> None:
    from regard.checkpoint.encoder_dir import load_encoder

    folder = tuned(room, "classify", "train.tsv", "layered", "--steps", "3", "--layer-decay", "0.1")
    before, after = load_encoder(room / "encoder").weights, load_encoder(folder).weights
    names = [
        [name for name in before if name.startswith(f"stack.blocks.{layer}.") and before[name].dim() > 1]
        for layer in (0, 1)
    ]
    moved = [float(np.mean([float((after[name] - before[name]).abs().mean()) for name in some])) for some in names]
    assert 0 < moved[0] < 0.3 * moved[1]


def test_several_seeds_are_summed_up(room: Path) -> None:
    folder = tuned(room, "tag", "train.conll", "seeds", "--steps", "4", "--seeds", "2")
    found = json.loads((folder / "run.json").read_text())["finished"]["metrics"]
    assert {"test_f1", "test_f1_deviation"} <= set(found)
    assert load_tagger(folder, threads=1)("ada").words == ["ada"]


def test_a_tagger_is_learned(names: Path) -> None:
    assert metrics(names)["test_f1"] > 90
    model = load_tagger(names, threads=1)
    text = "the ada lee was in london."
    found = model(text).entities
    assert [(one.label, one.text) for one in found] == [("person", "ada lee"), ("place", "london")]
    assert all(text[one.start : one.end] == one.text for one in found)
    long = model(" ".join(["the grace was in paris"] * 30))
    assert (long.windows > 1, len(long.tags)) == (True, 150)
    assert sum(one.text == "grace" for one in long.entities) > 20  # in every window, though places so far back are new


def test_texts_are_tagged_by_command(names: Path, room: Path, capfd: Output) -> None:
    assert run(["tag", str(names), "the ada was in rome", "", "--threads", "1"]) == 0
    rows = [line.split("\t")[:3] for line in capfd.readouterr().out.splitlines()]
    assert rows == [["0", "person", "ada"], ["0", "place", "rome"]]
    assert run(["tag", str(names), "the ada was in rome", "--threads", "1", "--columns"]) == 0
    assert "ada\tB-person" in capfd.readouterr().out.splitlines()
    assert run(["evaluate", str(names), str(room / "test.conll"), "--threads", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["f1"] > 90


def test_answers_are_spans_of_the_passage(answers: Path, room: Path, tmp_path: Path, capfd: Output) -> None:
    assert metrics(answers)["test_f1"] > 80
    model = load_answerer(answers, threads=1)
    passage = "the w1 was warm and grace was in rome and all was bright"
    found = model.answer([("who was it", passage)], top_k=3)[0]
    assert found.text == "grace"
    assert passage[found.start : found.end] == found.text
    assert 0 < found.score <= 1
    assert len(found.alternatives) == 2
    (tmp_path / "notes.txt").write_text(("the w1 was warm and all was bright and " * 20) + "grace was in rome")
    asked = ["answer", str(answers), "--passage", str(tmp_path / "notes.txt"), "who was it", "--threads", "1"]
    assert run([*asked, "--json"]) == 0
    out, error = capfd.readouterr()
    assert json.loads(out)["windows"] > 1
    assert "read in windows" in error
    assert run(["evaluate", str(answers), str(room / "test.json"), "--threads", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["f1"] > 80


def test_a_passage_is_needed(answers: Path, capfd: Output) -> None:
    assert run(["answer", str(answers), "who was it", "--threads", "1"]) == 2
    assert "--passage" in capfd.readouterr().err


def test_no_answer_is_learned(room: Path) -> None:
    folder = tuned(room, "answer", "none.json", "none", "--epochs", "20", "--batch-tokens", "200")
    model = load_answerer(folder, threads=1)
    assert model.threshold > -1e8
    passage = "the w1 was warm and grace was in rome and all was bright"
    assert model("dull grim cold", passage).text == ""
    assert model("who was it", passage).text == "grace"


def test_folders_open_in_transformers(mood: Path, names: Path, answers: Path) -> None:
    transformers = pytest.importorskip("transformers")
    kinds = ("SequenceClassification", "TokenClassification", "QuestionAnswering")
    for folder, kind in zip((mood, names, answers), kinds, strict=True):
        opened, info = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"], kind
        assert not info["unexpected_keys"], kind
        assert opened.config.id2label[0] in ("bad", "O", "LABEL_0")


def test_frozen_states_that_take_longer_than_the_budget_are_refused(room: Path, tmp_path: Path) -> None:
    given = {"pretrained": str(room / "encoder"), "fine_tuning.freeze_encoder": True, "training.minutes": 1e-7}
    with pytest.raises(ConfigError, match=r"frozen states of \d+ texts take about .* allow at least"):
        train_run(build_run(("classify", str(room / "train.tsv")), None, given), tmp_path / "run")


def test_a_killed_run_goes_on_to_the_same_bits(room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"pretrained": str(room / "encoder"), "training.threads": 1, "training.precision": "float32"}
    given |= {"training.steps": 6, "training.save_every": 3, "training.batch_tokens": 64}
    config = build_run(("tag", str(room / "train.conll")), None, given)
    train_run(config, tmp_path / "whole")
    honest, calls = TaggingObjective.loss, 0

    def dying(self: TaggingObjective, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:  # after the save of step 3; the first run stored what timing found
            raise KeyboardInterrupt
        return honest(self, *arguments)

    monkeypatch.setattr(TaggingObjective, "loss", dying)
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "killed")
    train_run(config, tmp_path / "killed")
    whole, killed = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed"))
    assert whole == killed
