"""Every family: `load` opens its folder, its pipeline predicts, and info, evaluate and convert accept it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.checkpoint.causal_dir import save_causal_lm
from regard.checkpoint.encoder_dir import save_encoder
from regard.checkpoint.model_dir import save_translator
from regard.checkpoint.model_types import native_type
from regard.checkpoint.native import save_memory_network, save_text_model
from regard.cli import run
from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.config.rnn_models import (
    ElmoConfig,
    MemoryNetworkConfig,
    RnnClassifierConfig,
    RnnTaggerConfig,
    RnnTextConfig,
    Seq2SeqConfig,
)
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.models.memory_network import MemoryNetwork
from regard.text.special_tokens import with_mask_token
from regard.text.train import train_tokenizer

TEXT = "mary went home and john slept"
TOKENIZER = train_tokenizer([TEXT] * 3, TokenizerConfig(kind="words"))
MASK_TOKENIZER = with_mask_token(TOKENIZER)
STACK = StackConfig(num_layers=1, num_heads=2, feed_forward_size=8)
VOCABULARIES = {
    "source_vocab_size": TOKENIZER.vocab_size,
    "target_vocab_size": TOKENIZER.vocab_size,
    "pad_id": TOKENIZER.pad_id,
    "eos_id": TOKENIZER.eos_id,
}
RNN_ENCODER = RnnTextConfig(vocab_size=TOKENIZER.vocab_size, embedding_size=4, hidden_size=4)
METADATA: Mapping[str, Any] = {"step": 1, "data_digests": {}, "metrics": {}}
LABEL_METADATA = {**METADATA, "labels": ["O", "B-x", "I-x"], "max_length": 32}


def random_weights(config: Any) -> Any:
    model = build_model(config)
    initialize_weights(model, 1)
    return model.state_dict()


def save_translation_model(folder: Path, config: Any) -> None:
    tokenizers = {"source": TOKENIZER, "target": TOKENIZER}
    metadata = {**METADATA, "max_length": 32}
    save_translator(
        folder,
        config,
        random_weights(config),
        tokenizers=tokenizers,
        decoding=DecodingConfig(),
        metadata=metadata,
        card="",
    )


def save_rnn_model(folder: Path, config: Any, task: str, metadata: Mapping[str, Any]) -> None:
    weights = random_weights(config)
    save_text_model(folder, config, weights, tokenizer=TOKENIZER, task=task, metadata=metadata, card="")


def save_bert(folder: Path, head: str, task: str) -> None:
    labels = ("O", "B-x", "I-x") if head in ("label", "token") else ()
    config = BertConfig(
        vocab_size=MASK_TOKENIZER.vocab_size,
        hidden_size=8,
        stack=STACK,
        max_positions=32,
        head=head,
        num_labels=len(labels),
    )
    metadata = {**METADATA, **({"labels": list(labels)} if labels else {})}
    save_encoder(
        folder,
        config,
        random_weights(config),
        tokenizer=MASK_TOKENIZER,
        task=task,
        metadata=metadata,
        card="",
        labels=labels,
    )


def save_gpt(folder: Path) -> None:
    config = GptConfig(
        vocab_size=TOKENIZER.vocab_size, hidden_size=8, stack=STACK, max_positions=16, eos_id=TOKENIZER.eos_id
    )
    tokenizer = TOKENIZER.without_special_tokens()
    save_causal_lm(folder, config, random_weights(config), tokenizer=tokenizer, metadata=METADATA, card="")


def save_memory_model(folder: Path) -> None:
    config = MemoryNetworkConfig(vocab_size=7, max_sentence_words=3, memory_size=5, embedding_size=5, hops=2)
    model = MemoryNetwork(config)
    model.initialize(seed=3)
    vocabulary = {"words": ["mary", "went", "home", "where", "is", "john", "slept"], "answers": ["home"]}
    save_memory_network(folder, config, model.state_dict(), vocabulary=vocabulary, metadata=METADATA, card="")


ELMO = ElmoConfig(vocab_size=TOKENIZER.vocab_size, hidden_size=5, boundary_id=TOKENIZER.eos_id)
FAMILIES: dict[str, Callable[[Path], None]] = {
    "translator": lambda folder: save_translation_model(
        folder, TransformerConfig(**VOCABULARIES, hidden_size=8, encoder=STACK, decoder=STACK)
    ),
    "recurrent": lambda folder: save_translation_model(
        folder, Seq2SeqConfig(**VOCABULARIES, embedding_size=4, hidden_size=4)
    ),
    "elmo": lambda folder: save_rnn_model(folder, ELMO, "elmo", METADATA),
    "rnn_classifier": lambda folder: save_rnn_model(
        folder, RnnClassifierConfig(num_labels=3, encoder=RNN_ENCODER), "classify", LABEL_METADATA
    ),
    "rnn_tagger": lambda folder: save_rnn_model(
        folder, RnnTaggerConfig(num_labels=3, encoder=RNN_ENCODER), "tag", LABEL_METADATA
    ),
    "plain": lambda folder: save_bert(folder, "plain", ""),
    "masked": lambda folder: save_bert(folder, "masked", "masked-lm"),
    "pretraining": lambda folder: save_bert(folder, "pretraining", ""),
    "label": lambda folder: save_bert(folder, "label", "classify"),
    "token": lambda folder: save_bert(folder, "token", ""),
    "span": lambda folder: save_bert(folder, "span", "answer"),
    "gpt": save_gpt,
}
NATIVE_ONLY = ("elmo", "rnn_classifier", "rnn_tagger")  # families that other tools cannot read


def run_pipeline(folder: Path) -> str:
    """Prediction of a folder's pipeline, as text."""
    pipeline: Any = regard.load(folder, threads=1)
    if isinstance(pipeline, regard.QuestionAnsweringPipeline):
        return str(pipeline("who slept", TEXT).to_dict())
    if isinstance(pipeline, regard.FillMaskPipeline):
        (predictions,) = pipeline(f"mary {pipeline.mask} home").masks
        return str([(prediction.token, round(prediction.probability, 4)) for prediction in predictions])
    prediction = pipeline("mary went home")
    if isinstance(prediction, regard.TextFeatures):
        return str(prediction.layers.round(4).tolist())
    if isinstance(prediction, np.ndarray):
        return str(prediction.round(4).tolist())
    if isinstance(prediction, regard.TaggedText):
        return str(prediction.to_dict())
    return str(prediction)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_opened_described_and_copied(
    family: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    FAMILIES[family](tmp_path / "model")
    prediction = run_pipeline(tmp_path / "model")
    assert run(["info", str(tmp_path / "model"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["parameters"] > 0
    assert run(["convert", str(tmp_path / "model"), str(tmp_path / "copy"), "--to", "regard"]) == 0
    assert run_pipeline(tmp_path / "copy") == prediction
    if family in NATIVE_ONLY:
        capfd.readouterr()
        assert run(["convert", str(tmp_path / "model"), str(tmp_path / "other")]) == 2
        assert f"a model of type {native_type(family)} is for Regard alone" in capfd.readouterr().err


@pytest.mark.parametrize("family", ["translator", "rnn_classifier", "label", "gpt"])
def test_a_folder_of_an_earlier_version_is_refused_with_advice(
    family: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    FAMILIES[family](folder)
    (folder / "MANIFEST.json").unlink()
    task = json.loads((folder / "task.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    (folder / "task.json").write_text(json.dumps({**task, "version": 1}))
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "regard-earlier"}))
    commands = (["info", str(folder)], ["convert", str(folder), str(tmp_path / "out"), "--to", "regard"])
    for command in (*commands, ["evaluate", str(folder), "test.tsv"]):
        assert run(command) == 2
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) == 1, lines
        assert "task.json: version 1; this Regard reads version 2: train or convert the model again" in lines[0]


def test_a_memory_network_is_opened_and_copied(tmp_path: Path) -> None:
    save_memory_model(tmp_path / "model")
    assert run(["convert", str(tmp_path / "model"), str(tmp_path / "copy"), "--to", "regard"]) == 0
    pipeline: Any = regard.load(tmp_path / "model", threads=1)
    copied_pipeline: Any = regard.load(tmp_path / "copy", threads=1)
    answer = pipeline(["mary went home"], "where is mary")
    copied_answer = copied_pipeline(["mary went home"], "where is mary")
    assert copied_answer == answer
    assert copied_answer.score == answer.score > 0


@pytest.mark.parametrize(
    ("family", "metric", "low", "high"),
    [  # random weights predict about as well as a uniform distribution over the ten tokens
        ("elmo", "perplexity_backward", 5, 40),
        ("gpt", "loss_per_character", 0.3, 1),
        ("masked", "perplexity", 5, 80),
    ],
)
def test_language_models_are_scored_on_text(
    family: str, metric: str, low: float, high: float, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    FAMILIES[family](tmp_path / "model")
    (tmp_path / "text.txt").write_text(f"{TEXT}\n" * 9, "utf-8")
    assert run(["evaluate", str(tmp_path / "model"), str(tmp_path / "text.txt"), "--threads", "1", "--json"]) == 0
    scores = json.loads(capfd.readouterr().out)
    assert low < scores[metric] < high


@pytest.mark.parametrize(
    ("family", "flags", "message"),
    [
        ("plain", [], "which cannot be evaluated (`regard embed` uses this one)"),
        ("label", ["--beam", "2"], "--beam does not apply to"),
        ("token", ["--page", "x.html"], "--page does not apply to"),
        ("masked", ["--precision", "int8"], "int8 needs the engine, which does not run it"),
        ("masked", ["--backend", "engine"], "--backend does not apply to"),
    ],
)
def test_models_and_options_that_cannot_be_evaluated_are_rejected(
    family: str, flags: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    FAMILIES[family](tmp_path / "model")
    assert run(["evaluate", str(tmp_path / "model"), "none.txt", *flags]) == 2
    assert message in capfd.readouterr().err
