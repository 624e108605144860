"""Folders of translation models: bit-exact round trips, damaged files, exchange with transformers."""

from __future__ import annotations

import json
import re
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
from tests.checkpoint.samples import (
    compute_logits,
    random_model,
    random_sentences,
    save,
    small_config,
    tokenizers,
    translate_greedily,
)

VARIANTS: list[dict[str, Any]] = [
    {"norm_placement": "post", "output_bias": True, "activation": "silu"},
    {"norm_placement": "post", "share_embeddings": False, "activation": "gelu"},
    {"norm_placement": "post", "tie_embeddings": False, "scale_embedding": False},
    {"norm_placement": "pre"},
    {"norm_placement": "pre", "output_bias": True, "activation": "quick_gelu"},
    {"norm_placement": "pre", "share_embeddings": False, "tie_embeddings": False, "positions": "learned"},
    {"norm_placement": "post", "positions": "none"},
    {"norm_placement": "pre", "positions": "relative"},
    {"norm_placement": "post", "positions": "alibi"},
]


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file and remove the manifest, which would report the change as damage."""
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | changes))
    (path.parent / atomic.MANIFEST).unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def are_equal(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Whether both have the same names and bit-identical values."""
    return tensors.keys() == expected.keys() and all(torch.equal(tensors[name], expected[name]) for name in expected)


def relative_error(logits: torch.Tensor, expected: torch.Tensor) -> float:
    return float((logits - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("changes", VARIANTS)
def test_a_model_is_read_back_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = random_model(small_config(**changes))
    decoding = DecodingConfig(beam=3, length_penalty=0.7, coverage_penalty=0.2, max_length_b=11)
    save(tmp_path, model, decoding=decoding, metadata={"alignment_head": {"head": 2}})
    loaded = load_translator(tmp_path)
    assert loaded.config == model.config
    assert loaded.decoding == decoding
    assert are_equal(loaded.weights, model.state_dict())
    trained = tokenizers(model.config.share_embeddings)
    assert (loaded.source.digest, loaded.target.digest) == (trained["source"].digest, trained["target"].digest)
    assert (loaded.metadata["task"], loaded.metadata["alignment_head"]) == ("translate", {"head": 2})
    assert (tmp_path / "target_tokenizer.json").exists() == (not model.config.share_embeddings)


def test_saving_again_leaves_no_trace_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("kept")
    save(tmp_path, random_model(small_config(norm_placement="post", share_embeddings=False), 1))
    second = random_model(small_config(norm_placement="pre"), 2)
    save(tmp_path, second)
    assert torch.equal(
        load_translator(tmp_path).weights["token_embedding.weight"], second.state_dict()["token_embedding.weight"]
    )
    assert not (tmp_path / "target_tokenizer.json").exists()
    assert (tmp_path / "log.jsonl").exists()


def test_a_folder_can_be_read_while_it_is_replaced(tmp_path: Path) -> None:
    models = [random_model(small_config(norm_placement="post"), seed) for seed in range(2)]
    save(tmp_path, models[0])
    is_done = threading.Event()

    def save_alternately() -> None:
        count = 0
        while not is_done.is_set():
            count += 1
            save(tmp_path, models[count % 2])

    writer = threading.Thread(target=save_alternately)
    writer.start()
    num_reads = [0, 0]  # of each model
    try:
        while sum(num_reads) < 30 or min(num_reads) < 3:
            assert writer.is_alive()
            weights = load_translator(tmp_path).weights
            is_read = [are_equal(weights, model.state_dict()) for model in models]
            assert sorted(is_read) == [False, True]
            num_reads[is_read.index(True)] += 1
    finally:
        is_done.set()
        writer.join()


def test_weights_of_another_config_are_not_written(tmp_path: Path) -> None:
    model = random_model(small_config(tie_embeddings=False))
    model.config = small_config()
    with pytest.raises(ValueError, match="lm_head.weight"):
        save(tmp_path, model)
    assert list(tmp_path.iterdir()) == []


FILES = ["config.json", "model.safetensors", "tokenizer.json", "target_tokenizer.json", "generation_config.json"]


@pytest.mark.parametrize("name", [*FILES, "task.json", "MANIFEST.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path, random_model(small_config(norm_placement="post", share_embeddings=False)))
    data = bytearray((tmp_path / name).read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=re.escape(name)):
        load_translator(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path, random_model(small_config()))
    (tmp_path / name).unlink()
    (tmp_path / atomic.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=re.escape(name)):
        load_translator(tmp_path)


def test_a_changed_card_is_no_damage(tmp_path: Path) -> None:
    model = random_model(small_config())
    save(tmp_path, model)
    (tmp_path / "README.md").write_text("# Another card\n")
    assert load_translator(tmp_path).config == model.config


def test_a_folder_that_holds_no_translator_is_rejected_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        load_translator(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"no config.json in it"):
        load_translator(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has not written its model yet"):
        load_translator(tmp_path)
    save(tmp_path, random_model(small_config(norm_placement="post")))
    edit(tmp_path / "task.json", version=99)
    with pytest.raises(CheckpointError, match=r"version 99.*newer Regard"):
        load_translator(tmp_path)
    edit(tmp_path / "task.json", version=1)
    with pytest.raises(CheckpointError, match=r"task.json: version 1; .* train or convert the model again"):
        load_translator(tmp_path)
    edit(tmp_path / "task.json", version=2, task="classify")
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
    save(tmp_path, random_model(small_config(norm_placement="post")))
    edit(tmp_path / "config.json", encoder_ffn_dim=2**23)
    with pytest.raises(CheckpointError, match=r"fc1.weight has shape \[31, 22\], config.json asks for \[8388608, 22\]"):
        load_translator(tmp_path)


def test_values_that_are_not_finite_are_rejected(tmp_path: Path) -> None:
    model = random_model(small_config(norm_placement="post"))
    model.encoder.layers[0].feed_forward.up.bias.data[3] = float("inf")  # type: ignore[union-attr,index]
    save(tmp_path, model)
    with pytest.raises(CheckpointError, match=r"fc1.bias holds values that are not finite"):
        load_translator(tmp_path)


def test_a_tokenizer_larger_than_the_vocabulary_is_rejected(tmp_path: Path) -> None:
    save(tmp_path, random_model(small_config(norm_placement="post", share_embeddings=False)))
    shutil.copy(tmp_path / "target_tokenizer.json", tmp_path / "tokenizer.json")
    (tmp_path / atomic.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="the source tokenizer has 307 tokens, but config.json says 293"):
        load_translator(tmp_path)


@pytest.mark.parametrize("weight_map", [{}, {"w": "../model.safetensors"}, {"w": 3}, [], "x"])
def test_an_index_names_files_of_its_folder_only(tmp_path: Path, weight_map: Any) -> None:
    save(tmp_path, random_model(small_config(norm_placement="post")))
    (tmp_path / atomic.MANIFEST).unlink()
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"index.json: weight_map must name files of this folder"):
        load_translator(tmp_path)


def test_shards_in_bf16_with_older_names_and_without_our_files_are_read(tmp_path: Path) -> None:
    model = random_model(small_config(norm_placement="post", output_bias=True))
    save(tmp_path, model)
    for name in (atomic.MANIFEST, "task.json", "generation_config.json"):
        (tmp_path / name).unlink()
    edit(tmp_path / "config.json", num_beams=6)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    older = {name.replace("norm.weight", "norm.gamma"): tensor.bfloat16() for name, tensor in tensors.items()}
    weight_map = {}
    for start, shard in enumerate(("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")):
        names = list(older)[start::2]
        save_file({name: older[name] for name in names}, tmp_path / shard)
        weight_map |= dict.fromkeys(names, shard)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    loaded = load_translator(tmp_path)
    assert loaded.metadata == {}
    assert loaded.decoding.beam == 6
    for name, tensor in model.state_dict().items():
        assert loaded.weights[name].dtype == torch.float32
        assert torch.equal(loaded.weights[name], tensor.bfloat16().float()), name


def save_hf_model(folder: Path, **changes: Any) -> Any:
    """Build a small Marian or Pegasus model and save it by transformers, with a tokenizer."""
    transformers = pytest.importorskip("transformers")
    family = changes.pop("family")
    tokenizer = tokenizers(True)["source"]
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2, "decoder_attention_heads": 11}
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1}
    dimensions = {"encoder_ffn_dim": 31, "decoder_ffn_dim": 37, "d_model": 22, "max_position_embeddings": 61}
    config_class = getattr(transformers, f"{family}Config")
    config = config_class(vocab_size=tokenizer.vocab_size, **sizes, **dimensions, **tokens, **changes)
    torch.manual_seed(3)
    classes = {"Marian": "MarianMTModel", "Pegasus": "PegasusForConditionalGeneration"}
    model = getattr(transformers, classes[family])(config).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "embed_positions" not in name:
                tensor.normal_(0, 0.3)
            if name.endswith("layer_norm.weight"):
                tensor += 1
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.to_json())
    return model


HF_VARIANTS: list[dict[str, Any]] = [
    {"family": "Marian", "activation_function": "swish", "scale_embedding": True},
    {"family": "Marian", "activation_function": "gelu"},
    {"family": "Marian", "decoder_vocab_size": 307, "share_encoder_decoder_embeddings": False},
    {"family": "Pegasus", "activation_function": "relu", "scale_embedding": True},
]


@pytest.mark.parametrize("changes", HF_VARIANTS)
def test_a_folder_of_transformers_gives_the_same_logits_and_is_written_back_unchanged(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    hf_folder = tmp_path / "hf"
    hf_model = save_hf_model(hf_folder, **changes)
    has_separate_vocabularies = changes.get("share_encoder_decoder_embeddings") is False
    if has_separate_vocabularies:
        (hf_folder / "target_tokenizer.json").write_text(tokenizers(False)["target"].to_json())
    loaded = load_translator(hf_folder)
    model = Transformer(loaded.config).eval()
    model.load_state_dict(loaded.weights)
    for source, target in zip(random_sentences("source", 20), random_sentences("target", 20), strict=True):
        source_ids = [*loaded.source.encode(source).ids, loaded.config.eos_id]
        target_ids = [loaded.config.bos_id, *loaded.target.encode(target).ids]
        expected = compute_hf_logits(hf_model, source_ids, target_ids)
        assert expected.isfinite().all()
        assert relative_error(compute_logits(model, source_ids, target_ids), expected) < 1e-5
    our_folder = tmp_path / "ours"
    save(
        our_folder,
        model,
        tokenizers={"source": loaded.source, "target": loaded.target},
        original_config=loaded.hf_config,
    )
    assert read_json(our_folder / "config.json") == read_json(hf_folder / "config.json")
    hf_weights = load_file(hf_folder / "model.safetensors")
    our_weights = load_file(our_folder / "model.safetensors")
    assert our_weights.keys() == hf_weights.keys()
    for name, tensor in hf_weights.items():
        if "embed_positions" in name:
            assert torch.allclose(our_weights[name], tensor, atol=1e-6, rtol=0), name
        else:
            assert torch.equal(our_weights[name], tensor), name


@torch.no_grad()
def compute_hf_logits(hf_model: Any, source_ids: list[int], target_ids: list[int]) -> torch.Tensor:
    output = hf_model(input_ids=torch.tensor([source_ids]), decoder_input_ids=torch.tensor([target_ids]))
    logits: torch.Tensor = output.logits[0]
    return logits


@pytest.mark.parametrize("changes", [changes for changes in VARIANTS if "positions" not in changes])
def test_transformers_opens_our_folder_and_generates_the_same_tokens(tmp_path: Path, changes: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    model = random_model(small_config(**changes))
    save(tmp_path, model, decoding=DecodingConfig(beam=1))
    hf_model, loading_info = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    hf_model.eval()
    model_type, _ = encoder_decoders.translator_model_type(model.config)
    assert type(hf_model).__name__ == encoder_decoders.ARCHITECTURES[model_type]
    assert not any(loading_info.values()), loading_info
    tokenizer = tokenizers(model.config.share_embeddings)["source"]
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = random_sentences("source", 100)
    sequences = [[*tokenizer.encode(text).ids, tokenizer.eos_id] for text in texts]
    assert hf_tokenizer(texts)["input_ids"] == sequences
    batch = hf_tokenizer(texts, padding=True, return_tensors="pt")
    translations = translate_greedily(model, sequences, 12)
    with torch.no_grad():  # transformers counts the start and the end token
        generated = hf_model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_length=14)
    generated_ids = [row[1 : row.index(model.config.eos_id, 1)] for row in generated.tolist()]
    assert generated_ids == translations
    assert len({tuple(ids) for ids in translations}) > 9, "different sources must have different translations"
    target_ids = [model.config.bos_id, *translations[0]]
    expected = compute_hf_logits(hf_model, sequences[0], target_ids)
    assert relative_error(compute_logits(model, sequences[0], target_ids), expected) < 1e-4
