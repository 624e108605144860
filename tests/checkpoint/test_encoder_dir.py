from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from regard.attention.trace import trace
from regard.checkpoint.encoder_dir import LoadedEncoder, load_encoder, save_encoder
from regard.checkpoint.hf.encoders import HEAD_TASKS
from regard.checkpoint.model_dir import folder_task
from regard.checkpoint.weights import FILE, INDEX
from regard.config.models import BertConfig, StackConfig
from regard.errors import CheckpointError
from regard.models.bert import Bert, initialize_bert
from regard.pipeline.loaders import load_classifier
from regard.tokens import Tokens
from tests.checkpoint.hf.encoders import CASES, LABELS, made, outputs, texts

pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")


def differ(ours: np.ndarray, theirs: np.ndarray) -> float:
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def written(loaded: LoadedEncoder, folder: Path, **changes: Any) -> str:
    given: dict[str, Any] = {
        "task": "",
        "facts": {},
        "card": "",
        "labels": loaded.labels,
        "problem": loaded.problem_type,
    }
    given |= {"tokenizer": loaded.tokenizer, "kind": loaded.model_type, "fields": loaded.hf_config, **changes}
    return save_encoder(folder, loaded.config, loaded.weights, **given)


@pytest.mark.parametrize(("kind", "head"), CASES)
def test_folders_give_what_transformers_gives_and_go_back(kind: str, head: str, tmp_path: Path) -> None:
    theirs = made(kind, head, tmp_path / "there")
    fields = json.loads((tmp_path / "there/config.json").read_text())
    (tmp_path / "there/config.json").write_text(json.dumps({**fields, "its_own_field": [1, {"kept": None}]}))
    loaded = load_encoder(tmp_path / "there")
    assert (loaded.model_type, loaded.config.head) == (kind, head)
    assert loaded.labels == (LABELS if head in ("label", "token") else ())
    assert not loaded.report.missing
    assert folder_task(tmp_path / "there") == HEAD_TASKS[head]
    tokens = texts(loaded.config.num_token_types)
    states, scores = outputs(theirs, tokens, head)
    for model in (loaded.model(), loaded.model().pack()):
        assert differ(model.encode(tokens), states) < 1e-5
        if scores is not None:
            assert differ(model.pooler_output(tokens) if head == "plain" else model.logits(tokens), scores) < 1e-5
    assert written(loaded, tmp_path / "back") == kind
    again, told = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(told.values())
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    back = json.loads((tmp_path / "back/config.json").read_text())
    assert back == {**fields, "its_own_field": [1, {"kept": None}]}


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta", "electra", "albert", "modernbert"])
def test_alone_beside_others_and_in_training_agree(kind: str, tmp_path: Path) -> None:
    made(kind, "plain", tmp_path)
    model = load_encoder(tmp_path).model()
    tokens = texts(model.config.num_token_types)
    together = model.encode(tokens)
    for number, row in enumerate(tokens):
        start, stop = tokens.offsets[number : number + 2]
        assert tokens.token_types is not None
        alone = model.encode(Tokens.from_rows([row]), tokens.token_types[start:stop])
        assert differ(alone, together[start:stop]) < 1e-5
    ids, rows = model.to_tensors(tokens, multiple=8)
    trained = model(ids, rows, model.token_type_tensor(tokens, rows.num_padding))[: rows.num_tokens]
    assert differ(trained.detach().numpy(), together) < 1e-5


def test_attention_can_be_watched(tmp_path: Path) -> None:
    made("bert", "plain", tmp_path)
    model, tokens = load_encoder(tmp_path).model(), texts(2)
    even = Tokens.from_rows([tokens.row(0)] * 9 + [tokens.row(1)] * 9)  # two lengths, each of which looks by itself
    with trace("encoder.*") as seen:
        watched = model.encode(even)
    assert np.array_equal(watched, model.encode(even))
    assert seen["encoder.0.self"].weights.shape == (18, 7, 7, 7)
    assert differ(watched[:7], model.encode(Tokens.from_rows([tokens.row(0)]))) < 1e-5
    with trace("encoder.*") as seen:
        watched = model.encode(tokens)
    assert np.array_equal(watched, model.encode(tokens))
    assert seen["encoder.1.self"].weights.shape == (4, 7, 13, 13)
    assert np.allclose(seen["encoder.1.self"].weights[1, :, :3, :3].sum(-1), 1, atol=2e-3)  # half precision


def test_layers_that_share_weights_look_and_learn_each_for_itself(tmp_path: Path) -> None:
    made("albert", "plain", tmp_path)
    model, tokens = load_encoder(tmp_path).model(), texts(2)
    assert len(model.stack.blocks) == 2
    for one in (model, copy.deepcopy(model), load_encoder(tmp_path).model().pack()):
        with trace("encoder.*") as seen:
            one.encode(tokens)
        assert {*one.attention_sites()} == {site for site in seen if site.startswith("encoder.")}
        assert len(one.attention_sites()) == 5
        assert not np.array_equal(seen["encoder.0.self"].weights, seen["encoder.1.self"].weights)
    ids, rows = model.to_tensors(tokens)
    model(ids, rows).sum().backward()
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "pooler" not in name)
    before = model.encode(tokens)
    with torch.no_grad():
        model.stack.blocks[1].attention.qkv.weight.mul_(2)  # type: ignore[union-attr, operator]
    assert differ(model.encode(tokens), before) > 1e-3
    moved = model.double().forward(ids, rows)
    assert moved.dtype == torch.float64


@pytest.mark.parametrize("kind", ["electra", "albert", "modernbert"])
def test_the_usual_way_of_opening_gives_their_chances(kind: str, tmp_path: Path) -> None:
    theirs = made(kind, "label", tmp_path)
    loaded = load_encoder(tmp_path)
    row = [2, *loaded.tokenizer.encode_batch(["w3 w5 w9"])[0], 3]
    with torch.no_grad():
        wanted = theirs(torch.tensor([row])).logits.softmax(1).max()
    found = load_classifier(tmp_path, threads=1)("w3 w5 w9")
    assert abs(found.probability - float(wanted)) < 1e-5


def test_words_as_wide_as_the_states_are_not_widened(tmp_path: Path) -> None:
    theirs = made("electra", "label", tmp_path / "there", embedding_size=14)
    loaded = load_encoder(tmp_path / "there")
    assert loaded.config.embedding_size == 0
    tokens = texts(2)
    assert differ(loaded.model().logits(tokens), outputs(theirs, tokens, "label")[1]) < 1e-5  # type: ignore[arg-type]
    assert written(loaded, tmp_path / "back") == "electra"


def test_a_discriminator_is_read_for_its_states(tmp_path: Path) -> None:
    theirs = made("electra", "pretraining", tmp_path)
    loaded = load_encoder(tmp_path)
    assert loaded.config.head == "plain"
    assert "names ElectraForPreTraining" in loaded.report.notes[0]
    assert {name.split(".")[0] for name in loaded.report.ignored} == {"discriminator_predictions"}
    tokens = texts(2)
    real = np.arange(int(tokens.lengths.max())) < tokens.lengths[:, None]
    ids, types = np.zeros(real.shape, np.int64), np.zeros(real.shape, np.int64)
    ids[real], types[real] = tokens.ids, tokens.token_types
    given = {"input_ids": ids, "attention_mask": real.astype(np.int64), "token_type_ids": types}
    with torch.no_grad():
        states = theirs.electra(**{name: torch.from_numpy(array) for name, array in given.items()})[0].numpy()
    assert differ(loaded.model().encode(tokens), states[real]) < 1e-5


@pytest.mark.parametrize(
    ("kind", "head", "change", "message"),
    [
        ("albert", "plain", {"inner_group_num": 2}, "inner_group_num is 2: only 1 is read"),
        ("albert", "plain", {"num_hidden_groups": 9}, r"groups \(9\) must be at most stack.layers \(5\)"),
        ("albert", "plain", {"num_hidden_groups": 0}, "num_hidden_groups is 0"),
        ("electra", "masked", {"hidden_act": "relu"}, "hidden_act is not 'gelu'"),
        ("electra", "plain", {"embedding_size": 14}, r"has shape \[61, 6\], config.json asks for \[61, 14\]"),
    ],
)
def test_what_is_refused_of_narrow_and_shared_ones(
    kind: str, head: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made(kind, head, tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, **change}))
    with pytest.raises(CheckpointError, match=message):
        load_encoder(tmp_path)


def rewritten(folder: Path, change: Any) -> None:
    tensors = safetensors.torch.load_file(folder / FILE)
    safetensors.torch.save_file(change(tensors), folder / FILE, metadata={"format": "pt"})


def test_old_names_buffers_and_a_missing_prefix_are_read(tmp_path: Path) -> None:
    made("bert", "masked", tmp_path)
    right = load_encoder(tmp_path).weights

    def older(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        renamed = {}
        for name, tensor in tensors.items():
            plain = name.removeprefix("bert.")
            plain = plain.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            renamed[plain] = tensor
        renamed["embeddings.position_ids"] = torch.arange(23)[None]
        renamed["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        renamed["cls.seq_relationship.weight"] = torch.zeros(2, 14)
        return renamed

    rewritten(tmp_path, older)
    loaded = load_encoder(tmp_path)
    assert all(torch.equal(right[name], loaded.weights[name]) for name in right)
    assert loaded.report.renamed["embeddings.LayerNorm.gamma"] == "bert.embeddings.LayerNorm.weight"
    reasons = loaded.report.reasons
    assert reasons["embeddings.position_ids"] == "a buffer, not a weight"
    assert reasons["cls.predictions.decoder.weight"] == "a tied copy"
    assert "NextSentence" in reasons["cls.seq_relationship.weight"]
    assert loaded.report.format_lines()[0].endswith("0 missing, 3 ignored")


def test_a_tied_copy_that_differs_is_told(tmp_path: Path) -> None:
    made("bert", "masked", tmp_path)
    rewritten(tmp_path, lambda tensors: {**tensors, "cls.predictions.decoder.weight": torch.ones(61, 14)})
    assert "although they are tied" in load_encoder(tmp_path).report.format_lines()[-1]


def test_shards_and_half_precision_are_read(tmp_path: Path) -> None:
    made("roberta", "label", tmp_path)
    right = load_encoder(tmp_path).weights
    tensors = {name: tensor.bfloat16() for name, tensor in safetensors.torch.load_file(tmp_path / FILE).items()}
    (tmp_path / FILE).unlink()
    parts = {
        "model-00001-of-00002.safetensors": sorted(tensors)[::2],
        "model-00002-of-00002.safetensors": sorted(tensors)[1::2],
    }
    for file, names in parts.items():
        safetensors.torch.save_file({name: tensors[name] for name in names}, tmp_path / file)
    placed = {name: file for file, names in parts.items() for name in names}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    loaded = load_encoder(tmp_path).weights
    assert all(torch.equal(right[name].bfloat16().float(), loaded[name]) for name in right)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta", "electra", "albert", "modernbert"])
def test_an_untied_output_is_its_own(kind: str, tmp_path: Path) -> None:
    theirs = made(kind, "masked", tmp_path / "there", tie_word_embeddings=False)
    loaded = load_encoder(tmp_path / "there")
    tokens = texts(loaded.config.num_token_types)
    right = outputs(theirs, tokens, "masked")[1]
    assert right is not None
    assert differ(loaded.model().logits(tokens), right) < 1e-5
    written(loaded, tmp_path / "back")
    again, told = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(told.values())
    assert np.array_equal(outputs(again, tokens, "masked")[1], right)  # type: ignore[arg-type]


def test_another_head_is_made_anew_and_the_backbone_kept(tmp_path: Path) -> None:
    made("bert", "label", tmp_path)
    right = load_encoder(tmp_path)
    same = load_encoder(tmp_path, head="label", labels=LABELS)
    assert torch.equal(same.weights["output.weight"], right.weights["output.weight"])
    other = load_encoder(tmp_path, head="label", labels=("x", "y", "z"), seed=5)
    assert not torch.equal(other.weights["output.weight"], right.weights["output.weight"])
    assert torch.equal(other.weights["pooler.weight"], right.weights["pooler.weight"])
    assert other.report.missing == ["classifier.weight", "classifier.bias"]
    tagging = load_encoder(tmp_path, head="token", labels=LABELS, seed=5)
    assert not torch.equal(tagging.weights["output.weight"], right.weights["output.weight"])
    assert torch.equal(tagging.weights["words.weight"], right.weights["words.weight"])
    again = load_encoder(tmp_path, head="token", labels=LABELS, seed=5)
    assert torch.equal(tagging.weights["output.weight"], again.weights["output.weight"])
    assert load_encoder(tmp_path, head="masked").report.missing[0].startswith("cls.predictions")
    made("bert", "plain", tmp_path / "plain")
    with pytest.raises(CheckpointError, match="needs labels"):
        load_encoder(tmp_path / "plain", head="label")


def test_heads_are_found_where_architectures_lie(tmp_path: Path) -> None:
    made("bert", "plain", tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "architectures": ["BertForMaskedLM"]}))
    loaded = load_encoder(tmp_path)
    assert loaded.config.head == "plain"
    assert "names BertForMaskedLM" in loaded.report.notes[0]
    del fields["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert load_encoder(tmp_path).report.notes == []


def test_models_that_nobody_else_knows_have_a_type_of_ours(tmp_path: Path) -> None:
    made("bert", "plain", tmp_path / "there")
    tokenizer = load_encoder(tmp_path / "there").tokenizer
    stack = StackConfig(num_layers=2, num_heads=3, feed_forward_size=11)
    config = BertConfig(vocab_size=61, hidden_size=15, stack=stack, norm="before", head="label", num_labels=2)
    model = Bert(config)
    initialize_bert(model, 3)
    facts: dict[str, Any] = {"tokenizer": tokenizer, "task": "classify", "facts": {"step": 7}, "card": "# It"}
    kind = save_encoder(tmp_path / "ours", config, model.state_dict(), labels=("a", "b"), **facts)
    loaded = load_encoder(tmp_path / "ours", task="classify")
    assert (kind, loaded.config, loaded.labels, loaded.task["step"]) == ("regard-bert", config, ("a", "b"), 7)
    assert np.array_equal(loaded.model().logits(texts(2)), model.logits(texts(2)))
    with pytest.raises(CheckpointError, match="a model for the task 'classify'"):
        load_encoder(tmp_path / "ours", task="tag")


FAULTS = [
    ({"model_type": "t5"}, "a model of type 't5'.*bert, distilbert, roberta, xlm-roberta"),
    ({"is_decoder": True}, "is_decoder is true"),
    ({"position_embedding_type": "relative_key"}, "only 'absolute' is read"),
    ({"hidden_size": "wide"}, "hidden_size must be of type int"),
    ({"intermediate_size": 18}, r"has shape \[19, 14\], config.json asks for \[18, 14\]"),
    ({"num_hidden_layers": 3}, r"16 weights are missing, encoder.layer.2.attention.self.query.weight"),
    ({"hidden_act": "snake"}, "activation must be one of"),
    ({"vocab_size": 40}, r"word_embeddings.weight has shape \[61, 14\]"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_folders_that_cannot_be_read_say_why(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    made("bert", "plain", tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, **change}))
    with pytest.raises(CheckpointError, match=message):
        load_encoder(tmp_path)


def test_a_folder_without_weights_or_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    made("bert", "plain", tmp_path)
    pieces = (tmp_path / "vocab.txt").read_text()
    (tmp_path / "vocab.txt").write_text(pieces + "more\n")
    with pytest.raises(CheckpointError, match="the tokenizer has 62 tokens, but config.json says 61"):
        load_encoder(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json, no vocab\.txt"):
        load_encoder(tmp_path)
    (tmp_path / "vocab.txt").write_text(pieces)
    (tmp_path / FILE).unlink()
    with pytest.raises(CheckpointError, match="holds no weights"):
        load_encoder(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="regard convert"):
        load_encoder(tmp_path)


def test_layers_that_look_near_turn_and_look_as_they_should(tmp_path: Path) -> None:
    theirs = made("modernbert", "label", tmp_path / "there", classifier_pooling="mean", global_attn_every_n_layers=2)
    loaded = load_encoder(tmp_path / "there")
    config = loaded.config
    assert (config.attention_window, config.global_every, config.rope_theta, config.local_rope_theta) == (
        3,
        2,
        160_000.0,
        10_000.0,
    )
    model, tokens = loaded.model(), texts(0)
    assert differ(model.logits(tokens), outputs(theirs, tokens, "label")[1]) < 1e-5  # type: ignore[arg-type]
    with trace("encoder.*") as seen:
        watched = model.encode(tokens)
    assert np.array_equal(watched, model.encode(tokens))
    far, near = (seen[f"encoder.{layer}.self"].weights[2] for layer in (2, 3))  # of the longest text, 13 tokens
    beyond = np.abs(np.arange(13)[:, None] - np.arange(13)) > 3
    assert (near[:, beyond] == 0).all()
    assert (far[:, beyond] > 0).any()
    short = Tokens.from_rows([tokens.row(1)] * 40)  # nothing is farther away than its layers look
    assert differ(model.encode(short)[:3], outputs(theirs, Tokens.from_rows([tokens.row(1)]), "label")[0]) < 1e-5


def test_older_and_newer_spellings_of_layers_are_read_alike(tmp_path: Path) -> None:
    made("modernbert", "plain", tmp_path)
    config = load_encoder(tmp_path).config
    fields = json.loads((tmp_path / "config.json").read_text())
    older = {name: value for name, value in fields.items() if name not in ("layer_types", "rope_parameters")}
    older |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps(older))
    assert load_encoder(tmp_path).config == config


@pytest.mark.parametrize(
    ("change", "message"),
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
def test_what_is_refused_of_layers_that_look_near(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    made("modernbert", "plain", tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, **change}))
    with pytest.raises(CheckpointError, match=message):
        load_encoder(tmp_path)


def test_a_modern_model_of_ours_opens_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made("modernbert", "plain", tmp_path / "there")
    loaded = load_encoder(tmp_path / "there")
    assert written(loaded, tmp_path / "ours", fields=None) == "modernbert"
    from transformers import AutoModel

    _, told = AutoModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(told.values())
    assert "token_id" not in caplog.text
    assert json.loads((tmp_path / "ours/config.json").read_text())["eos_token_id"] is None


def test_a_shorter_modern_model_is_written_with_layers_of_its_own(tmp_path: Path) -> None:
    made("modernbert", "masked", tmp_path / "there")
    loaded = load_encoder(tmp_path / "there")
    fewer = loaded.config.override({"stack.num_layers": 2})
    kept = {name: tensor for name, tensor in loaded.weights.items() if not name.startswith(tuple(OUTSIDE))}
    save = {"task": "", "facts": {}, "card": "", "tokenizer": loaded.tokenizer, "kind": "modernbert"}
    assert save_encoder(tmp_path / "short", fewer, kept, fields=loaded.hf_config, **save) == "modernbert"
    from transformers import AutoModelForMaskedLM

    theirs, told = AutoModelForMaskedLM.from_pretrained(tmp_path / "short", output_loading_info=True)
    assert not any(told.values())
    tokens = texts(0)
    right = outputs(theirs.eval(), tokens, "masked")[1]
    assert differ(load_encoder(tmp_path / "short").model().logits(tokens), right) < 1e-5  # type: ignore[arg-type]


OUTSIDE = [f"stack.blocks.{number}." for number in (2, 3, 4)]
