"""Adapters that the peft package opens and writes: the same logits as our models, for every type and head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard.checkpoint.adapters import Adapter, save_adapter
from regard.checkpoint.causal_dir import load_causal_lm, save_causal_lm
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.model_dir import load_translator
from regard.config.models import GptConfig, StackConfig
from regard.config.training import LORA_TARGETS
from regard.errors import CheckpointError
from regard.models import build_model
from regard.models.base import Model
from regard.models.layers.lora import LoraSettings, add_lora, is_lora_weight, lora_layers, merge_lora
from regard.packed_tokens import Tokens
from tests.checkpoint.hf.encoders import (
    CASES,
    CLASSES,
    CONFIGS,
    LABELS,
    random_tokens,
    save_transformers_model,
    transformers_outputs,
)
from tests.checkpoint.samples import random_model, small_config
from tests.checkpoint.samples import save as save_translator
from tests.checkpoint.samples import tokenizers as sample_tokenizers
from tests.families import made

peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
transformers = pytest.importorskip("transformers")

HEAD_WEIGHTS = ("classifier", "pooler", "span_", "mlm_head.")
TOKENIZER = sample_tokenizers(True)["source"]
STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=24)
ROWS = [[5, 6, 7, 8], [9, 10, 11, 12]]
TASK_TYPES = {"label": "SEQ_CLS", "token": "TOKEN_CLS", "span": None, "masked": None}  # by head


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def adapt(model: Model, base: Path, targets: tuple[str, ...]) -> tuple[dict[str, Tensor], Adapter]:
    """Add a random adapter; return the merged weights and the adapter."""
    add_lora(model, LoraSettings(rank=2, alpha=3.0), targets, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer in lora_layers(model).values():
            layer.lora_B.normal_(0, 0.3, generator=generator)
    weights = merge_lora(model, dict(model.state_dict()))
    lora_weights = {name: tensor for name, tensor in weights.items() if is_lora_weight(name)}
    merged = {name: tensor for name, tensor in weights.items() if not is_lora_weight(name)}
    adapter = Adapter(
        base=str(base),
        rank=2,
        alpha=3.0,
        dropout=0.0,
        targets=targets,
        lora_weights=lora_weights,
        trained=HEAD_WEIGHTS,
    )
    return merged, adapter


def randomize_lora(model: Any) -> Any:
    """Draw A and B of an adapter of peft, and the modules that it trains besides."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.normal_(0, 0.3, generator=generator)
    return model.eval()


def build_causal_lm(positions: str) -> Model:
    config = GptConfig(vocab_size=TOKENIZER.vocab_size, hidden_size=12, stack=STACK, max_positions=24)
    return made(config.override({"positions": positions, "tie_embeddings": positions == "learned"}))


def save_gpt(folder: Path, model: Model) -> None:
    config = model.config
    assert isinstance(config, GptConfig)
    save_causal_lm(folder, config, model.state_dict(), tokenizer=TOKENIZER, metadata={}, card="")


def transformers_class(task_type: str) -> Any:
    name = "AutoModelForSeq2SeqLM" if task_type == "SEQ_2_SEQ_LM" else "AutoModelForCausalLM"
    return getattr(transformers, name)


def decoder_logits(model: Any) -> Tensor:
    inputs = {"input_ids": torch.tensor(ROWS)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor(ROWS)
    with torch.no_grad():
        logits: Tensor = model(**inputs).logits
    return logits


# ---- peft opens ours


@pytest.mark.parametrize(("model_type", "head"), [case for case in CASES if case[1] in TASK_TYPES])
def test_peft_opens_adapters_of_encoders(tmp_path: Path, model_type: str, head: str) -> None:
    targets = ("query", "value") if head == "token" else LORA_TARGETS
    save_transformers_model(model_type, head, tmp_path / "base")
    loaded = load_encoder(tmp_path / "base")
    merged, adapter = adapt(loaded.model(), tmp_path / "base", targets)
    with torch.no_grad():
        for name, tensor in merged.items():
            if name.startswith(HEAD_WEIGHTS):
                tensor += 0.1  # the head is trained, too
    save_encoder(
        tmp_path / "adapted",
        loaded.config,
        merged,
        tokenizer=loaded.tokenizer,
        task="",
        metadata={},
        card="",
        labels=loaded.labels,
        preferred_type=model_type,
        original_config=loaded.hf_config,
    )
    save_adapter(tmp_path / "adapted", loaded.config, merged, adapter)
    auto_class = getattr(transformers, f"{CONFIGS[model_type][0]}{CLASSES[head]}")
    base = auto_class.from_pretrained(tmp_path / "base").eval()
    tokens = random_tokens(loaded.config.num_token_types)
    _, before = transformers_outputs(base, tokens, head)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapted/adapter").eval()
    assert adapted.peft_config["default"].task_type == TASK_TYPES[head]
    _, logits = transformers_outputs(adapted, tokens, head)
    expected_model = auto_class.from_pretrained(tmp_path / "adapted").eval()
    _, expected = transformers_outputs(expected_model, tokens, head)
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    assert np.abs(logits - before).max() > 1e-2
    ours = load_encoder(tmp_path / "adapted/adapter").model().eval().logits(tokens)
    np.testing.assert_allclose(ours, expected, atol=1e-4)


DECODERS: dict[str, tuple[Callable[[], Model], Callable[[Path, Any], None], str]] = {
    "gpt2": (lambda: build_causal_lm("learned"), save_gpt, "CAUSAL_LM"),
    "gpt_neox": (lambda: build_causal_lm("rotary"), save_gpt, "CAUSAL_LM"),
    "marian": (lambda: random_model(small_config(norm_placement="post")), save_translator, "SEQ_2_SEQ_LM"),
    "pegasus": (lambda: random_model(small_config(norm_placement="pre")), save_translator, "SEQ_2_SEQ_LM"),
}


@pytest.mark.parametrize("model_type", DECODERS)
def test_peft_opens_adapters_of_decoders(tmp_path: Path, model_type: str) -> None:
    build, save, task_type = DECODERS[model_type]
    base_model = build()
    save(tmp_path / "base", base_model)
    merged, adapter = adapt(base_model, tmp_path / "base", LORA_TARGETS)
    plain = build_model(base_model.config)
    plain.load_state_dict(merged)
    save(tmp_path / "adapted", plain)
    save_adapter(tmp_path / "adapted", base_model.config, merged, adapter)
    base = transformers_class(task_type).from_pretrained(tmp_path / "base").eval()
    assert base.config.model_type == model_type
    before = decoder_logits(base)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapted/adapter").eval()
    assert adapted.peft_config["default"].task_type == task_type
    logits = decoder_logits(adapted)
    expected = decoder_logits(transformers_class(task_type).from_pretrained(tmp_path / "adapted").eval())
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits, before, atol=1e-2)


# ---- we open peft's


ENCODER_ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "query and value": ("bert", {"target_modules": ["query", "value"]}),
    "alpha": ("bert", {"target_modules": ["query"], "lora_alpha": 11}),
    "rank-stabilised": ("roberta", {"target_modules": ["query", "key"], "use_rslora": True}),
    "all linear layers": ("electra", {"target_modules": "all-linear"}),
    "regular expression": ("bert", {"target_modules": r".*layer\.1\..*(query|dense)"}),
    "patterns": (
        "bert",
        {
            "target_modules": ["query", "key", "output.dense"],
            "rank_pattern": {"key": 5},
            "alpha_pattern": {"layer.0.attention.self.key": 7, "key": 2},
        },
    ),
    "some layers": ("bert", {"target_modules": ["query"], "layers_to_transform": [1]}),
    "saved pooler": ("bert", {"target_modules": ["value"], "modules_to_save": ["pooler", "classifier"]}),
    "fused projections": ("modernbert", {"target_modules": ["Wqkv", "Wi"]}),
    "shared layers": ("albert", {"target_modules": ["query", "ffn"]}),
    "other names": ("distilbert", {"target_modules": ["q_lin", "lin2"]}),
}


@pytest.mark.parametrize("name", ENCODER_ADAPTERS)
def test_we_open_classifiers_of_peft(tmp_path: Path, name: str) -> None:
    model_type, settings = ENCODER_ADAPTERS[name]
    save_transformers_model(model_type, "masked", tmp_path / "base")
    auto_class = transformers.AutoModelForSequenceClassification
    base = auto_class.from_pretrained(tmp_path / "base", num_labels=len(LABELS))
    base_names = [parameter_name for parameter_name, _ in base.named_parameters()]
    if "pooler" not in settings.get("modules_to_save", ()):  # which the base was saved without
        heads = sorted({name.split(".")[0] for name in base_names if name.startswith(("pre_classifier", "head"))})
        poolers = ["pooler"] if any("pooler" in name for name in base_names) else []
        settings = {**settings, "modules_to_save": ["classifier", *heads, *poolers]}
    model = randomize_lora(peft.get_peft_model(base, peft.LoraConfig(r=3, task_type="SEQ_CLS", **settings)))
    model.save_pretrained(tmp_path / "adapter")
    base = auto_class.from_pretrained(tmp_path / "base", num_labels=len(LABELS))
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()  # the file sorts the patterns
    loaded = load_encoder(tmp_path / "adapter")
    assert loaded.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    tokens = random_tokens(1)
    _, expected = transformers_outputs(model, tokens, "label")
    np.testing.assert_allclose(loaded.model().eval().logits(tokens), expected, atol=1e-4)
    probabilities = regard.load(str(tmp_path / "adapter")).classify(["w3 w5 w7"])[0].probabilities
    assert sum(probabilities.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("positions", "settings"),
    [
        ("learned", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
        ("learned", {"target_modules": "all-linear", "use_rslora": True}),
        ("rotary", {"target_modules": ["query_key_value", "dense_4h_to_h"]}),
    ],
)
def test_we_open_language_models_of_peft(tmp_path: Path, positions: str, settings: dict[str, Any]) -> None:
    save_gpt(tmp_path / "base", build_causal_lm(positions))
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = randomize_lora(peft.get_peft_model(base, peft.LoraConfig(r=3, task_type="CAUSAL_LM", **settings)))
    model.save_pretrained(tmp_path / "adapter")
    loaded = load_causal_lm(tmp_path / "adapter")
    ours = build_model(loaded.config)
    ours.load_state_dict(loaded.weights)
    with torch.no_grad():
        hidden = ours(Tokens.from_rows(ROWS))
        logits = torch.nn.functional.linear(hidden, ours.output_weight).unflatten(0, (len(ROWS), -1))
    torch.testing.assert_close(logits, decoder_logits(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm_placement", ["pre", "post"])
def test_we_open_translators_of_peft(tmp_path: Path, norm_placement: str) -> None:
    save_translator(tmp_path / "base", random_model(small_config(norm_placement=norm_placement)))
    base = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")
    settings = {"r": 3, "task_type": "SEQ_2_SEQ_LM", "target_modules": ["q_proj", "v_proj", "fc1"]}
    model = randomize_lora(peft.get_peft_model(base, peft.LoraConfig(**settings)))
    model.save_pretrained(tmp_path / "adapter")
    loaded = load_translator(tmp_path / "adapter")
    merged = model.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    for name in ("tokenizer.json", "task.json"):
        (tmp_path / "merged" / name).write_bytes((tmp_path / "base" / name).read_bytes())
    expected = load_translator(tmp_path / "merged").weights
    assert all(torch.allclose(tensor, expected[name], atol=1e-5) for name, tensor in loaded.weights.items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bias": "all"}, "bias is 'all'; plain LoRA is read"),
        ({"bias": "lora_only"}, "bias is 'lora_only'; plain LoRA is read"),
        ({"use_dora": True}, "use_dora is True; plain LoRA is read"),
        ({"lora_bias": True}, "lora_bias is True; plain LoRA is read"),
        ({"trainable_token_indices": [5]}, r"trainable_token_indices is \[5\]; plain LoRA is read"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which changes the base model"),
        ({"target_modules": ["query", "word_embeddings"]}, "is not plain LoRA: merge it with peft's merge_and_unload"),
    ],
)
def test_other_adapters_of_peft_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    save_transformers_model("bert", "label", tmp_path / "base")
    base = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    settings = {"target_modules": ["query"], **settings}
    model = peft.get_peft_model(base, peft.LoraConfig(r=3, task_type="SEQ_CLS", **settings))
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=message):
        regard.load(str(tmp_path / "adapter"))


def test_a_kind_of_adapter_other_than_lora_is_refused(tmp_path: Path) -> None:
    save_transformers_model("bert", "label", tmp_path / "base")
    base = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    settings = {"target_modules": ["key", "output.dense"], "feedforward_modules": ["output.dense"]}
    peft.get_peft_model(base, peft.IA3Config(task_type="SEQ_CLS", **settings)).save_pretrained(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="an adapter of type 'IA3'; LORA is read"):
        regard.load(str(tmp_path / "adapter"))
