"""Ensembles: the mean of probabilities, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from regard.config.inference import DecodingConfig
from regard.decoding.ensemble import Ensemble
from regard.decoding.search import search
from regard.errors import UsageError

START = 3


def test_one_model_twice_is_that_model(table_generator, random_source):
    source, config = random_source(5), DecodingConfig(beam=3, nbest=3, coverage_penalty=0.2)
    one = search(table_generator(11, seed=4), source, config, max_lengths=[7] * 5)
    two = search(
        Ensemble([table_generator(11, seed=4), table_generator(11, seed=4)]), source, config, max_lengths=[7] * 5
    )
    for left, right in zip(one, two, strict=True):
        assert [hypothesis.ids for hypothesis in left] == [hypothesis.ids for hypothesis in right]
        assert [h.score for h in left] == pytest.approx([h.score for h in right], abs=1e-5)


@pytest.mark.parametrize("k", [0, 4])
def test_probabilities_are_averaged(table_generator, random_source, k):
    members = [table_generator(7, seed=seed) for seed in range(3)]
    source = random_source(2)
    ensemble = Ensemble(members)
    candidates, _ = ensemble.step(np.full(2, START, np.int32), ensemble.start(source, 5), k)
    for number, row in enumerate(source):
        mean = np.mean([np.exp(member.table(row)[START, START].astype(np.float64)) for member in members], axis=0)
        assert np.exp(candidates.logprobs[number]) == pytest.approx(mean[candidates.ids[number]], rel=1e-5)
        if k:
            assert candidates.ids[number].tolist() == np.argsort(-mean)[:k].tolist()


def test_the_score_is_that_of_the_mean(table_generator, random_source):
    members, source = [table_generator(7, seed=seed) for seed in (1, 2)], random_source(3)
    for row, found in zip(
        source, search(Ensemble(members), source, DecodingConfig(beam=4), max_lengths=[5] * 3), strict=True
    ):
        path = [START, START, *found[0].ids, 1]
        tables = [np.exp(member.table(row).astype(np.float64)) for member in members]
        steps = zip(path, path[1:], path[2:], strict=False)
        total = sum(np.log(np.mean([table[a, b, c] for table in tables])) for a, b, c in steps)
        assert found[0].logprob == pytest.approx(total, abs=1e-5)


def test_other_vocabularies_are_refused(table_generator):
    with pytest.raises(UsageError, match="vocab_size is 7 in model 1 and 9 in model 2"):
        Ensemble([table_generator(7), table_generator(9)])
    with pytest.raises(UsageError, match="at least one"):
        Ensemble([])
