"""Trained parameters: frozen ones stay as they are, LoRA trains little, runs resume bit by bit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from regard.checkpoint.encoder_dir import load_encoder
from regard.checkpoint.model_dir import load_translator
from regard.config.runs import RunConfig, build_run
from regard.config.training import LoraConfig, TrainableConfig, TrainingConfig
from regard.data.synthetic import generate_pairs
from regard.errors import ConfigError, UsageError
from regard.tasks.classification import ClassificationObjective
from regard.training.flat_weights import FlatWeights
from regard.training.optimizer import Optimizer
from regard.training.run import train_run
from regard.training.trainable import select_trainable
from tests.encoders import saved_encoder
from tests.families import encoder, seq2seq, transformer
from tests.scale import HANG_GUARD
from tests.training.listener import Listener, sittings
from tests.training.logs import log_without_throughput

COMMON = {"training.threads": 1, "training.precision": "float32", "training.batch_tokens": 64, "training.steps": 12}
HEAD = ("pooler.", "classifier.")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labelled texts and an encoder that knows their words."""
    folder = tmp_path_factory.mktemp("trainable")
    texts = [f"the w{index % 7} was {word}" for index in range(60) for word in ("lovely", "dull")]
    rows = "".join(f"{text}\t{'good' if text.endswith('lovely') else 'bad'}\n" for text in texts)
    (folder / "train.tsv").write_text(rows)
    saved_encoder(folder / "encoder", texts)
    return folder


def classify(workspace: Path, **settings: object) -> RunConfig:
    settings = {"data.train": (str(workspace / "train.tsv"),), "pretrained": str(workspace / "encoder"), **settings}
    return build_run("classify", {**COMMON, **settings})


def changed_weights(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Names of weights that differ in any bit."""
    assert before.keys() <= after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_frozen_weights_stay_bit_identical(workspace: Path, tmp_path: Path) -> None:
    before = load_encoder(workspace / "encoder").weights
    for precision in ("float32", "bf16"):
        settings = {"trainable.freeze": "*embedding*, encoder.layers.0.*", "training.precision": precision}
        train_run(classify(workspace, **settings), tmp_path / precision)
        changed = changed_weights(before, load_encoder(tmp_path / precision).weights)
        assert changed
        assert all(name.startswith(("encoder.layers.1.", *HEAD)) for name in changed)


def test_lora_changes_its_targets_and_the_head_alone(workspace: Path, tmp_path: Path) -> None:
    listener = Listener()
    train_run(
        classify(workspace, **{"lora.rank": 2, "lora.targets": "query,value"}), tmp_path / "run", listeners=[listener]
    )
    before = load_encoder(workspace / "encoder").weights
    after = load_encoder(tmp_path / "run").weights
    changed = changed_weights(before, after)
    qkv = {f"encoder.layers.{layer}.attention.qkv.weight" for layer in (0, 1)}
    assert {name for name in changed if not name.startswith(HEAD)} == qkv
    for name in qkv:
        query, key, value = (after[name] - before[name]).chunk(3)
        assert not key.any()
        assert int(torch.linalg.matrix_rank(query, rtol=1e-3)) <= 2
        assert value.any()
    trained = load_file(tmp_path / "run/checkpoints/step-12/model.safetensors")
    assert all(name.endswith(("lora_A", "lora_B")) or name.startswith(HEAD) for name in trained)
    assert any("LoRA of rank 2 on query, value" in line for line in listener.of("plan")[0]["lines"])


@pytest.mark.parametrize(
    "settings",
    [
        {"training.ema_decay": 0.9, "training.precision": "bf16"},
        {"training.average_checkpoints": 2, "trainable.layer_lr_decay": 0.5},
        {"training.optimizer": "muon", "trainable.freeze": "encoder.layers.0.*"},
    ],
    ids=str,
)
def test_an_interrupted_run_ends_in_the_same_bits(
    workspace: Path, tmp_path: Path, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = {"training.save_every": 3, "training.evaluate_every": 4, "lora.rank": 2, "lora.dropout": 0.3}
    config = classify(workspace, **schedule, **settings)
    train_run(config, tmp_path / "whole")
    num_starts = sittings(ClassificationObjective, lambda: train_run(config, tmp_path / "killed"), monkeypatch, every=5)
    assert num_starts > 1
    assert not changed_weights(load_encoder(tmp_path / "whole").weights, load_encoder(tmp_path / "killed").weights)
    assert log_without_throughput(tmp_path / "whole") == log_without_throughput(tmp_path / "killed")


def test_two_workers_adapt_a_translator(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in generate_pairs("reverse", 150)), "utf-8")
    common = ["train", "translate", str(pairs), "--steps", "6", "--threads", "1", "--batch-tokens", "128"]
    common += ["--precision", "float32"]
    base = ["--preset", "micro", "--tokenizer", "characters", "--out", str(tmp_path / "base")]
    lora = ["--from", str(tmp_path / "base"), "--lora", "4", "--workers", "2"]
    lora += ["--lora.targets", "query,value", "--out", str(tmp_path / "adapted")]
    for options in (base, lora):
        command = [sys.executable, "-m", "regard", *common, *options]
        process = subprocess.run(command, capture_output=True, text=True, timeout=HANG_GUARD)
        assert process.returncode == 0, process.stderr
    before = load_translator(tmp_path / "base").weights
    changed = changed_weights(before, load_translator(tmp_path / "adapted").weights)
    assert changed
    assert all(name.endswith(("attention.qkv.weight", "query.weight", "key_value.weight")) for name in changed)


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_a_run_does_not_resume_from_other_frozen_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in generate_pairs("reverse", 60)), "utf-8")
    settings = {**COMMON, "data.train": (str(pairs),), "tokenizer.kind": "characters", "training.steps": 2}

    def train(name: str, **changes: object) -> None:
        train_run(build_run("translate", {**settings, **changes}), tmp_path / name)

    train("base", preset="micro")
    lora = {"pretrained": str(tmp_path / "base"), "lora.rank": 2}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Optimizer, "update", interrupt)
        train("adapted", **lora)
    shutil.rmtree(tmp_path / "base")
    train("base", preset="micro", **{"training.seed": 2})
    with pytest.raises(UsageError, match="the data changed"):
        train("adapted", **lora)


def test_frozen_parameters_cost_no_optimizer_state() -> None:
    model = encoder(head="label", num_labels=2)
    select_trainable(model, TrainableConfig(), LoraConfig(rank=2, targets="query,value"), seed=1, trained=HEAD)
    weights = FlatWeights(model, "float32")
    num_trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert weights.master.numel() == num_trained < model.num_parameters() / 2
    optimizer = Optimizer(weights, TrainingConfig(optimizer="adamw", learning_rate=0.1))
    optimizer.update(0.1)
    moments = {name: tensor for name, tensor in optimizer.state().items() if name.startswith("exp_avg")}
    assert sum(tensor.numel() for tensor in moments.values()) == 2 * num_trained


def test_vectors_alone_can_be_trained() -> None:
    model = encoder()
    select_trainable(model, TrainableConfig(freeze="*embedding.weight,*.weight"), LoraConfig(), seed=1)
    weights = FlatWeights(model, "float32")
    before = weights.master.clone()
    optimizer = Optimizer(weights, TrainingConfig(learning_rate=0.1, muon_learning_rate=0.1))
    weights.gradient.fill_(1)
    optimizer.reduce_gradient(1.0)
    optimizer.update(0.1)
    assert weights.matrix_stop == 0
    assert bool((weights.master < before).all())


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        (
            "encoder.layer.0.*",
            r"no weight of the model matches 'encoder\.layer\.0\.\*' \(did you mean encoder\.layers\.0\.\*\?\)",
        ),
        ("pooler.weigth", r"did you mean pooler\.weight\?"),
        ("*", "freezes all weights"),
    ],
)
def test_wrong_patterns_are_refused(freeze: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        select_trainable(encoder(pooler=True), TrainableConfig(freeze=freeze), LoraConfig(), seed=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora.targets": "query,vlaue"}, r"unknown projection 'vlaue' \(did you mean value\?\)"),
        ({"lora.rank": 8, "fine_tuning.freeze_encoder": True}, "leave out --freeze-encoder"),
        ({"lora.rank": 8, "pretrained": "", "architecture": "rnn"}, "add --from MODEL"),
        ({"trainable.freeze": "x", "fine_tuning.freeze_encoder": True}, "--freeze-encoder trains the head alone"),
    ],
)
def test_wrong_settings_are_refused(workspace: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        classify(workspace, **settings)


def test_a_rank_above_the_width_is_refused_before_training(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lora.rank \(33\) exceeds the width"):
        train_run(classify(workspace, **{"lora.rank": 33}), tmp_path / "run")


def test_a_model_without_transformer_layers_has_no_lora() -> None:
    with pytest.raises(ConfigError, match="LoRA is for Transformers"):
        select_trainable(seq2seq(), TrainableConfig(), LoraConfig(rank=2), seed=1)


def test_rates_fall_from_the_decoder_to_the_encoder() -> None:
    trainable = select_trainable(transformer(), TrainableConfig(layer_lr_decay=0.5), LoraConfig(), seed=1)
    assert trainable.learning_rate_scales is not None
    names = ("decoder.layers.1", "decoder.layers.0", "encoder.layers.1", "encoder.layers.0")
    rates = [trainable.learning_rate_scales[f"{name}.attention.qkv.weight"] for name in names]
    assert rates == [0.5, 0.25, 0.125, 0.0625]
    assert min(trainable.learning_rate_scales.values()) == 0.5**5  # of the embeddings
