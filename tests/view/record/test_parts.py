"""Parts of a record beside texts and weights, encodings of arrays, lazy weights, and files that are no records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from regard.errors import CheckpointError, UsageError
from regard.view.codec import (
    SPARSE_FRACTION,
    array_from_json,
    array_to_json,
    decode_f16,
    decode_sparse,
    encode_f16,
    encode_sparse,
)
from regard.view.record.attention import AttentionRecord, LazyWeights
from regard.view.record.head_stats import THUMBNAIL_SIZE, max_pool
from regard.view.record.parts import (
    Attribution,
    DecodingStep,
    HeadQKV,
    LabelProbabilities,
    Omission,
    PositionEncodings,
    SpanProbabilities,
)
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from tests.view.samples import distributions, sample_record


class CountingWeights:
    """Lazy weights, half on the previous token and half on a later one, that count the rows they compute."""

    shape = (2, 3, 600, 600)

    def __init__(self) -> None:
        self.computed_rows = 0

    def rows(self, place: int, head: int, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        self.computed_rows += len(rows)
        weights = np.zeros((len(rows), 600), np.float32)
        weights[np.arange(len(rows)), np.maximum(rows - 1, 0)] = 0.5
        weights[np.arange(len(rows)), np.minimum(rows + place + head, 599)] += 0.5
        return weights


def record_with_all_parts() -> Record:
    step = DecodingStep(
        "2017",
        0.75,
        entropy=0.8,
        top=(("2017", 0.75), ("2016", 0.25)),
        beams=((-1, "2017", -0.3), (-1, "2016", -1.4)),
    )
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    scores = np.array([[0.5, -np.inf, 1.0]] * 3, np.float32)
    weights = np.array([[0.25, 0.0, 0.75]] * 3, np.float32)
    sample = sample_record()
    masked = replace(
        sample.attention[1], has_residual=False, num_visible=np.arange(1, sample.attention[1].shape[2] + 1)[None]
    )
    qkv = HeadQKV(
        "encoder.self",
        1,
        head=2,
        query=rows,
        key=rows,
        value=rows,
        scores=scores,
        weights=weights,
        scale=0.3,
        temperature=2.0,
        has_bias=True,
        normalization="sparsemax",
    )
    return replace(
        sample,
        attention=(sample.attention[0], masked),
        steps=(step,),
        prediction=LabelProbabilities(("good", "bad"), (0.75, 0.25)),
        attribution=(Attribution("occlusion", "good", "source", (0.5, -0.25), 0.5),),
        positions=PositionEncodings("learned", rows),
        qkv=(qkv,),
        omissions=(Omission("it was long", "the end"),),
        view={"view": "matrix"},
    )


def test_every_part_of_a_record_survives_saving_and_reading(tmp_path: Path) -> None:
    record = record_with_all_parts()
    restored = Record.read(record.save(tmp_path / "x.json"))
    assert restored.steps == record.steps
    assert restored.prediction == record.prediction
    assert restored.attribution == record.attribution
    assert restored.omissions == record.omissions
    assert restored.view["view"] == "matrix"
    assert restored.best == record.best
    assert restored.id == record.id
    assert restored.positions is not None
    assert record.positions is not None
    assert np.array_equal(restored.positions.encodings, record.positions.encodings)
    for name in ("query", "key", "value", "scores", "weights"):
        assert np.array_equal(getattr(restored.qkv[0], name), getattr(record.qkv[0], name))
    for name in ("scale", "temperature", "has_bias", "normalization", "scaling"):
        assert getattr(restored.qkv[0], name) == getattr(record.qkv[0], name)
    assert [attention.has_residual for attention in restored.attention] == [True, False]
    assert np.array_equal(restored.attention[1].visible_keys(1), record.attention[1].visible_keys(1))
    assert restored.attention[0].num_visible is None
    spans = SpanProbabilities((0.5, 0.5), (1.0, 0.0), ((0, 1, "a b", 0.75),), 0.125)
    assert Record.from_dict(replace(record, prediction=spans).to_dict()).prediction == spans


def test_encodings_keep_their_precision_and_the_largest_weights() -> None:
    weights = distributions((2, 5, 200), 3)
    decoded = decode_sparse(encode_sparse(weights), weights.shape)
    is_stored = decoded > 0
    assert (is_stored.sum(-1) <= 24).all()
    assert np.abs(decoded - weights)[is_stored].max() < 4e-3
    stored_weight = np.where(is_stored, weights, 0).sum(-1)
    is_sufficient = (stored_weight >= SPARSE_FRACTION - 1e-6) | (is_stored.sum(-1) == 24)
    assert is_sufficient.all()
    signed = np.array([[-1.5, 2.25, 1e-3]])
    assert np.abs(decode_f16(encode_f16(signed), (1, 3)) - signed).max() < 1e-3
    assert np.allclose(array_from_json(array_to_json(signed)), signed, atol=1e-3)
    for damaged in ({"codec": "zip", "data": "", "shape": [1]}, {**array_to_json(signed), "shape": [9, 9]}):
        with pytest.raises(UsageError, match=r"encoding 'zip'|damaged"):
            array_from_json(damaged)


def test_layers_outside_full_are_sparse_and_references_have_no_weights() -> None:
    record = sample_record()
    values = record.to_dict(full=[1])
    assert [block["codec"] for block in values["attention"][0]["blocks"]] == ["sparse", "root8"]
    restored = Record.from_dict(json.loads(json.dumps(values)))
    assert np.abs(restored.attention[0].matrix(1, 2) - record.attention[0].matrix(1, 2)).max() < 4e-3
    assert (restored.attention[0].matrix(0, 0).sum(-1) > SPARSE_FRACTION - 0.05).all()
    referring = record.to_dict(href="/r/x/a")
    assert referring["attention"][0]["blocks"][1]["href"] == "/r/x/a/decoder.cross/1"
    assert "data" not in referring["attention"][0]["blocks"][1]
    with pytest.raises(UsageError, match="on a server"):
        Record.from_dict(referring)


def test_lazy_weights_are_computed_on_request() -> None:
    weights = CountingWeights()
    assert isinstance(weights, LazyWeights)
    text = RecordText.from_labels("x", [f"t{index}" for index in range(600)])
    attention = AttentionRecord("encoder.self", "source", "source", weights, (0, 3))
    record = Record("long", {"source": text}, (attention,))
    assert weights.computed_rows == 0
    assert not attention.has_weights
    assert attention.matrix(3, 2).shape == (600, 600)
    assert weights.computed_rows == 600
    values = record.to_dict(href="/a")["attention"][0]
    assert weights.computed_rows <= 600 + 6 * 128  # thumbnails and statistics use a sample of rows
    assert values["thumbs"]["size"] == [THUMBNAIL_SIZE, THUMBNAIL_SIZE]
    assert values["stats"]["label"][0][0] in ("previous token", "same token", "peaked")
    with pytest.raises(UsageError, match=r"no layer 1: it has 0, 3; the nearest is 0"):
        attention.matrix(1, 0)
    with pytest.raises(UsageError, match=r"no head 3: they are 0 to 2; the nearest is 2"):
        attention.matrix(0, 3)


def test_thumbnails_keep_sharp_weights() -> None:
    assert np.array_equal(max_pool(np.eye(128, dtype=np.float32)), np.eye(32, dtype=np.float32))
    assert max_pool(np.ones((3, 100), np.float32)).shape == (3, 32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"regard": 4}', "newer Regard: update"),
        ('{"regard": 2}', "earlier Regard: record the text again"),
        ('{"title": "x"}', "it is not a record"),
        ("[1]", "it is not a record"),
        ("{", "not JSON"),
        ('{"regard": 3, "title": "x", "texts": []}', "needs 'texts'"),
        ('{"regard": 3, "title": "x", "texts": {"source": {}}, "attention": []}', "'text' is missing"),
        ('{"regard": 3, "title": "x", "texts": {}, "attention": [{"name": "hop"}]}', "'hop' of a record lacks 'rows'"),
    ],
)
def test_files_that_hold_no_record_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content, "utf-8")
    with pytest.raises(UsageError, match=message) as error:
        Record.read(path)
    assert str(path) in str(error.value)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Record.read(tmp_path / "missing.json")


def test_texts_and_attention_that_do_not_match_are_refused() -> None:
    with pytest.raises(UsageError, match="token_types"):
        RecordText("a b", ("a", "b"), (0, 1), token_types=(0,))
    with pytest.raises(UsageError, match="direction"):
        RecordText("a", ("a",), (0,), direction="up")
    attention = AttentionRecord("x", "target", "source", np.ones((1, 1, 1, 1), np.float32), (0,))
    with pytest.raises(UsageError, match=r"visible keys \(1, 2\) must be \[layers or 1, 1\]"):
        replace(attention, num_visible=np.ones((1, 2), np.int64))
    with pytest.raises(UsageError, match="no text 'target'"):
        Record("", {"source": RecordText("a", ("a",), (0,))}, (attention,))
    with pytest.raises(UsageError, match="did you mean decoder.cross"):
        _ = sample_record()["decoder.crss"]
