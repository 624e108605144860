"""Entries of a comparison as runs: names, settings, seeds and folders; refusals before anything is trained."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regard.errors import RegardError, UsageError
from regard.report.comparison.training import Candidate, TrainingPlan, finished_task, parse_candidates
from tests.task_data import write_task_data

DATA: dict[str, Any] = {"data.train": ["train.tsv"]}


def plan(entries: list[str], settings: list[str] | None = None, task: str = "classify", **options: Any) -> TrainingPlan:
    return TrainingPlan(task, parse_candidates(entries, task, settings or ()), DATA, **options)


def test_settings_of_an_architecture_come_before_shared_ones() -> None:
    configs = plan(
        ["rnn:mean", "wide=rnn:mean", "tuned:bert"],
        ["training.batch_tokens=64", "wide:preset=base"],
        minutes=2,
        preset="tiny",
    ).run_configs()
    settings = {name: configs[name][0].to_dict() for name in configs}
    assert [settings[name]["preset"] for name in settings] == ["tiny", "base", "auto"]
    assert [settings[name]["training"]["minutes"] for name in settings] == [2, 2, 2]
    assert {settings[name]["training"]["batch_tokens"] for name in settings} == {64}
    assert settings["wide"]["rnn_classifier"]["pooling"] == "mean"
    assert settings["tuned:bert"]["pretrained"] == "bert"


def test_every_seed_has_a_run_but_the_baseline_has_none() -> None:
    configs = plan(["counts", "rnn:max"], seeds=(3, 5)).run_configs()
    assert configs["counts"] == []
    assert [config.training.seed for config in configs["rnn:max"]] == [3, 5]


def test_memory_networks_train_their_number_of_epochs() -> None:
    story_plan = plan(["memory-network", "counts"], task="story-qa", minutes=2)
    assert story_plan.run_configs()["memory-network"][0].to_dict()["training"]["minutes"] == "auto"
    assert story_plan.describe() == "1 architecture to train"


def test_the_plan_says_how_long_it_takes() -> None:
    text = plan(["counts", "rnn:mean", "rnn:max"], seeds=(1, 2, 3), minutes=1.5).describe()
    assert text == "2 architectures × 3 seeds to train, 1 min 30 s each, 9 min 00 s in all"


def test_an_architecture_may_have_a_time_limit_of_its_own() -> None:
    candidates = parse_candidates(["counts", "rnn:mean", "rnn:max"], "classify")
    candidates[1] = replace(candidates[1], minutes=1.5)
    timed_plan = TrainingPlan("classify", candidates, DATA, seeds=(1, 2), minutes=0.5)
    assert timed_plan.run_minutes() == {"rnn:mean": 1.5, "rnn:max": 0.5}
    assert timed_plan.describe() == "2 architectures × 2 seeds to train, 30 s to 1 min 30 s each, 4 min 00 s in all"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.seed=7", "have the same training.seed: set it by --seeds"),
        ("rnn:mean:training.minutes=5", "have the same training.minutes: set it by --minutes"),
        ("data.train=other.tsv", "have the same data.train: set it by FILES"),
        ("data.valid=other.tsv", "have the same data.valid: set it by --valid"),
        ("data.read.label=2", "have the same data.read.label: set it by the options for reading files"),
        ("counts:preset=tiny", "counts is a baseline, which has no settings: leave it out"),
    ],
)
def test_settings_that_would_have_no_effect_are_refused(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^'{setting}': .*{message}"):
        parse_candidates(["counts", "rnn:mean"], "classify", [setting])


@pytest.mark.parametrize(("path", "argument"), [("training.seed", "seeds"), ("training.minutes", "minutes")])
def test_a_plan_takes_seeds_and_minutes_as_arguments(path: str, argument: str) -> None:
    with pytest.raises(UsageError, match=f"{path} has no effect here: pass {argument} to the plan"):
        TrainingPlan("classify", parse_candidates(["counts"], "classify"), {**DATA, path: 7})


@pytest.mark.parametrize(
    ("entries", "settings", "message"),
    [
        (["rnn:mean", "rnn:mean"], [], "rnn:mean is named twice: write NAME=rnn:mean"),
        (["tuned:a/b", "tuned:a-b"], [], "would have one folder, 'tuned-a-b': write NAME="),
        (["rnn:mean"], ["preset"], "'preset' must be PATH=VALUE"),
        (
            ["rnn:mean", "counts"],
            ["rnn:maen:preset=tiny"],
            r"no architecture is named 'rnn:maen' \(did you mean rnn:mean",
        ),
    ],
)
def test_ambiguous_entries_are_refused(entries: list[str], settings: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_candidates(entries, "classify", settings)


def test_a_wrong_setting_costs_no_training(tmp_path: Path) -> None:
    for settings in (["training.stps=3"], ["rnn:mean:rnn_classifier.pooling=sum"]):
        with pytest.raises(RegardError, match=r"did you mean|must be one of"):
            plan(["rnn:max", "rnn:mean"], settings).train(tmp_path, [], print)
    with pytest.raises(RegardError, match="no such folder"):
        plan(["rnn:max", f"tuned:{tmp_path}/none"]).train(tmp_path, [], print)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seeds", [(), (1, 1)])
def test_seeds_are_different_ones(seeds: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="each seed counts once"):
        plan(["rnn:mean"], seeds=seeds)


def test_a_plan_needs_data() -> None:
    with pytest.raises(UsageError, match="training data are missing"):
        TrainingPlan("classify", parse_candidates(["counts"], "classify"), {"data.train": []})


def test_names_of_models_become_names_of_folders() -> None:
    architecture = parse_candidates(["counts"], "tag")[0].architecture
    assert Candidate("features:/models/ELMo 2", architecture).folder_name == "features-models-ELMo-2"


def test_models_without_a_folder_have_no_task(tmp_path: Path) -> None:
    with pytest.raises(RegardError):
        finished_task([str(tmp_path / "none")])


class Stopper:
    """Raises SIGTERM at the first evaluation."""

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        if event == "evaluate":
            signal.raise_signal(signal.SIGTERM)


def write_short_plan(folder: Path) -> TrainingPlan:
    """Write data of a plan of two short trainings."""
    write_task_data(folder)
    settings = {"training.steps": 4, "training.evaluate_every": 2, "training.batch_tokens": 64, "training.threads": 1}
    data = {"data.train": [str(folder / "labels.csv")], "training.precision": "float32"}
    candidates = parse_candidates(["rnn:max", "rnn:mean"], "classify")
    return TrainingPlan("classify", candidates, {**data, **settings}, minutes=0)


def test_finished_runs_on_other_data_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    short_plan = write_short_plan(tmp_path)
    short_plan.train(tmp_path / "out", [], print)
    data = tmp_path / "labels.csv"
    content = data.read_text("utf-8")
    data.write_text(f"{content}one more,True\n", "utf-8")
    with pytest.raises(UsageError, match=r"the data changed since .*rnn-max/seed-1 began \(train: .*labels\.csv"):
        short_plan.train(tmp_path / "out", [], print)
    data.unlink()
    with pytest.raises(UsageError, match=r"labels\.csv: no such file"):
        short_plan.train(tmp_path / "out", [], print)
    data.write_text(content, "utf-8")
    assert len(short_plan.train(tmp_path / "out", [], print)) == 2


def test_an_interrupted_comparison_goes_on_where_it_stopped(tmp_path: Path) -> None:
    short_plan = write_short_plan(tmp_path)
    notes: list[str] = []
    with pytest.raises(
        UsageError, match=r"SIGTERM stopped 1 of 2: rnn:max, seed 1 at step \d: the same command resumes"
    ):
        short_plan.train(tmp_path / "out", [Stopper()], notes.append)
    assert not (tmp_path / "out/rnn-mean").exists()
    runs = short_plan.train(tmp_path / "out", [], notes.append)
    assert [run.folders for run in runs] == [[tmp_path / f"out/{name}/seed-1"] for name in ("rnn-max", "rnn-mean")]
    short_plan.train(tmp_path / "whole", [], notes.append)
    resumed, whole = (tmp_path / f"{name}/rnn-max/seed-1/model.safetensors" for name in ("out", "whole"))
    assert resumed.read_bytes() == whole.read_bytes()
