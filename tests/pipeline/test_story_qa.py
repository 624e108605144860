"""Questions about stories: answers are strings with the attention of each hop of the memory network."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.data.babi import read_stories
from regard.errors import ConfigError, DataError, UsageError
from regard.interpret.attribution import explain
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
    settings: dict[str, Any] = {"hops": 2, "restarts": 3, "epochs": 20, "linear_start_epochs": 3, "threads": 1}
    trained = train("story-qa", data, out=directory / "run", **settings)
    assert isinstance(trained, StoryQAPipeline)
    assert trained.metadata["metrics"]["train_error"] < 5
    return directory / "run"


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> StoryQAPipeline:
    loaded = regard.load(folder, threads=1)
    assert isinstance(loaded, StoryQAPipeline)
    return loaded


def test_an_answer_is_a_string_with_scores_and_supporting_sentences(pipeline: StoryQAPipeline) -> None:
    answer = pipeline.answer(STORY, "Where is Mary?", top_k=3)
    assert answer == "office"
    assert isinstance(answer, str)
    assert isinstance(answer, regard.StoryAnswer)
    assert answer == pipeline(STORY, "Where is Mary?")
    assert answer.question == "Where is Mary?"
    assert len(answer.alternatives) == 2
    assert answer.truncated_sentences == 0
    scores = [answer.score, *(alternative.score for alternative in answer.alternatives)]
    assert scores == sorted(scores, reverse=True)
    assert 0.5 < answer.score < 1
    assert sum(scores) <= 1
    assert answer.hops.shape == (2, 3)
    assert (answer.hops.sum(axis=1) <= 1 + 1e-6).all()
    best_support = answer.supporting[0]
    assert best_support.sentence == STORY[2]
    assert best_support.sentence_index == 3
    assert best_support.weight == answer.hops.max() == answer.hops[best_support.hop - 1, 2]
    assert sorted(support.sentence_index for support in answer.supporting) == [1, 2, 3]


def test_the_attention_of_a_hop_is_labelled_with_sentences(pipeline: StoryQAPipeline) -> None:
    attention_map = pipeline(STORY, "Where is Mary?").attention["hop.1"]
    assert attention_map.weights.shape == (1, 1, 4)
    assert attention_map.rows == ["Where is Mary?"]
    assert attention_map.columns[:3] == STORY
    assert attention_map.columns[3].startswith("nothing")
    assert attention_map.weights.sum() == pytest.approx(1, abs=1e-5)


def test_a_pickled_answer_keeps_its_fields(pipeline: StoryQAPipeline) -> None:
    answer = pipeline(STORY, "Where is Mary?")
    restored = pickle.loads(pickle.dumps(answer))
    assert (restored, type(restored), restored.question) == ("office", type(answer), "Where is Mary?")
    assert (restored.score, restored.sentences, restored.truncated_sentences) == (answer.score, answer.sentences, 0)
    assert np.array_equal(restored.hops, answer.hops)
    alternatives = [(other, other.score) for other in answer.alternatives]
    assert alternatives and [(other, other.score) for other in restored.alternatives] == alternatives


def test_sentences_beyond_the_memory_are_truncated(pipeline: StoryQAPipeline) -> None:
    long_story = ["Sandra went to the hallway.", *["John went to the garden."] * 4, "Mary went to the office."]
    answer = pipeline.answer(long_story, "Where is Mary?")
    assert answer == "office"
    assert answer.truncated_sentences == 1
    assert answer.hops.shape == (2, 6)
    assert not answer.hops[:, 0].any()
    short_answer = pipeline.answer(long_story[1:], "Where is Mary?")
    assert np.array_equal(answer.hops[:, 1:], short_answer.hops)


def test_the_terminal_and_the_page_show_the_record_of_an_answer(pipeline: StoryQAPipeline) -> None:
    answer = pipeline.answer(STORY, "Where is John?")
    record = Record.from_dict(answer.record().to_dict())
    assert record.texts["memory"].tokens[: len(STORY)] == tuple(STORY)
    assert record.texts["question"].tokens == ("Where is John?",)
    assert record["hop"].layers == (0, 1)
    assert record.prediction.best[0] == "garden"  # type: ignore[union-attr]
    assert "John went to the gard…" in render_record(record)
    assert "John went to the garden." in page([record], title="John")


def test_questions_of_files_are_scored(pipeline: StoryQAPipeline, tmp_path: Path) -> None:
    stories = read_stories([write(tmp_path, "walks_test.txt", 53, seed=5)])
    scores, predictions = pipeline.evaluate(stories)
    answers = [question.answer for question in stories.questions]
    num_correct = sum(prediction == answer for prediction, answer in zip(predictions, answers, strict=True))
    assert scores.error == pytest.approx(100 * (1 - num_correct / 53))
    assert scores.error < 15
    assert scores.tasks[0].support is not None
    assert scores.tasks[0].support > 80
    assert scores.to_dict()["tasks"][0]["task"] == "walks"
    predicted = pipeline.answer_batch(stories.questions, top_k=1)
    assert [str(answer) for answer in predicted] == predictions
    assert all(answer.alternatives == [] for answer in predicted)
    examples = pipeline.predict_examples(stories)
    assert list(examples.predictions) == predictions
    assert examples.stories == stories.stories


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
    pipeline: StoryQAPipeline, sentences: list[str], question: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        pipeline.answer(sentences, question)


def test_invalid_arguments_are_rejected(pipeline: StoryQAPipeline, folder: Path) -> None:
    with pytest.raises(UsageError, match="a list of sentences"):
        pipeline.answer("Mary went home.", "Where is Mary?")
    with pytest.raises(UsageError, match=r"top_k \(0\) must be at least 1"):
        pipeline.answer(STORY, "Where is Mary?", top_k=0)
    with pytest.raises(ConfigError, match="compute in float32"):
        load(folder, precision="bf16")
    with pytest.raises(UsageError, match="one for 'translate' is needed"):
        load_translator(folder)
    with pytest.raises(UsageError, match="models that read tokens: this one reads sentences"):
        explain(pipeline, "Where is Mary?", *STORY)
    assert isinstance(pipeline.answer(STORY, "Where is Mary?"), StoryAnswer)
