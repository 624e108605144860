"""The alignment head, chosen without gold alignments among heads of known behaviour."""

from __future__ import annotations

import numpy as np
import pytest

from regard.errors import UsageError
from regard.tasks.alignment import align_words, best_alignment_head, merge_subwords, to_pharaoh, word_positions
from regard.text.tokenizer import Encoding

NUM_SENTENCES = 60
NUM_WORDS = 19  # words of the language


def build_text(words: list[int], first_id: int) -> Encoding:
    """A word w is one subword, or two where w is even."""
    ids = []
    word_ids = []
    for index, word in enumerate(words):
        subwords = [first_id + 2 * word]
        if word % 2 == 0:
            subwords.append(first_id + 2 * word + 1)
        ids += subwords
        word_ids += [index] * len(subwords)
    return Encoding(ids, ["x"] * len(ids), [(0, 1)] * len(ids), word_ids)


@pytest.fixture(scope="module")
def corpus():
    """Sentences whose target reverses the source words, and the true source subword of each target subword."""
    rng = np.random.default_rng(3)
    sentences = [rng.integers(0, NUM_WORDS, rng.integers(3, 9)).tolist() for _ in range(NUM_SENTENCES)]
    sources = [build_text(words, 10) for words in sentences]
    targets = [build_text(words[::-1], 100) for words in sentences]
    true_positions = []
    for source, target in zip(sources, targets, strict=True):
        last_word = max(source.word_ids)
        source_positions = word_positions(source.word_ids)
        target_positions = word_positions(target.word_ids)
        true_positions.append(
            [
                source_positions[last_word - word][target_positions[word].index(position)]
                for position, word in enumerate(target.word_ids)
            ]
        )
    return sources, targets, true_positions


def build_head(corpus, attended_position, sharpness, seed=0):
    """Weights [B, Q, K] of a head that attends to `attended_position(position, true position, source length)`."""
    sources, targets, true_positions = corpus
    max_length = max(len(source.ids) for source in sources) + 1
    rng = np.random.default_rng(seed)
    weights = np.zeros((NUM_SENTENCES, max_length, max_length), np.float32)
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        source_length = len(source.ids) + 1
        rows = rng.dirichlet(np.ones(source_length), len(target.ids) + 1) * (1 - sharpness)
        for position in range(len(target.ids) + 1):
            true_position = true_positions[index][min(position, len(target.ids) - 1)]
            rows[position, attended_position(position, true_position, source_length) % source_length] += sharpness
        weights[index, : len(rows), :source_length] = rows
    return weights


HEADS = {
    "end": lambda position, true, length: length - 1,
    "first": lambda position, true, length: 0,
    "same position": lambda position, true, length: position,
    "next": lambda position, true, length: true + 1,
    "true": lambda position, true, length: true,
}


def test_the_head_that_aligns_is_chosen_though_others_are_sharper(corpus):
    source, target, _ = corpus
    heads = [
        build_head(corpus, attended_position, 0.4 if name == "true" else 0.9, seed)
        for seed, (name, attended_position) in enumerate(HEADS.items())
    ]
    weights = {"decoder.0.cross": np.stack(heads[:3], axis=1), "decoder.1.cross": np.stack(heads[3:], axis=1)}
    best = best_alignment_head(weights, source, target)
    assert (best.site, best.head, best.shift) == ("decoder.1.cross", 1, 0)
    scores = {
        name: best_alignment_head({"s": head[:, None]}, source, target).score
        for name, head in zip(HEADS, heads, strict=True)
    }
    assert sorted(scores, key=scores.__getitem__)[-1] == "true"
    assert scores["end"] < 0.3 and scores["first"] < 0.3 and scores["same position"] < 0.6


def test_a_head_that_lags_is_read_one_step_later(corpus):
    source, target, _ = corpus
    lagging = np.roll(build_head(corpus, HEADS["true"], 0.8), 1, axis=1)  # query t attends where query t - 1 should
    best = best_alignment_head({"decoder.0.cross": lagging[:, None]}, source, target)
    assert best.shift == 1


def test_sharpness_breaks_ties(corpus):
    source, target, _ = corpus
    soft = build_head(corpus, HEADS["true"], 0.7)
    sharp = build_head(corpus, HEADS["true"], 0.95)
    assert best_alignment_head({"s": np.stack([soft, sharp], axis=1)}, source, target).head == 1


def test_models_without_cross_attention_are_refused():
    with pytest.raises(UsageError, match="no cross-attention"):
        best_alignment_head({}, [], [])


def test_subwords_are_summed_on_the_source_side_and_averaged_on_the_target_side():
    weights = np.array([[0.3, 0.3, 0.4], [0.1, 0.1, 0.8], [0.5, 0.2, 0.3]])
    word_weights = merge_subwords(weights, [[0], [1, 2]], [[0, 1], [2]])
    assert word_weights == pytest.approx(np.array([[0.6, 0.4], [0.45, 0.55]]))
    assert align_words(word_weights) == [(0, 0), (1, 1)]
    assert to_pharaoh(align_words(word_weights)) == "0-0 1-1"
    assert align_words(np.zeros((0, 3))) == [] and to_pharaoh([]) == ""
