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


def run_graph(graph: bytes, tokens: Tokens, pad_id: int) -> dict[str, np.ndarray]:
    """Run a graph in onnxruntime on a padded batch; return its outputs without those of padding."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    shape = (len(tokens), int(tokens.lengths.max()))
    is_token = np.arange(shape[1]) < tokens.lengths[:, None]
    inputs = {"input_ids": np.full(shape, pad_id, np.int64), "attention_mask": is_token.astype(np.int64)}
    inputs["input_ids"][is_token] = tokens.ids
    if "token_type_ids" in [value.name for value in session.get_inputs()]:
        inputs["token_type_ids"] = np.zeros(shape, np.int64)
        inputs["token_type_ids"][is_token] = tokens.token_types
    outputs = {}
    for value, array in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        is_per_token = array.shape[:2] == shape
        outputs[value.name] = array[is_token] if is_per_token else array
    return outputs


def assert_close(array: np.ndarray, expected: np.ndarray) -> None:
    assert array.shape == expected.shape
    assert np.abs(array - expected).max() <= 1e-5 * np.abs(expected).max()


def select_logits(outputs: dict[str, np.ndarray]) -> np.ndarray:
    """Logits in the layout of our model: start and end logits of a span side by side."""
    if "start_logits" in outputs:
        return np.stack([outputs["start_logits"], outputs["end_logits"]], axis=1)
    return outputs["logits"]


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_onnxruntime_computes_our_outputs(model_type: str, head: str, tmp_path: Path) -> None:
    save_transformers_model(model_type, head, tmp_path / "hf")
    loaded = load_encoder(tmp_path / "hf")
    conversion = convert(tmp_path / "hf", tmp_path / "out", format="onnx")
    assert conversion.model_type == f"onnx, a {head} {model_type}"
    model = loaded.model()
    graph = (tmp_path / "out" / FILE).read_bytes()
    sequences = random_tokens(loaded.config.num_token_types)
    longest = Tokens.from_rows([sequences.row(2)])
    single = Tokens(longest.ids, longest.offsets, np.zeros(len(longest.ids), np.int32))
    for tokens in (sequences, single):  # several sequences of several lengths, and one
        outputs = run_graph(graph, tokens, loaded.config.pad_id)
        if head != "plain":
            assert_close(select_logits(outputs), model.logits(tokens))
            continue
        assert_close(outputs["last_hidden_state"], model.encode(tokens))
        assert ("pooler_output" in outputs) == loaded.config.has_pooler
        if loaded.config.has_pooler:
            assert_close(outputs["pooler_output"], model.pooler_output(tokens))


def test_a_label_head_with_mean_pooling_is_exported(tmp_path: Path) -> None:
    save_transformers_model("modernbert", "label", tmp_path, classifier_pooling="mean")
    loaded = load_encoder(tmp_path)
    assert loaded.config.pooling == "mean"
    model = loaded.model()
    graph = serialize_onnx(loaded.config, model.state_dict(), "graph")
    tokens = random_tokens(1)
    outputs = run_graph(graph, tokens, loaded.config.pad_id)
    assert_close(select_logits(outputs), model.logits(tokens))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "tanh", "quick_gelu"])
@pytest.mark.parametrize("changes", [{"norm": "before"}, {"scale_embedding": True, "span_feed_forward": True}], ids=str)
def test_every_activation_and_norm_placement_is_exported(activation: str, changes: dict[str, Any]) -> None:
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=9)
    config = BertConfig(vocab_size=61, hidden_size=8, stack=stack, head="span", activation=activation, **changes)
    model = Bert(config)
    initialize_bert(model, 3, std=0.5)
    tokens = random_tokens(2)
    graph = serialize_onnx(config, model.state_dict(), "graph")
    outputs = run_graph(graph, tokens, pad_id=0)
    assert_close(select_logits(outputs), model.logits(tokens))


def test_tokenizer_labels_metadata_and_card_are_written_too(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    save_transformers_model("bert", "label", tmp_path / "hf")
    loaded = load_encoder(tmp_path / "hf")
    metadata = {"temperature": 1.7, "max_length": 20}
    save_encoder(
        tmp_path / "run",
        loaded.config,
        loaded.weights,
        tokenizer=loaded.tokenizer,
        labels=loaded.labels,
        task="classify",
        metadata=metadata,
        card="# Mood",
    )
    convert(tmp_path / "run", tmp_path / "out", format="onnx")
    assert atomic.verify_folder(tmp_path / "out")
    assert tuple(AutoConfig.from_pretrained(tmp_path / "out").id2label.values()) == LABELS
    ids = AutoTokenizer.from_pretrained(tmp_path / "out")("w3 w5")["input_ids"]
    assert ids == [2, *loaded.tokenizer.encode_batch(["w3 w5"])[0], 3]
    assert json.loads((tmp_path / "out/task.json").read_text())["temperature"] == 1.7
    assert (tmp_path / "out/README.md").read_text() == "# Mood"


def test_models_that_onnx_cannot_express_and_a_missing_library_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BertConfig(vocab_size=61, hidden_size=8, stack=StackConfig(num_heads=2), attention="blocks")
    with pytest.raises(UsageError, match="long cannot be written for ONNX: block-sparse attention"):
        serialize_onnx(config, {}, "long")
    save(tmp_path / "translator", random_model(small_config()))
    with pytest.raises(UsageError, match="a translation model; encoders can, and --to ctranslate2 may do"):
        convert(tmp_path / "translator", tmp_path / "out", format="onnx")
    save_transformers_model("bert", "label", tmp_path / "hf")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"onnx is not installed: `pip install 'regard\[onnx\]'`"):
        convert(tmp_path / "hf", tmp_path / "out", format="onnx")
    assert not (tmp_path / "out").exists()
