"""Stories as sequences of words: their text, rows of encoders and RNNs, what is cut, and attention to sentences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.attention.trace import trace
from regard.config.models import BertConfig, StackConfig
from regard.config.rnn_models import RnnClassifierConfig, RnnTextConfig
from regard.data.babi import StoryQuestion, StoryQuestions
from regard.errors import DataError
from regard.models.base import initialize_weights
from regard.models.bert import Bert
from regard.models.rnn_text import RnnClassifier
from regard.tasks.calibration import softmax_probabilities
from regard.tasks.story_qa import UNKNOWN_ANSWER
from regard.tasks.story_sequence import StoryEncoder, story_tokens
from regard.text.train import build_word_tokenizer

STORY = ("Mary went home.", "John slept.", "Mary got the milk there.")
STORIES = StoryQuestions.from_questions(
    [
        StoryQuestion("one", STORY, "Where is the milk?", "home", (0, 2), "a.txt:5"),
        StoryQuestion("two", STORY[1:], "Who slept?", "john", (0,), "b.txt:3"),
        StoryQuestion("two", STORY[:2], "Where is the milk?", "milk,home", (), "b.txt:6"),
    ]
)
ANSWERS = ("home", "john", "mary")


def build_encoder(*, has_pairs: bool, max_length: int = 31) -> StoryEncoder:
    tokenizer = build_word_tokenizer(story_tokens(STORIES))
    return StoryEncoder(tokenizer, ANSWERS, max_length=max_length, has_pairs=has_pairs)


def build_bert(vocab_size: int, pooling: str) -> Bert:
    stack = StackConfig(num_layers=2, num_heads=3, feed_forward_size=7)
    sizes = {"vocab_size": vocab_size, "hidden_size": 12, "stack": stack, "max_positions": 31}
    model = Bert(BertConfig(head="label", num_labels=3, pooling=pooling, **sizes))  # type: ignore[arg-type]
    initialize_weights(model, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # sharp enough that a mistake shows
    return model.eval()


def test_a_story_is_read_word_by_word_with_a_sign_after_each_sentence() -> None:
    encoder = build_encoder(has_pairs=False)
    sequences = encoder.encode(STORIES)
    assert sequences.texts[1].text == "john slept . mary got the milk there . who slept ?"
    assert [text.sentence_lengths for text in sequences.texts] == [(4, 3, 6), (3, 6), (4, 3)]
    assert sequences.rows.lengths[:, 0].tolist() == [13 + 5, 9 + 3, 7 + 5]
    assert encoder.tokenizer.decode(sequences.rows.rows[1].tolist()) == sequences.texts[1].text
    assert not np.isin(np.concatenate(sequences.rows.rows), encoder.tokenizer.unk_id).any()


def test_an_encoder_reads_a_pair_with_token_types() -> None:
    encoder = build_encoder(has_pairs=True)
    rows = encoder.encode(STORIES).rows
    subwords = encoder.tokenizer.subwords(rows.rows[1].tolist())
    assert subwords[0] == "<s>" and subwords[10] == subwords[-1] == "</s>"
    assert [word.removeprefix("▁") for word in subwords[1:10]] == "john slept . mary got the milk there .".split()
    assert rows.token_types[1].tolist() == [0] * 11 + [1] * 4


def test_references_know_which_answers_the_model_can_give() -> None:
    sequences = build_encoder(has_pairs=True).encode(STORIES)
    assert sequences.references.answers == ("home", "john", "")
    assert sequences.references.tasks == ("one", "two", "two")
    assert sequences.references.support == ({0, 2}, {0}, set())
    assert sequences.targets.tolist() == [0, 1, UNKNOWN_ANSWER]
    probabilities = np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], dtype=np.float32)
    assert sequences.loss(probabilities) == pytest.approx(-(np.log(0.5) + np.log(0.25)) / 2)
    with pytest.raises(DataError, match=r"1 of 3 answers never occur in training: 'milk,home' \(b.txt:6\)"):
        build_encoder(has_pairs=True).encode(STORIES, strict=True)


@pytest.mark.parametrize(
    ("max_length", "has_pairs", "num_truncated"),
    [(18, False, 0), (17, False, 1), (13, False, 2), (21, True, 0), (20, True, 1)],
)
def test_of_a_long_story_the_first_sentences_are_left_out(max_length: int, has_pairs: bool, num_truncated: int) -> None:
    encoder = build_encoder(has_pairs=has_pairs, max_length=max_length)
    sequences = encoder.encode(STORIES.select([0]))
    (text,) = sequences.texts
    assert text.truncated_sentences == num_truncated
    whole_story = build_encoder(has_pairs=False).encode(STORIES).texts[0].story
    assert text.story == whole_story.split(". ", num_truncated)[num_truncated]
    assert int(sequences.rows.lengths[0, 0]) <= max_length
    assert sequences.references.support == ({0 - num_truncated, 2 - num_truncated},)


def test_what_cannot_be_read_is_reported_with_its_location() -> None:
    encoder = build_encoder(has_pairs=False, max_length=10)
    with pytest.raises(DataError, match=r"a.txt:5: the question and the sentence before it have more than 10 words"):
        encoder.encode(STORIES)
    unknown = StoryQuestion("one", STORY, "Where is the silk?", "home", (), "c.txt:4")
    with pytest.raises(DataError, match=r"c.txt:4: the model does not know the word 'silk' \(did you mean milk\?\)"):
        encoder.encode(StoryQuestions.from_questions([unknown]))
    sentence = StoryQuestion("one", ("Kuh muh.",), "Who slept?", "john", (), "c.txt:2", ("c.txt:1",))
    with pytest.raises(DataError, match=r"c.txt:1: the model does not know the word 'kuh'"):
        encoder.encode(StoryQuestions.from_questions([sentence]))


@pytest.mark.parametrize("pooling", ["first", "last", "mean", "attention"])
def test_attention_of_an_encoder_is_that_of_what_its_head_reads(pooling: str) -> None:
    encoder = build_encoder(has_pairs=True)
    model = build_bert(encoder.tokenizer.vocab_size, pooling)
    sequences = encoder.encode(STORIES)
    predictions, loss = encoder.predict(model, sequences, top_k=2)
    for index, prediction in enumerate(predictions):
        tokens = sequences.rows.batch(np.array([index]))
        with trace(full_precision=True) as captured:
            probabilities = softmax_probabilities(model.logits(tokens))[0]
        length = len(tokens.ids)
        readout = {"first": np.eye(length)[0], "last": np.eye(length)[-1], "mean": np.full(length, 1 / length)}
        query = readout[pooling] if pooling in readout else captured["pooling"].weights[0, 0, 0]
        expected = []
        for layer in range(2):
            token_weights = query @ captured[f"encoder.{layer}.self"].weights[0].mean(axis=0)
            row, start = [], 1
            for count in sequences.texts[index].sentence_lengths:
                row.append(token_weights[start : start + count].sum())
                start += count
            expected.append(row)
        np.testing.assert_allclose(prediction.weights, expected, rtol=1e-4, atol=1e-5)
        ranked = np.argsort(-probabilities)
        assert [prediction.text, prediction.alternatives[0][0]] == [ANSWERS[label] for label in ranked[:2]]
        assert prediction.probability == pytest.approx(probabilities[ranked[0]], rel=1e-4)
    assert loss > 0


@pytest.mark.parametrize(("pooling", "num_rows"), [("attention", 1), ("last", 0), ("mean", 0)])
def test_an_rnn_has_the_attention_of_its_pooling_or_none(pooling: str, num_rows: int) -> None:
    encoder = build_encoder(has_pairs=False)
    text_config = RnnTextConfig(vocab_size=encoder.tokenizer.vocab_size, embedding_size=5, hidden_size=7)
    model = RnnClassifier(RnnClassifierConfig(num_labels=3, pooling=pooling, encoder=text_config)).eval()
    initialize_weights(model, 3)
    predictions, _ = encoder.predict(model, encoder.encode(STORIES))
    assert [prediction.weights.shape for prediction in predictions] == [(num_rows, 3), (num_rows, 2), (num_rows, 2)]
    for prediction in predictions:
        assert (prediction.weights.sum(axis=1) < 1).all()  # the rest is on the question
        assert prediction.alternatives == ()
