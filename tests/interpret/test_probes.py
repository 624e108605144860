"""Linear probes: fits at their optimum, controls and splits as defined, and layers that are told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from regard.data.conll import TaggedSentence, TaggedSentences
from regard.errors import DataError, UsageError
from regard.interpret.layer_readers import States
from regard.interpret.linear_probe import fit_logistic, fit_ridge
from regard.interpret.probe_targets import (
    ProbeTarget,
    build_target,
    constant_baseline,
    control_target,
    split_sentences,
    without_sentences,
    word_baseline,
)
from regard.interpret.probing import layer_groups, probe_layers
from regard.tasks.frozen_features import Spans

WORDS = [f"w{index}" for index in range(40)]
TAGS = ("O", "X", "Y")


def sentences_of(count: int, seed: int) -> TaggedSentences:
    """Sentences whose tags follow from the word before, and from no word by itself."""
    rng = np.random.default_rng(seed)
    sentences = []
    for _ in range(count):
        words = rng.choice(WORDS, size=int(rng.integers(5, 12)))
        tags = ["O", *(TAGS[WORDS.index(word) % 3] for word in words[:-1])]
        sentences.append(TaggedSentence(tuple(map(str, words)), tuple(tags)))
    return TaggedSentences.from_sentences(sentences)


SENTENCES = sentences_of(240, seed=1)
TRAIN, TEST = split_sentences(SENTENCES, sample=240, seed=3)


@dataclass(frozen=True)
class PlantedReader:
    """Layer 0 knows each word, layer 1 the word before it too, layer 2 nothing."""

    backend_name: str = "NumPy"

    @property
    def layer_sizes(self) -> list[int]:
        return [40, 81, 13]

    def read(self, texts: Sequence[str], spans: Sequence[Spans], layers: Sequence[int]) -> list[States]:
        words = [
            [WORDS.index(text[slice(*span)]) for span in of_text] for text, of_text in zip(texts, spans, strict=True)
        ]
        own = np.eye(40, dtype=np.float32)[np.concatenate(words)]
        before = np.eye(41, dtype=np.float32)[np.concatenate([[40, *of_text[:-1]] for of_text in words])]
        noise = np.random.default_rng(5).normal(size=(len(own), 13)).astype(np.float32)
        return [(own, np.hstack([own, before]), noise)[layer] for layer in layers]


# ---- fits


def test_the_gradient_is_zero_at_the_optimum() -> None:
    rng = np.random.default_rng(2)
    states = rng.normal(size=(97, 7)) * rng.uniform(0.1, 30, size=7) + 5
    labels = rng.integers(4, size=97)
    probe = fit_logistic(states, labels, 4, penalty=1.7, tolerance=1e-8, max_iterations=500)
    assert probe.has_converged
    features = (states - states.mean(0)) / states.std(0)
    weight, bias = probe.weight.numpy(), probe.bias.numpy()
    logits = features @ weight + bias
    np.testing.assert_allclose(probe.outputs(states), logits, atol=1e-12)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    residuals = (probabilities - np.eye(4)[labels]) / 97
    np.testing.assert_allclose(features.T @ residuals + 1.7 / 97 * weight, 0, atol=1e-7)
    np.testing.assert_allclose(residuals.sum(0), 0, atol=1e-7)

    def objective(candidate: np.ndarray) -> float:
        candidate_logits = features @ candidate + bias
        log_sums = np.log(np.exp(candidate_logits).sum(1))
        losses = log_sums - candidate_logits[np.arange(97), labels]
        return float(losses.mean() + 1.7 / (2 * 97) * (candidate**2).sum())

    smallest = objective(weight)
    for _ in range(20):  # convex: every step away is worse
        assert objective(weight + 0.03 * rng.normal(size=weight.shape)) > smallest


def test_too_few_iterations_are_reported() -> None:
    rng = np.random.default_rng(2)
    probe = fit_logistic(rng.normal(size=(97, 7)), rng.integers(4, size=97), 4, tolerance=1e-9, max_iterations=2)
    assert not probe.has_converged and probe.gradient > 1e-9


def test_ridge_regression_solves_the_normal_equations() -> None:
    rng = np.random.default_rng(3)
    states = rng.normal(size=(83, 5)).astype(np.float32)
    states[:, 4] = 2  # a constant dimension
    values = rng.normal(size=83)
    outputs = fit_ridge(states, values, penalty=2.5).outputs(states)[:, 0]
    features = (states - states.mean(0)) / np.maximum(states.std(0), 1e-6)
    weight = np.linalg.solve(features.T @ features + 2.5 * np.eye(5), features.T @ (values - values.mean()))
    np.testing.assert_allclose(outputs, features @ weight + values.mean(), atol=1e-5)


def test_separable_states_reach_every_label() -> None:
    rng = np.random.default_rng(4)
    labels = rng.integers(3, size=300)
    states = (np.eye(3)[labels] * 4 + rng.normal(size=(300, 3)) * 0.3).astype(np.float32)
    probe = fit_logistic(states[:200], labels[:200], 3)
    assert (probe.outputs(states[200:]).argmax(1) == labels[200:]).all()
    values = states @ np.array([1.0, -2.0, 0.5]) + 3
    outputs = fit_ridge(states[:200], values[:200], penalty=1e-6).outputs(states[200:])
    np.testing.assert_allclose(outputs[:, 0], values[200:], atol=1e-3)


def test_random_labels_stay_at_chance() -> None:
    rng = np.random.default_rng(5)
    states = rng.normal(size=(4000, 11)).astype(np.float32)
    labels = rng.integers(4, size=4000)
    probe = fit_logistic(states[:2000], labels[:2000], 4)
    accuracy = (probe.outputs(states[2000:]).argmax(1) == labels[2000:]).mean()
    assert abs(accuracy - 0.25) < 5 * (0.25 * 0.75 / 2000) ** 0.5


# ---- targets


def test_targets_are_read_from_the_sentences() -> None:
    sentences = TaggedSentences.from_sentences(
        [TaggedSentence(("a", "b"), ("2", "0"), "x.conll:1"), TaggedSentence(("c",), ("-1",), "x.conll:4")]
    )
    position = build_target("position", sentences)
    assert (position.values.tolist(), position.sentence_ids.tolist()) == ([0, 1, 0], [0, 0, 1])
    assert build_target("depth", sentences).values.tolist() == [2, 0, -1]
    tags = build_target("tags", sentences, ["-1", "0", "2"])
    assert (tags.values.tolist(), tags.words, tags.is_classification) == ([2, 1, 0], ["a", "b", "c"], True)
    with pytest.raises(UsageError, match="did you mean depth"):
        build_target("deepth", sentences)
    wrong = TaggedSentences.from_sentences([TaggedSentence(("a", "b"), ("1", "NP"), "x.conll:7")])
    with pytest.raises(DataError, match="x.conll:7: the depth 'NP' is not a whole number"):
        build_target("depth", wrong)


def test_control_values_belong_to_words_and_are_drawn_from_the_real_ones() -> None:
    words = [f"w{index % 5000}" for index in range(20_000)]
    values = np.random.default_rng(1).choice([0.0, 1.0, 2.0], size=20_000, p=[0.7, 0.2, 0.1])
    target = ProbeTarget(words, values, np.zeros(20_000, np.int64), TAGS)
    control = control_target(target, target, seed=1)
    by_word = dict(zip(words, control.values, strict=True))
    assert all(by_word[word] == value for word, value in zip(words, control.values, strict=True))
    shares = {value: count / 20_000 for value, count in Counter(control.values.tolist()).items()}
    assert shares == pytest.approx({0.0: 0.7, 1.0: 0.2, 2.0: 0.1}, abs=0.03)
    other = ProbeTarget(words[:7][::-1], values[:7], np.zeros(7, np.int64), TAGS)
    assert control_target(target, other, seed=1).values.tolist() == control.values[:7][::-1].tolist()
    assert control_target(target, target, seed=2).values.tolist() != control.values.tolist()


def test_baselines_are_those_counted_by_hand() -> None:
    ids = np.zeros(5, np.int64)
    train = ProbeTarget(["a", "a", "a", "b", "c"], np.array([1.0, 1.0, 0.0, 0.0, 0.0]), ids, TAGS)
    test = ProbeTarget(["a", "b", "new"], np.zeros(3), ids[:3], TAGS)
    assert constant_baseline(train, test).tolist() == [0, 0, 0]
    assert word_baseline(train, test).tolist() == [1, 0, 0]
    numbers = ProbeTarget(["a", "a", "b", "b", "b"], np.array([1.0, 4.0, 0.0, 3.0, 0.0]), ids)
    assert constant_baseline(numbers, test).tolist() == [1.6, 1.6, 1.6]
    assert word_baseline(numbers, test).tolist() == [2.5, 1, 1.6]


def test_equal_sentences_are_in_one_part() -> None:
    rows = [TaggedSentence((f"w{index % 30}", "x"), ("O", "O")) for index in range(90)]
    sentences = TaggedSentences.from_sentences(rows)
    train, test = split_sentences(sentences, sample=20, seed=1)
    parts = [{sentence.words for sentence in part.sentences} for part in (train, test)]
    assert not parts[0] & parts[1]
    assert ([len(part) for part in parts], len(train), len(test)) == ([16, 4], 48, 12)
    again = split_sentences(sentences, sample=20, seed=1)
    assert [part.digest for part in again] == [train.digest, test.digest]
    assert split_sentences(sentences, sample=20, seed=2)[1].digest != test.digest
    kept = without_sentences(sentences, test, sample=1000)
    assert len(kept) == 78 and not {sentence.words for sentence in kept.sentences} & parts[1]
    with pytest.raises(UsageError, match="too few to hold some out"):
        split_sentences(sentences, sample=2, seed=1)
    with pytest.raises(UsageError, match="all sentences are in the test data"):
        without_sentences(test, sentences, sample=9)


# ---- layers


def test_layers_are_told_apart() -> None:
    result = probe_layers(PlantedReader(), "tags", TRAIN, TEST)
    words, before, noise = result.layers
    assert (result.metric, result.labels) == ("accuracy", ("O", "X", "Y"))
    assert before.score.mean == 100 and before.beats_baseline
    assert before.gain == pytest.approx(100 - result.word_baseline.mean)
    assert not words.beats_baseline and not noise.beats_baseline
    assert words.control.mean > 99  # words can be memorised …
    assert words.selectivity.mean < -30  # … and that is all that their embeddings know
    assert noise.score.mean < 50
    assert before.selectivity.mean == pytest.approx(before.score.mean - before.control.mean)
    assert words.score.low <= words.score.mean <= words.score.high
    assert result.num_test_words == sum(len(sentence.words) for sentence in TEST.sentences)
    assert result.best is before


def test_the_same_seed_gives_the_same_result() -> None:
    results = [probe_layers(PlantedReader(), "tags", TRAIN, TEST, metric="macro_f1", seed=seed) for seed in (1, 1, 2)]
    assert results[0] == results[1]
    scores = [[layer.score for layer in result.layers] for result in results]
    controls = [[layer.control for layer in result.layers] for result in results]
    assert scores[0] == scores[2] and controls[0] != controls[2]


def test_macro_f1_weighs_labels_equally() -> None:
    rows = [TaggedSentence(("a", "a", "a", "b"), ("O", "O", "O", "X")) for _ in range(12)]
    train = TaggedSentences.from_sentences(rows)
    result = probe_layers(_Ones(), "tags", train, train, metric="macro_f1")
    assert result.constant_baseline.mean == pytest.approx(100 * (6 / 7) / 2)  # F1 of O is 6/7, of X 0
    assert result.word_baseline.mean == 100


@dataclass(frozen=True)
class _Ones(PlantedReader):
    """One layer, the same for every word."""

    @property
    def layer_sizes(self) -> list[int]:
        return [2]

    def read(self, texts: Sequence[str], spans: Sequence[Spans], layers: Sequence[int]) -> list[States]:
        return [np.ones((sum(map(len, spans)), 2), np.float32)]


def test_numbers_are_scored_by_the_explained_variance() -> None:
    result = probe_layers(_Ones(), "position", TRAIN, TEST)
    (layer,) = result.layers
    assert result.metric == "R²" and layer.score.mean == pytest.approx(0, abs=1e-9)
    assert result.constant_baseline.mean == 0
    with pytest.raises(UsageError, match="the metric accuracy is for tags"):
        probe_layers(_Ones(), "position", TRAIN, TEST, metric="accuracy")
    with pytest.raises(UsageError, match="no metric 'f1'"):
        probe_layers(_Ones(), "tags", TRAIN, TEST, metric="f1")


def test_a_tag_that_occurs_in_test_sentences_alone_is_a_mistake() -> None:
    test = TaggedSentences.from_sentences([*TEST.sentences, TaggedSentence(("w1", "w2"), ("O", "Z"))])
    result = probe_layers(PlantedReader(), "tags", TRAIN, test)
    assert result.labels == ("O", "X", "Y", "Z")
    assert result.layers[1].score.mean < 100
    constant = TaggedSentences.from_sentences([TaggedSentence(("w1", "w2"), ("O", "O"))])
    with pytest.raises(DataError, match="all words have the tag 'O'"):
        probe_layers(PlantedReader(), "tags", constant, TEST)


def test_layers_are_read_in_groups_that_fit_into_memory() -> None:
    assert layer_groups([8] * 5, num_words=100, max_bytes=6400) == [[0, 1], [2, 3], [4]]
    assert layer_groups([8] * 3, num_words=100, max_bytes=1) == [[0], [1], [2]]
    assert layer_groups([7, 18, 18], num_words=2, max_bytes=1 << 20) == [[0], [1, 2]]
