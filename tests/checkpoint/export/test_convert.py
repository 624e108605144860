"""Conversion for transformers and CTranslate2, of older folders with pickled weights, and of hostile ones."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.checkpoint import atomic
from regard.checkpoint.export.convert import convert
from regard.checkpoint.model_dir import expected_shapes, load_translator
from regard.errors import CheckpointError, ConfigError, RegardError, UsageError
from regard.models.transformer import Transformer
from regard.text.tokenizer import Tokenizer
from tests.checkpoint.hf.test_sentencepiece import save_marian_tokenizers
from tests.checkpoint.samples import (
    random_model,
    random_sentences,
    read_multi30k,
    save,
    small_config,
    tokenizers,
    translate_greedily,
)
from tests.parts import CONFIGS, LOADERS, PARTS, Part, build, save_folder

PUBLISHED = {  # settings with which transformers has the base model of the table of parts
    "transformer": {},
    "bert": {"norm_placement": "post", "positions": "learned", "classifier_dropout": 0.0},
    "gpt": {"positions": "learned"},
}
CTRANSLATE2_VARIANTS: list[dict[str, Any]] = [
    {"norm_placement": "post", "output_bias": True, "activation": "silu"},
    {"norm_placement": "post", "share_embeddings": False, "tie_embeddings": False, "activation": "gelu"},
    {"norm_placement": "pre", "activation": "gelu_tanh", "scale_embedding": False},
    {"norm_placement": "pre", "share_embeddings": False, "positions": "learned"},
    {"norm_placement": "post", "positions": "none", "norm_eps": 1e-3, "activation": "tanh"},
]


def vocabulary_entries(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Tokens as the vocabulary spells them, which is how CTranslate2 takes and gives them."""
    return [tokenizer.backend.id_to_token(token_id) for token_id in ids]


@pytest.mark.parametrize("changes", CTRANSLATE2_VARIANTS)
def test_ctranslate2_gives_the_same_translations(tmp_path: Path, changes: dict[str, Any]) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    model = random_model(small_config(**changes))
    save(tmp_path / "ours", model)
    conversion = convert(tmp_path / "ours", tmp_path / "out", format="ctranslate2")
    assert conversion.model_type == "ctranslate2"
    trained = tokenizers(model.config.share_embeddings)
    source = trained["source"]
    target = trained["target"]
    sequences = [[*source.encode(text).ids, source.eos_id] for text in random_sentences("source", 100)]
    inputs = [vocabulary_entries(source, ids) for ids in sequences]
    translator = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    results = translator.translate_batch(inputs, beam_size=1, max_decoding_length=12)
    translations = translate_greedily(model, sequences, 12)
    expected = [vocabulary_entries(target, ids) for ids in translations]
    assert [result.hypotheses[0] for result in results] == expected
    assert len({tuple(ids) for ids in translations}) > 9, "different sources must have different translations"
    assert atomic.verify_folder(tmp_path / "out")


def test_models_that_a_format_cannot_express_are_rejected_with_the_reason(tmp_path: Path) -> None:
    save(tmp_path / "rotary", random_model(small_config(positions="rotary", hidden_size=44)))
    for target_format, message in (
        ("huggingface", "positions are rotary, not sinusoidal"),
        ("ctranslate2", "rotary positions"),
    ):
        with pytest.raises(UsageError, match=message):
            convert(tmp_path / "rotary", tmp_path / "out", format=target_format)
    save(tmp_path / "split", random_model(small_config(norm_placement="pre", share_embeddings=False)))
    with pytest.raises(UsageError, match="pre-norm model with separate or untied embeddings"):
        convert(tmp_path / "split", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def refusal(part: Part) -> str:
    """Pattern of a message that a format does not have a part: it says the setting and its value."""
    *_, (path, value) = part.settings.items()
    value_text = f"{value:g}" if isinstance(value, float) else str(value)
    name = path.removeprefix("stack.")
    return rf"(?i)cannot be written for \S+: (?=.*\b{name}\b)(?=.*\b{re.escape(value_text)}\b)"


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_transformers_gets_the_parts_that_it_has(tmp_path: Path, part: Part, family: str) -> None:
    tokenizer = tokenizers(shared=True)["source"]
    model = build(family, {**PUBLISHED[family], **part.settings}, vocab_size=tokenizer.vocab_size)
    save_folder(tmp_path / "ours", model, tokenizer)
    if family not in part.huggingface:
        with pytest.raises(UsageError, match=refusal(part)):
            convert(tmp_path / "ours", tmp_path / "out")
        assert not (tmp_path / "out").exists()
        return
    assert not convert(tmp_path / "ours", tmp_path / "out").model_type.startswith("regard")
    loaded = LOADERS[family](tmp_path / "out")
    assert loaded.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.weights[name], tensor), name


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_ctranslate2_gets_the_parts_that_it_has(tmp_path: Path, part: Part) -> None:
    pytest.importorskip("ctranslate2")
    tokenizer = tokenizers(shared=True)["source"]
    save_folder(tmp_path / "ours", build("transformer", part.settings, vocab_size=tokenizer.vocab_size), tokenizer)
    if part.ctranslate2:
        assert convert(tmp_path / "ours", tmp_path / "out", format="ctranslate2").model_type == "ctranslate2"
        return
    with pytest.raises(UsageError, match=refusal(part)):
        convert(tmp_path / "ours", tmp_path / "out", format="ctranslate2")
    assert not (tmp_path / "out").exists()


def test_unknown_formats_and_unusable_folders_are_named(tmp_path: Path) -> None:
    save(tmp_path / "ours", random_model(small_config()))
    with pytest.raises(ConfigError, match=r"did you mean huggingface\?"):
        convert(tmp_path / "ours", tmp_path / "out", format="hugginface")
    with pytest.raises(UsageError, match="exists and is not empty"):
        convert(tmp_path / "ours", tmp_path / "ours")
    with pytest.raises(CheckpointError, match="no such folder"):
        convert(tmp_path / "none", tmp_path / "out")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(
        CheckpointError, match=r"type 't5', which is not read: bert, .*albert, .*gpt2, .*marian, .* are"
    ):
        convert(tmp_path / "other", tmp_path / "out")


@pytest.mark.parametrize("target_format", ["huggingface", "regard"])
def test_a_converted_folder_is_the_same_model(tmp_path: Path, target_format: str) -> None:
    model = random_model(small_config(norm_placement="pre", output_bias=True))
    save(tmp_path / "ours", model, metadata={"alignment_head": {"head": 3}})
    conversion = convert(tmp_path / "ours", tmp_path / "out", format=target_format)
    assert conversion.model_type == "pegasus"
    loaded = load_translator(tmp_path / "out")
    assert loaded.config == model.config
    assert loaded.metadata == load_translator(tmp_path / "ours").metadata
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.weights[name], tensor), name
    assert (tmp_path / "out" / "README.md").read_text() == (tmp_path / "ours" / "README.md").read_text()


def save_older_marian(folder: Path) -> Any:
    """Save a Marian model as on the hub: pickled weights, SentencePiece files, decoding settings in config.json."""
    transformers = pytest.importorskip("transformers")
    save_marian_tokenizers(folder, "unigram")
    vocab_size = len(json.loads((folder / "vocab.json").read_text()))
    config = transformers.MarianConfig(
        vocab_size=vocab_size,
        d_model=22,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=31,
        decoder_ffn_dim=31,
        max_position_embeddings=80,
        scale_embedding=True,
        activation_function="swish",
        pad_token_id=vocab_size - 1,
        decoder_start_token_id=vocab_size - 1,
        eos_token_id=0,
        forced_eos_token_id=0,
    )
    torch.manual_seed(1)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "embed_positions" not in name:
                tensor.normal_(0, 0.5 if tensor.dim() > 1 else 0.15)
                tensor *= 4 if "encoder_attn" in name else 1
                tensor += name.endswith("norm.weight")
        model.model.shared.weight[-1] = 0
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    fields = config.to_dict() | {"num_beams": 4, "max_length": 80, "bad_words_ids": [[vocab_size - 1]]}
    (folder / "config.json").write_text(json.dumps(fields))
    return model


@pytest.mark.filterwarnings("ignore:Recommended")
def test_an_older_marian_folder_is_converted_with_equal_translations(tmp_path: Path) -> None:
    hf_model = save_older_marian(tmp_path / "old")
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianTokenizer

    with pytest.raises(CheckpointError, match="regard convert"):
        load_translator(tmp_path / "old")
    conversion = convert(tmp_path / "old", tmp_path / "new", format="regard")
    assert conversion.model_type == "marian"
    assert not conversion.report.missing
    loaded = load_translator(tmp_path / "new")
    assert loaded.decoding.beam == 4
    assert loaded.config.output_bias is True
    assert loaded.config.bos_id == loaded.target.vocab_size - 1
    texts = read_multi30k("test_2016_flickr.en.gz", 100)
    model = Transformer(loaded.config).eval()
    model.load_state_dict(loaded.weights)
    sequences = [[*ids, loaded.config.eos_id] for ids in loaded.source.encode_batch(texts)]
    translations = [loaded.target.decode(ids) for ids in translate_greedily(model, sequences, 12)]
    assert len(set(translations)) > 9, "different sources must have different translations"
    options = {"num_beams": 1, "max_length": 14, "bad_words_ids": [[loaded.config.pad_id]]}
    hf_tokenizer = MarianTokenizer.from_pretrained(tmp_path / "old")
    converted_model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "new").eval()
    converted_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "new")
    for generator, tokenizer in ((hf_model, hf_tokenizer), (converted_model, converted_tokenizer)):
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        assert batch["input_ids"][0][: len(sequences[0])].tolist() == sequences[0]
        with torch.no_grad():
            generated = generator.generate(batch["input_ids"], attention_mask=batch["attention_mask"], **options)
        assert tokenizer.batch_decode(generated, skip_special_tokens=True) == translations


class Canary:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def test_a_pickle_that_would_run_code_runs_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    save(folder, random_model(small_config(norm_placement="post")))
    (folder / "model.safetensors").unlink()
    (folder / atomic.MANIFEST).unlink()
    for content in ({"w": Canary(tmp_path / "canary")}, {"w": "text"}):
        torch.save(content, folder / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match="the pickled weights cannot be read") as caught:
            convert(folder, tmp_path / "out", format="regard")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "canary").exists()
    assert not (tmp_path / "out").exists()


def test_shards_of_pickled_weights_are_read_from_their_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    model = random_model(small_config(norm_placement="post"))
    save(folder, model)
    (folder / atomic.MANIFEST).unlink()
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for start, shard in enumerate(("pytorch_model-0.bin", "pytorch_model-1.bin")):
        shard_tensors = {name: tensors[name] for name in list(tensors)[start::2]}
        has_zip_format = start == 0  # the other shard has the format of older versions of torch
        torch.save(shard_tensors, folder / shard, _use_new_zipfile_serialization=has_zip_format)
        weight_map |= dict.fromkeys(shard_tensors, shard)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    convert(folder, tmp_path / "out", format="regard")
    loaded_weights = load_translator(tmp_path / "out").weights
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded_weights[name], tensor), name
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"w": "../x.bin"}}')
    with pytest.raises(CheckpointError, match="weight_map must name files of this folder"):
        convert(folder, tmp_path / "other", format="regard")


HOSTILE: list[tuple[str, Any]] = [
    ("config.json", {"auto_map": {"AutoModel": "evil.Model"}, "model_type": "evil"}),
    ("config.json", {"_target_": "os.system", "model_type": "marian", "d_model": "${oc.env:HOME}"}),
    ("config.json", b"!!python/object/apply:os.system [true]"),
    ("tokenizer.json", {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7}}),
    ("model.safetensors", b"\x80\x04cos\nsystem\n(S'true'\ntR."),
    ("model.safetensors", b"PK\x03\x04"),
]


@pytest.mark.parametrize(("name", "content"), HOSTILE)
def test_hostile_files_are_rejected(tmp_path: Path, name: str, content: Any) -> None:
    folder = tmp_path / "hostile"
    save(folder, random_model(small_config(norm_placement="post")))
    (folder / atomic.MANIFEST).unlink()
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / name).write_bytes(data)
    with pytest.raises(RegardError, match=re.escape(name)) as caught:
        convert(folder, tmp_path / "out", format="regard")
    assert "\n" not in str(caught.value)


def test_a_library_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "ours", random_model(small_config()))
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(UsageError, match=r"pip install 'regard\[convert\]'"):
        convert(tmp_path / "ours", tmp_path / "out", format="ctranslate2")


def test_shapes_are_computed_without_allocating_weights() -> None:
    config = small_config(norm_placement="post").override(
        {"hidden_size": 2**14, "encoder.feed_forward_size": 2**20, "decoder.num_heads": 16}
    )
    assert expected_shapes(config)["encoder.layers.1.feed_forward.up.weight"] == (2**20, 2**14)


def test_weights_of_another_folder_replace_those_of_the_folder(tmp_path: Path) -> None:
    model = random_model(small_config(norm_placement="post"), 4)
    save(tmp_path / "ours", model)
    tensors = load_file(tmp_path / "ours" / "model.safetensors")
    (tmp_path / "beside").mkdir()
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, tmp_path / "beside" / "model.safetensors")
    loaded = load_translator(tmp_path / "ours", weights_from=tmp_path / "beside")
    assert torch.equal(loaded.weights["token_embedding.weight"], model.state_dict()["token_embedding.weight"] + 1)
