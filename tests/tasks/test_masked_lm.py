"""Masked language modelling: how many tokens are masked, which, what replaces them, and their loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from regard.config.data import MaskingConfig, TokenizerConfig
from regard.config.models import BertConfig, StackConfig
from regard.data.documents import Documents
from regard.errors import ConfigError, UsageError
from regard.models.bert import Bert, initialize_bert
from regard.tasks.masked_lm import (
    MaskedLMBatch,
    MaskedLMObjective,
    MaskedRowLayout,
    TokenMasker,
    continuation_tokens,
    evaluation_batches,
    masked_lm_loss,
    predict_masked_tokens,
    token_counts,
    unigram_loss,
)
from regard.tasks.token_stream import TokenStream
from regard.text.train import train_masked_tokenizer, train_tokenizer, train_wordpiece

TEXTS = ["the cats sleep, and the dogs bark at cats", "dogs sleep where the barking cats slept"] * 20
TOKENIZER = train_wordpiece(TEXTS, TokenizerConfig(vocab_size=70))


def build_stream(length: int = 61, num_tokens: int = 12_007) -> TokenStream:
    """Random tokens, every hundredth a special one."""
    rng = np.random.default_rng(1)
    ids = rng.integers(5, TOKENIZER.vocab_size, num_tokens).astype(np.int32)
    ids[::100] = TOKENIZER.eos_id
    return TokenStream(ids, length, "ab12")


def build_layout(**settings: object) -> MaskedRowLayout:
    return MaskedRowLayout.from_tokenizer(TOKENIZER, MaskingConfig().override(settings))


def build_model(head: str = "masked") -> Bert:
    stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=12)
    config = BertConfig(vocab_size=TOKENIZER.vocab_size + 3, hidden_size=8, stack=stack, head=head, max_positions=80)
    model = Bert(config)
    initialize_bert(model, 1, 0.3)
    return model


def unmask(batch: MaskedLMBatch) -> np.ndarray:
    """Token ids of a batch before masking."""
    ids = batch.rows.ids.copy()
    ids[batch.positions] = batch.targets
    return ids


def masked_flags(batch: MaskedLMBatch) -> np.ndarray:
    """Whether each token of a batch is masked."""
    is_masked = np.zeros(len(batch.rows.ids), dtype=bool)
    is_masked[batch.positions] = True
    return is_masked


def test_mask_rate_and_replacements_are_those_of_the_config() -> None:
    stream = build_stream()
    objective = MaskedLMObjective(build_stream(), build_layout(mask_rate=0.2), seed=1)
    batch = objective.batch(np.arange(len(stream)), 3)
    mask_id = objective.layout.masker.mask_id
    ordinary = objective.layout.masker.is_maskable
    replacements = batch.rows.ids[batch.positions]
    targets = batch.targets
    assert ordinary[targets].all()
    assert abs(batch.num_predictions / len(stream.ids) - 0.2) < 0.005
    is_mask = replacements == mask_id
    is_unchanged = replacements == targets
    assert abs(is_mask.mean() - 0.8) < 0.03
    assert abs(is_unchanged.mean() - 0.1) < 0.025  # now and then a random token is the right one
    random_ids = replacements[~is_mask & ~is_unchanged]
    assert abs(len(random_ids) / len(replacements) - 0.1) < 0.025
    assert ordinary[random_ids].all() and len(set(random_ids)) > 0.8 * ordinary.sum()
    unmasked = np.delete(np.arange(len(batch.rows.ids)), batch.positions)
    assert mask_id not in batch.rows.ids[unmasked]


def test_each_row_has_its_share_of_masks_whatever_its_tokens() -> None:
    batch = MaskedLMObjective(build_stream(), build_layout(mask_rate=0.25), seed=1).batch(np.arange(40), 0)
    num_masked = np.bincount(batch.positions // 63, minlength=40)
    num_ordinary = [int((row >= 4).sum()) for row in batch.rows]  # the mask token replaces one
    assert (num_masked == np.rint(0.25 * np.array(num_ordinary))).all()


def test_whole_words_are_masked_together() -> None:
    stream = TokenStream.from_documents(
        Documents.from_texts(["catsdogs sleepdogs the barkthecats cats"] * 60), TOKENIZER, 40
    )
    layout = build_layout(mask_rate=0.3, whole_word_masking=True, mask_token_share=1.0, random_token_share=0.0)
    batch = MaskedLMObjective(stream, layout, seed=1).batch(np.arange(len(stream)), 0)
    is_masked = masked_flags(batch)
    is_continuation = continuation_tokens(TOKENIZER)[unmask(batch)]
    assert is_continuation.any()
    row_length = batch.rows.lengths[0]
    is_continuation[0::row_length] = False
    is_continuation[1::row_length] = False  # a row may begin within a word
    continuations = np.flatnonzero(is_continuation)
    assert (is_masked[continuations] == is_masked[continuations - 1]).all()
    assert 0.2 < is_masked.mean() < 0.3
    subword_config = layout.masker.config.override({"whole_word_masking": False})
    subword_layout = replace(layout, masker=replace(layout.masker, config=subword_config))
    subword_batch = MaskedLMObjective(stream, subword_layout, seed=1).batch(np.arange(len(stream)), 0)
    is_masked = masked_flags(subword_batch)
    assert (is_masked[continuations] != is_masked[continuations - 1]).any()


def test_a_long_word_in_a_short_row_is_still_masked() -> None:
    ids = np.array([[9, 20, 21, 22]], dtype=np.int32)
    masker = TokenMasker(
        4,
        np.ones(30, bool),
        np.arange(30) >= 20,
        MaskingConfig(mask_rate=0.25, whole_word_masking=True, mask_token_share=1.0, random_token_share=0.0),
    )
    masked_ids, is_masked = masker.mask_tokens(ids, np.array([[[0.1, 0.9, 0.9, 0.9]]] * 3))
    assert is_masked.all() and (masked_ids == 4).all()


def test_masks_depend_on_seed_epoch_and_stream_index_alone() -> None:
    objective = MaskedLMObjective(build_stream(), build_layout(), seed=1)
    batch = objective.batch(np.arange(12), 5)
    single_row = objective.batch(np.array([7]), 5)
    in_row = batch.positions // 63 == 7
    assert (batch.rows.row(7) == single_row.rows.row(0)).all()
    assert (batch.positions[in_row] - 7 * 63 == single_row.positions).all()
    assert (batch.targets[in_row] == single_row.targets).all()
    other_epoch = MaskedLMObjective(build_stream(), build_layout(), seed=1).batch(np.arange(12), 6)
    other_seed = MaskedLMObjective(build_stream(), build_layout(), seed=2).batch(np.arange(12), 5)
    assert not np.array_equal(other_epoch.positions, batch.positions)
    assert not np.array_equal(other_seed.positions, batch.positions)


def test_rows_are_full_and_an_epoch_reads_every_token() -> None:
    stream = build_stream(length=30, num_tokens=311)
    batch = MaskedLMObjective(stream, build_layout(), seed=1).batch(np.arange(len(stream)), 0)
    assert set(batch.rows.lengths) == {32}
    rows = unmask(batch).reshape(-1, 32)
    assert (rows[:, 0] == TOKENIZER.bos_id).all() and (rows[:, -1] == TOKENIZER.eos_id).all()
    epoch_ids = rows[:, 1:-1].reshape(-1)[: len(stream.ids)]
    is_rotation = [np.array_equal(np.roll(stream.ids, -shift), epoch_ids) for shift in range(len(stream.ids))]
    offset = int(np.flatnonzero(is_rotation)[0])
    assert offset >= 0


def index_in_stream(stream: TokenStream, text: np.ndarray) -> int:
    """Index of the only occurrence of a text in a cyclic stream."""
    cyclic_ids = np.append(stream.ids, stream.ids[: len(text) - 1])
    windows = np.lib.stride_tricks.sliding_window_view(cyclic_ids, len(text))
    (index,) = np.flatnonzero((windows == text).all(axis=1))
    return int(index)


@pytest.mark.parametrize(
    "stream",
    [build_stream(length=57, num_tokens=5000), TokenStream(np.arange(5000, dtype=np.int32), 57, "ab12")],
    ids=["ids of the vocabulary", "numbered"],
)
def test_second_texts_follow_the_first_or_are_random(stream: TokenStream) -> None:
    layout = build_layout(next_sentence=True)
    all_tokens = np.ones(5000, bool)
    layout = replace(layout, masker=replace(layout.masker, is_maskable=all_tokens, continues_word=~all_tokens))
    batch = MaskedLMObjective(stream, layout, seed=1).batch(np.arange(len(stream)), 0)
    assert batch.next_sentence_labels is not None and batch.rows.token_types is not None
    assert 0.3 < batch.next_sentence_labels.mean() < 0.7
    rows = unmask(batch).reshape(-1, 60)
    row_types = batch.rows.token_types.reshape(-1, 60)
    for row, token_types, label in zip(rows, row_types, batch.next_sentence_labels, strict=True):
        split = int(np.flatnonzero(token_types)[0])
        assert (np.diff(token_types) >= 0).all() and token_types[-1] == 1
        assert row[0] == TOKENIZER.bos_id and row[split - 1] == row[-1] == TOKENIZER.eos_id
        first = row[1 : split - 1]
        second = row[split:-1]
        assert len(first) + len(second) == 57 and min(len(first), len(second)) >= 57 // 4
        end_of_first = index_in_stream(stream, first) + len(first) - 1
        distance = (index_in_stream(stream, second) - end_of_first) % 5000
        assert distance == 1 if not label else 57 <= distance <= 5000 - 57


@pytest.mark.parametrize("head", ["masked", "pretraining"])
def test_the_loss_is_that_of_all_logits_at_the_masked_tokens(head: str) -> None:
    model = build_model(head)
    objective = MaskedLMObjective(build_stream(40), build_layout(next_sentence=head == "pretraining"), seed=1)
    batch = objective.batch(np.arange(5), 0)
    assert batch.num_predictions % 64  # the last multiple is not full
    smoothed, plain = objective.loss(model, batch, 0.0, None)
    smoothed.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    ids, packed = model.to_tensors(batch.rows)
    hidden = model(ids, packed, model.token_type_tensor(batch.rows))
    logits = linear(model.masked_lm_hidden(hidden), model.output_weight, model.output_bias)
    targets = torch.full((len(ids),), -100)
    targets[batch.positions] = torch.from_numpy(batch.targets)
    expected = cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(plain, expected.detach(), rtol=1e-5, atol=1e-4)
    if batch.next_sentence_labels is not None:
        next_logits = model.next_sentence_logits(hidden, packed)
        next_loss = cross_entropy(next_logits, torch.from_numpy(batch.next_sentence_labels))
        expected = expected + batch.num_predictions * next_loss
    expected.backward()
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-4, atol=1e-4)


def test_evaluations_mask_the_same_tokens_every_time_and_show_none_of_them() -> None:
    stream = build_stream(50)
    training_layout = build_layout(mask_rate=0.4, whole_word_masking=True)
    batches = list(evaluation_batches(stream, training_layout))
    repeated = list(evaluation_batches(stream, training_layout))
    assert all((batch.rows.ids == again.rows.ids).all() for batch, again in zip(batches, repeated, strict=True))
    mask_id = build_layout().masker.mask_id
    assert all((batch.rows.ids[batch.positions] == mask_id).all() for batch in batches)
    count = sum(batch.num_predictions for batch in batches)
    assert abs(count / len(stream.ids) - 0.15) < 0.01
    model = build_model()
    scores = predict_masked_tokens(model, stream, build_layout())
    with torch.inference_mode():
        losses = [masked_lm_loss(model, batch).unsmoothed for batch in evaluation_batches(stream, build_layout())]
        total = sum(float(loss) for loss in losses)
    assert len(scores.references) == count and scores.next_sentence_accuracy is None
    assert scores.loss == pytest.approx(total / count)


def test_the_unigram_baseline_is_the_loss_of_smoothed_counts() -> None:
    stream = TokenStream(np.array([7, 7, 7, 8] * 500, dtype=np.int32), 40, "ab12")
    layout = build_layout()
    counts = token_counts(stream, TOKENIZER.vocab_size)
    assert counts[7] == 1500 and counts[8] == 500
    targets = np.concatenate([batch.targets for batch in evaluation_batches(stream, layout)])
    total = 2000 + int(layout.masker.is_maskable.sum())
    expected = -np.log(np.where(targets == 7, 1501, 501) / total).mean()
    assert unigram_loss(counts, stream, layout) == pytest.approx(expected)


def test_tokens_continue_a_word_by_their_prefix_or_by_their_letters() -> None:
    tokenizer = train_masked_tokenizer(TEXTS, TokenizerConfig(kind="unigram", vocab_size=60))
    subwords = tokenizer.subwords(range(tokenizer.vocab_size))
    is_continuation = continuation_tokens(tokenizer)
    continuations = {subword for subword, flag in zip(subwords, is_continuation, strict=True) if flag}
    assert continuations and all(subword[0].isalnum() for subword in continuations)
    assert not any(subword.startswith("▁") or subword in (",", "<mask>", "<s>") for subword in continuations)


def test_tokenizers_without_mask_token_and_shares_above_one_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no mask token"):
        MaskedRowLayout.from_tokenizer(train_tokenizer(TEXTS, TokenizerConfig(kind="words")), MaskingConfig())
    with pytest.raises(ConfigError, match="at most 1 in all"):
        MaskingConfig(mask_token_share=0.8, random_token_share=0.3)
