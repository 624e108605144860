"""What a record holds beside texts and weights, its codes, and files that cannot be read."""

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
    PositionCodes,
    SpanProbabilities,
)
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from tests.view.samples import distributions, sample_record


class Halved:
    """Weights that are computed when they are asked for."""

    shape = (2, 3, 600, 600)

    def __init__(self) -> None:
        self.asked = 0

    def rows(self, place: int, head: int, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        self.asked += len(rows)
        made = np.zeros((len(rows), 600), np.float32)
        made[np.arange(len(rows)), np.maximum(rows - 1, 0)] = 0.5
        made[np.arange(len(rows)), np.minimum(rows + place + head, 599)] += 0.5
        return made


def filled() -> Record:
    steps = (
        DecodingStep("2017", 0.75, 0.8, (("2017", 0.75), ("2016", 0.25)), ((-1, "2017", -0.3), (-1, "2016", -1.4))),
    )
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    scores = np.array([[0.5, -np.inf, 1.0]] * 3, np.float32)
    return replace(
        sample_record(),
        steps=steps,
        verdict=LabelProbabilities(("good", "bad"), (0.75, 0.25)),
        attribution=(Attribution("occlusion", "good", "source", (0.5, -0.25), 0.5),),
        places=PositionCodes("learned", rows),
        inside=(HeadQKV("encoder.self", 1, 2, rows, rows, rows, scores),),
        cut=(Omission("it was long", "the end"),),
        view={"view": "align"},
    )


def test_everything_survives_its_file(tmp_path: Path) -> None:
    record = filled()
    again = Record.read(record.save(tmp_path / "x.json"))
    assert (again.steps, again.verdict, again.attribution, again.cut) == (
        record.steps,
        record.verdict,
        record.attribution,
        record.cut,
    )
    assert again.view["view"] == "align" and again.best == record.best and again.id == record.id
    assert again.places is not None and np.array_equal(again.places.codes, record.places.codes)  # type: ignore[union-attr]
    for name in ("query", "key", "value", "scores"):
        assert np.array_equal(getattr(again.inside[0], name), getattr(record.inside[0], name))
    spans = SpanProbabilities((0.5, 0.5), (1.0, 0.0), ((0, 1, "a b", 0.75),), 0.125)
    assert Record.from_dict(replace(record, verdict=spans).to_dict()).verdict == spans


def test_codes_keep_what_they_promise() -> None:
    weights = distributions((2, 5, 200), 3)
    again = decode_sparse(encode_sparse(weights), weights.shape)
    kept = again > 0
    assert (kept.sum(-1) <= 24).all()
    assert np.abs(again - weights)[kept].max() < 4e-3
    enough = (np.where(kept, weights, 0).sum(-1) >= SPARSE_FRACTION - 1e-6) | (kept.sum(-1) == 24)
    assert enough.all()
    signed = np.array([[-1.5, 2.25, 1e-3]])
    assert np.abs(decode_f16(encode_f16(signed), (1, 3)) - signed).max() < 1e-3
    assert np.allclose(array_from_json(array_to_json(signed)), signed, atol=1e-3)
    for damaged in ({"code": "zip", "data": "", "shape": [1]}, {**array_to_json(signed), "shape": [9, 9]}):
        with pytest.raises(UsageError, match=r"encoding 'zip'|damaged"):
            array_from_json(damaged)


def test_some_layers_are_whole_and_others_have_what_counts_most() -> None:
    record = sample_record()
    values = record.to_dict(full=[1])
    assert [block["code"] for block in values["attention"][0]["blocks"]] == ["sparse", "root8"]
    again = Record.from_dict(json.loads(json.dumps(values)))
    assert np.abs(again.attention[0].matrix(1, 2) - record.attention[0].matrix(1, 2)).max() < 4e-3
    assert (again.attention[0].matrix(0, 0).sum(-1) > SPARSE_FRACTION - 0.05).all()
    pointing = record.to_dict(href="/r/x/a")
    assert pointing["attention"][0]["blocks"][1]["href"] == "/r/x/a/decoder.cross/1"
    assert "data" not in pointing["attention"][0]["blocks"][1]
    with pytest.raises(UsageError, match="on a server"):
        Record.from_dict(pointing)


def test_matrices_are_computed_when_they_are_looked_at() -> None:
    kept = Halved()
    assert isinstance(kept, LazyWeights)
    side = RecordText.from_labels("x", [f"t{number}" for number in range(600)])
    seen = AttentionRecord("encoder.self", "source", "source", kept, (0, 3))
    record = Record("long", {"source": side}, (seen,))
    assert kept.asked == 0 and not seen.has_weights
    assert seen.matrix(3, 2).shape == (600, 600) and kept.asked == 600
    values = record.to_dict(href="/a")["attention"][0]
    assert kept.asked <= 600 + 6 * 128  # pictures and numbers are made of some rows
    assert values["thumbs"]["size"] == [THUMBNAIL_SIZE, THUMBNAIL_SIZE]
    assert values["stats"]["label"][0][0] in ("previous", "itself", "sharp")
    with pytest.raises(UsageError, match=r"no layer 1: it has 0, 3; the nearest is 0"):
        seen.matrix(1, 0)
    with pytest.raises(UsageError, match=r"no head 3: they are 0 to 2; the nearest is 2"):
        seen.matrix(0, 3)


def test_small_pictures_keep_what_is_sharp() -> None:
    assert np.array_equal(max_pool(np.eye(128, dtype=np.float32)), np.eye(32, dtype=np.float32))
    assert max_pool(np.ones((3, 100), np.float32)).shape == (3, 32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"regard": 2}', "newer Regard: update"),
        ('{"title": "x"}', "it is not a record"),
        ("[1]", "it is not a record"),
        ("{", "not JSON"),
        ('{"regard": 1, "title": "x", "texts": []}', "needs 'texts'"),
        ('{"regard": 1, "title": "x", "texts": {"source": {}}, "attention": []}', "'text' is missing"),
        ('{"regard": 1, "title": "x", "texts": {}, "attention": [{"name": "hop"}]}', "'hop' of a record lacks 'rows'"),
    ],
)
def test_files_that_are_no_records_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content, "utf-8")
    with pytest.raises(UsageError, match=message) as refused:
        Record.read(path)
    assert str(path) in str(refused.value)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Record.read(tmp_path / "missing.json")


def test_sides_say_what_does_not_fit() -> None:
    with pytest.raises(UsageError, match="segment"):
        RecordText("a b", ("a", "b"), (0, 1), segment=(0,))
    with pytest.raises(UsageError, match="direction"):
        RecordText("a", ("a",), (0,), direction="up")
    with pytest.raises(UsageError, match="no text 'target'"):
        seen = AttentionRecord("x", "target", "source", np.ones((1, 1, 1, 1), np.float32), (0,))
        Record("", {"source": RecordText("a", ("a",), (0,))}, (seen,))
    with pytest.raises(UsageError, match="did you mean decoder.cross"):
        _ = sample_record()["decoder.crss"]
