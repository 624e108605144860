"""Heads switched off: as if their part of the output projection were zero, in every family; free when nobody asks."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention.attend import attend
from regard.attention.intervention import ablate, active_intervention, disable_ablation
from regard.attention.sites import parse_heads
from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.config.rnn_models import MemoryNetworkConfig, RnnClassifierConfig, RnnTextConfig, Seq2SeqConfig
from regard.errors import UsageError
from regard.hardware import WorkerPool
from regard.models import build_model
from regard.models.base import Model, initialize_weights
from regard.models.bert import Bert, initialize_bert
from regard.models.gpt import Gpt
from regard.models.memory_network import StoryBatch
from regard.models.rnn_text import TextBatch
from regard.tokens import Tokens

STACK = StackConfig(num_layers=2, num_heads=3, feed_forward_size=10)
SOURCE, TARGET = Tokens.from_rows([[5, 6, 7, 1], [8, 1]]), Tokens.from_rows([[4, 9, 5], [6]])
LONG = Tokens.from_rows([np.random.default_rng(3).integers(5, 20, 60) for _ in range(2)])
EVEN = Tokens.from_rows([[5 + (row + place) % 9 for place in range(8)] for row in range(8)])  # read run by run


def translator() -> Model:
    model = build_model(
        TransformerConfig(source_vocab_size=11, target_vocab_size=11, hidden_size=12, encoder=STACK, decoder=STACK)
    )
    initialize_weights(model, 1)
    return model.eval()


def encoder(**changes: Any) -> Bert:
    model = Bert(BertConfig(vocab_size=20, hidden_size=12, stack=STACK, max_positions=64, **changes))
    initialize_bert(model, 1, 0.4)
    return model.eval()


def gpt() -> Gpt:
    model = Gpt(GptConfig(vocab_size=20, hidden_size=12, stack=STACK, max_positions=64, eos_id=1))
    initialize_weights(model, 2)
    return model.eval()


def stepped(model: Any, source: Tokens = SOURCE) -> np.ndarray:
    """What a search sees: one step after another, by the packed blocks."""
    state, token, made = model.start(source, 3), np.full(len(source), model.bos_id), []
    for number in range(3):
        candidates, state = model.step(token, state, 0)
        made.append(candidates.logprobs)
        token = np.full(len(source), 4 + number)
    return np.stack(made)


def scored(model: Any) -> np.ndarray:
    return np.concatenate(model.target_logprobs(SOURCE, TARGET))


@torch.no_grad()
def without(model: Any, name: str, head: int) -> Any:
    """The model with a head's columns of the output projection set to zero: the definition."""
    packed = model.__dict__.pop("packed", None)  # which cannot be copied
    made = copy.deepcopy(model)
    if packed is not None:
        model.__dict__["packed"] = packed
    out = made.get_submodule(name).out
    size = out.in_features // made.get_submodule(name).heads
    out.weight[:, head * size : (head + 1) * size] = 0
    return made


Run = Callable[[Any], np.ndarray]
PLACES: list[tuple[str, Callable[[], Any], str, str, Run]] = [
    ("whole translation", translator, "encoder.1.self", "encoder.blocks.1.attention", scored),
    ("whole translation", translator, "decoder.0.self", "decoder.blocks.0.attention", scored),
    ("whole translation", translator, "decoder.1.cross", "decoder.blocks.1.cross", scored),
    ("steps of a search", translator, "encoder.1.self", "encoder.blocks.1.attention", stepped),
    ("steps of a search", translator, "decoder.0.self", "decoder.blocks.0.attention", stepped),
    ("steps of a search", translator, "decoder.1.cross", "decoder.blocks.1.cross", stepped),
    (
        "states, packed",
        lambda: encoder().pack(),
        "encoder.0.self",
        "stack.blocks.0.attention",
        lambda m: m.encode(LONG),
    ),
    ("states, by length", encoder, "encoder.0.self", "stack.blocks.0.attention", lambda m: m.encode(EVEN)),
    (
        "states in blocks",
        lambda: encoder(attention="blocks", block_size=4, num_random_blocks=1),
        "encoder.1.self",
        "stack.blocks.1.attention",
        lambda m: m.encode(LONG),
    ),
    ("causal, whole", gpt, "decoder.1.self", "stack.blocks.1.attention", lambda m: m.logits(LONG).detach().numpy()),
    ("causal, steps", gpt, "decoder.0.self", "stack.blocks.0.attention", lambda m: stepped(m, EVEN)),
]


@pytest.mark.parametrize(("what", "make", "site", "name", "run"), PLACES, ids=[f"{one[0]}, {one[2]}" for one in PLACES])
def test_a_head_that_is_off_adds_nothing(what: str, make: Any, site: str, name: str, run: Run) -> None:
    model = make()
    plain = run(model)
    with ablate(f"{site}:1") as switched:
        found = run(model)
        assert str(switched) == f"{site}:1" and site in switched.met
    emptied = without(model, name, 1)
    np.testing.assert_allclose(found, run(emptied), atol=2e-5)
    assert np.abs(found - plain).max() > 1e-4
    np.testing.assert_array_equal(run(model), plain)  # and on again
    with ablate(site):
        all_off = run(model)
    for head in (0, 2):
        emptied = without(emptied, name, head)
    np.testing.assert_allclose(all_off, run(emptied), atol=2e-5)


@pytest.mark.parametrize("feeding", ["none", "context", "output"])
def test_a_recurrent_decoder_without_its_head_sees_nothing_of_the_source(feeding: str) -> None:
    score = "additive" if feeding == "context" else "dot"
    config = Seq2SeqConfig(
        source_vocab_size=11,
        target_vocab_size=11,
        embedding_size=6,
        hidden_size=8,
        attention=score,
        input_feeding=feeding,
    )
    model = build_model(config)
    initialize_weights(model, 1)
    model.eval()
    assert model.attention_sites() == {"decoder.attention": 1}
    plain = scored(model)
    with ablate("decoder.attention:0"):
        whole, steps = scored(model), stepped(model)
        last = np.exp(steps).sum(-1)
    assert np.abs(whole - plain).max() > 1e-4
    np.testing.assert_allclose(last, 1, atol=1e-4)
    with torch.no_grad():
        remember = model.decoder.precompute_keys_values

        def nothing(states: Any, rows: Any) -> Any:
            memory = remember(states, rows)
            return type(memory)(memory.key, torch.zeros_like(memory.value))

        model.decoder.precompute_keys_values = nothing
        np.testing.assert_allclose(scored(model), whole, atol=1e-5)
        np.testing.assert_allclose(stepped(model), steps, atol=1e-5)


def test_a_hop_that_is_off_finds_nothing() -> None:
    model = build_model(
        MemoryNetworkConfig(vocab_size=7, max_sentence_words=3, memory_size=4, embedding_size=5, hops=2)
    )
    told = StoryBatch(
        Tokens.from_rows([[0, 1]]), Tokens.from_rows([[2, 3], [4, 5, 6]]), np.array([1, 0]), np.array([2])
    )
    assert model.attention_sites() == {"hop.0": 1, "hop.1": 1}
    with torch.no_grad():
        with ablate("hop.0"), ablate("hop.1:0"):
            found = model(told)
        asked, _ = model._bags(told)
        alone = asked.matmul(model.tables[0], model.tilt).transpose(0, 1)
        state = alone if model.turn is None else alone @ model.turn @ model.turn
        np.testing.assert_allclose(found.numpy(), state.numpy(), atol=1e-6)
        assert not torch.allclose(model(told), found)


def test_pooling_that_is_off_leaves_the_bias_of_the_output() -> None:
    config = RnnClassifierConfig(
        num_labels=3, encoder=RnnTextConfig(vocab_size=11, embedding_size=5, hidden_size=7), pooling="attention"
    )
    model = build_model(config).eval()
    assert model.attention_sites() == {"pooling": 1}
    with ablate("pooling"):
        found = model.probabilities(TextBatch(SOURCE))
    wanted = torch.softmax(model.output.bias, dim=0).detach().numpy()
    np.testing.assert_allclose(found, np.stack([wanted] * 2), atol=1e-6)


def test_sites_are_those_that_run() -> None:
    for model, run in (
        (translator(), scored),
        (gpt(), lambda m: m.logits(LONG)),
        (encoder(), lambda m: m.encode(LONG)),
    ):
        with pytest.raises(UsageError, match="no nowhere"), ablate("nowhere") as switched:
            run(model)
        assert switched.met == model.attention_sites()


class Operators(TorchDispatchMode):
    """The list of torch operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_nobody_asking_costs_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    model = translator()
    with Operators() as usual:
        scored(model)
    monkeypatch.setattr("regard.attention.attend.apply_ablation", lambda mixed, site: mixed)
    monkeypatch.setattr("regard.models.layers.packed.apply_ablation", lambda mixed, site: mixed)
    with Operators() as bare:
        scored(model)
    assert usual.names == bare.names


def test_blocks_add_up_and_other_threads_are_not_touched() -> None:
    one = torch.ones(1, 2, 1, 1)
    seen: list[list[float]] = []

    def look(site: str = "hop.0") -> list[float]:
        return attend(one, one, one, site=site).flatten().tolist()

    with ablate("hop.0:1"):
        with ablate(["hop.0:0", "hop.1:0"]):
            assert look() == [0, 0] and look("hop.1") == [0, 1]
            with disable_ablation():
                assert look() == [1, 1] and active_intervention() is None
        assert look() == [1, 0] and look("hop.1") == [1, 1]
        thread = threading.Thread(target=lambda: seen.append(look()))
        thread.start()
        thread.join()
        assert list(WorkerPool(2).map(look, ["hop.0", "hop.0"])) == [[1, 0]] * 2  # batches of one's own work are
    assert seen == [[1, 1]] and look() == [1, 1]
    with ablate("hop.0:1"), ablate("hop.0"):
        assert look() == [0, 0]
    with ablate("hop.0"), ablate("hop.0:1"):
        assert look() == [0, 0]


def test_gradients_of_a_head_that_is_off_are_zero() -> None:
    value = torch.randn(1, 2, 3, 4, requires_grad=True)
    with ablate("hop.0:1"):
        attend(value.detach(), value.detach(), value, site="hop.0").sum().backward()
    assert value.grad is not None
    assert not value.grad[:, 1].any() and value.grad[:, 0].any()


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ("encoder.9.self:0", r"no encoder\.9\.self \(did you mean encoder\.1\.self\?\)"),
        ("encoder.1.slf:0", r"did you mean encoder\.1\.self\?"),
        ("encoder.1.self:3", r"heads 0 to 2: there is no encoder\.1\.self:3 \(did you mean encoder\.1\.self:2\?\)"),
        ("encoder.1.self:x", "names no head"),
        ("", "names no head"),
        (":3", "names no head"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_nearest(heads: str, message: str) -> None:
    model = translator()
    with pytest.raises(UsageError, match=message), ablate(heads):
        scored(model)
    assert active_intervention() is None


def test_names() -> None:
    assert parse_heads("a.1:2, a.1:0,b") == {"a.1": {0, 2}, "b": set()}
    assert parse_heads(["a.1:2", "a.1"]) == {"a.1": set()}
