"""Pipelines from folders, and training from Python."""

from __future__ import annotations

import pytest

import regard
from regard.checkpoint.model_dir import save_translator
from regard.config.data import TokenizerConfig
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.pipeline.load import load
from regard.pipeline.loaders import train
from regard.text.train import train_tokenizer

TEXTS = ["dog cat tree. Bird?", "stone river garden."]


@pytest.fixture(scope="module")
def folder(pipeline, tmp_path_factory):
    return save_pipeline(pipeline, tmp_path_factory.mktemp("models") / "one")


def save_pipeline(pipeline, path, tokenizer=None):
    model = pipeline.models[0]
    shared_tokenizer = tokenizer or pipeline.source
    save_translator(
        path,
        model.config,
        model.state_dict(),
        tokenizers={"source": shared_tokenizer, "target": shared_tokenizer},
        decoding=pipeline.decoding,
        metadata={
            "max_length": pipeline.max_source_length,
            "alignment_head": {"site": "decoder.1.cross", "head": 0, "shift": 1},
        },
        card="# toy",
    )
    return path


def test_a_loaded_model_translates_the_same(pipeline, folder):
    loaded = load(folder)
    assert loaded.decoding == pipeline.decoding and loaded.max_source_length == pipeline.max_source_length
    assert loaded.recorder.alignment_head is not None and loaded.recorder.alignment_head.shift == 1
    for before, after in zip(pipeline.translate(TEXTS), loaded.translate(TEXTS), strict=True):
        assert before == after and before.score == pytest.approx(after.score, abs=1e-5)
    assert isinstance(regard.load(str(folder))("dog."), regard.Translation)


def test_bf16_translates_too(pipeline, folder):
    translation = load(folder, precision="bf16")("dog cat.")
    assert translation == pipeline("dog cat.")
    assert translation.score == pytest.approx(pipeline("dog cat.").score, abs=0.05)
    assert translation.alignment


def test_several_folders_form_an_ensemble(folder):
    ensemble = load([folder, folder])
    assert len(ensemble.models) == 2 == len(load(folder, ensemble=[folder]).models)
    assert list(map(str, ensemble.translate(TEXTS))) == list(map(str, load(folder).translate(TEXTS)))


def test_what_cannot_be_loaded_is_rejected(pipeline, folder, tmp_path):
    other_tokenizer = train_tokenizer(
        ["dog cat tree"] * 3, TokenizerConfig(kind="bpe", vocab_size=pipeline.source.vocab_size)
    )
    other_folder = save_pipeline(pipeline, tmp_path / "strange", other_tokenizer)
    with pytest.raises(UsageError, match="another source tokenizer"):
        load([folder, other_folder])
    with pytest.raises(CheckpointError, match="no such folder"):
        load(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="precision must be one of float32, bf16"):
        load(folder, precision="float8")
    with pytest.raises(UsageError, match="cannot be put on the device 'nowhere'"):
        load(folder, device="nowhere")
    with pytest.raises(UsageError, match="at least one folder"):
        load([])


def test_training_from_python(toy, tmp_path):
    pairs = toy.pairs(300, seed=4)
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{left}\t{right}\n" for left, right in pairs), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"unknown setting 'stepps' \(did you mean steps\?\)"):
        train("translate", data, out=tmp_path / "run", stepps=3)
    stack = {"num_layers": 1, "num_heads": 2, "feed_forward_size": 32}
    trained = train(
        "translate",
        data,
        out=tmp_path / "run",
        steps=4,
        preset="custom",
        model={"hidden_size": 16, "encoder": stack, "decoder": stack},
        threads=1,
        precision="float32",
        decoding__beam=2,
    )
    assert trained.decoding.beam == 2 and trained.recorder.alignment_head is not None
    assert isinstance(trained("dog."), str)
