"""The tap: it shows what is there, for what was asked, and nothing of the computation changes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention import attend as attending
from regard.attention.attend import attend
from regard.attention.masks import causal
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.trace import trace
from regard.errors import UsageError
from regard.models.base import Model
from regard.models.layers import packed
from regard.tokens import Tokens
from regard.view.codec import decode_root8, encode_root8
from tests import families
from tests.families import FAMILIES

KEEPS = ("weights", "queries", "entropy", "inside")


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_the_same_bits_with_the_tap_open_and_closed(family: str, precision: torch.dtype) -> None:
    build, run = FAMILIES[family]
    if family == "memory network" and precision != torch.float32:
        pytest.skip("memory networks compute in float32 alone")
    model = build().to(precision)
    if family.endswith("packed"):
        model.pack()  # type: ignore[operator]
    closed = run(model)
    for keep in KEEPS:
        with trace(store=keep) as seen:
            opened = run(model)
        assert len(seen) > 0
        for before, after in zip(closed, opened, strict=True):
            assert before.tobytes() == after.tobytes()


class Operators(TorchDispatchMode):
    """Keeps the names of all operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def operators(model: Model, run: Any) -> list[str]:
    with Operators() as seen:
        run(model)
    return seen.names


@pytest.mark.parametrize("family", ["translator, beam", "encoder, packed", "big bird", "recurrent, greedy"])
def test_closed_it_runs_the_operators_of_code_without_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, run = FAMILIES[family]
    model = build()
    run(model)
    closed = operators(model, run)
    with trace():
        opened = operators(model, run)
    for module in (attending, packed):  # the code as if there were no tap and no switches for heads
        monkeypatch.setattr(module, "active_trace", lambda site: None)
        monkeypatch.setattr(module, "apply_ablation", lambda mixed, site: mixed)
    assert closed == operators(model, run)
    assert len(opened) > len(closed)


def test_closed_attention_is_one_fused_operator() -> None:
    one = torch.ones(1, 2, 3, 4)
    with torch.inference_mode(), Operators() as seen:
        attend(one, one, one, site="encoder.0.self")
    assert seen.names == ["aten.scaled_dot_product_attention.default"]


def explicit(query: np.ndarray, key: np.ndarray, allowed: np.ndarray | None, added: float | np.ndarray) -> np.ndarray:
    """Softmax of scaled dots over what may be seen, [H, Q, K], in float64."""
    scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1]) + added
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def by_hand(module: torch.nn.Module, states: np.ndarray, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of a module, [H, T, d], from its matrices."""

    def product(layer: torch.nn.Linear, given: np.ndarray, part: int, parts: int) -> np.ndarray:
        made = given @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
        one = np.split(made, parts, axis=-1)[part]
        return one.reshape(len(given), module.heads, -1).transpose(1, 0, 2)  # type: ignore[arg-type]

    if isinstance(module, SelfAttention):
        return product(module.qkv, states, 0, 3), product(module.qkv, states, 1, 3)
    assert isinstance(module, CrossAttention)
    return product(module.query, states, 0, 1), product(module.key_value, memory, 0, 2)


def block_pattern(length: int, size: int, repeats: int) -> np.ndarray:
    """What BigBird adds to scores: neighbouring, first and last blocks are seen; the first one counts more often."""
    count = -(-length // size)
    made = np.full((count, count), -np.inf)
    for row in range(count):
        for column in range(count):
            if abs(row - column) <= 1 or row in (0, count - 1) or column in (0, count - 1):
                made[row, column] = 0.0
        if np.isinf(made[row]).any():
            made[row, 0] += math.log(1 + repeats)
    return made.repeat(size, 0).repeat(size, 1)[:length, :length]


CASES = {
    "encoder": (families.encoder, lambda model, row: model(*model.to_tensors(row))),
    "big bird": (families.big_bird, lambda model, row: model(*model.to_tensors(row))),
    "gpt": (families.gpt, lambda model, row: model(row)),
    "translator": (families.translator, lambda model, row: model(row, row)),
}


@pytest.mark.parametrize("keep", ["weights", "queries"])
@pytest.mark.parametrize("family", CASES)
def test_weights_are_those_of_an_explicit_computation(family: str, keep: str) -> None:
    build, run = CASES[family]
    model, row = build(), families.LONG
    given: dict[str, tuple[torch.nn.Module, np.ndarray]] = {}
    memories: list[np.ndarray] = []
    for module in model.modules():
        if isinstance(module, SelfAttention | CrossAttention):
            module.register_forward_pre_hook(
                lambda one, inputs: given.__setitem__(one.site, (one, inputs[0].detach().double().numpy()))
            )
    if family == "translator":
        model.encoder.register_forward_hook(  # type: ignore[union-attr]
            lambda one, inputs, made: memories.append(made.detach().double().numpy())
        )
    with torch.no_grad(), trace(store=keep) as seen:
        run(model, row)
    assert sorted(seen) == sorted(model.attention_sites())
    for site, (module, states) in given.items():
        query, key = by_hand(module, states, memories[0] if memories else states)
        length = len(states)
        allowed, added = None, 0.0
        if site.startswith("decoder") and site.endswith("self"):
            allowed = np.tril(np.ones((length, length), dtype=bool))
        if family == "big bird":
            added = block_pattern(length, 2, 1)
            allowed = np.isfinite(added)
        wanted = explicit(query, key, allowed, added)
        found = seen[site].weights[0]
        assert np.abs(found - wanted).max() < 1e-3
        assert np.abs(found.sum(-1) - 1).max() < 2e-3
        assert allowed is None or not found[:, ~allowed].any()
        coded = decode_root8(encode_root8(found), found.shape)
        assert np.abs(coded - wanted).max() < 4e-3
        for head in range(len(found)):
            assert np.array_equal(seen[site].matrix(head), found[head])


def test_recurrent_weights_are_those_of_an_explicit_computation() -> None:
    model = families.recurrent(attention="additive", input_feeding="none")
    score = model.decoder.score  # type: ignore[union-attr]
    given: list[Any] = []
    score.register_forward_pre_hook(lambda one, inputs: given.append([part.detach().double() for part in inputs]))
    source = Tokens.from_rows([[5, 6, 7, 8, 1]])
    with torch.no_grad(), trace() as seen:
        model(source, Tokens.from_rows([[3, 7, 9]]))
    query, key = given[0]
    summed = torch.tanh((query @ score.query.weight.double().T).unsqueeze(3) + key.unsqueeze(2))
    wanted = torch.softmax(summed @ score.weigh.weight[0].double(), dim=-1).detach().numpy()
    assert [*seen] == ["decoder.attention"]
    assert np.abs(seen["decoder.attention"].weights - wanted).max() < 1e-3


def looked(**options: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    query, key = torch.randn(2, 3, 40, 8, generator=generator), torch.randn(2, 3, 40, 8, generator=generator)
    slots = torch.arange(40)[None]
    with trace(**options) as seen:
        for site in ("encoder.0.self", "encoder.1.self"):
            attend(query, key, key, mask=causal().bind(slots, slots), site=site)
    return seen


def test_only_what_is_asked_for_is_kept() -> None:
    whole = looked()["encoder.1.self"].weights
    some = looked(sites="encoder.1.self", heads=[2, 0], queries=[5, 39])
    assert [*some] == ["encoder.1.self"]
    assert some["encoder.1.self"].shape == (2, 2, 2, 40)
    assert np.array_equal(some["encoder.1.self"].weights, whole[:, [0, 2]][:, :, [5, 39]])
    assert np.array_equal(some["encoder.1.self"].matrix(2, row=1), whole[1, 2][[5, 39]])
    named = looked(sites="encoder.0.self:1")
    assert named["encoder.0.self"].head_indices == (1,)
    assert np.array_equal(named["encoder.0.self"].weights[:, 0], whole[:, 1])
    assert [*looked(layers=[1])] == ["encoder.1.self"]


def test_queries_and_keys_are_kept_where_they_are_smaller_and_give_the_same() -> None:
    whole, less = looked()["encoder.0.self"], looked(store="queries")["encoder.0.self"]
    assert whole.has_weights and not less.has_weights
    assert np.abs(whole.weights - less.weights).max() < 1e-3
    assert not less.weights[:, :, 0, 1:].any()
    np.testing.assert_allclose(less.query_rows(1, np.array([7, 3])), less.matrix(1)[[7, 3]], atol=1e-6)  # fewer rows
    one = torch.ones(1, 1, 2, 4)
    with trace(store="queries") as seen:
        attend(one, one, one, site="x")
    assert seen["x"].has_weights  # four weights are fewer than sixteen entries
    entropy = looked(store="entropy")["encoder.0.self"].entropy
    assert np.abs(entropy - whole.entropy).max() < 1e-2
    with pytest.raises(UsageError, match="no weights were kept"):
        _ = looked(store="entropy")["encoder.0.self"].weights


def test_what_is_inside_a_head_makes_its_weights() -> None:
    inside = looked(sites="encoder.0.self:1", store="inside")["encoder.0.self"].qkv
    scores = inside.query[0, 0] @ inside.key[0, 0].T / math.sqrt(8)
    assert np.isneginf(inside.scores[0, 0][0, 1:]).all()
    assert np.allclose(inside.scores[0, 0][-1], scores[-1], atol=1e-5)
    assert inside.value.shape == (2, 1, 40, 8)


def test_a_trace_within_another_leaves_that_one_open() -> None:
    one = torch.ones(1, 1, 2, 4)
    with trace("a") as outer:
        with trace("b", full_precision=True) as inner:
            for site in ("a", "b"):
                attend(one, one, one, site=site)
        attend(one, one, one, site="a")
    assert [*outer] == ["a"] and [*inner] == ["b"]
    assert outer["a"].shape == (1, 1, 4, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sites": "encoder.9.self"}, r"no encoder\.9\.self \(did you mean encoder\.1\.self\?\)"),
        ({"sites": "encodr.1.self"}, r"did you mean encoder\.1\.self"),
        ({"heads": [7]}, r"heads 0 to 2: there is no encoder\.0\.self:7 \(did you mean encoder\.0\.self:2\?\)"),
        ({"sites": "encoder.0.self:3"}, "there is no encoder.0.self:3"),
        ({"sites": "encoder.0.self:x"}, "names no head"),
        ({"layers": [4]}, r"no layer 4 \(did you mean 1\?\)"),
        ({"store": "weight"}, r"did you mean weights\?"),
    ],
)
def test_what_is_not_there_is_named_with_the_nearest(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        looked(**options)


def test_what_was_not_seen_is_named() -> None:
    seen = looked(sites="encoder.0.*", heads=[1])
    with pytest.raises(UsageError, match=r"did you mean encoder\.0\.self"):
        _ = seen["encoder.7.self"]
    with pytest.raises(UsageError, match="was not watched"):
        seen["encoder.0.self"].matrix(0)


def test_a_beam_search_has_no_single_picture() -> None:
    model = families.translator()
    with trace("decoder.*.self") as seen:
        families.searched(model, 3)
    with pytest.raises(UsageError, match="as in a beam search"):
        _ = seen["decoder.0.self"].weights
