"""Which model type an encoder is written as: one that expresses it whole, else ours, whatever its settings are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.hf.encoder_types import ENCODER_TYPES, NATIVE_TYPE
from regard.checkpoint.hf.encoders import hf_model_type
from regard.cli import run
from regard.config.models import BertConfig, StackConfig
from regard.models.bert import Bert, initialize_bert
from regard.packed_tokens import Tokens
from tests.checkpoint.hf.encoders import random_tokens, save_transformers_model, transformers_outputs
from tests.checkpoint.samples import tokenizers

ODD_HEADS = StackConfig(num_layers=2, num_heads=3, feed_forward_size=11)
CAUSAL = {"causal": True, "pooling": "last"}
ROTARY = {"positions": "rotary", "stack.head_size": 4}
MODERNBERT = ENCODER_TYPES["modernbert"].fixed_settings
TOKENIZER = tokenizers(shared=True)["source"]


def build_encoder(**settings: Any) -> Bert:
    config = BertConfig(vocab_size=TOKENIZER.vocab_size, hidden_size=16, stack=ODD_HEADS.override({"head_size": 8}))
    model = Bert(config.override(settings))
    initialize_bert(model, 3, std=0.3)
    return model.eval()


def save(model: Bert, folder: Path) -> str:
    weights = model.state_dict()
    return save_encoder(folder, model.config, weights, tokenizer=TOKENIZER, task="", metadata={}, card="")


@pytest.mark.parametrize("changes", [{}, ROTARY, CAUSAL, {**CAUSAL, **ROTARY}], ids=str)
@pytest.mark.parametrize("head", ["masked", "label"])
def test_heads_that_do_not_divide_the_hidden_size_are_saved_and_loaded(
    tmp_path: Path, head: str, changes: dict[str, Any]
) -> None:
    model = build_encoder(head=head, num_labels=2 if head == "label" else 0, **changes)
    size = model.config.stack.head_size
    assert hf_model_type(model.config) == (NATIVE_TYPE, f"no Hugging Face type has head_size {size}")
    assert save(model, tmp_path / "model") == NATIVE_TYPE
    loaded = load_encoder(tmp_path / "model")
    assert loaded.config == model.config
    assert all(np.array_equal(loaded.arrays[name], tensor.numpy()) for name, tensor in model.state_dict().items())


def test_a_conversion_says_that_no_type_has_such_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(build_encoder(), tmp_path / "model")
    assert run(["convert", str(tmp_path / "model"), str(tmp_path / "hf"), "--to", "huggingface"]) == 2
    assert "no Hugging Face type has head_size 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [
        {"positions": "learned", "norm_placement": "post", **CAUSAL},  # gpt_neox would have to rotate heads of size 5
        {"head": "masked", "activation": "relu", "norm_placement": "pre"},  # electra's head has gelu
    ],
    ids=str,
)
def test_a_type_that_contradicts_the_config_is_passed_over(settings: dict[str, Any]) -> None:
    config = BertConfig(vocab_size=9, hidden_size=15, stack=ODD_HEADS)
    model_type, reason = hf_model_type(config.override(settings))
    assert model_type == NATIVE_TYPE
    assert reason.startswith("no Hugging Face type has ")


# ---- ModernBERT without local layers


@pytest.mark.parametrize("changes", [{"num_hidden_layers": 1}, {"global_attn_every_n_layers": 1}], ids=str)
def test_a_modernbert_without_local_layers_has_no_window(tmp_path: Path, changes: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    theirs = save_transformers_model("modernbert", "plain", tmp_path / "theirs", **changes)
    loaded = load_encoder(tmp_path / "theirs")
    assert loaded.config.attention_window == 0
    tokens = random_tokens(0)
    expected, _ = transformers_outputs(theirs, tokens, "plain")
    np.testing.assert_allclose(loaded.model().encode(tokens), expected, atol=1e-4)


@pytest.mark.parametrize("global_every", [1, 2])
def test_global_attention_is_written_so_that_transformers_computes_it(tmp_path: Path, global_every: int) -> None:
    transformers = pytest.importorskip("transformers")
    settings = {**MODERNBERT, "bias": False, "stack.num_layers": 3, "stack.head_size": 0, "stack.num_heads": 2}
    model = build_encoder(head="token", num_labels=3, global_every=global_every, rope_theta=160_000.0, **settings)
    assert save(model, tmp_path / "model") == "modernbert"
    tokens = Tokens.from_rows([[5, 6, 7, 8, 9, 10, 11, 5, 6]])
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "model").eval()
    _, expected = transformers_outputs(theirs, tokens, "token")
    np.testing.assert_allclose(model.logits(tokens), expected, atol=1e-4)
    np.testing.assert_allclose(load_encoder(tmp_path / "model").model().logits(tokens), expected, atol=1e-4)
