"""Encoders and causal language models as ONNX graphs: onnxruntime computes our outputs for any batch and length.

An export takes a second or two. So every model type, head and activation is exported in some combination here, and all
model types with all heads in `make test-all`; the padded models, of which torch exports the graphs, are always compared
in all of them.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.checkpoint import atomic
from regard.checkpoint.causal_dir import load_causal_lm
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.export.convert import convert
from regard.checkpoint.export.onnx import (
    FILE,
    PaddedCausalLM,
    PaddedEncoder,
    serialize_causal_lm,
    serialize_encoder,
)
from regard.config.models import BertConfig, GptConfig, StackConfig
from regard.errors import UsageError
from regard.models.base import initialize_weights
from regard.models.bert import Bert, initialize_bert
from regard.models.gpt import Gpt
from regard.packed_tokens import Tokens
from tests.checkpoint.hf.encoders import CASES, LABELS, random_tokens, save_transformers_model
from tests.checkpoint.samples import random_model, save, small_config
from tests.checkpoint.test_causal_dir import save_gpt2
from tests.parts import PARTS, Part, build
from tests.scale import HANG_GUARD, scaled

onnx = pytest.importorskip("onnx", reason="onnx is not installed: no graph can be written")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: torch exports no graph")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: nothing computes the graph")
pytest.importorskip("transformers", reason="transformers is not installed: no folders to convert")

EXPORTED: list[tuple[str, str, dict[str, Any]]] = [  # model type, head, changes of its config
    ("bert", "next", {"hidden_act": "relu"}),
    ("bert", "pretraining", {"hidden_act": "tanh"}),
    ("distilbert", "label", {"activation": "silu"}),
    ("roberta", "token", {"hidden_act": "quick_gelu"}),
    ("xlm-roberta", "masked", {}),
    ("electra", "span", {}),
    ("albert", "plain", {"num_hidden_layers": 3, "hidden_act": "gelu_new"}),
    ("modernbert", "label", {"num_hidden_layers": 2, "classifier_pooling": "mean"}),
    ("gpt2", "label", {}),
    ("gpt_neox", "token", {}),
]
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "quick_gelu")
VARIANTS: list[dict[str, Any]] = [  # beside those of published model types
    {"norm_placement": "pre", "positions": "sinusoidal"},
    {"scale_embedding": True, "span_feed_forward": True},
]
EXPORTED_PARTS: list[tuple[str, dict[str, Any]]] = [  # family and parts of its block; each alone in `make test-all`
    ("gpt", {"positions": "relative", "stack.attention_normalization": "sparsemax", "attention_window": 1}),
    ("gpt", {"positions": "alibi", "stack.attention_temperature": 2.0, "norm_placement": "both"}),
    ("bert", {"positions": "concatenated", "stack.attention_normalization": "uniform", "stack.value_size": 5}),
]
ONNX_FAMILIES = ("bert", "gpt")
ONNX_PARTS = [part for part in PARTS if "stack.attention_top_k" not in part.settings]


class Session:
    """A graph in onnxruntime."""

    def __init__(self, graph: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self.input_names = [value.name for value in self.session.get_inputs()]

    def __call__(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [value.name for value in self.session.get_outputs()]
        return dict(zip(names, self.session.run(None, inputs), strict=True))


def run_padded(compute: Any, input_names: list[str], tokens: Tokens, pad_id: int = 0) -> dict[str, np.ndarray]:
    """Pad a batch, compute, and return the outputs without those of padding."""
    shape = (len(tokens), int(tokens.lengths.max()))
    is_token = np.arange(shape[1]) < tokens.lengths[:, None]
    inputs = {"input_ids": np.full(shape, pad_id, np.int64), "attention_mask": is_token.astype(np.int64)}
    inputs["input_ids"][is_token] = tokens.ids
    if "token_type_ids" in input_names:
        inputs["token_type_ids"] = np.zeros(shape, np.int64)
        inputs["token_type_ids"][is_token] = tokens.token_types
    outputs = {}
    for name, array in compute(inputs).items():
        is_per_token = array.shape[:2] == shape
        outputs[name] = array[is_token] if is_per_token else array
    return outputs


def run_eagerly(model: Bert | Gpt, tokens: Tokens) -> dict[str, np.ndarray]:
    """Run the padded model, of which torch would export the graph."""
    if isinstance(model, Gpt):
        padded_model: torch.nn.Module = PaddedCausalLM(model)
        input_names = []
    else:
        padded_model = PaddedEncoder(model)
        input_names = ["token_type_ids"] if model.config.num_token_types > 1 else []

    def compute(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.no_grad():
            outputs = padded_model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    return run_padded(compute, input_names, tokens, model.pad_id if isinstance(model, Gpt) else model.config.pad_id)


def batches(num_token_types: int) -> list[Tokens]:
    """Several sequences of several lengths; one long one; one of one token."""
    sequences = random_tokens(num_token_types)
    singles = [Tokens.from_rows([sequences.row(index)]) for index in (2, 3)]
    return [sequences, *(Tokens(single.ids, single.offsets, np.zeros(len(single.ids), np.int32)) for single in singles)]


def assert_close(array: np.ndarray, expected: np.ndarray) -> None:
    assert array.shape == expected.shape
    assert np.abs(array - expected).max() <= 1e-5 * np.abs(expected).max()


def assert_outputs(outputs: dict[str, np.ndarray], model: Bert | Gpt, tokens: Tokens) -> None:
    """Compare outputs with those of our model for packed tokens."""
    if isinstance(model, Gpt):
        assert_close(outputs["logits"], model.logits(tokens).numpy())
        return
    if model.config.head != "plain":
        assert_close(select_logits(outputs), model.logits(tokens))
        return
    assert_close(outputs["last_hidden_state"], model.encode(tokens))
    assert ("pooler_output" in outputs) == model.config.has_pooler
    if model.config.has_pooler:
        assert_close(outputs["pooler_output"], model.pooler_output(tokens))


def select_logits(outputs: dict[str, np.ndarray]) -> np.ndarray:
    """Logits in the layout of our model: start and end logits of a span side by side."""
    if "start_logits" in outputs:
        return np.stack([outputs["start_logits"], outputs["end_logits"]], axis=1)
    return outputs["logits"]


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_a_padded_model_computes_our_outputs(model_type: str, head: str, tmp_path: Path) -> None:
    save_transformers_model(model_type, head, tmp_path)
    model = load_encoder(tmp_path).model()
    for tokens in batches(model.config.num_token_types):
        assert_outputs(run_eagerly(model, tokens), model, tokens)


@pytest.mark.parametrize(
    ("model_type", "head", "changes"), EXPORTED + scaled([(*case, {}) for case in CASES], []), ids=str
)
def test_onnxruntime_computes_our_outputs(model_type: str, head: str, changes: dict[str, Any], tmp_path: Path) -> None:
    save_transformers_model(model_type, head, tmp_path / "hf", **changes)
    model = load_encoder(tmp_path / "hf").model()
    conversion = convert(tmp_path / "hf", tmp_path / "out", format="onnx")
    assert conversion.model_type == f"onnx, a {head} {model_type}"
    session = Session((tmp_path / "out" / FILE).read_bytes())
    for tokens in batches(model.config.num_token_types):
        outputs = run_padded(session, session.input_names, tokens, model.config.pad_id)
        assert_outputs(outputs, model, tokens)
        if head == "pretraining":
            assert_close(outputs["seq_relationship_logits"], next_sentence_logits(model, tokens))


def next_sentence_logits(model: Bert, tokens: Tokens) -> np.ndarray:
    """Logits of the next-sentence head for packed tokens."""
    ids, batch = model.to_tensors(tokens)
    with torch.no_grad():
        hidden = model(ids, batch, model.token_type_tensor(tokens))
        return model.next_sentence_logits(hidden, batch).numpy()


def test_every_model_type_head_and_activation_is_exported(tmp_path: Path) -> None:
    activations = set()
    for index, (model_type, head, changes) in enumerate(EXPORTED):
        save_transformers_model(model_type, head, tmp_path / str(index), **changes)
        activations.add(load_encoder(tmp_path / str(index)).config.activation)
    assert activations == {*ACTIVATIONS}
    assert {model_type for model_type, _, _ in EXPORTED} == {model_type for model_type, _ in CASES}
    assert {head for _, head, _ in EXPORTED} == {head for _, head in CASES}


def random_encoder(variant: dict[str, Any], activation: str = "gelu") -> Bert:
    stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=9)
    config = BertConfig(vocab_size=61, hidden_size=8, stack=stack, head="span", activation=activation, **variant)
    model = Bert(config)
    initialize_bert(model, 3, std=0.5)
    return model


@functools.cache
def exported_variant(index: int) -> bytes:
    """Graph of a small random encoder."""
    model = random_encoder(VARIANTS[index])
    return serialize_encoder(model.config, model.state_dict(), "graph")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_padded_models_have_every_activation_and_norm_placement(activation: str, variant: dict[str, Any]) -> None:
    model = random_encoder(variant, activation)
    tokens = random_tokens(2)
    assert_outputs(run_eagerly(model, tokens), model, tokens)


@pytest.mark.parametrize("index", range(len(VARIANTS)))
def test_every_norm_placement_is_exported(index: int) -> None:
    session = Session(exported_variant(index))
    tokens = random_tokens(2)
    outputs = run_padded(session, session.input_names, tokens)
    assert_outputs(outputs, random_encoder(VARIANTS[index]), tokens)


@pytest.mark.parametrize("top_k", [2, 5])  # below and above the length that the graph is exported with
def test_top_k_attention_is_exported_for_any_length(top_k: int) -> None:
    stack = {"stack.attention_normalization": "top-k", "stack.attention_top_k": top_k}
    model = random_encoder({})
    sparse = Bert(model.config.override(stack))
    sparse.load_state_dict(model.state_dict())
    session = Session(serialize_encoder(sparse.config, sparse.state_dict(), "graph"))
    for tokens in batches(2):
        outputs = run_padded(session, session.input_names, tokens)
        assert_outputs(outputs, sparse, tokens)
    tokens = random_tokens(2)
    assert not np.allclose(sparse.logits(tokens), model.logits(tokens), atol=1e-3)


@pytest.mark.parametrize("family", ONNX_FAMILIES)
@pytest.mark.parametrize("part", ONNX_PARTS, ids=str)
def test_padded_models_have_every_part(part: Part, family: str) -> None:
    model = build(family, part.settings, vocab_size=61)
    for tokens in batches(2):
        assert_outputs(run_eagerly(model, tokens), model, tokens)


@pytest.mark.parametrize(
    ("family", "settings"),
    EXPORTED_PARTS + scaled([(family, part.settings) for family in ONNX_FAMILIES for part in ONNX_PARTS], []),
    ids=str,
)
def test_parts_are_exported(family: str, settings: dict[str, Any]) -> None:
    model = build(family, settings, vocab_size=61)
    serialize = serialize_encoder if family == "bert" else serialize_causal_lm
    session = Session(serialize(model.config, model.state_dict(), "graph"))
    for tokens in batches(2):
        assert_outputs(run_padded(session, session.input_names, tokens), model, tokens)


def test_padding_may_stand_anywhere() -> None:
    session = Session(exported_variant(0))
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 61, (2, 6))
    mask = np.array([[1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 0]])
    other_ids = np.where(mask == 1, ids, rng.integers(0, 61, (2, 6)))
    assert (other_ids != ids).any()
    token_types = np.zeros_like(ids)
    outputs = session({"input_ids": ids, "attention_mask": mask, "token_type_ids": token_types})
    other_outputs = session({"input_ids": other_ids, "attention_mask": mask, "token_type_ids": token_types})
    for name in ("start_logits", "end_logits"):
        assert_close(outputs[name][mask == 1], other_outputs[name][mask == 1])


def test_attention_pooling_ignores_padding_wherever_it_stands() -> None:
    config = random_encoder({}).config.override({"head": "label", "num_labels": 3, "pooling": "attention"})
    model = Bert(config)
    initialize_bert(model, 3, std=0.5)
    ids = torch.tensor([[7, 9, 8, 11, 5], [4, 6, 3, 8, 7]])
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]])
    with torch.no_grad():
        logits, other_logits = (PaddedEncoder(model)(rows, mask)["logits"] for rows in (ids, ids * mask))
    assert torch.equal(logits, other_logits)


def test_graphs_name_their_axes_and_hold_no_paths_and_are_repeatable() -> None:
    content = exported_variant(0)
    graph = onnx.load_from_string(content).graph
    shapes = {
        value.name: [axis.dim_param for axis in value.type.tensor_type.shape.dim]
        for value in [*graph.input, *graph.output]
    }
    names = ["input_ids", "attention_mask", "token_type_ids", "start_logits", "end_logits"]
    assert shapes == {name: ["batch", "length"] for name in names}
    assert b".py" not in content  # source files of the export
    assert content == exported_variant.__wrapped__(0)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal"])
def test_a_causal_language_model_is_exported(positions: str) -> None:
    stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=9)
    config = GptConfig(vocab_size=61, hidden_size=8, stack=stack, positions=positions)
    model = Gpt(config)
    initialize_weights(model, 3)
    session = Session(serialize_causal_lm(config, model.state_dict(), "graph"))
    for tokens in batches(1):
        outputs = run_padded(session, session.input_names, tokens)
        assert_close(outputs["logits"], model.logits(tokens).numpy())


def test_a_causal_folder_has_graph_config_and_tokenizer(tmp_path: Path) -> None:
    save_gpt2(tmp_path / "hf")
    loaded = load_causal_lm(tmp_path / "hf")
    conversion = convert(tmp_path / "hf", tmp_path / "out", format="onnx")
    assert conversion.model_type == "onnx, a causal gpt2"
    assert atomic.verify_folder(tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {FILE, "config.json", "tokenizer.json", "README.md"} <= names
    assert "model.safetensors" not in names
    model = Gpt(loaded.config)
    model.load_state_dict(loaded.weights)
    session = Session((tmp_path / "out" / FILE).read_bytes())
    tokens = Tokens.from_rows([[3, 1, 4, 1, 5], [2, 7]])
    assert_close(run_padded(session, session.input_names, tokens)["logits"], model.logits(tokens).numpy())


def test_the_command_writes_tokenizer_labels_metadata_and_card_and_prints_its_own_lines_alone(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    save_transformers_model("bert", "label", tmp_path / "hf", num_hidden_layers=1)
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
    command = [sys.executable, "-m", "regard", "convert", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "onnx"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=HANG_GUARD)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith(f"{tmp_path / 'out'}: written as onnx, a label bert\n")
    assert "torch" not in process.stdout
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
        serialize_encoder(config, {}, "long")
    large = {"token_embedding.weight": torch.empty(2**30, device="meta")}
    with pytest.raises(UsageError, match="large cannot be written for ONNX: 4,294,967,296 bytes of weights, more than"):
        serialize_encoder(BertConfig(), large, "large")
    save(tmp_path / "translator", random_model(small_config()))
    with pytest.raises(UsageError, match="a translation model; encoders and causal language models can"):
        convert(tmp_path / "translator", tmp_path / "out", format="onnx")
    save_transformers_model("bert", "label", tmp_path / "hf")
    for name in ("onnx", "onnxscript"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(UsageError, match=rf"{name} is not installed: `pip install 'regard\[onnx\]'`"):
                convert(tmp_path / "hf", tmp_path / "out", format="onnx")
        assert not (tmp_path / "out").exists()
