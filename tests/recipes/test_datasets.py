"""Named data sets: conversion, limits, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.claims.data import prepare_data
from recipes.datasets import DATASETS, MissingDataError, limit_file, prepare_dataset
from regard.data.conll import read_tagged
from regard.errors import UsageError
from tests.recipes.test_prepare import DATA


@pytest.mark.parametrize("name", ["trec", "wnut17", "babi-2", "babi-15", "wikitext2"])
def test_a_data_set_is_converted_once(name: str, tmp_path: Path) -> None:
    if not (DATA / DATASETS[name].folder).is_dir():
        pytest.skip(f"shared/data/{DATASETS[name].folder} does not exist")
    files = prepare_dataset(name, DATA, tmp_path)
    paths = [Path(path) for path in (*files.train, *files.test, *files.valid)]
    times = [path.stat().st_mtime_ns for path in paths]
    assert prepare_dataset(name, DATA, tmp_path) == files
    assert [path.stat().st_mtime_ns for path in paths] == times
    assert not set(files.train) & set(files.test)


def test_stories_without_a_test_file_are_tested_on_held_out_ones() -> None:
    assert DATASETS["babi-15"].test == ("en/qa15.valid.txt",)
    assert DATASETS["babi-15"].valid == ()
    assert DATASETS["babi-16"].test == ("en/qa16.test.txt",)


def test_the_first_lines_or_sentences_are_kept(tmp_path: Path) -> None:
    table = tmp_path / "texts.tsv"
    table.write_text("a\tx\nb\ty\nc\tz\n")
    assert limit_file(table, 2, tmp_path / "out").read_text() == "a\tx\nb\ty\n"
    sentences = tmp_path / "tags.conll"
    sentences.write_text("a\tO\nb\tO\n\nc\tO\n\nd\tO\n\n")
    assert limit_file(sentences, 2, tmp_path / "out").read_text() == "a\tO\nb\tO\n\nc\tO\n\n"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="trec is not on this machine"):
        prepare_dataset("trec", tmp_path, tmp_path / "out")
    with pytest.raises(MissingDataError, match=r"give the folder that holds wikitext2 \(--data\)"):
        prepare_dataset("wikitext2", None, tmp_path)
    (tmp_path / "wikitext2").mkdir()
    with pytest.raises(MissingDataError, match="wiki.valid.raw.gz does not exist"):
        prepare_dataset("wikitext2", tmp_path, tmp_path / "out")
    with pytest.raises(UsageError, match="did you mean trec"):
        prepare_dataset("trek", tmp_path, tmp_path)


def test_brackets_are_text_to_train_on_and_depths_to_test_on(tmp_path: Path) -> None:
    settings = {"kind": "brackets", "train_rows": 7, "test_rows": 3}
    files = prepare_data(settings, None, tmp_path, seed=1)
    assert len(Path(files.train[0]).read_text().splitlines()) == 7
    sentences = read_tagged(files.test).sentences
    assert len(sentences) == 3
    assert {tag.isdigit() for sentence in sentences for tag in sentence.tags} == {True}
    other = prepare_data({**settings, "test_rows": 5}, None, tmp_path, seed=1)
    assert len(read_tagged(other.test).sentences) == 5
