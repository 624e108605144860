"""LoRA for every task that trains a Transformer: what changes, the engine afterwards, kills, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.checkpoint.causal_dir import load_causal_lm
from regard.checkpoint.encoder_dir import load_encoder
from regard.checkpoint.model_dir import load_translator
from regard.cli import run
from regard.config.models import HEAD_PREFIXES
from regard.config.runs import RunConfig, build_run, run_config_class, trained_tasks
from regard.engine.library import unavailable_reason
from regard.errors import CheckpointError, ConfigError
from regard.pipeline.load import load_embedder
from regard.tasks.causal_lm import CausalLMObjective
from regard.tasks.translation import TranslationObjective
from regard.training.run import train_run
from tests.encoders import saved_encoder
from tests.training.killing import train_killed_and_whole
from tests.training.listener import sittings
from tests.training.task_data import SENTENCES, write_data

COMMON = {
    "training.threads": 1,
    "training.precision": "float32",
    "training.batch_tokens": 256,
    "training.steps": 4,
    "training.tune_length_penalty": False,
}
BASES = dict.fromkeys(("classify", "tag", "answer", "masked-lm"), "encoder")
BASES |= {"causal-lm": "causal-lm", "translate": "translate"}
LOADERS: dict[str, Callable[[Path], Any]] = {
    "encoder": load_encoder,
    "causal-lm": load_causal_lm,
    "translate": load_translator,
}
TEXT = "the w3 was dull"
PREDICTIONS: dict[str, Callable[[Any], tuple[str, list[float]]]] = {  # prediction and numbers of a pipeline
    "classify": lambda model: (str(model(TEXT)), list(model(TEXT).probabilities.values())),
    "tag": lambda model: (str(model(TEXT).tags), []),
    "answer": lambda model: (str(model("was w1", TEXT).text), [model("was w1", TEXT).score]),
    "masked-lm": lambda model: ("", model(TEXT).flatten().tolist()),
    "causal-lm": lambda model: (str(model("the w3", top_k=1)), []),
    "translate": lambda model: (str(model(TEXT)), [model(TEXT).score]),
}


def train_settings(folder: Path, task: str, **settings: Any) -> dict[str, Any]:
    common = {**COMMON, "data.train": (str(write_data(folder, task)),), **settings}
    if task in ("masked-lm", "causal-lm"):
        common["documents.sequence_length"] = 12
    known = {knob.path for knob in run_config_class(task).knobs()}
    return {path: value for path, value in common.items() if path in known or path not in COMMON}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small encoder, language model, translator and recurrent translator."""
    folder = tmp_path_factory.mktemp("bases")
    saved_encoder(folder / "encoder", SENTENCES)
    for task in ("causal-lm", "translate"):
        settings = train_settings(folder, task, preset="micro", **{"tokenizer.kind": "words"})
        train_run(build_run(task, settings), folder / task)
    settings = train_settings(folder, "translate", architecture="rnn", preset="micro")
    train_run(build_run("translate", settings), folder / "rnn")
    return folder


def lora_run(bases: Path, folder: Path, task: str, **settings: Any) -> RunConfig:
    """Config of a run with LoRA."""
    lora = {"pretrained": str(bases / BASES[task]), "lora.rank": 2}
    return build_run(task, train_settings(folder, task, **{**lora, **settings}))


def changed_weights(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before.keys() & after.keys() if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("task", BASES)
def test_lora_trains_its_targets_and_the_head_and_the_engine_computes_the_merged_model(
    bases: Path, tmp_path: Path, task: str
) -> None:
    config = lora_run(bases, tmp_path, task, **{"lora.targets": "value,up", "training.learning_rate": 0.05})
    train_run(config, tmp_path / "run")
    load = LOADERS[BASES[task]]
    changed = changed_weights(load(bases / BASES[task]).weights, load(tmp_path / "run").weights)
    targets = (".attention.qkv.weight", ".key_value.weight", ".feed_forward.up.weight")
    assert any(name.endswith(targets) for name in changed)
    assert all(name.endswith(targets) or name.startswith(HEAD_PREFIXES) for name in changed)
    if unavailable_reason():
        pytest.skip(unavailable_reason())
    load_pipeline = load_embedder if task == "masked-lm" else regard.load  # the engine fills no masks
    text, numbers = PREDICTIONS[task](load_pipeline(tmp_path / "run", backend="torch"))
    engine_text, engine_numbers = PREDICTIONS[task](load_pipeline(tmp_path / "run", backend="engine"))
    assert engine_text == text
    assert engine_numbers == pytest.approx(numbers, abs=1e-4)


@pytest.mark.parametrize("objective", [TranslationObjective, CausalLMObjective])
def test_interrupted_decoders_end_in_the_same_bits(
    bases: Path, tmp_path: Path, objective: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = "translate" if objective is TranslationObjective else "causal-lm"
    settings = {"training.steps": 12, "training.save_every": 3, "lora.dropout": 0.3, "training.ema_decay": 0.9}
    config = lora_run(bases, tmp_path, task, **settings)
    train_run(config, tmp_path / "whole")
    assert sittings(objective, lambda: train_run(config, tmp_path / "killed"), monkeypatch, every=5) > 1
    load = LOADERS[task]
    assert not changed_weights(load(tmp_path / "whole").weights, load(tmp_path / "killed").weights)


def test_a_killed_process_resumes_with_the_same_bits_and_the_same_adapter(bases: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path, "classify")
    options = ["--from", str(bases / "encoder"), "--lora", "2", "--lora.keep_adapter", "true", "--steps", "60"]
    runs = train_killed_and_whole(["classify", str(data), *options, "--batch-tokens", "64"], tmp_path)
    for folder in ("", "adapter"):
        killed, whole = (load_encoder(run_directory / folder).weights for run_directory in runs)
        assert not changed_weights(killed, whole)


def test_frozen_layers_have_no_lora_update(bases: Path, tmp_path: Path) -> None:
    settings = {"trainable.freeze": "encoder.layers.0.*,classifier.bias", "lora.keep_adapter": True}
    train_run(lora_run(bases, tmp_path, "classify", **settings), tmp_path / "run")
    before = load_encoder(bases / "encoder").weights
    for folder in ("run", "run/adapter"):
        after = load_encoder(tmp_path / folder).weights
        changed = changed_weights(before, after)
        assert any(name.startswith("encoder.layers.1.") for name in changed)
        assert not any(name.startswith("encoder.layers.0.") for name in changed)
        assert not after["classifier.bias"].any()


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("translate", {"architecture": "rnn"}, "adapts Transformers, not --arch rnn"),
        ("translate", {"pretrained": "RNN"}, "LoRA is for Transformers"),
        (
            "classify",
            {"distillation.student_layers": 1},
            "leave out --freeze-encoder, --fine_tuning.random_init and distil",
        ),
        ("classify", {"lora.rank": 33}, r"lora\.rank \(33\) exceeds the width of encoder\.layers\.0\S+ \(32\)"),
        ("tag", {"pretrained": "RNN"}, "RNN"),
    ],
)
def test_models_that_lora_cannot_adapt_are_refused(
    bases: Path, tmp_path: Path, task: str, settings: dict[str, Any], message: str
) -> None:
    if "pretrained" in settings:
        settings = {"pretrained": str(bases / "rnn")}
        message = message.replace("RNN", str(bases / "rnn"))
    with pytest.raises((ConfigError, CheckpointError), match=message):
        train_run(lora_run(bases, tmp_path, task, **settings), tmp_path / "run")


@pytest.mark.parametrize("task", ["story-qa", "elmo"])
def test_tasks_without_transformers_name_those_that_have_lora(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_lora = [name for name in trained_tasks() if name not in ("story-qa", "elmo")]
    with pytest.raises(ConfigError, match=f"unknown setting 'lora.rank' of the task {task}: it is a setting of"):
        build_run(task, {"lora.rank": 2})
    assert run(["train", task, "data.txt", "--lora", "2", "--out", str(tmp_path / "run")]) == 2
    assert f"--lora is for {', '.join(with_lora)}, not for {task}" in capsys.readouterr().err


def test_an_adapter_of_a_gpt2_with_scaled_scores_is_refused(bases: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    settings = train_settings(tmp_path, "causal-lm", preset="micro", **{"gpt.positions": "learned"})
    train_run(build_run("causal-lm", {**settings, "tokenizer.kind": "words"}), tmp_path / "base")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model.config.scale_attn_by_inverse_layer_idx = True
    model.save_pretrained(tmp_path / "scaled")
    (tmp_path / "scaled/tokenizer.json").write_bytes((tmp_path / "base/tokenizer.json").read_bytes())
    lora = {"pretrained": str(tmp_path / "scaled"), "lora.rank": 2}
    train_run(lora_run(bases, tmp_path, "causal-lm", **lora), tmp_path / "merged")
    for task in ("causal-lm", "classify", "tag", "answer"):
        with pytest.raises(ConfigError, match="scaled scales the attention scores .* leave out --lora.keep_adapter"):
            train_run(lora_run(bases, tmp_path, task, **lora, **{"lora.keep_adapter": True}), tmp_path / "run")
