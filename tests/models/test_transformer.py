"""The Transformer: steps equal the forward pass, sequences equal themselves alone, every weight has a gradient."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from regard.attention.dropout import Noise
from regard.attention.trace import trace
from regard.components import POSITIONS
from regard.config.models import StackConfig, TransformerConfig
from regard.errors import ConfigError
from regard.models import build_model
from regard.models.base import initialize_weights, top_candidates
from regard.models.transformer import Transformer
from regard.packed_tokens import Tokens
from tests.models.encoder_decoders import check_steps_equal_the_forward_pass

SOURCE = Tokens.from_rows([[5, 6, 7, 8, 1], [9, 1], [10, 11, 1]])
TARGET = Tokens.from_rows([[12, 13], [14, 15, 16, 17], [18]])


def build_transformer(**changes: object) -> Transformer:
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
    *({"norm_placement": placement, "positions": kind} for placement in ("pre", "post") for kind in POSITIONS),
    {"share_embeddings": False, "target_vocab_size": 29},
    {"tie_embeddings": False},
    {"output_bias": True, "activation": "silu", "scale_embedding": False},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_steps_equal_the_forward_pass_and_sequences_equal_themselves_alone(changes: dict[str, object]) -> None:
    model = build_transformer(**changes)
    check_steps_equal_the_forward_pass(model, SOURCE, TARGET, 1e-3)


def test_rows_can_be_selected_dropped_and_repeated_at_any_time() -> None:
    model = build_transformer()
    state = model.start(SOURCE, max_length=8).select(np.array([0, 0, 1, 1, 2, 2]))
    _, state = model.step(np.array([3, 3, 3, 3, 3, 3]), state, 2)
    state = state.select(np.array([1, 0, 5]))  # one sentence dropped, unequal numbers of rows
    candidates, _ = model.step(np.array([7, 8, 9]), state, 0)
    for row, (sentence, token) in enumerate(((0, 7), (0, 8), (2, 9))):
        single = model.start(Tokens.from_rows([SOURCE.row(sentence)]), max_length=8)
        _, single = model.step(np.array([3]), single, 1)
        expected, _ = model.step(np.array([token]), single, 0)
        np.testing.assert_allclose(candidates.logprobs[row], expected.logprobs[0], atol=1e-4)


@pytest.mark.parametrize(("columns", "k"), [(31, 4), (64 * 11, 4), (64 * 11, 11), (64 * 3, 64 * 3)])
def test_the_top_candidates_are_those_of_the_full_distribution(columns: int, k: int) -> None:
    logits = 3 * torch.randn(5, columns, generator=torch.Generator().manual_seed(1))
    top = top_candidates(logits, k, columns, eos_id=1)
    full = top_candidates(logits, 0, columns, eos_id=1)
    np.testing.assert_allclose(top.eos_logprobs, full.logprobs[:, 1], atol=1e-5)
    np.testing.assert_allclose(np.exp(full.logprobs).sum(1), 1, atol=1e-5)
    for row in range(5):
        order = np.argsort(-full.logprobs[row], kind="stable")[:k]
        assert top.ids[row].tolist() == full.ids[row][order].tolist()
        np.testing.assert_allclose(top.logprobs[row], full.logprobs[row][order], atol=1e-5)


@pytest.mark.parametrize("norm_placement", ["pre", "post"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "tanh", "quick_gelu"])
def test_packed_weights_give_the_same_candidates(norm_placement: str, positions: str, activation: str) -> None:
    model = build_transformer(
        norm_placement=norm_placement, positions=positions, activation=activation, output_bias=True
    )
    initialize_weights(model, seed=1)  # smaller than those of `build_transformer`: rounding must not be amplified
    with torch.no_grad():
        model.lm_head_bias.normal_(generator=torch.Generator().manual_seed(2))
    packed_model = copy.deepcopy(model).pack()
    assert packed_model.decoder.layers[0].attention.qkv.packed_weight is not None
    state = model.start(SOURCE, max_length=4)
    packed_state = packed_model.start(SOURCE, max_length=4)
    for token in (3, 7, 8, 9, 10, 11):
        tokens = np.full(3, token, np.int32)
        candidates, state = model.step(tokens, state, 0)
        packed_candidates, packed_state = packed_model.step(tokens, packed_state, 0)
        assert candidates.logprobs.shape == packed_candidates.logprobs.shape == (3, model.vocab_size)
        np.testing.assert_allclose(candidates.logprobs, packed_candidates.logprobs, atol=2e-4)


def test_new_weights_are_never_decoded_with_old_packed_ones() -> None:
    model = build_transformer().pack()
    reference = build_transformer(dropout=0.2)
    initialize_weights(reference, 5)
    model.load_state_dict(reference.state_dict())
    tokens = np.full(3, 3, np.int32)
    candidates, _ = model.step(tokens, model.start(SOURCE, max_length=4), 0)
    expected, _ = reference.step(tokens, reference.start(SOURCE, max_length=4), 0)
    np.testing.assert_allclose(candidates.logprobs, expected.logprobs, atol=1e-6)
    model.pack().to(torch.bfloat16)
    assert not model.is_packed
    reference.to(torch.bfloat16)
    candidates, _ = model.step(tokens, model.start(SOURCE, max_length=4), 0)
    expected, _ = reference.step(tokens, reference.start(SOURCE, max_length=4), 0)
    assert np.array_equal(candidates.logprobs, expected.logprobs)


def test_every_weight_has_a_gradient_and_the_loss_is_the_sum_of_logprobs() -> None:
    model = build_transformer(output_bias=True, positions="learned", tie_embeddings=False)
    smoothed, plain = model.loss(SOURCE, TARGET, smoothing=0.1, noise=Noise(1, 1))
    smoothed.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    _, without_noise = model.loss(SOURCE, TARGET)
    logprob = sum(row.sum() for row in model.target_logprobs(SOURCE, TARGET))
    assert without_noise.item() == pytest.approx(-logprob, rel=1e-5)
    assert plain.item() != without_noise.item()  # dropout was on


def test_sites_are_named_after_stack_layer_and_kind() -> None:
    model = build_transformer()
    with trace() as captured:
        model.target_logprobs(SOURCE, TARGET)
    assert [*captured][:2] == ["encoder.0.self", "encoder.1.self"]
    assert {"decoder.2.self", "decoder.2.cross"} <= set(captured)
    cross = captured["decoder.0.cross"].weights
    assert cross.shape == (3, 4, 5, 5)  # sentences, heads, longest target with bos, longest source
    assert (cross[1, :, :, 2:] == 0).all()  # no attention past the end of the second source
    causal = captured["decoder.0.self"].weights
    assert (np.triu(causal, k=1) == 0).all()


def test_a_step_keeps_its_cross_attention_on_request() -> None:
    model = build_transformer()
    state = model.start(SOURCE, max_length=4)
    model.keep_attention(state)
    _, state = model.step(np.array([3, 3, 3]), state, 1)
    weights = model.last_attention(state)
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
    assert (weights[1, 2:] == 0).all()


def test_initial_weights_are_a_function_of_the_seed() -> None:
    first = build_transformer()
    second = build_transformer()
    different = build_transformer()
    initialize_weights(different, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.token_embedding.weight, different.token_embedding.weight)


def test_a_number_of_heads_that_does_not_divide_the_hidden_size_is_rejected_with_some_that_do() -> None:
    with pytest.raises(ConfigError, match=r"encoder.num_heads \(5\) must divide hidden_size \(8\): try 1, 2, 4, 8"):
        TransformerConfig(hidden_size=8, encoder=StackConfig(num_heads=5))


def test_rounding_the_token_count_up_changes_nothing_else() -> None:
    model = build_transformer(dropout=0.0)
    rounded_losses = model.loss(SOURCE, TARGET, smoothing=0.1, noise=Noise(1, 1))
    exact_losses = model.loss(SOURCE, TARGET, smoothing=0.1)
    for rounded, exact in zip(rounded_losses, exact_losses, strict=True):
        torch.testing.assert_close(rounded, exact)
    gradients = []
    for loss in (rounded_losses[0], exact_losses[0]):
        model.zero_grad()
        loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-4)
