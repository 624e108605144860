"""Conversion: for transformers and CTranslate2, from pickled folders, and of hostile ones."""

from __future__ import annotations

import json
import os
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
from tests.checkpoint.hf.test_sentencepiece import marian_folder
from tests.checkpoint.samples import (
    random_model,
    real_sentences,
    save,
    sentences,
    small_config,
    tokenizers,
    translate_greedily,
)

CTRANSLATE2: list[dict[str, Any]] = [
    {"norm": "after", "output_bias": True, "activation": "silu"},
    {"norm": "after", "share_embeddings": False, "tie_embeddings": False, "activation": "gelu"},
    {"norm": "before", "activation": "gelu_tanh", "scale_embedding": False},
    {"norm": "before", "share_embeddings": False, "positions": "learned"},
    {"norm": "after", "positions": "none", "norm_eps": 1e-3, "activation": "tanh"},
]


@pytest.mark.parametrize("changes", CTRANSLATE2)
def test_ctranslate2_gives_the_same_translations(tmp_path: Path, changes: dict[str, Any]) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    model = random_model(small_config(**changes))
    save(tmp_path / "ours", model)
    result = convert(tmp_path / "ours", tmp_path / "theirs", format="ctranslate2")
    assert result.model_type == "ctranslate2"
    source, target = tokenizers(model.config.share_embeddings).values()
    sequences = [[*source.encode(text).ids, source.eos_id] for text in sentences("source", 100)]
    subwords = [[source.backend.id_to_token(token_id) for token_id in ids] for ids in sequences]
    translator = ctranslate2.Translator(str(tmp_path / "theirs"), compute_type="float32", intra_threads=1)
    results = translator.translate_batch(subwords, beam_size=1, max_decoding_length=12)
    translations = translate_greedily(model, sequences, 12)
    assert [
        [target.backend.token_to_id(name) for name in translation.hypotheses[0]] for translation in results
    ] == translations
    assert len({tuple(ids) for ids in translations}) > 9, "different sources must have different translations"
    assert atomic.verify_folder(tmp_path / "theirs")


def test_what_cannot_be_expressed_is_rejected_with_the_reason(tmp_path: Path) -> None:
    save(tmp_path / "rotary", random_model(small_config(positions="rotary", hidden_size=44)))
    for target_format, message in (
        ("huggingface", "positions are rotary, not sinusoidal"),
        ("ctranslate2", "rotary positions"),
    ):
        with pytest.raises(UsageError, match=message):
            convert(tmp_path / "rotary", tmp_path / "out", format=target_format)
    save(tmp_path / "split", random_model(small_config(norm="before", share_embeddings=False)))
    with pytest.raises(UsageError, match="pre-norm model with separate or untied embeddings"):
        convert(tmp_path / "split", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
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
    model = random_model(small_config(norm="before", output_bias=True))
    save(tmp_path / "ours", model, metadata={"alignment_head": {"head": 3}})
    result = convert(tmp_path / "ours", tmp_path / "out", format=target_format)
    assert result.model_type == "pegasus"
    loaded = load_translator(tmp_path / "out")
    assert loaded.config == model.config
    assert loaded.metadata == load_translator(tmp_path / "ours").metadata
    assert all(torch.equal(tensor, loaded.weights[name]) for name, tensor in model.state_dict().items())
    assert (tmp_path / "out" / "README.md").read_text() == (tmp_path / "ours" / "README.md").read_text()


def save_older_marian(folder: Path) -> Any:
    """Marian model as on the hub: pickled weights, SentencePiece files, decoding settings in config.json."""
    transformers = pytest.importorskip("transformers")
    marian_folder(folder, "unigram")
    vocab_size = len(json.loads((folder / "vocab.json").read_text()))
    stacks = {}
    for side in ("encoder", "decoder"):
        stacks |= {f"{side}_{name}": value for name, value in SIZES.items()}
    tokens = {
        "pad_token_id": vocab_size - 1,
        "decoder_start_token_id": vocab_size - 1,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    }
    config = transformers.MarianConfig(
        vocab_size=vocab_size,
        d_model=22,
        max_position_embeddings=80,
        scale_embedding=True,
        activation_function="swish",
        **stacks,
        **tokens,
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


SIZES = {"layers": 2, "attention_heads": 2, "ffn_dim": 31}


@pytest.mark.filterwarnings("ignore:Recommended")
def test_an_older_marian_folder_is_converted_with_equal_translations(tmp_path: Path) -> None:
    hf_model = save_older_marian(tmp_path / "old")
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianTokenizer

    with pytest.raises(CheckpointError, match="regard convert"):
        load_translator(tmp_path / "old")
    result = convert(tmp_path / "old", tmp_path / "new", format="regard")
    assert result.model_type == "marian"
    assert not result.report.missing
    loaded = load_translator(tmp_path / "new")
    assert (loaded.decoding.beam, loaded.config.output_bias, loaded.config.bos_id) == (
        4,
        True,
        loaded.target.vocab_size - 1,
    )
    texts = real_sentences("test_2016_flickr.en.gz", 100)
    model = Transformer(loaded.config).eval()
    model.load_state_dict(loaded.weights)
    sequences = [[*row, loaded.config.eos_id] for row in loaded.source.encode_batch(texts)]
    translations = [loaded.target.decode(row) for row in translate_greedily(model, sequences, 12)]
    tokenizer = MarianTokenizer.from_pretrained(tmp_path / "old")
    options = {"num_beams": 1, "max_length": 14, "bad_words_ids": [[loaded.config.pad_id]]}
    reloaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "new").eval()
    for generator, hf_tokenizer in ((hf_model, tokenizer), (reloaded, AutoTokenizer.from_pretrained(tmp_path / "new"))):
        batch = hf_tokenizer(texts, padding=True, return_tensors="pt")
        assert batch["input_ids"][0][: len(sequences[0])].tolist() == sequences[0]
        with torch.no_grad():
            generated = generator.generate(batch["input_ids"], attention_mask=batch["attention_mask"], **options)
        assert hf_tokenizer.batch_decode(generated, skip_special_tokens=True) == translations
    assert len(set(translations)) > 9


class Canary:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def test_a_pickle_that_would_run_code_runs_nothing(tmp_path: Path) -> None:
    save(tmp_path / "folder", random_model(small_config(norm="after")))
    (tmp_path / "folder" / "model.safetensors").unlink()
    (tmp_path / "folder" / atomic.MANIFEST).unlink()
    for content in ({"w": Canary(tmp_path / "mark")}, {"w": "text"}):
        torch.save(content, tmp_path / "folder" / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match="the pickled weights cannot be read") as caught:
            convert(tmp_path / "folder", tmp_path / "out", format="regard")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "mark").exists()
    assert not (tmp_path / "out").exists()


def test_pickled_weights_in_several_files(tmp_path: Path) -> None:
    model = random_model(small_config(norm="after"))
    save(tmp_path / "folder", model)
    (tmp_path / "folder" / atomic.MANIFEST).unlink()
    tensors = load_file(tmp_path / "folder" / "model.safetensors")
    (tmp_path / "folder" / "model.safetensors").unlink()
    weight_map = {name: f"pytorch_model-{index % 2}.bin" for index, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        tensors_of_shard = {name: tensors[name] for name in tensors if weight_map[name] == shard}
        torch.save(
            tensors_of_shard, tmp_path / "folder" / shard, _use_new_zipfile_serialization=shard.endswith("0.bin")
        )
    (tmp_path / "folder" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    convert(tmp_path / "folder", tmp_path / "out", format="regard")
    loaded = load_translator(tmp_path / "out").weights
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in model.state_dict().items())
    (tmp_path / "folder" / "pytorch_model.bin.index.json").write_text('{"weight_map": {"w": "../x.bin"}}')
    with pytest.raises(CheckpointError, match="weight_map must name files of this folder"):
        convert(tmp_path / "folder", tmp_path / "other", format="regard")


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
    save(tmp_path / "x", random_model(small_config(norm="after")))
    (tmp_path / "x" / atomic.MANIFEST).unlink()
    (tmp_path / "x" / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(RegardError, match=name) as caught:
        convert(tmp_path / "x", tmp_path / "out", format="regard")
    assert "\n" not in str(caught.value)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "ours", random_model(small_config()))
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(UsageError, match=r"pip install 'regard\[convert\]'"):
        convert(tmp_path / "ours", tmp_path / "out", format="ctranslate2")


def test_shapes_are_computed_without_allocating_weights() -> None:
    config = small_config(norm="after").override(
        {"hidden_size": 2**14, "encoder.feed_forward_size": 2**20, "decoder.num_heads": 16}
    )
    assert expected_shapes(config)["encoder.layers.1.feed_forward.up.weight"] == (2**20, 2**14)


def test_weights_of_another_folder_replace_its_own(tmp_path: Path) -> None:
    model = random_model(small_config(norm="after"), 4)
    save(tmp_path / "ours", model)
    tensors = load_file(tmp_path / "ours" / "model.safetensors")
    (tmp_path / "beside").mkdir()
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, tmp_path / "beside" / "model.safetensors")
    loaded = load_translator(tmp_path / "ours", weights_from=tmp_path / "beside")
    assert torch.equal(loaded.weights["token_embedding.weight"], model.state_dict()["token_embedding.weight"] + 1)
