"""`regard.search`: custom models searched and sampled."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import ConfigError, UsageError
from regard.packed_tokens import Candidates, Tokens
from regard.search import PrefixGenerator, beam_search, sample

BOS, EOS, PAD = 3, 1, 0
VOCAB = 6


def logits_of(source: list[int], prefix: list[int]) -> np.ndarray:
    """Random logits, a function of source and prefix."""
    return np.random.default_rng([*source, 99, *prefix]).normal(size=VOCAB) * 2


def next_logits(sources: list[list[int]], prefixes: np.ndarray) -> np.ndarray:
    return np.stack([logits_of(source, row.tolist()) for source, row in zip(sources, prefixes, strict=True)])


GENERATOR = PrefixGenerator(next_logits, vocab_size=VOCAB, bos_id=BOS, eos_id=EOS, pad_id=PAD)


def logprob(source: list[int], ids: list[int], *, finished: bool = True) -> float:
    """Log-probability of a text, and of its end if it is finished, written out."""
    total = 0.0
    for index, token in enumerate([*ids, *[EOS] * finished]):
        logits = logits_of(source, [BOS, *ids[:index]])
        total += logits[token] - np.log(np.exp(logits).sum())
    return total


def test_a_wide_beam_finds_the_best_of_all_texts() -> None:
    letters = [token for token in range(VOCAB) if token not in (BOS, EOS, PAD)]
    texts = [list(text) for length in range(4) for text in itertools.product(letters, repeat=length)]
    for source in ([2], [4, 5], [5, 2, 2]):
        scores = []
        for text in texts:
            logits = logits_of(source, [BOS, *text])
            finished = len(text) < 3 or bool(logits[EOS] > logits[letters].max())
            scores.append(logprob(source, text, finished=finished) / (len(text) + finished))
        scores.sort(reverse=True)
        hypotheses = beam_search(GENERATOR, [source], max_length=3, beam=60, nbest=3)[0]
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(scores[:3], abs=1e-5)
        best = hypotheses[0]
        assert best.logprob == pytest.approx(logprob(source, best.ids, finished=best.finished), abs=1e-5)


def test_a_text_does_not_depend_on_the_other_sources() -> None:
    sources = [[2], [4, 5], [5, 2, 2]]
    together = beam_search(GENERATOR, sources, max_length=7, beam=3)
    assert together == [beam_search(GENERATOR, [source], max_length=7, beam=3)[0] for source in sources]
    sampled = sample(GENERATOR, sources, max_length=7, samples=2, seed=5)
    assert sampled == [sample(GENERATOR, [source], max_length=7, samples=2, seed=5)[0] for source in sources]
    assert beam_search(GENERATOR, [], max_length=7) == []


def test_samples_follow_the_distribution() -> None:
    count = 2000 // 50
    drawn = [
        hypothesis.ids[:1]
        for seed in range(50)
        for hypothesis in sample(GENERATOR, [[2]], max_length=1, samples=count, seed=seed)[0]
    ]
    logits = logits_of([2], [BOS])
    allowed = [token for token in range(VOCAB) if token not in (BOS, PAD)]
    probabilities = np.exp(logits[allowed]) / np.exp(logits[allowed]).sum()
    for token, probability in zip(allowed, probabilities, strict=True):
        share = drawn.count([] if token == EOS else [token]) / len(drawn)
        assert abs(share - probability) < 0.05


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.01}, {"temperature": 0.01}])
def test_samples_of_the_most_likely_token_alone_are_greedy(options: dict[str, Any]) -> None:
    greedy = beam_search(GENERATOR, [[4, 5]], max_length=7, beam=1)[0][0]
    assert greedy.logprob == pytest.approx(logprob([4, 5], greedy.ids), abs=1e-5)
    for hypothesis in sample(GENERATOR, [[4, 5]], max_length=7, samples=20, **options)[0]:
        assert hypothesis.ids == greedy.ids


def test_samples_depend_on_the_seed() -> None:
    first, second = (sample(GENERATOR, [[4, 5]], max_length=7, samples=10, seed=seed)[0] for seed in (1, 2))
    assert [hypothesis.ids for hypothesis in first] != [hypothesis.ids for hypothesis in second]


def test_a_text_that_is_cut_has_the_probability_of_its_tokens() -> None:
    cut = beam_search(GENERATOR, [[5, 2]], max_length=1, beam=1)[0][0]
    assert not cut.finished
    assert cut.logprob == pytest.approx(logprob([5, 2], cut.ids, finished=False), abs=1e-5)
    assert cut.score == pytest.approx(cut.logprob)  # one token


def test_texts_begin_with_their_prefix() -> None:
    for hypotheses in (
        beam_search(GENERATOR, [[2], [4]], max_length=7, prefixes=[[5, 2], [4]]),
        sample(GENERATOR, [[2], [4]], max_length=7, prefixes=[[5, 2], [4]]),
    ):
        assert hypotheses[0][0].ids[:2] == [5, 2]
        assert hypotheses[1][0].ids[:1] == [4]


def test_no_n_gram_is_repeated_and_groups_differ() -> None:
    def repeat(sources: list[list[int]], prefixes: np.ndarray) -> np.ndarray:
        return np.tile([-20.0, -9.0, 1.0, -20.0, 0.9, -3.0], (len(prefixes), 1))

    generator = PrefixGenerator(repeat, vocab_size=VOCAB, bos_id=BOS, eos_id=EOS)
    ids = beam_search(generator, [[2]], max_length=6, beam=1, no_repeat_ngram=2)[0][0].ids
    bigrams = list(itertools.pairwise(ids))
    assert len(bigrams) == len(set(bigrams)) > 3
    plain, diverse = (
        beam_search(generator, [[2]], max_length=4, beam=2, nbest=2, diversity_penalty=penalty)[0]
        for penalty in (0.0, 5.0)
    )
    assert plain[1].ids[:1] == [2]
    assert {hypothesis.ids[0] for hypothesis in diverse} == {2, 4}


def test_logits_may_be_a_tensor_with_gradients() -> None:
    weights = torch.zeros(VOCAB, requires_grad=True)

    def next_tensor(sources: list[list[int]], prefixes: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(next_logits(sources, prefixes)) + weights

    generator = PrefixGenerator(next_tensor, vocab_size=VOCAB, bos_id=BOS, eos_id=EOS, pad_id=PAD)
    assert beam_search(generator, [[2]], max_length=5) == beam_search(GENERATOR, [[2]], max_length=5)


class LastTokenState:
    """State of a chain: no memory but the rows of the sources."""

    def __init__(self, sources: np.ndarray) -> None:
        self.sources = sources

    def select(self, rows: np.ndarray) -> LastTokenState:
        return LastTokenState(self.sources[rows])


class CountDown:
    """A generator written by hand: from the source's first token down to 4, then the end."""

    vocab_size = 9
    bos_id = 3
    eos_id = 1
    pad_id = 0

    def start(self, source: Tokens, max_length: int) -> LastTokenState:
        return LastTokenState(np.array([row[0] for row in source]))

    def step(self, tokens: np.ndarray, state: LastTokenState, k: int) -> tuple[Candidates, LastTokenState]:
        following = np.where(tokens == self.bos_id, state.sources, np.where(tokens == 4, self.eos_id, tokens - 1))
        logits = np.full((len(tokens), self.vocab_size), -9.0, np.float32)
        logits[np.arange(len(tokens)), following] = -0.01
        ids = np.argsort(-logits, axis=1).astype(np.int32)[:, : k or None]
        if k == 0:
            ids = np.sort(ids, axis=1)
        return Candidates(ids, np.take_along_axis(logits, ids, axis=1), logits[:, self.eos_id]), state


def test_a_generator_written_by_hand_is_searched() -> None:
    best = beam_search(CountDown(), [[8], [5]], max_length=9, beam=2)
    assert [hypotheses[0].ids for hypotheses in best] == [[8, 7, 6, 5, 4], [5, 4]]
    cut = beam_search(CountDown(), [[8]], max_length=2)[0][0]
    assert (cut.ids, cut.finished) == ([8, 7], False)


# ---- bad input


def test_inputs_that_cannot_be_searched_are_rejected() -> None:
    with pytest.raises(UsageError, match="max_length must be at least 1, not 0"):
        beam_search(GENERATOR, [[2]], max_length=0)
    with pytest.raises(UsageError, match="source 0 must be a sequence of token ids, not 5"):
        beam_search(GENERATOR, [5, 6], max_length=3)  # type: ignore[list-item]
    with pytest.raises(UsageError, match="prefix 1 has the token id 6; ids go from 0 to 5"):
        beam_search(GENERATOR, [[2], [2]], max_length=3, prefixes=[[2], [6]])
    with pytest.raises(UsageError, match=r"prefixes \(1\) must be as many as the source texts \(2\)"):
        beam_search(GENERATOR, [[2], [2]], max_length=3, prefixes=[[2]])
    with pytest.raises(ConfigError, match="nbest"):
        beam_search(GENERATOR, [[2]], max_length=3, beam=2, nbest=3)
    with pytest.raises(UsageError, match="eos_id must be from 0 to 5, not 6"):
        PrefixGenerator(next_logits, vocab_size=6, bos_id=3, eos_id=6)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (np.zeros(6), r"must return \[1, 6\], rows × vocabulary, but returned \[6\]"),
        (np.full((1, 6), np.nan), "returned NaN"),
        (np.full((1, 6), -np.inf), "returned -∞ for every token"),
    ],
)
def test_logits_that_cannot_be_searched_are_rejected(output: np.ndarray, message: str) -> None:
    generator = PrefixGenerator(lambda sources, prefixes: output, vocab_size=6, bos_id=3, eos_id=1)
    with pytest.raises(UsageError, match=message):
        beam_search(generator, [[2]], max_length=3)
