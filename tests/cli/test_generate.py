"""`regard generate` from outside, with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.checkpoint.causal_dir import save_causal_lm
from regard.cli import run
from regard.config.data import TokenizerConfig
from regard.config.models import GptConfig, StackConfig
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.text.train import train_tokenizer


def folder(path: Path, texts: list[str], **facts: object) -> str:
    tokenizer = train_tokenizer(texts * 9, TokenizerConfig(kind="characters")).without_special_tokens()
    stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=8)
    config = GptConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=8, stack=stack, max_positions=16, eos_id=tokenizer.eos_id
    )
    model = build_model(config)
    initialize_weights(model, 1)
    save_causal_lm(path, config, model.state_dict(), tokenizer=tokenizer, facts=facts, card="")
    return str(path)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder(tmp_path_factory.mktemp("run") / "gpt", ["once upon a time"], document="file")


def test_one_line_of_json_for_each_text_and_sample(writer: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "generate",
        writer,
        "once",
        "a time",
        "--samples",
        "2",
        "--max-new-tokens",
        "7",
        "--seed",
        "3",
        "--threads",
        "1",
        "--json",
    ]
    assert run(words) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["number"], one["sample"], one["prompt"]) for one in found] == [
        (0, 0, "once"),
        (0, 1, "once"),
        (1, 0, "a time"),
        (1, 1, "a time"),
    ]
    assert all(one["tokens"] <= 7 and isinstance(one["finished"], bool) for one in found)
    assert run(words) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == found


def test_texts_for_people_stand_whole_and_apart(
    writer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("once\nupon\n")
    words = [
        "generate",
        writer,
        "--in",
        str(tmp_path / "in.txt"),
        "--greedy",
        "--max-new-tokens",
        "4",
        "--threads",
        "1",
    ]
    assert run(words) == 0
    first, between, second = capsys.readouterr().out.splitlines()
    assert first.startswith("once") and second.startswith("upon") and between == "―――"
    assert run([*words, "--out", str(tmp_path / "out.txt")]) == 0
    assert (tmp_path / "out.txt").read_text("utf-8").splitlines() == [first, between, second]


def test_a_long_or_strange_text_is_said_to_be(writer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", writer, "once upon a time Q", "--max-new-tokens", "2", "--threads", "1"]) == 0
    said = capsys.readouterr().err
    assert "its first 10 tokens were left out" in said and "1 tokens of the text are unknown" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "{}", "x", "--in", "y"], "keep one of them"),
        (["generate", "{}", "x", "--greedy", "--samples", "2"], "drop --greedy or --samples"),
        (["generate", "{}", "x", "--temperature", "0"], "temperature"),
        (["generate", "nowhere/at/all", "x"], "nowhere/at/all"),
        (["translate", "{}", "x"], "regard generate"),
    ],
)
def test_what_is_refused(writer: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([word.format(writer) for word in words]) == 2
    assert message in capsys.readouterr().err
