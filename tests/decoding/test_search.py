"""The search against trying everything, against its neighbours and against its own scores."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config.inference import DecodingConfig
from regard.decoding.search import hypothesis_score, search
from regard.errors import ConfigError, UsageError
from regard.tokens import Candidates, Tokens

PAD, END, START = 0, 1, 3
SHORT = 3  # with four words there are 85 texts of up to three tokens


def alone(generator, source, config, limits, number, **wishes):
    inner = {name: [given[number]] for name, given in wishes.items()}
    row = Tokens.from_rows([source.row(number)])
    return search(generator, row, config, max_lengths=[limits[number]], **inner)[0]


@pytest.mark.parametrize("power", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(8))
def test_a_wide_beam_finds_the_best_of_all_texts(table_generator, random_source, seed, power):
    generator, source = table_generator(7, seed=seed), random_source(5, seed)
    config = DecodingConfig(beam=64, nbest=7, length_penalty=power)
    for row, found in zip(source, search(generator, source, config, max_lengths=[SHORT] * 5), strict=True):
        scored = [
            (hypothesis_score(total, len(ids) + 1, config), ids) for ids, total in generator.everything(row, SHORT)
        ]
        best = sorted(scored, reverse=True)[:7]
        assert [hypothesis.ids for hypothesis in found] == [ids for _, ids in best]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, _ in best], abs=1e-6)


def test_greedy_takes_the_best_token_each_time(table_generator, random_source):
    generator, source = table_generator(11), random_source(9)
    for row, found in zip(source, search(generator, source, DecodingConfig(beam=1), max_lengths=[8] * 9), strict=True):
        table, ids, before, last = generator.table(row), [], START, START
        while len(ids) < 8:
            logp = table[before, last].copy()
            logp[[PAD, START]] = -np.inf
            before, last = last, int(logp.argmax())
            if last == END:
                break
            ids.append(last)
        assert found[0].ids == ids
        assert found[0].finished == (last == END) or len(ids) == 8


def test_early_stopping_never_changes_the_answer(table_generator, random_source):
    """A lane that stops by the bound gives what the full length of the limit would have given."""
    stopped = 0
    for seed in range(40):
        generator, source = table_generator(6, seed=seed, sharpness=4.0), random_source(3, seed)
        config = DecodingConfig(beam=64, length_penalty=0.5)
        found = search(generator, source, config, max_lengths=[4] * 3)
        stopped += len(generator.rows) < 5
        for row, hypotheses in zip(source, found, strict=True):
            best = max(hypothesis_score(total, len(ids) + 1, config) for ids, total in generator.everything(row, 4))
            assert hypotheses[0].score == pytest.approx(best, abs=1e-6)
    assert stopped, "no search ended before its limit: the bound was never used"


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
@given(seed=st.integers(0, 10**6), count=st.integers(1, 9), setting=SETTINGS, data=st.data())
def test_neighbours_change_nothing(table_generator, random_source, seed, count, setting, data):
    generator, source = table_generator(13, seed=seed), random_source(count, seed)
    limits = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    prefix = st.lists(st.integers(4, 12), max_size=3)
    prefixes = data.draw(st.lists(prefix, min_size=count, max_size=count))
    config = DecodingConfig(**setting)
    together = search(generator, source, config, max_lengths=limits, prefixes=prefixes)
    turned = Tokens.from_rows(list(source)[::-1])
    backwards = search(generator, turned, config, max_lengths=limits[::-1], prefixes=prefixes[::-1])[::-1]
    for number in range(count):
        assert together[number] == alone(generator, source, config, limits, number, prefixes=prefixes)
    assert together == backwards


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), setting=SETTINGS)
def test_scores_are_those_of_the_text(table_generator, random_source, seed, setting):
    generator, source = table_generator(9, seed=seed), random_source(4, seed)
    config = DecodingConfig(**setting)
    for row, found in zip(source, search(generator, source, config, max_lengths=[6] * 4), strict=True):
        assert found, "no text at all"
        assert [hypothesis.score for hypothesis in found] == sorted((h.score for h in found), reverse=True)
        for hypothesis in found:
            assert not {PAD, START, END} & set(hypothesis.ids)
            assert len(hypothesis.ids) <= 6
            assert hypothesis.finished or len(hypothesis.ids) == 6
            assert hypothesis.logprob == pytest.approx(generator.total(row, hypothesis.ids), abs=1e-5)
            looks = (
                generator.look(row, len(row))[[START, *hypothesis.ids]].sum(axis=0) if config.coverage_penalty else None
            )
            length = len(hypothesis.ids) + 1
            assert hypothesis.score == pytest.approx(
                hypothesis_score(hypothesis.logprob, length, config, looks), abs=1e-5
            )


def test_a_text_that_reaches_its_limit_is_ended_and_marked(table_generator, random_source):
    generator, source = table_generator(30, sharpness=0.1), random_source(6)
    found = search(generator, source, DecodingConfig(beam=2), max_lengths=[1, 2, 3, 4, 5, 6])
    for limit, hypotheses, row in zip(range(1, 7), found, source, strict=True):
        assert all(len(hypothesis.ids) <= limit for hypothesis in hypotheses)
        assert hypotheses[0].logprob == pytest.approx(generator.total(row, hypotheses[0].ids), abs=1e-5)
    assert not all(hypotheses[0].finished for hypotheses in found)


def test_finished_sentences_leave_the_batch(table_generator, random_source):
    generator, source = table_generator(9, sharpness=3.0), random_source(16)
    search(generator, source, DecodingConfig(beam=1), max_lengths=[3 + 2 * number for number in range(16)])
    assert generator.rows == sorted(generator.rows, reverse=True)
    assert generator.rows[0] == 16 and generator.rows[-1] < 16
    changes = [after for before, after in itertools.pairwise(generator.rows) if after != before]
    assert generator.selections == changes, "rows that stay as they are need no selection"
    assert len(changes) < len(generator.rows) - 1


def test_only_as_many_candidates_are_asked_for_as_are_needed(table_generator, random_source):
    generator, source = table_generator(60), random_source(3)
    search(generator, source, DecodingConfig(beam=4), max_lengths=[50] * 3)
    assert set(generator.asked[:-1]) == {4 + 1 + 2}  # the width, the end, and two that are never written


def test_prefixes_are_written_and_paid_for(table_generator, random_source):
    generator, source = table_generator(9), random_source(3)
    prefixes = [[4, 5, 4], [], [8]]
    for beam in (1, 4):
        found = search(generator, source, DecodingConfig(beam=beam), max_lengths=[2, 5, 5], prefixes=prefixes)
        for row, prefix, hypotheses in zip(source, prefixes, found, strict=True):
            assert hypotheses[0].ids[: len(prefix)] == prefix
            assert hypotheses[0].logprob == pytest.approx(generator.total(row, hypotheses[0].ids), abs=1e-5)


def test_diverse_alternatives_differ_more(table_generator, random_source):
    generator, source = table_generator(20, sharpness=1.0), random_source(20)

    def overlap(config):
        shared, places = 0, 0
        for found in search(generator, source, config, max_lengths=[6] * 20):
            first, *others = [hypothesis.ids for hypothesis in found]
            for other in others:
                shared += sum(a == b for a, b in zip(first, other, strict=False))
                places += min(len(first), len(other))
        return shared / places

    plain, diverse = DecodingConfig(beam=6, nbest=3), DecodingConfig(beam=6, nbest=3, diversity_penalty=3.0)
    assert overlap(diverse) < overlap(plain) / 2
    for found in search(generator, source, diverse, max_lengths=[6] * 20):
        assert len({tuple(hypothesis.ids) for hypothesis in found}) == len(found) == 3


def test_coverage_prefers_texts_that_looked_everywhere(table_generator, random_source):
    generator, source = table_generator(9), random_source(30)

    def covered(config):
        found = search(generator, source, config, max_lengths=[8] * 30)
        shares = [
            generator.look(row, len(row))[[START, *h[0].ids]].sum(axis=0) for row, h in zip(source, found, strict=True)
        ]
        return np.mean([np.minimum(share, 1).mean() for share in shares])

    assert covered(DecodingConfig(beam=8, coverage_penalty=2.0)) > covered(DecodingConfig(beam=8)) + 0.02


def test_sampling_follows_the_probabilities(table_generator):
    """Each of 3,000 sources with one table: the first tokens come as often as they are likely."""
    generator = table_generator(7, sharpness=1.0)
    logp = generator.table(np.array([5]))[START, START].astype(np.float64)
    generator.table = lambda row: np.broadcast_to(logp, (7, 7, 7)).astype(np.float32)
    source = Tokens.from_rows([[number] for number in range(3000)])
    config = DecodingConfig(beam=1, sample=True, temperature=2.0)
    found = search(generator, source, config, max_lengths=[1] * 3000)
    first = [hypotheses[0].ids[0] if hypotheses[0].ids else END for hypotheses in found]
    expected = np.exp(logp / 2.0)
    expected[[PAD, START]] = 0
    expected *= 3000 / expected.sum()
    counts = np.bincount(first, minlength=7)
    real = expected > 0
    assert not counts[~real].any()
    assert ((counts - expected)[real] ** 2 / expected[real]).sum() < 20.5  # chi-square, 4 degrees: 99.96 %
    other = search(generator, source, DecodingConfig(beam=1, sample=True, seed=2), max_lengths=[1] * 3000)
    assert found != other


def test_top_k_and_top_p_keep_few(table_generator, random_source):
    generator, source = table_generator(12, sharpness=1.0), random_source(200)
    greedy = search(generator, source, DecodingConfig(beam=1), max_lengths=[5] * 200)
    for setting in ({"top_k": 1}, {"top_p": 0.0}):
        drawn = search(generator, source, DecodingConfig(beam=1, sample=True, **setting), max_lengths=[5] * 200)
        assert [found[0].ids for found in drawn] == [found[0].ids for found in greedy]
    firsts = {}
    for found, row in zip(
        search(generator, source, DecodingConfig(beam=1, sample=True, top_k=2, nbest=20), max_lengths=[5] * 200),
        source,
        strict=True,
    ):
        logp = generator.table(row)[START, START].copy()
        logp[[PAD, START]] = -np.inf
        allowed = set(np.argsort(-logp)[:2].tolist())
        firsts = {hypothesis.ids[0] if hypothesis.ids else END for hypothesis in found}
        assert firsts <= allowed


def test_nothing_to_search_gives_nothing(table_generator):
    assert search(table_generator(), Tokens.from_rows([]), DecodingConfig(), max_lengths=[]) == []


def test_contradictions_are_refused(table_generator, random_source):
    generator, source = table_generator(), random_source(2)
    with pytest.raises(ConfigError, match="nbest is 1"):
        search(generator, source, DecodingConfig(diversity_penalty=1.0), max_lengths=[3, 3])
    with pytest.raises(UsageError, match=r"max_lengths \(1\) must be as many as the source texts \(2\)"):
        search(generator, source, DecodingConfig(), max_lengths=[3])


class SureState:
    """How many tokens each row has written."""

    def __init__(self, written):
        self.written = written

    def select(self, rows):
        return SureState(self.written[rows])


class SureGenerator:
    """Writes one text of twelve tokens and is sure of each; an early end is always its second choice."""

    vocab_size, pad_id, eos_id, bos_id = 20, 0, 1, 3
    text = (4, 5, 5, 6, 7, 8, 8, 8, 9, 10, 11, 12)

    def start(self, source, room):
        return SureState(np.zeros(len(source), np.int64))

    def step(self, tokens, state, k):
        logp = np.full((len(tokens), self.vocab_size), np.log(0.001), np.float32)
        logp[:, self.eos_id] = np.log(0.01)
        wanted = np.array([*self.text, self.eos_id] + [self.eos_id] * 50)[state.written]
        logp[np.arange(len(tokens)), wanted] = np.log(0.97)
        ids, end = np.broadcast_to(np.arange(self.vocab_size, dtype=np.int32), logp.shape), logp[:, self.eos_id]
        if k:
            order = np.argsort(-logp, axis=1, kind="stable")[:, :k]
            ids, logp = np.take_along_axis(ids, order, 1), np.take_along_axis(logp, order, 1)
        return Candidates(ids, logp, end), SureState(state.written + 1)


@pytest.mark.parametrize("beam", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("power", [0.6, 1.0])
def test_early_ends_do_not_close_a_search_whose_best_text_is_still_being_written(beam, power):
    config = DecodingConfig(beam=beam, nbest=beam, length_penalty=power)
    found = search(SureGenerator(), Tokens.from_rows([[4, 1], [5, 6, 1]]), config, max_lengths=[30, 30])
    for hypotheses in found:
        assert hypotheses[0].ids == [*SureGenerator.text]
        assert hypotheses[0].finished


@pytest.mark.parametrize("power", [0.4, 1.0, 1.6])
@pytest.mark.parametrize("seed", range(6))
def test_the_best_text_does_not_depend_on_how_many_are_asked_for(table_generator, random_source, seed, power):
    generator, source = table_generator(13, seed=seed), random_source(40, seed)
    found = []
    for nbest in (1, 2, 5):
        config = DecodingConfig(beam=5, nbest=nbest, length_penalty=power)
        found.append([texts[0] for texts in search(generator, source, config, max_lengths=[14] * 40)])
    assert found[0] == found[1] == found[2]
