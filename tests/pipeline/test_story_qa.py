"""A memory network as a pipeline: answers are texts that know where each hop looked."""

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
    room = tmp_path_factory.mktemp("stories")
    data = write(room, "walks_train.txt", 240, seed=1)
    settings: dict[str, Any] = {"hops": 2, "restarts": 3, "epochs": 11, "linear_start_epochs": 3, "threads": 1}
    made = train("stories", data, out=room / "run", **settings)
    assert isinstance(made, StoryQAPipeline)
    assert made.metadata["metrics"]["train_error"] < 5
    return room / "run"


@pytest.fixture(scope="module")
def model(folder: Path) -> StoryQAPipeline:
    found = regard.load(folder, threads=1)
    assert isinstance(found, StoryQAPipeline)
    return found


def test_an_answer_is_a_text_that_knows_more(model: StoryQAPipeline) -> None:
    said = model.answer(STORY, "Where is Mary?", top_k=3)
    assert said == "office"
    assert isinstance(said, str) and isinstance(said, regard.StoryAnswer)
    assert said.question == "Where is Mary?"
    assert [len(said.alternatives), said.forgotten] == [2, 0]
    scores = [said.score, *(one.score for one in said.alternatives)]
    assert scores == sorted(scores, reverse=True)
    assert 0.5 < said.score < 1 and sum(scores) <= 1
    assert said.hops.shape == (2, 3)
    assert (said.hops.sum(axis=1) <= 1 + 1e-6).all()
    first = said.supporting[0]
    assert (first.sentence, first.sentence_index) == (STORY[2], 3)
    assert first.weight == said.hops.max() == said.hops[first.hop - 1, 2]
    assert sorted(one.sentence_index for one in said.supporting) == [1, 2, 3]
    sight = said.attention["hop.1"]
    assert (sight.weights.shape, sight.rows, sight.columns[:3]) == ((1, 1, 4), ["Where is Mary?"], STORY)
    assert sight.columns[3].startswith("nothing") and sight.weights.sum() == pytest.approx(1, abs=1e-5)
    assert said == model(STORY, "Where is Mary?")
    assert type(pickle.loads(pickle.dumps(said))) is str


def test_what_was_told_long_ago_is_forgotten(model: StoryQAPipeline) -> None:
    long = ["Sandra went to the hallway.", *["John went to the garden."] * 4, "Mary went to the office."]
    said = model.answer(long, "Where is Mary?")
    assert said == "office"
    assert said.forgotten == 1
    assert said.hops.shape == (2, 6)
    assert not said.hops[:, 0].any()
    short = model.answer(long[1:], "Where is Mary?")
    assert np.array_equal(said.hops[:, 1:], short.hops)


def test_the_views_draw_its_record(model: StoryQAPipeline) -> None:
    said = model.answer(STORY, "Where is John?")
    record = Record.from_dict(said.record().to_dict())
    assert record.texts["memory"].tokens[: len(STORY)] == tuple(STORY)
    assert record.texts["question"].tokens == ("Where is John?",)
    assert record["hop"].layers == (0, 1) and record.verdict.best[0] == "garden"  # type: ignore[union-attr]
    assert "John went to the gard…" in render_record(record)
    assert "John went to the garden." in page([record], title="John")


def test_questions_of_files_are_measured(model: StoryQAPipeline, tmp_path: Path) -> None:
    stories = read_stories([write(tmp_path, "walks_test.txt", 53, seed=5)])
    scores, said = model.evaluate(stories)
    right = sum(given == question.answer for given, question in zip(said, stories.questions, strict=True))
    assert scores.error == pytest.approx(100 * (1 - right / 53))
    assert scores.error < 15
    assert scores.tasks[0].support is not None and scores.tasks[0].support > 80
    assert scores.to_dict()["tasks"][0]["task"] == "walks"
    again = model.answer_batch(stories.questions, top_k=1)
    assert list(map(str, again)) == said
    assert again[0].alternatives == []


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
def test_what_it_cannot_read_is_named(
    model: StoryQAPipeline, sentences: list[str], question: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        model.answer(sentences, question)


def test_what_cannot_be_asked_is_refused(model: StoryQAPipeline, folder: Path) -> None:
    with pytest.raises(UsageError, match="a list of sentences"):
        model.answer("Mary went home.", "Where is Mary?")
    with pytest.raises(UsageError, match=r"top_k \(0\) must be at least 1"):
        model.answer(STORY, "Where is Mary?", top_k=0)
    with pytest.raises(ConfigError, match="compute in float32"):
        load(folder, precision="bf16")
    with pytest.raises(UsageError, match="one for 'translate' is needed"):
        load_translator(folder)
    assert isinstance(model.answer(STORY, "Where is Mary?"), StoryAnswer)
