"""Memory networks: position encoding and hops by hand, tying, the linear start, and independent restarts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from regard.attention.trace import trace
from regard.config.rnn_models import MemoryNetworkConfig
from regard.errors import ConfigError, UsageError
from regard.models.layers.memory import BagOfWords, position_encoding_factors
from regard.models.memory_network import MemoryNetwork, StoryBatch
from regard.packed_tokens import Tokens

STORIES = [[[2, 3, 4], [5, 6]], [[7, 8, 9], [3, 3], [10, 2, 5]], [[4]]]
QUESTIONS = [[0, 1, 2], [1], [0, 9]]
NUM_UPDATES = 150  # of a small network that learns the order of two sentences


def story_batch(indices: list[int]) -> StoryBatch:
    ages = [age for index in indices for age in range(len(STORIES[index]))[::-1]]
    return StoryBatch(
        Tokens.from_rows([QUESTIONS[index] for index in indices]),
        Tokens.from_rows([sentence for index in indices for sentence in STORIES[index]]),
        np.array(ages),
        np.array([len(STORIES[index]) for index in indices]),
    )


def build_network(restarts: int = 1, **changes: object) -> MemoryNetwork:
    config = MemoryNetworkConfig(vocab_size=11, max_sentence_words=3, memory_size=5, embedding_size=7, hops=2)
    model = MemoryNetwork(config.override(changes), restarts)
    model.initialize(seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(7)  # sharp enough that a mistake shows
    return model


def published_weight(dimension: int, position: int, width: int, max_words: int) -> float:
    """Dimension k of word j, both from 1 (Sukhbaatar et al. 2015, section 4.1, written out)."""
    return 1 + 4 * (dimension - (width + 1) / 2) * (position - (max_words + 1) / 2) / (width * max_words)


def encode_by_hand(model: MemoryNetwork, table: int, words: list[int], age: int | None) -> np.ndarray:
    """The sentence as the paper sums it: word by word, dimension by dimension; the age is the last word."""
    config = model.config
    embeddings = model.embeddings[table].detach().numpy()[:, 0]
    max_words = config.max_sentence_words + int(config.time_encoding == "learned")
    words_by_position = list(enumerate(words, start=1))
    if age is not None and config.time_encoding == "learned":
        words_by_position.append((max_words, config.vocab_size + age))
    encoded = np.zeros(config.embedding_size)
    for position, word in words_by_position:
        for dimension in range(config.embedding_size):
            weight = 1.0
            if config.sentence_encoding == "position":
                weight = published_weight(dimension + 1, position, config.embedding_size, max_words)
            encoded[dimension] += weight * embeddings[word, dimension]
    if age is not None and config.time_encoding == "sinusoidal":
        num_sines = (config.embedding_size + 1) // 2
        angles = [age / 10_000 ** (2 * index / config.embedding_size) for index in range(num_sines)]
        encoded += 0.1 * 2**0.5 * np.array([*np.sin(angles), *np.cos(angles)])[: config.embedding_size]
    return encoded


def answer_by_hand(model: MemoryNetwork, index: int, *, linear: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits and the weights of each hop, one sentence and one hop at a time."""
    config = model.config
    sentences = STORIES[index]
    is_adjacent = config.tying == "adjacent"
    hop_tables = [(hop, hop + 1) for hop in range(config.hops)] if is_adjacent else [(1, 2)] * config.hops
    state = encode_by_hand(model, 0, QUESTIONS[index], None)
    hop_weights = []
    for key_table, value_table in hop_tables:
        aged_sentences = list(zip(sentences, range(len(sentences))[::-1], strict=True))
        keys = np.stack([encode_by_hand(model, key_table, words, age) for words, age in aged_sentences])
        values = np.stack([encode_by_hand(model, value_table, words, age) for words, age in aged_sentences])
        scores = keys @ state
        num_empty = config.memory_size - len(sentences) if config.empty_memories else 0
        weights = scores if linear else np.exp(scores) / (np.exp(scores).sum() + num_empty)
        hop_weights.append(weights)
        mapped = state if model.hop_projection is None else state @ model.hop_projection[0].detach().numpy()
        state = mapped + weights @ values
    answers = model.embeddings[config.hops if is_adjacent else 3].detach().numpy()[: config.vocab_size, 0]
    return answers @ state, hop_weights


VARIANTS = [
    {},
    {"sentence_encoding": "bag"},
    {"time_encoding": "none"},
    {"time_encoding": "sinusoidal"},
    {"empty_memories": False},
    {"empty_memories": False, "time_encoding": "sinusoidal"},
    {"tying": "layerwise", "hops": 3},
    {"tying": "layerwise", "state_map": "none"},
    {"tying": "adjacent", "state_map": "linear"},
    {"hops": 1, "embedding_size": 4},
]


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_answers_and_weights_are_those_computed_by_hand(changes: dict[str, object], linear: bool) -> None:
    model = build_network(**changes)
    batch = story_batch([0, 1, 2])
    with trace("hop.*", full_precision=True) as captured:
        logits = model.logits(model(batch, linear=linear))
    assert list(captured) == [f"hop.{hop}" for hop in range(model.config.hops)]
    offsets = np.append(0, np.cumsum(batch.sentence_counts))
    for index in range(3):
        expected, hop_weights = answer_by_hand(model, index, linear=linear)
        np.testing.assert_allclose(logits[0, index].detach().numpy(), expected, rtol=2e-4, atol=2e-4)
        own_story = slice(offsets[index], offsets[index + 1])
        for hop, expected_weights in enumerate(hop_weights):
            weights = captured[f"hop.{hop}"].weights[0, 0, index]
            np.testing.assert_allclose(weights[own_story], expected_weights, rtol=2e-4, atol=2e-4)


def test_position_encoding_factors_give_the_published_weights() -> None:
    a, b = position_encoding_factors(5, 3)
    for dimension in range(5):
        for position in range(3):
            expected = published_weight(dimension + 1, position + 1, 5, 3)
            assert float(1 + a[dimension] * b[position]) == pytest.approx(expected, abs=1e-6)


def test_weights_of_a_hop_sum_to_one_and_stay_in_their_story() -> None:
    batch = story_batch([1, 0])
    with trace(full_precision=True) as captured:
        build_network(empty_memories=False)(batch)
        build_network(empty_memories=True)(batch)
    without_empty, with_empty = (capture.values for capture in captured["hop.0"].captures)
    np.testing.assert_allclose(without_empty.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(with_empty.sum(-1), 1, atol=1e-6)
    assert not without_empty[0, 0, 0, 3:].any() and not without_empty[0, 0, 1, :3].any()
    assert (with_empty[0, 0, :, -1] > 0).all()  # attention to the empty memories


def test_a_full_memory_has_no_empty_memories() -> None:
    batch = story_batch([1])
    with trace("hop.0", full_precision=True) as captured:
        build_network(memory_size=3)(batch)
    assert captured["hop.0"].weights[0, 0, 0, -1] == pytest.approx(0, abs=1e-12)


def test_the_answer_does_not_depend_on_a_trace_or_on_the_batch() -> None:
    model = build_network()
    together = model(story_batch([0, 1, 2]))
    with trace(full_precision=True):
        assert torch.equal(model(story_batch([0, 1, 2])), together)
    for index in range(3):
        torch.testing.assert_close(model(story_batch([index]))[:, 0], together[:, index])


@pytest.mark.parametrize("tying", ["adjacent", "layerwise"])
def test_restarts_are_independent_networks(tying: str) -> None:
    model = build_network(3, tying=tying)
    batch = story_batch([0, 1])
    answers = np.array([4, 8])
    losses, is_correct = model.loss(batch, answers)
    losses.sum().backward()
    for index in range(3):
        single = model.restart(index)
        loss, is_correct_alone = single.loss(batch, answers)
        loss.sum().backward()
        assert loss.item() == pytest.approx(losses[index].item(), rel=1e-5)
        assert (is_correct_alone[0] == is_correct[index]).all()
        member = slice(index, index + 1)
        for (name, own), (_, shared) in zip(single.named_parameters(), model.named_parameters(), strict=True):
            assert own.grad is not None and shared.grad is not None
            expected = shared.grad[member] if name == "hop_projection" else shared.grad[:, member]
            torch.testing.assert_close(own.grad, expected)
    third = MemoryNetwork(model.config)
    third.initialize(seed=5)  # the third of three restarts from seed 3
    model.initialize(seed=3)
    assert torch.equal(third.embeddings[0], model.embeddings[0][:, 2:])


def test_tying_decides_how_many_tables_there_are() -> None:
    assert len(build_network(hops=3).embeddings) == 4
    assert build_network(hops=3).hop_projection is None
    layerwise = build_network(hops=3, tying="layerwise")
    assert len(layerwise.embeddings) == 4
    assert layerwise.hop_projection is not None
    assert len(build_network(hops=5, tying="layerwise").embeddings) == 4
    assert build_network().num_parameters() == 3 * (11 + 5) * 7


def test_each_part_changes_its_own_weights_and_no_others() -> None:
    published = build_network()
    assert published.config.changed_parts() == []
    without_time = build_network(time_encoding="none")
    sinusoidal = build_network(time_encoding="sinusoidal")
    for name, weights in without_time.state_dict().items():  # a sinusoid has no weights
        assert torch.equal(weights, sinusoidal.state_dict()[name])
        assert len(published.state_dict()[name]) == len(weights) + published.config.memory_size
    mapped = build_network(state_map="linear")
    assert set(mapped.state_dict()) - set(published.state_dict()) == {"hop_projection"}
    assert all(torch.equal(weights, mapped.state_dict()[name]) for name, weights in published.state_dict().items())
    layerwise = build_network(tying="layerwise", state_map="none")
    assert set(build_network(tying="layerwise").state_dict()) - set(layerwise.state_dict()) == {"hop_projection"}


def test_without_time_encoding_the_order_of_sentences_does_not_matter() -> None:
    batch = story_batch([0])
    reordered = replace(batch, ages=batch.ages[::-1].copy())
    for time_encoding, depends_on_order in (("learned", True), ("sinusoidal", True), ("none", False)):
        model = build_network(time_encoding=time_encoding)
        assert torch.equal(model(batch), model(reordered)) != depends_on_order


def answer_with_the_latest_place(changes: dict[str, object]) -> float:
    """Train on stories "Mary garden. Mary kitchen." and "Where Mary?"; return the mean probability of right answers."""
    people = range(2)
    places = range(2, 7)
    stories = [(person, first, last) for person in people for first in places for last in places if first != last]
    batch = StoryBatch(
        Tokens.from_rows([[person] for person, _, _ in stories]),
        Tokens.from_rows([[person, place] for person, *visited in stories for place in visited]),
        ages=np.tile([1, 0], len(stories)),
        sentence_counts=np.full(len(stories), 2),
    )
    answers = np.array([last for _, _, last in stories])
    config = MemoryNetworkConfig(vocab_size=7, max_sentence_words=2, memory_size=2, embedding_size=10, hops=2)
    model = MemoryNetwork(config.override(changes))
    model.initialize(seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(NUM_UPDATES):
        losses, _ = model.loss(batch, answers)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
    logprobs = model.logits(model(batch)).detach().log_softmax(-1)[0]
    return float(logprobs[torch.arange(len(answers)), torch.from_numpy(answers)].exp().mean())


@pytest.mark.parametrize(
    ("changes", "lowest", "highest"),
    [
        ({}, 0.9, 1.0),
        ({"time_encoding": "sinusoidal"}, 0.9, 1.0),
        ({"time_encoding": "none"}, 0.4, 0.6),  # either of the two places
        ({"state_map": "linear"}, 0.9, 1.0),
        ({"tying": "layerwise"}, 0.9, 1.0),
        ({"tying": "layerwise", "state_map": "none"}, 0.9, 1.0),
        ({"empty_memories": False}, 0.9, 1.0),
    ],
    ids=str,
)
def test_a_network_learns_which_sentence_is_the_latest_where_it_can(
    changes: dict[str, object], lowest: float, highest: float
) -> None:
    assert lowest < answer_with_the_latest_place(changes) < highest


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"time_encoding": "sinusoidal"}, ["time_encoding sinusoidal"]),
        ({"tying": "layerwise", "state_map": "none"}, ["state_map none"]),
        ({"tying": "layerwise", "state_map": "linear"}, []),
        ({"state_map": "linear", "empty_memories": False}, ["state_map linear", "empty_memories false"]),
    ],
    ids=str,
)
def test_the_summary_names_the_parts_that_differ_from_the_published_network(
    changes: dict[str, object], parts: list[str]
) -> None:
    config = build_network(**changes).config
    assert config.changed_parts() == parts
    assert config.summary().endswith(", ".join(["tying", *parts]))


def test_values_and_gradients_are_those_of_the_dense_matrix() -> None:
    words = Tokens.from_rows([[0, 2, 2], [], [1]])
    bags = BagOfWords(words, np.array([0.5, -1, 2, 3], dtype=np.float32), vocab_size=5)
    table = torch.randn(5, 2, 3, requires_grad=True)
    dimension_factors = torch.tensor([0.1, -0.7, 1.3])
    dense = torch.zeros(3, 5, 3)
    for row, (ids, weights) in enumerate([([0, 2, 2], [0.5, -1, 2]), ([], []), ([1], [3])]):
        for word, weight in zip(ids, weights, strict=True):
            dense[row, word] += 1 + weight * dimension_factors
    expected = torch.einsum("rwd,wmd->rmd", dense, table)
    encoded = bags.matmul(table, dimension_factors)
    torch.testing.assert_close(encoded, expected)
    (gradient,) = torch.autograd.grad((encoded**2).sum(), table)
    (expected_gradient,) = torch.autograd.grad((expected**2).sum(), table)
    torch.testing.assert_close(gradient, expected_gradient)


def test_settings_and_stories_that_do_not_fit_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"hops \(0\) must be at least 1"):
        MemoryNetworkConfig(hops=0)
    with pytest.raises(ConfigError, match="encoding must be one of bag, position, not 'bags' .did you mean bag"):
        MemoryNetworkConfig(sentence_encoding="bags")
    with pytest.raises(ConfigError, match="time_encoding must be one of learned, sinusoidal, none, not 'rotary'"):
        MemoryNetworkConfig(time_encoding="rotary")
    with pytest.raises(ConfigError, match="state_map must be one of auto, linear, none, not 'bilinear'"):
        MemoryNetworkConfig(state_map="bilinear")
    with pytest.raises(ConfigError, match="empty_memories must be true or false, not 'some'"):
        MemoryNetworkConfig(empty_memories="some")
    with pytest.raises(ConfigError, match="vocab_size, max_sentence_words and embedding_size come from"):
        MemoryNetwork(MemoryNetworkConfig())
    with pytest.raises(UsageError, match="a question has 3 words but the model takes 2"):
        build_network(max_sentence_words=2)(story_batch([0]))
    with pytest.raises(UsageError, match="a story has 3 sentences but the model has 2 memories"):
        build_network(memory_size=2)(story_batch([1]))
