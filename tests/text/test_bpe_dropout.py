"""Sampled segmentations: a pure function of seed, epoch and example, and the tokenizer's own without dropout."""

from pathlib import Path

import numpy as np
import pytest

from regard.config.data import TokenizerConfig
from regard.data.ledger import read_lines
from regard.errors import ConfigError
from regard.text.bpe_dropout import BpeDropout, mix_bits
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer

TEXTS = [
    "Der größte Hund läuft am schnellsten.",
    "Die schnellsten Hunde laufen, laufen und laufen!",
    "",
    "größer – am größten 2017 😀",
    "Hund  Hund",
] * 7
TOKENIZER = train_tokenizer(TEXTS * 3, TokenizerConfig(vocab_size=400))


def test_without_dropout_segmentations_are_the_tokenizers_own() -> None:
    segmenter = BpeDropout(TOKENIZER, TEXTS, dropout=0, seed=5)
    assert [row.tolist() for row in segmenter.sample_all(epoch=3)] == TOKENIZER.encode_batch(TEXTS)


def test_every_sample_decodes_to_its_text() -> None:
    segmenter = BpeDropout(TOKENIZER, TEXTS, dropout=0.4, seed=5)
    for epoch in range(3):
        assert [TOKENIZER.decode(row) for row in segmenter.sample_all(epoch)] == TEXTS


def test_a_sample_depends_on_seed_epoch_and_example_alone() -> None:
    segmenter = BpeDropout(TOKENIZER, TEXTS, dropout=0.4, seed=5)
    twin = BpeDropout(TOKENIZER, TEXTS, dropout=0.4, seed=5)
    samples = segmenter.sample_all(2)
    twin.sample(3, 9)
    for example in reversed(range(len(TEXTS))):
        assert np.array_equal(twin.sample(example, 2), samples.row(example))
    batch = segmenter.sample_batch([4, 0, 4], 2)
    assert [row.tolist() for row in batch] == [samples.row(example).tolist() for example in (4, 0, 4)]
    assert len(segmenter.sample_batch([], 2)) == 0
    other_words = BpeDropout(TOKENIZER, [*TEXTS, "ganz andere Wörter"], dropout=0.4, seed=5)
    assert all(np.array_equal(other_words.sample(example, 2), samples.row(example)) for example in range(len(TEXTS)))
    other_seed = BpeDropout(TOKENIZER, TEXTS, dropout=0.4, seed=6).sample_all(2)
    other_epoch = segmenter.sample_all(3)
    assert not np.array_equal(samples.ids, other_seed.ids)
    assert not np.array_equal(samples.ids, other_epoch.ids)
    segmentations = {tuple(samples.row(5 * copy).tolist()) for copy in range(7)}
    assert len(segmentations) > 1, "copies of a text in the corpus are segmented differently"


def test_dropout_is_the_probability_of_skipping_a_merge() -> None:
    """A word with two merges stays in three subwords with the probability of the dropout."""
    tokenizer = train_tokenizer(["ab"] * 9, TokenizerConfig(vocab_size=262))  # merges "▁a", then "▁ab"
    counts = []
    for seed in range(400):
        segmenter = BpeDropout(tokenizer, ["ab"], dropout=0.3, seed=seed)
        counts.extend(len(segmenter.sample(0, epoch)) for epoch in range(3))
    frequencies = np.bincount(counts, minlength=4)[1:4] / len(counts)
    # One subword: neither merge is skipped; three subwords: the first one is.
    assert frequencies == pytest.approx([0.49, 0.21, 0.3], abs=0.06)


def test_only_byte_level_bpe_can_be_sampled() -> None:
    for kind in ("unigram", "characters", "words", "wordpiece"):
        with pytest.raises(ConfigError, match="cannot be sampled|byte-level BPE only"):
            BpeDropout(train_tokenizer(TEXTS, TokenizerConfig(kind=kind)), TEXTS, 0.1, 1)
    with pytest.raises(ConfigError, match="less than 1"):
        BpeDropout(TOKENIZER, TEXTS, 1.0, 1)


def test_mixed_bits_are_uniform() -> None:
    draws = mix_bits(3, np.arange(1000)[:, None], np.arange(50)[None, :]).astype(np.float64) / 2**64
    assert draws.shape == (1000, 50)
    assert abs(draws.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1]) < 0.02
    assert len(np.unique(draws)) == draws.size


def test_multi30k_is_segmented_with_and_without_dropout() -> None:
    folder = Path(__file__).parents[2].parent / "shared" / "data" / "multi30k"
    if not folder.is_dir():
        pytest.skip("shared/data/multi30k is not there")
    texts = read_lines(folder / "train.de.gz")[:10_000]
    tokenizer = Tokenizer.from_json(train_tokenizer(texts, TokenizerConfig(vocab_size=4000)).to_json())
    exact = BpeDropout(tokenizer, texts, 0, 1)
    assert [row.tolist() for row in exact.sample_all(0)] == tokenizer.encode_batch(texts)
    segmenter = BpeDropout(tokenizer, texts, 0.1, 1)
    samples = [segmenter.sample(example, 1) for example in range(len(texts))]
    length_ratio = sum(map(len, samples)) / len(exact.sample_all(1).ids)
    assert 1.05 < length_ratio < 1.6
