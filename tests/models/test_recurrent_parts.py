"""Settings of attention in recurrent models, one row each: weights, attention, what is learned, folders, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.attention.trace import trace
from regard.checkpoint.model_dir import load_translator, save_translator
from regard.checkpoint.native import load_text_model, save_text_model
from regard.cli import run
from regard.config.inference import DecodingConfig
from regard.config.rnn_models import RnnClassifierConfig, RnnTextConfig, Seq2SeqConfig
from regard.errors import ConfigError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.models.text_classifier import TextBatch
from regard.packed_tokens import Tokens
from tests.checkpoint.samples import tokenizers
from tests.models.copy_task import DIGITS, EOS, VOCAB_SIZE, all_strings, draw_strings, learn_to_copy
from tests.models.reference import normalize
from tests.parts import LEARNED, Bounds, Refusals, Settings

NEEDS_POOLING = "is for attention pooling: leave it out with mean"
NO_SCORES = "means nothing to equal weights"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A setting of one family, and what must follow from it."""

    family: str
    settings: Settings
    weights: tuple[str, ...]  # patterns of exactly those weights that get another shape, appear or disappear
    learned: Bounds  # mean probability of the tokens of a copy, or of the first digit of a text
    refused: Refusals  # further settings that make no sense with it; and the message

    def __str__(self) -> str:
        return f"{self.family}-" + ",".join(f"{name}={value}" for name, value in self.settings.items())


def shared_parts(family: str, without_attention: Settings, message: str) -> list[Part]:
    """Settings that all families have; `without_attention` is where they make no sense, with the reason."""
    kinds: list[tuple[Settings, Refusals]] = [
        ({}, (({"attention_top_k": 3}, r"attention_top_k \(3\) is for top-k attention"),)),
        (
            {"attention_temperature": 0.25},
            (({"attention_normalization": "uniform"}, NO_SCORES), (without_attention, f"temperature 0.25 {message}")),
        ),
        (
            {"attention_normalization": "sparsemax"},
            (
                ({"attention_normalization": "softmin"}, r"must be one of softmax, .*not 'softmin'"),
                (without_attention, f"attention_normalization sparsemax {message}"),
            ),
        ),
        (
            {"attention_normalization": "top-k", "attention_top_k": 2},
            (
                ({"attention_top_k": 0}, r"attention_top_k \(0\) must be at least 1"),
                (without_attention, f"attention_normalization top-k {message}"),
            ),
        ),
        (
            {"attention_normalization": "uniform"},
            (
                ({"attention_temperature": 2.0}, NO_SCORES),
                (without_attention, f"attention_normalization uniform {message}"),
            ),
        ),
    ]
    return [
        Part(family=family, settings=settings, weights=(), learned=LEARNED, refused=refused)
        for settings, refused in kinds
    ]


WITHOUT_ATTENTION = {"attention": "none"}
PARTS = [
    *shared_parts("seq2seq", WITHOUT_ATTENTION, "needs attention: leave it out"),
    Part(
        family="seq2seq",
        settings={"attention_window": 1},
        weights=(),
        learned=LEARNED,
        refused=((WITHOUT_ATTENTION, "attention_window 1 needs attention"),),
    ),
    Part(
        family="seq2seq",
        settings={"attention_window": 1, "input_feeding": "context"},
        weights=("*lstm_feed*",),
        learned=LEARNED,
        refused=((WITHOUT_ATTENTION, "attention_window 1 needs attention"),),
    ),
    *shared_parts("rnn_classifier", {"pooling": "mean"}, NEEDS_POOLING),
]
ATTENTION_PARTS = [part for part in PARTS if "input_feeding" not in part.settings]
every_part = pytest.mark.parametrize("part", PARTS, ids=str)


def build_config(family: str, settings: Settings) -> Any:
    """Config of a tiny model without dropout."""
    if family == "seq2seq":
        sizes = {"source_vocab_size": VOCAB_SIZE, "target_vocab_size": VOCAB_SIZE}
        config: Any = Seq2SeqConfig(embedding_size=16, hidden_size=16, dropout=0.0, **sizes)
    else:
        encoder = RnnTextConfig(vocab_size=VOCAB_SIZE, embedding_size=7, hidden_size=11)
        config = RnnClassifierConfig(num_labels=len(DIGITS), encoder=encoder)
    return config.override(settings)


def build(family: str, settings: Settings, scale: float = 1.0) -> Any:
    model: Any = build_model(build_config(family, settings))
    initialize_weights(model, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


@every_part
def test_a_part_changes_its_own_weights_and_no_others(part: Part) -> None:
    base = {name: tensor.shape for name, tensor in build(part.family, {}).state_dict().items()}
    shapes = {name: tensor.shape for name, tensor in build(part.family, part.settings).state_dict().items()}
    names = base.keys() | shapes.keys()
    changed = {name for name in names if base.get(name) != shapes.get(name)}
    assert changed == {name for name in names if any(fnmatch(name, pattern) for pattern in part.weights)}
    assert bool(changed) == bool(part.weights)


# ---- what is learned


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def learn_first_digits(model: Any, updates: int, learning_rate: float) -> float:
    """Train to name the first of three digits; return the mean probability of the right one."""
    rng = np.random.default_rng(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(updates):
        strings = draw_strings(rng, 3)
        loss, _ = model.loss(TextBatch(Tokens.from_rows(strings)), first_digits(strings))
        optimizer.zero_grad()
        (loss / len(strings)).backward()
        optimizer.step()
    strings = all_strings(3)
    probabilities = model.probabilities(TextBatch(Tokens.from_rows(strings)))
    return float(probabilities[np.arange(len(strings)), first_digits(strings)].mean())


def first_digits(strings: list[list[int]]) -> NDArray[np.int64]:
    return np.array(strings)[:, 0] - DIGITS.start


@every_part
def test_a_model_learns_its_task(part: Part) -> None:
    model = build(part.family, part.settings)
    if part.family == "seq2seq":
        probability = learn_to_copy(model, length=3, updates=200, learning_rate=5e-3)
    else:
        probability = learn_first_digits(model, updates=100, learning_rate=1e-2)
    lowest, highest = part.learned
    assert lowest < probability < highest


# ---- attention: weights that follow from those of the usual softmax


def expected_weights(usual: NDArray[np.float32], config: Any) -> NDArray[np.float64]:
    """Weights [queries, keys] of changed settings, from those of a plain softmax over the same scores."""
    num_queries, num_keys = usual.shape
    allowed = np.ones_like(usual, dtype=bool)
    if getattr(config, "attention_window", 0):
        centre = np.minimum(np.arange(num_queries), num_keys - 1)[:, None]
        allowed = np.abs(centre - np.arange(num_keys)) <= config.attention_window
    return normalize(np.log(usual.astype(np.float64)) / config.attention_temperature, allowed, config)


def attention(model: Any) -> NDArray[np.float32]:
    """Attention of one text, [queries, keys]; nothing but the score decides its scores."""
    with trace(full_precision=True) as captured:
        if model.config.family == "seq2seq":
            model.target_logprobs(Tokens.from_rows([[5, 6, 7, 8, EOS]]), Tokens.from_rows([[4, 8, 6, 5, 7, 4]]))
        else:
            model.probabilities(TextBatch(Tokens.from_rows([[5, 6, 7, 8, 4]])))
    (captured_site,) = (captured[site] for site in model.attention_sites())
    weights: NDArray[np.float32] = captured_site.weights[0, 0]
    return weights


@pytest.mark.parametrize("part", ATTENTION_PARTS, ids=str)
def test_attention_weights_are_those_of_the_setting(part: Part) -> None:
    usual = attention(build(part.family, {}, scale=3.0).eval())
    model = build(part.family, part.settings, scale=3.0).eval()
    weights = attention(model)
    np.testing.assert_allclose(weights, expected_weights(usual, model.config), atol=1e-4)
    assert bool(part.settings) == (np.abs(weights - usual).max() > 1e-2)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_equal_weights_are_mean_pooling() -> None:
    uniform = build("rnn_classifier", {"attention_normalization": "uniform"}).eval()
    mean = build("rnn_classifier", {"pooling": "mean"}).eval()
    mean.load_state_dict({name: uniform.state_dict()[name] for name in mean.state_dict()})
    batch = TextBatch(Tokens.from_rows([[5, 6, 7], [8], [4, 4, 5, 6, 7, 8]]))
    np.testing.assert_allclose(uniform.probabilities(batch), mean.probabilities(batch), atol=1e-6)


# ---- folders


@every_part
def test_a_model_with_another_part_is_saved_and_loaded(tmp_path: Path, part: Part) -> None:
    tokenizer = tokenizers(shared=True)["source"]
    size = tokenizer.vocab_size
    is_translator = part.family == "seq2seq"
    sizes = ("source_vocab_size", "target_vocab_size") if is_translator else ("encoder.vocab_size",)
    model = build(part.family, {**part.settings, **dict.fromkeys(sizes, size)})
    weights = model.state_dict()
    texts: dict[str, Any] = {"metadata": {}, "card": ""}
    if is_translator:
        pair = {"source": tokenizer, "target": tokenizer}
        save_translator(tmp_path, model.config, weights, tokenizers=pair, decoding=DecodingConfig(), **texts)
        loaded: Any = load_translator(tmp_path)
    else:
        save_text_model(tmp_path, model.config, weights, tokenizer=tokenizer, task="classify", **texts)
        loaded = load_text_model(tmp_path, RnnClassifierConfig, "classify")
    assert loaded.config == model.config
    assert loaded.weights.keys() == weights.keys()
    assert all(torch.equal(loaded.weights[name], tensor) for name, tensor in weights.items())
    for name, value in part.settings.items():
        assert f"{name} {value}" in model.config.summary() or name == "input_feeding"


def test_a_run_with_another_part_says_so_and_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = tmp_path / "pairs.tsv"
    texts = [" ".join(map(str, string)) for string in all_strings(3)]
    pairs.write_text("".join(f"{text}\t{text}\n" for text in texts))
    sizes = ["--preset", "custom", "--seq2seq.hidden_size", "8", "--seq2seq.embedding_size", "8"]
    parts = ["--seq2seq.attention_window", "2", "--seq2seq.attention_normalization", "sparsemax"]
    budget = ["--steps", "3", "--batch-tokens", "64", "--threads", "1", "--precision", "float32"]
    out = str(tmp_path / "run")
    assert run(["train", "translate", str(pairs), "--arch", "rnn", *sizes, *parts, *budget, "--out", out]) == 0
    assert run(["info", out]) == 0
    assert "attention_window 2, attention_normalization sparsemax" in capsys.readouterr().out
    assert run(["translate", out, "4 5 6", "--beam", "2"]) == 0


# ---- refusals


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        *((part.family, {**part.settings, **changes}, message) for part in PARTS for changes, message in part.refused),
        (
            "seq2seq",
            {"hard_attention": "reinforce", "attention_normalization": "sparsemax"},
            r"hard attention \(reinforce\) .* leave out attention_normalization sparsemax",
        ),
        (
            "seq2seq",
            {"hard_attention": "straight-through", "attention_temperature": 2.0},
            "leave out attention_temperature 2",
        ),
        ("seq2seq", {"attention_window": -1}, r"attention_window \(-1\) must be at least 0"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(family: str, settings: Settings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(family, settings)
