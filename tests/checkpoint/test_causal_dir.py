"""Causal models as folders: their numbers and texts are those of transformers, both ways, old files included."""

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
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer
from regard.tokens import Tokens

transformers = pytest.importorskip("transformers")

TEXTS = ["the cat sat on the mat", "a dog ran over the hill and far away"]
WORDS = train_tokenizer(TEXTS * 9, TokenizerConfig(vocab_size=280)).without_special_tokens()
ODD = {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}


def theirs(folder: Path, **changes: Any) -> Any:
    """A random model of theirs with large weights (small ones hide errors), in a folder with a tokenizer."""
    values: dict[str, Any] = {
        "vocab_size": WORDS.vocab_size + 3,
        "n_positions": 40,
        "n_embd": 12,
        "n_layer": 3,
        "n_head": 2,
    }
    values |= {"bos_token_id": WORDS.eos_id, "eos_token_id": WORDS.eos_id, "n_inner": 20}
    torch.manual_seed(1)
    return saved(folder, transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**values, **changes})))


def rotary(folder: Path, **changes: Any) -> Any:
    """A random model of theirs whose places are turns, as ours have them."""
    values: dict[str, Any] = {"vocab_size": WORDS.vocab_size + 3, "max_position_embeddings": 300, "hidden_size": 24}
    values |= {"num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20, "hidden_dropout": 0.1}
    values |= {
        "bos_token_id": WORDS.eos_id,
        "eos_token_id": WORDS.eos_id,
        "use_parallel_residual": False,
        "rotary_pct": 1.0,
    }
    torch.manual_seed(1)
    return saved(folder, transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**{**values, **changes})))


def saved(folder: Path, model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.eval().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(WORDS.to_json(), "utf-8")
    return model


def ours(loaded: LoadedCausalLM) -> Gpt:
    model = build_model(loaded.config)
    model.load_state_dict(loaded.weights)
    return model.eval()


def rows() -> list[list[int]]:
    chance = np.random.default_rng(2)
    return [chance.integers(4, WORDS.vocab_size, length).tolist() for length in (9, 4, 17)]


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert float((found - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_inner": None, "tie_word_embeddings": False},
        {"activation_function": "gelu", "layer_norm_epsilon": 1e-2},
        ODD,
    ],
    ids=str,
)
@torch.no_grad()
def test_logits_are_theirs(tmp_path: Path, changes: dict[str, Any]) -> None:
    equal_logits(tmp_path, theirs(tmp_path, **changes), rows())


@pytest.mark.parametrize(
    "changes", [{}, {"tie_word_embeddings": True}, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-2}], ids=str
)
@torch.no_grad()
def test_logits_with_rotary_places_are_theirs(tmp_path: Path, changes: dict[str, Any]) -> None:
    reference = rotary(tmp_path, **changes)
    equal_logits(tmp_path, reference, [*rows(), np.random.default_rng(3).integers(4, WORDS.vocab_size, 256).tolist()])


def equal_logits(tmp_path: Path, reference: Any, given: list[list[int]]) -> None:
    loaded = load_causal_lm(tmp_path)
    model = ours(loaded)
    wanted = torch.cat([reference(torch.tensor([row])).logits[0] for row in given])
    close(model.logits(Tokens.from_rows(given)), wanted)
    assert not loaded.report.missing and not loaded.report.ignored
    assert folder_task(tmp_path) == "generate"


@pytest.mark.parametrize("kind", [theirs, rotary])
@torch.no_grad()
def test_generation_is_theirs(tmp_path: Path, kind: Any) -> None:
    reference = kind(tmp_path)
    model = ours(load_causal_lm(tmp_path)).pack()
    for row in rows():
        wanted = reference.generate(torch.tensor([row]), max_new_tokens=20, do_sample=False, pad_token_id=WORDS.eos_id)[
            0
        ].tolist()[len(row) :]
        (found,) = search(model, Tokens.from_rows([row]), DecodingConfig(beam=1), max_lengths=[20])
        assert [*found[0].ids, WORDS.eos_id][: len(wanted)] == wanted


@torch.no_grad()
def test_old_files_without_prefix_with_buffers_in_shards_and_in_bfloat16(tmp_path: Path) -> None:
    reference = theirs(tmp_path).bfloat16().float()
    stored = weights.read_tensors(tmp_path / weights.FILE)
    named = {name.removeprefix("transformer."): tensor.bfloat16() for name, tensor in stored.items()}
    named["lm_head.weight"] = named["wte.weight"].clone()
    for layer in range(3):
        named[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 40, 40)
        named[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    (tmp_path / weights.FILE).unlink()
    placed = {}
    for shard, names in enumerate(([*named][::2], [*named][1::2])):
        file = f"model-0000{shard + 1}-of-00002.safetensors"
        weights_of = {name: named[name].contiguous() for name in names}
        with open(tmp_path / file, "wb") as sink:
            weights.serialize_tensors(weights_of)(sink)  # type: ignore[operator]
        placed |= dict.fromkeys(names, file)
    (tmp_path / weights.INDEX).write_text(json.dumps({"weight_map": placed}))
    loaded = load_causal_lm(tmp_path)
    row = rows()[0]
    close(ours(loaded).logits(Tokens.from_rows([row])), reference(torch.tensor([row])).logits[0])
    assert loaded.report.renamed["wte.weight"] == "transformer.wte.weight"
    assert len(loaded.report.ignored) == 7  # six buffers and the tied copy
    assert not loaded.report.notes


@torch.no_grad()
def test_an_old_tokenizer_of_two_files_reads_as_theirs(tmp_path: Path) -> None:
    theirs(tmp_path)
    model = json.loads(WORDS.to_json())["model"]
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


@pytest.mark.parametrize("kind", [theirs, rotary])
def test_a_folder_comes_back_as_it_was(tmp_path: Path, kind: Any) -> None:
    kind(tmp_path / "in", gradient_checkpointing=True)
    loaded = load_causal_lm(tmp_path / "in")
    save_causal_lm(
        tmp_path / "out",
        loaded.config,
        loaded.weights,
        tokenizer=loaded.tokenizer,
        facts={},
        card="",
        fields=loaded.hf_config,
    )
    before, after = (weights.read_tensors(tmp_path / name / weights.FILE) for name in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("in", "out"))
    assert first == second


@pytest.mark.parametrize(("positions", "kind"), [("learned", "gpt2"), ("rotary", "gpt_neox")])
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_our_model_opens_in_transformers_with_nothing_missing(
    tmp_path: Path, tied: bool, positions: str, kind: str
) -> None:
    stack = StackConfig(num_layers=2, num_heads=3, feed_forward_size=10)
    config = GptConfig(
        vocab_size=WORDS.vocab_size,
        hidden_size=12,
        stack=stack,
        max_positions=30,
        tie_embeddings=tied,
        eos_id=WORDS.eos_id,
        positions=positions,
    )
    model = build_model(config)
    initialize_weights(model, 5)
    save_causal_lm(tmp_path, config, model.state_dict(), tokenizer=WORDS, facts={"step": 1}, card="a card")
    opened, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()) and opened.config.model_type == kind
    row = rows()[0]
    close(opened.eval()(torch.tensor([row])).logits[0], model.logits(Tokens.from_rows([row])))
    spoken = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, "The  cat's naïve\n日本", ""):
        assert spoken(text)["input_ids"] == WORDS.encode_batch([text])[0], text  # no end is put behind it
    assert spoken.eos_token_id == WORDS.eos_id
    again = load_causal_lm(tmp_path)
    assert again.config == config and again.task["step"] == 1


def test_other_positions_have_a_type_of_our_own(tmp_path: Path) -> None:
    config = GptConfig(
        vocab_size=WORDS.vocab_size, hidden_size=12, stack=StackConfig(num_heads=2), positions="sinusoidal"
    )
    model = build_model(config)
    save_causal_lm(tmp_path, config, model.state_dict(), tokenizer=WORDS, facts={}, card="")
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "regard-gpt"
    loaded = load_causal_lm(tmp_path)
    assert loaded.config == config
    assert all(torch.equal(tensor, loaded.weights[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "bert"}, "a model of type 'bert'; gpt2, gpt_neox, regard-gpt write texts"),
        ({"n_layer": 5}, "24 weights are missing, h.3.ln_1.weight"),
        ({"n_embd": 16}, r"wte.weight has shape \[\d+, 12\], config.json asks for \[\d+, 16\]"),
        ({"n_head": 5}, "must divide hidden_size"),
        ({"vocab_size": 20}, r"has shape|tokens, but config.json says"),
        ({"add_cross_attention": True}, "add_cross_attention is true"),
        ({"n_embd": "wide"}, "n_embd must be of type int"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    theirs(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, **change}))
    with pytest.raises(CheckpointError, match=words):
        load_causal_lm(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
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
def test_what_is_refused_of_rotary_ones(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    rotary(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, **change}))
    with pytest.raises(CheckpointError, match=words):
        load_causal_lm(tmp_path)


def test_a_folder_of_the_older_type_of_our_own_becomes_one_that_others_read(tmp_path: Path) -> None:
    config = GptConfig(
        vocab_size=WORDS.vocab_size,
        hidden_size=12,
        stack=StackConfig(num_heads=2),
        max_positions=30,
        eos_id=WORDS.eos_id,
    )
    model = build_model(config)
    besides = {"tokenizer.json": WORDS.to_json().encode()}
    save_native(
        tmp_path / "old", config, model.state_dict(), task="generate", facts={"step": 3}, card="", extra_files=besides
    )
    assert convert(tmp_path / "old", tmp_path / "new").model_type == "gpt_neox"
    assert "regard" not in json.loads((tmp_path / "new/config.json").read_text())
    loaded = load_causal_lm(tmp_path / "new")
    assert loaded.config == config and loaded.task["step"] == 3
    assert all(torch.equal(tensor, loaded.weights[name]) for name, tensor in model.state_dict().items())


def test_an_end_beyond_the_vocabulary_is_none(tmp_path: Path) -> None:
    theirs(tmp_path, eos_token_id=50256, bos_token_id=50256)
    assert load_causal_lm(tmp_path).config.eos_id == -1
    tokenizer: Tokenizer = load_causal_lm(tmp_path).tokenizer
    assert tokenizer.vocab_size == WORDS.vocab_size
