from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from regard.errors import UsageError
from regard.tasks.alignment import merge_subwords
from regard.view.codec import decode_root8, encode_root8
from regard.view.record.attention import AttentionRecord
from regard.view.record.head_stats import head_stats
from regard.view.record.record import Record
from regard.view.record.texts import RecordText, escape_invisible
from tests.view.samples import sample_record


def test_a_record_survives_its_json_form() -> None:
    record = sample_record()
    again = Record.from_dict(json.loads(json.dumps(record.to_dict())))
    assert again.texts == record.texts
    assert (again.title, again.best, again.made) == (record.title, record.best, record.made)
    for ours, theirs in zip(record.attention, again.attention, strict=True):
        assert (ours.name, ours.layers, ours.produced) == (theirs.name, theirs.layers, theirs.produced)
        assert np.abs(np.sqrt(ours.weights) - np.sqrt(theirs.weights)).max() <= 0.5 / 255 + 1e-6


@given(arrays(np.float32, (2, 3, 5), elements=st.floats(0, 1, width=32)))
def test_packing_keeps_zero_one_and_everything_to_half_a_shade(weights: np.ndarray) -> None:
    again = decode_root8(encode_root8(weights), weights.shape)
    assert np.abs(np.sqrt(again) - np.sqrt(weights)).max() <= 0.5 / 255 + 1e-6
    assert (again[weights == 0] == 0).all()
    assert (again[weights == 1] == 1).all()


def test_a_record_of_another_schema_is_refused() -> None:
    with pytest.raises(UsageError, match="schema 2"):
        Record.from_dict({"regard": 2})


def test_weights_that_do_not_fit_their_tokens_are_refused() -> None:
    side = RecordText("a b", ("a", "b"), (0, 1))
    seen = AttentionRecord("decoder.cross", "target", "source", np.full((1, 1, 2, 3), 1 / 3, np.float32), (0,))
    with pytest.raises(UsageError, match=r"\(1, 1, 2, 3\) do not match 2 query and 2 key tokens"):
        Record("", {"source": side, "target": side}, (seen,))
    with pytest.raises(UsageError, match="finite"):
        AttentionRecord("x", "target", "source", np.full((1, 1, 2, 2), np.nan, np.float32), (0,))
    with pytest.raises(UsageError, match="one value per token"):
        RecordText("a b", ("a", "b"), (0,))


def test_words_join_their_pieces_and_rows_stay_distributions() -> None:
    record = sample_record()
    seen, weights = record.head()
    rows, columns = (record.texts[name].units(words=True) for name in (seen.rows, seen.columns))
    assert [label for label, _ in columns] == ["viernes,", "3", "de", "marzo", "de", "2017", "</s>"]
    merged = merge_subwords(weights, [members for _, members in rows], [members for _, members in columns])
    assert merged.shape == (len(rows), len(columns))
    assert np.allclose(merged.sum(axis=1), weights.sum(axis=1)[: len(rows)], atol=1e-5)


def test_words_are_named_by_the_text_because_a_piece_may_be_half_a_character() -> None:
    side = RecordText("né ça", ("n", "\\xc3", "\\xa9", "▁ça", "</s>"), (0, 0, 0, 1, -1))
    assert side.units(words=True) == [("né", [0, 1, 2]), ("ça", [3]), ("</s>", [4])]
    assert [label for label, _ in side.units(words=False)] == ["n", "\\xc3", "\\xa9", "▁ça", "</s>"]


def test_a_single_word_is_shown_by_its_pieces() -> None:
    side = RecordText("2017-03", ("2017", "-", "03", "</s>"), (0, 0, 0, -1))
    assert side.units(words=True) == side.units(words=False)
    assert len(side.units(words=True)) == 4


def test_the_best_head_is_given_or_the_mean_of_the_last_layer() -> None:
    record = sample_record()
    seen, weights = record.head()
    assert seen.name == "decoder.cross"
    assert np.array_equal(weights, seen.weights[1, 2])
    plain = Record(record.title, record.texts, record.attention)
    assert np.allclose(plain.head()[1], record.attention[0].weights[-1].mean(axis=0))
    with pytest.raises(UsageError, match="it has decoder.cross"):
        record.head("hop", 0, 0)


def test_heads_are_labelled_by_what_most_of_their_attention_does() -> None:
    size = 7
    eye = np.eye(size, dtype=np.float32)
    previous = np.eye(size, k=-1, dtype=np.float32)
    previous[0, 3] = 1
    broad = np.full((size, size), 1 / size, np.float32)
    end = np.zeros((size, size), np.float32)
    end[:, -1] = 1
    sharp = np.roll(eye, 2, axis=1)
    weights = np.stack([eye, previous, broad, end, sharp])[None]
    special = [False] * (size - 1) + [True]
    own = head_stats(AttentionRecord("encoder.self", "source", "source", weights, (0,)), special)
    assert own["label"] == [["itself", "previous", "broad", "special marks", "sharp"]]
    cross = head_stats(AttentionRecord("decoder.cross", "target", "source", weights, (0,)), special)
    assert cross["label"][0][0] == "sharp"
    assert own["entropy"][0][0] == 0
    assert own["entropy"][0][2] == pytest.approx(np.log2(size), abs=1e-3)
    assert own["special"][0][3] == 1


def test_unseen_signs_are_shown_by_number() -> None:
    assert escape_invisible("\x1b[31m\u202eab\u2028") == "⟨001B⟩[31m⟨202E⟩ab⟨2028⟩"
    assert escape_invisible("né 東京 ✓") == "né 東京 ✓"
