"""Folders of causal language models: logits and texts equal those of transformers, both ways, older files included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.checkpoint import weights
from regard.checkpoint.causal_dir import load_causal_lm, save_causal_lm
from regard.checkpoint.export.convert import convert
from regard.checkpoint.model_dir import folder_task
from regard.checkpoint.native import save_native
from regard.checkpoint.source import CausalSource
from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import GptConfig, StackConfig
from regard.decoding.search import search
from regard.errors import CheckpointError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.models.gpt import Gpt
from regard.packed_tokens import Tokens
from regard.text.train import train_tokenizer

transformers = pytest.importorskip("transformers")

TEXTS = ["the cat sat on the mat", "a dog ran over the hill and far away"]
UNUSUAL_TEXT = "The  cat's naïve\n日本"
TOKENIZER = train_tokenizer(TEXTS * 9, TokenizerConfig(vocab_size=280)).without_special_tokens()
SCALED_SCORES = {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}


def save_gpt2(folder: Path, **changes: Any) -> Any:
    """Save a small random GPT-2 in a folder with a tokenizer; `changes` replace fields of its config."""
    fields: dict[str, Any] = {
        "vocab_size": TOKENIZER.vocab_size + 3,
        "n_positions": 40,
        "n_embd": 12,
        "n_layer": 3,
        "n_head": 2,
        "n_inner": 20,
        "bos_token_id": TOKENIZER.eos_id,
        "eos_token_id": TOKENIZER.eos_id,
    }
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**fields, **changes}))
    save_with_tokenizer(folder, model)
    return model


def save_gpt_neox(folder: Path, **changes: Any) -> Any:
    """Save a small random GPT-NeoX with full rotary positions and sequential residuals, the variant that we read."""
    fields: dict[str, Any] = {
        "vocab_size": TOKENIZER.vocab_size + 3,
        "max_position_embeddings": 300,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "hidden_dropout": 0.1,
        "bos_token_id": TOKENIZER.eos_id,
        "eos_token_id": TOKENIZER.eos_id,
        "use_parallel_residual": False,
        "rotary_pct": 1.0,
    }
    torch.manual_seed(1)
    model = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**{**fields, **changes}))
    save_with_tokenizer(folder, model)
    return model


def save_with_tokenizer(folder: Path, model: Any) -> None:
    """Draw large weights, since small ones hide errors, and save the model and a tokenizer."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.eval().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(TOKENIZER.to_json(), "utf-8")


def edit_config(folder: Path, changes: dict[str, Any]) -> None:
    """Change fields of a folder's config.json."""
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, **changes}))


def build_loaded(loaded: CausalSource) -> Gpt:
    """Model of a loaded folder."""
    model = build_model(loaded.config)
    model.load_state_dict(loaded.weights)
    return model.eval()


def random_sequences(lengths: tuple[int, ...] = (9, 4, 17), seed: int = 2) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, TOKENIZER.vocab_size, length).tolist() for length in lengths]


def assert_close(tensor: torch.Tensor, expected: torch.Tensor) -> None:
    assert float((tensor - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


def assert_equal_logits(folder: Path, hf_model: Any, sequences: list[list[int]]) -> None:
    """Assert that a folder's model gives the logits of transformers and that all its weights are used."""
    loaded = load_causal_lm(folder)
    model = build_loaded(loaded)
    expected = torch.cat([hf_model(torch.tensor([ids])).logits[0] for ids in sequences])
    assert_close(model.logits(Tokens.from_rows(sequences)), expected)
    assert not loaded.report.missing
    assert not loaded.report.ignored
    assert folder_task(folder) == "causal-lm"


def assert_same_tensors(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_inner": None, "tie_word_embeddings": False},
        {"activation_function": "gelu", "layer_norm_epsilon": 1e-2},
        SCALED_SCORES,
    ],
    ids=str,
)
@torch.no_grad()
def test_logits_equal_those_of_gpt2(tmp_path: Path, changes: dict[str, Any]) -> None:
    hf_model = save_gpt2(tmp_path, **changes)
    assert_equal_logits(tmp_path, hf_model, random_sequences())


@pytest.mark.parametrize(
    "changes", [{}, {"tie_word_embeddings": True}, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-2}], ids=str
)
@torch.no_grad()
def test_logits_equal_those_of_gpt_neox(tmp_path: Path, changes: dict[str, Any]) -> None:
    hf_model = save_gpt_neox(tmp_path, **changes)
    long_sequences = random_sequences((256,), seed=3)
    assert_equal_logits(tmp_path, hf_model, [*random_sequences(), *long_sequences])


@pytest.mark.parametrize("save_model", [save_gpt2, save_gpt_neox])
@torch.no_grad()
def test_generated_tokens_equal_those_of_transformers(tmp_path: Path, save_model: Any) -> None:
    hf_model = save_model(tmp_path)
    model = build_loaded(load_causal_lm(tmp_path)).pack()
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": TOKENIZER.eos_id}
    for prompt in random_sequences():
        generated = hf_model.generate(torch.tensor([prompt]), **options)
        continuation = generated[0].tolist()[len(prompt) :]
        (hypotheses,) = search(model, Tokens.from_rows([prompt]), DecodingConfig(beam=1), max_lengths=[20])
        assert [*hypotheses[0].ids, TOKENIZER.eos_id][: len(continuation)] == continuation


@torch.no_grad()
def test_older_files_without_prefix_with_buffers_in_bf16_shards_are_read(tmp_path: Path) -> None:
    hf_model = save_gpt2(tmp_path).bfloat16().float()
    stored = weights.read_tensors(tmp_path / weights.FILE)
    older = {name.removeprefix("transformer."): tensor.bfloat16() for name, tensor in stored.items()}
    older["lm_head.weight"] = older["wte.weight"].clone()
    for layer in range(3):
        older[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 40, 40)
        older[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    (tmp_path / weights.FILE).unlink()
    weight_map = {}
    for start, shard in enumerate(("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")):
        names = list(older)[start::2]
        write_tensors = weights.serialize_tensors({name: older[name] for name in names})
        with open(tmp_path / shard, "wb") as file:
            write_tensors(file)  # type: ignore[operator]
        weight_map |= dict.fromkeys(names, shard)
    (tmp_path / weights.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    loaded = load_causal_lm(tmp_path)
    ids = random_sequences()[0]
    expected = hf_model(torch.tensor([ids])).logits[0]
    assert_close(build_loaded(loaded).logits(Tokens.from_rows([ids])), expected)
    assert loaded.report.renamed["wte.weight"] == "transformer.wte.weight"
    assert len(loaded.report.ignored) == 7  # six buffers and the tied copy
    assert not loaded.report.notes


@torch.no_grad()
def test_an_older_tokenizer_of_two_files_encodes_as_in_transformers(tmp_path: Path) -> None:
    save_gpt2(tmp_path)
    bpe_model = json.loads(TOKENIZER.to_json())["model"]
    vocabulary = {**bpe_model["vocab"], "<|endoftext|>": len(bpe_model["vocab"])}
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in bpe_model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), "utf-8")
    tokenizer = load_causal_lm(tmp_path).tokenizer
    hf_tokenizer = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, UNUSUAL_TEXT, ""):
        assert tokenizer.encode_batch([text])[0] == hf_tokenizer(text)["input_ids"], text
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert vocabulary["<|endoftext|>"] in tokenizer.special_ids


@pytest.mark.parametrize("save_model", [save_gpt2, save_gpt_neox])
def test_a_folder_is_written_back_unchanged(tmp_path: Path, save_model: Any) -> None:
    save_model(tmp_path / "in", gradient_checkpointing=True)
    loaded = load_causal_lm(tmp_path / "in")
    save_causal_lm(
        tmp_path / "out",
        loaded.config,
        loaded.weights,
        tokenizer=loaded.tokenizer,
        metadata={},
        card="",
        original_config=loaded.hf_config,
    )
    read_weights = weights.read_tensors(tmp_path / "in" / weights.FILE)
    written_weights = weights.read_tensors(tmp_path / "out" / weights.FILE)
    assert_same_tensors(written_weights, read_weights)
    read_fields = json.loads((tmp_path / "in" / "config.json").read_text())
    written_fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written_fields == read_fields


@pytest.mark.parametrize(("positions", "model_type"), [("learned", "gpt2"), ("rotary", "gpt_neox")])
@pytest.mark.parametrize("tie_embeddings", [True, False])
@torch.no_grad()
def test_our_model_opens_in_transformers_with_nothing_missing(
    tmp_path: Path, tie_embeddings: bool, positions: str, model_type: str
) -> None:
    stack = StackConfig(num_layers=2, num_heads=3, feed_forward_size=10)
    config = GptConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=12,
        stack=stack,
        max_positions=30,
        tie_embeddings=tie_embeddings,
        eos_id=TOKENIZER.eos_id,
        positions=positions,
    )
    model = build_model(config)
    initialize_weights(model, 5)
    save_causal_lm(tmp_path, config, model.state_dict(), tokenizer=TOKENIZER, metadata={"step": 1}, card="a card")
    hf_model, loading_info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading_info.values())
    assert hf_model.config.model_type == model_type
    ids = random_sequences()[0]
    assert_close(hf_model.eval()(torch.tensor([ids])).logits[0], model.logits(Tokens.from_rows([ids])))
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, UNUSUAL_TEXT, ""):
        assert hf_tokenizer(text)["input_ids"] == TOKENIZER.encode_batch([text])[0], text  # no end token is appended
    assert hf_tokenizer.eos_token_id == TOKENIZER.eos_id
    loaded = load_causal_lm(tmp_path)
    assert loaded.config == config
    assert loaded.metadata["step"] == 1


@pytest.mark.parametrize("positions", ["sinusoidal", "alibi", "relative"])
def test_positions_that_transformers_lacks_have_a_native_type(tmp_path: Path, positions: str) -> None:
    config = GptConfig(
        vocab_size=TOKENIZER.vocab_size, hidden_size=12, stack=StackConfig(num_heads=2), positions=positions
    )
    model = build_model(config)
    save_causal_lm(tmp_path, config, model.state_dict(), tokenizer=TOKENIZER, metadata={}, card="")
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "regard-gpt"
    loaded = load_causal_lm(tmp_path)
    assert loaded.config == config
    assert_same_tensors(loaded.weights, model.state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "a model of type 'bert'; causal language models are gpt2, gpt_neox, regard-gpt"),
        ({"n_layer": 5}, "24 weights are missing, h.3.ln_1.weight"),
        ({"n_embd": 16}, r"wte.weight has shape \[\d+, 12\], config.json asks for \[\d+, 16\]"),
        ({"n_head": 5}, "must divide hidden_size"),
        ({"vocab_size": 20}, r"wte.weight has shape \[\d+, 12\], config.json asks for \[20, 12\]"),
        ({"add_cross_attention": True}, "add_cross_attention is true"),
        ({"n_embd": "wide"}, "n_embd must be of type int"),
    ],
)
def test_unsupported_gpt2_configs_are_rejected(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_gpt2(tmp_path)
    edit_config(tmp_path, changes)
    with pytest.raises(CheckpointError, match=message):
        load_causal_lm(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_parallel_residual": True}, "use_parallel_residual is True: of gpt_neox only False is read"),
        ({"rope_parameters": None, "rotary_pct": 0.25}, "rotary_pct is 0.25: of gpt_neox only 1.0 is read"),
        ({"rope_parameters": {"rope_theta": 5, "partial_rotary_factor": 1.0}}, "rope_theta is 5"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"rope_parameters": [1]}, "rope_parameters must be an object"),
        ({"attention_bias": False}, "attention_bias is False"),
        ({"num_hidden_layers": 4}, "12 weights are missing, layers.3.input_layernorm.weight"),
    ],
)
def test_unsupported_gpt_neox_configs_are_rejected(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_gpt_neox(tmp_path)
    edit_config(tmp_path, changes)
    with pytest.raises(CheckpointError, match=message):
        load_causal_lm(tmp_path)


def test_a_native_folder_is_converted_to_gpt_neox(tmp_path: Path) -> None:
    config = GptConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=12,
        stack=StackConfig(num_heads=2),
        max_positions=30,
        eos_id=TOKENIZER.eos_id,
    )
    model = build_model(config)
    extra_files = {"tokenizer.json": TOKENIZER.to_json().encode()}
    save_native(
        tmp_path / "old",
        config,
        model.state_dict(),
        task="causal-lm",
        metadata={"step": 3},
        card="",
        extra_files=extra_files,
    )
    assert convert(tmp_path / "old", tmp_path / "new").model_type == "gpt_neox"
    assert "regard" not in json.loads((tmp_path / "new/config.json").read_text())
    loaded = load_causal_lm(tmp_path / "new")
    assert loaded.config == config
    assert loaded.metadata["step"] == 3
    assert_same_tensors(loaded.weights, model.state_dict())


def test_an_eos_id_beyond_the_vocabulary_is_ignored(tmp_path: Path) -> None:
    save_gpt2(tmp_path, eos_token_id=50256, bos_token_id=50256)
    loaded = load_causal_lm(tmp_path)
    assert loaded.config.eos_id == -1
    assert loaded.tokenizer.vocab_size == TOKENIZER.vocab_size
