"""Validation on a part of the data: the rows that encoding it anew would give, encoded once and noted once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.config.runs import build_run
from regard.tasks.frozen_features import FrozenFeatures
from regard.text.tokenizer import Tokenizer
from regard.training.batch_procedure import build_experiment
from regard.training.experiments.base import subsample_indices
from tests.rnn_text import saved_elmo
from tests.stories import write
from tests.training.task_data import SENTENCES, write_data

SHORT = {"data.max_length": 4}  # texts are truncated, or read in windows
CASES: list[tuple[str, str, dict[str, Any]]] = [  # task, architecture, settings
    ("classify", "rnn", SHORT),
    ("classify", "transformer", SHORT),
    ("tag", "rnn", SHORT),
    ("tag", "transformer", SHORT),
    ("answer", "transformer", {"data.max_length": 8, "passages.window_overlap": 1}),
    ("story-qa", "rnn", {"data.max_length": 12}),
    ("story-qa", "transformer", {"data.max_length": 15}),
]


def prepare(folder: Path, task: str, architecture: str, settings: dict[str, Any]) -> Any:
    """Prepared experiment with as many validation as training examples."""
    data = str(write(folder, "walks.txt", 61, seed=1) if task == "story-qa" else write_data(folder, task))
    common = {"architecture": architecture, "data.train": [data], "data.valid": [data]}
    experiment: Any = build_experiment(build_run(task, {**common, **settings}), folder)
    experiment.prepare()
    return experiment


def assert_equal(values: Any, expected: Any) -> None:
    """Assert that two values are equal in every field, but for what encoding reported."""
    if dataclasses.is_dataclass(expected):
        assert type(values) is type(expected)
        for field in dataclasses.fields(expected):
            if field.name not in ("truncation", "features", "cached_features"):
                assert_equal(getattr(values, field.name), getattr(expected, field.name))
    elif isinstance(expected, list | tuple):
        assert len(values) == len(expected)
        for value, expected_value in zip(values, expected, strict=True):
            assert_equal(value, expected_value)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(values, expected)
    else:
        assert values == expected


@pytest.mark.parametrize(("task", "architecture", "settings"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_a_part_has_the_rows_that_encoding_it_would_give(
    tmp_path: Path, task: str, architecture: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = prepare(tmp_path, task, architecture, settings)
    whole = experiment.valid
    notes = [*experiment.notes]
    assert any(note.startswith("validation: ") for note in notes)  # of what is truncated
    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "encode", None)
        patch.setattr(Tokenizer, "encode_batch", None)
        experiment.limit_validation(0.3)
    assert experiment.notes == notes
    indices = subsample_indices(len(whole.examples), 0.3)
    assert 0 < len(indices) == len(experiment.valid.examples) < len(whole.examples)
    assert_equal(experiment.valid, experiment.encode(whole.examples.select(indices), "validation"))
    assert experiment.validation_tokens() == experiment.valid.num_tokens < whole.num_tokens


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_frozen_features_are_read_once(tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    elmo = saved_elmo(tmp_path / "elmo", SENTENCES)
    experiment = prepare(tmp_path, task, "rnn", {"fine_tuning.features": str(elmo)})
    whole = experiment.valid.rows
    monkeypatch.setattr(FrozenFeatures, "extract", None)
    experiment.limit_validation(0.3)
    indices = subsample_indices(len(whole), 0.3)
    limited = experiment.valid.rows
    np.testing.assert_array_equal(
        limited.batch(np.arange(len(indices))).features,
        np.concatenate([whole.cached_features[index] for index in indices]),
    )
