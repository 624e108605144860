"""Training a run: it learns, goes on exactly where it stopped, and refuses what it must."""

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
from regard.config.runs import RunConfig
from regard.errors import ConfigError, TrainingError, UsageError
from regard.tasks.translation import TranslationObjective
from regard.training.experiments.translation import TranslationExperiment
from regard.training.run import train_run
from regard.training.schedule import learning_rate
from tests.training.killing import kill_during_training
from tests.training.listener import Listener

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
    chance = random.Random(1)
    rows = [[chance.choice("abcdef") for _ in range(chance.randint(2, 4))] for _ in range(600)]
    path = tmp_path / "reverse.tsv"
    path.write_text("".join(f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in rows), "utf-8")
    return path


def config(data: Path, **changes: object) -> RunConfig:
    return RunConfig().override({**SMALL, "data.train": (str(data),), **changes})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_translator(folder).weights


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_it_learns_to_reverse(data: Path, tmp_path: Path) -> None:
    settings = {
        "model.hidden_size": 32,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
        "training.learning_rate": 0.005,
    }
    report = train_run(config(data, **settings, **{"training.steps": 350}), tmp_path / "run")
    assert report.metrics["valid_exact_match"] > 80


def test_it_stops_when_validation_is_good_enough(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"training.steps": 60, "training.evaluate_every": 4, "training.stop_at": 0.1, "training.save_every": 3}
    report = train_run(config(data, **settings), tmp_path / "run")
    assert report.reason == "target reached"
    assert report.step < 60
    evaluations = [line for line in (tmp_path / "run/log.jsonl").read_text().splitlines() if '"evaluate"' in line]
    scores = [json.loads(line)["bleu"] for line in evaluations]
    assert scores[-1] >= 0.1
    assert all(score < 0.1 for score in scores[:-1])

    def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # between the last checkpoint and the end of the run
        patch.setattr(TranslationExperiment, "finalize", die)
        with pytest.raises(KeyboardInterrupt):
            train_run(config(data, **settings), tmp_path / "killed")
    again = train_run(config(data, **settings), tmp_path / "killed")
    assert (again.reason, again.step) == (report.reason, report.step)
    assert same(tmp_path / "run", tmp_path / "killed")


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_interrupted_at_any_step_it_ends_in_the_same_bits(
    data: Path, tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "training.steps": 24,
        "training.save_every": 5,
        "training.evaluate_every": 8,
        "training.average_checkpoints": 2,
    }
    settings |= {"training.precision": precision, "training.accumulation_steps": 2}
    train_run(config(data, **settings), tmp_path / "alone")
    honest = TranslationObjective.loss
    calls = 0

    def dying(self: TranslationObjective, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 19 == 0:  # in the middle of some update, saved or not
            raise KeyboardInterrupt
        return honest(self, *arguments)

    monkeypatch.setattr(TranslationObjective, "loss", dying)
    sittings, resumed = 0, []
    while True:
        listener = Listener()
        try:
            sittings += 1
            train_run(config(data, **settings), tmp_path / "killed", listeners=[listener])
            break
        except KeyboardInterrupt:
            resumed += [facts["step"] for facts in listener.of("resume")]
    assert sittings > 2
    assert resumed == sorted(resumed)
    assert same(tmp_path / "alone", tmp_path / "killed")
    assert (tmp_path / "alone/log.jsonl").read_bytes() == (tmp_path / "killed/log.jsonl").read_bytes()


def test_a_kill_that_nobody_can_catch(data: Path, tmp_path: Path) -> None:
    settings = [f"--{name}={value}" for name, value in SMALL.items()]

    def start(out: Path) -> subprocess.Popen[str]:
        arguments = ["train", "translate", str(data), "--out", str(out), "--json", *settings]
        return subprocess.Popen(
            [sys.executable, "-m", "regard", *arguments, "--steps", "120", "--save-every", "7"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    alone = start(tmp_path / "alone")
    _, errors = alone.communicate()
    assert alone.returncode == 0, errors
    kill_during_training(start, tmp_path / "killed", lambda event: event["event"] == "step" and event["step"] > 8)
    again = start(tmp_path / "killed")
    said, errors = again.communicate()
    assert again.returncode == 0, errors
    resumed = [event["step"] for event in map(json.loads, said.splitlines()) if event["event"] == "resume"]
    assert resumed and resumed[0] > 0
    assert same(tmp_path / "alone", tmp_path / "killed")


def test_a_signal_finishes_the_step_saves_and_can_be_continued(data: Path, tmp_path: Path) -> None:
    settings = {"training.steps": 40, "training.evaluate_every": 20}
    train_run(config(data, **settings), tmp_path / "alone")

    class Stopper(Listener):
        def on_event(self, kind: str, facts: dict[str, Any]) -> None:
            super().on_event(kind, facts)
            if kind == "evaluate":
                signal.raise_signal(signal.SIGTERM)

    listener = Stopper()
    report = train_run(config(data, **settings), tmp_path / "stopped", listeners=[listener])
    assert report.reason == "SIGTERM"
    assert not report.finished
    assert listener.of("stop")[0]["step"] == report.step == 20
    listener = Listener()
    report = train_run(config(data, **settings), tmp_path / "stopped", listeners=[listener])
    assert listener.of("resume") == [{"step": 20}]
    assert report.finished
    assert same(tmp_path / "alone", tmp_path / "stopped")


def test_a_finished_run_says_so_and_other_settings_are_named(data: Path, tmp_path: Path) -> None:
    settings = {"training.steps": 3}
    train_run(config(data, **settings), tmp_path / "run")
    before = (tmp_path / "run/model.safetensors").read_bytes()
    assert train_run(config(data, **settings), tmp_path / "run").reason == "finished before"
    assert (tmp_path / "run/model.safetensors").read_bytes() == before
    run = json.loads((tmp_path / "run/run.json").read_text("utf-8"))
    del run["config"]["training"]["tune_length_penalty"]  # as if begun before there was such a setting
    (tmp_path / "run/run.json").write_text(json.dumps(run), "utf-8")
    assert train_run(config(data, **settings), tmp_path / "run").reason == "finished before"
    with pytest.raises(ConfigError, match=r"training.seed: 1 there, 2 now"):
        train_run(config(data, **settings, **{"training.seed": 2}), tmp_path / "run")


def test_an_unfinished_run_of_an_earlier_version_is_refused(data: Path, tmp_path: Path) -> None:
    settings = config(data, **{"training.steps": 1})
    train_run(settings, tmp_path / "run")
    path = tmp_path / "run/run.json"
    facts = json.loads(path.read_text("utf-8"))
    del facts["finished"], facts["chosen"]["throughput"]
    path.write_text(json.dumps(facts), "utf-8")
    with pytest.raises(UsageError, match="was begun by an earlier version"):
        train_run(settings, tmp_path / "run")


def test_changed_data_is_noticed_on_resume(data: Path, tmp_path: Path) -> None:
    settings = {"training.steps": 40, "training.save_every": 2}

    class Stopper(Listener):
        def on_event(self, kind: str, facts: dict[str, Any]) -> None:
            super().on_event(kind, facts)
            if kind == "save" and len(self.of("save")) == 1:  # a second signal would end the process at once
                signal.raise_signal(signal.SIGINT)

    train_run(config(data, **settings), tmp_path / "run", listeners=[Stopper()])
    data.write_text(data.read_text("utf-8") + "a b\tb a\n", "utf-8")
    with pytest.raises(UsageError, match="the data changed"):
        train_run(config(data, **settings), tmp_path / "run")


def test_a_folder_with_other_files_is_left_alone(data: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/diary.txt").write_text("mine", "utf-8")
    with pytest.raises(UsageError, match="holds other files"):
        train_run(config(data), tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["diary.txt"]


def test_numbers_that_are_not_finite_stop_before_the_weights_change(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = TranslationObjective.loss
    calls = 0

    def poisoned(self: TranslationObjective, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        smoothed, plain = honest(self, *arguments)
        return (smoothed * float("nan"), plain) if calls == 20 else (smoothed, plain)

    monkeypatch.setattr(TranslationObjective, "loss", poisoned)
    with pytest.raises(TrainingError, match="not finite; the weights were not changed"):
        train_run(config(data, **{"training.steps": 40, "training.save_every": 2}), tmp_path / "run")
    last = json.loads((tmp_path / "run/log.jsonl").read_text("utf-8").splitlines()[-1])
    assert last["event"] == "not finite"
    assert last["examples"]
    monkeypatch.undo()
    assert train_run(config(data, **{"training.steps": 40, "training.save_every": 2}), tmp_path / "run").finished


def test_going_on_from_a_run_keeps_its_words_and_starts_from_its_weights(data: Path, tmp_path: Path) -> None:
    train_run(config(data, **{"training.steps": 3}), tmp_path / "first")
    settings = {"pretrained": str(tmp_path / "first"), "training.steps": 1, "training.learning_rate": 1e-9}
    train_run(config(data, **settings), tmp_path / "second")
    first, second = load_translator(tmp_path / "first"), load_translator(tmp_path / "second")
    assert first.source.digest == second.source.digest
    for name, tensor in first.weights.items():
        torch.testing.assert_close(tensor, second.weights[name], atol=1e-6, rtol=0)


def test_held_out_validation_shares_no_source_with_training(data: Path, tmp_path: Path) -> None:
    from regard.data.pairs import hold_out_pairs, read_pairs

    pairs = read_pairs([data], RunConfig().data.read)
    kept, held = hold_out_pairs(pairs, seed=1)
    assert len(kept) + len(held) == len(pairs)
    assert not set(kept.source) & set(held.source)
    assert hold_out_pairs(pairs, seed=1)[1].digest == held.digest != hold_out_pairs(pairs, seed=2)[1].digest


def test_the_rate_rises_then_falls() -> None:
    training = RunConfig().training
    cosine = [learning_rate(training, 1.0, step, step / 1000) for step in range(1001)]
    assert cosine[0] < cosine[25] < cosine[50]
    assert max(cosine) <= 1
    assert cosine[100] > cosine[500] > cosine[1000] > 0
    steady = RunConfig().override({"training.schedule": "inverse_sqrt", "training.warmup_steps": 100}).training
    assert learning_rate(steady, 1.0, 399, 0.5) == pytest.approx(0.5)


def test_drawn_segmentations_change_with_the_epoch_and_survive_an_interruption(data: Path, tmp_path: Path) -> None:
    settings = {
        "tokenizer.bpe_dropout": 0.2,
        "tokenizer.vocab_size": 300,
        "training.steps": 60,
        "training.save_every": 20,
    }
    train_run(config(data, **settings), tmp_path / "alone")

    class Stopper(Listener):
        def on_event(self, kind: str, facts: dict[str, Any]) -> None:
            super().on_event(kind, facts)
            if kind == "save" and len(self.of("save")) == 1:
                signal.raise_signal(signal.SIGINT)

    assert not train_run(config(data, **settings), tmp_path / "stopped", listeners=[Stopper()]).finished
    assert train_run(config(data, **settings), tmp_path / "stopped").finished
    assert same(tmp_path / "alone", tmp_path / "stopped")


def test_the_length_penalty_is_chosen_on_validation_data(data: Path, tmp_path: Path) -> None:
    settings = {"training.steps": 60, "training.learning_rate": 0.01, "decoding.beam": 3}
    listener = Listener()
    report = train_run(config(data, **settings), tmp_path / "tuned", listeners=[listener])
    text = next(facts["text"] for facts in listener.of("note") if "length penalty" in facts["text"])
    tried = {
        power: float(score) for power, score in (one.split(": ") for one in text.split("penalty ")[-1][:-1].split(", "))
    }
    best = max(tried.values())
    assert report.metrics["valid_bleu"] == pytest.approx(best, abs=0.01)
    assert tried[f"{load_translator(tmp_path / 'tuned').decoding.length_penalty:g}"] == best
    plain = train_run(config(data, **settings, **{"training.tune_length_penalty": False}), tmp_path / "plain")
    assert plain.metrics["valid_bleu"] <= report.metrics["valid_bleu"]
    assert load_translator(tmp_path / "plain").decoding.length_penalty == 1.0


def test_rows_left_out_by_a_lenient_reading_are_told(data: Path, tmp_path: Path) -> None:
    data.write_text(data.read_text("utf-8") + "no second column\n", "utf-8")
    listener = Listener()
    settings = {"training.steps": 1, "data.read.lenient": True}
    train_run(config(data, **settings), tmp_path / "run", listeners=[listener])
    assert any("1 of 601 training rows are rejected: see " in line for line in listener.of("plan")[0]["lines"])
