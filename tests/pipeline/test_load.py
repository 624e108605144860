"""Pipelines from folders, and training from Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import regard
from regard.checkpoint.model_dir import save_translator
from regard.config.data import TokenizerConfig
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.pipeline.load import load, load_embedder
from regard.pipeline.loaders import train
from regard.pipeline.translation import TranslationPipeline
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer
from tests.encoders import saved_encoder
from tests.pipeline.conftest import Toy

TEXTS = ["dog cat tree. Bird?", "stone river garden."]


@pytest.fixture(scope="module")
def folder(pipeline: TranslationPipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "toy"
    save_pipeline(pipeline, path, pipeline.source)
    return path


def save_pipeline(pipeline: TranslationPipeline, path: Path, tokenizer: Tokenizer) -> None:
    """Save the model of a pipeline with a tokenizer for both sides."""
    model = pipeline.torch_models()[0]
    save_translator(
        path,
        model.config,
        model.state_dict(),
        tokenizers={"source": tokenizer, "target": tokenizer},
        decoding=pipeline.decoding,
        metadata={
            "max_length": pipeline.max_source_length,
            "alignment_head": {"site": "decoder.1.cross", "head": 0, "shift": 1},
        },
        card="# toy",
    )


def load_translation_pipeline(folder: Path | list[Path], **options: object) -> TranslationPipeline:
    loaded = load(folder, **options)  # type: ignore[arg-type]
    assert isinstance(loaded, TranslationPipeline)
    return loaded


def test_a_loaded_model_gives_the_same_translations(pipeline: TranslationPipeline, folder: Path) -> None:
    loaded = load_translation_pipeline(folder)
    assert loaded.decoding == pipeline.decoding
    assert loaded.max_source_length == pipeline.max_source_length
    assert loaded.recorder.alignment_head is not None
    assert loaded.recorder.alignment_head.shift == 1
    for expected, translation in zip(pipeline.translate(TEXTS), loaded.translate(TEXTS), strict=True):
        assert translation == expected
        assert translation.score == pytest.approx(expected.score, abs=1e-5)
    assert isinstance(regard.load(str(folder))("dog."), regard.Translation)  # type: ignore[operator]


def test_bf16_gives_the_same_translation_with_nearly_the_same_score(
    pipeline: TranslationPipeline, folder: Path
) -> None:
    translation = load_translation_pipeline(folder, precision="bf16")("dog cat.")
    expected = pipeline("dog cat.")
    assert translation == expected
    assert translation.score == pytest.approx(expected.score, abs=0.05)
    assert translation.alignment


def test_several_folders_form_an_ensemble(folder: Path) -> None:
    single = load_translation_pipeline(folder)
    ensemble = load_translation_pipeline([folder, folder])
    assert len(ensemble.backends) == 2
    assert len(load_translation_pipeline(folder, ensemble=[folder]).backends) == 2
    assert ensemble.translate(TEXTS) == single.translate(TEXTS)


def test_folders_and_options_that_cannot_be_loaded_are_rejected(
    pipeline: TranslationPipeline, folder: Path, tmp_path: Path
) -> None:
    tokenizer_config = TokenizerConfig(kind="bpe", vocab_size=pipeline.source.vocab_size)
    save_pipeline(pipeline, tmp_path / "other", train_tokenizer(["dog cat tree"] * 3, tokenizer_config))
    with pytest.raises(UsageError, match="another source tokenizer"):
        load([folder, tmp_path / "other"])
    with pytest.raises(CheckpointError, match="no such folder"):
        load(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="precision must be one of float32, bf16"):
        load(folder, precision="float8")
    with pytest.raises(UsageError, match="cannot be put on the device 'nowhere'"):
        load(folder, device="nowhere")
    with pytest.raises(UsageError, match="at least one folder"):
        load([])


def test_a_task_selects_another_use_of_a_model(tmp_path: Path) -> None:
    encoder = saved_encoder(tmp_path / "bert", ["two dogs run", "a cat sleeps"])
    embeddings = load(encoder, task="embed").embed(["two dogs run"]).vectors
    assert np.array_equal(embeddings, load_embedder(encoder).embed(["two dogs run"]).vectors)
    with pytest.raises(UsageError, match=r"unknown task 'embde' \(did you mean embed\?\)"):
        load(encoder, task="embde")
    with pytest.raises(CheckpointError, match="a model of type 'bert'; causal language models are"):
        load(encoder, task="causal-lm")


def test_a_model_is_trained_from_python(toy: Toy, tmp_path: Path) -> None:
    data = tmp_path / "pairs.tsv"
    lines = [f"{source}\t{target}\n" for source, target in toy.pairs(300, seed=4)]
    data.write_text("".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"unknown setting 'stepps' of the task translate \(did you mean steps\?\)"):
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
    assert isinstance(trained, TranslationPipeline)
    assert trained.decoding.beam == 2
    assert trained.recorder.alignment_head is not None
    translation = trained("dog.")
    assert isinstance(translation, regard.Translation)
    assert translation.source == "dog."
