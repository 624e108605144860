"""Adapter of Marian and Pegasus: config fields, decoding settings and weight names, both ways."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention.positions import sinusoids
from regard.checkpoint.hf import encoder_decoders
from regard.checkpoint.weights import to_tensors
from regard.config.inference import DecodingConfig
from regard.config.models import ACTIVATIONS, TransformerConfig
from regard.errors import CheckpointError
from tests.checkpoint.samples import random_model, small_config

VARIANTS: list[dict[str, Any]] = [
    {"norm_placement": "post"},
    {"norm_placement": "post", "output_bias": True, "activation": "silu", "scale_embedding": False},
    {"norm_placement": "post", "share_embeddings": False},
    {"norm_placement": "post", "share_embeddings": False, "tie_embeddings": False, "output_bias": True},
    {"norm_placement": "post", "tie_embeddings": False},
    {"norm_placement": "pre"},
    {"norm_placement": "pre", "output_bias": True, "activation": "gelu_tanh"},
    {"norm_placement": "pre", "share_embeddings": False},
    {"norm_placement": "pre", "positions": "learned"},
    {"norm_placement": "post", "positions": "rotary", "hidden_size": 44},
    {"norm_placement": "post", "norm_eps": 1e-6},
]


def shapes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def assemble(
    matcher: encoder_decoders.TranslatorWeightMatcher, tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Our weights from the tensors of a file."""
    return to_tensors(matcher.assemble({name: tensors[name].numpy() for name in matcher.tensors_to_read}))


@pytest.mark.parametrize("changes", VARIANTS)
def test_config_and_weights_round_trip(changes: dict[str, Any]) -> None:
    config = small_config(**changes)
    weights = dict(random_model(config).state_dict())
    fields = json.loads(json.dumps(encoder_decoders.config_to_hf(config)))
    hf_weights = encoder_decoders.to_hf_weights(config, weights)
    read_config = encoder_decoders.config_from_hf(fields, "config.json")
    if encoder_decoders.has_output_bias(hf_weights):
        read_config = read_config.override({"output_bias": True})
    assert read_config == config
    matcher = encoder_decoders.TranslatorWeightMatcher(read_config, shapes(hf_weights), shapes(weights))
    read_weights = assemble(matcher, hf_weights)
    assert read_weights.keys() == weights.keys()
    assert all(torch.equal(read_weights[name], weights[name]) for name in weights)
    assert not matcher.report.missing
    assert not matcher.report.renamed


def test_the_model_type_depends_on_norm_placement_embeddings_and_positions() -> None:
    model_types = [encoder_decoders.translator_model_type(small_config(**changes))[0] for changes in VARIANTS]
    assert model_types == ["marian"] * 5 + ["pegasus"] * 2 + ["regard-transformer"] * 4


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_has_a_name_in_transformers(activation: str) -> None:
    config = small_config(norm_placement="post", activation=activation)
    fields = encoder_decoders.config_to_hf(config)
    assert encoder_decoders.config_from_hf(fields, "").activation == activation


def test_unknown_fields_and_spellings_are_written_back() -> None:
    fields = encoder_decoders.config_to_hf(small_config(norm_placement="post", activation="silu"))
    fields |= {"activation_function": "swish", "gradient_checkpointing": False, "torch_dtype": "float32"}
    del fields["dtype"]
    config = encoder_decoders.config_from_hf(fields, "")
    assert encoder_decoders.config_to_hf(config, fields) == fields
    changed = encoder_decoders.config_to_hf(config.override({"dropout": 0.4}), fields)
    assert changed == {**fields, "dropout": 0.4, "activation_function": "silu"}
    written = encoder_decoders.config_to_hf(config, fields | {"torch_dtype": "float16"})
    assert written["torch_dtype"] == "float32"


def rename_as_older(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights as in older files: no prefix, older names of norms, tied copies, positions, extra buffers."""
    older = {}
    for name, tensor in weights.items():
        older_name = name.removeprefix("model.")
        older_name = older_name.replace("layer_norm.weight", "layer_norm.gamma")
        older_name = older_name.replace("layer_norm.bias", "layer_norm.beta")
        older[older_name] = tensor
    older["encoder.embed_tokens.weight"] = older["shared.weight"].clone()
    older["lm_head.weight"] = older["shared.weight"].clone()
    older["encoder.embed_positions.weight"] = sinusoids(torch.arange(61), 22)
    older["encoder.position_ids"] = torch.arange(61)[None]
    return older


def test_older_names_prefixes_copies_and_buffers_are_read() -> None:
    config = small_config(norm_placement="post", output_bias=True)
    weights = dict(random_model(config).state_dict())
    hf_weights = rename_as_older(encoder_decoders.to_hf_weights(config, weights))
    matcher = encoder_decoders.TranslatorWeightMatcher(config, shapes(hf_weights), shapes(weights))
    read_weights = assemble(matcher, hf_weights)
    assert all(torch.equal(read_weights[name], weights[name]) for name in weights)
    assert sorted(matcher.report.ignored) == ["encoder.embed_positions.weight", "encoder.position_ids"]
    assert matcher.report.renamed["encoder.layers.0.final_layer_norm.gamma"] == (
        "model.encoder.layers.0.final_layer_norm.weight"
    )
    assert "lm_head.weight" in matcher.report.loaded
    assert not matcher.report.notes


def test_of_two_different_tied_copies_the_input_embedding_is_used_and_it_is_noted() -> None:
    config = small_config(norm_placement="post")
    weights = dict(random_model(config).state_dict())
    hf_weights = rename_as_older(encoder_decoders.to_hf_weights(config, weights))
    hf_weights["lm_head.weight"] = hf_weights["lm_head.weight"] + 1
    matcher = encoder_decoders.TranslatorWeightMatcher(config, shapes(hf_weights), shapes(weights))
    assert torch.equal(assemble(matcher, hf_weights)["token_embedding.weight"], weights["token_embedding.weight"])
    assert "lm_head.weight differs" in matcher.report.notes[0]


def test_a_tied_copy_replaces_a_missing_shared_embedding() -> None:
    config = small_config(norm_placement="post")
    weights = dict(random_model(config).state_dict())
    hf_weights = rename_as_older(encoder_decoders.to_hf_weights(config, weights))
    del hf_weights["shared.weight"]
    matcher = encoder_decoders.TranslatorWeightMatcher(config, shapes(hf_weights), shapes(weights))
    assert torch.equal(assemble(matcher, hf_weights)["token_embedding.weight"], weights["token_embedding.weight"])


def test_other_positions_missing_weights_and_wrong_shapes_are_named() -> None:
    config = small_config(norm_placement="post")
    weights = dict(random_model(config).state_dict())
    hf_weights = rename_as_older(encoder_decoders.to_hf_weights(config, weights))
    zero_positions = hf_weights | {"encoder.embed_positions.weight": torch.zeros(61, 22)}
    matcher = encoder_decoders.TranslatorWeightMatcher(config, shapes(zero_positions), shapes(weights))
    with pytest.raises(CheckpointError, match="embed_positions.weight: not the sinusoids"):
        assemble(matcher, zero_positions)
    incomplete = {name: tensor for name, tensor in hf_weights.items() if "encoder_attn.k_proj" not in name}
    with pytest.raises(CheckpointError, match=r"6 weights are missing, model.decoder.layers.0.encoder_attn.k_proj"):
        encoder_decoders.TranslatorWeightMatcher(config, shapes(incomplete), shapes(weights))
    transposed = hf_weights | {"encoder.layers.1.fc1.weight": torch.zeros(22, 31)}
    with pytest.raises(CheckpointError, match=r"fc1.weight has shape \[22, 31\], config.json asks for \[31, 22\]"):
        encoder_decoders.TranslatorWeightMatcher(config, shapes(transposed), shapes(weights))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "'bert', which is not a translation model: marian, pegasus"),
        ({"model_type": None}, "no model_type"),
        ({"d_model": "22"}, "d_model must be of type int"),
        ({"d_model": 22.5}, "d_model must be of type int, not 22.5"),
        ({"d_model": 10**400}, "d_model is 1000"),
        ({"encoder_layers": 10**9}, "encoder_layers is 1000000000; at most"),
        ({"vocab_size": 2**40}, "vocab_size is 1099511627776"),
        ({"max_position_embeddings": 2**30}, "max_position_embeddings is 1073741824"),
        ({"encoder_attention_heads": 5}, r"num_heads \(5\) must divide hidden_size"),
        ({"d_model": 2**24 - 3}, r"must divide hidden_size \(16777213\): try 1$"),
        ({"vocab_size": 0}, "vocab_size is 0; at least 1 is needed"),
        ({"activation_function": "import os"}, "activation must be one of"),
        ({"activation_function": ["relu"]}, "activation_function must be of type str"),
        ({"scale_embedding": "yes"}, "scale_embedding must be of type bool"),
        ({"dropout": float("nan")}, "dropout must be of type float"),
        ({"pad_token_id": 99_999}, "pad_id is token 99999"),
        ({"decoder_start_token_id": -1}, r"bos_id \(-1\) must be at least 0"),
    ],
)
def test_an_invalid_config_is_rejected_in_one_line(changes: dict[str, Any], message: str) -> None:
    fields = encoder_decoders.config_to_hf(small_config(norm_placement="post")) | changes
    with pytest.raises(CheckpointError, match=message) as caught:
        encoder_decoders.config_from_hf(fields, "x/config.json")
    assert str(caught.value).startswith("x/config.json: ")
    assert "\n" not in str(caught.value)


def test_of_a_list_of_eos_ids_the_first_is_read() -> None:
    fields = encoder_decoders.config_to_hf(small_config(norm_placement="post")) | {"eos_token_id": [1, 5]}
    assert encoder_decoders.config_from_hf(fields, "").eos_id == 1


@settings(max_examples=500, deadline=None)
@given(
    model_type=st.sampled_from(["marian", "pegasus", "regard-transformer"]),
    field_index=st.integers(0, 40),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
        max_leaves=4,
    ),
)
def test_any_value_in_any_field_is_read_or_rejected(model_type: str, field_index: int, value: Any) -> None:
    changes = {"marian": {"norm_placement": "post"}, "pegasus": {}, "regard-transformer": {"positions": "learned"}}[
        model_type
    ]
    fields = copy.deepcopy(encoder_decoders.config_to_hf(small_config(**changes)))
    target = fields["regard"] if model_type in encoder_decoders.NATIVE_TYPES and field_index % 2 else fields
    target[sorted(target)[field_index % len(target)]] = value
    try:
        assert isinstance(encoder_decoders.config_from_hf(fields, "config.json"), TransformerConfig)
    except CheckpointError as error:
        assert str(error).startswith("config.json: ")


def test_decoding_settings_round_trip() -> None:
    config = small_config()
    fields = encoder_decoders.decoding_to_hf(config, DecodingConfig(beam=6, length_penalty=0.6, no_repeat_ngram=3))
    assert fields["bad_words_ids"] == [[config.pad_id], [config.bos_id]]
    assert "temperature" not in fields
    decoding = encoder_decoders.decoding_from_hf(fields, "")
    assert decoding.beam == 6
    assert decoding.length_penalty == 0.6
    assert decoding.no_repeat_ngram == 3
    sampling = DecodingConfig(sample=True, temperature=0.5, top_k=9, beam=1)
    sampling_fields = encoder_decoders.decoding_to_hf(config, sampling)
    assert encoder_decoders.decoding_from_hf(sampling_fields, "") == sampling


def test_invalid_decoding_settings_are_rejected() -> None:
    with pytest.raises(CheckpointError, match=r"generation_config.json: beam"):
        encoder_decoders.decoding_from_hf({"num_beams": 10**9}, "generation_config.json")
