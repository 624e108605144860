"""Every kind of folder: one `load` opens it, its call makes sense, and info, evaluate and convert know it."""

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
from regard.checkpoint.native import save_memory_network, save_rnn_text
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
WORDS = train_tokenizer([TEXT] * 3, TokenizerConfig(kind="words"))
MARKED = with_mask_token(WORDS)
STACK = StackConfig(num_layers=1, num_heads=2, feed_forward_size=8)
SIDES = {
    "source_vocab_size": WORDS.vocab_size,
    "target_vocab_size": WORDS.vocab_size,
    "pad_id": WORDS.pad_id,
    "eos_id": WORDS.eos_id,
}
READER = RnnTextConfig(vocab_size=WORDS.vocab_size, embedding_size=4, hidden_size=4)
FACTS: Mapping[str, Any] = {"step": 1, "data": {}, "metrics": {}}
NAMED = {**FACTS, "labels": ["O", "B-x", "I-x"], "max_length": 32}


def weights(config: Any) -> Any:
    model = build_model(config)
    initialize_weights(model, 1)
    return model.state_dict()


def writer(folder: Path, config: Any) -> None:
    tokenizers, task = {"source": WORDS, "target": WORDS}, {**FACTS, "max_length": 32}
    save_translator(
        folder, config, weights(config), tokenizers=tokenizers, decoding=DecodingConfig(), task=task, card=""
    )


def reader(folder: Path, config: Any, task: str, facts: Mapping[str, Any]) -> None:
    save_rnn_text(folder, config, weights(config), tokenizer=WORDS, task=task, facts=facts, card="")


def encoder(folder: Path, head: str, task: str) -> None:
    labels = ("O", "B-x", "I-x") if head in ("label", "token") else ()
    config = BertConfig(
        vocab_size=MARKED.vocab_size, hidden_size=8, stack=STACK, max_positions=32, head=head, num_labels=len(labels)
    )
    facts = {**FACTS, **({"labels": list(labels)} if labels else {})}
    save_encoder(folder, config, weights(config), tokenizer=MARKED, task=task, facts=facts, card="", labels=labels)


def gpt(folder: Path) -> None:
    config = GptConfig(vocab_size=WORDS.vocab_size, hidden_size=8, stack=STACK, max_positions=16, eos_id=WORDS.eos_id)
    save_causal_lm(folder, config, weights(config), tokenizer=WORDS.without_special_tokens(), facts=FACTS, card="")


def memory(folder: Path) -> None:
    config = MemoryNetworkConfig(vocab_size=7, max_sentence_words=3, memory_size=5, embedding_size=5, hops=2)
    model = MemoryNetwork(config)
    model.initialize(seed=3)
    words = {"words": ["mary", "went", "home", "where", "is", "john", "slept"], "answers": ["home"]}
    facts = {**FACTS, "metrics": {}}
    save_memory_network(folder, config, model.state_dict(), vocabulary=words, facts=facts, card="")


ELMO = ElmoConfig(vocab_size=WORDS.vocab_size, hidden_size=5, boundary_id=WORDS.eos_id)
SORTS: dict[str, Callable[[Path], None]] = {
    "translator": lambda folder: writer(
        folder, TransformerConfig(**SIDES, hidden_size=8, encoder=STACK, decoder=STACK)
    ),
    "recurrent": lambda folder: writer(folder, Seq2SeqConfig(**SIDES, embedding_size=4, hidden_size=4)),
    "elmo": lambda folder: reader(folder, ELMO, "language", FACTS),
    "classifier": lambda folder: reader(folder, RnnClassifierConfig(num_labels=3, encoder=READER), "classify", NAMED),
    "tagger": lambda folder: reader(folder, RnnTaggerConfig(num_labels=3, encoder=READER), "tag", NAMED),
    "plain": lambda folder: encoder(folder, "plain", ""),
    "masked": lambda folder: encoder(folder, "masked", "fill"),
    "pretraining": lambda folder: encoder(folder, "pretraining", ""),
    "label": lambda folder: encoder(folder, "label", "classify"),
    "token": lambda folder: encoder(folder, "token", ""),
    "span": lambda folder: encoder(folder, "span", "answer"),
    "gpt": gpt,
}
ALONE = ("elmo", "classifier", "tagger")  # what others cannot read


def called(folder: Path) -> str:
    """What a folder's pipeline says of a text, as text."""
    model: Any = regard.load(folder, threads=1)
    if isinstance(model, regard.QuestionAnsweringPipeline):
        return str(model("who slept", TEXT).to_dict())
    if isinstance(model, regard.FillMaskPipeline):
        return str([(fill.token, round(fill.probability, 4)) for fill in model(f"mary {model.mask} home").masks[0]])
    said = model("mary went home")
    if isinstance(said, regard.TextFeatures):
        return str(said.layers.shape)
    if isinstance(said, np.ndarray):
        return str(said.round(4).tolist())
    return str(said.to_dict()) if isinstance(said, regard.TaggedText) else str(said)


@pytest.mark.parametrize("sort", SORTS)
def test_a_folder_is_opened_described_and_copied(sort: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    SORTS[sort](tmp_path / "model")
    said = called(tmp_path / "model")
    assert run(["info", str(tmp_path / "model"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["parameters"] > 0
    assert run(["convert", str(tmp_path / "model"), str(tmp_path / "copy"), "--to", "regard"]) == 0
    assert called(tmp_path / "copy") == said
    if sort in ALONE:
        capfd.readouterr()
        assert run(["convert", str(tmp_path / "model"), str(tmp_path / "other")]) == 2
        assert f"a {sort} model is for Regard alone" in capfd.readouterr().err


def test_a_memory_network_is_opened_and_copied(tmp_path: Path) -> None:
    memory(tmp_path / "model")
    assert run(["convert", str(tmp_path / "model"), str(tmp_path / "copy"), "--to", "regard"]) == 0
    answers = [
        regard.load(tmp_path / name, threads=1)(["mary went home"], "where is mary")  # type: ignore[operator]
        for name in ("model", "copy")
    ]
    assert answers[0] == answers[1]
    assert answers[0].score == answers[1].score > 0


@pytest.mark.parametrize(
    ("sort", "measure"), [("elmo", "perplexity_backward"), ("gpt", "loss_per_character"), ("masked", "perplexity")]
)
def test_language_models_are_scored_on_text(
    sort: str, measure: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    SORTS[sort](tmp_path / "model")
    (tmp_path / "text.txt").write_text(f"{TEXT}\n" * 9, "utf-8")
    assert run(["evaluate", str(tmp_path / "model"), str(tmp_path / "text.txt"), "--threads", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)[measure] > 0


@pytest.mark.parametrize(
    ("sort", "flags", "words"),
    [
        ("plain", [], "which cannot be evaluated (`regard embed` uses this one)"),
        ("label", ["--beam", "2"], "--beam does not apply to"),
        ("token", ["--errors", "x.html"], "--errors is for classify"),
        ("masked", ["--precision", "int8"], "int8 needs the engine, which does not run it"),
        ("masked", ["--backend", "engine"], "--backend does not apply to"),
    ],
)
def test_what_no_test_set_scores_is_refused(
    sort: str, flags: list[str], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    SORTS[sort](tmp_path / "model")
    assert run(["evaluate", str(tmp_path / "model"), "none.txt", *flags]) == 2
    assert words in capfd.readouterr().err
