"""Stories as a task: words and numbers, batches, gaps, errors by task, and whether the right sentences were seen."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from regard.config.rnn_models import MemoryNetworkConfig
from regard.data.babi import StoryQuestion, StoryQuestions
from regard.errors import CheckpointError, DataError
from regard.models.memory_network import MemoryNetwork
from regard.tasks.story_qa import (
    UNKNOWN_ANSWER,
    HopAnswer,
    StoryExamples,
    StoryScores,
    StoryVocabulary,
    TaskScore,
    encode_stories,
    evaluate_restarts,
    predict_answers,
    resolve_sizes,
    score_answers,
    supporting_accuracy,
)
from regard.tokens import Tokens

TOLD = ("Mary went home.", "John slept.", "Mary got the milk there.")
STORIES = StoryQuestions.of(
    [
        StoryQuestion("one", TOLD[:1], "Where is Mary?", "home", (0,), "a.txt:2"),
        StoryQuestion("one", TOLD, "Where is the milk?", "home", (0, 2), "a.txt:5"),
        StoryQuestion("two", TOLD[1:], "Who slept?", "john", (0,), "b.txt:3"),
    ]
)
VOCABULARY = StoryVocabulary.of(STORIES)


def small(**changes: object) -> MemoryNetworkConfig:
    return resolve_sizes(MemoryNetworkConfig(embedding_size=5, hops=2).override(changes), STORIES, VOCABULARY)


def test_the_stories_decide_what_the_config_leaves_open() -> None:
    config = resolve_sizes(MemoryNetworkConfig(), STORIES, VOCABULARY)
    assert (config.vocab_size, config.max_sentence_words, config.memory_size, config.embedding_size) == (
        len(VOCABULARY.words),
        5,
        3,
        50,
    )
    assert resolve_sizes(MemoryNetworkConfig(), STORIES.select([0, 1]), VOCABULARY).embedding_size == 20
    assert resolve_sizes(MemoryNetworkConfig(memory_size=2, max_sentence_words=9), STORIES, VOCABULARY).memory_size == 2


def test_a_batch_holds_words_ages_and_counts() -> None:
    data = encode_stories(STORIES, VOCABULARY, small())
    assert len(data.sentences) == 3  # told many times, kept once
    batch = data.batch(np.array([2, 1]))
    texts = [[VOCABULARY.words[word] for word in row] for row in batch.sentences]
    assert [" ".join(words) for words in texts] == [
        "john slept",
        "mary got the milk there",
        "mary went home",
        "john slept",
        "mary got the milk there",
    ]
    assert [VOCABULARY.words[word] for word in batch.questions.row(0)] == ["who", "slept"]
    assert (batch.ages.tolist(), batch.counts.tolist()) == ([1, 0, 2, 1, 0], [2, 3])
    assert [VOCABULARY.words[word] for word in data.answers] == ["home", "home", "john"]
    assert (data.tasks, data.task.tolist(), data.support) == (("one", "two"), [0, 0, 1], [{0}, {0, 2}, {0}])


def test_only_the_last_sentences_are_remembered() -> None:
    data = encode_stories(STORIES, VOCABULARY, small(memory_size=2))
    assert data.stories.lengths.tolist() == [1, 2, 2]
    assert data.support == [{0}, {-1, 1}, {0}]  # one of the two that matter is forgotten


def test_gaps_keep_the_order_and_are_a_function_of_chance() -> None:
    many = StoryQuestions.of([StoryQuestion("one", TOLD * 10, "Who slept?", "john")] * 200)
    data = encode_stories(many, VOCABULARY, replace(small(), memory_size=50))
    drawn = [data.noisy_ages(0.1, 50, np.random.default_rng(seed)).reshape(200, 30) for seed in (1, 1, 2)]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    assert (np.diff(drawn[0], axis=1) < 0).all()
    assert set(drawn[0][:, 0].tolist()) == {29, 30, 31, 32}  # none to three gaps, some of them after the last sentence
    assert {0, 1} <= set(drawn[0][:, -1].tolist())
    assert data.noisy_ages(0.1, 30, np.random.default_rng(1)).max() == 29
    assert (data.noisy_ages(0, 50, np.random.default_rng(1)) == data.ages).all()


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (
            StoryQuestion("one", TOLD, "Where is the silk?", "home", (), "c.txt:4"),
            "c.txt:4: the model does not know the word 'silk' (did you mean milk?)",
        ),
        (StoryQuestion("one", ("Kuh muh.",), "Who slept?", "john", (), "c.txt:2"), "c.txt:2: the model does not know"),
        (
            StoryQuestion("one", TOLD, "Where is the milk Mary got?", "home", (), "c.txt:4"),
            "c.txt:4: the question has 6 words, the model holds 5",
        ),
        (
            StoryQuestion("one", ("John slept there home home home.",), "Who slept?", "john", (), "c.txt:2"),
            "c.txt:2: the sentence has 6 words, the model holds 5",
        ),
        (
            StoryQuestion("one", TOLD, "Who slept?", "mary", (), "c.txt:4"),
            "c.txt:4: the answer 'mary' was never seen in training",
        ),
    ],
    ids=str,
)
def test_what_a_model_cannot_read_is_named_with_its_place(question: StoryQuestion, message: str) -> None:
    with pytest.raises(DataError) as caught:
        encode_stories(StoryQuestions.of([question]), VOCABULARY, small())
    assert str(caught.value).startswith(message)


def test_unseen_answers_can_be_counted_as_wrong() -> None:
    asked = StoryQuestions.of([*STORIES.questions, StoryQuestion("one", TOLD, "Who slept?", "football,milk")])
    data = encode_stories(asked, VOCABULARY, small(), strict=False)
    assert data.answers[-1] == UNKNOWN_ANSWER
    found = evaluate_restarts(MemoryNetwork(small(), members=3), data)
    assert found.tasks == ("one", "two")
    assert found.errors.shape == (2, 3)
    assert (found.errors[0] >= 100 / 3 - 1e-9).all()
    assert np.isfinite(found.loss).all()


def test_errors_are_counted_by_task() -> None:
    model, data = MemoryNetwork(small(), members=2), encode_stories(STORIES, VOCABULARY, small())
    found = evaluate_restarts(model, data)
    losses, right = model.loss(data.batch(np.arange(3)), data.answers)
    np.testing.assert_allclose(found.loss, losses.detach().numpy() / 3, rtol=1e-5)
    np.testing.assert_allclose(found.errors, [100 - 50 * right[:, :2].sum(1), 100 - 100 * right[:, 2]])
    np.testing.assert_allclose(found.error, 100 - 100 * right.mean(1))
    assert evaluate_restarts(model, data, np.array([2])).tasks == ("two",)


def test_answers_come_with_the_weights_of_every_hop() -> None:
    model, data = MemoryNetwork(small(empty_memories=False)), encode_stories(STORIES, VOCABULARY, small())
    given = predict_answers(model, VOCABULARY, data)
    assert [one.weights.shape for one in given] == [(2, 1), (2, 3), (2, 2)]
    for one in given:
        assert one.text in VOCABULARY.words
        assert 0 < one.probability < 1
        assert one.others == ()
        np.testing.assert_allclose(one.weights.sum(1), 1, atol=1e-6)


def test_the_next_best_answers_come_in_their_order() -> None:
    model, data = MemoryNetwork(small()), encode_stories(STORIES, VOCABULARY, small())
    chances = model.logits(model(data.batch(np.arange(3))))[0].softmax(-1)
    for row, one in enumerate(predict_answers(model, VOCABULARY, data, top_k=3)):
        ranked = [(one.text, one.probability), *one.others]
        best = chances[row].topk(3)
        assert [text for text, _ in ranked] == [VOCABULARY.words[word] for word in best.indices.tolist()]
        np.testing.assert_allclose([chance for _, chance in ranked], best.values.tolist())
    assert len(predict_answers(model, VOCABULARY, data, top_k=99)[0].others) == len(VOCABULARY.words) - 1


def test_a_fault_in_a_sentence_has_its_own_place() -> None:
    question = StoryQuestion(
        "one", ("John slept.", "Kuh muh."), "Who slept?", "john", (), "c.txt:3", ("c.txt:1", "c.txt:2")
    )
    with pytest.raises(DataError, match=r"c.txt:2: the model does not know the word 'kuh'"):
        encode_stories(StoryQuestions.of([question]), VOCABULARY, small())
    with pytest.raises(DataError, match=r"c.txt:3: the question has no words"):
        encode_stories(
            StoryQuestions.of([replace(question, sentences=TOLD, text="?", sentence_locations=())]), VOCABULARY, small()
        )


def test_scores_are_means_over_tasks_and_survive_a_file() -> None:
    data = encode_stories(STORIES, VOCABULARY, small())
    looked = np.ones((2, 3), dtype=np.float32)
    given = [
        HopAnswer("home", 1.0, looked[:, :1]),
        HopAnswer("john", 1.0, looked),
        HopAnswer("john", 1.0, looked[:, :2]),
    ]
    found = score_answers(data, given, VOCABULARY)
    assert [(one.task, one.questions, one.error) for one in found.tasks] == [("one", 2, 50.0), ("two", 1, 0.0)]
    assert (found.questions, found.error, found.support) == (3, 25.0, 100.0)
    assert StoryScores.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert found.lines()[-1] == "mean of 2 tasks  3 questions  error 25.0 %  support seen 100.0 %"
    without = StoryScores((TaskScore("one", 7, 12.5, None),))
    assert (without.support, without.rows()) == (None, [["one", "7", "12.5 %", "–"]])


def test_support_is_found_when_all_of_it_is_looked_at_most() -> None:
    data = StoryExamples(
        *(Tokens.from_rows([[0]]) for _ in range(3)),
        answers=np.array([0, 0, 0, 1, 0]),
        tasks=("one", "two"),
        task=np.array([0, 0, 0, 0, 1]),
        support=[{0, 2}, {0, 2}, set(), {0}, {-1}],
        digest="",
    )
    vocabulary = StoryVocabulary(("yes", "no"), frozenset(["yes", "no"]))
    hit = HopAnswer("yes", 1.0, np.array([[0.9, 0.1, 0.0], [0.0, 0.3, 0.7]], dtype=np.float32))
    miss = HopAnswer("yes", 1.0, np.array([[0.5, 0.5, 0.0], [0.0, 0.6, 0.4]], dtype=np.float32))
    found = supporting_accuracy(
        data, [hit, miss, hit, hit, hit], vocabulary
    )  # the third has no support, the fourth is wrong
    assert found == {"one": 50.0, "two": 0.0}


def test_a_vocabulary_survives_a_file() -> None:
    values = json.loads(json.dumps(VOCABULARY.to_dict()))
    assert StoryVocabulary.from_dict(values) == VOCABULARY
    for broken in ({}, {"words": ["a"], "answers": ["b"]}, {"words": [1], "answers": []}, {"words": "ab"}):
        with pytest.raises(CheckpointError, match="x.json: not a vocabulary"):
            StoryVocabulary.from_dict(broken, "x.json")
