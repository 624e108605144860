"""Training language models: they learn, go on exactly where they stopped, and say what they refuse."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch

from regard.checkpoint.native import load_rnn_text
from regard.config.defaults import task_defaults
from regard.config.rnn_models import ElmoConfig
from regard.config.runs import RunConfig
from regard.data.documents import Documents, hold_out_documents
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.tasks.elmo import ElmoObjective
from regard.training.run import train_run
from tests.training.listener import Listener, sittings

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
    chance, words = random.Random(1), [f"w{number}" for number in range(12)]
    path = tmp_path / "book.txt"
    lines = []
    for _ in range(150):
        first, count = chance.randrange(12), chance.randint(4, 9)
        lines.append(" ".join(words[(first + step) % 12] for step in range(count)))
    path.write_text("\n".join(lines), "utf-8")
    return path


def config(book: Path, **changes: object) -> RunConfig:
    return RunConfig().override({**task_defaults("language"), **SMALL, "data.train": (str(book),), **changes})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_rnn_text(folder, ElmoConfig, "language").weights


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_it_learns_what_follows_and_what_came_before(book: Path, tmp_path: Path) -> None:
    listener = Listener()
    settings = {"training.steps": 150, "training.learning_rate": 0.02, "elmo.dropout": 0.0}
    report = train_run(config(book, **settings), tmp_path / "run", listeners=[listener])
    # which word begins a text nobody can tell; all others are certain
    assert report.metrics["valid_perplexity_forward"] < 2.2
    assert report.metrics["valid_perplexity_backward"] < 2.2
    plan = listener.of("plan")[0]["lines"]
    assert any("tokens in rows of 12" in line for line in plan)
    assert any("documents are held out" in line for line in plan)
    speed = [name for name in listener.of("step")[0] if name.endswith("_per_second")]
    assert speed == ["predictions_per_second"]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_interrupted_at_any_step_it_ends_in_the_same_bits(
    book: Path, tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "training.steps": 14,
        "training.save_every": 3,
        "training.evaluate_every": 5,
        "training.average_checkpoints": 2,
    }
    settings |= {"training.precision": precision}
    train_run(config(book, **settings), tmp_path / "alone")
    begun = sittings(ElmoObjective, lambda: train_run(config(book, **settings), tmp_path / "killed"), monkeypatch)
    assert begun > 1
    assert same(tmp_path / "alone", tmp_path / "killed")
    assert (tmp_path / "alone/log.jsonl").read_bytes() == (tmp_path / "killed/log.jsonl").read_bytes()


def test_it_goes_on_from_another_model_with_its_words(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 4}), tmp_path / "first")
    more = {"pretrained": str(tmp_path / "first"), "training.steps": 1, "training.learning_rate": 1e-9}
    train_run(config(book, **more), tmp_path / "second")
    first, second = weights(tmp_path / "first"), weights(tmp_path / "second")
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-5)
    assert (tmp_path / "first/tokenizer.json").read_bytes() == (tmp_path / "second/tokenizer.json").read_bytes()


def test_a_begun_run_that_never_wrote_itself_down_keeps_no_old_words(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 1}), tmp_path / "first")
    shutil.copytree(tmp_path / "first/tokenizers", tmp_path / "run/tokenizers")
    (tmp_path / "run/run.lock").touch()
    train_run(config(book, **{"training.steps": 1, "tokenizer.kind": "characters"}), tmp_path / "run")
    assert load_rnn_text(tmp_path / "run", ElmoConfig, "language").tokenizer.encode("w1").subwords == ["w", "1"]


def test_validation_text_of_its_own_and_sizes_by_the_data(book: Path, tmp_path: Path) -> None:
    listener = Listener()
    settings: dict[str, object] = {"preset": "auto", "data.valid": (str(book),), "training.steps": 1}
    given = {**{name: value for name, value in SMALL.items() if not name.startswith("elmo.")}, **settings}
    asked = RunConfig().override({**task_defaults("language"), **given, "data.train": (str(book),)})
    train_run(asked, tmp_path / "run", listeners=[listener])
    lines = listener.of("plan")[0]["lines"]
    assert not any("held out" in line for line in lines)
    assert any("2 layers of 64 (micro, for" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preset": "big"}, "preset must be one of micro, tiny, small, base"),
        ({"pretrained": "book.txt"}, "book.txt"),
        ({"data.train": ("one.txt",)}, "one document cannot be split"),
    ],
)
def test_what_it_refuses(book: Path, tmp_path: Path, changes: dict[str, object], words: str) -> None:
    (tmp_path / "one.txt").write_text("a b c\n")
    placed = {
        name: str(tmp_path / value) if name == "pretrained" else tuple(str(tmp_path / one) for one in value)
        for name, value in changes.items()
        if name != "preset"
    }
    given = {**SMALL, "data.train": (str(book),), **changes, **placed}
    if given["preset"] != "custom":
        del given["elmo.hidden_size"]
    with pytest.raises((ConfigError, UsageError, CheckpointError), match=words):
        train_run(RunConfig().override({**task_defaults("language"), **given}), tmp_path / "run")


def test_sizes_of_a_preset_are_not_changed_in_silence() -> None:
    with pytest.raises(
        ConfigError, match=r"elmo\.hidden_size \(16\) is a size that the preset gives: add --preset custom"
    ):
        RunConfig().override({**task_defaults("language"), "elmo.hidden_size": 16})


def test_a_share_of_the_text_is_held_out() -> None:
    documents = Documents.of([f"{'long ' * (number % 7)} text {number}" for number in range(400)])
    kept, away = hold_out_documents(documents, seed=1)
    total, held = (sum(map(len, part.texts)) for part in (documents, away))
    assert 0.04 < held / total <= 0.05
    assert sorted(kept.texts + away.texts) == sorted(documents.texts)
    assert (
        hold_out_documents(documents, seed=1)[1].digest
        == away.digest
        != hold_out_documents(documents, seed=2)[1].digest
    )
    twice = Documents.of(documents.texts * 2)
    kept, away = hold_out_documents(twice, seed=1)
    assert not set(kept.texts) & set(away.texts)
