"""Training a head on a frozen encoder: the head that is trained is the one that is saved, of every kind of encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.hf.encoder_types import ENCODER_TYPES
from regard.cli import run
from regard.config.data import TokenizerConfig
from regard.config.models import HEAD_PREFIXES, BertConfig, StackConfig
from regard.models.bert import Bert, initialize_bert
from regard.text.train import train_masked_tokenizer
from tests.training.experiments.test_fine_tuning import FAST, draw_moods, draw_questions

SEED = 1
STEPS = 4
LEARNING_RATE = 0.003
LOCAL = {"attention_window": 3, "global_every": 2, "bias": False}
MODERNBERT: dict[str, Any] = {**ENCODER_TYPES["modernbert"].fixed_settings, **LOCAL, "head": "masked"}
BIG_BIRD: dict[str, Any] = {**ENCODER_TYPES["big_bird"].fixed_settings, "attention": "blocks", "block_size": 4}
ATTENTION_POOLING: dict[str, Any] = {"norm_placement": "pre", "pooling": "attention", "head": "masked"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labelled texts and questions."""
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "moods.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in draw_moods(60)))
    (folder / "questions.json").write_text(json.dumps(draw_questions(40)))
    return folder


def save_pretrained(folder: Path, settings: dict[str, Any]) -> Path:
    """Save a small encoder with random weights that knows the words of the data."""
    texts = [text for text, _ in draw_moods(50)]
    for document in draw_questions(50)["data"]:  # type: ignore[attr-defined]
        texts += [f"{paragraph['context']} who where was it" for paragraph in document["paragraphs"]]
    tokenizer = train_masked_tokenizer(texts * 3, TokenizerConfig(kind="words"))
    stack = StackConfig(num_layers=3, num_heads=2, feed_forward_size=23)
    config = BertConfig(vocab_size=tokenizer.vocab_size, hidden_size=16, stack=stack, max_positions=64)
    model = Bert(config.override({"dropout": 0.0, "attention_dropout": 0.0, **settings}))
    initialize_bert(model, SEED, 0.3)
    save_encoder(folder, model.config, model.state_dict(), tokenizer=tokenizer, task="", metadata={}, card="")
    return folder


def train_head(task: str, file: Path, encoder: Path, out: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Train a head on the frozen encoder; return the weights that it starts from, and those that are saved."""
    command = ["train", task, str(file), "--from", str(encoder), "--freeze-encoder", "--seed", str(SEED)]
    command += [*FAST, "--steps", str(STEPS), "--learning-rate", str(LEARNING_RATE), "--out", str(out)]
    assert run(command) == 0
    saved = load_encoder(out)
    labels = saved.labels or None
    return load_encoder(encoder, head=saved.config.head, labels=labels, seed=SEED).weights, saved.weights


@pytest.mark.parametrize(
    ("task", "file", "settings", "trained"),
    [
        ("classify", "moods.tsv", MODERNBERT, {"mlm_head.dense.weight", "mlm_head.norm.weight", "classifier.weight"}),
        ("answer", "questions.json", MODERNBERT, {"mlm_head.dense.weight", "classifier.weight"}),
        ("answer", "questions.json", BIG_BIRD, {"span_feed_forward.up.weight", "span_norm.bias", "classifier.weight"}),
        ("classify", "moods.tsv", ATTENTION_POOLING, {"pooling.query.weight", "pooler.weight", "classifier.bias"}),
        ("classify", "moods.tsv", {"layer_groups": 2, "embedding_size": 6}, {"pooler.weight", "classifier.weight"}),
    ],
    ids=["modernbert", "modernbert-spans", "big_bird-spans", "attention-pooling", "layer-groups"],
)
def test_the_head_that_was_trained_is_saved(
    data: Path, tmp_path: Path, task: str, file: str, settings: dict[str, Any], trained: set[str]
) -> None:
    encoder = save_pretrained(tmp_path / "encoder", settings)
    start, saved = train_head(task, data / file, encoder, tmp_path / "run")
    assert start.keys() == saved.keys()
    changed = {name for name in start if not torch.equal(start[name], saved[name])}
    assert trained <= changed
    assert all(name.startswith(HEAD_PREFIXES) for name in changed)
    # a step of the optimizer changes a weight by about the learning rate: the pretrained head was the start
    assert all(float((saved[name] - start[name]).abs().max()) < 2 * STEPS * LEARNING_RATE for name in changed)
