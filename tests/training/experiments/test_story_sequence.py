"""RNNs and Transformers on stories: learning, the folder, restarts, resuming to the same bits, verbs, refused data."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.checkpoint.atomic import read_json
from regard.cli import run as run_command
from regard.config.story_run import MEMORY_NETWORK, StoryQARun
from regard.engine.library import unavailable_reason
from regard.errors import DataError
from regard.interpret.attribution import explain
from regard.pipeline.story_qa import StoryQAPipeline
from regard.tasks.classification import ClassificationObjective, TextClassificationObjective
from regard.training.run import RunResult, train_run
from regard.view.page import page
from regard.view.record.record import Record
from tests.stories import write
from tests.training.killing import kill_during_training
from tests.training.listener import Listener, sittings
from tests.training.logs import log_without_throughput

ARCHITECTURES = ("rnn", "transformer")
SIZES: dict[str, dict[str, Any]] = {
    "rnn": {
        "architecture": "rnn",
        "preset": "custom",
        "rnn_classifier.encoder.hidden_size": 13,
        "rnn_classifier.encoder.embedding_size": 11,
    },
    "transformer": {
        "architecture": "transformer",
        "preset": "custom",
        "transformer.hidden_size": 24,
        "transformer.stack.num_layers": 2,
        "transformer.stack.num_heads": 3,
        "transformer.stack.feed_forward_size": 29,
    },
}
QUICK = {"training.threads": 1, "training.precision": "float32", "training.evaluate_every": 10, "training.steps": 23}
OBJECTIVES = {"rnn": TextClassificationObjective, "transformer": ClassificationObjective}
PEOPLE = ("Mary", "John", "Sandra")
ROOMS = ("kitchen", "garden", "office")
STORY = ["Mary went to the kitchen.", "John went to the garden."]


def first_rooms(count: int, seed: int) -> str:
    """Stories of two people whose question is about the first one: its answer stands at a fixed place."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        first, second = rng.permutation(PEOPLE)[:2]
        rooms = rng.choice(ROOMS, 2)
        lines += [f"1 {first} went to the {rooms[0]}.", f"2 {second} went to the {rooms[1]}."]
        lines.append(f"3 Where is {first}?\t{rooms[0]}\t1")
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stories")
    (folder / "rooms_train.txt").write_text(first_rooms(200, seed=1))
    (folder / "rooms_test.txt").write_text(first_rooms(31, seed=2))
    write(folder, "walks_test.txt", 19, seed=3)
    (folder / "story.txt").write_text("\n".join(STORY))
    return folder


def train(data: Path, out: Path, architecture: str, listener: Listener | None = None, **changes: object) -> RunResult:
    settings = {**QUICK, **SIZES[architecture], "data.train": (str(data / "rooms_train.txt"),), **changes}
    return train_run(StoryQARun.build(settings), out, listeners=[listener or Listener()])


@pytest.fixture(scope="module")
def folders(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained model of each architecture."""
    folder = tmp_path_factory.mktemp("runs")
    for architecture in ARCHITECTURES:
        settings = {
            "training.steps": 120,
            "training.evaluate_every": 40,
            "fine_tuning.test": str(data / "rooms_test.txt"),
        }
        if architecture == "rnn":
            settings["rnn_classifier.pooling"] = "attention"
        train(data, folder / architecture, architecture, **settings)
    return {architecture: folder / architecture for architecture in ARCHITECTURES}


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(folders: dict[str, Path], architecture: str) -> Path:
    return folders[architecture]


def load(folder: Path, **options: Any) -> StoryQAPipeline:
    pipeline = regard.load(folder, threads=1, **options)
    assert isinstance(pipeline, StoryQAPipeline)
    return pipeline


def test_a_small_task_is_learned_and_scored_by_task_on_validation_and_test_files(folder: Path) -> None:
    task = read_json(folder / "task.json")
    metrics = task["metrics"]
    assert metrics["test_error"] < 20
    assert metrics["test"]["tasks"] == [
        {"task": "rooms", "questions": 31, "error": metrics["test_error"], "support": metrics["test_support"]}
    ]
    assert metrics["valid"]["questions"] == 20  # a tenth of the training questions
    assert metrics["valid_error"] == metrics["valid"]["error"]
    assert task["verdict"]["baseline"]["the most frequent answer"]["error"] > metrics["valid_error"]
    assert read_json(folder / "run.json")["result"]["metrics"] == metrics


def test_the_folder_is_that_of_its_family_with_words_as_tokens(folders: dict[str, Path]) -> None:
    rnn = read_json(folders["rnn"] / "config.json")
    assert (rnn["model_type"], rnn["regard"]["encoder"]["directions"]) == ("regard-rnn-classifier", "one")
    transformer = read_json(folders["transformer"] / "config.json")
    assert sorted(transformer["id2label"].values()) == sorted(ROOMS)
    for folder in folders.values():
        words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        assert {"▁mary", "▁.", "▁?"} <= set(words)
        assert read_json(folder / "task.json")["task"] == "story-qa"


def read_plan(out: Path, architecture: str, **settings: Any) -> list[str]:
    """Lines of the plan of a run, which is stopped before its training begins."""

    class PlanReader(Listener):
        def on_event(self, event: str, data: dict[str, Any]) -> None:
            super().on_event(event, data)
            if event == "plan":
                raise KeyboardInterrupt

    listener = PlanReader()
    common = {"training.threads": 1, "training.precision": "float32", "architecture": architecture}
    with pytest.raises(KeyboardInterrupt):
        train_run(StoryQARun.build({**common, **SIZES.get(architecture, {}), **settings}), out, listeners=[listener])
    lines: list[str] = listener.of("plan")[0]["lines"]
    return lines


def test_the_plan_has_the_epochs_that_the_help_says(data: Path, tmp_path: Path, architecture: str) -> None:
    lines = read_plan(tmp_path / "run", architecture, **{"data.train": (str(data / "rooms_train.txt"),)})
    assert any(line.startswith("plan: 100 epochs of about ") for line in lines)


@pytest.mark.parametrize("name", [MEMORY_NETWORK, *ARCHITECTURES])
def test_words_and_answers_of_stories_that_are_held_out_are_known(tmp_path: Path, name: str) -> None:
    data = tmp_path / "names_train.txt"
    stories = [
        f"1 Name{n} went to the room{n}.\n2 Where is Name{n}?\troom{n}\t1\n" for n in range(20)
    ]  # each has its own word and its own answer
    data.write_text("".join(stories))
    lines = read_plan(tmp_path / "run", name, **{"data.train": (str(data),)})
    assert "validation: the 2 questions that are held out, with whole stories" in lines
    assert not any("never occur in training" in line for line in lines)


@pytest.mark.parametrize("name", [MEMORY_NETWORK, *ARCHITECTURES])
def test_too_few_stories_to_hold_any_out_validate_on_the_training_data(tmp_path: Path, name: str) -> None:
    data = tmp_path / "rooms_train.txt"
    data.write_text(first_rooms(9, seed=1))
    lines = read_plan(tmp_path / "run", name, **{"data.train": (str(data),)})
    assert "validation: on the training data, as none of it is held out and --valid names no file" in lines


@pytest.mark.parametrize("name", [MEMORY_NETWORK, *ARCHITECTURES])
def test_tasks_in_different_languages_are_not_trained_together(data: Path, tmp_path: Path, name: str) -> None:
    other = tmp_path / "orte_train.txt"
    other.write_text("1 Maria schläft.\n2 Wer schläft?\tmaria\t1\n" * 20)
    files = (str(data / "rooms_train.txt"), str(other))
    with pytest.raises(DataError, match=r"shares none of its \d+ words with any other of the 2 files"):
        train_run(StoryQARun.build({"architecture": name, "data.train": files}), tmp_path / "run")


def test_an_answer_has_attention_to_sentences_and_a_record_of_words(folder: Path, architecture: str) -> None:
    answer = load(folder)(STORY, "Where is Mary?", top_k=2)
    assert answer == "kitchen"
    assert (answer.question, answer.truncated_sentences, len(answer.alternatives)) == ("Where is Mary?", 0, 1)
    assert answer.hops.shape == {"rnn": (1, 2), "transformer": (2, 2)}[architecture]
    assert {support.sentence_index for support in answer.supporting} == {1, 2}
    record = answer.record()
    assert record.title == "Where is Mary?"
    assert record.prediction.best[0] == "kitchen"  # type: ignore[union-attr]
    site = {"rnn": "pooling", "transformer": "encoder.0.self"}[architecture]
    columns = answer.attention[site].columns
    assert [word.strip("▁ ") for word in columns if "kitchen" in word or "?" in word] == ["kitchen", "?"]
    if architecture == "rnn":
        weights = answer.attention[site].weights[0, 0]
        np.testing.assert_allclose(answer.hops[0], [weights[:6].sum(), weights[6:12].sum()], atol=2e-3)
    assert "kitchen" in page([record], title="Mary")


@pytest.mark.skipif(bool(unavailable_reason()), reason="the engine is not available")
def test_the_engine_and_torch_give_the_same_answers(folders: dict[str, Path]) -> None:
    answers = [load(folders["transformer"], backend=name)(STORY, "Where is John?") for name in ("engine", "torch")]
    assert answers[0].backend.startswith("engine") and answers[1].backend.startswith("torch")
    assert answers[0] == answers[1]
    assert answers[0].score == pytest.approx(answers[1].score, rel=1e-4)
    np.testing.assert_allclose(answers[0].hops, answers[1].hops, atol=1e-3)


def test_verbs_read_the_model(data: Path, folder: Path, capfd: Any, tmp_path: Path) -> None:
    test = str(data / "rooms_test.txt")
    story = str(data / "story.txt")
    assert run_command(["evaluate", str(folder), test, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["error"] == read_json(folder / "task.json")["metrics"]["test_error"]
    assert run_command(["answer", str(folder), "--story", story, "Where is Mary?"]) == 0
    out = capfd.readouterr().out
    assert "→ kitchen" in out and "1 Mary went to the kitchen." in out and "question and special tokens" in out
    html = tmp_path / "page.html"
    assert run_command(["see", str(folder), "--story", story, "Where is Mary?", "--out", str(html)]) == 0
    assert "kitchen" in html.read_text()
    figure = tmp_path / "figure.svg"
    assert run_command(["figure", str(folder), "Where is Mary?", "--story", story, "--out", str(figure)]) == 0
    assert "kitchen" in figure.read_text()
    capfd.readouterr()
    assert run_command(["heads", str(folder), test, "--metric", "accuracy", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["heads"]
    assert run_command(["info", str(folder)]) == 0
    out = capfd.readouterr().out
    assert "rooms  20 questions  error" in out


def test_an_answer_is_explained_by_its_words_and_its_heads(data: Path, folder: Path, tmp_path: Path) -> None:
    explanation = explain(load(folder), "Where is Mary?", *STORY)
    values = {attribution.method: np.array(attribution.values) for attribution in explanation.attributions}
    path = tmp_path / "record.json"
    command = ["see", str(folder), "--story", str(data / "story.txt"), "Where is Mary?", "--threads", "1"]
    assert run_command([*command, "--attribution", "--importance", "--out", str(path)]) == 0
    record = Record.read(path)
    tokens = record.texts["source"].tokens
    assert explanation.target == "kitchen" and explanation.gap < 0.1
    for method in ("integrated gradients", "occlusion"):
        assert tokens[values[method].argmax()].strip("▁ ") == "kitchen"
    for attribution in record.attribution:
        np.testing.assert_allclose(attribution.values, values[attribution.method], atol=1e-4)
    (importance,) = [kind.importance for kind in record.attention if kind.name != "mix"]
    assert importance is not None and np.abs(importance["values"]).max() > 0
    other = explain(load(folder), "Where is Mary?", *STORY, methods=["occlusion"], label="garden")
    assert other.attributions[0].values[values["occlusion"].argmax()] < 0


def test_an_rnn_without_attention_answers_but_has_no_heads(data: Path, tmp_path: Path, capfd: Any) -> None:
    train(data, tmp_path / "run", "rnn")
    answer = load(tmp_path / "run")(STORY, "Where is Mary?")
    assert (answer.hops.shape, answer.supporting) == ((0, 2), [])
    assert answer.record().attention == ()
    assert run_command(["heads", str(tmp_path / "run"), str(data / "rooms_test.txt")]) == 2
    assert "no attention: it is an RNN" in capfd.readouterr().err
    assert run_command(["answer", str(tmp_path / "run"), "--story", str(data / "story.txt"), "Where is Mary?"]) == 0


def test_a_run_killed_at_any_batch_ends_in_the_same_bits(
    data: Path, tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"training.save_every": 5}
    train(data, tmp_path / "whole", architecture, **settings)
    with monkeypatch.context() as patch:
        starts = sittings(
            OBJECTIVES[architecture], lambda: train(data, tmp_path / "parts", architecture, **settings), patch
        )
    assert starts > 1
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "parts/model.safetensors").read_bytes()
    assert log_without_throughput(tmp_path / "whole") == log_without_throughput(tmp_path / "parts")


def test_a_run_killed_by_sigkill_ends_in_the_same_bits(data: Path, tmp_path: Path) -> None:
    changes = {"training.save_every": 5, "training.steps": 200}
    settings = {**QUICK, **SIZES["transformer"], **changes}
    train(data, tmp_path / "whole", "transformer", **changes)
    command = [sys.executable, "-m", "regard", "train", "story-qa", str(data / "rooms_train.txt"), "--json"]
    command += [f"--{name}={value}" for name, value in settings.items()]

    def start(out: Path) -> subprocess.Popen[str]:
        return subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.PIPE, text=True)

    kill_during_training(start, tmp_path / "killed", lambda event: event == {"event": "save", "step": 10})
    train(data, tmp_path / "killed", "transformer", **changes)
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "killed/model.safetensors").read_bytes()


def test_the_best_of_several_restarts_is_kept(
    data: Path, tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"training.restarts": 3, "training.seed": 5, "training.steps": 12, "training.save_every": 5}
    listener = Listener()
    report = train(data, tmp_path / "run", architecture, listener, **settings)
    restarts = report.metrics["restarts"]
    single = [read_json(tmp_path / f"run/seeds/{seed}/task.json")["metrics"] for seed in (5, 6, 7)]
    assert [restart["seed"] for restart in restarts["each"]] == [5, 6, 7]
    for name in ("valid_error", "valid_loss"):
        assert [restart[name] for restart in restarts["each"]] == [metrics[name] for metrics in single]
    best = min(range(3), key=lambda index: (single[index]["valid_error"], single[index]["valid_loss"]))
    assert restarts["best"] == best
    weights = (tmp_path / f"run/seeds/{5 + best}/model.safetensors").read_bytes()
    assert (tmp_path / "run/model.safetensors").read_bytes() == weights
    assert read_json(tmp_path / "run/task.json")["metrics"] == report.metrics
    assert report.metrics["valid_error"] == single[best]["valid_error"]
    notes = [note["text"] for note in listener.of("note")]
    assert "restart 3 of 3 (seed 7)" in notes
    with monkeypatch.context() as patch:
        run = partial(train, data, tmp_path / "parts", architecture, **settings)
        assert sittings(OBJECTIVES[architecture], run, patch, every=31) > 1
    assert (tmp_path / "parts/model.safetensors").read_bytes() == weights


def test_unknown_answers_count_as_wrong_or_are_refused(data: Path, tmp_path: Path) -> None:
    odd = tmp_path / "rooms_test.txt"
    odd.write_text("1 Mary went to the office.\n2 Where is Mary?\tmary\t1\n")
    settings: dict[str, object] = {"data.valid": (str(odd),), "training.steps": 2}
    with pytest.raises(DataError, match=r"1 of 1 answers never occur in training: 'mary' \(.*rooms_test.txt:2\)"):
        train(data, tmp_path / "run", "rnn", **settings, **{"training.unknown_answers": "error"})
    listener = Listener()
    report = train(data, tmp_path / "other", "rnn", listener, **settings)
    assert report.metrics["valid_error"] == 100
    assert any("'mary'" in line and "count as wrong" in line for line in listener.of("plan")[0]["lines"])


def test_what_is_cut_from_long_stories_is_counted(data: Path, tmp_path: Path, architecture: str, capfd: Any) -> None:
    max_length = {"rnn": 12, "transformer": 15}[architecture]
    listener = Listener()
    train(data, tmp_path / "run", architecture, listener, **{"data.max_length": max_length, "training.steps": 2})
    expected = (
        "180 of 180 stories are longer than what the model reads: their first sentences, 180 in all, are left out"
    )
    assert any(line == f"training: {expected}: see --max-length" for line in listener.of("plan")[0]["lines"])
    answer = load(tmp_path / "run")(STORY, "Where is Mary?")
    assert answer.truncated_sentences == 1
    assert any("first 1 sentences" in omission.omitted for omission in answer.record().omissions)
    assert run_command(["evaluate", str(tmp_path / "run"), str(data / "rooms_test.txt")]) == 0
    assert "31 of 31 stories are longer" in capfd.readouterr().err


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative", "none"])
def test_every_kind_of_positions_trains_and_opens_again(data: Path, tmp_path: Path, positions: str) -> None:
    settings = {"transformer.positions": positions, "training.steps": 2}
    train(data, tmp_path / "run", "transformer", **settings)
    pipeline = load(tmp_path / "run")
    assert pipeline.model.config.positions == positions
    assert f"{'no' if positions == 'none' else positions} positions" in pipeline.model.config.summary()
    same = pipeline(STORY, "Where is Mary?").score == pytest.approx(pipeline(STORY[::-1], "Where is Mary?").score)
    assert bool(same) == (positions == "none")  # without positions the order of sentences changes nothing
