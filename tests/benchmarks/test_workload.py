"""The workload of the benchmarks: all libraries compute the same batches with models of the same size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.peers import flops, tasks, workload
from benchmarks.peers.config import (
    EMBEDDING_SIZES,
    FINE_TUNING_SIZES,
    MASKED_LM_SIZES,
    TRANSLATOR_SIZES,
    TranslatorSize,
)
from benchmarks.peers.libraries.training_loop import IGNORED, build_padded_batches
from benchmarks.peers.libraries.transformers import build_fine_tuning_batches, build_masked_lm_batches
from benchmarks.peers.regard_runner import ENCODER_DROPOUT, build_embedder
from benchmarks.peers.worker import Job
from regard.models import build_model
from regard.models.bert import Bert


def test_every_runner_trains_on_the_same_tokens() -> None:
    lengths = workload.draw_batch_lengths(128, 2)
    job = Job("libraries.torch", "training", "bf16", 1, {"size": {"vocab_size": 200}, "lengths": lengths})
    batches = workload.build_batches(lengths, 200)
    padded_batches, num_predictions = build_padded_batches(job, 3, job.settings["size"]["vocab_size"])
    assert num_predictions == sum(batch.num_predictions for batch in batches)
    assert num_predictions == sum(len(row) + sum(row) for _, row in lengths)
    for batch, padded in zip(batches, padded_batches, strict=True):
        source = [row.tolist() for row in batch.source]
        target = [row.tolist() for row in batch.target]
        assert [row[row != 0].tolist() for row in padded.source] == source
        assert [row[row != 0].tolist() for row in padded.targets] == [[*row, 1] for row in target]
        assert [row[row != 0].tolist() for row in padded.decoder_input] == [[3, *row] for row in target]


def test_token_frequencies_are_skewed_and_cover_the_vocabulary() -> None:
    (row,) = workload.draw_token_rows([20_000], 97, seed=1)
    counts = np.bincount(row, minlength=97)
    assert counts[:4].sum() == 0
    assert counts[4:].min() > 0
    assert counts[4] > 20 * counts[-1]
    assert len(set(map(workload.spell_word, range(30_522)))) == 30_522


def test_texts_are_restored_from_their_tokens() -> None:
    tokenizer = workload.build_tokenizer(97)
    texts = workload.draw_texts([3, 7, 1], 97)
    ids = tokenizer.encode_batch(texts)
    assert [tokenizer.decode(row) for row in ids] == texts
    assert [row.tolist() for row in workload.draw_token_rows([3, 7, 1], 97, seed=7)] == ids


def test_shards_partition_a_batch() -> None:
    (batch,) = workload.build_batches([([3, 1, 4, 1, 5], [2, 7, 1, 8, 2])], 97)
    shards = [workload.shard_batch(batch, rank, 2) for rank in range(2)]
    assert sum(shard.num_predictions for shard in shards) == batch.num_predictions
    sharded_rows = [row.tolist() for shard in shards for row in shard.source]
    assert sorted(sharded_rows) == sorted(row.tolist() for row in batch.source)


def test_flops_count_the_weight_matrices_of_the_model() -> None:
    size = TranslatorSize("odd", 2, 12, 2, 20, 31, 0, 0, 0, 0)
    model = build_model(size.config())
    num_weights = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    source_weights = flops.count_source_weights(size)
    target_weights = flops.count_target_weights(size)
    assert source_weights + target_weights == num_weights  # the embedding is the output projection as well
    pairs = [([5, 3], [2, 4])]  # 10 source and 8 target tokens, with end tokens
    assert flops.training_flops(size, pairs) == 6 * (source_weights * 10 + target_weights * 8) / 8


def test_peers_generate_as_many_tokens_as_regard() -> None:
    lengths = workload.draw_sentence_lengths(64, seed=7)[0].tolist()
    rows = [[5] * length + [1] for length in lengths]
    regard_tokens = sum(length + 2 for length in lengths)  # the source with its end token, and one more
    for batch_size in (8, 16, 64):
        batches = tasks.batch_by_length(rows, batch_size)
        assert sum(len(batch) * tokens for batch, tokens in batches) == pytest.approx(regard_tokens, rel=0.03)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_an_embedding_does_not_depend_on_the_other_texts_of_a_batch(precision: str) -> None:
    size = EMBEDDING_SIZES["tiny"]
    pipeline = build_embedder(size, precision, 1)
    texts = workload.draw_texts([3, 11, 5, 2, 7], size.vocab_size)
    embeddings = pipeline.embed(texts).vectors
    assert embeddings.shape == (5, size.hidden_size)
    for text, embedding in zip(texts, embeddings, strict=True):
        np.testing.assert_allclose(pipeline(text), embedding, rtol=2e-2, atol=2e-2)
    assert not np.allclose(embeddings[0], embeddings[1], atol=0.1)


def test_the_loop_around_transformers_masks_the_same_tokens() -> None:
    size = MASKED_LM_SIZES["tiny"]
    objective = tasks.build_masked_lm_objective(size)
    mask_id = size.vocab_size - 1
    target_fractions = []
    mask_fractions = []
    epoch = objective.epoch_batches(0, tasks.masked_lm_batch_tokens(size))
    for indices, peer_batch in zip(epoch, build_masked_lm_batches(size), strict=True):
        batch = objective.batch(indices, 0)
        labels = peer_batch.inputs["labels"].flatten().numpy()
        ids = peer_batch.inputs["input_ids"]
        assert ids.shape == (size.batch_size, size.max_length)
        assert peer_batch.tokens == size.batch_size * size.max_length
        assert ids.flatten().tolist() == batch.rows.ids.tolist()
        assert np.flatnonzero(labels != IGNORED).tolist() == batch.positions.tolist()
        assert labels[batch.positions].tolist() == batch.targets.tolist()
        target_fractions.append(len(batch.targets) / labels.size)
        is_mask = ids.flatten()[torch.from_numpy(batch.positions)] == mask_id
        mask_fractions.append(float(is_mask.float().mean()))
    assert 0.1 < np.mean(target_fractions) < 0.16  # special tokens are never masked
    assert 0.7 < np.mean(mask_fractions) < 0.9


def test_the_loop_around_transformers_classifies_the_same_texts() -> None:
    size = FINE_TUNING_SIZES["tiny"]
    objective = tasks.build_fine_tuning_objective(size)
    epoch = objective.epoch_batches(0, tasks.fine_tuning_batch_tokens(size))
    assert len({int(length) for length in objective.lengths[:, 0]}) > 5
    assert sorted(np.concatenate(epoch).tolist()) == list(range(len(objective.train)))
    for indices, peer_batch in zip(epoch, build_fine_tuning_batches(size), strict=True):
        batch = objective.batch(indices, 0)
        rows = [row[row != 0].tolist() for row in peer_batch.inputs["input_ids"]]
        assert rows == [row.tolist() for row in batch.tokens]
        assert peer_batch.inputs["labels"].tolist() == batch.targets.tolist()
        assert peer_batch.tokens == int(peer_batch.inputs["attention_mask"].sum()) == len(batch.tokens.ids)


def test_encoders_have_the_size_and_dropout_of_the_peers() -> None:
    pytest.importorskip("transformers")
    from benchmarks.peers.libraries.bert import build_classifier, build_masked_lm

    for size, build_peer, head in (
        (MASKED_LM_SIZES["tiny"], build_masked_lm, "masked"),
        (FINE_TUNING_SIZES["tiny"], build_classifier, "label"),
    ):
        config = size.config(head=head, num_labels=2 if head == "label" else 0, **ENCODER_DROPOUT)
        peer = build_peer(size)
        assert sum(weight.numel() for weight in peer.parameters()) == Bert(config).num_parameters()
        assert peer.config.hidden_dropout_prob == config.dropout
        assert peer.config.attention_probs_dropout_prob == config.attention_dropout


def test_sizes_match_the_presets() -> None:
    from regard.config.models import TRANSFORMER_PRESETS

    for name in ("small", "base"):
        preset = TRANSFORMER_PRESETS[name]
        config = TRANSLATOR_SIZES[name].config()
        assert preset.hidden_size == config.hidden_size
        assert preset.encoder == config.encoder
        assert preset.decoder == config.decoder
