"""Memory networks: position encoding and hops by hand, tying, the linear start, and members that keep to themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.attention.trace import trace
from regard.config.rnn_models import MemoryNetworkConfig
from regard.errors import ConfigError, UsageError
from regard.models.layers.memory import BagOfWords, position_encoding_factors
from regard.models.memory_network import MemoryNetwork, StoryBatch
from regard.tokens import Tokens

STORIES = [[[2, 3, 4], [5, 6]], [[7, 8, 9], [3, 3], [10, 2, 5]], [[4]]]
QUESTIONS = [[0, 1, 2], [1], [0, 9]]


def told(numbers: list[int]) -> StoryBatch:
    ages = [age for number in numbers for age in range(len(STORIES[number]))[::-1]]
    return StoryBatch(
        Tokens.from_rows([QUESTIONS[number] for number in numbers]),
        Tokens.from_rows([sentence for number in numbers for sentence in STORIES[number]]),
        np.array(ages),
        np.array([len(STORIES[number]) for number in numbers]),
    )


def small(members: int = 1, **changes: object) -> MemoryNetwork:
    config = MemoryNetworkConfig(vocab_size=11, max_sentence_words=3, memory_size=5, embedding_size=7, hops=2).override(
        changes
    )
    model = MemoryNetwork(config, members)
    model.initialize(seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(7)  # sharp enough that a mistake shows
    return model


def published_weight(entry: int, place: int, width: int, longest: int) -> float:
    """Entry k of word j, both from 1 (Sukhbaatar et al. 2015, section 4.1, written out)."""
    return 1 + 4 * (entry - (width + 1) / 2) * (place - (longest + 1) / 2) / (width * longest)


def encoded(model: MemoryNetwork, table: int, words: list[int], age: int | None) -> np.ndarray:
    """The sentence as the paper sums it: word by word, entry by entry; the age is the last word of all."""
    config, weights = model.config, model.tables[table].detach().numpy()[:, 0]
    longest = config.max_sentence_words + int(config.temporal_encoding)
    placed = list(enumerate(words, start=1))
    if age is not None and config.temporal_encoding:
        placed.append((longest, config.vocab_size + age))
    summed = np.zeros(config.embedding_size)
    for place, word in placed:
        for entry in range(config.embedding_size):
            weight = (
                published_weight(entry + 1, place, config.embedding_size, longest)
                if config.sentence_encoding == "position"
                else 1
            )
            summed[entry] += weight * weights[word, entry]
    return summed


def by_hand(model: MemoryNetwork, number: int, *, linear: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits and each hop's weights, one sentence and one hop at a time."""
    config, sentences = model.config, STORIES[number]
    tables = [(k, k + 1) for k in range(config.hops)] if config.tying == "adjacent" else [(1, 2)] * config.hops
    state = encoded(model, 0, QUESTIONS[number], None)
    looked = []
    for key, value in tables:
        ages = range(len(sentences))[::-1]
        keys = np.stack([encoded(model, key, words, age) for words, age in zip(sentences, ages, strict=True)])
        values = np.stack([encoded(model, value, words, age) for words, age in zip(sentences, ages, strict=True)])
        scores = keys @ state
        empty = config.memory_size - len(sentences) if config.empty_memories else 0
        weights = scores if linear else np.exp(scores) / (np.exp(scores).sum() + empty)
        looked.append(weights)
        turned = state if model.turn is None else state @ model.turn[0].detach().numpy()
        state = turned + weights @ values
    answers = model.tables[config.hops if config.tying == "adjacent" else 3].detach().numpy()[: config.vocab_size, 0]
    return answers @ state, looked


VARIANTS = [
    {},
    {"sentence_encoding": "bag"},
    {"temporal_encoding": False},
    {"empty_memories": False},
    {"tying": "layerwise", "hops": 3},
    {"hops": 1, "embedding_size": 4},
]


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_answers_and_weights_are_those_computed_by_hand(changes: dict[str, object], linear: bool) -> None:
    model, batch = small(**changes), told([0, 1, 2])
    with trace("hop.*", full_precision=True) as seen:
        logits = model.logits(model(batch, linear=linear))
    assert list(seen) == [f"hop.{number}" for number in range(model.config.hops)]
    ends = np.append(0, np.cumsum(batch.counts))
    for number in range(3):
        wanted, looked = by_hand(model, number, linear=linear)
        np.testing.assert_allclose(logits[0, number].detach().numpy(), wanted, rtol=2e-4, atol=2e-4)
        for hop, weights in enumerate(looked):
            found = seen[f"hop.{hop}"].weights[0, 0, number]
            np.testing.assert_allclose(found[ends[number] : ends[number + 1]], weights, rtol=2e-4, atol=2e-4)


def test_position_weights_factor_the_published_ones() -> None:
    a, b = position_encoding_factors(5, 3)
    for entry in range(5):
        for place in range(3):
            wanted = published_weight(entry + 1, place + 1, 5, 3)
            assert float(1 + a[entry] * b[place]) == pytest.approx(wanted, abs=1e-6)


def test_weights_of_a_hop_sum_to_one_and_stay_in_their_story() -> None:
    batch = told([1, 0])
    with trace(full_precision=True) as seen:
        small(empty_memories=False)(batch)
        small(empty_memories=True)(batch)
    without, with_empty = (part.values for part in seen["hop.0"].captures)
    np.testing.assert_allclose(without.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(with_empty.sum(-1), 1, atol=1e-6)
    assert not without[0, 0, 0, 3:].any() and not without[0, 0, 1, :3].any()
    assert (with_empty[0, 0, :, -1] > 0).all()  # what went to nothing


def test_a_full_memory_has_no_empty_places() -> None:
    batch = told([1])
    with trace("hop.0", full_precision=True) as seen:
        small(memory_size=3)(batch)
    assert seen["hop.0"].weights[0, 0, 0, -1] == pytest.approx(0, abs=1e-12)


def test_the_answer_does_not_depend_on_being_watched_or_on_the_others_in_the_batch() -> None:
    model = small()
    whole = model(told([0, 1, 2]))
    with trace(full_precision=True):
        assert torch.equal(model(told([0, 1, 2])), whole)
    for number in range(3):
        torch.testing.assert_close(model(told([number]))[:, 0], whole[:, number])


@pytest.mark.parametrize("tying", ["adjacent", "layerwise"])
def test_members_are_networks_of_their_own(tying: str) -> None:
    model, batch, answers = small(3, tying=tying), told([0, 1]), np.array([4, 8])
    losses, right = model.loss(batch, answers)
    losses.sum().backward()
    for number in range(3):
        alone = model.restart(number)
        loss, hits = alone.loss(batch, answers)
        loss.sum().backward()
        assert loss.item() == pytest.approx(losses[number].item(), rel=1e-5)
        assert (hits[0] == right[number]).all()
        for (name, part), (_, whole) in zip(alone.named_parameters(), model.named_parameters(), strict=True):
            assert part.grad is not None and whole.grad is not None
            wanted = whole.grad[number : number + 1] if name == "turn" else whole.grad[:, number : number + 1]
            torch.testing.assert_close(part.grad, wanted)
    first = MemoryNetwork(model.config)
    first.initialize(seed=5)  # the third of three starts from seed 3
    model.initialize(seed=3)
    assert torch.equal(first.tables[0], model.tables[0][:, 2:])


def test_tying_decides_how_many_tables_there_are() -> None:
    assert len(small(hops=3).tables) == 4
    assert small(hops=3).turn is None
    layerwise = small(hops=3, tying="layerwise")
    assert len(layerwise.tables) == 4
    assert layerwise.turn is not None
    assert len(small(hops=5, tying="layerwise").tables) == 4
    assert small().num_parameters() == 3 * (11 + 5) * 7


def test_gradients_are_those_of_differences() -> None:
    words = Tokens.from_rows([[0, 2, 2], [], [1]])
    bags = BagOfWords(words, np.array([0.5, -1, 2, 3], dtype=np.float32), size=5)
    table = torch.randn(5, 2, 3, requires_grad=True)
    tilt = torch.tensor([0.1, -0.7, 1.3])
    dense = torch.zeros(3, 5, 3)
    for row, (ids, weights) in enumerate([([0, 2, 2], [0.5, -1, 2]), ([], []), ([1], [3])]):
        for word, weight in zip(ids, weights, strict=True):
            dense[row, word] += 1 + weight * tilt
    wanted = torch.einsum("rwd,wmd->rmd", dense, table)
    found = bags.matmul(table, tilt)
    torch.testing.assert_close(found, wanted)
    (gradient,) = torch.autograd.grad((found**2).sum(), table)
    (other,) = torch.autograd.grad((wanted**2).sum(), table)
    torch.testing.assert_close(gradient, other)


def test_what_the_model_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hops \(0\) must be at least 1"):
        MemoryNetworkConfig(hops=0)
    with pytest.raises(ConfigError, match="encoding must be one of bag, position, not 'bags' .did you mean bag"):
        MemoryNetworkConfig(sentence_encoding="bags")
    with pytest.raises(ConfigError, match="vocabulary, longest and width come from"):
        MemoryNetwork(MemoryNetworkConfig())
    with pytest.raises(UsageError, match="a question has 3 words but the model holds 2"):
        small(max_sentence_words=2)(told([0]))
    with pytest.raises(UsageError, match="a story has 3 sentences but the model remembers 2"):
        small(memory_size=2)(told([1]))
