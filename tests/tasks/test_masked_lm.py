"""Hidden words: how many, which, what stands there instead, and what telling them costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from regard.config.data import MaskingConfig, TokenizerConfig
from regard.config.models import BertConfig, StackConfig
from regard.data.documents import Documents
from regard.errors import ConfigError, UsageError
from regard.models.bert import Bert, initialize_bert
from regard.tasks.masked_lm import (
    MaskedLMObjective,
    MaskedRowLayout,
    TokenMasker,
    continuation_tokens,
    evaluation_batches,
    masked_lm_loss,
    masked_scores,
    token_counts,
    unigram_loss,
)
from regard.tasks.token_stream import TokenStream
from regard.text.train import train_masked_tokenizer, train_tokenizer, train_wordpiece

TEXTS = ["the cats sleep, and the dogs bark at cats", "dogs sleep where the barking cats slept"] * 20
WORDS = train_wordpiece(TEXTS, TokenizerConfig(vocab_size=70))


def stream(length: int = 61, tokens: int = 12_007) -> TokenStream:
    """Tokens by chance, every hundredth a special one."""
    chance = np.random.default_rng(1)
    ids = chance.integers(5, WORDS.vocab_size, tokens).astype(np.int32)
    ids[::100] = WORDS.eos_id
    return TokenStream(ids, length, "ab12")


def layout(**settings: object) -> MaskedRowLayout:
    return MaskedRowLayout.of(WORDS, MaskingConfig().override(settings))


def model(head: str = "masked") -> Bert:
    stack = StackConfig(num_layers=1, num_heads=2, feed_forward_size=12)
    made = Bert(BertConfig(vocab_size=WORDS.vocab_size + 3, hidden_size=8, stack=stack, head=head, max_positions=80))
    initialize_bert(made, 1, 0.3)
    return made


def test_so_many_are_hidden_and_so_they_look() -> None:
    text, task = stream(), MaskedLMObjective(stream(), layout(mask_rate=0.2), seed=1)
    batch = task.batch(np.arange(len(text)), 3)
    given, wanted = batch.rows.ids[batch.positions], batch.targets
    ordinary = task.layout.masking.ordinary
    assert ordinary[wanted].all()
    assert abs(batch.num_predictions / len(text.ids) - 0.2) < 0.005
    masked, same = given == task.layout.masking.mask, given == wanted
    assert abs(masked.mean() - 0.8) < 0.03
    assert abs(same.mean() - 0.1) < 0.025  # now and then a random token is the right one
    others = given[~masked & ~same]
    assert abs(len(others) / len(given) - 0.1) < 0.025
    assert ordinary[others].all() and len(set(others)) > 0.8 * ordinary.sum()
    rest = np.delete(np.arange(len(batch.rows.ids)), batch.positions)
    assert task.layout.masking.mask not in batch.rows.ids[rest]


def test_each_row_has_its_share_whatever_stands_in_it() -> None:
    batch = MaskedLMObjective(stream(), layout(mask_rate=0.25), seed=1).batch(np.arange(40), 0)
    hidden = np.bincount(batch.positions // 63, minlength=40)
    ordinary = [int((row >= 4).sum()) for row in batch.rows]  # the mask token stands for one
    assert (hidden == np.rint(0.25 * np.array(ordinary))).all()


def test_whole_words_are_hidden_together() -> None:
    text = TokenStream.of(Documents.of(["catsdogs sleepdogs the barkthecats cats"] * 60), WORDS, 40)
    masking = layout(mask_rate=0.3, whole_word_masking=True, mask_token_share=1.0, random_token_share=0.0)
    batch = MaskedLMObjective(text, masking, seed=1).batch(np.arange(len(text)), 0)
    hidden = np.zeros(len(batch.rows.ids), dtype=bool)
    hidden[batch.positions] = True
    whole = batch.rows.ids.copy()
    whole[batch.positions] = batch.targets
    inner = continuation_tokens(WORDS)[whole]
    assert inner.any()
    inner[0 :: batch.rows.lengths[0]] = inner[1 :: batch.rows.lengths[0]] = False  # a row may begin within a word
    followed = np.flatnonzero(inner)
    assert (hidden[followed] == hidden[followed - 1]).all()
    assert 0.2 < hidden.mean() < 0.3
    alone = replace(
        masking, masking=replace(masking.masking, config=masking.masking.config.override({"whole_word_masking": False}))
    )
    plain = MaskedLMObjective(text, alone, seed=1).batch(np.arange(len(text)), 0)
    hidden[:] = False
    hidden[plain.positions] = True
    assert (hidden[followed] != hidden[followed - 1]).any()


def test_a_long_word_in_a_short_row_is_still_hidden() -> None:
    ids = np.array([[9, 20, 21, 22]], dtype=np.int32)
    masking = TokenMasker(
        4,
        np.ones(30, bool),
        np.arange(30) >= 20,
        MaskingConfig(mask_rate=0.25, whole_word_masking=True, mask_token_share=1.0, random_token_share=0.0),
    )
    given, chosen = masking.mask_tokens(ids, np.array([[[0.1, 0.9, 0.9, 0.9]]] * 3))
    assert chosen.all() and (given == 4).all()


def test_masks_depend_on_seed_epoch_and_place_alone() -> None:
    task = MaskedLMObjective(stream(), layout(), seed=1)
    whole, some = task.batch(np.arange(12), 5), task.batch(np.array([7]), 5)
    own = whole.positions // 63 == 7
    assert (whole.rows.row(7) == some.rows.row(0)).all()
    assert (whole.positions[own] - 7 * 63 == some.positions).all() and (whole.targets[own] == some.targets).all()
    later = MaskedLMObjective(stream(), layout(), seed=1).batch(np.arange(12), 6)
    other = MaskedLMObjective(stream(), layout(), seed=2).batch(np.arange(12), 5)
    assert not np.array_equal(later.positions, whole.positions) and not np.array_equal(other.positions, whole.positions)


def test_rows_are_full_and_an_epoch_reads_every_token() -> None:
    text = stream(length=30, tokens=311)
    batch = MaskedLMObjective(text, layout(), seed=1).batch(np.arange(len(text)), 0)
    assert set(batch.rows.lengths) == {32}
    whole = batch.rows.ids.copy()
    whole[batch.positions] = batch.targets
    rows = whole.reshape(-1, 32)
    assert (rows[:, 0] == WORDS.bos_id).all() and (rows[:, -1] == WORDS.eos_id).all()
    read = rows[:, 1:-1].reshape(-1)[: len(text.ids)]
    first = int(np.flatnonzero([np.array_equal(np.roll(text.ids, -shift), read) for shift in range(len(text.ids))])[0])
    assert first >= 0


def test_pairs_follow_one_another_or_come_from_elsewhere() -> None:
    text = TokenStream(np.arange(5, 5005, dtype=np.int32) % (WORDS.vocab_size - 5) + 5, 57, "ab12")
    numbered = TokenStream(np.arange(5000, dtype=np.int32), 57, "ab12")
    for one in (text, numbered):
        masking = layout(next_sentence=True)
        flags = np.ones(5000, bool)
        masking = replace(masking, masking=replace(masking.masking, ordinary=flags, continues=~flags))
        batch = MaskedLMObjective(one, masking, seed=1).batch(np.arange(len(one)), 0)
    assert batch.next_sentence_labels is not None and batch.rows.token_types is not None
    assert 0.3 < batch.next_sentence_labels.mean() < 0.7
    whole = batch.rows.ids.copy()
    whole[batch.positions] = batch.targets
    for number, apart in enumerate(batch.next_sentence_labels):
        row, kinds = (array[number * 60 : (number + 1) * 60] for array in (whole, batch.rows.token_types))
        split = int(np.flatnonzero(kinds)[0])
        assert (np.diff(kinds) >= 0).all() and kinds[-1] == 1
        assert row[0] == WORDS.bos_id and row[split - 1] == row[-1] == WORDS.eos_id
        left, right = row[1 : split - 1], row[split:-1]
        assert len(left) + len(right) == 57 and min(len(left), len(right)) >= 57 // 4
        for part in (left, right):
            assert (np.diff(part) % 5000 == 1).all()
        gap = int(right[0] - left[-1]) % 5000
        assert gap == 1 if not apart else 57 <= gap <= 5000 - 57


@pytest.mark.parametrize("head", ["masked", "pretraining"])
def test_the_loss_is_that_of_all_logits_at_the_hidden_places(head: str) -> None:
    encoder, task = model(head), MaskedLMObjective(stream(40), layout(next_sentence=head == "pretraining"), seed=1)
    batch = task.batch(np.arange(5), 0)
    assert batch.num_predictions % 64  # the last block is not full
    smoothed, plain = task.loss(encoder, batch, 0.0, None)
    smoothed.backward()
    fast = {name: weight.grad.clone() for name, weight in encoder.named_parameters() if weight.grad is not None}
    encoder.zero_grad()
    ids, rows = encoder.to_tensors(batch.rows)
    states = encoder(ids, rows, encoder.token_type_tensor(batch.rows))
    logits = torch.nn.functional.linear(encoder.masked_lm_hidden(states), encoder.output_weight, encoder.output_bias)
    labels = torch.full((len(ids),), -100)
    labels[batch.positions] = torch.from_numpy(batch.targets)
    slow = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(plain, slow.detach(), rtol=1e-5, atol=1e-4)
    if batch.next_sentence_labels is not None:
        scores = encoder.next_sentence_logits(states, rows)
        slow = slow + batch.num_predictions * torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch.next_sentence_labels))
    slow.backward()
    for name, weight in encoder.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(fast[name], weight.grad, rtol=1e-4, atol=1e-4)


def test_measuring_hides_the_same_tokens_every_time_and_shows_none() -> None:
    text = stream(50)
    first, again = (list(evaluation_batches(text, layout(mask_rate=0.4, whole_word_masking=True))) for _ in range(2))
    assert all((one.rows.ids == other.rows.ids).all() for one, other in zip(first, again, strict=True))
    assert all((one.rows.ids[one.positions] == layout().masking.mask).all() for one in first)
    count = sum(one.num_predictions for one in first)
    assert abs(count / len(text.ids) - 0.15) < 0.01
    encoder = model()
    found = masked_scores(encoder, text, layout())
    with torch.inference_mode():
        lost = sum(float(masked_lm_loss(encoder, one).unsmoothed) for one in evaluation_batches(text, layout()))
    assert found.count == count and found.together is None
    assert found.loss == pytest.approx(lost / count)


def test_counts_alone_are_the_least_to_beat() -> None:
    tokens = np.array([7, 7, 7, 8] * 500, dtype=np.int32)
    text = TokenStream(tokens, 40, "ab12")
    plain = layout()
    counts = token_counts(text, WORDS.vocab_size)
    assert counts[7] == 1500 and counts[8] == 500
    targets = np.concatenate([batch.targets for batch in evaluation_batches(text, plain)])
    total = 2000 + int(plain.masking.ordinary.sum())
    by_hand = -np.log(np.where(targets == 7, 1501, 501) / total).mean()
    assert unigram_loss(counts, text, plain) == pytest.approx(by_hand)


def test_words_go_on_by_their_marks_or_by_their_letters() -> None:
    spaced = train_masked_tokenizer(TEXTS, TokenizerConfig(kind="unigram", vocab_size=60))
    pieces = spaced.subwords(range(spaced.vocab_size))
    inner = {piece for piece, flag in zip(pieces, continuation_tokens(spaced), strict=True) if flag}
    assert inner and all(piece[0].isalnum() for piece in inner)
    assert not any(piece.startswith("▁") or piece in (",", "<mask>", "<s>") for piece in inner)


def test_what_it_refuses() -> None:
    with pytest.raises(UsageError, match=r"no mask token"):
        MaskedRowLayout.of(train_tokenizer(TEXTS, TokenizerConfig(kind="words")), MaskingConfig())
    with pytest.raises(ConfigError, match="at most 1 in all"):
        MaskingConfig(mask_token_share=0.8, random_token_share=0.3)
