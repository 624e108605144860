"""Rows of running text: nothing padded, nothing lost, the same for the same seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from regard.config.data import TokenizerConfig
from regard.config.rnn_models import ElmoConfig
from regard.data.documents import Documents
from regard.models.base import initialize_weights
from regard.models.elmo import Elmo
from regard.tasks.elmo import ElmoObjective, direction_losses
from regard.tasks.token_stream import TokenStream
from regard.text.train import train_tokenizer

WORDS = train_tokenizer(["a b c d e f"] * 9, TokenizerConfig(kind="words"))


def stream(length: int, *texts: str) -> TokenStream:
    return TokenStream.of(Documents.of(texts), WORDS, length)


def test_documents_stand_end_to_end_with_a_boundary_after_each() -> None:
    found = stream(3, "a b", "c", "d e f")
    assert WORDS.subwords(found.ids) == ["▁a", "▁b", "</s>", "▁c", "</s>", "▁d", "▁e", "▁f", "</s>"]
    assert [WORDS.decode(row) for row in found.rows(np.arange(len(found)))] == ["a b c", "c d e", "e f a"]


@given(some.integers(1, 60), some.integers(1, 20), some.integers(0, 200))
def test_every_token_is_told_once_but_for_a_few(words: int, length: int, first: int) -> None:
    text = TokenStream(np.arange(words + 1, dtype=np.int32), min(length, words), "ab")
    rows = text.rows(np.arange(len(text)), first)
    assert set(rows.lengths) == {text.length + 1}
    told = Counter(int(number) for row in rows for number in row[1:])
    assert set(told) == set(range(words + 1))
    assert told.total() - (words + 1) < text.length
    for row, following in zip(list(rows), list(rows)[1:], strict=False):
        assert row[-1] == following[0]


def test_an_epoch_has_every_row_once_in_an_order_and_at_places_of_its_own() -> None:
    task = ElmoObjective(TokenStream(np.arange(141, dtype=np.int32), 4, "ab"), seed=1)
    first, again, other = task.epoch_batches(0, 12), task.epoch_batches(0, 12), task.epoch_batches(1, 12)
    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in again]
    assert sorted(np.concatenate(first)) == sorted(np.concatenate(other)) == list(range(len(task.train)))
    assert [len(batch) for batch in first[:-1]] == [3] * (len(first) - 1)
    assert np.concatenate(first).tolist() != np.concatenate(other).tolist()
    batch, later = task.batch(first[0], 0), task.batch(first[0], 1)
    assert (batch.rows.ids == task.batch(first[0], 0).rows.ids).all()
    assert (batch.rows.ids != later.rows.ids).any()
    assert batch.num_predictions == 2 * 3 * 4


def test_the_mean_loss_is_over_all_rows() -> None:
    model = Elmo(ElmoConfig(vocab_size=WORDS.vocab_size, hidden_size=5))
    initialize_weights(model, 1)
    text = stream(3, *(["a b c", "d e f"] * 50))
    left, right = direction_losses(model, text)
    everything = text.rows(np.arange(len(text)))
    sums = [float(loss) / (3 * len(text)) for loss in model.losses(everything)]
    np.testing.assert_allclose([left, right], sums, rtol=1e-5)
