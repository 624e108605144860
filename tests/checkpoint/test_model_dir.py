from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.checkpoint import atomic
from regard.checkpoint.hf import encoder_decoders
from regard.checkpoint.model_dir import load_translator
from regard.config.inference import DecodingConfig
from regard.errors import CheckpointError
from regard.models.transformer import Transformer
from tests.checkpoint.samples import greedy, lively, logits, save, sentences, small_config, tokenizers

VARIANTS: list[dict[str, Any]] = [
    {"norm": "after", "output_bias": True, "activation": "silu"},
    {"norm": "after", "share_embeddings": False, "activation": "gelu"},
    {"norm": "after", "tie_embeddings": False, "scale_embedding": False},
    {"norm": "before"},
    {"norm": "before", "output_bias": True, "activation": "quick_gelu"},
    {"norm": "before", "share_embeddings": False, "tie_embeddings": False, "positions": "learned"},
    {"norm": "after", "positions": "none"},
]


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file, and forget the manifest as one who meant it would."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    (path.parent / atomic.MANIFEST).unlink(missing_ok=True)


@pytest.mark.parametrize("changes", VARIANTS)
def test_a_model_comes_back_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = lively(small_config(**changes))
    decoding = DecodingConfig(beam=3, length_penalty=0.7, coverage_penalty=0.2, max_length_b=11)
    save(tmp_path, model, decoding=decoding, task={"align": {"head": 2}})
    read = load_translator(tmp_path)
    assert (read.config, read.decoding) == (model.config, decoding)
    assert read.weights.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in read.weights.items())
    made = tokenizers(model.config.share_embeddings)
    assert (read.source.digest, read.target.digest) == (made["source"].digest, made["target"].digest)
    assert (read.task["task"], read.task["align"]) == ("translate", {"head": 2})
    assert (tmp_path / "target_tokenizer.json").exists() == (not model.config.share_embeddings)


def test_saving_again_leaves_no_trace_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("kept")
    save(tmp_path, lively(small_config(norm="after", share_embeddings=False), 1))
    second = lively(small_config(norm="before"), 2)
    save(tmp_path, second)
    assert torch.equal(load_translator(tmp_path).weights["words.weight"], second.state_dict()["words.weight"])
    assert not (tmp_path / "target_tokenizer.json").exists()
    assert (tmp_path / "log.jsonl").exists()


def test_a_folder_can_be_read_while_it_is_replaced(tmp_path: Path) -> None:
    models = [lively(small_config(norm="after"), seed) for seed in range(2)]
    save(tmp_path, models[0])
    done = threading.Event()

    def replace() -> None:
        number = 0
        while not done.is_set():
            number += 1
            save(tmp_path, models[number % 2])

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(30):
            weights = load_translator(tmp_path).weights
            assert any(
                all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in weights.items())
                for model in models
            )
    finally:
        done.set()
        writer.join()


def test_weights_of_another_config_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="output.weight"):
        save_of = lively(small_config(tie_embeddings=False))
        save_of.config = small_config()
        save(tmp_path, save_of)


NAMES = ["config.json", "model.safetensors", "tokenizer.json", "target_tokenizer.json", "generation_config.json"]


@pytest.mark.parametrize("name", [*NAMES, "task.json", "MANIFEST.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path, lively(small_config(norm="after", share_embeddings=False)))
    data = bytearray((tmp_path / name).read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=name):
        load_translator(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path, lively(small_config()))
    (tmp_path / name).unlink()
    (tmp_path / atomic.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_translator(tmp_path)


def test_a_changed_card_is_no_damage(tmp_path: Path) -> None:
    save(tmp_path, lively(small_config()))
    (tmp_path / "README.md").write_text("# Better words\n")
    load_translator(tmp_path)


def test_folders_of_other_kinds_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        load_translator(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"no config.json in it"):
        load_translator(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has not written its model yet"):
        load_translator(tmp_path)
    save(tmp_path, lively(small_config(norm="after")))
    edit(tmp_path / "task.json", version=99)
    with pytest.raises(CheckpointError, match=r"version 99.*newer Regard"):
        load_translator(tmp_path)
    edit(tmp_path / "task.json", version=1, task="classify")
    with pytest.raises(CheckpointError, match="a model for the task 'classify'; one for 'translate'"):
        load_translator(tmp_path)
    (tmp_path / "task.json").unlink()
    edit(tmp_path / "config.json", model_type="bert")
    with pytest.raises(CheckpointError, match="'bert'"):
        load_translator(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    edit(tmp_path / "config.json", model_type="marian")
    with pytest.raises(CheckpointError, match=r"regard convert .* --to regard"):
        load_translator(tmp_path)


def test_shapes_are_compared_before_weights_are_read(tmp_path: Path) -> None:
    save(tmp_path, lively(small_config(norm="after")))
    edit(tmp_path / "config.json", encoder_ffn_dim=2**23)
    with pytest.raises(CheckpointError, match=r"fc1.weight has shape \[31, 22\], config.json asks for \[8388608, 22\]"):
        load_translator(tmp_path)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = lively(small_config(norm="after"))
    model.encoder.blocks[0].feedforward.inner.bias.data[3] = float("inf")  # type: ignore[union-attr,index]
    save(tmp_path, model)
    with pytest.raises(CheckpointError, match=r"fc1.bias holds values that are not finite"):
        load_translator(tmp_path)


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path: Path) -> None:
    save(tmp_path, lively(small_config(norm="after", share_embeddings=False)))
    shutil.copy(tmp_path / "target_tokenizer.json", tmp_path / "tokenizer.json")
    (tmp_path / atomic.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="the source tokenizer has 307 tokens, but config.json says 293"):
        load_translator(tmp_path)


@pytest.mark.parametrize("names", [{}, {"w": "../model.safetensors"}, {"w": 3}, [], "x"])
def test_an_index_names_files_of_its_folder_only(tmp_path: Path, names: Any) -> None:
    save(tmp_path, lively(small_config(norm="after")))
    (tmp_path / atomic.MANIFEST).unlink()
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(CheckpointError, match=r"index.json: weight_map must name files of this folder"):
        load_translator(tmp_path)


def test_several_weight_files_half_precision_and_old_names(tmp_path: Path) -> None:
    model = lively(small_config(norm="after", output_bias=True))
    save(tmp_path, model)
    (tmp_path / atomic.MANIFEST).unlink()
    for name in ("task.json", "generation_config.json"):
        (tmp_path / name).unlink()
    edit(tmp_path / "config.json", num_beams=6)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    old = {name.replace("norm.weight", "norm.gamma"): tensor.bfloat16() for name, tensor in tensors.items()}
    parts = [dict(list(old.items())[part::2]) for part in (0, 1)]
    shards = [f"model-0000{part + 1}-of-00002.safetensors" for part in (0, 1)]
    for shard, part in zip(shards, parts, strict=True):
        save_file(part, tmp_path / shard)
    placed = {name: shard for shard, part in zip(shards, parts, strict=True) for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    read = load_translator(tmp_path)
    assert (read.task, read.decoding.beam) == ({}, 6)
    for name, tensor in model.state_dict().items():
        assert read.weights[name].dtype == torch.float32
        assert torch.equal(read.weights[name], tensor.bfloat16().float()), name


def reference(folder: Path, **changes: Any) -> Any:
    """A small Marian or Pegasus model made and saved by transformers itself, its tokenizer beside it."""
    transformers = pytest.importorskip("transformers")
    kind = changes.pop("kind")
    made = tokenizers(True)["source"]
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2, "decoder_attention_heads": 11}
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1}
    widths = {"encoder_ffn_dim": 31, "decoder_ffn_dim": 37, "d_model": 22, "max_position_embeddings": 61}
    config = getattr(transformers, f"{kind}Config")(vocab_size=made.vocab_size, **sizes, **widths, **tokens, **changes)
    torch.manual_seed(3)
    names = {"Marian": "MarianMTModel", "Pegasus": "PegasusForConditionalGeneration"}
    model = getattr(transformers, names[kind])(config).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "embed_positions" not in name:
                tensor.normal_(0, 0.3)
            if name.endswith("layer_norm.weight"):
                tensor += 1
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(made.to_json())
    return model


IMPORTED: list[dict[str, Any]] = [
    {"kind": "Marian", "activation_function": "swish", "scale_embedding": True},
    {"kind": "Marian", "activation_function": "gelu"},
    {"kind": "Marian", "decoder_vocab_size": 307, "share_encoder_decoder_embeddings": False},
    {"kind": "Pegasus", "activation_function": "relu", "scale_embedding": True},
]


@pytest.mark.parametrize("changes", IMPORTED)
def test_a_folder_of_transformers_gives_the_same_logits_and_goes_back_unchanged(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    theirs = reference(tmp_path / "theirs", **changes)
    separate = changes.get("share_encoder_decoder_embeddings") is False
    if separate:
        (tmp_path / "theirs" / "target_tokenizer.json").write_text(tokenizers(False)["target"].to_json())
    read = load_translator(tmp_path / "theirs")
    ours = Transformer(read.config).eval()
    ours.load_state_dict(read.weights)
    worst = 0.0
    for source, target in zip(sentences("source", 20), sentences("target", 20), strict=True):
        given = [*read.source.encode(source).ids, read.config.eos_id]
        wanted = [read.config.bos_id, *read.target.encode(target).ids]
        with torch.no_grad():
            expected = theirs(input_ids=torch.tensor([given]), decoder_input_ids=torch.tensor([wanted])).logits[0]
        assert expected.isfinite().all()
        worst = max(worst, float((logits(ours, given, wanted) - expected).abs().max() / expected.abs().max()))
    assert worst < 1e-5
    save(tmp_path / "back", ours, tokenizers={"source": read.source, "target": read.target}, fields=read.hf_config)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == json.loads(
        (tmp_path / "theirs" / "config.json").read_text()
    )
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name], atol=1e-6, rtol=0) for name in before)
    assert all(torch.equal(before[name], after[name]) for name in before if "embed_positions" not in name)


@pytest.mark.parametrize("changes", [one for one in VARIANTS if "positions" not in one])
def test_transformers_opens_our_folder_and_writes_the_same_tokens(tmp_path: Path, changes: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    model = lively(small_config(**changes))
    save(tmp_path, model, decoding=DecodingConfig(beam=1))
    theirs, found = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    theirs.eval()
    assert (
        type(theirs).__name__ == encoder_decoders.ARCHITECTURES[encoder_decoders.translator_model_type(model.config)[0]]
    )
    assert not any(found.values()), found
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    made = tokenizers(model.config.share_embeddings)
    texts = sentences("source", 100)
    rows = [[*made["source"].encode(text).ids, made["source"].eos_id] for text in texts]
    assert tokenizer(texts)["input_ids"] == rows
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    ours = greedy(model, rows, 12)
    with torch.no_grad():
        said = theirs.generate(**inputs, max_length=14)[:, 1:].tolist()  # the start and the end count there
    assert [row[: row.index(model.config.eos_id)] for row in said] == ours
    assert len({tuple(row) for row in ours}) > 9, "the outputs must tell the sources apart"
    target = [model.config.bos_id, *ours[0]]
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([rows[0]]), decoder_input_ids=torch.tensor([target])).logits[0]
    assert float((logits(model, rows[0], target) - expected).abs().max() / expected.abs().max()) < 1e-4
