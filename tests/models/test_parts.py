"""Parts of the block that can be chosen or left out, in every family of Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention.scores import TopK, softmax, sparsemax, uniform
from regard.checkpoint.causal_dir import load_causal_lm, save_causal_lm
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.model_dir import load_translator, save_translator
from regard.components import POSITIONS
from regard.config.inference import DecodingConfig
from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.decoding.search import search
from regard.engine.folder import unsupported_reason
from regard.errors import ConfigError
from regard.models import build_model
from regard.models.base import Model
from regard.packed_tokens import Tokens
from tests.checkpoint.samples import tokenizers

TOKENIZER = tokenizers(shared=True)["source"]
VOCAB_SIZE = TOKENIZER.vocab_size
ROWS = [[5, 6, 7, 8, 9, 4], [9, 3], [4, 4, 7]]
PARTS: list[dict[str, Any]] = [
    {"stack.attention_scale": 1.0},
    {"stack.head_size": 10},
    {"stack.value_size": 3},
    {"stack.residual": False},
    {"stack.attention_temperature": 0.25},
    {"stack.attention_normalization": "sparsemax"},
    {"stack.attention_normalization": "top-k", "stack.attention_top_k": 2},
    {"stack.attention_normalization": "uniform"},
    {"norm_placement": "both"},
    {"norm_placement": "none"},
    {"attention_window": 1},
    *({"positions": kind} for kind in ("interleaved", "concatenated", "relative", "alibi", "rotary", "none")),
]
KEEPS_SHAPES = ("attention_", "residual", "positions")  # settings that leave the shapes of weights as they are


def describe(settings: dict[str, Any]) -> str:
    return ",".join(f"{name.removeprefix('stack.')}={value}" for name, value in settings.items())


def build(family: str, settings: dict[str, Any]) -> Model:
    """A small model with large random weights, so that a mistake shows."""
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=20)
    config: Any
    if family == "transformer":
        config = TransformerConfig(
            source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, hidden_size=12, encoder=stack, decoder=stack
        )
        pairs = [(name.split("stack."), value) for name, value in settings.items()]
        changes = {
            path: value
            for parts, value in pairs
            for path in ([parts[0]] if len(parts) == 1 else [f"encoder.{parts[1]}", f"decoder.{parts[1]}"])
        }
    else:
        family_config: Any = {"bert": BertConfig, "gpt": GptConfig}[family]
        config = family_config(vocab_size=VOCAB_SIZE, hidden_size=12, stack=stack, max_positions=40)
        changes = dict(settings)
        if family == "bert" and "attention_window" in settings:
            changes["global_every"] = 2
    model = build_model(config.override({"max_positions": 40, **changes}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.4, generator=torch.Generator().manual_seed(len(name)))
    return model.eval()


@torch.no_grad()
def outputs(model: Model, rows: list[list[int]]) -> list[Tensor]:
    """Hidden states or logits of each row."""
    tokens = Tokens.from_rows(rows)
    family = model.config.family
    if family == "transformer":
        states = model(tokens, tokens)
    else:
        states = model.logits(tokens) if family == "gpt" else torch.from_numpy(model.encode(tokens))
    return list(states.split(tokens.lengths.tolist()))


@pytest.mark.parametrize("family", ["transformer", "bert", "gpt"])
@pytest.mark.parametrize("settings", PARTS, ids=describe)
def test_a_row_gives_the_same_alone_and_in_a_batch(family: str, settings: dict[str, Any]) -> None:
    model = build(family, settings)
    for row, output in zip(ROWS, outputs(model, ROWS), strict=True):
        torch.testing.assert_close(outputs(model, [row])[0], output, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["transformer", "bert", "gpt"])
@pytest.mark.parametrize(
    "settings",
    [part for part in PARTS if all(name.removeprefix("stack.").startswith(KEEPS_SHAPES) for name in part)],
    ids=describe,
)
def test_a_part_changes_the_output_of_the_same_weights(family: str, settings: dict[str, Any]) -> None:
    model = build(family, settings)
    usual = build(family, {})
    weights = model.state_dict()
    usual.load_state_dict({name: weights.get(name, tensor) for name, tensor in usual.state_dict().items()})
    changed = max(
        float((left - right).abs().max())
        for left, right in zip(outputs(model, ROWS), outputs(usual, ROWS), strict=True)
    )
    is_default = settings.get("positions") == getattr(usual.config, "positions", "")
    assert (changed < 1e-6) if is_default else (changed > 1e-3)


@pytest.mark.parametrize("family", ["transformer", "gpt"])
@pytest.mark.parametrize("settings", PARTS, ids=describe)
def test_cached_decoding_gives_what_whole_sequences_give(family: str, settings: dict[str, Any]) -> None:
    model: Any = build(family, settings)
    source = Tokens.from_rows([[5, 6, 7, 8]])
    ids = search(model, source, DecodingConfig(beam=1), max_lengths=[9])[0][0].ids
    expected: list[int] = []
    while len(expected) < len(ids):
        if family == "gpt":
            logits = model.logits(Tokens.from_rows([[5, 6, 7, 8, *expected]]))[-1]
        else:
            with torch.no_grad():
                hidden = model(source, Tokens.from_rows([[model.config.bos_id, *expected]]))
                logits = model.output_logits(hidden)[-1, : model.vocab_size]
            logits[[model.config.pad_id, model.config.bos_id]] = -torch.inf
        expected.append(int(logits.argmax()))
    assert ids == expected


@pytest.mark.parametrize("family", ["transformer", "bert", "gpt"])
@pytest.mark.parametrize("settings", PARTS, ids=describe)
def test_a_model_with_other_parts_is_saved_and_loaded(tmp_path: Path, family: str, settings: dict[str, Any]) -> None:
    model: Any = build(family, settings)
    weights = model.state_dict()
    texts: dict[str, Any] = {"metadata": {}, "card": ""}
    if family == "transformer":
        pair = {"source": TOKENIZER, "target": TOKENIZER}
        save_translator(tmp_path, model.config, weights, tokenizers=pair, decoding=DecodingConfig(), **texts)
        loaded: Any = load_translator(tmp_path)
    elif family == "bert":
        save_encoder(tmp_path, model.config, weights, tokenizer=TOKENIZER, task="", **texts)
        loaded = load_encoder(tmp_path)
    else:
        save_causal_lm(tmp_path, model.config, weights, tokenizer=TOKENIZER, **texts)
        loaded = load_causal_lm(tmp_path)
    assert loaded.config == model.config
    assert all(np.array_equal(loaded.arrays[name], tensor.numpy()) for name, tensor in weights.items())


SUMMARIES = {  # of settings that are not described as `setting value`
    "norm_placement both": "pre- and post-norm",
    "norm_placement none": "no norms",
    **{f"positions {kind}": f"{kind} positions" for kind in POSITIONS},
    "positions none": "no positions",
}


@pytest.mark.parametrize("family", ["transformer", "bert", "gpt"])
@pytest.mark.parametrize("settings", PARTS, ids=describe)
def test_the_summary_names_changed_parts(family: str, settings: dict[str, Any]) -> None:
    summary = build(family, settings).config.summary()
    usual = build(family, {}).config
    for path, value in settings.items():
        part = f"{path.removeprefix('stack.')} {str(value).lower().removesuffix('.0')}"
        part = SUMMARIES.get(part, part)
        assert f", {part}" in summary
        assert (f", {part}" in usual.summary()) == (value == getattr(usual, path, None))


@pytest.mark.parametrize("kind", ["sparsemax", "top-k", "uniform"])
def test_the_engine_leaves_other_normalizations_to_torch(kind: str) -> None:
    stack = StackConfig(attention_normalization=kind)
    for config in (BertConfig(stack=stack), GptConfig(stack=stack), TransformerConfig(decoder=stack)):
        assert unsupported_reason(config) == f"it has no {kind} attention"


def test_a_causal_encoder_ignores_later_tokens() -> None:
    model: Any = build("bert", {"causal": True})
    short = outputs(model, [[5, 6, 7]])[0]
    torch.testing.assert_close(outputs(model, [[5, 6, 7, 8, 9]])[0][:3], short, atol=1e-5, rtol=1e-5)
    both: Any = build("bert", {})
    assert (outputs(both, [[5, 6, 7, 8, 9]])[0][:3] - outputs(both, [[5, 6, 7]])[0]).abs().max() > 1e-3


@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("pooling", ["first", "last", "mean", "attention"])
def test_poolings_of_a_label_head(tmp_path: Path, pooling: str, pooler: bool) -> None:
    model: Any = build("bert", {"head": "label", "num_labels": 3, "pooling": pooling, "pooler": pooler})
    tokens = Tokens.from_rows(ROWS)
    hidden = torch.from_numpy(model.encode(tokens)).split(tokens.lengths.tolist())
    pooled = []
    for states in hidden:
        if pooling == "attention":
            weights = torch.softmax(torch.tanh(model.pooling.key(states)) @ model.pooling.query.weight[0], 0)
            pooled.append(weights @ states)
        else:
            pooled.append({"first": states[0], "last": states[-1], "mean": states.mean(0)}[pooling])
    vectors = torch.stack(pooled)
    if pooler:
        vectors = torch.tanh(model.pooler(vectors))
    np.testing.assert_allclose(model.logits(tokens), model.classifier(vectors).detach(), atol=1e-5)
    labels = ("a", "b", "c")
    save_encoder(
        tmp_path, model.config, model.state_dict(), tokenizer=TOKENIZER, task="", metadata={}, card="", labels=labels
    )
    loaded = load_encoder(tmp_path)
    assert loaded.config == model.config and loaded.labels == labels


def test_top_k_is_refused_without_keys_and_rotary_positions_with_an_odd_head() -> None:
    with pytest.raises(ConfigError, match="attention_top_k"):
        StackConfig(attention_top_k=0)
    with pytest.raises(ConfigError, match=r"rotary positions need an even head size, not stack\.head_size 5"):
        GptConfig(stack=StackConfig(head_size=5))


# ---- normalizations


def random_scores(seed: int, keys: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 3, 5, keys, generator=generator) * 2
    allowed = torch.rand(2, 1, 5, keys, generator=generator) > 0.3
    allowed[0, 0, 0] = False  # a query without keys
    return scores, allowed


def project_onto_simplex(scores: np.ndarray) -> np.ndarray:
    """Sparsemax by bisection of the threshold."""
    low, high = scores.min() - 1, scores.max()
    for _ in range(100):
        threshold = (low + high) / 2
        total = np.maximum(scores - threshold, 0).sum()
        low, high = (threshold, high) if total > 1 else (low, threshold)
    return np.maximum(scores - (low + high) / 2, 0)


@pytest.mark.parametrize("seed", range(3))
def test_sparsemax_is_the_projection_onto_the_simplex(seed: int) -> None:
    scores, allowed = random_scores(seed)
    weights = sparsemax(scores, allowed)
    for index in np.ndindex(2, 3, 5):
        keys = allowed[index[0], 0, index[2]]
        expected = np.zeros(7)
        if keys.any():
            expected[keys.numpy()] = project_onto_simplex(scores[index][keys].double().numpy())
        np.testing.assert_allclose(weights[index], expected, atol=1e-5)
    assert (weights == 0).float().mean() > 0.3


def test_the_gradient_of_sparsemax_is_that_of_the_projection() -> None:
    scores = torch.randn(1, 1, 4, 6, dtype=torch.float32, generator=torch.Generator().manual_seed(3))
    scores.requires_grad_()
    direction = torch.randn(1, 1, 4, 6, generator=torch.Generator().manual_seed(4))
    weights = sparsemax(scores)
    (gradient,) = torch.autograd.grad((weights * direction).sum(), scores)
    support = (weights > 0).float()
    mean = (direction * support).sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
    torch.testing.assert_close(gradient, support * (direction - mean))


@pytest.mark.parametrize("k", [1, 3, 9])
def test_top_k_keeps_the_best_allowed_keys(k: int) -> None:
    scores, allowed = random_scores(5)
    weights = TopK(k)(scores, allowed)
    for index in np.ndindex(2, 3, 5):
        keys = allowed[index[0], 0, index[2]]
        best = [key for key in scores[index].argsort(descending=True).tolist() if keys[key]][:k]
        expected = torch.zeros(7)
        if best:
            expected[best] = torch.softmax(scores[index][best], 0)
        torch.testing.assert_close(weights[index], expected)


def test_uniform_attention_ignores_the_scores() -> None:
    scores, allowed = random_scores(6)
    expected = allowed.float() / allowed.sum(-1, keepdim=True).clamp_min(1)
    torch.testing.assert_close(uniform(scores, allowed), expected.expand_as(scores))
    torch.testing.assert_close(uniform(scores), softmax(torch.zeros_like(scores)))
