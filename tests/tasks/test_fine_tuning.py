"""What fine-tuning measures and decides: valid tags, spans, chances, thresholds, baselines."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from regard.data.squad import SquadExample
from regard.tasks.baselines import BagOfWordsBaseline, f1_gain, paired_gain
from regard.tasks.calibration import (
    calibration_error,
    fit_temperature,
    fit_thresholds,
    multi_label_f1,
    multi_label_loss,
    sigmoid_probabilities,
    softmax_probabilities,
)
from regard.tasks.entities import entity_scores, most_frequent_tags, tag_transitions, viterbi
from regard.tasks.question_answering import (
    AnswerSpan,
    answer_scores,
    answer_texts,
    best_threshold,
    word_f1,
    word_overlap_baseline,
)
from regard.tasks.windows import window_spans

TAGS = ["O", "B-x", "I-x", "B-y", "I-y"]


def valid(numbers: tuple[int, ...]) -> bool:
    allowed = tag_transitions(TAGS)
    return all(allowed[before, after] for before, after in zip((-1, *numbers), numbers, strict=False))


def test_the_best_valid_tags_are_those_of_trying_all() -> None:
    draw = np.random.default_rng(1)
    for _ in range(20):
        scores = np.log(softmax_probabilities(2 * draw.normal(size=(4, len(TAGS)))))
        ways = [way for way in product(range(len(TAGS)), repeat=4) if valid(way)]
        best = max(ways, key=lambda way: scores[np.arange(4), list(way)].sum())
        assert viterbi(scores, tag_transitions(TAGS)).tolist() == list(best)


def test_entities_count_only_whole() -> None:
    wanted = [["B-x", "I-x", "O", "B-y"]]
    assert entity_scores(wanted, wanted)["f1"] == 100
    assert entity_scores([["B-x", "O", "O", "B-y"]], wanted)["f1"] == 50
    assert entity_scores([["B-y", "I-y", "O", "B-y"]], wanted)["f1"] == 50
    assert entity_scores([["O"] * 4], wanted) == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 25}


def test_usual_tags_are_valid() -> None:
    seen = [(["new", "york"], ["B-x", "I-x"])]
    assert most_frequent_tags(seen, [["york", "new"]], TAGS)[0][0] != "I-x"


def test_temperature_mends_chances_that_are_too_sure() -> None:
    draw = np.random.default_rng(1)
    true = draw.normal(size=(4000, 3))
    labels = np.array([draw.choice(3, p=row) for row in softmax_probabilities(true)])
    scores = 3 * true
    assert fit_temperature(scores, labels) == pytest.approx(3, rel=0.1)
    before, after = (
        calibration_error(chances.max(1), chances.argmax(1) == labels)
        for chances in (softmax_probabilities(scores), softmax_probabilities(scores, fit_temperature(scores, labels)))
    )
    assert after < 0.04 < before


def test_temperature_of_marks_is_the_least_loss() -> None:
    draw = np.random.default_rng(2)
    true = draw.normal(size=(2000, 2))
    marks = (draw.random((2000, 2)) < sigmoid_probabilities(true)).astype(np.float32)
    found = fit_temperature(2 * true, marks)
    assert found == pytest.approx(2, rel=0.15)
    assert multi_label_loss(2 * true, marks, found) <= min(
        multi_label_loss(2 * true, marks, one) for one in (0.5, 1, 1.5, 3, 9)
    )


def test_thresholds_never_lower_the_score_they_are_tuned_on() -> None:
    draw = np.random.default_rng(3)
    marks = (draw.random((200, 3)) < [0.5, 0.1, 0.02]).astype(np.float32)
    chances = np.clip(0.3 * marks + 0.3 * draw.random((200, 3)), 0, 1)
    plain = multi_label_f1(chances >= 0.5, marks)["macro_f1"]
    assert multi_label_f1(chances >= fit_thresholds(chances, marks), marks)["macro_f1"] > plain
    assert fit_thresholds(chances, np.zeros_like(marks)).tolist() == [0.5] * 3


def test_windows_cover_everything_and_overlap() -> None:
    for count, room, overlap in product((1, 5, 12, 40), (5, 8), (0, 2)):
        found = window_spans(count, room, overlap)
        assert {place for first, last in found for place in range(first, last)} == set(range(count))
        assert all(last - first <= room for first, last in found)
        assert all(before[1] - after[0] >= overlap for before, after in pairwise(found))


def test_answers_are_compared_as_in_squad() -> None:
    rows = [SquadExample("q", "p", ((0, "the Denver Broncos"), (4, "Broncos"))), SquadExample("q", "p")]
    assert answer_scores(["Broncos!", ""], rows)["exact"] == 100
    assert answer_scores(["Denver", "x"], rows)["f1"] == pytest.approx(100 * (2 / 3) / 2)
    assert word_f1("a b", "c") == 0


def test_the_threshold_for_no_answer_is_the_best() -> None:
    passage = "Ada met Alan."
    rows = [
        SquadExample("q", passage, ((0, "Ada"),)),
        SquadExample("q", passage),
        SquadExample("q", passage, ((8, "Alan"),)),
    ]
    spans = [[AnswerSpan(0, 3, 5, 0, 0.9)], [AnswerSpan(0, 3, 1, 0, 0.5)], [AnswerSpan(8, 12, 3, 0, 0.8)]]
    found = best_threshold(spans, rows)
    assert 1 < found < 3
    assert answer_texts(spans, [passage] * 3, found) == ["Ada", "", "Alan"]
    assert best_threshold(spans[:1], rows[:1]) < -1e8
    assert answer_texts(spans[1:2], [passage], best_threshold(spans[1:2], rows[1:2])) == [""]


def test_overlap_answers_are_spans() -> None:
    passage = "In 1815, Ada was born. She wrote programs with Charles Babbage in London."
    found = word_overlap_baseline("Who wrote programs with Ada?", passage)
    assert found
    assert found in passage


def test_the_baseline_learns_words_and_pairs() -> None:
    draw = np.random.default_rng(4)
    texts = [f"{'good' if number % 2 else 'bad'} w{draw.integers(9)}" for number in range(80)]
    labels = np.arange(80) % 2
    base = BagOfWordsBaseline.fit(texts, labels, 2, valid=(texts, None, labels))
    assert (base.scores(texts).argmax(1) == labels).all()
    assert base.scores(["", "never seen"]).shape == (2, 2)
    pairs = [f"w{number % 7}" if number % 2 else "else" for number in range(80)]
    same = [f"w{number % 7}" for number in range(80)]
    assert (BagOfWordsBaseline.fit(same, labels, 2, pairs=pairs).scores(same, pairs).argmax(1) == labels).all()


def test_gains_come_with_an_interval() -> None:
    ours, theirs = np.array([1.0] * 90 + [0.0] * 10), np.array([1.0] * 70 + [0.0] * 30)
    gain = paired_gain(ours, theirs)
    assert gain.points == pytest.approx(20)
    assert gain.describe().startswith("attention helped by 20.0 ± 7")
    counts = np.array([[[1, 1, 1]]] * 50), np.array([[[0, 1, 1]]] * 25 + [[[1, 1, 1]]] * 25)
    found = f1_gain(*counts)
    assert found.points == pytest.approx(50)
    assert 5 < found.interval < 20
