"""`regard generate` from the command line, with a tiny model."""

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


def save_model(path: Path, texts: list[str], **metadata: object) -> str:
    tokenizer = train_tokenizer(texts * 9, TokenizerConfig(kind="characters")).without_special_tokens()
    stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=8)
    config = GptConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=8, stack=stack, max_positions=16, eos_id=tokenizer.eos_id
    )
    network = build_model(config)
    initialize_weights(network, 1)
    save_causal_lm(path, config, network.state_dict(), tokenizer=tokenizer, metadata=metadata, card="")
    return str(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("run") / "gpt", ["once upon a time"], document="file")


def test_one_line_of_json_for_each_text_and_sample(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--samples 2 --max-new-tokens 7 --seed 3 --threads 1 --json".split()
    command = ["generate", model, "once", "a time", *options]
    assert run(command) == 0
    samples = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [sample["prompt"] for sample in samples] == ["once", "once", "a time", "a time"]
    assert all(len(sample["ids"]) <= 7 and isinstance(sample["finished"], bool) for sample in samples)
    assert run(command) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == samples


def test_readable_texts_include_the_prompt_and_are_separated(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("once\nupon\n")
    options = "--greedy --max-new-tokens 4 --threads 1".split()
    command = ["generate", model, "--in", str(tmp_path / "in.txt"), *options]
    assert run(command) == 0
    first, separator, second = capsys.readouterr().out.splitlines()
    assert first.startswith("once") and second.startswith("upon") and separator == "―――"
    assert run([*command, "--out", str(tmp_path / "out.txt")]) == 0
    assert (tmp_path / "out.txt").read_text("utf-8").splitlines() == [first, separator, second]


def test_truncated_and_unknown_tokens_of_a_prompt_are_reported(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", model, "once upon a time Q", "--max-new-tokens", "2", "--threads", "1"]) == 0
    notes = capsys.readouterr().err
    assert "its first 10 tokens were dropped" in notes and "1 tokens of the prompt are unknown" in notes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "{}", "x", "--in", "y"], "keep one of them"),
        (["generate", "{}", "x", "--greedy", "--samples", "2"], "drop --greedy or --samples"),
        (["generate", "{}", "x", "--temperature", "0"], "temperature"),
        (["generate", "nowhere/at/all", "x"], "nowhere/at/all"),
        (["translate", "{}", "x"], "regard generate"),
    ],
)
def test_an_error_is_one_message(
    model: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([argument.format(model) for argument in arguments]) == 2
    assert message in capsys.readouterr().err
