"""Search of many rows: batches within their limits, hypotheses in the order of the rows."""

from __future__ import annotations

import numpy as np
import pytest

from regard.config.inference import DecodingConfig
from regard.decoding.batch_search import batch_by_length, search_all


@pytest.mark.parametrize("settings", [{"batch_size": 1}, {"batch_size": 7}, {"batch_tokens": 11}, {}])
def test_hypotheses_come_in_the_order_of_the_rows(table_generator, random_source, settings):
    generator = table_generator(13)
    rows = list(random_source(23))
    all_hypotheses = search_all(generator, rows, DecodingConfig(beam=3, **settings), max_length=50)
    for row, hypotheses in zip(rows, all_hypotheses, strict=True):
        logprob = generator.logprob(row, hypotheses[0].ids, finished=hypotheses[0].finished)
        assert hypotheses[0].logprob == pytest.approx(logprob, abs=1e-5)
        assert hypotheses == search_all(generator, [row], DecodingConfig(beam=3), max_length=50)[0]


def test_maximum_lengths_follow_from_the_length_of_the_source(table_generator, random_source):
    generator = table_generator(40, sharpness=0.1)
    rows = list(random_source(12))
    config = DecodingConfig(beam=1, max_length_a=1.5, max_length_b=2)
    for row, hypotheses in zip(rows, search_all(generator, rows, config, max_length=7), strict=True):
        max_length = min(7, int(np.ceil(1.5 * len(row))) + 2)
        assert len(hypotheses[0].ids) <= max_length
        assert hypotheses[0].finished or len(hypotheses[0].ids) == max_length


def test_batches_stay_within_their_limits():
    lengths = np.random.default_rng(1).integers(1, 9, (50, 1))
    batches = list(batch_by_length(lengths, DecodingConfig(batch_tokens=20, batch_size=6)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(50))
    assert all(len(batch) <= 6 and lengths[batch].sum() <= 20 for batch in batches)


def test_no_rows_have_no_hypotheses(table_generator):
    assert search_all(table_generator(), [], DecodingConfig(), max_length=5) == []
