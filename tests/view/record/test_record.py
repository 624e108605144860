"""Records: JSON form, encoded weights, words and subwords, the best head, statistics and labels of heads."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from regard.errors import UsageError
from regard.interpret.head_statistics import AttentionBatch, CorpusStatistics
from regard.tasks.alignment import merge_subwords
from regard.view.codec import decode_root8, encode_root8
from regard.view.record.attention import AttentionRecord
from regard.view.record.head_stats import head_stats
from regard.view.record.record import Record
from regard.view.record.texts import RecordText, escape_invisible
from tests.view.samples import sample_record


def test_a_record_survives_its_json_form() -> None:
    record = sample_record()
    restored = Record.from_dict(json.loads(json.dumps(record.to_dict())))
    assert restored.texts == record.texts
    assert restored.title == record.title
    assert restored.best == record.best
    assert restored.provenance == record.provenance
    for original, decoded in zip(record.attention, restored.attention, strict=True):
        assert decoded.name == original.name
        assert decoded.layers == original.layers
        assert decoded.is_generated == original.is_generated
        assert np.abs(np.sqrt(original.weights) - np.sqrt(decoded.weights)).max() <= 0.5 / 255 + 1e-6


@given(arrays(np.float32, (2, 3, 5), elements=st.floats(0, 1, width=32)))
def test_root8_keeps_zero_and_one_and_rounds_the_rest_to_half_a_level(weights: np.ndarray) -> None:
    decoded = decode_root8(encode_root8(weights), weights.shape)
    assert np.abs(np.sqrt(decoded) - np.sqrt(weights)).max() <= 0.5 / 255 + 1e-6
    assert (decoded[weights == 0] == 0).all()
    assert (decoded[weights == 1] == 1).all()


def test_a_record_of_another_schema_is_refused() -> None:
    with pytest.raises(UsageError, match="schema 4"):
        Record.from_dict({"regard": 4})


def test_weights_that_do_not_fit_their_tokens_are_refused() -> None:
    text = RecordText("a b", ("a", "b"), (0, 1))
    attention = AttentionRecord("decoder.cross", "target", "source", np.full((1, 1, 2, 3), 1 / 3, np.float32), (0,))
    with pytest.raises(UsageError, match=r"\(1, 1, 2, 3\) do not match 2 query and 2 key tokens"):
        Record("", {"source": text, "target": text}, (attention,))
    with pytest.raises(UsageError, match="finite"):
        AttentionRecord("x", "target", "source", np.full((1, 1, 2, 2), np.nan, np.float32), (0,))
    with pytest.raises(UsageError, match="one value per token"):
        RecordText("a b", ("a", "b"), (0,))


def test_words_merge_their_subwords_and_rows_stay_distributions() -> None:
    record = sample_record()
    attention, weights = record.head()
    rows = record.texts[attention.rows].units(words=True)
    columns = record.texts[attention.columns].units(words=True)
    assert [label for label, _ in columns] == ["viernes,", "3", "de", "marzo", "de", "2017", "</s>"]
    merged = merge_subwords(weights, [members for _, members in rows], [members for _, members in columns])
    assert merged.shape == (len(rows), len(columns))
    assert np.allclose(merged.sum(axis=1), weights.sum(axis=1)[: len(rows)], atol=1e-5)


def test_words_are_labelled_by_the_text_because_a_subword_may_be_part_of_a_character() -> None:
    text = RecordText("né ça", ("n", "\\xc3", "\\xa9", "▁ça", "</s>"), (0, 0, 0, 1, -1))
    assert text.units(words=True) == [("né", [0, 1, 2]), ("ça", [3]), ("</s>", [4])]
    assert [label for label, _ in text.units(words=False)] == ["n", "\\xc3", "\\xa9", "▁ça", "</s>"]


def test_a_text_of_a_single_word_is_labelled_by_its_tokens() -> None:
    text = RecordText("2017-03", ("2017", "-", "03", "</s>"), (0, 0, 0, -1))
    assert text.units(words=True) == text.units(words=False)
    assert len(text.units(words=True)) == 4


def test_the_default_head_is_the_best_one_or_the_mean_of_the_last_layer() -> None:
    record = sample_record()
    attention, weights = record.head()
    assert attention.name == "decoder.cross"
    assert np.array_equal(weights, attention.weights[1, 2])
    without_best = Record(record.title, record.texts, record.attention)
    assert np.allclose(without_best.head()[1], record.attention[0].weights[-1].mean(axis=0))
    with pytest.raises(UsageError, match="it has decoder.cross"):
        record.head("hop", 0, 0)


def test_heads_are_labelled_by_the_pattern_that_holds_most_of_their_attention() -> None:
    size = 7
    diagonal = np.eye(size, dtype=np.float32)
    previous = np.eye(size, k=-1, dtype=np.float32)
    previous[0, 3] = 1
    broad = np.full((size, size), 1 / size, np.float32)
    to_end_token = np.zeros((size, size), np.float32)
    to_end_token[:, -1] = 1
    sharp = np.roll(diagonal, 2, axis=1)
    weights = np.stack([diagonal, previous, broad, to_end_token, sharp])[None]
    is_special = [False] * (size - 1) + [True]
    self_stats = head_stats(AttentionRecord("encoder.self", "source", "source", weights, (0,)), is_special)
    assert self_stats["label"] == [["same token", "previous token", "broad", "special tokens", "peaked"]]
    cross_stats = head_stats(AttentionRecord("decoder.cross", "target", "source", weights, (0,)), is_special)
    assert cross_stats["label"][0][0] == "peaked"
    assert self_stats["entropy"][0][0] == 0
    assert self_stats["entropy"][0][2] == pytest.approx(np.log2(size), abs=1e-3)
    assert self_stats["special"][0][3] == 1


def test_a_head_is_broad_by_the_keys_that_the_mask_allows() -> None:
    size = 30
    visible = np.minimum(np.arange(size) + 1, 3)
    sparse = np.zeros((size, size), np.float32)
    sparse[:, [4, 9]] = 0.5
    window = np.zeros((size, size), np.float32)
    for row, num_keys in enumerate(visible):
        window[row, row + 1 - num_keys : row + 1] = 1 / num_keys
    weights = np.stack([sparse, window])[None]
    attention = AttentionRecord("encoder.self", "source", "source", weights, (0,))
    assert head_stats(attention, [False] * size)["label"] == [["mixed", "mixed"]]
    masked = replace(attention, num_visible=visible[None])
    assert head_stats(masked, [False] * size)["label"][0][1] == "broad"
    ids = np.arange(size)[None]
    for num_visible, stored in ((None, attention), (np.broadcast_to(visible, (1, 2, size)), masked)):
        statistics = CorpusStatistics({"encoder.0.self": 2})
        batch = AttentionBatch(ids, ids, ids < 0, is_self=True, num_visible=num_visible)
        statistics.add("encoder.0.self", weights, batch)
        names = [name for _, name in statistics.heads().values()]
        assert names == head_stats(stored, [False] * size)["label"][0]


def test_invisible_characters_are_shown_by_their_code_points() -> None:
    assert escape_invisible("\x1b[31m\u202eab\u2028") == "⟨001B⟩[31m⟨202E⟩ab⟨2028⟩"
    assert escape_invisible("né 東京 ✓") == "né 東京 ✓"
