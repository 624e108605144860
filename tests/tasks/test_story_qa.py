"""Story QA: scores by task, attention to the supporting sentences, and the vocabulary."""

from __future__ import annotations

import json

import numpy as np
import pytest

from regard.errors import CheckpointError
from regard.tasks.story_qa import (
    StoryPrediction,
    StoryReferences,
    StoryScores,
    StoryVocabulary,
    TaskScore,
    score_answers,
    supporting_accuracy,
)


def test_scores_are_means_over_tasks_and_survive_a_file() -> None:
    references = StoryReferences(
        answers=("home", "home", "john"), tasks=("one", "one", "two"), support=({0}, {0, 2}, {0})
    )
    weights = np.ones((2, 3), dtype=np.float32)
    answers = [
        StoryPrediction("home", 1.0, weights[:, :1]),
        StoryPrediction("john", 1.0, weights),
        StoryPrediction("john", 1.0, weights[:, :2]),
    ]
    scores = score_answers(references, answers)
    assert [(score.task, score.questions, score.error) for score in scores.tasks] == [("one", 2, 50.0), ("two", 1, 0.0)]
    assert (scores.questions, scores.error, scores.support) == (3, 25.0, 100.0)
    assert StoryScores.from_dict(json.loads(json.dumps(scores.to_dict()))) == scores
    assert scores.lines()[-1] == "mean of 2 tasks  3 questions  error 25.0 %  attention on support 100.0 %"
    without_support = StoryScores((TaskScore("one", 7, 12.5, None),))
    assert (without_support.support, without_support.rows()) == (None, [["one", "7", "12.5 %", "–"]])


def test_support_counts_when_all_of_it_has_the_largest_weights() -> None:
    references = StoryReferences(
        answers=("yes", "yes", "yes", "no", "yes"),
        tasks=("one", "one", "one", "one", "two"),
        support=({0, 2}, {0, 2}, set(), {0}, {-1}),
    )
    hit = StoryPrediction("yes", 1.0, np.array([[0.9, 0.1, 0.0], [0.0, 0.3, 0.7]], dtype=np.float32))
    miss = StoryPrediction("yes", 1.0, np.array([[0.5, 0.5, 0.0], [0.0, 0.6, 0.4]], dtype=np.float32))
    answers = [hit, miss, hit, hit, hit]  # the third question has no support, the fourth answer is wrong
    assert supporting_accuracy(references, answers) == {"one": 50.0, "two": 0.0}
    without_attention = StoryPrediction("yes", 1.0, np.zeros((0, 3), dtype=np.float32))
    assert supporting_accuracy(references, [without_attention] * 5) == {}


def test_a_vocabulary_survives_a_file() -> None:
    vocabulary = StoryVocabulary(("mary", "went", "home"), frozenset(["home"]))
    values = json.loads(json.dumps(vocabulary.to_dict()))
    assert StoryVocabulary.from_dict(values) == vocabulary
    for broken in ({}, {"words": ["a"], "answers": ["b"]}, {"words": [1], "answers": []}, {"words": "ab"}):
        with pytest.raises(CheckpointError, match="x.json: not a vocabulary"):
            StoryVocabulary.from_dict(broken, "x.json")
