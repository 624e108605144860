"""LoRA adapters in peft's format: merged with their base again they equal the model; the cache of merged models."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard.checkpoint.adapter_cache import MAX_MERGED
from regard.checkpoint.adapters import Adapter, save_adapter
from regard.checkpoint.causal_dir import load_causal_lm, save_causal_lm
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.model_dir import load_translator
from regard.config.models import BertConfig, GptConfig, StackConfig
from regard.config.runs import build_run
from regard.config.training import LORA_TARGETS
from regard.errors import CheckpointError
from regard.models.base import Model
from regard.models.layers.lora import LoraSettings, add_lora, is_lora_weight, lora_layers, merge_lora
from regard.training.run import train_run
from tests.checkpoint.samples import random_model, small_config
from tests.checkpoint.samples import save as save_translator
from tests.checkpoint.samples import tokenizers as sample_tokenizers
from tests.encoders import saved_encoder
from tests.families import made
from tests.scale import HANG_GUARD
from tests.training.task_data import write_data

STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=24)
TOKENIZER = sample_tokenizers(True)["source"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def save_encoder_folder(folder: Path, model: Model) -> None:
    config = model.config
    assert isinstance(config, BertConfig)
    labels = ("a", "b", "c") if config.head == "label" else ()
    save_encoder(folder, config, model.state_dict(), tokenizer=TOKENIZER, task="", metadata={}, card="", labels=labels)


def save_gpt_folder(folder: Path, model: Model) -> None:
    config = model.config
    assert isinstance(config, GptConfig)
    save_causal_lm(folder, config, model.state_dict(), tokenizer=TOKENIZER, metadata={}, card="")


def encoder_model(**changes: Any) -> Model:
    config = BertConfig(vocab_size=TOKENIZER.vocab_size, hidden_size=12, stack=STACK, max_positions=40, **changes)
    return made(config)


def gpt_model(positions: str) -> Model:
    config = GptConfig(vocab_size=TOKENIZER.vocab_size, hidden_size=12, stack=STACK, max_positions=24)
    return made(config.override({"positions": positions, "tie_embeddings": positions == "learned"}))


FAMILIES: dict[str, tuple[Callable[[], Model], Callable[[Path, Any], None], Callable[[Path], Any]]] = {
    "bert": (lambda: encoder_model(head="label", num_labels=3), save_encoder_folder, load_encoder),
    "masked": (lambda: encoder_model(head="masked"), save_encoder_folder, load_encoder),
    "gpt2": (lambda: gpt_model("learned"), save_gpt_folder, load_causal_lm),
    "gpt_neox": (lambda: gpt_model("rotary"), save_gpt_folder, load_causal_lm),
    "a type of our own": (lambda: gpt_model("sinusoidal"), save_gpt_folder, load_causal_lm),
    "marian": (lambda: random_model(small_config()), save_translator, load_translator),
}


def adapt(model: Model, targets: tuple[str, ...]) -> tuple[dict[str, Tensor], Adapter]:
    """Add a random adapter; return the merged weights and the adapter."""
    add_lora(model, LoraSettings(rank=2, alpha=3.0), targets, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer in lora_layers(model).values():
            layer.lora_B.normal_(0, 0.5, generator=generator)
    weights = merge_lora(model, dict(model.state_dict()))
    lora_weights = {name: tensor for name, tensor in weights.items() if is_lora_weight(name)}
    merged = {name: tensor for name, tensor in weights.items() if not is_lora_weight(name)}
    trained = ("classifier", "pooler")
    adapter = Adapter("", 2, alpha=3.0, dropout=0.0, targets=targets, lora_weights=lora_weights, trained=trained)
    return merged, adapter


def save_adapted(folder: Path, family: str, targets: tuple[str, ...]) -> dict[str, Tensor]:
    """Write base, adapted model and adapter; return the weights of the adapted model."""
    build, save, _ = FAMILIES[family]
    model = build()
    save(folder / "base", model)
    merged, adapter = adapt(model, targets)
    plain = build()
    plain.load_state_dict(merged)
    save(folder / "adapted", plain)
    adapter = Adapter(**{**vars(adapter), "base": str(folder / "base")})
    save_adapter(folder / "adapted", plain.config, merged, adapter)
    return merged


@pytest.mark.parametrize("targets", [("query", "value"), ("key", "out"), LORA_TARGETS], ids="+".join)
@pytest.mark.parametrize("family", FAMILIES)
def test_base_and_adapter_equal_the_merged_model(tmp_path: Path, family: str, targets: tuple[str, ...]) -> None:
    merged = save_adapted(tmp_path, family, targets)
    load = FAMILIES[family][2]
    loaded = load(tmp_path / "adapted/adapter").weights
    base = load(tmp_path / "base").weights
    assert merged.keys() == loaded.keys()
    assert all(torch.allclose(loaded[name], tensor, atol=1e-5) for name, tensor in merged.items())
    assert any(not torch.equal(loaded[name], tensor) for name, tensor in base.items())


def test_a_run_keeps_its_adapter(tmp_path: Path) -> None:
    texts = [f"the w{index % 7} was {word}" for index in range(40) for word in ("lovely", "dull")]
    (tmp_path / "train.tsv").write_text("".join(f"{text}\t{text.rpartition(' ')[2]}\n" for text in texts))
    saved_encoder(tmp_path / "encoder", texts)
    settings = {"data.train": (str(tmp_path / "train.tsv"),), "pretrained": str(tmp_path / "encoder"), "lora.rank": 2}
    settings |= {"lora.keep_adapter": True, "training.steps": 20, "training.threads": 1, "training.batch_tokens": 64}
    settings |= {"training.precision": "float32", "training.average_checkpoints": 2}
    train_run(build_run("classify", settings), tmp_path / "run")
    adapter = tmp_path / "run/adapter"
    assert (adapter / "adapter_model.safetensors").stat().st_size < (tmp_path / "run/model.safetensors").stat().st_size
    expected = regard.load(str(tmp_path / "run")).classify(texts[:5])
    predicted = regard.load(str(adapter)).classify(texts[:5])
    for prediction, reference in zip(predicted, expected, strict=True):
        assert prediction == reference
        np.testing.assert_allclose(
            [prediction.probabilities[label] for label in reference.probabilities],
            list(reference.probabilities.values()),
            atol=1e-5,
        )


LOADERS: dict[str, Callable[[Path], Any]] = {
    "tag": load_encoder,
    "answer": load_encoder,
    "masked-lm": load_encoder,
    "causal-lm": load_causal_lm,
    "translate": load_translator,
}


@pytest.mark.parametrize("task", LOADERS)
def test_every_task_keeps_its_adapter(tmp_path: Path, task: str) -> None:
    settings: dict[str, Any] = {"data.train": (str(write_data(tmp_path, task)),), "training.steps": 3}
    settings |= {"training.threads": 1, "training.precision": "float32", "training.batch_tokens": 256}
    if task in ("masked-lm", "causal-lm"):
        settings["documents.sequence_length"] = 8
    if task in ("tag", "answer"):
        saved_encoder(tmp_path / "base", ["the w0 w1 w2 w3 w4 w5 w6 was lovely dull"])
    else:
        preset = "tiny" if task == "masked-lm" else "micro"
        base = build_run(task, {**settings, "tokenizer.kind": "words", "preset": preset})
        train_run(base, tmp_path / "base")
    settings |= {"pretrained": str(tmp_path / "base"), "lora.rank": 2, "lora.keep_adapter": True}
    train_run(build_run(task, settings), tmp_path / "run")
    load = LOADERS[task]
    merged = load(tmp_path / "run").weights
    from_adapter = load(tmp_path / "run/adapter").weights
    before = load(tmp_path / "base").weights
    assert merged.keys() == from_adapter.keys()
    assert all(torch.allclose(from_adapter[name], tensor, atol=1e-5) for name, tensor in merged.items())
    assert any(not torch.equal(merged[name], tensor) for name, tensor in before.items() if "layers.0" in name)


def edit_adapter(folder: Path, **changes: Any) -> None:
    (folder / "MANIFEST.json").unlink(missing_ok=True)  # which shows any change
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_model_name_or_path": "gone/model"}, "the base model gone/model of this adapter is not there"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path must name the base model"),
        ({"peft_type": "IA3"}, "an adapter of type 'IA3'; LORA is read"),
        ({"use_dora": True}, "use_dora is True; plain LoRA is read"),
    ],
)
def test_unusable_adapters_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    save_adapted(tmp_path, "bert", ("query",))
    edit_adapter(tmp_path / "adapted/adapter", **changes)
    with pytest.raises(CheckpointError, match=message):
        load_encoder(tmp_path / "adapted/adapter")


def test_a_base_of_another_shape_is_refused(tmp_path: Path) -> None:
    save_adapted(tmp_path, "bert", ("query",))
    config = BertConfig(vocab_size=TOKENIZER.vocab_size, hidden_size=16, stack=STACK, max_positions=40)
    save_encoder_folder(tmp_path / "wide", made(config))
    edit_adapter(tmp_path / "adapted/adapter", base_model_name_or_path=str(tmp_path / "wide"))
    with pytest.raises(CheckpointError, match=r"has shape \[16, 16\], and the adapter is for one of \[12, 12\]"):
        load_encoder(tmp_path / "adapted/adapter")


def test_a_module_that_the_base_lacks_is_refused(tmp_path: Path) -> None:
    save_adapted(tmp_path, "bert", ("query",))
    file = tmp_path / "adapted/adapter/adapter_model.safetensors"
    tensors = {name.replace("query", "question"): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors: damaged: .*or delete MANIFEST.json"):
        load_encoder(tmp_path / "adapted/adapter")
    edit_adapter(tmp_path / "adapted/adapter")
    with pytest.raises(CheckpointError, match=r"the adapter is for bert\S+question, which the base lacks"):
        load_encoder(tmp_path / "adapted/adapter")


def test_the_pooling_of_the_base_is_kept(tmp_path: Path) -> None:
    save_adapted(tmp_path, "bert", ("query",))
    (tmp_path / "base/1_Pooling").mkdir()
    (tmp_path / "base/1_Pooling/config.json").write_text("{}")
    loaded = load_encoder(tmp_path / "adapted/adapter")
    assert (loaded.path / "1_Pooling/config.json").read_text() == "{}"


def test_a_changed_adapter_is_merged_again(tmp_path: Path) -> None:
    save_adapted(tmp_path, "bert", ("query",))
    folder = tmp_path / "adapted/adapter"
    before = load_encoder(folder).weights
    edit_adapter(folder, lora_alpha=30.0)
    after = load_encoder(folder).weights
    name = "encoder.layers.0.attention.qkv.weight"
    assert not torch.allclose(before[name], after[name], atol=1e-2)


OPEN_MODELS = """
import sys
from pathlib import Path
from regard.checkpoint.adapter_cache import use_merged

def write(folder):
    folder.mkdir()
    (folder / "config.json").write_text(folder.name)

for key in sys.argv[1:]:
    print(use_merged(key, write).name, flush=True)
input()
"""


def open_models(*keys: str) -> subprocess.Popen[str]:
    """Start a process that uses merged models until its standard input ends, and wait until it has opened all."""
    command = [sys.executable, "-c", OPEN_MODELS, *keys]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert [process.stdout.readline().strip() for _ in keys] == list(keys)
    return process


def close(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=HANG_GUARD)
    assert process.returncode == 0


def test_the_cache_keeps_few_models_and_none_is_deleted_while_it_is_used(tmp_path: Path) -> None:
    def cached() -> set[str]:
        return {folder.name for folder in (tmp_path / "cache/adapters").iterdir() if folder.is_dir()}

    keys = [f"model{index}" for index in range(MAX_MERGED + 2)]
    user = open_models(*keys)
    assert cached() == set(keys)  # more than are kept, for all of them are in use
    close(user)
    user = open_models(keys[0])
    close(open_models("other"))
    assert cached() == {"other", keys[0], *keys[-2:]}
    close(open_models("another", "a third", "a fourth", "a fifth"))
    assert cached() == {"another", "a third", "a fourth", "a fifth", keys[0]}  # the oldest, but still in use
    close(user)
    close(open_models("a fifth"))
    assert cached() == {"another", "a third", "a fourth", "a fifth"}
    assert len(list((tmp_path / "cache/adapters").glob("*.lock"))) == MAX_MERGED + 1
