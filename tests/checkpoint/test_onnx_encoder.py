"""Encoders as ONNX graphs: a run-time of others gives our numbers, whatever the head, the batch and the length."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.checkpoint import files
from regard.checkpoint.encoder_folder import load_encoder, save_encoder
from regard.checkpoint.onnx_encoder import FILE, drawn
from regard.config.model import EncoderConfig, StackConfig
from regard.convert import convert
from regard.errors import UsageError
from regard.models.encoder import Encoder, start_encoder
from regard.tokens import Tokens
from tests.checkpoint.encoders import CASES, LABELS, made, texts
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
        given["token_type_ids"][there] = tokens.segments
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
    assert convert(tmp_path / "there", tmp_path / "out", to="onnx").model_type == f"onnx, a {head} {kind}"
    model, tokens, content = loaded.model(), texts(loaded.config.types), (tmp_path / "out" / FILE).read_bytes()
    rows = Tokens.from_rows([tokens.row(2)])
    alone = Tokens(rows.ids, rows.offsets, np.zeros(len(rows.ids), np.int32))
    for some in (tokens, alone):  # several texts of several lengths, and one
        found = computed(content, some, loaded.config.pad)
        if head != "plain":
            assert same(as_ours(found), model.scores(some))
            continue
        assert same(found["last_hidden_state"], model.encode(some))
        if loaded.config.pools:
            assert same(found["pooler_output"], model.pool(some))


def test_a_label_of_the_mean_of_states(tmp_path: Path) -> None:
    made("modernbert", "label", tmp_path / "there", classifier_pooling="mean")
    loaded = load_encoder(tmp_path / "there")
    assert loaded.config.pooling == "mean"
    content, tokens = drawn(loaded.config, loaded.model().state_dict(), "it"), texts(1)
    assert same(as_ours(computed(content, tokens, loaded.config.pad)), loaded.model().scores(tokens))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "tanh", "quick_gelu"])
@pytest.mark.parametrize("changes", [{"norm": "before"}, {"scale_embedding": True, "span_feedforward": True}], ids=str)
def test_every_activation_and_arrangement(activation: str, changes: dict[str, Any]) -> None:
    stack = StackConfig(layers=2, heads=2, feedforward=9)
    config = EncoderConfig(vocabulary=61, width=8, stack=stack, head="span", activation=activation, **changes)
    model = Encoder(config)
    start_encoder(model, 3, deviation=0.5)
    found = computed(drawn(config, model.state_dict(), "it"), texts(2), 0)
    assert same(as_ours(found), model.scores(texts(2)))


def test_tokenizer_labels_and_what_was_tuned_are_beside_it(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    made("bert", "label", tmp_path / "there")
    loaded = load_encoder(tmp_path / "there")
    facts = {"temperature": 1.7, "max_length": 20}
    told: dict[str, Any] = {"tokenizer": loaded.tokenizer, "labels": loaded.labels, "task": "classify", "facts": facts}
    save_encoder(tmp_path / "run", loaded.config, loaded.weights, card="# Mood", **told)
    convert(tmp_path / "run", tmp_path / "out", to="onnx")
    assert files.verify_folder(tmp_path / "out")
    assert tuple(AutoConfig.from_pretrained(tmp_path / "out").id2label.values()) == LABELS
    spoken = AutoTokenizer.from_pretrained(tmp_path / "out")("w3 w5")["input_ids"]
    assert spoken == [2, *loaded.tokenizer.encode_all(["w3 w5"])[0], 3]
    assert json.loads((tmp_path / "out/task.json").read_text())["temperature"] == 1.7
    assert (tmp_path / "out/README.md").read_text() == "# Mood"


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EncoderConfig(vocabulary=61, width=8, stack=StackConfig(heads=2), attention="blocks")
    with pytest.raises(UsageError, match="long cannot be written for ONNX: attention in blocks"):
        drawn(config, {}, "long")
    save(tmp_path / "translator", lively(small_config()))
    with pytest.raises(UsageError, match="a translator; encoders can, and --to ctranslate2 may do"):
        convert(tmp_path / "translator", tmp_path / "out", to="onnx")
    made("bert", "label", tmp_path / "there")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"onnx is not installed: `pip install 'regard\[onnx\]'`"):
        convert(tmp_path / "there", tmp_path / "out", to="onnx")
    assert not (tmp_path / "out").exists()
