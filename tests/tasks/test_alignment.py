"""The aligning head, chosen without gold among heads of which we know what they do."""

from __future__ import annotations

import numpy as np
import pytest

from regard.errors import UsageError
from regard.tasks.alignment import align_words, best_alignment_head, merge_subwords, to_pharaoh, word_positions
from regard.text.tokenizer import Encoding

B, WORDS = 60, 19  # sentences, words of the language


def text(words: list[int], first: int) -> Encoding:
    """A word w is one piece, or two where w is even."""
    ids, numbers = [], []
    for number, word in enumerate(words):
        pieces = [first + 2 * word] if word % 2 else [first + 2 * word, first + 2 * word + 1]
        ids += pieces
        numbers += [number] * len(pieces)
    return Encoding(ids, ["x"] * len(ids), [(0, 1)] * len(ids), numbers)


@pytest.fixture(scope="module")
def corpus():
    """Sentences whose words are turned around, and the true links of each target piece to a source piece."""
    chance = np.random.default_rng(3)
    sentences = [chance.integers(0, WORDS, chance.integers(3, 9)).tolist() for _ in range(B)]
    source, target = [text(words, 10) for words in sentences], [text(words[::-1], 100) for words in sentences]
    true = []
    for read, written in zip(source, target, strict=True):
        last = max(read.word_ids)
        groups, inside = word_positions(read.word_ids), word_positions(written.word_ids)
        true.append([groups[last - word][inside[word].index(place)] for place, word in enumerate(written.word_ids)])
    return source, target, true


def looking(corpus, where, sharpness, noise=0):
    """Weights [B, Q, K] of a head that looks at `where(place, true place, source length)`."""
    source, target, true = corpus
    most = max(len(one.ids) for one in source) + 1
    chance = np.random.default_rng(noise)
    weights = np.zeros((B, most, most), np.float32)
    for number, (read, written) in enumerate(zip(source, target, strict=True)):
        size = len(read.ids) + 1
        rows = chance.dirichlet(np.ones(size), len(written.ids) + 1) * (1 - sharpness)
        for place in range(len(written.ids) + 1):
            at = true[number][min(place, len(written.ids) - 1)]
            rows[place, where(place, at, size) % size] += sharpness
        weights[number, : len(rows), :size] = rows
    return weights


HEADS = {
    "end": lambda place, true, size: size - 1,
    "first": lambda place, true, size: 0,
    "same place": lambda place, true, size: place,
    "next": lambda place, true, size: true + 1,
    "true": lambda place, true, size: true,
}


def test_the_head_that_aligns_is_chosen_though_others_are_sharper(corpus):
    source, target, _ = corpus
    heads = [looking(corpus, where, 0.4 if name == "true" else 0.9, n) for n, (name, where) in enumerate(HEADS.items())]
    weights = {"decoder.0.cross": np.stack(heads[:3], axis=1), "decoder.1.cross": np.stack(heads[3:], axis=1)}
    choice = best_alignment_head(weights, source, target)
    assert (choice.site, choice.head, choice.shift) == ("decoder.1.cross", 1, 0)
    alone = {
        name: best_alignment_head({"s": head[:, None]}, source, target).score
        for name, head in zip(HEADS, heads, strict=True)
    }
    assert sorted(alone, key=alone.__getitem__)[-1] == "true"
    assert alone["end"] < 0.3 and alone["first"] < 0.3 and alone["same place"] < 0.6


def test_a_head_that_lags_is_read_later(corpus):
    source, target, _ = corpus
    late = np.roll(looking(corpus, HEADS["true"], 0.8), 1, axis=1)  # row t looks where row t - 1 should
    choice = best_alignment_head({"decoder.0.cross": late[:, None]}, source, target)
    assert choice.shift == 1


def test_sharpness_decides_between_equals(corpus):
    source, target, _ = corpus
    soft, sharp = looking(corpus, HEADS["true"], 0.7), looking(corpus, HEADS["true"], 0.95)
    assert best_alignment_head({"s": np.stack([soft, sharp], axis=1)}, source, target).head == 1


def test_nothing_to_choose_from_is_refused():
    with pytest.raises(UsageError, match="no cross-attention"):
        best_alignment_head({}, [], [])


def test_words_are_summed_on_the_source_side_and_averaged_on_the_target_side():
    weights = np.array([[0.3, 0.3, 0.4], [0.1, 0.1, 0.8], [0.5, 0.2, 0.3]])
    words = merge_subwords(weights, [[0], [1, 2]], [[0, 1], [2]])
    assert words == pytest.approx(np.array([[0.6, 0.4], [0.45, 0.55]]))
    assert align_words(words) == [(0, 0), (1, 1)]
    assert to_pharaoh(align_words(words)) == "0-0 1-1"
    assert align_words(np.zeros((0, 3))) == [] and to_pharaoh([]) == ""
