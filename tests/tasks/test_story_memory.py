"""Stories for memory networks: word ids, batches, noisy ages, and errors by task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from regard.config.rnn_models import MemoryNetworkConfig
from regard.data.babi import StoryQuestion, StoryQuestions
from regard.errors import DataError
from regard.models.memory_network import MemoryNetwork
from regard.tasks.story_memory import (
    encode_stories,
    evaluate_restarts,
    predict_answers,
    resolve_sizes,
)
from regard.tasks.story_qa import UNKNOWN_ANSWER, StoryVocabulary

STORY = ("Mary went home.", "John slept.", "Mary got the milk there.")
STORIES = StoryQuestions.from_questions(
    [
        StoryQuestion("one", STORY[:1], "Where is Mary?", "home", (0,), "a.txt:2"),
        StoryQuestion("one", STORY, "Where is the milk?", "home", (0, 2), "a.txt:5"),
        StoryQuestion("two", STORY[1:], "Who slept?", "john", (0,), "b.txt:3"),
    ]
)
VOCABULARY = StoryVocabulary.from_questions(STORIES)


def build_config(**changes: object) -> MemoryNetworkConfig:
    return resolve_sizes(MemoryNetworkConfig(embedding_size=5, hops=2).override(changes), STORIES, VOCABULARY)


def test_the_stories_decide_the_sizes_that_the_config_leaves_open() -> None:
    config = resolve_sizes(MemoryNetworkConfig(), STORIES, VOCABULARY)
    sizes = (config.vocab_size, config.max_sentence_words, config.memory_size, config.embedding_size)
    assert sizes == (len(VOCABULARY.words), 5, 3, 50)
    assert resolve_sizes(MemoryNetworkConfig(), STORIES.select([0, 1]), VOCABULARY).embedding_size == 20
    assert resolve_sizes(MemoryNetworkConfig(memory_size=2, max_sentence_words=9), STORIES, VOCABULARY).memory_size == 2


def test_a_batch_holds_word_ids_ages_and_counts() -> None:
    examples = encode_stories(STORIES, VOCABULARY, build_config())
    assert len(examples.sentences) == 3  # each sentence is stored once
    batch = examples.batch(np.array([2, 1]))
    sentences = [[VOCABULARY.words[word_id] for word_id in row] for row in batch.sentences]
    assert [" ".join(words) for words in sentences] == [
        "john slept",
        "mary got the milk there",
        "mary went home",
        "john slept",
        "mary got the milk there",
    ]
    assert [VOCABULARY.words[word_id] for word_id in batch.questions.row(0)] == ["who", "slept"]
    assert (batch.ages.tolist(), batch.sentence_counts.tolist()) == ([1, 0, 2, 1, 0], [2, 3])
    assert [VOCABULARY.words[word_id] for word_id in examples.answers] == ["home", "home", "john"]
    assert (examples.tasks, examples.task_indices.tolist(), examples.support) == (
        ("one", "two"),
        [0, 0, 1],
        [{0}, {0, 2}, {0}],
    )


def test_only_the_last_sentences_are_in_memory() -> None:
    examples = encode_stories(STORIES, VOCABULARY, build_config(memory_size=2))
    assert examples.stories.lengths.tolist() == [1, 2, 2]
    assert examples.support == [{0}, {-1, 1}, {0}]  # one of the two supporting sentences is no longer in memory


def test_noisy_ages_keep_the_order_and_are_a_function_of_the_generator() -> None:
    stories = StoryQuestions.from_questions([StoryQuestion("one", STORY * 10, "Who slept?", "john")] * 200)
    examples = encode_stories(stories, VOCABULARY, replace(build_config(), memory_size=50))

    def sample_ages(seed: int) -> np.ndarray:
        return examples.noisy_ages(0.1, 50, np.random.default_rng(seed)).reshape(200, 30)

    ages = sample_ages(1)
    assert (ages == sample_ages(1)).all()
    assert (ages != sample_ages(2)).any()
    assert (np.diff(ages, axis=1) < 0).all()
    assert set(ages[:, 0].tolist()) == {29, 30, 31, 32}  # up to three empty memories, some after the last sentence
    assert {0, 1} <= set(ages[:, -1].tolist())
    assert examples.noisy_ages(0.1, 30, np.random.default_rng(1)).max() == 29
    assert (examples.noisy_ages(0, 50, np.random.default_rng(1)) == examples.ages).all()


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (
            StoryQuestion("one", STORY, "Where is the silk?", "home", (), "c.txt:4"),
            "c.txt:4: the model does not know the word 'silk' (did you mean milk?)",
        ),
        (StoryQuestion("one", ("Kuh muh.",), "Who slept?", "john", (), "c.txt:2"), "c.txt:2: the model does not know"),
        (
            StoryQuestion("one", STORY, "Where is the milk Mary got?", "home", (), "c.txt:4"),
            "c.txt:4: the question has 6 words, the model holds 5",
        ),
        (
            StoryQuestion("one", ("John slept there home home home.",), "Who slept?", "john", (), "c.txt:2"),
            "c.txt:2: the sentence has 6 words, the model holds 5",
        ),
        (
            StoryQuestion("one", STORY, "Who slept?", "mary", (), "c.txt:4"),
            "1 of 1 answers never occur in training: 'mary' (c.txt:4)",
        ),
    ],
    ids=str,
)
def test_what_a_model_cannot_encode_is_reported_with_its_location(question: StoryQuestion, message: str) -> None:
    with pytest.raises(DataError) as caught:
        encode_stories(StoryQuestions.from_questions([question]), VOCABULARY, build_config())
    assert str(caught.value).startswith(message)


def test_unknown_answers_can_be_counted_as_wrong() -> None:
    unknown = StoryQuestion("one", STORY, "Who slept?", "football,milk")
    stories = StoryQuestions.from_questions([*STORIES.questions, unknown])
    examples = encode_stories(stories, VOCABULARY, build_config(), strict=False)
    assert examples.answers[-1] == UNKNOWN_ANSWER
    errors = evaluate_restarts(MemoryNetwork(build_config(), num_restarts=3), examples)
    assert errors.tasks == ("one", "two")
    assert errors.errors.shape == (2, 3)
    assert (errors.errors[0] >= 100 / 3 - 1e-9).all()
    assert np.isfinite(errors.loss).all()


def test_errors_are_counted_by_task() -> None:
    model = MemoryNetwork(build_config(), num_restarts=2)
    examples = encode_stories(STORIES, VOCABULARY, build_config())
    errors = evaluate_restarts(model, examples)
    losses, is_right = model.loss(examples.batch(np.arange(3)), examples.answers)
    np.testing.assert_allclose(errors.loss, losses.detach().numpy() / 3, rtol=1e-5)
    np.testing.assert_allclose(errors.errors, [100 - 50 * is_right[:, :2].sum(1), 100 - 100 * is_right[:, 2]])
    np.testing.assert_allclose(errors.error, 100 - 100 * is_right.mean(1))
    assert evaluate_restarts(model, examples, np.array([2])).tasks == ("two",)


def test_answers_come_with_the_weights_of_every_hop() -> None:
    model = MemoryNetwork(build_config(empty_memories=False))
    answers = predict_answers(model, VOCABULARY, encode_stories(STORIES, VOCABULARY, build_config()))
    assert [answer.weights.shape for answer in answers] == [(2, 1), (2, 3), (2, 2)]
    for answer in answers:
        assert answer.text in VOCABULARY.words
        assert 0 < answer.probability < 1
        assert answer.alternatives == ()
        np.testing.assert_allclose(answer.weights.sum(1), 1, atol=1e-6)


def test_the_next_best_answers_come_in_their_order() -> None:
    model = MemoryNetwork(build_config())
    examples = encode_stories(STORIES, VOCABULARY, build_config())
    probabilities = model.logits(model(examples.batch(np.arange(3))))[0].softmax(-1)
    for row, answer in enumerate(predict_answers(model, VOCABULARY, examples, top_k=3)):
        ranked = [(answer.text, answer.probability), *answer.alternatives]
        best = probabilities[row].topk(3)
        assert [text for text, _ in ranked] == [VOCABULARY.words[word_id] for word_id in best.indices.tolist()]
        np.testing.assert_allclose([probability for _, probability in ranked], best.values.tolist())
    assert len(predict_answers(model, VOCABULARY, examples, top_k=99)[0].alternatives) == len(VOCABULARY.words) - 1


def test_a_fault_in_a_sentence_has_its_own_location() -> None:
    question = StoryQuestion(
        "one", ("John slept.", "Kuh muh."), "Who slept?", "john", (), "c.txt:3", ("c.txt:1", "c.txt:2")
    )
    with pytest.raises(DataError, match=r"c.txt:2: the model does not know the word 'kuh'"):
        encode_stories(StoryQuestions.from_questions([question]), VOCABULARY, build_config())
    without_words = replace(question, sentences=STORY, text="?", sentence_locations=())
    with pytest.raises(DataError, match=r"c.txt:3: the question has no words"):
        encode_stories(StoryQuestions.from_questions([without_words]), VOCABULARY, build_config())
