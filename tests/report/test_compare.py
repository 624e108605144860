"""Comparing architectures: trained alike, measured alike, one report; wrong names are told first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.config.defaults import parse_architecture
from regard.config.runs import RunConfig
from regard.data.pairs import read_pairs
from regard.data.synthetic import generate_pairs
from regard.errors import UsageError
from regard.report.compare import ComparedRun, compare, train_architectures, write_report


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("data")
    paths = folder / "train.tsv", folder / "test.tsv"
    for path, count, split in zip(paths, (300, 40), ("train", "test"), strict=True):
        path.write_text(
            "".join(f"{one}\t{other}\n" for one, other in generate_pairs("reverse", count, split=split)), "utf-8"
        )
    return paths


def test_recurrent_models_and_a_transformer_train_translate_and_are_compared(
    data: tuple[Path, Path], tmp_path: Path
) -> None:
    train, test = data
    settings = {"preset": "micro", "data.train": [str(train)], "tokenizer.kind": "characters", "training.steps": 30}
    config = RunConfig().override({**settings, "training.threads": 1, "training.precision": "float32"})
    told: list[str] = []
    entries = ["lstm:none", "gru:additive", "gru:hard", "transformer"]
    contenders = train_architectures(config, entries, tmp_path, [], told.append)
    assert [line.split(": ", 1)[1] for line in told] == entries
    report = compare(contenders, read_pairs([str(test)], config.data.read), title="made", notify=told.append, threads=1)
    assert [one.name for one in report.models] == entries
    for one in report.models:
        assert one.low <= one.bleu <= one.high
        assert one.training is not None and one.training > 0
        assert ("<svg" in one.picture) == (one.name != "lstm:none")
    assert sum(one.p_value is None for one in report.models) == 1
    files = write_report(report, tmp_path / "report")
    assert [file.name for file in files] == ["report.html", "report.json", "report.md"]
    assert json.loads(files[1].read_text("utf-8"))["models"][1]["name"] == "gru:additive"
    # a second call finds the runs finished and trains nothing
    assert [one.folder for one in train_architectures(config, entries, tmp_path, [], told.append)] == [
        one.folder for one in contenders
    ]


@pytest.mark.parametrize("name", ["gru", "gru:addtive", "rnn:none", "transformer:dot", ""])
def test_an_unknown_architecture_is_refused_before_anything_trains(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown architecture"):
        train_architectures(RunConfig(), ["transformer", name], tmp_path, [], print)
    assert not list(tmp_path.iterdir())


def test_every_named_architecture_is_a_config() -> None:
    for cell in ("lstm", "gru"):
        for attention in ("none", "additive", "dot", "bilinear", "concat", "hard"):
            assert RunConfig().override(parse_architecture(f"{cell}:{attention}")).seq2seq.cell == cell


def test_one_model_is_no_comparison(data: tuple[Path, Path], tmp_path: Path) -> None:
    pairs = read_pairs([str(data[1])], RunConfig().data.read)
    with pytest.raises(UsageError, match="at least two"):
        compare([ComparedRun("a", tmp_path)], pairs, title="", notify=print)
