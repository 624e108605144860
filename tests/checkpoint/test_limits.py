"""Absurd sizes, numbers and nesting in the JSON files of a folder are rejected at once, with the field or the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from regard.checkpoint import atomic
from regard.checkpoint.hf import causal, encoder_decoders, encoders
from regard.checkpoint.native import read_native_config
from regard.checkpoint.run_dir import RunDirectory
from regard.cli import run
from regard.config.settings import Config
from regard.config.training import TrainingConfig
from regard.errors import CheckpointError, ConfigError
from regard.text.tokenizer import Tokenizer

ABSURD_NUMBERS = (10**9, 2**63, 10**400, -5, float("nan"), float("inf"), 0.5, "12", [], {}, True)
NESTED = "[" * 100_000 + "]" * 100_000
NEOX = {"use_parallel_residual": False, "rotary_pct": 1.0}
Read = Callable[[Mapping[str, Any]], object]
TYPES: dict[str, Read] = {
    "bert": lambda fields: encoders.config_from_hf(fields, "plain", 0, "config.json"),
    "albert": lambda fields: encoders.config_from_hf(fields, "plain", 0, "config.json"),
    "gpt2": lambda fields: causal.config_from_hf(fields, "config.json"),
    "gpt_neox": lambda fields: causal.config_from_hf({**NEOX, **fields}, "config.json"),
    "marian": lambda fields: encoder_decoders.config_from_hf(fields, "config.json"),
}
SIZES = {
    "bert": ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    "albert": ("embedding_size", "num_hidden_groups", "max_position_embeddings", "type_vocab_size"),
    "gpt2": ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "n_inner"),
    "gpt_neox": ("hidden_size", "num_hidden_layers", "max_position_embeddings", "intermediate_size"),
    "marian": ("d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "max_position_embeddings"),
}


@pytest.mark.parametrize(("model_type", "field"), [(name, field) for name in SIZES for field in SIZES[name]])
def test_an_absurd_size_in_a_config_is_rejected_with_its_field(model_type: str, field: str) -> None:
    for value in ABSURD_NUMBERS:
        with pytest.raises(CheckpointError, match=rf"config\.json: .*{field}"):
            TYPES[model_type]({"model_type": model_type, field: value})


@pytest.mark.parametrize("value", [value for value in ABSURD_NUMBERS if value != "12"])
@pytest.mark.parametrize("family", ["elmo", "rnn-tagger", "memory-network", "gpt"])
def test_an_absurd_size_in_a_config_of_ours_is_rejected_with_its_field(family: str, value: object) -> None:
    fields = {"model_type": f"regard-{family}", "regard": {"vocab_size": value}}
    if family == "rnn-tagger":
        fields["regard"] = {"encoder": {"vocab_size": value}}
    with pytest.raises(CheckpointError, match=r"config\.json: vocab_size"):
        read_native_config(fields, Config, "config.json")


def test_every_number_of_a_run_has_bounds() -> None:
    for setting in TrainingConfig.knobs():
        if setting.type not in (int, float):
            continue
        for value in (float("nan"), float("inf"), 10**400, 2**70):
            if setting.type is float and value == 2**70 and setting.high is None:
                continue  # a number like any other
            with pytest.raises(ConfigError, match=setting.path):
                TrainingConfig().override({setting.path: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", str(2**70)], "seed must be a whole number of at most 9007199254740991, not 1180591620717411303424"),
        (["--learning-rate", "nan"], "'nan': must be auto, or a number above 0"),
        (["--learning-rate", "inf"], "'inf': must be auto, or a number above 0"),
        (["--training.weight_decay", "nan"], "'nan' is not a finite number"),
    ],
)
def test_absurd_options_of_a_training_are_rejected(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "classify", "x.csv", "--out", "x", *options]) == 2
    assert message in capsys.readouterr().err


def test_absurd_settings_of_a_recipe_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.json"
    for settings, message in (
        ('{"seed": 1180591620717411303424}', "seed must be a whole number of at most"),
        ('{"learning_rate": NaN}', "learning_rate must be a finite number"),
        ('{"learning_rate": 1e999}', "learning_rate must be a finite number"),
        (NESTED, "nested more deeply than 64 levels"),
    ):
        recipe.write_text(f'{{"task": "classify", "training": {settings}}}', "utf-8")
        assert run(["train", "classify", "x.csv", "--recipe", str(recipe), "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("levels", [65, 900, 100_000])
def test_nested_json_is_rejected_with_its_file(tmp_path: Path, levels: int) -> None:
    file = tmp_path / "task.json"
    file.write_text('{"a": ' + "[" * levels + "]" * levels + "}", "utf-8")
    with pytest.raises(CheckpointError, match=r"task\.json: nested more deeply than 64 levels"):
        atomic.read_json(file)
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json: (a: unknown field|not a tokenizer: nested too deeply)"
    ):
        Tokenizer.from_json(file.read_text("utf-8"), where="tokenizer.json")


def test_a_field_that_occurs_twice_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"hidden_size": 4, "regard": {"n": 1}, "hidden_size": 8}', "utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json: not JSON: the field 'hidden_size' occurs twice"):
        atomic.read_json(file)


def test_a_log_and_a_lock_with_nested_lines_are_read(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).lock() as directory:
        directory.append_log({"step": 1})
        with open(tmp_path / "log.jsonl", "a", encoding="utf-8") as log:
            log.write(NESTED + "\n")
        assert directory.read_log() == [{"step": 1}]
