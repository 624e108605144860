"""Settings of attention and blocks, one row each: which weights change, what is learned, folders, what is refused."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.attention.scores import TopK, sparsemax
from regard.attention.trace import trace
from regard.checkpoint.model_dir import load_translator, save_translator
from regard.checkpoint.native import load_text_model, save_text_model
from regard.cli import run
from regard.config.inference import DecodingConfig
from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.config.rnn_models import RnnClassifierConfig, RnnTextConfig, Seq2SeqConfig
from regard.errors import ConfigError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.models.text_classifier import TextBatch
from regard.packed_tokens import Tokens
from tests.checkpoint.samples import tokenizers

VOCAB_SIZE = 9
EOS = 1
BOUNDARY = 3
STRINGS = [list(digits) for digits in itertools.product(range(4, VOCAB_SIZE), repeat=3)]
ROWS_PER_UPDATE = 32
# mean probability of the copied tokens, at least and at most; chance is 0.2
Bounds = tuple[float, float]
LEARNED: Bounds = (0.9, 1.0)
SLOWLY: Bounds = (0.7, 1.0)
WITHOUT_ORDER: Bounds = (0.4, 0.75)  # the digits, not their order
CHANCE: Bounds = (0.15, 0.3)
QKV = "*attention.qkv.*"
CROSS = ("*cross_attention.query.*", "*cross_attention.key_value.*")
OUT = "*attention.out.weight"


@dataclass(frozen=True)
class Part:
    """A setting of one family, and what it changes."""

    family: str
    settings: dict[str, Any]
    weights: tuple[str, ...] = ()  # patterns of weights that get another shape, appear or disappear
    copy: Bounds = LEARNED  # how well such a model learns to copy

    def __str__(self) -> str:
        return f"{self.family}-" + ",".join(f"{name}={value}" for name, value in self.settings.items())


def transformer_parts(family: str) -> list[Part]:
    """Settings that all families of Transformers have."""
    is_translator = family == "transformer"
    projections = (QKV, *CROSS) if is_translator else (QKV,)
    values = (QKV, CROSS[1], OUT) if is_translator else (QKV, OUT)
    norms = "*norm*"
    unordered = WITHOUT_ORDER if is_translator else LEARNED  # a causal stack counts tokens without positions
    slowly = SLOWLY if is_translator else LEARNED  # it has fewer updates
    parts: list[tuple[dict[str, Any], tuple[str, ...], Bounds]] = [
        ({}, (), LEARNED),
        ({"stack.attention_scale": 1.0}, (), slowly),
        ({"stack.head_size": 10}, (*projections, OUT), LEARNED),
        ({"stack.value_size": 5}, values, LEARNED),
        ({"stack.residual": False}, (), slowly),
        ({"stack.attention_temperature": 2.0}, (), LEARNED),
        ({"stack.attention_normalization": "sparsemax"}, (), slowly),
        ({"stack.attention_normalization": "top-k", "stack.attention_top_k": 2}, (), LEARNED),
        ({"stack.attention_normalization": "uniform"}, (), slowly),
        ({"norm_placement": "post"}, (norms,), LEARNED),
        ({"norm_placement": "both"}, (norms,), LEARNED),
        ({"norm_placement": "none"}, (norms,), LEARNED),
        ({"attention_window": 1}, (), LEARNED if is_translator else CHANCE),  # GPT would have to look 4 tokens back
        ({"positions": "interleaved"}, (), LEARNED),
        ({"positions": "concatenated"}, ("*positions.projection.weight",), LEARNED),
        ({"positions": "relative"}, ("*positions*",), LEARNED),
        ({"positions": "alibi"}, (), unordered),  # cross-attention has none, and distances have no direction
        ({"positions": "rotary"}, (), LEARNED),
        ({"positions": "none"}, (), unordered),
    ]
    return [Part(family, settings, weights, copy) for settings, weights, copy in parts]


RNN_PARTS = [
    Part("seq2seq", {}),
    Part("seq2seq", {"attention_temperature": 0.25}),
    Part("seq2seq", {"attention_normalization": "sparsemax"}),
    Part("seq2seq", {"attention_normalization": "top-k", "attention_top_k": 2}),
    Part("seq2seq", {"attention_normalization": "uniform"}),
    Part("seq2seq", {"attention_window": 1}),
    Part("seq2seq", {"attention_window": 1, "input_feeding": "context"}, ("*feed*", "*lstm_feed*")),
]
POOLING_PARTS = [
    Part("rnn_classifier", {"attention_temperature": 0.25}),
    Part("rnn_classifier", {"attention_normalization": "sparsemax"}),
    Part("rnn_classifier", {"attention_normalization": "top-k", "attention_top_k": 2}),
    Part("rnn_classifier", {"attention_normalization": "uniform"}),
]
TRANSLATOR_PARTS = transformer_parts("transformer")
GPT_PARTS = transformer_parts("gpt")
ALL_PARTS = [*TRANSLATOR_PARTS, *GPT_PARTS, *RNN_PARTS, *POOLING_PARTS]


def build_config(family: str, settings: dict[str, Any]) -> Any:
    """Config of a tiny model without dropout."""
    stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=32)
    if family == "transformer":
        config: Any = TransformerConfig(
            source_vocab_size=VOCAB_SIZE,
            target_vocab_size=VOCAB_SIZE,
            hidden_size=24,
            encoder=stack,
            decoder=stack,
            dropout=0.0,
        )
        changes = {}
        for name, value in settings.items():
            inner = name.removeprefix("stack.")
            changes |= {name: value} if inner == name else {f"encoder.{inner}": value, f"decoder.{inner}": value}
        return config.override(changes)
    if family == "gpt":
        config = GptConfig(vocab_size=VOCAB_SIZE, hidden_size=24, stack=stack, dropout=0.0, max_positions=20)
        return config.override({"stack.num_layers": 2, "positions": "sinusoidal", **settings})
    if family == "seq2seq":
        config = Seq2SeqConfig(
            source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, embedding_size=16, hidden_size=16, dropout=0.0
        )
        return config.override(settings)
    encoder = RnnTextConfig(vocab_size=VOCAB_SIZE, embedding_size=7, hidden_size=5)
    return RnnClassifierConfig(num_labels=3, encoder=encoder).override(settings)


def build(family: str, settings: dict[str, Any], scale: float = 1.0) -> Any:
    model: Any = build_model(build_config(family, settings))
    initialize_weights(model, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


@pytest.mark.parametrize("part", ALL_PARTS, ids=str)
def test_a_setting_changes_its_own_weights_and_no_others(part: Part) -> None:
    default_shapes = {name: tensor.shape for name, tensor in build(part.family, {}).state_dict().items()}
    shapes = {name: tensor.shape for name, tensor in build(part.family, part.settings).state_dict().items()}
    changed = {name for name in default_shapes.keys() | shapes.keys() if default_shapes.get(name) != shapes.get(name)}
    assert bool(changed) == bool(part.weights)
    assert not {name for name in changed if not any(fnmatch(name, pattern) for pattern in part.weights)}


# ---- what is learned


def learn_to_copy(model: Any, updates: int, learning_rate: float) -> float:
    """Train on strings of three digits; return the mean probability of their copies."""
    is_causal = model.config.family == "gpt"
    rng = np.random.default_rng(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(updates):
        strings = [STRINGS[index] for index in rng.choice(len(STRINGS), ROWS_PER_UPDATE, replace=False)]
        if is_causal:
            loss, _ = model.loss(Tokens.from_rows([[*string, BOUNDARY, *string] for string in strings]))
        else:
            loss, _ = model.loss(Tokens.from_rows([[*string, EOS] for string in strings]), Tokens.from_rows(strings))
        optimizer.zero_grad()
        (loss / (4 * ROWS_PER_UPDATE)).backward()
        optimizer.step()
    return copy_probability(model)


def copy_probability(model: Any) -> float:
    """Mean probability of the tokens of all copies, given those before."""
    if model.config.family == "gpt":
        rows = Tokens.from_rows([[*string, BOUNDARY, *string] for string in STRINGS])
        logprobs = model.next_token_logprobs(rows).reshape(len(STRINGS), 7, -1)[:, 3:6]
        copied = np.take_along_axis(logprobs, np.array(STRINGS)[:, :, None], axis=2)
        return float(np.exp(copied).mean())
    source = Tokens.from_rows([[*string, EOS] for string in STRINGS])
    logprobs = model.target_logprobs(source, Tokens.from_rows(STRINGS))
    return float(np.mean([np.exp(row[:3]).mean() for row in logprobs]))


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("part", [*TRANSLATOR_PARTS, *RNN_PARTS], ids=str)
def test_a_translator_learns_to_copy_where_it_can(part: Part) -> None:
    lowest, highest = part.copy
    assert lowest < learn_to_copy(build(part.family, part.settings), 200, 5e-3) < highest


@pytest.mark.slow
@pytest.mark.parametrize("part", GPT_PARTS, ids=str)
def test_a_causal_model_learns_to_copy_where_it_can(part: Part) -> None:
    lowest, highest = part.copy
    assert lowest < learn_to_copy(build(part.family, part.settings), 350, 3e-3) < highest


# ---- attention of recurrent models: weights that follow from those of the usual softmax


def expected_weights(usual: NDArray[np.float32], config: Any) -> NDArray[np.float32]:
    """Weights [queries, keys] of changed settings, from those of a plain softmax over the same scores."""
    num_queries, num_keys = usual.shape
    allowed = np.ones_like(usual, dtype=bool)
    if getattr(config, "attention_window", 0):
        centre = np.minimum(np.arange(num_queries), num_keys - 1)[:, None]
        allowed = np.abs(centre - np.arange(num_keys)) <= config.attention_window
    scores = torch.from_numpy(np.log(usual) / config.attention_temperature)[None, None]
    mask = torch.from_numpy(allowed)[None, None]
    match config.attention_normalization:
        case "sparsemax":
            weights = sparsemax(scores, mask)
        case "top-k":
            weights = TopK(config.attention_top_k)(scores, mask)
        case "uniform":
            weights = mask / mask.sum(-1, keepdim=True)
        case _:
            weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1)
    return weights[0, 0].numpy()


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


@pytest.mark.parametrize(
    "part", [part for part in [*RNN_PARTS, *POOLING_PARTS] if "input_feeding" not in part.settings], ids=str
)
def test_attention_weights_of_recurrent_models_are_those_of_the_setting(part: Part) -> None:
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


@pytest.mark.parametrize("part", [*RNN_PARTS, *POOLING_PARTS], ids=str)
def test_a_recurrent_model_with_other_parts_is_saved_and_loaded(tmp_path: Path, part: Part) -> None:
    tokenizer = tokenizers(shared=True)["source"]
    size = tokenizer.vocab_size
    is_translator = part.family == "seq2seq"
    sizes = ("source_vocab_size", "target_vocab_size") if is_translator else ("encoder.vocab_size",)
    model = build(part.family, {**part.settings, **dict.fromkeys(sizes, size)})
    texts: dict[str, Any] = {"metadata": {}, "card": ""}
    if is_translator:
        pair = {"source": tokenizer, "target": tokenizer}
        weights = model.state_dict()
        save_translator(tmp_path, model.config, weights, tokenizers=pair, decoding=DecodingConfig(), **texts)
        loaded: Any = load_translator(tmp_path)
    else:
        save_text_model(tmp_path, model.config, model.state_dict(), tokenizer=tokenizer, task="classify", **texts)
        loaded = load_text_model(tmp_path, RnnClassifierConfig, "classify")
    assert loaded.config == model.config
    for name, value in part.settings.items():
        assert f"{name} {value}" in model.config.summary() or name == "input_feeding"


def test_a_run_with_another_part_says_so_and_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{' '.join(map(str, digits))}\t{' '.join(map(str, digits))}\n" for digits in STRINGS))
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
    ("config", "settings", "message"),
    [
        (Seq2SeqConfig, {"attention": "none", "attention_window": 2}, "attention_window 2 needs attention"),
        (
            Seq2SeqConfig,
            {"attention": "none", "attention_normalization": "uniform"},
            "attention_normalization uniform needs attention",
        ),
        (
            Seq2SeqConfig,
            {"hard_attention": "reinforce", "attention_normalization": "sparsemax"},
            r"hard attention \(reinforce\) .* leave out attention_normalization sparsemax",
        ),
        (
            Seq2SeqConfig,
            {"hard_attention": "straight-through", "attention_temperature": 2.0},
            "leave out attention_temperature 2",
        ),
        (
            RnnClassifierConfig,
            {"pooling": "mean", "attention_normalization": "uniform"},
            "attention_normalization uniform is for attention pooling: leave it out with mean",
        ),
        *(
            (config, {"attention_normalization": "uniform", "attention_temperature": 2.0}, "means nothing to equal")
            for config in (StackConfig, Seq2SeqConfig, RnnClassifierConfig)
        ),
        *(
            (config, {"attention_top_k": 3}, r"attention_top_k \(3\) is for top-k attention")
            for config in (StackConfig, Seq2SeqConfig, RnnClassifierConfig)
        ),
        *(
            (config, {"attention_normalization": "softmin"}, r"must be one of softmax, .*not 'softmin'")
            for config in (StackConfig, Seq2SeqConfig, RnnClassifierConfig)
        ),
        (StackConfig, {"attention_temperature": 0.0}, "attention_temperature"),
        (StackConfig, {"attention_scale": -1.0}, "attention_scale"),
        (StackConfig, {"head_size": -1}, "head_size"),
        (StackConfig, {"value_size": -1}, "value_size"),
        (TransformerConfig, {"positions": "absolute"}, "positions must be one of"),
        (TransformerConfig, {"norm_placement": "middle"}, "norm_placement must be one of pre, post, both, none"),
        (TransformerConfig, {"attention_window": -1}, "attention_window"),
        (BertConfig, {"positions": "rotary", "stack.head_size": 5}, "rotary positions need an even head size"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(config: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config().override(settings)
