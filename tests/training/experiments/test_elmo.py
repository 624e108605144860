"""Training ELMo: learning in both directions, resuming bit by bit, held-out documents, refused settings."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch

from regard.checkpoint.native import load_text_model
from regard.config.language_model_runs import ElmoRun
from regard.config.rnn_models import ElmoConfig
from regard.data.documents import Documents, hold_out_documents
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.tasks.elmo import ElmoObjective
from regard.training.run import train_run
from tests.training.listener import Listener, sittings
from tests.training.logs import log_without_throughput

SMALL = {
    "preset": "custom",
    "elmo.hidden_size": 16,
    "elmo.dropout": 0.1,
    "tokenizer.kind": "words",
    "documents.sequence_length": 12,
    "training.batch_tokens": 96,
    "training.threads": 1,
    "training.precision": "float32",
}


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Sentences in which each word has one word after it and one before it."""
    rng = random.Random(1)
    words = [f"w{index}" for index in range(12)]
    path = tmp_path / "book.txt"
    lines = []
    for _ in range(150):
        start = rng.randrange(12)
        length = rng.randint(4, 9)
        lines.append(" ".join(words[(start + step) % 12] for step in range(length)))
    path.write_text("\n".join(lines), "utf-8")
    return path


def config(book: Path, **changes: object) -> ElmoRun:
    settings = {**SMALL, "data.train": (str(book),), **changes}
    if "pretrained" in settings:
        settings = {name: value for name, value in settings.items() if not name.startswith(("elmo.", "preset"))}
    return ElmoRun.build(settings)


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_text_model(folder, ElmoConfig, "elmo").weights


def have_same_weights(first: Path, second: Path) -> bool:
    first_weights = load_weights(first)
    second_weights = load_weights(second)
    return first_weights.keys() == second_weights.keys() and all(
        torch.equal(weight, second_weights[name]) for name, weight in first_weights.items()
    )


def test_it_learns_the_next_and_the_previous_word(book: Path, tmp_path: Path) -> None:
    listener = Listener()
    settings = {"training.steps": 150, "training.learning_rate": 0.02, "elmo.dropout": 0.0}
    report = train_run(config(book, **settings), tmp_path / "run", listeners=[listener])
    # the first word of a text is unpredictable; all others are certain
    assert report.metrics["valid_perplexity_forward"] < 2.2
    assert report.metrics["valid_perplexity_backward"] < 2.2
    lines = listener.of("plan")[0]["lines"]
    assert any("tokens in rows of 12" in line for line in lines)
    assert any("documents are held out" in line for line in lines)
    rates = [name for name in listener.of("step")[0] if name.endswith("_per_second")]
    assert rates == ["predictions_per_second"]


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
    settings |= {"training.precision": precision}
    train_run(config(book, **settings), tmp_path / "uninterrupted")
    num_starts = sittings(ElmoObjective, lambda: train_run(config(book, **settings), tmp_path / "killed"), monkeypatch)
    assert num_starts > 1
    assert have_same_weights(tmp_path / "uninterrupted", tmp_path / "killed")
    assert log_without_throughput(tmp_path / "uninterrupted") == log_without_throughput(tmp_path / "killed")


def test_it_continues_a_pretrained_model_with_its_vocabulary(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 4}), tmp_path / "first")
    changes = {"pretrained": str(tmp_path / "first"), "training.steps": 1, "training.learning_rate": 1e-9}
    train_run(config(book, **changes), tmp_path / "second")
    first_weights = load_weights(tmp_path / "first")
    torch.testing.assert_close(first_weights, load_weights(tmp_path / "second"), rtol=1e-3, atol=1e-5)
    assert (tmp_path / "first/tokenizer.json").read_bytes() == (tmp_path / "second/tokenizer.json").read_bytes()


def test_a_run_without_run_json_trains_its_tokenizer_anew(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 1}), tmp_path / "first")
    shutil.copytree(tmp_path / "first/tokenizers", tmp_path / "run/tokenizers")
    (tmp_path / "run/run.lock").touch()
    train_run(config(book, **{"training.steps": 1, "tokenizer.kind": "characters"}), tmp_path / "run")
    assert load_text_model(tmp_path / "run", ElmoConfig, "elmo").tokenizer.encode("w1").subwords == ["w", "1"]


def test_validation_files_and_a_preset_by_the_data(book: Path, tmp_path: Path) -> None:
    listener = Listener()
    settings: dict[str, object] = {"preset": "auto", "data.valid": (str(book),), "training.steps": 1}
    settings |= {name: value for name, value in SMALL.items() if name != "preset" and not name.startswith("elmo.")}
    run_config = ElmoRun.build({**settings, "data.train": (str(book),)})
    train_run(run_config, tmp_path / "run", listeners=[listener])
    lines = listener.of("plan")[0]["lines"]
    assert not any("held out" in line for line in lines)
    assert any("2 layers of 64 (micro, for" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "big"}, "preset must be one of auto, micro, tiny, small, base"),
        ({"pretrained": "book.txt"}, "book.txt"),
        ({"data.train": ("one.txt",)}, "one document cannot be split"),
    ],
)
def test_wrong_settings_are_refused(book: Path, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    (tmp_path / "one.txt").write_text("a b c\n")
    settings = dict(changes)
    if "pretrained" in changes:
        settings["pretrained"] = str(tmp_path / changes["pretrained"])
    if "data.train" in changes:
        settings["data.train"] = tuple(str(tmp_path / name) for name in changes["data.train"])
    with pytest.raises((ConfigError, UsageError, CheckpointError), match=message):
        train_run(config(book, **settings), tmp_path / "run")


def test_sizes_of_a_preset_are_not_changed_silently() -> None:
    with pytest.raises(
        ConfigError, match=r"elmo\.hidden_size \(16\) is a size that the preset gives: add --preset custom"
    ):
        ElmoRun.build({"elmo.hidden_size": 16})


def test_a_fraction_of_the_documents_is_held_out() -> None:
    documents = Documents.from_texts([f"{'long ' * (index % 7)} text {index}" for index in range(400)])
    train, held_out = hold_out_documents(documents, seed=1)
    num_characters = sum(map(len, documents.texts))
    assert 0.04 < sum(map(len, held_out.texts)) / num_characters <= 0.05
    assert sorted(train.texts + held_out.texts) == sorted(documents.texts)
    _, same_seed = hold_out_documents(documents, seed=1)
    _, other_seed = hold_out_documents(documents, seed=2)
    assert same_seed.digest == held_out.digest != other_seed.digest
    duplicated = Documents.from_texts(documents.texts * 2)
    train, held_out = hold_out_documents(duplicated, seed=1)
    assert not set(train.texts) & set(held_out.texts)
