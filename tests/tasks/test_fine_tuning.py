"""Metrics and decisions of fine-tuning: valid tags, spans, probabilities, thresholds, baselines."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from regard.config.data import TokenizerConfig
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
    encode_questions,
    questions_without_target,
    span_targets,
    word_f1,
    word_overlap_baseline,
)
from regard.tasks.windows import window_spans
from regard.text.special_tokens import SpecialTokens, with_mask_token
from regard.text.train import train_tokenizer

TAGS = ["O", "B-x", "I-x", "B-y", "I-y"]


def is_valid(path: tuple[int, ...]) -> bool:
    allowed = tag_transitions(TAGS)
    return all(allowed[previous, tag] for previous, tag in zip((-1, *path), path, strict=False))


def test_viterbi_agrees_with_exhaustive_search() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        logprobs = np.log(softmax_probabilities(2 * rng.normal(size=(4, len(TAGS)))))
        best_logprob = -np.inf
        best_path: tuple[int, ...] = ()
        for path in filter(is_valid, product(range(len(TAGS)), repeat=4)):
            logprob = logprobs[np.arange(4), list(path)].sum()
            if logprob > best_logprob:
                best_logprob = logprob
                best_path = path
        assert viterbi(logprobs, tag_transitions(TAGS)).tolist() == list(best_path)


def test_only_whole_entities_count() -> None:
    targets = [["B-x", "I-x", "O", "B-y"]]
    assert entity_scores(targets, targets)["f1"] == 100
    assert entity_scores([["B-x", "O", "O", "B-y"]], targets)["f1"] == 50
    assert entity_scores([["B-y", "I-y", "O", "B-y"]], targets)["f1"] == 50
    assert entity_scores([["O"] * 4], targets) == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 25}


def test_most_frequent_tags_are_valid() -> None:
    sentences = [(["new", "york"], ["B-x", "I-x"])]
    assert most_frequent_tags(sentences, [["york", "new"]], TAGS)[0][0] != "I-x"


def test_temperature_corrects_overconfidence() -> None:
    rng = np.random.default_rng(1)
    true_logits = rng.normal(size=(4000, 3))
    labels = np.array([rng.choice(3, p=probabilities) for probabilities in softmax_probabilities(true_logits)])
    logits = 3 * true_logits
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(3, rel=0.1)
    before = softmax_probabilities(logits)
    after = softmax_probabilities(logits, temperature)
    error_before = calibration_error(before.max(1), before.argmax(1) == labels)
    error_after = calibration_error(after.max(1), after.argmax(1) == labels)
    assert error_after < 0.04 < error_before


def test_temperature_of_several_labels_has_the_lowest_loss() -> None:
    rng = np.random.default_rng(2)
    true_logits = rng.normal(size=(2000, 2))
    label_matrix = (rng.random((2000, 2)) < sigmoid_probabilities(true_logits)).astype(np.float32)
    logits = 2 * true_logits
    temperature = fit_temperature(logits, label_matrix)
    assert temperature == pytest.approx(2, rel=0.15)
    other_losses = [multi_label_loss(logits, label_matrix, other) for other in (0.5, 1, 1.5, 3, 9)]
    assert multi_label_loss(logits, label_matrix, temperature) <= min(other_losses)


def test_thresholds_never_lower_the_score_they_are_tuned_on() -> None:
    rng = np.random.default_rng(3)
    label_matrix = (rng.random((200, 3)) < [0.5, 0.1, 0.02]).astype(np.float32)
    probabilities = np.clip(0.3 * label_matrix + 0.3 * rng.random((200, 3)), 0, 1)
    untuned = multi_label_f1(probabilities >= 0.5, label_matrix)["macro_f1"]
    thresholds = fit_thresholds(probabilities, label_matrix)
    assert multi_label_f1(probabilities >= thresholds, label_matrix)["macro_f1"] > untuned
    assert fit_thresholds(probabilities, np.zeros_like(label_matrix)).tolist() == [0.5] * 3


def test_windows_cover_everything_and_overlap() -> None:
    for count, size, overlap in product((1, 5, 12, 40), (5, 8), (0, 2)):
        spans = window_spans(count, size, overlap)
        assert {position for start, stop in spans for position in range(start, stop)} == set(range(count))
        assert all(stop - start <= size for start, stop in spans)
        assert all(before[1] - after[0] >= overlap for before, after in pairwise(spans))


def test_answers_are_compared_as_in_squad() -> None:
    examples = [SquadExample("q", "p", ((0, "the Denver Broncos"), (4, "Broncos"))), SquadExample("q", "p")]
    assert answer_scores(["Broncos!", ""], examples)["exact_match"] == 100
    assert answer_scores(["Denver", "x"], examples)["f1"] == pytest.approx(100 * (2 / 3) / 2)
    assert word_f1("a b", "c") == 0


def test_answers_that_normalize_to_nothing_do_not_count_as_in_squad() -> None:
    examples = [SquadExample("q", "p", ((0, "The"), (4, "Broncos"))), SquadExample("q", "p", ((0, "the!"),))]
    assert answer_scores(["", ""], examples) == {"exact_match": 50.0, "f1": 50.0}  # the second has no answer left
    assert answer_scores(["a", "an"], examples) == {"exact_match": 50.0, "f1": 50.0}
    assert answer_scores(["broncos", "the"], examples)["exact_match"] == 100


def test_answers_between_tokens_are_found_without_their_white_space_or_listed() -> None:
    passage = "Ada met  Alan in London"
    special_tokens = SpecialTokens(with_mask_token(train_tokenizer([passage] * 3, TokenizerConfig(kind="words"))))
    examples = [
        SquadExample("who", passage, ((7, "  Alan "),)),
        SquadExample("who", passage, ((9, "Al"),)),  # a part of a word: its token contains it
        SquadExample("who", passage, ((7, "  "),)),
        SquadExample("who", passage),
    ]
    rows = encode_questions(special_tokens, [("Ada", passage)] * 4, 20, 4, is_causal=False)
    targets = span_targets(rows, examples)
    alan = rows.passage_starts[0] + [passage[start:stop].strip() for start, stop in rows.spans[0]].index("Alan")
    assert targets.tolist() == [[alan, alan], [alan, alan], [0, 0], [0, 0]]
    assert questions_without_target(rows, targets, examples) == [2]
    rest = rows.select_rows([0, 3])
    assert (len(rest), rest.text_indices, len(rest.lengths)) == (2, [0, 3], 2)
    last_tokens = encode_questions(special_tokens, [("Ada", passage)], 20, 4, is_causal=True)
    assert last_tokens.no_answer_positions == [len(last_tokens.rows[0]) - 1] != rows.no_answer_positions[:1]


def test_the_threshold_for_no_answer_is_the_best() -> None:
    passage = "Ada met Alan."
    examples = [
        SquadExample("q", passage, ((0, "Ada"),)),
        SquadExample("q", passage),
        SquadExample("q", passage, ((8, "Alan"),)),
    ]
    spans = [
        [AnswerSpan(0, 3, 5, 0, 0.9, 0.01)],
        [AnswerSpan(0, 3, 1, 0, 0.5, 0.3)],
        [AnswerSpan(8, 12, 3, 0, 0.8, 0.1)],
    ]
    threshold = best_threshold(spans, examples)
    assert 1 < threshold < 3
    assert answer_texts(spans, [passage] * 3, threshold) == ["Ada", "", "Alan"]
    assert best_threshold(spans[:1], examples[:1]) < -1e8
    assert answer_texts(spans[1:2], [passage], best_threshold(spans[1:2], examples[1:2])) == [""]


def test_answers_of_the_overlap_baseline_are_spans() -> None:
    passage = "In 1815, Ada was born. She wrote programs with Charles Babbage in London."
    answer = word_overlap_baseline("Who wrote programs with Ada?", passage)
    assert answer
    assert answer in passage


def test_the_bag_of_words_baseline_learns_words_and_pairs() -> None:
    rng = np.random.default_rng(4)
    texts = [f"{'good' if index % 2 else 'bad'} w{rng.integers(9)}" for index in range(80)]
    labels = np.arange(80) % 2
    baseline = BagOfWordsBaseline.fit(texts, labels, 2, valid=(texts, None, labels))
    assert (baseline.logits(texts).argmax(1) == labels).all()
    assert baseline.logits(["", "never seen"]).shape == (2, 2)
    first_texts = [f"w{index % 7}" for index in range(80)]
    second_texts = [f"w{index % 7}" if index % 2 else "else" for index in range(80)]
    pair_baseline = BagOfWordsBaseline.fit(first_texts, labels, 2, pairs=second_texts)
    assert (pair_baseline.logits(first_texts, second_texts).argmax(1) == labels).all()


def test_gains_come_with_an_interval() -> None:
    scores = np.array([1.0] * 90 + [0.0] * 10)
    baseline_scores = np.array([1.0] * 70 + [0.0] * 30)
    gain = paired_gain(scores, baseline_scores)
    assert gain.points == pytest.approx(20)
    assert gain.describe().startswith("attention helped by 20.0 ± 7")
    counts = np.array([[[1, 1, 1]]] * 50)
    baseline_counts = np.array([[[0, 1, 1]]] * 25 + [[[1, 1, 1]]] * 25)
    gain_in_f1 = f1_gain(counts, baseline_counts)
    assert gain_in_f1.points == pytest.approx(50)
    assert 5 < gain_in_f1.interval < 20
