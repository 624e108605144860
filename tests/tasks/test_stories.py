"""Stories as a task: words and numbers, batches, gaps, errors by task, and whether the right sentences were seen."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from regard.config.model import MemoryConfig
from regard.data.stories import Question, Stories
from regard.errors import CheckpointError, DataError
from regard.models.memory_network import MemoryNetwork
from regard.tasks.stories import (
    UNSEEN,
    Answer,
    Examples,
    Vocabulary,
    answer,
    completed,
    examples,
    score,
    support_found,
)
from regard.tasks.story_scores import StoryScores, TaskScore, measured
from regard.tokens import Tokens

TOLD = ("Mary went home.", "John slept.", "Mary got the milk there.")
STORIES = Stories.of(
    [
        Question("one", TOLD[:1], "Where is Mary?", "home", (0,), "a.txt:2"),
        Question("one", TOLD, "Where is the milk?", "home", (0, 2), "a.txt:5"),
        Question("two", TOLD[1:], "Who slept?", "john", (0,), "b.txt:3"),
    ]
)
VOCABULARY = Vocabulary.of(STORIES)


def small(**changes: object) -> MemoryConfig:
    return completed(MemoryConfig(width=5, hops=2).override(changes), STORIES, VOCABULARY)


def test_the_stories_decide_what_the_config_leaves_open() -> None:
    config = completed(MemoryConfig(), STORIES, VOCABULARY)
    assert (config.vocabulary, config.longest, config.memory, config.width) == (len(VOCABULARY.words), 5, 3, 50)
    assert completed(MemoryConfig(), STORIES.chosen([0, 1]), VOCABULARY).width == 20
    assert completed(MemoryConfig(memory=2, longest=9), STORIES, VOCABULARY).memory == 2


def test_a_batch_holds_words_ages_and_counts() -> None:
    data = examples(STORIES, VOCABULARY, small())
    assert len(data.facts) == 3  # told many times, kept once
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
    data = examples(STORIES, VOCABULARY, small(memory=2))
    assert data.told.lengths.tolist() == [1, 2, 2]
    assert data.support == [{0}, {-1, 1}, {0}]  # one of the two that matter is forgotten


def test_gaps_keep_the_order_and_are_a_function_of_chance() -> None:
    many = Stories.of([Question("one", TOLD * 10, "Who slept?", "john")] * 200)
    data = examples(many, VOCABULARY, replace(small(), memory=50))
    drawn = [data.gapped(0.1, 50, np.random.default_rng(seed)).reshape(200, 30) for seed in (1, 1, 2)]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    assert (np.diff(drawn[0], axis=1) < 0).all()
    assert set(drawn[0][:, 0].tolist()) == {29, 30, 31, 32}  # none to three gaps, some of them after the last sentence
    assert {0, 1} <= set(drawn[0][:, -1].tolist())
    assert data.gapped(0.1, 30, np.random.default_rng(1)).max() == 29
    assert (data.gapped(0, 50, np.random.default_rng(1)) == data.ages).all()


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (
            Question("one", TOLD, "Where is the silk?", "home", (), "c.txt:4"),
            "c.txt:4: the model does not know the word 'silk' (did you mean milk?)",
        ),
        (Question("one", ("Kuh muh.",), "Who slept?", "john", (), "c.txt:2"), "c.txt:2: the model does not know"),
        (
            Question("one", TOLD, "Where is the milk Mary got?", "home", (), "c.txt:4"),
            "c.txt:4: the question has 6 words, the model holds 5",
        ),
        (
            Question("one", ("John slept there home home home.",), "Who slept?", "john", (), "c.txt:2"),
            "c.txt:2: the sentence has 6 words, the model holds 5",
        ),
        (
            Question("one", TOLD, "Who slept?", "mary", (), "c.txt:4"),
            "c.txt:4: the answer 'mary' was never seen in training",
        ),
    ],
    ids=str,
)
def test_what_a_model_cannot_read_is_named_with_its_place(question: Question, message: str) -> None:
    with pytest.raises(DataError) as caught:
        examples(Stories.of([question]), VOCABULARY, small())
    assert str(caught.value).startswith(message)


def test_unseen_answers_can_be_counted_as_wrong() -> None:
    asked = Stories.of([*STORIES.questions, Question("one", TOLD, "Who slept?", "football,milk")])
    data = examples(asked, VOCABULARY, small(), refuse=False)
    assert data.answers[-1] == UNSEEN
    found = score(MemoryNetwork(small(), members=3), data)
    assert found.tasks == ("one", "two")
    assert found.errors.shape == (2, 3)
    assert (found.errors[0] >= 100 / 3 - 1e-9).all()
    assert np.isfinite(found.loss).all()


def test_errors_are_counted_by_task() -> None:
    model, data = MemoryNetwork(small(), members=2), examples(STORIES, VOCABULARY, small())
    found = score(model, data)
    losses, right = model.loss(data.batch(np.arange(3)), data.answers)
    np.testing.assert_allclose(found.loss, losses.detach().numpy() / 3, rtol=1e-5)
    np.testing.assert_allclose(found.errors, [100 - 50 * right[:, :2].sum(1), 100 - 100 * right[:, 2]])
    np.testing.assert_allclose(found.error, 100 - 100 * right.mean(1))
    assert score(model, data, np.array([2])).tasks == ("two",)


def test_answers_come_with_the_weights_of_every_hop() -> None:
    model, data = MemoryNetwork(small(empties=False)), examples(STORIES, VOCABULARY, small())
    given = answer(model, VOCABULARY, data)
    assert [one.weights.shape for one in given] == [(2, 1), (2, 3), (2, 2)]
    for one in given:
        assert one.text in VOCABULARY.words
        assert 0 < one.probability < 1
        assert one.others == ()
        np.testing.assert_allclose(one.weights.sum(1), 1, atol=1e-6)


def test_the_next_best_answers_come_in_their_order() -> None:
    model, data = MemoryNetwork(small()), examples(STORIES, VOCABULARY, small())
    chances = model.logits(model(data.batch(np.arange(3))))[0].softmax(-1)
    for row, one in enumerate(answer(model, VOCABULARY, data, best=3)):
        ranked = [(one.text, one.probability), *one.others]
        best = chances[row].topk(3)
        assert [text for text, _ in ranked] == [VOCABULARY.words[word] for word in best.indices.tolist()]
        np.testing.assert_allclose([chance for _, chance in ranked], best.values.tolist())
    assert len(answer(model, VOCABULARY, data, best=99)[0].others) == len(VOCABULARY.words) - 1


def test_a_fault_in_a_sentence_has_its_own_place() -> None:
    question = Question("one", ("John slept.", "Kuh muh."), "Who slept?", "john", (), "c.txt:3", ("c.txt:1", "c.txt:2"))
    with pytest.raises(DataError, match=r"c.txt:2: the model does not know the word 'kuh'"):
        examples(Stories.of([question]), VOCABULARY, small())
    with pytest.raises(DataError, match=r"c.txt:3: the question has no words"):
        examples(Stories.of([replace(question, sentences=TOLD, text="?", places=())]), VOCABULARY, small())


def test_scores_are_means_over_tasks_and_survive_a_file() -> None:
    data = examples(STORIES, VOCABULARY, small())
    looked = np.ones((2, 3), dtype=np.float32)
    given = [Answer("home", 1.0, looked[:, :1]), Answer("john", 1.0, looked), Answer("john", 1.0, looked[:, :2])]
    found = measured(data, given, VOCABULARY)
    assert [(one.task, one.questions, one.error) for one in found.tasks] == [("one", 2, 50.0), ("two", 1, 0.0)]
    assert (found.questions, found.error, found.support) == (3, 25.0, 100.0)
    assert StoryScores.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert found.lines()[-1] == "mean of 2 tasks  3 questions  error 25.0 %  support seen 100.0 %"
    without = StoryScores((TaskScore("one", 7, 12.5, None),))
    assert (without.support, without.rows()) == (None, [["one", "7", "12.5 %", "–"]])


def test_support_is_found_when_all_of_it_is_looked_at_most() -> None:
    data = Examples(
        *(Tokens.from_rows([[0]]) for _ in range(3)),
        answers=np.array([0, 0, 0, 1, 0]),
        tasks=("one", "two"),
        task=np.array([0, 0, 0, 0, 1]),
        support=[{0, 2}, {0, 2}, set(), {0}, {-1}],
        digest="",
    )
    vocabulary = Vocabulary(("yes", "no"), frozenset(["yes", "no"]))
    hit = Answer("yes", 1.0, np.array([[0.9, 0.1, 0.0], [0.0, 0.3, 0.7]], dtype=np.float32))
    miss = Answer("yes", 1.0, np.array([[0.5, 0.5, 0.0], [0.0, 0.6, 0.4]], dtype=np.float32))
    found = support_found(data, [hit, miss, hit, hit, hit], vocabulary)  # the third has no support, the fourth is wrong
    assert found == {"one": 50.0, "two": 0.0}


def test_a_vocabulary_survives_a_file() -> None:
    values = json.loads(json.dumps(VOCABULARY.to_dict()))
    assert Vocabulary.from_dict(values) == VOCABULARY
    for broken in ({}, {"words": ["a"], "answers": ["b"]}, {"words": [1], "answers": []}, {"words": "ab"}):
        with pytest.raises(CheckpointError, match="x.json: not a vocabulary"):
            Vocabulary.from_dict(broken, "x.json")
