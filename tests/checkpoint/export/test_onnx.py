"""Encoders as ONNX graphs: onnxruntime computes our outputs for every head, batch size and length."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.checkpoint import atomic
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.export.convert import convert
from regard.checkpoint.export.onnx import FILE, serialize_onnx
from regard.config.models import BertConfig, StackConfig
from regard.errors import UsageError
from regard.models.bert import Bert, initialize_bert
from regard.packed_tokens import Tokens
from tests.checkpoint.hf.encoders import CASES, LABELS, random_tokens, save_transformers_model
from tests.checkpoint.samples import random_model, save, small_config

pytest.importorskip("onnx", reason="onnx is not installed: no graph can be written")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: nothing computes the graph")
pytest.importorskip("transformers", reason="transformers is not installed: no folders to convert")


def run_graph(content: bytes, tokens: Tokens, pad_id: int) -> dict[str, np.ndarray]:
    """Outputs of the graph for a padded batch, without those of padding."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    shape = (len(tokens), int(tokens.lengths.max()))
    is_token = np.arange(shape[1]) < tokens.lengths[:, None]
    inputs = {"input_ids": np.full(shape, pad_id, np.int64), "attention_mask": is_token.astype(np.int64)}
    inputs["input_ids"][is_token] = tokens.ids
    if "token_type_ids" in [value.name for value in session.get_inputs()]:
        inputs["token_type_ids"] = np.zeros(shape, np.int64)
        inputs["token_type_ids"][is_token] = tokens.token_types
    outputs = dict(zip([value.name for value in session.get_outputs()], session.run(None, inputs), strict=True))
    return {name: array[is_token] if array.shape[:2] == shape else array for name, array in outputs.items()}


def is_close(array: np.ndarray, expected: np.ndarray) -> bool:
    assert array.shape == expected.shape
    return bool(np.abs(array - expected).max() <= 1e-5 * np.abs(expected).max())


def select_logits(outputs: dict[str, np.ndarray]) -> np.ndarray:
    """Logits in the layout of our model."""
    span_logits = [outputs[name] for name in ("start_logits", "end_logits") if name in outputs]
    return np.stack(span_logits, axis=1) if span_logits else outputs["logits"]


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_a_run_time_computes_our_outputs(model_type: str, head: str, tmp_path: Path) -> None:
    save_transformers_model(model_type, head, tmp_path / "there")
    loaded = load_encoder(tmp_path / "there")
    assert convert(tmp_path / "there", tmp_path / "out", format="onnx").model_type == f"onnx, a {head} {model_type}"
    model = loaded.model()
    tokens = random_tokens(loaded.config.num_token_types)
    content = (tmp_path / "out" / FILE).read_bytes()
    rows = Tokens.from_rows([tokens.row(2)])
    single = Tokens(rows.ids, rows.offsets, np.zeros(len(rows.ids), np.int32))
    for batch in (tokens, single):  # several sequences of several lengths, and one
        run_time_outputs = run_graph(content, batch, loaded.config.pad_id)
        if head != "plain":
            assert is_close(select_logits(run_time_outputs), model.logits(batch))
            continue
        assert is_close(run_time_outputs["last_hidden_state"], model.encode(batch))
        if loaded.config.has_pooler:
            assert is_close(run_time_outputs["pooler_output"], model.pooler_output(batch))


def test_a_label_head_with_mean_pooling(tmp_path: Path) -> None:
    save_transformers_model("modernbert", "label", tmp_path / "there", classifier_pooling="mean")
    loaded = load_encoder(tmp_path / "there")
    assert loaded.config.pooling == "mean"
    content = serialize_onnx(loaded.config, loaded.model().state_dict(), "it")
    tokens = random_tokens(1)
    assert is_close(select_logits(run_graph(content, tokens, loaded.config.pad_id)), loaded.model().logits(tokens))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "tanh", "quick_gelu"])
@pytest.mark.parametrize("changes", [{"norm": "before"}, {"scale_embedding": True, "span_feed_forward": True}], ids=str)
def test_every_activation_and_norm_placement(activation: str, changes: dict[str, Any]) -> None:
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=9)
    config = BertConfig(vocab_size=61, hidden_size=8, stack=stack, head="span", activation=activation, **changes)
    model = Bert(config)
    initialize_bert(model, 3, std=0.5)
    run_time_outputs = run_graph(serialize_onnx(config, model.state_dict(), "it"), random_tokens(2), 0)
    assert is_close(select_logits(run_time_outputs), model.logits(random_tokens(2)))


def test_tokenizer_labels_and_tuned_settings_are_written_too(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    save_transformers_model("bert", "label", tmp_path / "there")
    loaded = load_encoder(tmp_path / "there")
    metadata = {"temperature": 1.7, "max_length": 20}
    options: dict[str, Any] = {
        "tokenizer": loaded.tokenizer,
        "labels": loaded.labels,
        "task": "classify",
        "metadata": metadata,
    }
    save_encoder(tmp_path / "run", loaded.config, loaded.weights, card="# Mood", **options)
    convert(tmp_path / "run", tmp_path / "out", format="onnx")
    assert atomic.verify_folder(tmp_path / "out")
    assert tuple(AutoConfig.from_pretrained(tmp_path / "out").id2label.values()) == LABELS
    ids = AutoTokenizer.from_pretrained(tmp_path / "out")("w3 w5")["input_ids"]
    assert ids == [2, *loaded.tokenizer.encode_batch(["w3 w5"])[0], 3]
    assert json.loads((tmp_path / "out/task.json").read_text())["temperature"] == 1.7
    assert (tmp_path / "out/README.md").read_text() == "# Mood"


def test_what_cannot_be_written_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BertConfig(vocab_size=61, hidden_size=8, stack=StackConfig(num_heads=2), attention="blocks")
    with pytest.raises(UsageError, match="long cannot be written for ONNX: block-sparse attention"):
        serialize_onnx(config, {}, "long")
    save(tmp_path / "translator", random_model(small_config()))
    with pytest.raises(UsageError, match="a translator; encoders can, and --to ctranslate2 may do"):
        convert(tmp_path / "translator", tmp_path / "out", format="onnx")
    save_transformers_model("bert", "label", tmp_path / "there")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"onnx is not installed: `pip install 'regard\[onnx\]'`"):
        convert(tmp_path / "there", tmp_path / "out", format="onnx")
    assert not (tmp_path / "out").exists()
