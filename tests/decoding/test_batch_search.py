"""Many rows at once: in batches within their budgets, answered in their own order."""

from __future__ import annotations

import numpy as np
import pytest

from regard.config.inference import DecodingConfig
from regard.decoding.batch_search import batch_by_length, search_all


@pytest.mark.parametrize("setting", [{"batch_size": 1}, {"batch_size": 7}, {"batch_tokens": 11}, {}])
def test_rows_are_answered_in_their_order(table_generator, random_source, setting):
    generator, rows = table_generator(13), list(random_source(23))
    found = search_all(generator, rows, DecodingConfig(beam=3, **setting), max_length=50)
    for row, hypotheses in zip(rows, found, strict=True):
        assert hypotheses[0].logprob == pytest.approx(generator.total(row, hypotheses[0].ids), abs=1e-5)
        assert hypotheses == search_all(generator, [row], DecodingConfig(beam=3), max_length=50)[0]


def test_limits_come_from_the_length_of_the_source(table_generator, random_source):
    generator, rows = table_generator(40, sharpness=0.1), list(random_source(12))
    config = DecodingConfig(beam=1, max_length_a=1.5, max_length_b=2)
    for row, found in zip(rows, search_all(generator, rows, config, max_length=7), strict=True):
        limit = min(7, int(np.ceil(1.5 * len(row))) + 2)
        assert len(found[0].ids) <= limit
        assert found[0].finished or len(found[0].ids) == limit


def test_budgets_hold():
    lengths = np.random.default_rng(1).integers(1, 9, (50, 1))
    made = list(batch_by_length(lengths, DecodingConfig(batch_tokens=20, batch_size=6)))
    assert sorted(np.concatenate(made).tolist()) == list(range(50))
    assert all(len(batch) <= 6 and lengths[batch].sum() <= 20 for batch in made)


def test_no_rows_give_nothing(table_generator):
    assert search_all(table_generator(), [], DecodingConfig(), max_length=5) == []
