"""Encoder folders: outputs equal those of transformers, and folders are written back unchanged."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from regard.attention.trace import trace
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.model_dir import folder_task
from regard.checkpoint.source import EncoderSource
from regard.checkpoint.weights import FILE, INDEX
from regard.config.models import BertConfig, StackConfig
from regard.errors import CheckpointError
from regard.models.bert import Bert, initialize_bert
from regard.packed_tokens import Tokens
from regard.pipeline.load import load_classifier
from regard.registry import task_of_head
from tests.checkpoint.hf.encoders import (
    CASES,
    CAUSAL_TYPES,
    LABELS,
    random_tokens,
    save_transformers_model,
    transformers_outputs,
)

pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")


def relative_error(array: np.ndarray, expected: np.ndarray | None) -> float:
    assert expected is not None
    assert array.shape == expected.shape
    return float(np.abs(array - expected).max() / np.abs(expected).max())


def save_loaded(loaded: EncoderSource, folder: Path, **changes: Any) -> str:
    """Save a loaded encoder in another folder and return its model type; `changes` replace arguments."""
    options: dict[str, Any] = {
        "task": "",
        "metadata": {},
        "card": "",
        "labels": loaded.labels,
        "problem_type": loaded.problem_type,
        "tokenizer": loaded.tokenizer,
        "preferred_type": loaded.model_type,
        "original_config": loaded.hf_config,
    }
    return save_encoder(folder, loaded.config, loaded.weights, **{**options, **changes})


def read_config(folder: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return fields


def edit_config(folder: Path, changes: dict[str, Any]) -> None:
    """Change fields of a folder's config.json."""
    (folder / "config.json").write_text(json.dumps({**read_config(folder), **changes}))


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_outputs_equal_those_of_transformers_and_folders_are_written_back(
    model_type: str, head: str, tmp_path: Path
) -> None:
    hf_model = save_transformers_model(model_type, head, tmp_path / "hf")
    edit_config(tmp_path / "hf", {"unknown_field": [1, {"nested": None}]})
    loaded = load_encoder(tmp_path / "hf")
    assert loaded.model_type == model_type
    assert loaded.config.head == head
    assert loaded.labels == (LABELS if head in ("label", "token") else ())
    assert not loaded.report.missing
    is_causal_lm = model_type in CAUSAL_TYPES and head == "plain"
    assert folder_task(tmp_path / "hf") == ("causal-lm" if is_causal_lm else task_of_head(head))
    tokens = random_tokens(loaded.config.num_token_types)
    hidden, head_output = transformers_outputs(hf_model, tokens, head)
    for model in (loaded.model(), loaded.model().pack()):
        assert relative_error(model.encode(tokens), hidden) < 1e-5
        if head != "plain":
            assert relative_error(model.logits(tokens), head_output) < 1e-5
        elif loaded.config.has_pooler:
            assert relative_error(model.pooler_output(tokens), head_output) < 1e-5
        else:
            assert head_output is None
    assert save_loaded(loaded, tmp_path / "ours") == model_type
    reloaded, loading_info = type(hf_model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(loading_info.values())
    for name, tensor in hf_model.state_dict().items():
        assert torch.equal(tensor, reloaded.state_dict()[name]), name
    assert read_config(tmp_path / "ours") == read_config(tmp_path / "hf")


@pytest.mark.parametrize(
    "model_type", ["bert", "distilbert", "roberta", "electra", "albert", "modernbert", "gpt2", "gpt_neox"]
)
def test_single_batched_and_training_passes_agree(model_type: str, tmp_path: Path) -> None:
    save_transformers_model(model_type, "plain", tmp_path)
    model = load_encoder(tmp_path).model()
    tokens = random_tokens(model.config.num_token_types)
    hidden = model.encode(tokens)
    assert tokens.token_types is not None
    for index, row in enumerate(tokens):
        start, stop = tokens.offsets[index : index + 2]
        alone = model.encode(Tokens.from_rows([row]), tokens.token_types[start:stop])
        assert relative_error(alone, hidden[start:stop]) < 1e-5
    ids, batch = model.to_tensors(tokens, multiple=8)
    token_types = model.token_type_tensor(tokens, batch.num_padding)
    training_hidden = model(ids, batch, token_types)[: batch.num_tokens]
    assert relative_error(training_hidden.detach().numpy(), hidden) < 1e-5


def test_tracing_captures_attention_without_changing_the_output(tmp_path: Path) -> None:
    save_transformers_model("bert", "plain", tmp_path)
    model = load_encoder(tmp_path).model()
    tokens = random_tokens(2)
    two_lengths = Tokens.from_rows([tokens.row(0)] * 9 + [tokens.row(1)] * 9)  # which attend separately
    with trace("encoder.*") as captured:
        traced = model.encode(two_lengths)
    assert np.array_equal(traced, model.encode(two_lengths))
    assert captured["encoder.0.self"].weights.shape == (18, 7, 7, 7)
    assert relative_error(traced[:7], model.encode(Tokens.from_rows([tokens.row(0)]))) < 1e-5
    with trace("encoder.*") as captured:
        traced = model.encode(tokens)
    assert np.array_equal(traced, model.encode(tokens))
    assert captured["encoder.1.self"].weights.shape == (4, 7, 13, 13)
    assert np.allclose(captured["encoder.1.self"].weights[1, :, :3, :3].sum(-1), 1, atol=2e-3)  # half precision


def test_layers_that_share_weights_attend_and_learn_separately(tmp_path: Path) -> None:
    save_transformers_model("albert", "plain", tmp_path)
    model = load_encoder(tmp_path).model()
    tokens = random_tokens(2)
    assert len(model.encoder.layers) == 2
    for variant in (model, copy.deepcopy(model), load_encoder(tmp_path).model().pack()):
        with trace("encoder.*") as captured:
            variant.encode(tokens)
        assert {*variant.attention_sites()} == {site for site in captured if site.startswith("encoder.")}
        assert len(variant.attention_sites()) == 5
        assert not np.array_equal(captured["encoder.0.self"].weights, captured["encoder.1.self"].weights)
    ids, batch = model.to_tensors(tokens)
    model(ids, batch).sum().backward()
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "pooler" not in name)
    before = model.encode(tokens)
    with torch.no_grad():
        model.encoder.layers[1].attention.qkv.weight.mul_(2)  # type: ignore[union-attr, operator]
    assert relative_error(model.encode(tokens), before) > 1e-3
    assert model.double()(ids, batch).dtype == torch.float64


@pytest.mark.parametrize("model_type", ["electra", "albert", "modernbert"])
def test_the_classification_pipeline_gives_the_probabilities_of_transformers(model_type: str, tmp_path: Path) -> None:
    hf_model = save_transformers_model(model_type, "label", tmp_path)
    tokenizer = load_encoder(tmp_path).tokenizer
    ids = [2, *tokenizer.encode_batch(["w3 w5 w9"])[0], 3]
    with torch.no_grad():
        probabilities = hf_model(torch.tensor([ids])).logits.softmax(1)
    prediction = load_classifier(tmp_path, threads=1)("w3 w5 w9")
    assert abs(prediction.probability - float(probabilities.max())) < 1e-5


def test_embeddings_as_wide_as_hidden_states_are_not_projected(tmp_path: Path) -> None:
    hf_model = save_transformers_model("electra", "label", tmp_path / "hf", embedding_size=14)
    loaded = load_encoder(tmp_path / "hf")
    assert loaded.config.embedding_size == 0
    tokens = random_tokens(2)
    _, expected = transformers_outputs(hf_model, tokens, "label")
    assert relative_error(loaded.model().logits(tokens), expected) < 1e-5
    assert save_loaded(loaded, tmp_path / "ours") == "electra"


def test_a_discriminator_is_read_for_its_hidden_states(tmp_path: Path) -> None:
    hf_model = save_transformers_model("electra", "pretraining", tmp_path)
    loaded = load_encoder(tmp_path)
    assert loaded.config.head == "plain"
    assert "names ElectraForPreTraining" in loaded.report.notes[0]
    assert {name.split(".")[0] for name in loaded.report.ignored} == {"discriminator_predictions"}
    tokens = random_tokens(2)
    is_token = np.arange(int(tokens.lengths.max())) < tokens.lengths[:, None]
    ids = np.zeros(is_token.shape, np.int64)
    ids[is_token] = tokens.ids
    token_types = np.zeros(is_token.shape, np.int64)
    token_types[is_token] = tokens.token_types
    with torch.no_grad():
        output = hf_model.electra(
            input_ids=torch.from_numpy(ids),
            attention_mask=torch.from_numpy(is_token.astype(np.int64)),
            token_type_ids=torch.from_numpy(token_types),
        )
    hidden = output.last_hidden_state.numpy()
    assert relative_error(loaded.model().encode(tokens), hidden[is_token]) < 1e-5


@pytest.mark.parametrize(
    ("model_type", "head", "changes", "message"),
    [
        ("albert", "plain", {"inner_group_num": 2}, "inner_group_num is 2: only 1 is read"),
        ("albert", "plain", {"num_hidden_groups": 9}, r"layer_groups \(9\) must be at most stack.num_layers \(5\)"),
        ("albert", "plain", {"num_hidden_groups": 0}, "num_hidden_groups is 0"),
        ("electra", "masked", {"hidden_act": "relu"}, "hidden_act is not 'gelu'"),
        ("electra", "plain", {"embedding_size": 14}, r"has shape \[61, 6\], config.json asks for \[61, 14\]"),
    ],
)
def test_unsupported_electra_and_albert_configs_are_rejected(
    model_type: str, head: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_transformers_model(model_type, head, tmp_path)
    edit_config(tmp_path, changes)
    with pytest.raises(CheckpointError, match=message):
        load_encoder(tmp_path)


def test_older_names_buffers_and_a_missing_prefix_are_read(tmp_path: Path) -> None:
    save_transformers_model("bert", "masked", tmp_path)
    expected = load_encoder(tmp_path).weights
    tensors = safetensors.torch.load_file(tmp_path / FILE)
    older = {}
    for name, tensor in tensors.items():
        older_name = name.removeprefix("bert.")
        older_name = older_name.replace("LayerNorm.weight", "LayerNorm.gamma")
        older_name = older_name.replace("LayerNorm.bias", "LayerNorm.beta")
        older[older_name] = tensor
    older["embeddings.position_ids"] = torch.arange(23)[None]
    older["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    older["cls.seq_relationship.weight"] = torch.zeros(2, 14)
    safetensors.torch.save_file(older, tmp_path / FILE, metadata={"format": "pt"})
    loaded = load_encoder(tmp_path)
    assert all(torch.equal(expected[name], loaded.weights[name]) for name in expected)
    assert loaded.report.renamed["embeddings.LayerNorm.gamma"] == "bert.embeddings.LayerNorm.weight"
    reasons = loaded.report.reasons
    assert reasons["embeddings.position_ids"] == "a buffer, not a weight"
    assert reasons["cls.predictions.decoder.weight"] == "a tied copy"
    assert "NextSentence" in reasons["cls.seq_relationship.weight"]
    assert loaded.report.format_lines()[0].endswith("0 missing, 3 ignored")


def test_a_tied_copy_that_differs_is_reported(tmp_path: Path) -> None:
    save_transformers_model("bert", "masked", tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / FILE)
    tensors["cls.predictions.decoder.weight"] = torch.ones(61, 14)
    safetensors.torch.save_file(tensors, tmp_path / FILE, metadata={"format": "pt"})
    assert "although they are tied" in load_encoder(tmp_path).report.format_lines()[-1]


def test_shards_in_bf16_are_read(tmp_path: Path) -> None:
    save_transformers_model("roberta", "label", tmp_path)
    expected = load_encoder(tmp_path).weights
    tensors = {name: tensor.bfloat16() for name, tensor in safetensors.torch.load_file(tmp_path / FILE).items()}
    (tmp_path / FILE).unlink()
    weight_map = {}
    for start, shard in enumerate(("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")):
        names = sorted(tensors)[start::2]
        safetensors.torch.save_file({name: tensors[name] for name in names}, tmp_path / shard)
        weight_map |= dict.fromkeys(names, shard)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    loaded = load_encoder(tmp_path).weights
    assert all(torch.equal(expected[name].bfloat16().float(), loaded[name]) for name in expected)


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "roberta", "electra", "albert", "modernbert"])
def test_an_untied_output_has_its_own_weights(model_type: str, tmp_path: Path) -> None:
    hf_model = save_transformers_model(model_type, "masked", tmp_path / "hf", tie_word_embeddings=False)
    loaded = load_encoder(tmp_path / "hf")
    tokens = random_tokens(loaded.config.num_token_types)
    _, expected = transformers_outputs(hf_model, tokens, "masked")
    assert expected is not None
    assert relative_error(loaded.model().logits(tokens), expected) < 1e-5
    save_loaded(loaded, tmp_path / "ours")
    reloaded, loading_info = type(hf_model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(loading_info.values())
    _, reloaded_logits = transformers_outputs(reloaded, tokens, "masked")
    assert reloaded_logits is not None
    assert np.array_equal(reloaded_logits, expected)


def test_another_head_is_initialized_and_the_backbone_is_loaded(tmp_path: Path) -> None:
    save_transformers_model("bert", "label", tmp_path)
    loaded = load_encoder(tmp_path)
    same = load_encoder(tmp_path, head="label", labels=LABELS)
    assert torch.equal(same.weights["classifier.weight"], loaded.weights["classifier.weight"])
    relabelled = load_encoder(tmp_path, head="label", labels=("x", "y", "z"), seed=5)
    assert not torch.equal(relabelled.weights["classifier.weight"], loaded.weights["classifier.weight"])
    assert torch.equal(relabelled.weights["pooler.weight"], loaded.weights["pooler.weight"])
    assert relabelled.report.missing == ["classifier.weight", "classifier.bias"]
    tagger = load_encoder(tmp_path, head="token", labels=LABELS, seed=5)
    assert not torch.equal(tagger.weights["classifier.weight"], loaded.weights["classifier.weight"])
    assert torch.equal(tagger.weights["token_embedding.weight"], loaded.weights["token_embedding.weight"])
    again = load_encoder(tmp_path, head="token", labels=LABELS, seed=5)
    assert torch.equal(tagger.weights["classifier.weight"], again.weights["classifier.weight"])
    assert load_encoder(tmp_path, head="masked").report.missing[0].startswith("cls.predictions")
    save_transformers_model("bert", "plain", tmp_path / "plain")
    with pytest.raises(CheckpointError, match="needs labels"):
        load_encoder(tmp_path / "plain", head="label")


def test_the_head_is_detected_where_architectures_name_another_or_are_missing(tmp_path: Path) -> None:
    save_transformers_model("bert", "plain", tmp_path)
    fields = read_config(tmp_path)
    edit_config(tmp_path, {"architectures": ["BertForMaskedLM"]})
    loaded = load_encoder(tmp_path)
    assert loaded.config.head == "plain"
    assert "names BertForMaskedLM" in loaded.report.notes[0]
    del fields["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    loaded = load_encoder(tmp_path)
    assert loaded.config.head == "plain"
    assert loaded.report.notes == []


def test_models_that_transformers_cannot_express_have_a_native_type(tmp_path: Path) -> None:
    save_transformers_model("bert", "plain", tmp_path / "hf")
    tokenizer = load_encoder(tmp_path / "hf").tokenizer
    stack = StackConfig(num_layers=2, num_heads=3, feed_forward_size=11)
    config = BertConfig(vocab_size=61, hidden_size=15, stack=stack, norm_placement="pre", head="label", num_labels=2)
    model = Bert(config)
    initialize_bert(model, 3)
    options: dict[str, Any] = {"tokenizer": tokenizer, "task": "classify", "metadata": {"step": 7}, "card": "# It"}
    model_type = save_encoder(tmp_path / "ours", config, model.state_dict(), labels=("a", "b"), **options)
    assert model_type == "regard-bert"
    loaded = load_encoder(tmp_path / "ours", task="classify")
    assert loaded.config == config
    assert loaded.labels == ("a", "b")
    assert loaded.metadata["step"] == 7
    assert np.array_equal(loaded.model().logits(random_tokens(2)), model.logits(random_tokens(2)))
    with pytest.raises(CheckpointError, match="a model for the task 'classify'"):
        load_encoder(tmp_path / "ours", task="tag")


UNSUPPORTED = [  # changes of config.json, message
    ({"model_type": "t5"}, "a model of type 't5'.*bert, distilbert, roberta, xlm-roberta"),
    ({"is_decoder": True}, "is_decoder is true"),
    ({"position_embedding_type": "relative_key"}, "only 'absolute' is read"),
    ({"hidden_size": "wide"}, "hidden_size must be of type int"),
    ({"intermediate_size": 18}, r"has shape \[19, 14\], config.json asks for \[18, 14\]"),
    ({"num_hidden_layers": 3}, r"16 weights are missing, encoder.layer.2.attention.self.query.weight"),
    ({"hidden_act": "snake"}, "activation must be one of"),
    ({"vocab_size": 40}, r"word_embeddings.weight has shape \[61, 14\]"),
]


@pytest.mark.parametrize(("changes", "message"), UNSUPPORTED)
def test_unsupported_configs_are_rejected_with_the_reason(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_transformers_model("bert", "plain", tmp_path)
    edit_config(tmp_path, changes)
    with pytest.raises(CheckpointError, match=message):
        load_encoder(tmp_path)


def test_a_folder_without_weights_or_with_another_tokenizer_is_rejected(tmp_path: Path) -> None:
    save_transformers_model("bert", "plain", tmp_path)
    subwords = (tmp_path / "vocab.txt").read_text()
    (tmp_path / "vocab.txt").write_text(subwords + "more\n")
    with pytest.raises(CheckpointError, match="the tokenizer has 62 tokens, but config.json says 61"):
        load_encoder(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json, no vocab\.txt"):
        load_encoder(tmp_path)
    (tmp_path / "vocab.txt").write_text(subwords)
    (tmp_path / FILE).unlink()
    with pytest.raises(CheckpointError, match="holds no weights"):
        load_encoder(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="regard convert"):
        load_encoder(tmp_path)


def test_local_and_global_layers_equal_those_of_transformers(tmp_path: Path) -> None:
    hf_model = save_transformers_model(
        "modernbert", "label", tmp_path, classifier_pooling="mean", global_attn_every_n_layers=2
    )
    loaded = load_encoder(tmp_path)
    assert loaded.config.attention_window == 3
    assert loaded.config.global_every == 2
    assert loaded.config.rope_theta == 160_000.0
    assert loaded.config.local_rope_theta == 10_000.0
    model = loaded.model()
    tokens = random_tokens(0)
    _, expected = transformers_outputs(hf_model, tokens, "label")
    assert relative_error(model.logits(tokens), expected) < 1e-5
    with trace("encoder.*") as captured:
        traced = model.encode(tokens)
    assert np.array_equal(traced, model.encode(tokens))
    longest = 2  # a sequence of 13 tokens
    global_weights = captured["encoder.2.self"].weights[longest]
    local_weights = captured["encoder.3.self"].weights[longest]
    is_far = np.abs(np.arange(13)[:, None] - np.arange(13)) > 3
    assert (local_weights[:, is_far] == 0).all()
    assert (global_weights[:, is_far] > 0).any()
    short = Tokens.from_rows([tokens.row(1)])  # shorter than the attention window
    repeated = Tokens.from_rows([tokens.row(1)] * 40)
    expected_hidden, _ = transformers_outputs(hf_model, short, "label")
    assert relative_error(model.encode(repeated)[:3], expected_hidden) < 1e-5


def test_older_and_newer_spellings_of_layer_settings_are_equivalent(tmp_path: Path) -> None:
    save_transformers_model("modernbert", "plain", tmp_path)
    config = load_encoder(tmp_path).config
    older = read_config(tmp_path)
    del older["layer_types"]
    del older["rope_parameters"]
    older |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps(older))
    assert load_encoder(tmp_path).config == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["sliding_attention"] * 5}, "layer_types must be full_attention first"),
        ({"layer_types": ["full_attention"] * 4}, "5 in all"),
        ({"mlp_bias": True}, "must be all true or all false"),
        ({"decoder_bias": False}, "decoder_bias is false"),
        ({"classifier_activation": "relu"}, "classifier_activation is 'relu'"),
        ({"classifier_pooling": "max"}, "classifier_pooling must be 'cls' or 'mean', not 'max'"),
        ({"rope_scaling": {"type": "yarn"}}, "only 'default' is read"),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, "scaled by 'linear'"),
        ({"rope_parameters": [1]}, "rope_parameters must name settings"),
        ({"local_attention": "wide"}, "local_attention must be of type int"),
    ],
)
def test_unsupported_layer_settings_are_rejected(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_transformers_model("modernbert", "plain", tmp_path)
    edit_config(tmp_path, changes)
    with pytest.raises(CheckpointError, match=message):
        load_encoder(tmp_path)


@pytest.fixture
def hf_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Log with the warnings of transformers, which by default do not propagate and are not repeated."""
    from transformers.utils.logging import warning_once

    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    warning_once.cache_clear()
    return caplog


def test_our_modernbert_opens_in_transformers_without_warnings(
    tmp_path: Path, hf_log: pytest.LogCaptureFixture
) -> None:
    save_transformers_model("modernbert", "plain", tmp_path / "hf")
    loaded = load_encoder(tmp_path / "hf")
    assert save_loaded(loaded, tmp_path / "ours", original_config=None) == "modernbert"
    from transformers import AutoModel

    _, loading_info = AutoModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(loading_info.values())
    assert "token_id" not in hf_log.text
    assert read_config(tmp_path / "ours")["eos_token_id"] is None


def test_a_modernbert_with_fewer_layers_is_written_with_its_own_layer_types(tmp_path: Path) -> None:
    save_transformers_model("modernbert", "masked", tmp_path / "hf")
    loaded = load_encoder(tmp_path / "hf")
    config = loaded.config.override({"stack.num_layers": 2})
    remaining = {name: tensor for name, tensor in loaded.weights.items() if not name.startswith(tuple(REMOVED_LAYERS))}
    model_type = save_encoder(
        tmp_path / "short",
        config,
        remaining,
        task="",
        metadata={},
        card="",
        tokenizer=loaded.tokenizer,
        preferred_type="modernbert",
        original_config=loaded.hf_config,
    )
    assert model_type == "modernbert"
    from transformers import AutoModelForMaskedLM

    hf_model, loading_info = AutoModelForMaskedLM.from_pretrained(tmp_path / "short", output_loading_info=True)
    assert not any(loading_info.values())
    tokens = random_tokens(0)
    _, expected = transformers_outputs(hf_model.eval(), tokens, "masked")
    assert relative_error(load_encoder(tmp_path / "short").model().logits(tokens), expected) < 1e-5


REMOVED_LAYERS = [f"encoder.layers.{layer}." for layer in (2, 3, 4)]
