"""Ensembles: the mean of probabilities, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from regard.config.inference import DecodingConfig
from regard.decoding.ensemble import Ensemble
from regard.decoding.search import search
from regard.errors import UsageError

START = 3
END = 1


def test_an_ensemble_of_equal_models_is_that_model(table_generator, random_source):
    source = random_source(5)
    config = DecodingConfig(beam=3, nbest=3, coverage_penalty=0.2)
    ensemble = Ensemble([table_generator(11, seed=4), table_generator(11, seed=4)])
    of_model = search(table_generator(11, seed=4), source, config, max_lengths=[7] * 5)
    of_ensemble = search(ensemble, source, config, max_lengths=[7] * 5)
    for left, right in zip(of_model, of_ensemble, strict=True):
        assert [hypothesis.ids for hypothesis in left] == [hypothesis.ids for hypothesis in right]
        right_scores = [hypothesis.score for hypothesis in right]
        assert [hypothesis.score for hypothesis in left] == pytest.approx(right_scores, abs=1e-5)


@pytest.mark.parametrize("k", [0, 4])
def test_probabilities_are_averaged(table_generator, random_source, k):
    members = [table_generator(7, seed=seed) for seed in range(3)]
    source = random_source(2)
    ensemble = Ensemble(members)
    candidates, _ = ensemble.step(np.full(2, START, np.int32), ensemble.start(source, 5), k)
    for index, row in enumerate(source):
        probabilities = [np.exp(member.table(row)[START, START].astype(np.float64)) for member in members]
        mean = np.mean(probabilities, axis=0)
        assert np.exp(candidates.logprobs[index]) == pytest.approx(mean[candidates.ids[index]], rel=1e-5)
        if k:
            assert candidates.ids[index].tolist() == np.argsort(-mean)[:k].tolist()


def test_the_score_is_that_of_the_mean(table_generator, random_source):
    members = [table_generator(7, seed=seed) for seed in (1, 2)]
    source = random_source(3)
    all_hypotheses = search(Ensemble(members), source, DecodingConfig(beam=4), max_lengths=[5] * 3)
    for row, hypotheses in zip(source, all_hypotheses, strict=True):
        path = [START, START, *hypotheses[0].ids, END]
        tables = [np.exp(member.table(row).astype(np.float64)) for member in members]
        logprob = 0.0
        for first, second, third in zip(path, path[1:], path[2:], strict=False):
            logprob += np.log(np.mean([table[first, second, third] for table in tables]))
        assert hypotheses[0].logprob == pytest.approx(logprob, abs=1e-5)


def test_different_vocabularies_are_refused(table_generator):
    with pytest.raises(UsageError, match="vocab_size is 7 in model 1 and 9 in model 2"):
        Ensemble([table_generator(7), table_generator(9)])
    with pytest.raises(UsageError, match="at least one"):
        Ensemble([])
