"""Measures of claims: each computes what it says, on untrained or hardly trained models."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from recipes.claims.check import CheckContext, ClaimCheck
from recipes.claims.claim import ClaimConfig
from recipes.claims.measure import MEASURES, Measurement, Subject
from recipes.claims.measures import cost, heads, positions, probes, quality, reach
from recipes.datasets import DataFiles
from regard.config.runs import RunConfig, build_run
from regard.errors import ConfigError
from regard.interpret.head_statistics import AttentionBatch
from regard.training.run import train_run
from tests.recipes.test_claims import SMALL_CLAIM

GPT = {"hidden_size": 16, "stack.num_layers": 1, "stack.num_heads": 2, "stack.feed_forward_size": 16}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A translation model after a few updates, evaluated after each."""
    folder = tmp_path_factory.mktemp("measures")
    check = ClaimCheck("trained", ClaimConfig.from_dict(SMALL_CLAIM), CheckContext(folder))
    data = check._prepare_data(check.models["longer"], 1)
    changes = {"training.steps": 3, "training.evaluate_every": 1}
    run: RunConfig = check.build_config({**check.models["longer"], **changes}, data, 1)
    train_run(run, folder / "run")
    return Subject({}, 1, threads=1, folder=folder / "run", data=data, run=run)


@pytest.fixture(scope="module")
def evaluations(trained: Subject) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (trained.folder / "log.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "evaluate"]


def test_every_measure_is_a_documented_function() -> None:
    for measure in MEASURES.values():
        assert measure.resolve().__doc__
        measure.check(dict.fromkeys(_parameter_names(measure.resolve())))
        with pytest.raises(ConfigError, match="unknown parameter 'nothing'"):
            measure.check({"nothing": 1})


def declares(name: str, numbers: dict[str, float], **parameters: Any) -> bool:
    """Whether the table names all of these numbers."""
    names = MEASURES[name].number_names(parameters)
    return all(any(fnmatchcase(number, pattern) for pattern in names) for number in numbers)


def _parameter_names(function: Any) -> list[str]:
    return list(function.__code__.co_varnames[1 : 1 + function.__code__.co_kwonlyargcount])


def test_a_measurement_round_trips() -> None:
    measurement = Measurement({"value": 1.5}, curve=((1.0, 2.0),), samples={"value": [1.0, 2.0]})
    assert Measurement.from_dict(json.loads(json.dumps(measurement.to_dict()))) == measurement


def test_validation_metrics_are_those_of_the_log(trained: Subject, evaluations: list[dict[str, Any]]) -> None:
    losses = [event["loss"] for event in evaluations]
    measured = quality.validation_metric(trained, metric="loss")
    assert measured.numbers["value"] == min(losses)
    assert [y for _, y in measured.curve] == losses
    chrf = quality.validation_metric(trained, metric="bleu")
    assert chrf.numbers["value"] == max(event["bleu"] for event in evaluations)


def test_the_minutes_to_a_metric_are_its_share_of_the_training(
    trained: Subject, evaluations: list[dict[str, Any]]
) -> None:
    result = json.loads((trained.folder / "run.json").read_text())["result"]
    minutes = result["seconds"] / 60
    second = evaluations[1]
    assert second["loss"] < evaluations[0]["loss"]
    reached = quality.minutes_to(trained, metric="loss", bound=second["loss"] + 1e-6).numbers
    assert reached["value"] == pytest.approx(minutes * second["step"] / result["step"])
    assert reached["has_reached"] == 1
    assert declares("minutes_to", reached)
    assert quality.minutes_to(trained, metric="loss", bound=0).numbers == {"value": minutes, "has_reached": 0}


def test_metrics_by_length_are_of_the_texts_of_that_length(trained: Subject) -> None:
    whole = quality.test_metric(trained, metric="chrf").numbers["value"]
    assert quality.metric_by_length(trained, metric="chrf", groups=[7]).numbers == {"upto_7": pytest.approx(whole)}
    groups = quality.metric_by_length(trained, metric="chrf", groups=[2])
    assert set(groups.numbers) == {"upto_2", "over_2"} == {*MEASURES["metric_by_length"].number_names({"groups": [2]})}
    assert [x for x, _ in groups.curve] == [2, 3]


def test_probabilities_stand_at_the_source_position(trained: Subject) -> None:
    """The target is a copy: read in reverse, first and last change places."""
    copy = quality.probability_by_position(trained, order="copy")
    reverse = quality.probability_by_position(trained, order="reverse")
    assert all(0 < probability < 1 for _, probability in copy.curve)
    assert copy.numbers["first"] == pytest.approx(reverse.numbers["last"])
    assert len(copy.curve) == 3
    assert declares("probability_by_position", copy.numbers)


def test_heads_of_a_model_are_measured(trained: Subject) -> None:
    statistics = heads.head_statistics(trained, site="encoder", examples=7)
    assert 0 <= statistics.numbers["argmax_itself"] <= 100
    assert 0 < statistics.numbers["largest"] <= 1
    assert len(statistics.samples["argmax_itself"]) == 7
    assert declares("head_statistics", statistics.numbers) and declares("encoder_heads", statistics.numbers)
    assert 0 < heads.head_distance(trained).numbers["value"] < 1
    with pytest.raises(ConfigError, match="no self-attention has 'enc0der' in its name"):
        heads.head_statistics(trained, site="enc0der")


def test_the_largest_weight_of_a_row_counts_where_it_is_on_the_token_itself() -> None:
    ids = np.array([[5, 6, 7], [8, 9, -1]])
    batch = AttentionBatch(ids, ids, ids < 0, is_self=True)
    weights = np.zeros((2, 1, 3, 3), dtype=np.float32)
    weights[0, 0] = np.eye(3)
    weights[0, 0, 2] = [0.5, 0.3, 0.2]
    weights[1, 0, :, 0] = 1  # of two tokens, only the first attends to itself
    assert heads._argmax_itself(weights, batch).tolist() == pytest.approx([200 / 3, 50])


def test_the_parameters_are_those_of_the_model(trained: Subject) -> None:
    assert cost.parameters(trained).numbers["value"] > 1000


def test_times_are_measured_by_length_and_threads(tmp_path: Path) -> None:
    subject = Subject({"architecture": "lstm:none"}, 1, threads=1, folder=tmp_path)
    measured = cost.cost_by_length(subject, lengths=[3, 7], threads=[1], tokens=21, rounds=1)
    assert set(measured.numbers) == {"seconds_3_1", "seconds_7_1", "speedup_3", "speedup_7", "growth"}
    assert measured.numbers["growth"] == measured.numbers["seconds_7_1"] / measured.numbers["seconds_3_1"]
    assert measured.numbers["speedup_3"] == 1
    assert declares("cost_by_length", measured.numbers, lengths=[3, 7], threads=[1])
    assert [x for x, _ in measured.curve] == [3, 7]


def test_the_rate_of_training_is_the_median_of_the_log(trained: Subject) -> None:
    events = [json.loads(line) for line in (trained.folder / "log.jsonl").read_text().splitlines()]
    rates = [event["tokens_per_second"] for event in events if event["event"] == "step"]
    if len(rates) < 2:
        with pytest.raises(ConfigError, match="two are needed"):
            cost.training_rate(trained)
    else:
        assert cost.training_rate(trained).numbers["value"] == median(rates[1:])


def test_the_rate_counts_every_prediction(tmp_path: Path) -> None:
    numbers = cost.prediction_rate(Subject(GPT, 1, threads=1, folder=tmp_path), length=19, rows=3, repeats=1).numbers
    assert set(numbers) == {"every_position", "last_position"} == {*MEASURES["prediction_rate"].numbers}
    assert all(rate > 0 for rate in numbers.values())


def test_sinusoids_are_linear_under_shifts_and_random_codes_are_not(tmp_path: Path) -> None:
    errors = {}
    for encoding in ("sinusoidal", "random"):
        subject = Subject({"encoding": encoding}, 1, threads=1, folder=tmp_path)
        errors[encoding] = positions.shift_error(subject, positions=97, width=22, shifts=[1, 13]).numbers["value"]
    assert errors["sinusoidal"] < 1e-5 < 0.1 < errors["random"]
    with pytest.raises(ConfigError, match="encoding must be one of"):
        positions.shift_error(Subject({}, 1, threads=1, folder=tmp_path), positions=3, width=2, shifts=[1])


def test_a_metric_of_the_runs_own_test_is_taken_from_its_result(tmp_path: Path) -> None:
    table = tmp_path / "texts.tsv"
    table.write_text("".join(f"{'good' if index % 2 else 'bad'} film {index}\t{index % 2}\n" for index in range(60)))
    settings = {
        "data.train": [str(table)],
        "fine_tuning.test": str(table),
        "training.steps": 1,
        "training.threads": 1,
        "training.precision": "float32",
        "preset": "tiny",
    }
    run = build_run("classify", settings)
    metrics = train_run(run, tmp_path / "run").metrics
    data = DataFiles((str(table),), (str(table),))
    subject = Subject({}, 1, threads=1, folder=tmp_path / "run", data=data, run=run)
    assert quality.test_metric(subject, metric="accuracy").numbers["value"] == metrics["test_accuracy"]


def test_influence_is_measured_by_distance(tmp_path: Path) -> None:
    data_settings = {"kind": "recall", "train_rows": 300, "test_rows": 30, "distances": [0, 11]}
    changes = {"data": data_settings, "rule": ["longer > 0"]}
    check = ClaimCheck("recall", ClaimConfig.from_dict({**SMALL_CLAIM, **changes}), CheckContext(tmp_path))
    data = check._prepare_data(check.models["short"], 1)
    train_run(check.build_config(check.models["short"], data, 1), tmp_path / "run")
    subject = Subject({}, 1, threads=1, folder=tmp_path / "run", data=data)
    recalled = reach.influence(subject, of="recalled", bins=4)
    assert declares("influence", recalled.numbers)
    assert recalled.numbers["retained"] == recalled.numbers["far"] / recalled.numbers["near"]
    assert all(0 < share < 1 for _, share in recalled.curve)
    distances = [distance for distance, _ in reach.influence(subject, of="all", bins=4).curve]
    assert distances == sorted(distances)


def test_heads_are_chosen_on_other_sentences_than_they_are_scored_on(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"The animal {number} did not cross the street.\n" for number in range(60)))
    settings = {
        "data.train": [str(text)],
        "preset": "custom",
        "bert.hidden_size": 8,
        "bert.stack.num_layers": 1,
        "bert.stack.num_heads": 2,
        "training.steps": 1,
        "training.threads": 1,
        "training.precision": "float32",
    }
    train_run(build_run("masked-lm", settings), tmp_path / "encoder")
    subject = Subject({"folder": str(tmp_path / "encoder")}, 1, threads=1, folder=tmp_path)
    numbers = heads.coreference_links(subject, pairs=11).numbers
    assert numbers["nearest"] == pytest.approx(50, abs=20)
    assert numbers["best"] >= numbers["chosen"]
    assert 0 <= numbers["both"] <= numbers["chosen"]
    assert declares("coreference_links", numbers)
    assert heads.coreference_links(subject, pairs=11).numbers == numbers


def test_layers_are_probed_for_positions_of_source_words(trained: Subject) -> None:
    numbers = probes.probe(trained, target="position").numbers
    layers = [numbers[f"layer_{index}"] for index in range(2)]
    assert layers == [numbers["embeddings"], numbers["last"]]
    assert numbers["best"] == max(layers) <= 1
    assert declares("probe", numbers)
