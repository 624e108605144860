from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.bench import cost, fine_tuning, masked, translation, work
from regard.bench.child import Job
from regard.bench.ours import DROPOUTS, our_embedder
from regard.bench.peers.loop import IGNORED, padded_batches
from regard.bench.peers.transformers import masked_inputs, tuning_inputs
from regard.bench.settings import ENCODERS, MASKED, SIZES, TUNED, Size
from regard.models import build
from regard.models.encoder import Encoder


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
    encode = our_embedder(size, precision, 1)
    texts = work.texts([3, 11, 5, 2, 7], size.vocabulary)
    together = encode.embed(texts).vectors
    assert together.shape == (5, size.width)
    for number, text in enumerate(texts):
        np.testing.assert_allclose(encode(text), together[number], rtol=2e-2, atol=2e-2)
    assert not np.allclose(together[0], together[1], atol=0.1)


def test_hidden_words_are_the_same_for_the_loop_of_transformers() -> None:
    size = MASKED["tiny"]
    task = masked.task(size)
    mask = size.vocabulary - 1
    shares, hidden = [], []
    for numbers, theirs in zip(task.epoch(0, masked.budget(size)), masked_inputs(size), strict=True):
        batch = task.batch(numbers, 0)
        labels, given = theirs.named["labels"].flatten().numpy(), theirs.named["input_ids"]
        assert given.shape == (size.rows, size.longest)
        assert theirs.tokens == size.rows * size.longest
        assert given.flatten().tolist() == batch.rows.ids.tolist()
        assert np.flatnonzero(labels != IGNORED).tolist() == batch.places.tolist()
        assert labels[batch.places].tolist() == batch.targets.tolist()
        shares.append(len(batch.targets) / labels.size)
        hidden.append(float((given.flatten()[torch.from_numpy(batch.places)] == mask).float().mean()))
    assert 0.1 < np.mean(shares) < 0.16  # marks are never hidden
    assert 0.7 < np.mean(hidden) < 0.9


def test_texts_to_classify_are_the_same_for_the_loop_of_transformers() -> None:
    size = TUNED["tiny"]
    task = fine_tuning.task(size)
    batches = task.epoch(0, fine_tuning.budget(size))
    assert len({int(length) for length in task.lengths[:, 0]}) > 5
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(task.train)))
    for numbers, theirs in zip(batches, tuning_inputs(size), strict=True):
        batch = task.batch(numbers, 0)
        rows = [row[row != 0].tolist() for row in theirs.named["input_ids"]]
        assert rows == [row.tolist() for row in batch.tokens]
        assert theirs.named["labels"].tolist() == batch.wanted.tolist()
        assert theirs.tokens == int(theirs.named["attention_mask"].sum()) == len(batch.tokens.ids)


def test_encoders_that_learn_are_those_of_the_peers() -> None:
    pytest.importorskip("transformers")
    from regard.bench.peers.bert import labelling_bert, masked_bert

    for size, theirs, head in ((MASKED["tiny"], masked_bert, "masked"), (TUNED["tiny"], labelling_bert, "label")):
        config = size.config(head=head, labels=2 if head == "label" else 0, **DROPOUTS)
        model = theirs(size)
        assert sum(part.numel() for part in model.parameters()) == Encoder(config).parameter_count()
        assert (model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob) == (
            config.dropout,
            config.attention_dropout,
        )


def test_sizes_are_those_of_the_presets() -> None:
    from regard.config.model import TRANSLATOR_PRESETS

    for name in ("small", "base"):
        preset, made = TRANSLATOR_PRESETS[name], SIZES[name].config()
        assert (preset.width, preset.encoder, preset.decoder) == (made.width, made.encoder, made.decoder)
