"""`--metric`: one metric by name is reported, selects the best model and stands in what a run writes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.cli import run
from regard.config.runs import build_run
from regard.errors import UsageError
from regard.metric_table import METRICS, Metric
from regard.tasks.predictions import PredictedLabels
from regard.training.run import RunResult, train_run
from tests.task_data import write_task_data

FAST: dict[str, Any] = {"training.threads": 1, "training.precision": "float32", "training.steps": 6}
EVERY_STEP: dict[str, Any] = {**FAST, "training.evaluate_every": 1}
STORIES: dict[str, Any] = {
    "training.threads": 1,
    "training.epochs": 2,
    "training.restarts": 2,
    "training.linear_start_epochs": 1,
}
METRIC_OF_TASK = [  # task, file, settings, metric of training, metrics of `regard evaluate`
    ("translate", "pairs.csv", FAST, "chrf", ("chrf", "ter")),
    ("classify", "labels.csv", FAST, "mcc", ("mcc", "weighted_f1")),
    ("tag", "tags.conll", FAST, "recall", ("recall",)),
    ("answer", "squad.json", {**FAST, "pretrained": "encoder"}, "exact_match", ("exact_match",)),
    ("masked-lm", "texts.txt", FAST, "accuracy", ("accuracy", "perplexity")),
    ("causal-lm", "texts.txt", FAST, "loss_per_character", ("loss_per_character",)),
    ("elmo", "texts.txt", FAST, "perplexity_forward", ("perplexity_forward",)),
    ("story-qa", "walks.txt", STORIES, "accuracy", ("accuracy", "error")),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task_data(tmp_path_factory.mktemp("data"))


def train(data: Path, out: Path, task: str, file: str, settings: dict[str, Any]) -> RunResult:
    settings = {**settings, "data.train": [str(data / file)]}
    if "pretrained" in settings:
        settings["pretrained"] = str(data / settings["pretrained"])
    return train_run(build_run(task, settings), out)


def evaluations(out: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "evaluate"]


@pytest.fixture
def registered() -> Iterator[Any]:
    """Register metrics of labels for one test."""
    names: list[str] = []

    def register(name: str, function: Any, **fields: Any) -> None:
        regard.register("metric", name, Metric(name, {"labels": function}, **fields))
        names.append(name)

    yield register
    for name in names:
        del METRICS.entries[name]
        del METRICS.owners[name]


@pytest.mark.parametrize(("task", "file", "settings", "metric", "evaluated"), METRIC_OF_TASK)
def test_the_metric_stands_in_what_a_run_writes_and_in_evaluations(
    task: str,
    file: str,
    settings: dict[str, Any],
    metric: str,
    evaluated: tuple[str, ...],
    data: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    result = train(data, out, task, file, {**settings, "training.metric": metric})
    assert result.metric == metric and f"valid_{metric}" in result.metrics
    recorded = json.loads((out / "run.json").read_text())
    assert recorded["config"]["training"]["metric"] == metric and recorded["result"]["metric"] == metric
    model = json.loads((out / "task.json").read_text())
    assert model["metric"] == metric and f"valid_{metric}" in model["metrics"]
    card = (out / "README.md").read_text()
    assert f"selected by {METRICS[metric].field_name}." in card and f"| {metric} | " in card
    assert all(any(name.endswith(metric) for name in event) for event in evaluations(out))
    capfd.readouterr()
    assert run(["info", str(out)]) == 0
    assert f"selected by: {METRICS[metric].field_name} on validation data" in capfd.readouterr().out

    flags = [flag for name in evaluated for flag in ("--metric", name)]
    assert run(["evaluate", str(out), str(data / file), *flags, "--threads", "1"]) == 0
    text = capfd.readouterr().out
    assert run(["evaluate", str(out), str(data / file), *flags, "--threads", "1", "--json"]) == 0
    scores = json.loads(capfd.readouterr().out)
    for name in evaluated:
        assert METRICS[name].format_value(scores[name]) in " ".join(text.split())


@pytest.mark.parametrize("metric", ["auto", "macro_f1", "mcc", "loss"])
def test_an_evaluation_is_best_by_the_metric_and_then_by_the_loss(metric: str, data: Path, tmp_path: Path) -> None:
    train(data, tmp_path / "run", "classify", "labels.csv", {**EVERY_STEP, "training.metric": metric})
    name = "accuracy" if metric == "auto" else metric
    sign = 1 if METRICS[name].larger_is_better else -1
    best: list[float] = []
    for event in evaluations(tmp_path / "run"):
        key = [sign * event[name], -event["loss"]]
        assert event["best"] == (key > best)
        best = max(best, key)
    model = json.loads((tmp_path / "run" / "task.json").read_text())
    assert model["metric"] == name
    assert model["metrics"][f"valid_{name}"] == pytest.approx(sign * best[0])


def test_a_registered_metric_selects_the_model_and_is_evaluated(
    data: Path, tmp_path: Path, registered: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")

    def kappa(labels: PredictedLabels) -> float:
        return float(sklearn_metrics.cohen_kappa_score(labels.references, labels.predictions))

    registered("kappa", kappa, format="{:.3f}")
    settings = {**EVERY_STEP, "training.metric": "kappa"}
    result = train(data, tmp_path / "run", "classify", "labels.csv", settings)
    assert result.metrics["valid_kappa"] == max(event["kappa"] for event in evaluations(tmp_path / "run"))
    capfd.readouterr()
    assert run(["evaluate", str(tmp_path / "run"), str(data / "labels.csv"), "--metric", "kappa"]) == 0
    assert "\nkappa " in capfd.readouterr().out


def test_patience_follows_the_metric(data: Path, tmp_path: Path, registered: Any) -> None:
    calls = []

    def worsen(labels: PredictedLabels) -> float:
        calls.append(labels)
        return -float(len(calls))

    registered("worse", worsen)
    settings = {**EVERY_STEP, "training.metric": "worse", "training.steps": 50, "training.patience": 3}
    result = train(data, tmp_path / "run", "classify", "labels.csv", settings)
    assert result.reason == "patience" and result.step == 4


def test_the_best_of_several_seeds_follows_the_metric(data: Path, tmp_path: Path, registered: Any) -> None:
    values = iter(range(100, 0, -1))
    registered(
        "later_is_smaller", lambda labels: float(next(values)), larger_is_better=False, signature=lambda: "version 1"
    )
    settings = {**FAST, "training.metric": "later_is_smaller", "fine_tuning.seeds": 2}
    train(data, tmp_path / "run", "classify", "labels.csv", settings)
    seeds = json.loads((tmp_path / "run" / "run.json").read_text())["result"]["seeds"]
    assert seeds["best"] == 2


def test_the_first_of_the_best_restarts_is_not_chosen_by_another_metric(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    plain = train(data, tmp_path / "plain", "story-qa", "walks.txt", STORIES)
    chosen = train(data, out, "story-qa", "walks.txt", {**STORIES, "training.metric": "accuracy"})
    assert chosen.metrics["restarts"] == plain.metrics["restarts"]  # accuracy and error choose the same restart
    assert chosen.metrics["valid_accuracy"] == pytest.approx(100 - chosen.metrics["valid_error"])


@pytest.mark.parametrize(
    ("task", "metric", "message"),
    [
        (
            "classify",
            "acuracy",
            r"unknown metric 'acuracy' \(did you mean accuracy\?\): choose one of loss, accuracy, ",
        ),
        ("classify", "chrf", "the metric chrf is not for classify: choose one of loss, accuracy, .*mcc"),
        ("translate", "mcc", "the metric mcc is not for translate: choose one of loss, perplexity, .*bleu"),
        ("story-qa", "bleu", "the metric bleu is not for story-qa: choose one of loss, accuracy, error"),
    ],
)
def test_a_metric_that_is_unknown_or_not_for_the_task_is_refused_before_data_is_read(
    task: str, metric: str, message: str, tmp_path: Path
) -> None:
    config = build_run(task, {"data.train": ["missing.txt"], "training.metric": metric})
    with pytest.raises(UsageError, match=message):
        train_run(config, tmp_path / "run")


def test_a_metric_that_is_not_for_the_data_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "sets.csv").write_text("text,label\n" + "ada saw it,x|y\nada went,x\n" * 20)
    settings: dict[str, Any] = {**FAST, "pretrained": str(data / "encoder"), "training.metric": "mcc"}
    settings |= {"data.read.label_separator": "|", "data.valid": [str(tmp_path / "sets.csv")]}
    with pytest.raises(UsageError, match="the metric mcc is not for predictions that are label sets: .*micro_f1"):
        train(tmp_path, tmp_path / "run", "classify", "sets.csv", settings)
    assert not (tmp_path / "run" / "run.json").exists()  # before training


def test_evaluate_refuses_a_metric_of_another_task(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(data, tmp_path / "run", "classify", "labels.csv", FAST)
    capfd.readouterr()
    assert run(["evaluate", str(tmp_path / "run"), str(data / "labels.csv"), "--metric", "blue"]) == 2
    assert "unknown metric 'blue'" in capfd.readouterr().err
    assert run(["evaluate", str(tmp_path / "run"), str(data / "labels.csv"), "--metric", "loss"]) == 2
    assert "the metric loss has no value on this data" in capfd.readouterr().err


def test_a_target_is_refused_where_less_is_better(data: Path, tmp_path: Path) -> None:
    settings = {**FAST, "training.metric": "loss", "training.stop_at": 50}
    with pytest.raises(UsageError, match=r"training.stop_at \(50\) .* selected by loss, of which less is better"):
        train(data, tmp_path / "run", "classify", "labels.csv", settings)


def test_a_run_ends_when_the_metric_reaches_its_target(data: Path, tmp_path: Path, registered: Any) -> None:
    values = iter(range(10, 100, 10))
    registered("rising", lambda labels: float(next(values)))
    settings = {**EVERY_STEP, "training.metric": "rising", "training.steps": 50, "training.stop_at": 30}
    result = train(data, tmp_path / "run", "classify", "labels.csv", settings)
    assert result.reason == "target reached" and result.step == 3


def test_a_bare_function_is_no_metric() -> None:
    with pytest.raises(UsageError, match="the metric 'plain' of math must be a Metric, not <built-in function sqrt>"):
        regard.register("metric", "plain", math.sqrt)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda labels: 1 / 0,
            "the metric broken of tests.training.test_metric failed: ZeroDivisionError: division by zero",
        ),
        (lambda labels: np.nan, r"the metric broken of tests.training.test_metric is not a number \(nan\)"),
        (lambda labels: "much", "the metric broken of tests.training.test_metric failed: ValueError"),
        (lambda labels: None, "the metric broken has no value on this data"),
    ],
)
def test_a_metric_that_fails_is_named(function: Any, message: str, data: Path, tmp_path: Path, registered: Any) -> None:
    registered("broken", function)
    with pytest.raises(UsageError, match=message):
        train(data, tmp_path / "run", "classify", "labels.csv", {**FAST, "training.metric": "broken"})
