"""The Transformer: steps equal the whole, rows equal themselves alone, gradients reach everything."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.attention.dropout import Noise
from regard.attention.trace import trace
from regard.config.models import POSITIONS, StackConfig, TransformerConfig
from regard.errors import ConfigError
from regard.models import build_model
from regard.models.base import initialize_weights, top_candidates
from regard.models.transformer import Transformer
from regard.tokens import Tokens
from tests.models.encoder_decoders import steps_equal_the_whole

SOURCE = Tokens.from_rows([[5, 6, 7, 8, 1], [9, 1], [10, 11, 1]])
TARGET = Tokens.from_rows([[12, 13], [14, 15, 16, 17], [18]])


def small(**changes: object) -> Transformer:
    encoder = StackConfig(num_layers=2, num_heads=2, feed_forward_size=17)
    decoder = StackConfig(num_layers=3, num_heads=4, feed_forward_size=19)
    config = TransformerConfig(
        source_vocab_size=23, target_vocab_size=23, hidden_size=8, encoder=encoder, decoder=decoder
    )
    model = build_model(config.override(changes))
    initialize_weights(model, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # sharp enough that a mistake shows
    return model.eval()


VARIANTS = [
    *({"norm": norm, "positions": kind} for norm in ("before", "after") for kind in POSITIONS),
    {"share_embeddings": False, "target_vocab_size": 29},
    {"tie_embeddings": False},
    {"output_bias": True, "activation": "silu", "scale_embedding": False},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_steps_equal_the_whole_and_rows_equal_themselves_alone(changes: dict[str, object]) -> None:
    model = small(**changes)
    steps_equal_the_whole(model, SOURCE, TARGET, 1e-3)


def test_rows_can_be_kept_dropped_and_repeated_at_any_time() -> None:
    model = small()
    state = model.start(SOURCE, max_length=8).select(np.array([0, 0, 1, 1, 2, 2]))
    first = np.array([3, 3, 3, 3, 3, 3])
    _, state = model.step(first, state, 2)
    state = state.select(np.array([1, 0, 5]))  # one sentence gone, unequal numbers of rows
    given = np.array([7, 8, 9])
    found, _ = model.step(given, state, 0)
    for place, (sentence, token) in enumerate(((0, 7), (0, 8), (2, 9))):
        lone = model.start(Tokens.from_rows([SOURCE.row(sentence)]), max_length=8)
        _, lone = model.step(np.array([3]), lone, 1)
        wanted, _ = model.step(np.array([token]), lone, 0)
        np.testing.assert_allclose(found.logprobs[place], wanted.logprobs[0], atol=1e-4)


@pytest.mark.parametrize(("columns", "k"), [(31, 4), (64 * 11, 4), (64 * 11, 11), (64 * 3, 64 * 3)])
def test_the_best_candidates_are_those_of_all(columns: int, k: int) -> None:
    logits = 3 * torch.randn(5, columns, generator=torch.Generator().manual_seed(1))
    few, every = top_candidates(logits, k, columns, eos_id=1), top_candidates(logits, 0, columns, eos_id=1)
    np.testing.assert_allclose(few.eos_logprobs, every.logprobs[:, 1], atol=1e-5)
    np.testing.assert_allclose(np.exp(every.logprobs).sum(1), 1, atol=1e-5)
    for row in range(5):
        order = np.argsort(-every.logprobs[row], kind="stable")[:k]
        assert few.ids[row].tolist() == every.ids[row][order].tolist()
        np.testing.assert_allclose(few.logprobs[row], every.logprobs[row][order], atol=1e-5)


@pytest.mark.parametrize("norm", ["before", "after"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "tanh", "quick_gelu"])
def test_packed_weights_give_the_same_answers(norm: str, positions: str, activation: str) -> None:
    model = small(norm=norm, positions=positions, activation=activation, output_bias=True)
    initialize_weights(model, seed=1)  # milder than `small` has them: rounding must not be amplified
    with torch.no_grad():
        model.output_bias.normal_(generator=torch.Generator().manual_seed(2))
    plain, packed = model.start(SOURCE, max_length=4), model.pack().start(SOURCE, max_length=4)
    assert plain.used is not packed.used
    for token in (3, 7, 8, 9, 10, 11):
        given = np.full(3, token, np.int32)
        (one, plain), (other, packed) = model.step(given, plain, 0), model.step(given, packed, 0)
        assert one.logprobs.shape == other.logprobs.shape == (3, model.vocab_size)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-4)


def test_new_weights_are_never_decoded_with_old_packed_ones() -> None:
    model, other = small().pack(), small(dropout=0.2)
    initialize_weights(other, 5)
    model.load_state_dict(other.state_dict())
    first = np.full(3, 3, np.int32)
    found, wanted = (one.step(first, one.start(SOURCE, max_length=4), 0)[0] for one in (model, other))
    np.testing.assert_allclose(found.logprobs, wanted.logprobs, atol=1e-6)
    model.pack().to(torch.bfloat16)
    assert model.start(SOURCE, max_length=4).used.output.weight.dtype == torch.bfloat16


def test_every_weight_gets_a_gradient_and_the_loss_is_the_scores() -> None:
    model = small(output_bias=True, positions="learned", tie_embeddings=False)
    smoothed, plain = model.loss(SOURCE, TARGET, smoothing=0.1, noise=Noise(1, 1))
    smoothed.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    silent = model.loss(SOURCE, TARGET)[1]
    assert silent.item() == pytest.approx(-sum(row.sum() for row in model.target_logprobs(SOURCE, TARGET)), rel=1e-5)
    assert plain.item() != silent.item()  # dropout was on


def test_sites_are_named_after_their_place() -> None:
    model = small()
    with trace() as seen:
        model.target_logprobs(SOURCE, TARGET)
    assert [*seen][:2] == ["encoder.0.self", "encoder.1.self"]
    assert {"decoder.2.self", "decoder.2.cross"} <= set(seen)
    cross = seen["decoder.0.cross"].weights
    assert cross.shape == (3, 4, 5, 5)  # sentences, heads, longest target with its start, longest source
    assert (cross[1, :, :, 2:] == 0).all()  # nobody looks past the end of the second source
    causal = seen["decoder.0.self"].weights
    assert (np.triu(causal, k=1) == 0).all()


def test_a_watched_step_keeps_where_it_looked() -> None:
    model = small()
    state = model.start(SOURCE, max_length=4)
    model.keep_attention(state)
    _, state = model.step(np.array([3, 3, 3]), state, 1)
    looked = model.last_attention(state)
    np.testing.assert_allclose(looked.sum(1), 1, atol=1e-5)
    assert (looked[1, 2:] == 0).all()


def test_first_weights_are_a_function_of_the_seed() -> None:
    one, two, other = (small() for _ in range(3))
    initialize_weights(other, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.words.weight, other.words.weight)


def test_heads_that_do_not_divide_the_width_are_refused_with_some_that_do() -> None:
    with pytest.raises(ConfigError, match=r"encoder.num_heads \(5\) must divide hidden_size \(8\): try 1, 2, 4, 8"):
        TransformerConfig(hidden_size=8, encoder=StackConfig(num_heads=5))


def test_rounding_the_number_of_places_changes_nothing_else() -> None:
    model = small(dropout=0.0)
    rounded = model.loss(SOURCE, TARGET, smoothing=0.1, noise=Noise(1, 1))
    exact = model.loss(SOURCE, TARGET, smoothing=0.1)
    for one, other in zip(rounded, exact, strict=True):
        torch.testing.assert_close(one, other)
    gradients = []
    for loss in (rounded[0], exact[0]):
        model.zero_grad()
        loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-4)
