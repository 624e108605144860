"""Folders of causal models: logits and texts equal those of transformers, both ways, older files included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.checkpoint import weights
from regard.checkpoint.causal_dir import LoadedCausalLM, load_causal_lm, save_causal_lm
from regard.checkpoint.export.convert import convert
from regard.checkpoint.model_dir import folder_task
from regard.checkpoint.native import save_native
from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import GptConfig, StackConfig
from regard.decoding.search import search
from regard.errors import CheckpointError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.models.gpt import Gpt
from regard.packed_tokens import Tokens
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer

transformers = pytest.importorskip("transformers")

TEXTS = ["the cat sat on the mat", "a dog ran over the hill and far away"]
TOKENIZER = train_tokenizer(TEXTS * 9, TokenizerConfig(vocab_size=280)).without_special_tokens()
SCALED_SCORES = {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}


def save_gpt2(folder: Path, **changes: Any) -> Any:
    """Random GPT-2 with large weights (small ones hide errors), in a folder with a tokenizer."""
    fields: dict[str, Any] = {
        "vocab_size": TOKENIZER.vocab_size + 3,
        "n_positions": 40,
        "n_embd": 12,
        "n_layer": 3,
        "n_head": 2,
    }
    fields |= {"bos_token_id": TOKENIZER.eos_id, "eos_token_id": TOKENIZER.eos_id, "n_inner": 20}
    torch.manual_seed(1)
    return save_with_tokenizer(folder, transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**fields, **changes})))


def save_gpt_neox(folder: Path, **changes: Any) -> Any:
    """Random GPT-NeoX with rotary positions and sequential residuals, as our models have them."""
    fields: dict[str, Any] = {"vocab_size": TOKENIZER.vocab_size + 3, "max_position_embeddings": 300, "hidden_size": 24}
    fields |= {"num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20, "hidden_dropout": 0.1}
    fields |= {
        "bos_token_id": TOKENIZER.eos_id,
        "eos_token_id": TOKENIZER.eos_id,
        "use_parallel_residual": False,
        "rotary_pct": 1.0,
    }
    torch.manual_seed(1)
    return save_with_tokenizer(
        folder, transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**{**fields, **changes}))
    )


def save_with_tokenizer(folder: Path, model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.eval().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(TOKENIZER.to_json(), "utf-8")
    return model


def build_ours(loaded: LoadedCausalLM) -> Gpt:
    model = build_model(loaded.config)
    model.load_state_dict(loaded.weights)
    return model.eval()


def random_sequences() -> list[list[int]]:
    rng = np.random.default_rng(2)
    return [rng.integers(4, TOKENIZER.vocab_size, length).tolist() for length in (9, 4, 17)]


def assert_close(tensor: torch.Tensor, expected: torch.Tensor) -> None:
    assert float((tensor - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


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
    assert_equal_logits(tmp_path, save_gpt2(tmp_path, **changes), random_sequences())


@pytest.mark.parametrize(
    "changes", [{}, {"tie_word_embeddings": True}, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-2}], ids=str
)
@torch.no_grad()
def test_logits_equal_those_of_gpt_neox(tmp_path: Path, changes: dict[str, Any]) -> None:
    reference = save_gpt_neox(tmp_path, **changes)
    assert_equal_logits(
        tmp_path,
        reference,
        [*random_sequences(), np.random.default_rng(3).integers(4, TOKENIZER.vocab_size, 256).tolist()],
    )


def assert_equal_logits(tmp_path: Path, reference: Any, sequences: list[list[int]]) -> None:
    loaded = load_causal_lm(tmp_path)
    model = build_ours(loaded)
    expected = torch.cat([reference(torch.tensor([row])).logits[0] for row in sequences])
    assert_close(model.logits(Tokens.from_rows(sequences)), expected)
    assert not loaded.report.missing and not loaded.report.ignored
    assert folder_task(tmp_path) == "generate"


@pytest.mark.parametrize("save_model", [save_gpt2, save_gpt_neox])
@torch.no_grad()
def test_generated_tokens_equal_those_of_transformers(tmp_path: Path, save_model: Any) -> None:
    reference = save_model(tmp_path)
    model = build_ours(load_causal_lm(tmp_path)).pack()
    for prompt in random_sequences():
        options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": TOKENIZER.eos_id}
        generated = reference.generate(torch.tensor([prompt]), **options)
        continuation = generated[0].tolist()[len(prompt) :]
        (hypotheses,) = search(model, Tokens.from_rows([prompt]), DecodingConfig(beam=1), max_lengths=[20])
        assert [*hypotheses[0].ids, TOKENIZER.eos_id][: len(continuation)] == continuation


@torch.no_grad()
def test_older_files_without_prefix_with_buffers_in_shards_and_in_bfloat16(tmp_path: Path) -> None:
    reference = save_gpt2(tmp_path).bfloat16().float()
    stored = weights.read_tensors(tmp_path / weights.FILE)
    older = {name.removeprefix("transformer."): tensor.bfloat16() for name, tensor in stored.items()}
    older["lm_head.weight"] = older["wte.weight"].clone()
    for layer in range(3):
        older[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 40, 40)
        older[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    (tmp_path / weights.FILE).unlink()
    weight_map = {}
    for shard, names in enumerate(([*older][::2], [*older][1::2])):
        file = f"model-0000{shard + 1}-of-00002.safetensors"
        tensors = {name: older[name].contiguous() for name in names}
        with open(tmp_path / file, "wb") as sink:
            weights.serialize_tensors(tensors)(sink)  # type: ignore[operator]
        weight_map |= dict.fromkeys(names, file)
    (tmp_path / weights.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    loaded = load_causal_lm(tmp_path)
    ids = random_sequences()[0]
    assert_close(build_ours(loaded).logits(Tokens.from_rows([ids])), reference(torch.tensor([ids])).logits[0])
    assert loaded.report.renamed["wte.weight"] == "transformer.wte.weight"
    assert len(loaded.report.ignored) == 7  # six buffers and the tied copy
    assert not loaded.report.notes


@torch.no_grad()
def test_an_older_tokenizer_of_two_files_encodes_as_in_transformers(tmp_path: Path) -> None:
    save_gpt2(tmp_path)
    model = json.loads(TOKENIZER.to_json())["model"]
    vocabulary = {**model["vocab"], "<|endoftext|>": len(model["vocab"])}
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    pairs = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs]), "utf-8")
    tokenizer = load_causal_lm(tmp_path).tokenizer
    reference = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, "The  cat's naïve\n日本", ""):
        assert tokenizer.encode_batch([text])[0] == reference(text)["input_ids"], text
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
    before, after = (weights.read_tensors(tmp_path / name / weights.FILE) for name in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("in", "out"))
    assert first == second


@pytest.mark.parametrize(("positions", "model_type"), [("learned", "gpt2"), ("rotary", "gpt_neox")])
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_our_model_opens_in_transformers_with_nothing_missing(
    tmp_path: Path, tied: bool, positions: str, model_type: str
) -> None:
    stack = StackConfig(num_layers=2, num_heads=3, feed_forward_size=10)
    config = GptConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=12,
        stack=stack,
        max_positions=30,
        tie_embeddings=tied,
        eos_id=TOKENIZER.eos_id,
        positions=positions,
    )
    model = build_model(config)
    initialize_weights(model, 5)
    save_causal_lm(tmp_path, config, model.state_dict(), tokenizer=TOKENIZER, metadata={"step": 1}, card="a card")
    opened, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()) and opened.config.model_type == model_type
    ids = random_sequences()[0]
    assert_close(opened.eval()(torch.tensor([ids])).logits[0], model.logits(Tokens.from_rows([ids])))
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, "The  cat's naïve\n日本", ""):
        assert hf_tokenizer(text)["input_ids"] == TOKENIZER.encode_batch([text])[0], text  # no end token is appended
    assert hf_tokenizer.eos_token_id == TOKENIZER.eos_id
    loaded = load_causal_lm(tmp_path)
    assert loaded.config == config and loaded.metadata["step"] == 1


def test_other_positions_have_a_native_type(tmp_path: Path) -> None:
    config = GptConfig(
        vocab_size=TOKENIZER.vocab_size, hidden_size=12, stack=StackConfig(num_heads=2), positions="sinusoidal"
    )
    model = build_model(config)
    save_causal_lm(tmp_path, config, model.state_dict(), tokenizer=TOKENIZER, metadata={}, card="")
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "regard-gpt"
    loaded = load_causal_lm(tmp_path)
    assert loaded.config == config
    assert all(torch.equal(tensor, loaded.weights[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "a model of type 'bert'; causal language models are gpt2, gpt_neox, regard-gpt"),
        ({"n_layer": 5}, "24 weights are missing, h.3.ln_1.weight"),
        ({"n_embd": 16}, r"wte.weight has shape \[\d+, 12\], config.json asks for \[\d+, 16\]"),
        ({"n_head": 5}, "must divide hidden_size"),
        ({"vocab_size": 20}, r"has shape|tokens, but config.json says"),
        ({"add_cross_attention": True}, "add_cross_attention is true"),
        ({"n_embd": "wide"}, "n_embd must be of type int"),
    ],
)
def test_unsupported_gpt2_configs_are_rejected(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    save_gpt2(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, **change}))
    with pytest.raises(CheckpointError, match=message):
        load_causal_lm(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
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
def test_unsupported_gpt_neox_configs_are_rejected(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    save_gpt_neox(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, **change}))
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
        task="generate",
        metadata={"step": 3},
        card="",
        extra_files=extra_files,
    )
    assert convert(tmp_path / "old", tmp_path / "new").model_type == "gpt_neox"
    assert "regard" not in json.loads((tmp_path / "new/config.json").read_text())
    loaded = load_causal_lm(tmp_path / "new")
    assert loaded.config == config and loaded.metadata["step"] == 3
    assert all(torch.equal(tensor, loaded.weights[name]) for name, tensor in model.state_dict().items())


def test_an_eos_id_beyond_the_vocabulary_is_ignored(tmp_path: Path) -> None:
    save_gpt2(tmp_path, eos_token_id=50256, bos_token_id=50256)
    assert load_causal_lm(tmp_path).config.eos_id == -1
    tokenizer: Tokenizer = load_causal_lm(tmp_path).tokenizer
    assert tokenizer.vocab_size == TOKENIZER.vocab_size
