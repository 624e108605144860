"""Fine-tuning encoders to classify, tag and answer: learning, calibration, resuming, inference, other libraries."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.cli import run
from regard.config.runs import build_run
from regard.engine.library import unavailable_reason
from regard.errors import ConfigError
from regard.pipeline.load import load_answerer, load_classifier, load_tagger
from regard.tasks.tagging_objectives import TaggingObjective
from regard.training.run import train_run
from tests.encoders import saved_encoder

Output = pytest.CaptureFixture[str]
MOODS = {"good": ("lovely", "bright", "warm"), "bad": ("dull", "grim", "cold")}
THINGS = [f"w{index}" for index in range(6)]
NAMES = {"person": ("ada", "alan", "grace"), "place": ("london", "paris", "rome")}
FAST = "--threads 1 --precision float32 --learning-rate 0.003 --batch-tokens 64 --evaluate-every 60".split()


def draw_moods(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Texts with their labels."""
    rng = random.Random(seed)
    examples = []
    for index in range(count):
        mood = "bad" if index % 2 else "good"
        examples.append((f"the {rng.choice(THINGS)} was {rng.choice(MOODS[mood])}", mood))
    return examples


def draw_sentences(count: int, seed: int = 1) -> list[list[tuple[str, str]]]:
    """Sentences of words with their tags."""
    rng = random.Random(seed)
    sentences = []
    for _ in range(count):
        person = rng.choice(NAMES["person"])
        place = rng.choice(NAMES["place"])
        last_name = [("lee", "I-person")] if rng.random() < 0.5 else []
        sentences.append(
            [("the", "O"), (person, "B-person"), *last_name, ("was", "O"), ("in", "O"), (place, "B-place")]
        )
    return sentences


def draw_questions(count: int, seed: int = 1, unanswerable: bool = False) -> dict[str, object]:
    """Questions in the format of SQuAD."""
    rng = random.Random(seed)
    paragraphs = []
    for index in range(count):
        person = rng.choice(NAMES["person"])
        place = rng.choice(NAMES["place"])
        passage = f"the {rng.choice(THINGS)} was warm and {person} was in {place} and all was bright"
        questions: list[dict[str, object]] = [
            {"question": question, "answers": [{"text": answer, "answer_start": passage.index(answer)}]}
            for question, answer in (("who was it", person), ("where was it", place))
        ]
        if unanswerable:
            question = {"id": f"{index}-none", "question": "dull grim cold", "answers": [], "is_impossible": True}
            questions.append(question)
        paragraphs.append({"context": passage, "qas": questions})
    return {"data": [{"paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data for all tasks and an untrained encoder with a matching vocabulary."""
    folder = tmp_path_factory.mktemp("tuning")
    for name, rows in (("train", draw_moods(160)), ("test", draw_moods(40, 2))):
        (folder / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
        several = [f"{text}\t{label}{'; w0' if 'w0' in text else ''}\n" for text, label in rows]
        (folder / f"{name}-several.tsv").write_text("".join(several))
        pairs = [f"{text}\tthe {random.Random(text).choice(THINGS)}\t{label}\n" for text, label in rows]
        (folder / f"{name}-pairs.tsv").write_text("".join(pairs))
    for name, sentences in (("train", draw_sentences(120)), ("test", draw_sentences(30, 2))):
        text = "\n\n".join("\n".join(f"{word}\t{tag}" for word, tag in sentence) for sentence in sentences)
        (folder / f"{name}.conll").write_text(text + "\n")
    (folder / "train.json").write_text(json.dumps(draw_questions(120)))
    (folder / "none.json").write_text(json.dumps(draw_questions(80, unanswerable=True)))
    (folder / "test.json").write_text(json.dumps(draw_questions(20, 2)))
    texts = [text for text, _ in draw_moods(50)]
    texts += [" ".join(word for word, _ in sentence) for sentence in draw_sentences(40)]
    saved_encoder(folder / "encoder", [*texts, "who was it", "where was it", "and all"])
    return folder


def fine_tune(workspace: Path, task: str, data: str, out: str, *options: str) -> Path:
    test = data.replace("train", "test").replace("none", "test")
    command = ["train", task, str(workspace / data), "--from", str(workspace / "encoder")]
    command += ["--test", str(workspace / test), "--out", str(workspace / out), *FAST, *options]
    assert run(command) == 0
    return workspace / out


@pytest.fixture(scope="module")
def classifier(workspace: Path) -> Path:
    return fine_tune(workspace, "classify", "train.tsv", "mood", "--epochs", "12")


@pytest.fixture(scope="module")
def tagger(workspace: Path) -> Path:
    return fine_tune(workspace, "tag", "train.conll", "names", "--epochs", "12")


@pytest.fixture(scope="module")
def answerer(workspace: Path) -> Path:
    return fine_tune(workspace, "answer", "train.json", "answers", "--epochs", "12", "--batch-tokens", "160")


def read_metrics(folder: Path) -> dict[str, float]:
    metrics = json.loads((folder / "task.json").read_text())["metrics"]
    assert isinstance(metrics, dict)
    return metrics


def test_a_classifier_is_trained_and_calibrated(classifier: Path) -> None:
    metrics = read_metrics(classifier)
    assert metrics["test_accuracy"] > 95
    assert metrics["test_calibration_error"] < 0.1
    assert {"test_baseline", "test_gain", "test_gain_interval"} <= set(metrics)
    model = load_classifier(classifier, threads=1)
    assert model("the w1 was lovely") == "good"
    assert model.task["temperature"] > 0
    long = model("the w1 was grim " * 40)
    assert (long, long.truncated) == ("bad", 0)
    assert long.windows > 2
    assert "read in windows" in model.truncation_report.format()
    assert model.classify([" ", ""]) == ["", ""]
    assert "; 2 more without a word, left unlabelled" in model.truncation_report.format()


def test_the_command_line_classifies_texts(classifier: Path, capfd: Output) -> None:
    assert run(["classify", str(classifier), "the w1 was lovely", "the w2 was grim", "--threads", "1", "--json"]) == 0
    out, error = capfd.readouterr()
    results = [json.loads(line) for line in out.splitlines()]
    assert [result["label"] for result in results] == ["good", "bad"]
    assert results[0]["windows"] == 1
    assert "nothing truncated: 2 texts" in error


def test_a_page_of_errors_is_written(classifier: Path, tmp_path: Path, capfd: Output) -> None:
    (tmp_path / "test.tsv").write_text("the w1 was lovely\tbad\nthe w2 was <grim>\tbad\nthe w3 was warm\tgood\n")
    path = tmp_path / "errors.html"
    assert run(["evaluate", str(classifier), str(tmp_path / "test.tsv"), "--page", str(path), "--threads", "1"]) == 0
    page = path.read_text()
    assert "1 of 3 texts" in page
    assert "Doubtful labels" in page
    assert "test.tsv:1" in page
    assert "<script" not in page
    assert "calibration error" in capfd.readouterr().out


@pytest.mark.skipif(bool(unavailable_reason()), reason="the engine is not built")
def test_accuracy_is_evaluated_in_every_precision(classifier: Path, tmp_path: Path, capfd: Output) -> None:
    (tmp_path / "test.tsv").write_text("the w1 was lovely\tgood\nthe w2 was grim\tbad\n")
    for precision in ("float32", "int8"):
        assert run(["evaluate", str(classifier), str(tmp_path / "test.tsv"), "--precision", precision, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["accuracy"] == 100


def test_an_unknown_label_is_refused_with_its_location(classifier: Path, tmp_path: Path, capfd: Output) -> None:
    (tmp_path / "test.tsv").write_text("the w1 was lovely\tgood\nthe w2 was grim\tbat\n")
    assert run(["evaluate", str(classifier), str(tmp_path / "test.tsv"), "--threads", "1"]) == 2
    assert "test.tsv:2: the label 'bat' is not one that was learned (did you mean bad?)" in capfd.readouterr().err


def test_a_single_label_is_refused(workspace: Path, tmp_path: Path, capfd: Output) -> None:
    (tmp_path / "one.tsv").write_text("a\tgood\nb\tgood\n")
    command = ["train", "classify", str(tmp_path / "one.tsv"), "--from", str(workspace / "encoder")]
    assert run([*command, "--out", str(tmp_path / "run"), *FAST]) == 2
    assert "all 2 texts have the label 'good'" in capfd.readouterr().err


def test_several_labels_per_text_have_thresholds(workspace: Path) -> None:
    folder = fine_tune(
        workspace, "classify", "train-several.tsv", "several", "--epochs", "14", "--label-separator", ";"
    )
    metrics = read_metrics(folder)
    assert metrics["test_macro_f1"] > 80
    assert metrics["test_macro_f1"] >= metrics["test_macro_f1_before"] - 10
    assert metrics["valid_macro_f1"] >= metrics["valid_macro_f1_before"]
    model = load_classifier(folder, threads=1)
    assert set(model.task["thresholds"]) == {"good", "bad", "w0"}
    assert set(model("the w0 was lovely").labels) == {"good", "w0"}
    config = json.loads((folder / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"


def test_pairs_of_texts_are_classified(workspace: Path, capfd: Output) -> None:
    columns = ["--text", "1", "--pair", "2", "--label", "3"]
    folder = fine_tune(
        workspace, "classify", "train-pairs.tsv", "pairs", "--epochs", "12", *columns, "--class-weights", "balanced"
    )
    assert read_metrics(folder)["test_accuracy"] > 90
    capfd.readouterr()
    assert run(["classify", str(folder), "the w1 was lovely\tthe w2", "--threads", "1"]) == 0
    assert capfd.readouterr().out.startswith("good\t")
    assert run(["classify", str(folder), "the w1 was lovely", "--threads", "1"]) == 2
    assert "put a tab between the two" in capfd.readouterr().err


def test_a_frozen_encoder_keeps_its_weights(workspace: Path) -> None:
    from regard.checkpoint.encoder_dir import load_encoder

    folder = fine_tune(workspace, "classify", "train.tsv", "frozen", "--epochs", "20", "--freeze-encoder")
    before = load_encoder(workspace / "encoder").weights
    after = load_encoder(folder).weights
    assert all(
        np.array_equal(before[name], after[name]) for name in before if name.startswith(("encoder", "token_embedding"))
    )
    assert not np.array_equal(before["pooler.weight"], after["pooler.weight"])
    assert read_metrics(folder)["test_accuracy"] > 60


def test_layer_decay_slows_down_lower_layers(workspace: Path) -> None:
    from regard.checkpoint.encoder_dir import load_encoder

    folder = fine_tune(workspace, "classify", "train.tsv", "layered", "--steps", "3", "--layer-lr-decay", "0.1")
    before = load_encoder(workspace / "encoder").weights
    after = load_encoder(folder).weights

    def mean_change(layer: int) -> float:
        prefix = f"encoder.layers.{layer}."
        matrices = [name for name in before if name.startswith(prefix) and before[name].dim() > 1]
        return float(np.mean([float((after[name] - before[name]).abs().mean()) for name in matrices]))

    assert 0 < mean_change(0) < 0.3 * mean_change(1)


def test_several_seeds_are_summarized(workspace: Path) -> None:
    folder = fine_tune(workspace, "tag", "train.conll", "seeds", "--steps", "4", "--seeds", "2")
    metrics = json.loads((folder / "run.json").read_text())["result"]["metrics"]
    assert {"test_f1", "test_f1_deviation"} <= set(metrics)
    assert load_tagger(folder, threads=1)("ada").words == ["ada"]


def test_a_tagger_is_trained(tagger: Path) -> None:
    assert read_metrics(tagger)["test_f1"] > 90
    model = load_tagger(tagger, threads=1)
    text = "the ada lee was in london"  # of tokens that the training texts have, too
    entities = model(text).entities
    assert [(entity.label, entity.text) for entity in entities] == [("person", "ada lee"), ("place", "london")]
    assert all(text[entity.start : entity.end] == entity.text for entity in entities)
    long = model(" ".join(["the grace was in paris"] * 30))
    assert (long.windows > 1, len(long.tags)) == (True, 150)
    # In every window, though such late positions did not occur in training.
    assert sum(entity.text == "grace" for entity in long.entities) > 20


def test_the_command_line_tags_texts(tagger: Path, workspace: Path, capfd: Output) -> None:
    assert run(["tag", str(tagger), "the ada was in rome", "", "--threads", "1"]) == 0
    rows = [line.split("\t")[:3] for line in capfd.readouterr().out.splitlines()]
    assert rows == [["0", "person", "ada"], ["0", "place", "rome"]]
    assert run(["tag", str(tagger), "the ada was in rome", "--threads", "1", "--conll"]) == 0
    assert "ada\tB-person" in capfd.readouterr().out.splitlines()
    assert run(["evaluate", str(tagger), str(workspace / "test.conll"), "--threads", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["f1"] > 90


def test_questions_whose_answer_fits_no_window_are_left_out_and_counted(
    workspace: Path, tmp_path: Path, capfd: Output
) -> None:
    document = draw_questions(6)
    paragraph = document["data"][0]["paragraphs"][2]  # type: ignore[index]
    paragraph["qas"][1]["answers"] = [{"text": paragraph["context"], "answer_start": 0}]
    path = tmp_path / "train.json"
    path.write_text(json.dumps(document))
    command = ["train", "answer", str(path), "--valid", str(workspace / "test.json"), *FAST, "--steps", "1"]
    command += ["--from", str(workspace / "encoder"), "--max-length", "16", "--out", str(tmp_path / "run")]
    assert run(command) == 0
    error = capfd.readouterr().err
    assert "1 training questions are left out: no window contains their answers whole" in error
    assert f"(the first is {path}:data[0].paragraphs[2].qas[1])" in error
    assert "data: 12 questions" in error


def test_answers_are_spans_of_the_passage(answerer: Path, workspace: Path, tmp_path: Path, capfd: Output) -> None:
    assert read_metrics(answerer)["test_f1"] > 80
    model = load_answerer(answerer, threads=1)
    passage = "the w1 was warm and grace was in rome and all was bright"
    answer = model.answer([("who was it", passage)], top_k=3)[0]
    assert answer.text == "grace"
    assert passage[answer.start : answer.end] == answer.text
    assert 0 < answer.score <= 1
    assert len(answer.alternatives) == 2
    (tmp_path / "notes.txt").write_text(("the w1 was warm and all was bright and " * 20) + "grace was in rome")
    command = ["answer", str(answerer), "--passage", str(tmp_path / "notes.txt"), "who was it", "--threads", "1"]
    assert run([*command, "--json"]) == 0
    out, error = capfd.readouterr()
    assert json.loads(out)["windows"] > 1
    assert "read in windows" in error
    assert run(["evaluate", str(answerer), str(workspace / "test.json"), "--threads", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["f1"] > 80


def test_a_passage_is_needed(answerer: Path, capfd: Output) -> None:
    assert run(["answer", str(answerer), "who was it", "--threads", "1"]) == 2
    assert "--passage" in capfd.readouterr().err


def test_questions_without_answer_are_recognized(workspace: Path) -> None:
    folder = fine_tune(workspace, "answer", "none.json", "none", "--epochs", "20", "--batch-tokens", "200")
    model = load_answerer(folder, threads=1)
    assert model.threshold > -1e8
    passage = "the w1 was warm and grace was in rome and all was bright"
    assert model("dull grim cold", passage).text == ""
    assert model("who was it", passage).text == "grace"


def test_transformers_opens_the_saved_folders(classifier: Path, tagger: Path, answerer: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for folder, head in (
        (classifier, "SequenceClassification"),
        (tagger, "TokenClassification"),
        (answerer, "QuestionAnswering"),
    ):
        model_class = getattr(transformers, f"AutoModelFor{head}")
        model, report = model_class.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"], head
        assert not report["unexpected_keys"], head
        assert model.config.id2label[0] in ("bad", "O", "LABEL_0")


def test_frozen_states_that_take_longer_than_the_budget_are_refused(workspace: Path, tmp_path: Path) -> None:
    settings = {"pretrained": str(workspace / "encoder"), "fine_tuning.freeze_encoder": True, "training.minutes": 1e-7}
    with pytest.raises(ConfigError, match=r"frozen states of \d+ texts take about .* allow at least"):
        train_run(build_run("classify", {**settings, "data.train": [str(workspace / "train.tsv")]}), tmp_path / "run")


def test_an_interrupted_run_ends_in_the_same_bits(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"pretrained": str(workspace / "encoder"), "training.threads": 1, "training.precision": "float32"}
    settings |= {"training.steps": 6, "training.save_every": 3, "training.batch_tokens": 64}
    config = build_run("tag", {**settings, "data.train": [str(workspace / "train.conll")]})
    train_run(config, tmp_path / "uninterrupted")
    original_loss = TaggingObjective.loss
    calls = 0

    def interrupted_loss(self: TaggingObjective, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:  # after the checkpoint of step 3; the timing of the first run is cached
            raise KeyboardInterrupt
        return original_loss(self, *arguments)

    monkeypatch.setattr(TaggingObjective, "loss", interrupted_loss)
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "killed")
    train_run(config, tmp_path / "killed")
    expected = (tmp_path / "uninterrupted" / "model.safetensors").read_bytes()
    assert (tmp_path / "killed" / "model.safetensors").read_bytes() == expected
