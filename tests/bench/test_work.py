from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.bench import cost, translation, work
from regard.bench.child import Job
from regard.bench.ours import our_encoder
from regard.bench.peers.loop import padded_batches
from regard.bench.settings import ENCODERS, SIZES, EncoderSize, Size
from regard.models import build


def test_everybody_has_the_same_tokens() -> None:
    lengths = work.training_lengths(128, 2)
    job = Job("peers.torch", "training", "bf16", 1, {"size": {"vocabulary": 200}, "lengths": lengths})
    ours = work.batches(lengths, 200)
    theirs, tokens = padded_batches(job, 3, job.facts["size"]["vocabulary"])
    assert tokens == sum(batch.count for batch in ours) == sum(len(row) + sum(row) for _, row in lengths)
    for batch, table in zip(ours, theirs, strict=True):
        assert [row[row != 0].tolist() for row in table.source] == [row.tolist() for row in batch.source]
        assert [row[row != 0].tolist() for row in table.wanted] == [[*row.tolist(), 1] for row in batch.target]
        assert [row[row != 0].tolist() for row in table.given] == [[3, *row.tolist()] for row in batch.target]


def test_words_are_frequent_and_rare_and_within_the_vocabulary() -> None:
    (row,) = work.drawn_rows([20_000], 97, seed=1)
    counts = np.bincount(row, minlength=97)
    assert counts[:4].sum() == 0
    assert counts[4:].min() > 0
    assert counts[4] > 20 * counts[-1]
    assert len(set(map(work.word, range(30_522)))) == 30_522


def test_texts_come_back_from_their_tokens() -> None:
    tokenizer = work.tokenizer(97)
    texts = work.texts([3, 7, 1], 97)
    ids = tokenizer.encode_all(texts)
    assert [tokenizer.decode(row) for row in ids] == texts
    assert [row.tolist() for row in work.drawn_rows([3, 7, 1], 97, seed=7)] == ids


def test_shares_of_a_batch_make_the_batch() -> None:
    (batch,) = work.batches([([3, 1, 4, 1, 5], [2, 7, 1, 8, 2])], 97)
    parts = [work.share(batch, rank, 2) for rank in range(2)]
    assert sum(part.count for part in parts) == batch.count
    assert sorted(row.tolist() for part in parts for row in part.source) == sorted(row.tolist() for row in batch.source)


def test_the_weights_that_are_counted_are_those_of_the_model() -> None:
    size = Size("odd", 2, 12, 2, 20, 31, 0, 0, 0, 0)
    matrices = sum(weight.numel() for name, weight in build(size.config()).named_parameters() if weight.dim() == 2)
    assert cost.source_weights(size) + cost.target_weights(size) == matrices  # the embedding is the output, too
    pairs = [([5, 3], [2, 4])]  # with their ends 10 source and 8 target tokens
    assert cost.training(size, pairs) == 6 * (cost.source_weights(size) * 10 + cost.target_weights(size) * 8) / 8


def test_peers_write_as_many_tokens_as_we_do() -> None:
    lengths = work.sentence_lengths(64, seed=7)[0].tolist()
    rows = [[5] * length + [1] for length in lengths]
    ours = sum(length + 2 for length in lengths)  # as many as the source has, and the end
    for size in (8, 16, 64):
        theirs = sum(len(part) * count for part, count in translation.batches(rows, size))
        assert theirs == pytest.approx(ours, rel=0.03)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_vector_does_not_depend_on_the_other_texts(precision: str) -> None:
    size = ENCODERS["tiny"]
    assert isinstance(size, EncoderSize)
    encode = our_encoder(size, work.tokenizer(size.vocabulary), precision)
    texts = work.texts([3, 11, 5, 2, 7], size.vocabulary)
    together = encode(texts)
    assert together.shape == (5, size.width)
    for number, text in enumerate(texts):
        torch.testing.assert_close(encode([text])[0], together[number], rtol=2e-2, atol=2e-2)
    assert not torch.allclose(together[0], together[1], atol=0.1)


def test_sizes_are_those_of_the_presets() -> None:
    from regard.config.model import TRANSLATOR_PRESETS

    for name in ("small", "base"):
        preset, made = TRANSLATOR_PRESETS[name], SIZES[name].config()
        assert (preset.width, preset.encoder, preset.decoder) == (made.width, made.encoder, made.decoder)
