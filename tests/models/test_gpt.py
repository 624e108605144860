"""The causal language model: causality, sequences alone and in a batch, cached and uncached, and the sliding window."""

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
from regard.packed_tokens import Tokens

VOCAB_SIZE, MAX_POSITIONS = 23, 24
SCHEMES = ["learned", "rotary", "sinusoidal", "alibi", "relative", "none"]


def build_gpt(positions: str = "learned", *, tied: bool = True, eos_id: int = 1, dropout: float = 0.0) -> Gpt:
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=24)
    config = GptConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=12,
        stack=stack,
        positions=positions,
        max_positions=MAX_POSITIONS,
        tie_embeddings=tied,
        eos_id=eos_id,
        dropout=dropout,
    )
    model = Gpt(config)
    initialize_weights(model, 3)
    with torch.no_grad():  # large weights: small ones hide errors
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.4, generator=torch.Generator().manual_seed(len(name)))
    return model.eval()


def random_rows(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(2, VOCAB_SIZE, length).tolist() for length in lengths]


def generate_uncached(gpt: Gpt, prompt: list[int], max_length: int) -> list[int]:
    """The greedy continuation, with the whole text read again for each token."""
    ids = list(prompt)
    while len(ids) < len(prompt) + max_length:
        ids.append(int(gpt.logits(Tokens.from_rows([ids]))[-1].argmax()))
        if ids[-1] == gpt.config.eos_id:
            return ids[len(prompt) : -1]
    return ids[len(prompt) :]


def generate_greedily(gpt: Gpt, prompts: list[list[int]], max_length: int) -> list[list[int]]:
    beams = search(gpt, Tokens.from_rows(prompts), DecodingConfig(beam=1), max_lengths=[max_length] * len(prompts))
    return [hypotheses[0].ids for hypotheses in beams]


@pytest.mark.parametrize("positions", SCHEMES)
def test_later_tokens_do_not_change_earlier_logits(positions: str) -> None:
    gpt = build_gpt(positions)
    (row,) = random_rows(9)
    logits = gpt.logits(Tokens.from_rows([row]))
    for length in (1, 5, 8):
        prefix_logits = gpt.logits(Tokens.from_rows([row[:length]]))
        torch.testing.assert_close(prefix_logits, logits[:length], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", SCHEMES)
def test_a_sequence_alone_is_the_same_as_in_a_batch(positions: str) -> None:
    gpt = build_gpt(positions)
    rows = random_rows(7, 2, 11)
    together = gpt.logits(Tokens.from_rows(rows))
    alone = torch.cat([gpt.logits(Tokens.from_rows([row])) for row in rows])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_the_loss_is_that_of_the_next_token_whatever_the_token_count_is_rounded_to() -> None:
    gpt = build_gpt()
    rows = random_rows(7, 7)
    expected = sum(
        torch.nn.functional.cross_entropy(
            gpt.logits(Tokens.from_rows([row[:-1]])), torch.tensor(row[1:]), reduction="sum"
        )
        for row in rows
    )
    for noise in (None, Noise(1, 1)):  # a training batch has padding tokens
        smoothed, plain = gpt.loss(Tokens.from_rows(rows), noise=noise)
        torch.testing.assert_close(plain, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(smoothed.detach(), expected, rtol=1e-5, atol=1e-5)


def test_dropout_is_a_function_of_seed_and_step() -> None:
    gpt = build_gpt(dropout=0.3)
    tokens = Tokens.from_rows(random_rows(9))
    losses = [gpt.loss(tokens, noise=Noise(1, step))[0].item() for step in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("positions", SCHEMES)
@pytest.mark.parametrize("packed", [False, True])
def test_cached_and_uncached_generation_give_the_same_tokens(positions: str, packed: bool) -> None:
    gpt = build_gpt(positions)
    if packed:
        gpt.pack()
    rows = random_rows(4, 4, 4)
    assert generate_greedily(gpt, rows, 18) == [generate_uncached(gpt, row, 18) for row in rows]
    assert generate_greedily(gpt, [rows[0][:1]], 18) == [generate_uncached(gpt, rows[0][:1], 18)]


@pytest.mark.parametrize("positions", SCHEMES)
def test_cached_steps_have_the_logits_of_whole_sequences(positions: str) -> None:
    gpt = build_gpt(positions)
    (row,) = random_rows(15)
    expected = torch.log_softmax(gpt.logits(Tokens.from_rows([row])), dim=-1).numpy()
    state = gpt.start(Tokens.from_rows([row[:6]]), 20)
    for position in range(5, len(row)):
        candidates, state = gpt.step(np.array([row[position]], np.int32), state, 0)
        np.testing.assert_allclose(candidates.logprobs[0], expected[position], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_when_positions_run_out_the_last_half_is_read_again(tied: bool) -> None:
    gpt = build_gpt(tied=tied, eos_id=-1)
    (prompt,) = random_rows(MAX_POSITIONS - 2)
    (generated,) = generate_greedily(gpt, [prompt], 8)
    assert len(generated) == 8  # only the length limit ends it
    ids = [*prompt, *generated]
    half = MAX_POSITIONS // 2
    for position in range(len(prompt), len(ids)):
        context = ids[:position] if position <= MAX_POSITIONS else ids[MAX_POSITIONS + 1 - half : position]
        best = int(gpt.logits(Tokens.from_rows([context]))[-1].argmax())
        assert best == ids[position], position


def test_of_a_prompt_longer_than_all_positions_the_last_half_is_read() -> None:
    gpt = build_gpt()
    (row,) = random_rows(3 * MAX_POSITIONS)
    assert generate_greedily(gpt, [row], 5) == generate_greedily(gpt, [row[-(MAX_POSITIONS // 2) :]], 5)


def test_samples_differ_by_seed_and_alternative_and_repeat_by_seed() -> None:
    gpt = build_gpt()
    prompts = Tokens.from_rows(random_rows(3))

    def samples(seed: int) -> list[list[int]]:
        config = DecodingConfig(sample=True, nbest=3, seed=seed)
        (hypotheses,) = search(gpt, prompts, config, max_lengths=[12])
        return [hypothesis.ids for hypothesis in hypotheses]

    assert samples(1) == samples(1) != samples(2)
    assert len({tuple(ids) for ids in samples(1)}) == 3


def test_prompts_of_unequal_length_and_wrong_head_counts_are_rejected() -> None:
    with pytest.raises(UsageError, match="equally many tokens"):
        build_gpt().start(Tokens.from_rows(random_rows(3, 4)), 5)
    with pytest.raises(UsageError, match="equally many tokens, at least one"):
        build_gpt().start(Tokens.from_rows([[]]), 5)
    with pytest.raises(ConfigError, match=r"stack\.num_heads \(5\) must divide hidden_size"):
        GptConfig(hidden_size=12, stack=StackConfig(num_heads=5))
