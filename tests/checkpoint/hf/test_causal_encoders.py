"""Causal language models as encoders of one direction: from language-model folders, and both ways with heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.checkpoint.causal_dir import load_causal_lm, save_causal_lm
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.hf.encoders import hf_model_type, is_encoder
from regard.checkpoint.model_dir import folder_task, is_encoder_folder
from regard.config.data import TokenizerConfig
from regard.config.models import BertConfig, GptConfig, StackConfig
from regard.errors import CheckpointError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.models.gpt import Gpt
from regard.packed_tokens import Tokens
from regard.text.train import train_tokenizer
from tests.checkpoint.hf.encoders import LABELS, random_tokens, save_transformers_model, transformers_outputs

TOKENIZER = train_tokenizer(["the cat sat on the mat"] * 9, TokenizerConfig(vocab_size=280))
STACK = StackConfig(num_layers=2, num_heads=3, feed_forward_size=19)
ROWS = Tokens.from_rows([[5, 6, 7, 8, 9], [11], [12, 13, 14]])


def save_gpt(folder: Path, **changes: Any) -> Gpt:
    """A small random causal model of ours, saved in a folder."""
    config = GptConfig(vocab_size=TOKENIZER.vocab_size, hidden_size=12, stack=STACK, max_positions=23, dropout=0.0)
    model = build_model(config.override(changes))
    assert isinstance(model, Gpt)
    initialize_weights(model, 3)
    save_causal_lm(folder, model.config, model.state_dict(), tokenizer=TOKENIZER, metadata={}, card="")
    return model.eval()


def edit_config(folder: Path, **changes: Any) -> None:
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "learned"},
        {"positions": "rotary"},
        {"positions": "rotary", "tie_embeddings": False},
        {"positions": "sinusoidal", "activation": "relu"},
        {"positions": "relative", "norm_placement": "post"},
        {"positions": "alibi", "stack.residual": False},
    ],
    ids=str,
)
def test_an_encoder_computes_the_hidden_states_of_our_causal_models(changes: dict[str, Any], tmp_path: Path) -> None:
    gpt = save_gpt(tmp_path, **changes)
    expected = gpt(ROWS).detach().numpy()
    assert not is_encoder_folder(tmp_path) and folder_task(tmp_path) == "causal-lm"
    for head, labels in (("plain", None), ("label", LABELS), ("token", LABELS), ("span", None)):
        encoder = load_encoder(tmp_path, head=head, labels=labels)
        assert np.allclose(encoder.model().encode(ROWS), expected, atol=1e-5)
        assert (encoder.config.causal, encoder.config.pooling, encoder.config.has_pooler) == (True, "last", False)
        assert encoder.labels == (LABELS if head in ("label", "token") else ())


def test_local_attention_has_no_head_for_another_task(tmp_path: Path) -> None:
    save_gpt(tmp_path, attention_window=3)
    with pytest.raises(CheckpointError, match="attention_window is 3: a causal model with local attention has no head"):
        load_encoder(tmp_path, head="label", labels=LABELS)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_head_is_written_and_read_with_its_labels(positions: str, tmp_path: Path) -> None:
    save_gpt(tmp_path / "lm", positions=positions)
    loaded = load_encoder(tmp_path / "lm", head="label", labels=LABELS)
    arguments: dict[str, Any] = {"tokenizer": TOKENIZER, "task": "classify", "metadata": {}, "card": ""}
    arguments |= {"labels": LABELS, "preferred_type": loaded.model_type, "original_config": loaded.hf_config}
    model_type = save_encoder(tmp_path / "classifier", loaded.config, loaded.weights, **arguments)
    assert model_type == ("gpt2" if positions == "learned" else "regard-bert")
    reloaded = load_encoder(tmp_path / "classifier")
    assert (reloaded.config, reloaded.labels) == (loaded.config, LABELS)
    assert all(np.array_equal(reloaded.arrays[name], array) for name, array in loaded.arrays.items())
    assert is_encoder_folder(tmp_path / "classifier") and folder_task(tmp_path / "classifier") == "classify"
    with pytest.raises(CheckpointError, match="'classify'; one for 'causal-lm' is needed"):
        load_causal_lm(tmp_path / "classifier")


@pytest.mark.parametrize(
    "changes",
    [
        {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
        {"activation_function": "relu", "n_inner": None},
        {"pad_token_id": 3, "classifier_dropout": 0.3},
    ],
    ids=str,
)
def test_unusual_gpt2_classifiers_have_the_logits_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    hf_model = save_transformers_model("gpt2", "label", tmp_path / "hf", **changes)
    loaded = load_encoder(tmp_path / "hf")
    tokens = random_tokens(0)
    _, expected = transformers_outputs(hf_model, tokens, "label")
    assert expected is not None
    assert np.abs(loaded.model().logits(tokens) - expected).max() < 1e-5 * np.abs(expected).max()
    arguments: dict[str, Any] = {"tokenizer": loaded.tokenizer, "task": "", "metadata": {}, "card": ""}
    arguments |= {"labels": loaded.labels, "preferred_type": "gpt2", "original_config": loaded.hf_config}
    assert save_encoder(tmp_path / "ours", loaded.config, loaded.weights, **arguments) == "gpt2"
    written = type(hf_model).from_pretrained(tmp_path / "ours").eval()
    _, logits = transformers_outputs(written, tokens, "label")
    assert logits is not None and np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("gpt_neox", {"use_parallel_residual": True}, "use_parallel_residual is True: of gpt_neox only False is read"),
        ("gpt_neox", {"rotary_pct": 0.25, "rope_parameters": None}, "rotary_pct is 0.25: of gpt_neox only 1.0 is read"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is true"),
    ],
)
def test_what_causal_models_do_not_compute_is_refused_with_heads_too(
    model_type: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    save_transformers_model(model_type, "label", tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_encoder(tmp_path)


def test_a_head_that_no_class_has_is_refused(tmp_path: Path) -> None:
    save_gpt(tmp_path, positions="learned")
    with pytest.raises(CheckpointError, match="gpt2 models have no masked head; they have plain, label, token, span"):
        load_encoder(tmp_path, head="masked")


def test_only_classes_with_a_head_are_encoders() -> None:
    assert not is_encoder({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]})
    assert not is_encoder({"model_type": "gpt_neox", "architectures": ["GPTNeoXModel"]})
    assert is_encoder({"model_type": "gpt_neox", "architectures": ["GPTNeoXForQuestionAnswering"]})


def test_encoders_that_differ_from_gpt_have_a_type_of_our_own() -> None:
    config = load_config(positions="learned")
    assert hf_model_type(config)[0] == "gpt2"
    assert hf_model_type(load_config(positions="rotary"))[0] == "gpt_neox"
    for changes in ({"causal": False}, {"classifier_bias": True}, {"pooling": "mean"}, {"embedding_norm": True}):
        assert hf_model_type(config.override(changes))[0] == "regard-bert"


def load_config(**changes: Any) -> BertConfig:
    """Config of a GPT classifier."""
    settings = {"causal": True, "norm_placement": "pre", "embedding_norm": False, "num_token_types": 0, "pooler": False}
    settings |= {"pooling": "last", "activation": "gelu_tanh", "classifier_bias": False, "classifier_dropout": 0.0}
    return BertConfig(vocab_size=9, hidden_size=12, stack=STACK, head="label", num_labels=3).override(
        {**settings, **changes}
    )
