"""Training a run: it learns, resumes exactly where it stopped, and rejects what it cannot resume."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.checkpoint.model_dir import load_translator
from regard.checkpoint.run_dir import RunDirectory
from regard.cli import run
from regard.config.task_runs import TranslateRun
from regard.errors import CheckpointError, ConfigError, TrainingError, UsageError
from regard.tasks.translation import TranslationObjective
from regard.training.experiments.translation import TranslationExperiment
from regard.training.run import train_run
from regard.training.schedule import learning_rate
from tests.training.killing import kill_during_training
from tests.training.listener import Listener
from tests.training.logs import log_without_throughput

STEP_FIELDS = ("loss", "learning_rate", "epoch", "tokens_per_second")  # of a line of the log
SMALL = {
    "preset": "custom",
    "model.hidden_size": 16,
    "model.encoder.num_layers": 1,
    "model.decoder.num_layers": 1,
    "model.encoder.feed_forward_size": 32,
    "model.decoder.feed_forward_size": 32,
    "model.dropout": 0.2,
    "model.attention_dropout": 0.1,
    "training.batch_tokens": 256,
    "training.threads": 1,
    "training.precision": "float32",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path)


def write_data(folder: Path) -> Path:
    rng = random.Random(1)
    rows = [[rng.choice("abcdef") for _ in range(rng.randint(2, 4))] for _ in range(600)]
    path = folder / "reverse.tsv"
    path.write_text("".join(f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in rows), "utf-8")
    return path


def config(data: Path, **changes: object) -> TranslateRun:
    settings = {**SMALL, "data.train": (str(data),), **changes}
    if "pretrained" in settings:
        settings = {name: value for name, value in settings.items() if not name.startswith(("model.", "preset"))}
    return TranslateRun().override(settings)


def have_same_weights(first: Path, second: Path) -> bool:
    weights = load_translator(first).weights
    others = load_translator(second).weights
    return weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)


def test_the_run_json_of_a_run_reproduces_its_weights(data: Path, tmp_path: Path) -> None:
    options = ["--preset", "micro", "--steps", "12", "--tokenizer", "characters"]
    assert run(["train", "translate", str(data), *options, "--out", str(tmp_path / "first")]) == 0
    first = json.loads((tmp_path / "first/run.json").read_text())
    training = first["config"]["training"]
    assert (training["precision"], training["batch_tokens"]) == ("auto", "auto")
    assert run(["train", "--recipe", str(tmp_path / "first/run.json"), "--out", str(tmp_path / "second")]) == 0
    second = json.loads((tmp_path / "second/run.json").read_text())
    assert (second["config"], second["resolved"]) == (first["config"], first["resolved"])
    assert have_same_weights(tmp_path / "first", tmp_path / "second")


def test_resolved_settings_of_a_recipe_are_pinned_unless_they_are_set(data: Path, tmp_path: Path) -> None:
    values = config(data, **{"training.steps": 2, "training.precision": "auto", "training.threads": "auto"}).to_dict()
    recipe = tmp_path / "run.json"
    resolved = {"precision": "bf16", "threads": 1, "batch_tokens": 321}
    recipe.write_text(json.dumps({"config": values, "resolved": resolved}))
    assert run(["train", "--recipe", str(recipe), "--out", str(tmp_path / "pinned")]) == 0
    pinned = json.loads((tmp_path / "pinned/run.json").read_text())["resolved"]
    assert {name: pinned[name] for name in resolved} == resolved
    assert run(["train", "--recipe", str(recipe), "--precision", "float32", "--out", str(tmp_path / "set")]) == 0
    changed = json.loads((tmp_path / "set/run.json").read_text())["resolved"]
    assert (changed["precision"], changed["batch_tokens"]) == ("float32", 321)


def test_a_model_learns_to_reverse(data: Path, tmp_path: Path) -> None:
    settings = {
        "model.hidden_size": 32,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
        "training.learning_rate": 0.005,
    }
    result = train_run(config(data, **settings, **{"training.steps": 350}), tmp_path / "run")
    assert result.metrics["valid_exact_match"] > 80

    events = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    assert [event["step"] for event in steps] == list(range(10, 351, 10))
    assert all(set(event) == {"step", "event", *STEP_FIELDS} for event in steps)
    assert all(event["learning_rate"] > 0 and event["tokens_per_second"] > 0 for event in steps)
    evaluations = [event for event in events if event["event"] == "evaluate"]
    assert all({"loss", "perplexity", "bleu", "exact_match", "best"} <= set(event) for event in evaluations)


def test_training_stops_at_the_target(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"training.steps": 60, "training.evaluate_every": 4, "training.stop_at": 0.1, "training.save_every": 3}
    result = train_run(config(data, **settings), tmp_path / "run")
    assert result.reason == "target reached"
    assert result.step < 60
    evaluations = [line for line in (tmp_path / "run/log.jsonl").read_text().splitlines() if '"evaluate"' in line]
    scores = [json.loads(line)["bleu"] for line in evaluations]
    assert scores[-1] >= 0.1
    assert all(score < 0.1 for score in scores[:-1])

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # between the last checkpoint and the end of the run
        patch.setattr(TranslationExperiment, "finalize", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train_run(config(data, **settings), tmp_path / "killed")
    resumed = train_run(config(data, **settings), tmp_path / "killed")
    assert (resumed.reason, resumed.step) == (result.reason, result.step)
    assert have_same_weights(tmp_path / "run", tmp_path / "killed")


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_run_interrupted_at_any_step_ends_with_the_same_bits(
    data: Path, tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "training.steps": 24,
        "training.save_every": 5,
        "training.evaluate_every": 8,
        "training.average_checkpoints": 2,
    }
    settings |= {"training.precision": precision, "training.accumulation_steps": 2}
    train_run(config(data, **settings), tmp_path / "uninterrupted")
    original_loss = TranslationObjective.loss
    calls = 0

    def interrupted_loss(self: TranslationObjective, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 19 == 0:  # in the middle of an update, with or without a checkpoint before it
            raise KeyboardInterrupt
        return original_loss(self, *arguments)

    monkeypatch.setattr(TranslationObjective, "loss", interrupted_loss)
    num_starts = 0
    resumed_steps = []
    while True:
        listener = Listener()
        try:
            num_starts += 1
            train_run(config(data, **settings), tmp_path / "killed", listeners=[listener])
            break
        except KeyboardInterrupt:
            resumed_steps += [event["step"] for event in listener.of("resume")]
    assert num_starts > 2
    assert resumed_steps == sorted(resumed_steps)
    assert have_same_weights(tmp_path / "uninterrupted", tmp_path / "killed")
    assert log_without_throughput(tmp_path / "uninterrupted") == log_without_throughput(tmp_path / "killed")


def test_a_run_survives_sigkill(data: Path, tmp_path: Path) -> None:
    settings = [f"--{name}={value}" for name, value in SMALL.items()]

    def start(out: Path) -> subprocess.Popen[str]:
        arguments = ["train", "translate", str(data), "--out", str(out), "--json", *settings]
        return subprocess.Popen(
            [sys.executable, "-m", "regard", *arguments, "--steps", "120", "--save-every", "7"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    uninterrupted = start(tmp_path / "uninterrupted")
    _, errors = uninterrupted.communicate()
    assert uninterrupted.returncode == 0, errors
    kill_during_training(start, tmp_path / "killed", lambda event: event["event"] == "step" and event["step"] > 8)
    resumed = start(tmp_path / "killed")
    output, errors = resumed.communicate()
    assert resumed.returncode == 0, errors
    events = [json.loads(line) for line in output.splitlines()]
    resumed_steps = [event["step"] for event in events if event["event"] == "resume"]
    assert resumed_steps and resumed_steps[0] > 0
    assert have_same_weights(tmp_path / "uninterrupted", tmp_path / "killed")


def test_a_signal_ends_the_run_after_its_update_with_a_checkpoint(data: Path, tmp_path: Path) -> None:
    settings = {"training.steps": 40, "training.evaluate_every": 20}
    train_run(config(data, **settings), tmp_path / "uninterrupted")

    class Stopper(Listener):
        def on_event(self, event: str, data: dict[str, Any]) -> None:
            super().on_event(event, data)
            if event == "evaluate":
                signal.raise_signal(signal.SIGTERM)

    listener = Stopper()
    result = train_run(config(data, **settings), tmp_path / "stopped", listeners=[listener])
    assert result.reason == "SIGTERM"
    assert not result.is_finished
    assert listener.of("stop")[0]["step"] == result.step == 20
    listener = Listener()
    result = train_run(config(data, **settings), tmp_path / "stopped", listeners=[listener])
    assert listener.of("resume") == [{"step": 20}]
    assert result.is_finished
    assert have_same_weights(tmp_path / "uninterrupted", tmp_path / "stopped")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[TranslateRun, Path]:
    """Config and folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished")
    settings = config(write_data(folder), **{"training.steps": 1})
    train_run(settings, folder / "run")
    return settings, folder / "run"


def test_a_finished_run_is_reported_and_different_settings_are_named(data: Path, tmp_path: Path) -> None:
    settings = {"training.steps": 3}
    train_run(config(data, **settings), tmp_path / "run")
    before = (tmp_path / "run/model.safetensors").read_bytes()
    assert train_run(config(data, **settings), tmp_path / "run").reason == "finished before"
    assert (tmp_path / "run/model.safetensors").read_bytes() == before
    directory = RunDirectory(tmp_path / "run")
    run = directory.read_run()
    del run["config"]["training"]["tune_length_penalty"]  # as if a version without it had begun the run
    directory.write_run(run)
    assert train_run(config(data, **settings), tmp_path / "run").reason == "finished before"
    with pytest.raises(ConfigError, match=r"training.seed: 1 there, 2 now"):
        train_run(config(data, **settings, **{"training.seed": 2}), tmp_path / "run")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("resolved.throughput", None, "resolved.throughput is missing"),
        ("result.verdict", {"status": "good"}, "result: verdict: an object with status, reason, remedy"),
        ("result.verdict", 7, "result: verdict: an object"),
        ("result.summary", {"parameters": 1}, "result: summary: an object with architecture, parameters, data is"),
    ],
)
def test_a_part_of_run_json_that_regard_did_not_write_is_named(
    finished: tuple[TranslateRun, Path], path: str, value: object, message: str
) -> None:
    settings, out = finished
    directory = RunDirectory(out)
    run = directory.read_run()
    changed = json.loads(json.dumps(run))
    part, name = path.split(".")
    changed[part][name] = value
    if part == "resolved":
        del changed["result"], changed[part][name]
    directory.write_run(changed)  # with the digest of its content
    with pytest.raises(CheckpointError, match=rf"run\.json: {message}"):
        train_run(settings, out)
    directory.write_run(run)


def test_an_unfinished_run_of_an_earlier_version_is_rejected(data: Path, tmp_path: Path) -> None:
    settings = config(data, **{"training.steps": 1})
    train_run(settings, tmp_path / "run")
    path = tmp_path / "run/run.json"
    run_state = json.loads(path.read_text("utf-8"))
    del run_state["version"], run_state["result"]
    path.write_text(json.dumps(run_state), "utf-8")
    with pytest.raises(CheckpointError, match=r"run.json: no version.*: train the run again, with another --out"):
        train_run(settings, tmp_path / "run")


def test_changed_data_is_rejected_on_resume(data: Path, tmp_path: Path) -> None:
    settings = {"training.steps": 40, "training.save_every": 2}

    class Stopper(Listener):
        def on_event(self, event: str, data: dict[str, Any]) -> None:
            super().on_event(event, data)
            if event == "save" and len(self.of("save")) == 1:  # a second signal would end the process at once
                signal.raise_signal(signal.SIGINT)

    train_run(config(data, **settings), tmp_path / "run", listeners=[Stopper()])
    data.write_text(data.read_text("utf-8") + "a b\tb a\n", "utf-8")
    with pytest.raises(UsageError, match="the data changed"):
        train_run(config(data, **settings), tmp_path / "run")


def test_a_folder_with_other_files_is_rejected_and_unchanged(data: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/diary.txt").write_text("mine", "utf-8")
    with pytest.raises(UsageError, match="holds other files"):
        train_run(config(data), tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["diary.txt"]


def test_a_gradient_that_is_not_finite_stops_training_before_the_update(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original_loss = TranslationObjective.loss
    calls = 0

    def nan_loss(self: TranslationObjective, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        training_loss, loss = original_loss(self, *arguments)
        return (training_loss * float("nan"), loss) if calls == 20 else (training_loss, loss)

    monkeypatch.setattr(TranslationObjective, "loss", nan_loss)
    with pytest.raises(TrainingError, match="not finite; the weights were not changed"):
        train_run(config(data, **{"training.steps": 40, "training.save_every": 2}), tmp_path / "run")
    last_event = json.loads((tmp_path / "run/log.jsonl").read_text("utf-8").splitlines()[-1])
    assert last_event["event"] == "not finite"
    assert last_event["examples"]
    monkeypatch.undo()
    assert train_run(config(data, **{"training.steps": 40, "training.save_every": 2}), tmp_path / "run").is_finished


def test_a_run_from_pretrained_weights_keeps_their_vocabulary(data: Path, tmp_path: Path) -> None:
    train_run(config(data, **{"training.steps": 3}), tmp_path / "first")
    settings = {"pretrained": str(tmp_path / "first"), "training.steps": 1, "training.learning_rate": 1e-9}
    train_run(config(data, **settings), tmp_path / "second")
    first = load_translator(tmp_path / "first")
    second = load_translator(tmp_path / "second")
    assert first.source.digest == second.source.digest
    for name, tensor in first.weights.items():
        torch.testing.assert_close(tensor, second.weights[name], atol=1e-6, rtol=0)


def test_held_out_validation_shares_no_source_with_training(data: Path, tmp_path: Path) -> None:
    from regard.data.pairs import hold_out_pairs, read_pairs

    pairs = read_pairs([data], TranslateRun().data.read)
    train, valid = hold_out_pairs(pairs, seed=1)
    assert len(train) + len(valid) == len(pairs)
    assert not set(train.source) & set(valid.source)
    assert hold_out_pairs(pairs, seed=1)[1].digest == valid.digest != hold_out_pairs(pairs, seed=2)[1].digest


def test_the_learning_rate_warms_up_and_decays() -> None:
    training = TranslateRun().training
    cosine = [learning_rate(training, 1.0, step, step / 1000) for step in range(1001)]
    assert cosine[0] < cosine[25] < cosine[50]
    assert max(cosine) <= 1
    assert cosine[100] > cosine[500] > cosine[1000] > 0
    inverse_sqrt = TranslateRun().override({"training.schedule": "inverse_sqrt", "training.warmup_steps": 100}).training
    assert learning_rate(inverse_sqrt, 1.0, 399, 0.5) == pytest.approx(0.5)


def test_bpe_dropout_changes_with_the_epoch_and_resumes_with_the_same_bits(data: Path, tmp_path: Path) -> None:
    settings = {
        "tokenizer.bpe_dropout": 0.2,
        "tokenizer.vocab_size": 300,
        "training.steps": 60,
        "training.save_every": 20,
    }
    train_run(config(data, **settings), tmp_path / "uninterrupted")

    class Stopper(Listener):
        def on_event(self, event: str, data: dict[str, Any]) -> None:
            super().on_event(event, data)
            if event == "save" and len(self.of("save")) == 1:
                signal.raise_signal(signal.SIGINT)

    assert not train_run(config(data, **settings), tmp_path / "stopped", listeners=[Stopper()]).is_finished
    assert train_run(config(data, **settings), tmp_path / "stopped").is_finished
    assert have_same_weights(tmp_path / "uninterrupted", tmp_path / "stopped")


def test_the_length_penalty_is_chosen_on_validation_data(data: Path, tmp_path: Path) -> None:
    settings = {"training.steps": 60, "training.learning_rate": 0.01, "decoding.beam": 3}
    listener = Listener()
    result = train_run(config(data, **settings), tmp_path / "tuned", listeners=[listener])
    text = next(event["text"] for event in listener.of("note") if "length penalty" in event["text"])
    scores = {}
    for entry in text.split("penalty ")[-1][:-1].split(", "):
        penalty, score = entry.split(": ")
        scores[penalty] = float(score)
    best = max(scores.values())
    assert result.metrics["valid_bleu"] == pytest.approx(best, abs=0.01)
    assert scores[f"{load_translator(tmp_path / 'tuned').decoding.length_penalty:g}"] == best
    untuned = train_run(config(data, **settings, **{"training.tune_length_penalty": False}), tmp_path / "untuned")
    assert untuned.metrics["valid_bleu"] <= result.metrics["valid_bleu"]
    assert load_translator(tmp_path / "untuned").decoding.length_penalty == 1.0


def test_rows_rejected_by_lenient_reading_are_reported(data: Path, tmp_path: Path) -> None:
    data.write_text(data.read_text("utf-8") + "no second column\n", "utf-8")
    listener = Listener()
    settings = {"training.steps": 1, "data.read.lenient": True}
    train_run(config(data, **settings), tmp_path / "run", listeners=[listener])
    assert any("1 of 601 training rows are rejected: see " in line for line in listener.of("plan")[0]["lines"])
