"""A memory network as a pipeline: answers are strings with the attention of each hop."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.data.babi import read_stories
from regard.errors import ConfigError, DataError, UsageError
from regard.pipeline.load import load, load_translator
from regard.pipeline.loaders import train
from regard.pipeline.story_qa import StoryAnswer, StoryQAPipeline
from regard.view.page import page
from regard.view.record.record import Record
from regard.view.terminal import render_record
from tests.stories import write

STORY = ["Mary went to the kitchen.", "John went to the garden.", "Mary went to the office."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stories")
    data = write(directory, "walks_train.txt", 240, seed=1)
    settings: dict[str, Any] = {"hops": 2, "restarts": 3, "epochs": 11, "linear_start_epochs": 3, "threads": 1}
    trained = train("stories", data, out=directory / "run", **settings)
    assert isinstance(trained, StoryQAPipeline)
    assert trained.metadata["metrics"]["train_error"] < 5
    return directory / "run"


@pytest.fixture(scope="module")
def model(folder: Path) -> StoryQAPipeline:
    loaded = regard.load(folder, threads=1)
    assert isinstance(loaded, StoryQAPipeline)
    return loaded


def test_an_answer_is_a_str_with_its_attention(model: StoryQAPipeline) -> None:
    answer = model.answer(STORY, "Where is Mary?", top_k=3)
    assert answer == "office"
    assert isinstance(answer, str) and isinstance(answer, regard.StoryAnswer)
    assert answer.question == "Where is Mary?"
    assert [len(answer.alternatives), answer.forgotten] == [2, 0]
    scores = [answer.score, *(candidate.score for candidate in answer.alternatives)]
    assert scores == sorted(scores, reverse=True)
    assert 0.5 < answer.score < 1 and sum(scores) <= 1
    assert answer.hops.shape == (2, 3)
    assert (answer.hops.sum(axis=1) <= 1 + 1e-6).all()
    first = answer.supporting[0]
    assert (first.sentence, first.sentence_index) == (STORY[2], 3)
    assert first.weight == answer.hops.max() == answer.hops[first.hop - 1, 2]
    assert sorted(candidate.sentence_index for candidate in answer.supporting) == [1, 2, 3]
    attention_map = answer.attention["hop.1"]
    assert (attention_map.weights.shape, attention_map.rows, attention_map.columns[:3]) == (
        (1, 1, 4),
        ["Where is Mary?"],
        STORY,
    )
    assert attention_map.columns[3].startswith("nothing") and attention_map.weights.sum() == pytest.approx(1, abs=1e-5)
    assert answer == model(STORY, "Where is Mary?")
    assert type(pickle.loads(pickle.dumps(answer))) is str


def test_sentences_beyond_the_memory_are_forgotten(model: StoryQAPipeline) -> None:
    long_story = ["Sandra went to the hallway.", *["John went to the garden."] * 4, "Mary went to the office."]
    answer = model.answer(long_story, "Where is Mary?")
    assert answer == "office"
    assert answer.forgotten == 1
    assert answer.hops.shape == (2, 6)
    assert not answer.hops[:, 0].any()
    short_answer = model.answer(long_story[1:], "Where is Mary?")
    assert np.array_equal(answer.hops[:, 1:], short_answer.hops)


def test_the_views_draw_the_record(model: StoryQAPipeline) -> None:
    answer = model.answer(STORY, "Where is John?")
    record = Record.from_dict(answer.record().to_dict())
    assert record.texts["memory"].tokens[: len(STORY)] == tuple(STORY)
    assert record.texts["question"].tokens == ("Where is John?",)
    assert record["hop"].layers == (0, 1) and record.prediction.best[0] == "garden"  # type: ignore[union-attr]
    assert "John went to the gard…" in render_record(record)
    assert "John went to the garden." in page([record], title="John")


def test_questions_of_files_are_scored(model: StoryQAPipeline, tmp_path: Path) -> None:
    stories = read_stories([write(tmp_path, "walks_test.txt", 53, seed=5)])
    scores, predictions = model.evaluate(stories)
    num_right = sum(
        prediction == question.answer for prediction, question in zip(predictions, stories.questions, strict=True)
    )
    assert scores.error == pytest.approx(100 * (1 - num_right / 53))
    assert scores.error < 15
    assert scores.tasks[0].support is not None and scores.tasks[0].support > 80
    assert scores.to_dict()["tasks"][0]["task"] == "walks"
    answers = model.answer_batch(stories.questions, top_k=1)
    assert list(map(str, answers)) == predictions
    assert answers[0].alternatives == []


@pytest.mark.parametrize(
    ("sentences", "question", "message"),
    [
        (STORY, "Where is Marry?", r"does not know the word 'marry' \(did you mean mary\?\)"),
        (["Mary flew to the office."], "Where is Mary?", "does not know the word 'flew'"),
        ([], "Where is Mary?", "no sentence stands before the question"),
        (STORY, "?", "the question has no words"),
        (["..."], "Where is Mary?", "the sentence has no words"),
        (STORY, "Where is Mary the office to", "the question has 6 words, the model holds 5"),
    ],
)
def test_the_error_names_what_the_model_cannot_read(
    model: StoryQAPipeline, sentences: list[str], question: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        model.answer(sentences, question)


def test_wrong_requests_are_rejected(model: StoryQAPipeline, folder: Path) -> None:
    with pytest.raises(UsageError, match="a list of sentences"):
        model.answer("Mary went home.", "Where is Mary?")
    with pytest.raises(UsageError, match=r"top_k \(0\) must be at least 1"):
        model.answer(STORY, "Where is Mary?", top_k=0)
    with pytest.raises(ConfigError, match="compute in float32"):
        load(folder, precision="bf16")
    with pytest.raises(UsageError, match="one for 'translate' is needed"):
        load_translator(folder)
    assert isinstance(model.answer(STORY, "Where is Mary?"), StoryAnswer)
