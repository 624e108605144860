"""Head ablation: equal to zero columns of the output projection, in every family; without cost when unused."""

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
from regard.models.text_classifier import TextBatch
from regard.packed_tokens import Tokens

STACK = StackConfig(num_layers=2, num_heads=3, feed_forward_size=10)
SOURCE = Tokens.from_rows([[5, 6, 7, 1], [8, 1]])
TARGET = Tokens.from_rows([[4, 9, 5], [6]])
LONG = Tokens.from_rows([np.random.default_rng(3).integers(5, 20, 60) for _ in range(2)])
EQUAL_LENGTHS = Tokens.from_rows([[5 + (row + position) % 9 for position in range(8)] for row in range(8)])


def transformer() -> Model:
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


def decode_steps(model: Any, source: Tokens = SOURCE) -> np.ndarray:
    """Log-probabilities of three decoding steps, by the inference blocks."""
    state = model.start(source, 3)
    tokens = np.full(len(source), model.bos_id)
    logprobs = []
    for step in range(3):
        candidates, state = model.step(tokens, state, 0)
        logprobs.append(candidates.logprobs)
        tokens = np.full(len(source), 4 + step)
    return np.stack(logprobs)


def score_target(model: Any) -> np.ndarray:
    return np.concatenate(model.target_logprobs(SOURCE, TARGET))


@torch.no_grad()
def zero_head(model: Any, name: str, head: int) -> Any:
    """A copy of the model with the head's columns of the output projection set to zero: the definition of ablation."""
    ablated = copy.deepcopy(model)
    out = ablated.get_submodule(name).out
    head_size = out.in_features // ablated.get_submodule(name).num_heads
    out.weight[:, head * head_size : (head + 1) * head_size] = 0
    return ablated


Run = Callable[[Any], np.ndarray]
CASES: list[tuple[str, Callable[[], Any], str, str, Run]] = [
    ("whole translation", transformer, "encoder.1.self", "encoder.layers.1.attention", score_target),
    ("whole translation", transformer, "decoder.0.self", "decoder.layers.0.attention", score_target),
    ("whole translation", transformer, "decoder.1.cross", "decoder.layers.1.cross_attention", score_target),
    ("steps of a search", transformer, "encoder.1.self", "encoder.layers.1.attention", decode_steps),
    ("steps of a search", transformer, "decoder.0.self", "decoder.layers.0.attention", decode_steps),
    ("steps of a search", transformer, "decoder.1.cross", "decoder.layers.1.cross_attention", decode_steps),
    (
        "encoder, packed",
        lambda: encoder().pack(),
        "encoder.0.self",
        "encoder.layers.0.attention",
        lambda model: model.encode(LONG),
    ),
    (
        "encoder, by length",
        encoder,
        "encoder.0.self",
        "encoder.layers.0.attention",
        lambda model: model.encode(EQUAL_LENGTHS),
    ),
    (
        "encoder, block-sparse",
        lambda: encoder(attention="blocks", block_size=4, num_random_blocks=1),
        "encoder.1.self",
        "encoder.layers.1.attention",
        lambda model: model.encode(LONG),
    ),
    (
        "causal, whole",
        gpt,
        "decoder.1.self",
        "decoder.layers.1.attention",
        lambda model: model.logits(LONG).detach().numpy(),
    ),
    (
        "causal, steps",
        gpt,
        "decoder.0.self",
        "decoder.layers.0.attention",
        lambda model: decode_steps(model, EQUAL_LENGTHS),
    ),
]


@pytest.mark.parametrize(
    ("case", "build", "site", "name", "run"), CASES, ids=[f"{case[0]}, {case[2]}" for case in CASES]
)
def test_an_ablated_head_adds_nothing(case: str, build: Any, site: str, name: str, run: Run) -> None:
    model = build()
    plain = run(model)
    with ablate(f"{site}:1") as intervention:
        ablated = run(model)
        assert str(intervention) == f"{site}:1" and site in intervention.visited_sites
    zeroed = zero_head(model, name, 1)
    np.testing.assert_allclose(ablated, run(zeroed), atol=2e-5)
    assert np.abs(ablated - plain).max() > 1e-4
    np.testing.assert_array_equal(run(model), plain)  # the ablation has ended
    with ablate(site):
        site_ablated = run(model)
    for head in (0, 2):
        zeroed = zero_head(zeroed, name, head)
    np.testing.assert_allclose(site_ablated, run(zeroed), atol=2e-5)


@pytest.mark.parametrize("feeding", ["none", "context", "output"])
def test_a_recurrent_decoder_with_its_head_ablated_has_no_context(feeding: str) -> None:
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
    plain = score_target(model)
    with ablate("decoder.attention:0"):
        whole = score_target(model)
        steps = decode_steps(model)
    assert np.abs(whole - plain).max() > 1e-4
    np.testing.assert_allclose(np.exp(steps).sum(-1), 1, atol=1e-4)
    with torch.no_grad():
        precompute = model.decoder.precompute_keys_values

        def precompute_zero_values(hidden: Any, batch: Any) -> Any:
            keys_values = precompute(hidden, batch)
            return type(keys_values)(keys_values.key, torch.zeros_like(keys_values.value))

        model.decoder.precompute_keys_values = precompute_zero_values
        np.testing.assert_allclose(score_target(model), whole, atol=1e-5)
        np.testing.assert_allclose(decode_steps(model), steps, atol=1e-5)


def test_an_ablated_hop_adds_nothing() -> None:
    model = build_model(
        MemoryNetworkConfig(vocab_size=7, max_sentence_words=3, memory_size=4, embedding_size=5, hops=2)
    )
    sentences = Tokens.from_rows([[2, 3], [4, 5, 6]])
    batch = StoryBatch(Tokens.from_rows([[0, 1]]), sentences, np.array([1, 0]), np.array([2]))
    assert model.attention_sites() == {"hop.0": 1, "hop.1": 1}
    with torch.no_grad():
        with ablate("hop.0"), ablate("hop.1:0"):
            ablated = model(batch)
        questions, _ = model._bags_of_words(batch)
        embedded = questions.matmul(model.embeddings[0], model.dimension_factors).transpose(0, 1)
        expected = embedded if model.hop_projection is None else embedded @ model.hop_projection @ model.hop_projection
        np.testing.assert_allclose(ablated.numpy(), expected.numpy(), atol=1e-6)
        assert not torch.allclose(model(batch), ablated)


def test_ablated_pooling_leaves_the_bias_of_the_output() -> None:
    config = RnnClassifierConfig(
        num_labels=3, encoder=RnnTextConfig(vocab_size=11, embedding_size=5, hidden_size=7), pooling="attention"
    )
    model = build_model(config).eval()
    assert model.attention_sites() == {"pooling": 1}
    with ablate("pooling"):
        probabilities = model.probabilities(TextBatch(SOURCE))
    expected = torch.softmax(model.classifier.bias, dim=0).detach().numpy()
    np.testing.assert_allclose(probabilities, np.stack([expected] * 2), atol=1e-6)


def test_the_sites_of_a_model_are_those_that_run() -> None:
    for model, run in (
        (transformer(), score_target),
        (gpt(), lambda model: model.logits(LONG)),
        (encoder(), lambda model: model.encode(LONG)),
    ):
        with pytest.raises(UsageError, match="no nowhere"), ablate("nowhere") as intervention:
            run(model)
        assert intervention.visited_sites == model.attention_sites()


class Operators(TorchDispatchMode):
    """Names of the torch operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_without_an_ablation_no_operator_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer()
    with Operators() as usual:
        score_target(model)
    monkeypatch.setattr("regard.attention.attend.apply_ablation", lambda output, site: output)
    with Operators() as bare:
        score_target(model)
    assert usual.names == bare.names


def test_nested_ablations_add_up_and_other_threads_are_not_affected() -> None:
    ones = torch.ones(1, 2, 1, 1)
    outputs_of_thread: list[list[float]] = []

    def head_outputs(site: str = "hop.0") -> list[float]:
        return attend(ones, ones, ones, site=site).flatten().tolist()

    with ablate("hop.0:1"):
        with ablate(["hop.0:0", "hop.1:0"]):
            assert head_outputs() == [0, 0] and head_outputs("hop.1") == [0, 1]
            with disable_ablation():
                assert head_outputs() == [1, 1] and active_intervention() is None
        assert head_outputs() == [1, 0] and head_outputs("hop.1") == [1, 1]
        thread = threading.Thread(target=lambda: outputs_of_thread.append(head_outputs()))
        thread.start()
        thread.join()
        assert (
            list(WorkerPool(2).map(head_outputs, ["hop.0", "hop.0"])) == [[1, 0]] * 2
        )  # the pool inherits the context
    assert outputs_of_thread == [[1, 1]] and head_outputs() == [1, 1]
    with ablate("hop.0:1"), ablate("hop.0"):
        assert head_outputs() == [0, 0]
    with ablate("hop.0"), ablate("hop.0:1"):
        assert head_outputs() == [0, 0]


def test_gradients_of_an_ablated_head_are_zero() -> None:
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
def test_a_head_that_does_not_exist_is_rejected_with_the_nearest(heads: str, message: str) -> None:
    model = transformer()
    with pytest.raises(UsageError, match=message), ablate(heads):
        score_target(model)
    assert active_intervention() is None


def test_names_of_heads_are_parsed_by_site() -> None:
    assert parse_heads("a.1:2, a.1:0,b") == {"a.1": {0, 2}, "b": set()}
    assert parse_heads(["a.1:2", "a.1"]) == {"a.1": set()}
