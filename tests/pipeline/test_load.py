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
    return saved(pipeline, tmp_path_factory.mktemp("models") / "one")


def saved(pipeline, place, tokenizer=None):
    model, words = pipeline.models[0], tokenizer or pipeline.source
    save_translator(
        place,
        model.config,
        model.state_dict(),
        tokenizers={"source": words, "target": words},
        decoding=pipeline.decoding,
        task={"max_length": pipeline.max_source_length, "align": {"site": "decoder.1.cross", "head": 0, "shift": 1}},
        card="# toy",
    )
    return place


def test_a_loaded_model_says_the_same(pipeline, folder):
    again = load(folder)
    assert again.decoding == pipeline.decoding and again.max_source_length == pipeline.max_source_length
    assert again.recorder.alignment_head is not None and again.recorder.alignment_head.shift == 1
    for before, after in zip(pipeline.translate(TEXTS), again.translate(TEXTS), strict=True):
        assert before == after and before.score == pytest.approx(after.score, abs=1e-5)
    assert isinstance(regard.load(str(folder))("dog."), regard.Translation)


def test_half_precision_translates_too(pipeline, folder):
    said = load(folder, precision="bf16")("dog cat.")
    assert said == pipeline("dog cat.")
    assert said.score == pytest.approx(pipeline("dog cat.").score, abs=0.05)
    assert said.alignment


def test_several_folders_decide_together(folder):
    together = load([folder, folder])
    assert len(together.models) == 2 == len(load(folder, ensemble=[folder]).models)
    assert list(map(str, together.translate(TEXTS))) == list(map(str, load(folder).translate(TEXTS)))


def test_what_cannot_be_opened_is_refused(pipeline, folder, tmp_path):
    other = train_tokenizer(["dog cat tree"] * 3, TokenizerConfig(kind="bpe", vocab_size=pipeline.source.vocab_size))
    strange = saved(pipeline, tmp_path / "strange", other)
    with pytest.raises(UsageError, match="another source tokenizer"):
        load([folder, strange])
    with pytest.raises(CheckpointError, match="no such folder"):
        load(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="precision must be one of float32, bf16"):
        load(folder, precision="float8")
    with pytest.raises(UsageError, match="cannot be put on the device 'nowhere'"):
        load(folder, device="nowhere")
    with pytest.raises(UsageError, match="at least one folder"):
        load([])


def test_training_from_python(toy, tmp_path):
    rows = toy.pairs(300, seed=4)
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{left}\t{right}\n" for left, right in rows), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"unknown setting 'stepps' \(did you mean steps\?\)"):
        train("translate", data, out=tmp_path / "run", stepps=3)
    stack = {"num_layers": 1, "num_heads": 2, "feed_forward_size": 32}
    made = train(
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
    assert made.decoding.beam == 2 and made.recorder.alignment_head is not None
    assert isinstance(made("dog."), str)
