"""Rows of a token stream: no padding, no token lost, the same for the same seed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regard.config.data import TokenizerConfig
from regard.config.rnn_models import ElmoConfig
from regard.data.documents import Documents
from regard.models.base import initialize_weights
from regard.models.elmo import Elmo
from regard.tasks.elmo import ElmoObjective, direction_losses
from regard.tasks.token_stream import TokenStream
from regard.text.train import train_tokenizer

TOKENIZER = train_tokenizer(["a b c d e f"] * 9, TokenizerConfig(kind="words"))


def build_stream(length: int, *texts: str) -> TokenStream:
    return TokenStream.from_documents(Documents.from_texts(texts), TOKENIZER, length)


def test_documents_lie_end_to_end_with_a_boundary_after_each() -> None:
    stream = build_stream(3, "a b", "c", "d e f")
    assert TOKENIZER.subwords(stream.ids) == ["▁a", "▁b", "</s>", "▁c", "</s>", "▁d", "▁e", "▁f", "</s>"]
    assert [TOKENIZER.decode(row) for row in stream.rows(np.arange(len(stream)))] == ["a b c", "c d e", "e f a"]


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 200))
def test_an_epoch_predicts_every_token_once_except_a_few(last_token: int, length: int, offset: int) -> None:
    num_tokens = last_token + 1
    stream = TokenStream(np.arange(num_tokens, dtype=np.int32), min(length, last_token), "ab")
    rows = stream.rows(np.arange(len(stream)), offset)
    assert set(rows.lengths) == {stream.length + 1}
    predicted = Counter(int(token) for row in rows for token in row[1:])
    assert set(predicted) == set(range(num_tokens))
    assert predicted.total() - num_tokens < stream.length
    for row, next_row in pairwise(rows):
        assert row[-1] == next_row[0]


def test_each_epoch_has_every_row_once_in_its_own_order_and_at_its_own_offset() -> None:
    objective = ElmoObjective(TokenStream(np.arange(141, dtype=np.int32), 4, "ab"), seed=1)
    batches = objective.epoch_batches(0, 12)
    repeated = objective.epoch_batches(0, 12)
    next_epoch = objective.epoch_batches(1, 12)
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in repeated]
    assert sorted(np.concatenate(batches)) == sorted(np.concatenate(next_epoch)) == list(range(len(objective.train)))
    assert [len(batch) for batch in batches[:-1]] == [3] * (len(batches) - 1)
    assert np.concatenate(batches).tolist() != np.concatenate(next_epoch).tolist()
    batch = objective.batch(batches[0], 0)
    assert (batch.rows.ids == objective.batch(batches[0], 0).rows.ids).all()
    assert (batch.rows.ids != objective.batch(batches[0], 1).rows.ids).any()
    assert batch.num_predictions == 2 * 3 * 4


def test_the_mean_loss_is_over_all_rows() -> None:
    model = Elmo(ElmoConfig(vocab_size=TOKENIZER.vocab_size, hidden_size=5))
    initialize_weights(model, 1)
    stream = build_stream(3, *(["a b c", "d e f"] * 50))
    forward, backward = direction_losses(model, stream)
    all_rows = stream.rows(np.arange(len(stream)))
    expected = [float(loss) / (3 * len(stream)) for loss in model.losses(all_rows)]
    np.testing.assert_allclose([forward, backward], expected, rtol=1e-5)
