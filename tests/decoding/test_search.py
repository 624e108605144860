"""The search against exhaustive search, alone and in batches, and against its own scores."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config.inference import DecodingConfig
from regard.decoding.search import hypothesis_score, search
from regard.errors import ConfigError, UsageError
from regard.packed_tokens import Candidates, Tokens

PAD = 0
END = 1
START = 3
SHORT = 3  # with four words there are 85 texts of up to three tokens


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(8))
def test_a_wide_beam_finds_the_best_of_all_texts(table_generator, random_source, seed, length_penalty):
    generator = table_generator(7, seed=seed)
    source = random_source(5, seed)
    config = DecodingConfig(beam=64, nbest=7, length_penalty=length_penalty)
    for row, hypotheses in zip(source, search(generator, source, config, max_lengths=[SHORT] * 5), strict=True):
        scored = [
            (hypothesis_score(logprob, len(ids) + finished, config), ids)
            for ids, logprob, finished in generator.all_texts(row, SHORT)
        ]
        best = sorted(scored, reverse=True)[:7]
        best_scores = [score for score, _ in best]
        assert [hypothesis.ids for hypothesis in hypotheses] == [ids for _, ids in best]
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(best_scores, abs=1e-6)


def decode_greedily(table, max_length):
    """Token ids, and whether the last token was the end."""
    ids = []
    previous = START
    last = START
    while len(ids) < max_length:
        logprobs = table[previous, last].copy()
        logprobs[[PAD, START]] = -np.inf
        previous = last
        last = int(logprobs.argmax())
        if last == END:
            break
        ids.append(last)
    return ids, last == END


def test_greedy_search_takes_the_best_token_each_time(table_generator, random_source):
    generator = table_generator(11)
    source = random_source(9)
    all_hypotheses = search(generator, source, DecodingConfig(beam=1), max_lengths=[8] * 9)
    for row, hypotheses in zip(source, all_hypotheses, strict=True):
        ids, has_ended = decode_greedily(generator.table(row), 8)
        assert hypotheses[0].ids == ids
        assert hypotheses[0].finished == has_ended or len(ids) == 8


def test_early_stopping_never_changes_the_best_hypothesis(table_generator, random_source):
    """A lane that stops by the bound finds what a search up to the maximum length would have found."""
    num_stopped = 0
    for seed in range(40):
        generator = table_generator(6, seed=seed, sharpness=4.0)
        source = random_source(3, seed)
        config = DecodingConfig(beam=64, length_penalty=0.5)
        all_hypotheses = search(generator, source, config, max_lengths=[4] * 3)
        num_stopped += len(generator.num_rows) < 5
        for row, hypotheses in zip(source, all_hypotheses, strict=True):
            texts = generator.all_texts(row, 4)
            best = max(hypothesis_score(logprob, len(ids) + finished, config) for ids, logprob, finished in texts)
            assert hypotheses[0].score == pytest.approx(best, abs=1e-6)
    assert num_stopped, "no search ended before its maximum length: the bound was never used"


SETTINGS = st.sampled_from(
    [
        {"beam": 1},
        {"beam": 4, "nbest": 4},
        {"beam": 5, "nbest": 2, "length_penalty": 0.4, "no_repeat_ngram": 2},
        {"beam": 3, "coverage_penalty": 0.3},
        {"beam": 6, "nbest": 3, "diversity_penalty": 0.7},
        {"beam": 1, "nbest": 3, "sample": True, "temperature": 1.3},
        {"beam": 1, "sample": True, "top_k": 3, "top_p": 0.8},
    ]
)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 9), decoding=SETTINGS, data=st.data())
def test_the_other_sentences_of_a_batch_change_nothing(table_generator, random_source, seed, count, decoding, data):
    generator = table_generator(13, seed=seed)
    source = random_source(count, seed)
    max_lengths = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    prefix = st.lists(st.integers(4, 12), max_size=3)
    prefixes = data.draw(st.lists(prefix, min_size=count, max_size=count))
    config = DecodingConfig(**decoding)
    in_batch = search(generator, source, config, max_lengths=max_lengths, prefixes=prefixes)
    reversed_source = Tokens.from_rows(list(source)[::-1])
    in_reverse = search(generator, reversed_source, config, max_lengths=max_lengths[::-1], prefixes=prefixes[::-1])
    for index in range(count):
        row = Tokens.from_rows([source.row(index)])
        alone = search(generator, row, config, max_lengths=[max_lengths[index]], prefixes=[prefixes[index]])
        assert in_batch[index] == alone[0]
    assert in_batch == in_reverse[::-1]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), decoding=SETTINGS)
def test_scores_are_those_of_the_text(table_generator, random_source, seed, decoding):
    generator = table_generator(9, seed=seed)
    source = random_source(4, seed)
    config = DecodingConfig(**decoding)
    for row, hypotheses in zip(source, search(generator, source, config, max_lengths=[6] * 4), strict=True):
        assert hypotheses, "no text at all"
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            assert not {PAD, START, END} & set(hypothesis.ids)
            assert len(hypothesis.ids) <= 6
            assert hypothesis.finished or len(hypothesis.ids) == 6
            logprob = generator.logprob(row, hypothesis.ids, finished=hypothesis.finished)
            assert hypothesis.logprob == pytest.approx(logprob, abs=1e-5)
            coverage = None
            if config.coverage_penalty:
                coverage = generator.attention(row, len(row))[[START, *hypothesis.ids]].sum(axis=0)
            length = len(hypothesis.ids) + hypothesis.finished
            expected = hypothesis_score(hypothesis.logprob, length, config, coverage)
            assert hypothesis.score == pytest.approx(expected, abs=1e-5)


def test_a_text_that_reaches_its_maximum_length_is_cut_and_counts_its_tokens_alone(table_generator, random_source):
    generator = table_generator(30, sharpness=0.1)
    source = random_source(6)
    max_lengths = [1, 2, 3, 4, 5, 6]
    all_hypotheses = search(generator, source, DecodingConfig(beam=2), max_lengths=max_lengths)
    for max_length, hypotheses, row in zip(max_lengths, all_hypotheses, source, strict=True):
        assert all(len(hypothesis.ids) <= max_length for hypothesis in hypotheses)
        best = hypotheses[0]
        assert best.finished == generator.is_finished(row, best.ids, max_length)
        assert best.logprob == pytest.approx(generator.logprob(row, best.ids, finished=best.finished), abs=1e-5)
        assert best.score == hypothesis_score(best.logprob, len(best.ids) + best.finished, DecodingConfig())
    assert not all(hypotheses[0].finished for hypotheses in all_hypotheses)


def test_finished_sentences_leave_the_batch(table_generator, random_source):
    generator = table_generator(9, sharpness=3.0)
    max_lengths = [3 + 2 * index for index in range(16)]
    search(generator, random_source(16), DecodingConfig(beam=1), max_lengths=max_lengths)
    num_rows = generator.num_rows
    assert num_rows == sorted(num_rows, reverse=True)
    assert num_rows[0] == 16 and num_rows[-1] < 16
    changes = [after for before, after in itertools.pairwise(num_rows) if after != before]
    assert generator.selections == changes, "unchanged rows need no selection"
    assert len(changes) < len(num_rows) - 1


def test_only_as_many_candidates_are_requested_as_are_needed(table_generator, random_source):
    generator = table_generator(60)
    search(generator, random_source(3), DecodingConfig(beam=4), max_lengths=[50] * 3)
    assert set(generator.requested[:-1]) == {4 + 1 + 2}  # the width, the end, and two that are never generated


def test_texts_begin_with_their_prefixes_and_include_their_logprobs(table_generator, random_source):
    generator = table_generator(9)
    source = random_source(3)
    prefixes = [[4, 5, 4], [], [8]]
    for beam in (1, 4):
        config = DecodingConfig(beam=beam)
        all_hypotheses = search(generator, source, config, max_lengths=[2, 5, 5], prefixes=prefixes)
        for row, prefix, hypotheses in zip(source, prefixes, all_hypotheses, strict=True):
            assert hypotheses[0].ids[: len(prefix)] == prefix
            logprob = generator.logprob(row, hypotheses[0].ids, finished=hypotheses[0].finished)
            assert hypotheses[0].logprob == pytest.approx(logprob, abs=1e-5)


def test_diverse_alternatives_differ_more(table_generator, random_source):
    generator = table_generator(20, sharpness=1.0)
    source = random_source(20)

    def mean_overlap(config):
        num_equal = 0
        num_positions = 0
        for hypotheses in search(generator, source, config, max_lengths=[6] * 20):
            best = hypotheses[0].ids
            for alternative in hypotheses[1:]:
                num_equal += sum(left == right for left, right in zip(best, alternative.ids, strict=False))
                num_positions += min(len(best), len(alternative.ids))
        return num_equal / num_positions

    plain = DecodingConfig(beam=6, nbest=3)
    diverse = DecodingConfig(beam=6, nbest=3, diversity_penalty=3.0)
    assert mean_overlap(diverse) < mean_overlap(plain) / 2
    for hypotheses in search(generator, source, diverse, max_lengths=[6] * 20):
        assert len({tuple(hypothesis.ids) for hypothesis in hypotheses}) == len(hypotheses) == 3


def test_the_coverage_penalty_prefers_texts_that_attend_to_the_whole_source(table_generator, random_source):
    generator = table_generator(9)
    source = random_source(30)

    def mean_coverage(config):
        coverages = []
        for row, hypotheses in zip(source, search(generator, source, config, max_lengths=[8] * 30), strict=True):
            coverage = generator.attention(row, len(row))[[START, *hypotheses[0].ids]].sum(axis=0)
            coverages.append(np.minimum(coverage, 1).mean())
        return np.mean(coverages)

    with_penalty = mean_coverage(DecodingConfig(beam=8, coverage_penalty=2.0))
    assert with_penalty > mean_coverage(DecodingConfig(beam=8)) + 0.02


def test_sampling_follows_the_probabilities(table_generator):
    """All of 3,000 sources have the same table: the first tokens have the frequencies of their probabilities."""
    generator = table_generator(7, sharpness=1.0)
    logprobs = generator.table(np.array([5]))[START, START].astype(np.float64)
    generator.table = lambda row: np.broadcast_to(logprobs, (7, 7, 7)).astype(np.float32)
    source = Tokens.from_rows([[index] for index in range(3000)])
    config = DecodingConfig(beam=1, sample=True, temperature=2.0)
    samples = search(generator, source, config, max_lengths=[1] * 3000)
    first_tokens = [hypotheses[0].ids[0] if hypotheses[0].ids else END for hypotheses in samples]
    expected = np.exp(logprobs / 2.0)
    expected[[PAD, START]] = 0
    expected *= 3000 / expected.sum()
    counts = np.bincount(first_tokens, minlength=7)
    is_possible = expected > 0
    assert not counts[~is_possible].any()
    chi_square = ((counts - expected)[is_possible] ** 2 / expected[is_possible]).sum()
    assert chi_square < 20.5  # 4 degrees of freedom: 99.96 %
    other_samples = search(generator, source, DecodingConfig(beam=1, sample=True, seed=2), max_lengths=[1] * 3000)
    assert samples != other_samples


def test_top_k_and_top_p_keep_few_tokens(table_generator, random_source):
    generator = table_generator(12, sharpness=1.0)
    source = random_source(200)
    greedy = search(generator, source, DecodingConfig(beam=1), max_lengths=[5] * 200)
    for single_token in ({"top_k": 1}, {"top_p": 0.0}):
        config = DecodingConfig(beam=1, sample=True, **single_token)
        samples = search(generator, source, config, max_lengths=[5] * 200)
        assert [hypotheses[0].ids for hypotheses in samples] == [hypotheses[0].ids for hypotheses in greedy]
    config = DecodingConfig(beam=1, sample=True, top_k=2, nbest=20)
    for row, hypotheses in zip(source, search(generator, source, config, max_lengths=[5] * 200), strict=True):
        logprobs = generator.table(row)[START, START].copy()
        logprobs[[PAD, START]] = -np.inf
        allowed = set(np.argsort(-logprobs)[:2].tolist())
        first_tokens = {hypothesis.ids[0] if hypothesis.ids else END for hypothesis in hypotheses}
        assert first_tokens <= allowed


def test_no_source_texts_have_no_hypotheses(table_generator):
    assert search(table_generator(), Tokens.from_rows([]), DecodingConfig(), max_lengths=[]) == []


def test_contradictions_are_refused(table_generator, random_source):
    generator = table_generator()
    source = random_source(2)
    with pytest.raises(ConfigError, match="nbest is 1"):
        search(generator, source, DecodingConfig(diversity_penalty=1.0), max_lengths=[3, 3])
    with pytest.raises(UsageError, match=r"max_lengths \(1\) must be as many as the source texts \(2\)"):
        search(generator, source, DecodingConfig(), max_lengths=[3])


class ConfidentState:
    """Number of tokens that each row has generated."""

    def __init__(self, lengths):
        self.lengths = lengths

    def select(self, rows):
        return ConfidentState(self.lengths[rows])


class ConfidentGenerator:
    """Generates one text of twelve tokens with high probability; an early end is always its second choice."""

    vocab_size = 20
    pad_id = PAD
    eos_id = END
    bos_id = START
    text = (4, 5, 5, 6, 7, 8, 8, 8, 9, 10, 11, 12)

    def start(self, source, max_length):
        return ConfidentState(np.zeros(len(source), np.int64))

    def step(self, tokens, state, k):
        logprobs = np.full((len(tokens), self.vocab_size), np.log(0.001), np.float32)
        logprobs[:, self.eos_id] = np.log(0.01)
        next_tokens = np.array([*self.text, self.eos_id] + [self.eos_id] * 50)[state.lengths]
        logprobs[np.arange(len(tokens)), next_tokens] = np.log(0.97)
        ids = np.broadcast_to(np.arange(self.vocab_size, dtype=np.int32), logprobs.shape)
        eos_logprobs = logprobs[:, self.eos_id]
        if k:
            order = np.argsort(-logprobs, axis=1, kind="stable")[:, :k]
            ids = np.take_along_axis(ids, order, 1)
            logprobs = np.take_along_axis(logprobs, order, 1)
        return Candidates(ids, logprobs, eos_logprobs), ConfidentState(state.lengths + 1)


@pytest.mark.parametrize("beam", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("length_penalty", [0.6, 1.0])
def test_early_ends_do_not_stop_a_search_whose_best_hypothesis_is_unfinished(beam, length_penalty):
    config = DecodingConfig(beam=beam, nbest=beam, length_penalty=length_penalty)
    source = Tokens.from_rows([[4, 1], [5, 6, 1]])
    for hypotheses in search(ConfidentGenerator(), source, config, max_lengths=[30, 30]):
        assert hypotheses[0].ids == [*ConfidentGenerator.text]
        assert hypotheses[0].finished


@pytest.mark.parametrize("length_penalty", [0.4, 1.0, 1.6])
@pytest.mark.parametrize("seed", range(6))
def test_the_best_hypothesis_does_not_depend_on_how_many_are_requested(
    table_generator, random_source, seed, length_penalty
):
    generator = table_generator(13, seed=seed)
    source = random_source(40, seed)

    def best_hypotheses(nbest):
        config = DecodingConfig(beam=5, nbest=nbest, length_penalty=length_penalty)
        return [hypotheses[0] for hypotheses in search(generator, source, config, max_lengths=[14] * 40)]

    assert best_hypotheses(1) == best_hypotheses(2) == best_hypotheses(5)
