"""Encoders as ONNX graphs: a run-time of others gives our numbers, whatever the head, the batch and the length."""

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
from regard.tokens import Tokens
from tests.checkpoint.hf.encoders import CASES, LABELS, made, texts
from tests.checkpoint.samples import lively, save, small_config

pytest.importorskip("onnx", reason="onnx is not installed: no graph can be written")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: nothing computes the graph")
pytest.importorskip("transformers", reason="transformers is not installed: no folders to convert")


def computed(content: bytes, tokens: Tokens, pad: int) -> dict[str, np.ndarray]:
    """Return what the graph gives for texts in one padded batch, of the tokens that are there."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    shape = (len(tokens), int(tokens.lengths.max()))
    there = np.arange(shape[1]) < tokens.lengths[:, None]
    given = {"input_ids": np.full(shape, pad, np.int64), "attention_mask": there.astype(np.int64)}
    given["input_ids"][there] = tokens.ids
    if "token_type_ids" in [one.name for one in session.get_inputs()]:
        given["token_type_ids"] = np.zeros(shape, np.int64)
        given["token_type_ids"][there] = tokens.token_types
    found = dict(zip([one.name for one in session.get_outputs()], session.run(None, given), strict=True))
    return {name: array[there] if array.shape[:2] == shape else array for name, array in found.items()}


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    assert found.shape == wanted.shape
    return bool(np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max())


def as_ours(found: dict[str, np.ndarray]) -> np.ndarray:
    """Return the scores as our model gives them."""
    ends = [found[name] for name in ("start_logits", "end_logits") if name in found]
    return np.stack(ends, axis=1) if ends else found["logits"]


@pytest.mark.parametrize(("kind", "head"), CASES)
def test_a_run_time_gives_our_numbers(kind: str, head: str, tmp_path: Path) -> None:
    made(kind, head, tmp_path / "there")
    loaded = load_encoder(tmp_path / "there")
    assert convert(tmp_path / "there", tmp_path / "out", format="onnx").model_type == f"onnx, a {head} {kind}"
    model, tokens, content = (
        loaded.model(),
        texts(loaded.config.num_token_types),
        (tmp_path / "out" / FILE).read_bytes(),
    )
    rows = Tokens.from_rows([tokens.row(2)])
    alone = Tokens(rows.ids, rows.offsets, np.zeros(len(rows.ids), np.int32))
    for some in (tokens, alone):  # several texts of several lengths, and one
        found = computed(content, some, loaded.config.pad_id)
        if head != "plain":
            assert same(as_ours(found), model.logits(some))
            continue
        assert same(found["last_hidden_state"], model.encode(some))
        if loaded.config.has_pooler:
            assert same(found["pooler_output"], model.pooler_output(some))


def test_a_label_of_the_mean_of_states(tmp_path: Path) -> None:
    made("modernbert", "label", tmp_path / "there", classifier_pooling="mean")
    loaded = load_encoder(tmp_path / "there")
    assert loaded.config.pooling == "mean"
    content, tokens = serialize_onnx(loaded.config, loaded.model().state_dict(), "it"), texts(1)
    assert same(as_ours(computed(content, tokens, loaded.config.pad_id)), loaded.model().logits(tokens))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "tanh", "quick_gelu"])
@pytest.mark.parametrize("changes", [{"norm": "before"}, {"scale_embedding": True, "span_feed_forward": True}], ids=str)
def test_every_activation_and_arrangement(activation: str, changes: dict[str, Any]) -> None:
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=9)
    config = BertConfig(vocab_size=61, hidden_size=8, stack=stack, head="span", activation=activation, **changes)
    model = Bert(config)
    initialize_bert(model, 3, std=0.5)
    found = computed(serialize_onnx(config, model.state_dict(), "it"), texts(2), 0)
    assert same(as_ours(found), model.logits(texts(2)))


def test_tokenizer_labels_and_what_was_tuned_are_beside_it(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    made("bert", "label", tmp_path / "there")
    loaded = load_encoder(tmp_path / "there")
    facts = {"temperature": 1.7, "max_length": 20}
    told: dict[str, Any] = {"tokenizer": loaded.tokenizer, "labels": loaded.labels, "task": "classify", "facts": facts}
    save_encoder(tmp_path / "run", loaded.config, loaded.weights, card="# Mood", **told)
    convert(tmp_path / "run", tmp_path / "out", format="onnx")
    assert atomic.verify_folder(tmp_path / "out")
    assert tuple(AutoConfig.from_pretrained(tmp_path / "out").id2label.values()) == LABELS
    spoken = AutoTokenizer.from_pretrained(tmp_path / "out")("w3 w5")["input_ids"]
    assert spoken == [2, *loaded.tokenizer.encode_batch(["w3 w5"])[0], 3]
    assert json.loads((tmp_path / "out/task.json").read_text())["temperature"] == 1.7
    assert (tmp_path / "out/README.md").read_text() == "# Mood"


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BertConfig(vocab_size=61, hidden_size=8, stack=StackConfig(num_heads=2), attention="blocks")
    with pytest.raises(UsageError, match="long cannot be written for ONNX: block-sparse attention"):
        serialize_onnx(config, {}, "long")
    save(tmp_path / "translator", lively(small_config()))
    with pytest.raises(UsageError, match="a translator; encoders can, and --to ctranslate2 may do"):
        convert(tmp_path / "translator", tmp_path / "out", format="onnx")
    made("bert", "label", tmp_path / "there")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"onnx is not installed: `pip install 'regard\[onnx\]'`"):
        convert(tmp_path / "there", tmp_path / "out", format="onnx")
    assert not (tmp_path / "out").exists()
