"""Gradient norms during training: explicit gradients, the same bits with and without them, and their history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from torch import Tensor

from regard import cli
from regard.cli.json_schema import verb_schema
from regard.cli.reach import reach
from regard.config.runs import build_run
from regard.data.synthetic import generate_pairs
from regard.errors import CheckpointError, UsageError
from regard.models.base import Model
from regard.packed_tokens import PairBatch, Tokens
from regard.report.gradient_history import read_gradient_history
from regard.training.gradient_log import GradientNorms, layer_of_weight, measure_gradients
from regard.training.run import train_run
from tests.families import seq2seq, transformer
from tests.task_data import write_task_data

SOURCE = [[5, 6, 7, 8, 9, 1], [10, 11, 1]]
TARGET = [[4, 7], [12]]
SETTINGS: dict[str, Any] = {
    "training.threads": 1,
    "training.precision": "float32",
    "training.steps": 4,
    "training.evaluate_every": 2,
    "training.batch_tokens": 90,
}
SMALL = {"architecture": "rnn", "preset": "custom", "seq2seq.hidden_size": 7, "seq2seq.embedding_size": 5}


class OneBatch:
    """An objective with one batch."""

    unit = "tokens"
    lengths = np.array([[6, 3], [3, 2]])

    def epoch_batches(self, epoch: int, max_tokens: int) -> list[np.ndarray]:
        return [np.array([0, 1])]

    def batch(self, indices: np.ndarray, epoch: int) -> PairBatch:
        return PairBatch(Tokens.from_rows(SOURCE), Tokens.from_rows(TARGET))

    def loss(self, model: Any, batch: PairBatch, smoothing: float, noise: object) -> tuple[Tensor, Tensor]:
        assert (smoothing, noise) == (0.0, None)
        return model.loss(batch.source, batch.target)


def measure(model: Model) -> GradientNorms:
    return measure_gradients(model, OneBatch(), np.array([0, 1]))


@pytest.mark.parametrize("build", [transformer, lambda: seq2seq(attention="none", num_layers=2, directions="one")])
def test_norms_are_those_of_a_backward_pass(build: Any) -> None:
    model = build()
    norms = measure(model)
    assert all(parameter.grad is None for parameter in model.parameters())
    embedded: list[Tensor] = []

    def keep(module: object, inputs: object, output: Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    handle = model.embedding("source").register_forward_hook(keep)
    batch = OneBatch().batch(np.array([0, 1]), 0)
    loss, _ = model.loss(batch.source, batch.target)
    loss.backward()
    handle.remove()
    encoder_weights = [
        parameter.grad for name, parameter in model.named_parameters() if name.startswith("encoder.layers.0.")
    ]
    squares = sum(float(gradient.square().sum()) for gradient in encoder_weights if gradient is not None)
    predictions = batch.num_predictions
    assert predictions == 5
    assert norms.weights["encoder.layers.0"] == pytest.approx(squares**0.5 / predictions, rel=1e-4)
    # hidden states before the first layer are embeddings times √width, where positions are only added
    gradient = embedded[0].grad
    assert gradient is not None
    token_norms = gradient.norm(dim=1) / embedded[0].shape[1] ** 0.5
    assert norms.distances == [0, 1, 2, 3, 4, 5]
    first, second = token_norms[:6].flip(0), token_norms[6:].flip(0)
    expected = [*((first[:3] + second) / 2).tolist(), *first[3:].tolist()]
    assert norms.hidden["encoder.input"] == pytest.approx(expected, rel=1e-4)
    assert {"encoder.0", "encoder.1"} & set(norms.hidden)


def test_a_recurrent_encoder_computes_as_before_after_it_was_recorded() -> None:
    model = seq2seq()
    measure(model)
    assert "run_layers" not in vars(model.encoder)
    assert not any(module._forward_hooks for module in transformer().modules())
    block_model = transformer()
    measure(block_model)
    assert not any(module._forward_hooks for module in block_model.modules())


def test_frozen_weights_have_no_norms() -> None:
    model = transformer()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith("encoder."))
    norms = measure(model)
    assert not any(layer.startswith("encoder.") for layer in norms.weights)
    assert any(layer.startswith("decoder.") for layer in norms.weights)


def test_weights_belong_to_layers() -> None:
    names = ["encoder.layers.0.attention.qkv.weight", "lm_head_bias", "decoder.bridge.1.0.weight", "positions.weight"]
    assert [layer_of_weight(name) for name in names] == [
        "encoder.layers.0",
        "lm_head_bias",
        "decoder.bridge.1",
        "positions",
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    rows = generate_pairs("recall", 53, distances=(0, 7))
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), "utf-8")
    return path


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A run that logs gradients, and one that does not."""
    folder = tmp_path_factory.mktemp("runs")
    files = {"data.train": [str(data)], "data.valid": [str(data)]}
    for log_gradients in (False, True):
        settings = {**SETTINGS, **SMALL, **files, "training.log_gradients": log_gradients}
        train_run(build_run("translate", settings), folder / str(log_gradients))
    return {log_gradients: folder / str(log_gradients) for log_gradients in (False, True)}


def test_the_weights_are_the_same_bits_with_and_without_the_log(runs: dict[bool, Path]) -> None:
    assert (runs[True] / "model.safetensors").read_bytes() == (runs[False] / "model.safetensors").read_bytes()
    steps = [json.loads(line) for line in (runs[True] / "log.jsonl").read_text().splitlines()]
    plain = [json.loads(line) for line in (runs[False] / "log.jsonl").read_text().splitlines()]
    losses = [[event["loss"] for event in events if event["event"] == "evaluate"] for events in (steps, plain)]
    assert losses[0] == losses[1]
    assert [event["step"] for event in steps if event["event"] == "gradients"] == [2, 4]
    assert not any(event["event"] == "gradients" for event in plain)


def test_the_history_shows_norms_by_layer_and_distance(runs: dict[bool, Path]) -> None:
    history = read_gradient_history(runs[True])
    assert [evaluation["step"] for evaluation in history.evaluations] == [2, 4]
    assert history.layers() == ["encoder.input", "encoder.0"]
    header, *rows = history.table()
    assert header[:3] == ["step", "layer", "from 0"]
    assert [row[:2] for row in rows] == [[step, layer] for step in "24" for layer in ("encoder.input", "encoder.0")]
    titles = ["By layer and distance at step 4", "By distance during training: encoder.input"]
    assert [*history.charts()] == [*titles, "Of the weights of each layer during training"]
    assert history.page().count("<svg") == 3


def test_the_command_shows_the_history_and_refuses_what_has_none(
    runs: dict[bool, Path], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["reach", str(runs[True]), "--history", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    Draft202012Validator(verb_schema("reach", reach)).validate(printed)
    assert printed["evaluations"][1]["hidden"]["encoder.0"][0] > 0
    for arguments, message in (
        ([str(runs[False]), "--history"], "train with --log-gradients"),
        ([str(runs[True]), str(data), "--history"], "--history shows one run"),
        ([str(runs[True]), "--history", "--sample", "3"], "--sample does not apply to --history"),
    ):
        assert cli.run(["reach", *arguments]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="not a run"):
        read_gradient_history(data.parent)
    with pytest.raises(UsageError, match="no gradients"):
        read_gradient_history(runs[False])


@pytest.mark.parametrize(
    ("task", "file", "hidden"),
    [
        ("classify", "labels.csv", True),
        ("tag", "tags.conll", True),
        ("causal-lm", "texts.txt", True),
        ("elmo", "texts.txt", False),
    ],
)
def test_every_task_logs_gradients(task: str, file: str, hidden: bool, tmp_path: Path) -> None:
    folder = write_task_data(tmp_path)
    settings = {**SETTINGS, "training.steps": 1, "training.log_gradients": True, "data.train": [str(folder / file)]}
    train_run(build_run(task, settings), tmp_path / "run")
    (evaluation,) = read_gradient_history(tmp_path / "run").evaluations
    assert evaluation["weights"]
    assert bool(evaluation["hidden"]) == hidden
