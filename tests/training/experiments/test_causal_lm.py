"""Training causal language models: learning, resuming bit by bit, saved folders, refused settings."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.checkpoint.causal_dir import load_causal_lm
from regard.config.language_model_runs import CausalLMRun
from regard.data.documents import Documents, read_documents
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.models import build_model
from regard.packed_tokens import Tokens
from regard.tasks.causal_lm import CausalLMObjective, total_loss
from regard.tasks.token_stream import TokenStream
from regard.training import throughput
from regard.training.experiments.causal_lm import CausalLMExperiment, split_off_ends
from regard.training.run import train_run
from tests.training.listener import Listener, sittings
from tests.training.logs import log_without_throughput

SMALL = {
    "preset": "custom",
    "gpt.hidden_size": 16,
    "gpt.stack.num_layers": 1,
    "gpt.stack.num_heads": 2,
    "gpt.stack.feed_forward_size": 32,
    "tokenizer.kind": "characters",
    "documents.sequence_length": 16,
    "training.batch_tokens": 128,
    "training.threads": 1,
    "training.precision": "float32",
}


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Lines in which each letter has one letter after it."""
    rng = random.Random(1)
    path = tmp_path / "book.txt"
    alphabet = "abcdefghij"
    lines = ["".join(alphabet[(start + step) % 10] for step in range(12)) for start in rng.choices(range(10), k=150)]
    path.write_text("\n".join(lines), "utf-8")
    return path


def config(book: Path, **changes: object) -> CausalLMRun:
    settings = {**SMALL, "data.train": (str(book),), **changes}
    if "pretrained" in settings:
        settings = {name: value for name, value in settings.items() if not name.startswith(("gpt.", "preset"))}
    return CausalLMRun.build({name: value for name, value in settings.items() if value is not None})


def have_same_weights(first: Path, second: Path) -> bool:
    first_weights = load_causal_lm(first).weights
    second_weights = load_causal_lm(second).weights
    return first_weights.keys() == second_weights.keys() and all(
        torch.equal(weight, second_weights[name]) for name, weight in first_weights.items()
    )


def test_it_learns_the_next_token_and_is_saved_as_gpt2(book: Path, tmp_path: Path) -> None:
    listener = Listener()
    settings = {"training.steps": 150, "training.learning_rate": 0.02, "gpt.dropout": 0.0}
    settings |= {"gpt.positions": "learned"}
    report = train_run(config(book, **settings), tmp_path / "run", listeners=[listener])
    assert report.metrics["valid_loss"] < 0.5  # only a line's first letter is unpredictable: about 0.18 nats per letter
    assert report.metrics["valid_perplexity"] == pytest.approx(np.exp(report.metrics["valid_loss"]))
    lines = listener.of("plan")[0]["lines"]
    assert any("in rows of 16" in line for line in lines)
    assert any("the last 195 characters are held out" in line for line in lines)
    assert [name for name in listener.of("step")[0] if name.endswith("_per_second")] == ["tokens_per_second"]
    loaded = load_causal_lm(tmp_path / "run")
    assert json.loads((tmp_path / "run/config.json").read_text())["model_type"] == "gpt2"
    assert loaded.metadata["document"] == "file" and loaded.config.max_positions == 16


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_an_interrupted_run_ends_in_the_same_bits(
    book: Path, tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "training.steps": 14,
        "training.save_every": 3,
        "training.evaluate_every": 5,
        "training.average_checkpoints": 2,
    }
    settings |= {"training.precision": precision, "gpt.dropout": 0.2}
    train_run(config(book, **settings), tmp_path / "uninterrupted")
    num_starts = sittings(
        CausalLMObjective, lambda: train_run(config(book, **settings), tmp_path / "killed"), monkeypatch
    )
    assert num_starts > 1
    assert have_same_weights(tmp_path / "uninterrupted", tmp_path / "killed")
    assert log_without_throughput(tmp_path / "uninterrupted") == log_without_throughput(tmp_path / "killed")


def test_it_continues_a_pretrained_model_with_its_vocabulary(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 4}), tmp_path / "first")
    changes = {"pretrained": str(tmp_path / "first"), "training.steps": 1, "training.learning_rate": 1e-9}
    listener = Listener()
    train_run(config(book, **{**changes, "tokenizer.kind": "bpe"}), tmp_path / "second", listeners=[listener])
    assert f"tokens: those of {tmp_path / 'first'}, vocabulary of" in "\n".join(listener.of("plan")[0]["lines"])
    first = load_causal_lm(tmp_path / "first")
    second = load_causal_lm(tmp_path / "second")
    torch.testing.assert_close(first.weights, second.weights, rtol=1e-3, atol=1e-5)
    assert first.tokenizer.digest == second.tokenizer.digest
    with pytest.raises(ConfigError, match=r"documents\.sequence_length \(20\) exceeds the 16 positions of"):
        train_run(config(book, **{**changes, "documents.sequence_length": 20}), tmp_path / "third")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"preset": "big", **{name: None for name in SMALL if name.startswith("gpt.")}},
            "preset must be one of auto, micro",
        ),
        ({"data.train": ("digits",)}, "digits: "),
        ({"pretrained": "book.txt"}, "book.txt"),
    ],
)
def test_wrong_settings_are_refused(book: Path, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    if "pretrained" in changes:
        changes = {"pretrained": str(book)}
    with pytest.raises((ConfigError, UsageError, CheckpointError), match=message):
        train_run(config(book, **changes), tmp_path / "run")


def test_bf16_is_not_timed_where_its_products_are_slow(
    book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor without instructions for it, timing a few updates may take longer than the training."""
    run_config = config(book, **{"training.precision": "auto"})
    experiment = CausalLMExperiment(run_config, tmp_path)
    experiment.prepare()
    monkeypatch.setattr(throughput, "bf16_slowdown", lambda: 38.4)
    measured = throughput.measure_throughput(experiment, run_config.training, [1])
    assert (measured.precision, [*measured.seconds]) == ("float32", ["float32 with 1 thread"])
    assert measured.text() == "float32 with 1 thread (bf16 products take 38 times as long on this processor)"
    requested = throughput.measure_throughput(experiment, run_config.training.override({"precision": "bf16"}), [1])
    assert requested.text() == "bf16 with 1 thread (requested)"
    monkeypatch.setattr(throughput, "bf16_slowdown", lambda: 0.5)
    both = throughput.measure_throughput(experiment, run_config.training, [1])
    assert [*both.seconds] == ["float32 with 1 thread", "bf16 with 1 thread"]


def test_documents_of_equal_length_are_rows(book: Path, tmp_path: Path) -> None:
    experiment = CausalLMExperiment(
        config(book, **{"documents.sequence_length": 0, "documents.document_boundary": "line"}), tmp_path
    )
    experiment.prepare()
    assert experiment.objective.whole_documents and experiment.model_config.max_positions == 13
    batch = experiment.objective.batch(np.array([0, 5]), 3)
    eos_id = experiment.tokenizer.eos_id
    for row in batch.tokens:
        assert row[0] == row[-1] == eos_id and eos_id not in row[1:-1]
    assert batch.num_predictions == 2 * 13


def test_every_token_of_a_text_is_predicted_once() -> None:
    from regard.config.models import GptConfig, StackConfig

    model = build_model(
        GptConfig(
            vocab_size=9,
            hidden_size=8,
            stack=StackConfig(num_layers=1, num_heads=2, feed_forward_size=8),
            max_positions=4,
        )
    )
    ids = np.array([5, 6, 7, 8, 5, 6, 7, 8, 3, 1], np.int32)
    rows = [[1, 5, 6, 7, 8], [8, 5, 6, 7, 8], [8, 3, 1]]
    expected = sum(float(model.loss(Tokens.from_rows([row]))[1]) for row in rows)
    assert total_loss(model, TokenStream(ids, 4, "ab")) == pytest.approx(expected, rel=1e-5)


def test_a_file_is_one_document_with_its_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_bytes(b"\nFirst:\r\n  Speak.\n\n\nAll:\nSpeak!\n\n")
    assert read_documents([path], None, "file").texts == ["First:\n  Speak.\n\n\nAll:\nSpeak!\n"]


def test_the_end_of_each_file_is_held_out() -> None:
    train, held_out = split_off_ends(Documents.from_texts(["ab\n" * 100, "x" * 50]))
    assert [len(text) for text in train.texts] == [270, 45]
    assert [len(text) for text in held_out.texts] == [30, 5]
    _, held_out = split_off_ends(Documents.from_texts(["a line of text\n" * 400_000]))
    assert sum(map(len, held_out.texts)) <= 200_015
    with pytest.raises(UsageError, match="too short"):
        split_off_ends(Documents.from_texts(["x"]))
