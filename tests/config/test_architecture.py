"""Entries of `--arch`: every one builds a run, and an unknown one is answered with what there is."""

from __future__ import annotations

import pytest

from regard.config.architecture import (
    MODEL,
    Architecture,
    architecture_table,
    find_architecture,
    parse_architecture,
)
from regard.config.runs import build_run
from regard.errors import UsageError
from regard.registry import TASKS

COMPARED = [task for task in TASKS if architecture_table(task)]


def test_models_of_every_task_with_a_table_can_be_compared() -> None:
    assert [task for task, row in TASKS.items() if row.comparison is not None] == COMPARED
    assert {"translate", "classify", "tag", "answer", "story-qa"} <= set(COMPARED)


@pytest.mark.parametrize("task", COMPARED)
def test_every_entry_builds_a_run_of_its_task(task: str) -> None:
    for name, architecture in architecture_table(task).items():
        if not architecture.is_baseline:
            entry = name.replace(MODEL, "some/model")
            settings = parse_architecture(entry, task)
            run = build_run(task, {**settings, "data.train": ["a.tsv"]})
            assert run.task == task
            assert all(settings[path] == "some/model" for path in [architecture.model_setting] if path)


def test_every_attention_of_an_rnn_is_an_entry_of_translation() -> None:
    for cell in ("lstm", "gru"):
        for attention in ("none", "additive", "dot", "bilinear", "concat", "hard"):
            run = build_run("translate", parse_architecture(f"{cell}:{attention}"))
            assert run.seq2seq.cell == cell  # type: ignore[attr-defined]


def test_the_model_of_an_entry_may_contain_colons() -> None:
    assert find_architecture("tuned:C:/models/bert", "tag") == Architecture(
        {"pretrained": "C:/models/bert"}, model_setting="pretrained"
    )


@pytest.mark.parametrize(
    ("entry", "task", "message"),
    [
        (
            "gru:addtive",
            "translate",
            r"'gru:addtive' of translate \(did you mean gru:additive\?\): must be one of trans",
        ),
        ("gru", "translate", "must be one of transformer, lstm:none"),
        ("", "translate", "unknown architecture ''"),
        ("rnn:mean", "tag", "rnn:mean is for --task classify: must be one of counts, rnn"),
        ("rnn:men", "classify", r"did you mean rnn:mean\?"),
        ("frozen", "classify", "names no model: write frozen:MODEL"),
        ("frozen:", "classify", "names no model: write frozen:MODEL"),
        ("features:x", "answer", "unknown architecture 'features:x' of answer"),
        ("bert", "masked-lm", "no architectures of masked-lm are compared"),
    ],
)
def test_an_unknown_entry_is_refused_with_those_that_there_are(entry: str, task: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_architecture(entry, task)
