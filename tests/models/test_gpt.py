"""The causal model: what it may know, rows alone and in company, cached and uncached, and a place that runs out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.attention.dropout import Noise
from regard.config.inference import DecodingConfig
from regard.config.models import GptConfig, StackConfig
from regard.decoding.search import search
from regard.errors import ConfigError, UsageError
from regard.models.base import initialize_weights
from regard.models.gpt import Gpt
from regard.tokens import Tokens

VOCABULARY, PLACES = 23, 24
SCHEMES = ["learned", "rotary", "sinusoidal"]


def model(positions: str = "learned", *, tied: bool = True, end: int = 1, dropout: float = 0.0) -> Gpt:
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=24)
    config = GptConfig(
        vocab_size=VOCABULARY,
        hidden_size=12,
        stack=stack,
        positions=positions,
        max_positions=PLACES,
        tie_embeddings=tied,
        eos_id=end,
        dropout=dropout,
    )
    made = Gpt(config)
    initialize_weights(made, 3)
    with torch.no_grad():  # large weights: small ones hide errors
        for name, parameter in made.named_parameters():
            parameter.normal_(0, 0.4, generator=torch.Generator().manual_seed(len(name)))
    return made.eval()


def drawn(*lengths: int) -> list[list[int]]:
    chance = np.random.default_rng(1)
    return [chance.integers(2, VOCABULARY, length).tolist() for length in lengths]


def uncached(gpt: Gpt, given: list[int], most: int) -> list[int]:
    """The likeliest continuation, everything read anew for each token."""
    written = list(given)
    while len(written) < len(given) + most:
        written.append(int(gpt.logits(Tokens.from_rows([written]))[-1].argmax()))
        if written[-1] == gpt.config.eos_id:
            return written[len(given) : -1]
    return written[len(given) :]


def greedy(gpt: Gpt, rows: list[list[int]], most: int) -> list[list[int]]:
    found = search(gpt, Tokens.from_rows(rows), DecodingConfig(beam=1), max_lengths=[most] * len(rows))
    return [one[0].ids for one in found]


@pytest.mark.parametrize("positions", SCHEMES)
def test_nothing_is_known_of_what_comes_later(positions: str) -> None:
    gpt, (row,) = model(positions), drawn(9)
    whole = gpt.logits(Tokens.from_rows([row]))
    for length in (1, 5, 8):
        torch.testing.assert_close(gpt.logits(Tokens.from_rows([row[:length]])), whole[:length], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", SCHEMES)
def test_a_row_alone_is_the_same_as_in_company(positions: str) -> None:
    gpt, rows = model(positions), drawn(7, 2, 11)
    together = gpt.logits(Tokens.from_rows(rows))
    alone = torch.cat([gpt.logits(Tokens.from_rows([row])) for row in rows])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_the_loss_is_that_of_the_next_token_whatever_the_batch_is_rounded_to() -> None:
    gpt, rows = model(), drawn(7, 7)
    wanted = sum(
        torch.nn.functional.cross_entropy(
            gpt.logits(Tokens.from_rows([row[:-1]])), torch.tensor(row[1:]), reduction="sum"
        )
        for row in rows
    )
    for noise in (None, Noise(1, 1)):  # a training batch has places that belong to nobody
        smoothed, plain = gpt.loss(Tokens.from_rows(rows), noise=noise)
        torch.testing.assert_close(plain, wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(smoothed.detach(), wanted, rtol=1e-5, atol=1e-5)


def test_dropout_is_a_function_of_seed_and_step() -> None:
    gpt, rows = model(dropout=0.3), Tokens.from_rows(drawn(9))
    losses = [gpt.loss(rows, noise=Noise(1, step))[0].item() for step in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("positions", SCHEMES)
@pytest.mark.parametrize("packed", [False, True])
def test_cached_and_uncached_write_the_same_tokens(positions: str, packed: bool) -> None:
    gpt = model(positions)
    if packed:
        gpt.pack()
    rows = drawn(4, 4, 4)
    assert greedy(gpt, rows, 18) == [uncached(gpt, row, 18) for row in rows]
    assert greedy(gpt, [rows[0][:1]], 18) == [uncached(gpt, rows[0][:1], 18)]


@pytest.mark.parametrize("positions", SCHEMES)
def test_cached_steps_have_the_logits_of_whole_rows(positions: str) -> None:
    gpt, (row,) = model(positions), drawn(15)
    wanted = torch.log_softmax(gpt.logits(Tokens.from_rows([row])), dim=-1).numpy()
    state = gpt.start(Tokens.from_rows([row[:6]]), 20)
    for place in range(5, len(row)):
        found, state = gpt.step(np.array([row[place]], np.int32), state, 0)
        np.testing.assert_allclose(found.logprobs[0], wanted[place], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_where_places_run_out_the_last_half_is_read_again(tied: bool) -> None:
    gpt, (row,) = model(tied=tied, end=-1), drawn(PLACES - 2)
    (written,) = greedy(gpt, [row], 8)
    assert len(written) == 8  # nothing ends it but the limit
    everything = [*row, *written]
    half = PLACES // 2
    for place in range(len(row), len(everything)):
        seen = everything[:place] if place <= PLACES else everything[PLACES + 1 - half : place]
        best = int(gpt.logits(Tokens.from_rows([seen]))[-1].argmax())
        assert best == everything[place], place


def test_a_longer_text_than_it_takes_is_read_from_its_last_half() -> None:
    gpt, (row,) = model(), drawn(3 * PLACES)
    assert greedy(gpt, [row], 5) == greedy(gpt, [row[-(PLACES // 2) :]], 5)


def test_draws_differ_by_seed_and_alternative_and_repeat_by_seed() -> None:
    gpt, rows = model(), Tokens.from_rows(drawn(3))

    def draws(seed: int) -> list[list[int]]:
        config = DecodingConfig(sample=True, nbest=3, seed=seed)
        return [one.ids for one in search(gpt, rows, config, max_lengths=[12])[0]]

    assert draws(1) == draws(1) != draws(2)
    assert len({tuple(ids) for ids in draws(1)}) == 3


def test_what_it_refuses() -> None:
    with pytest.raises(UsageError, match="equally many tokens"):
        model().start(Tokens.from_rows(drawn(3, 4)), 5)
    with pytest.raises(UsageError, match="equally many tokens, at least one"):
        model().start(Tokens.from_rows([[]]), 5)
    with pytest.raises(ConfigError, match=r"stack\.num_heads \(5\) must divide hidden_size"):
        GptConfig(hidden_size=12, stack=StackConfig(num_heads=5))
