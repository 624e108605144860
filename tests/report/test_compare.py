"""Comparison of architectures: same training budget, same test set, one report; unknown names are refused first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.config.architecture import parse_architecture
from regard.config.task_runs import TranslateRun
from regard.data.pairs import read_pairs
from regard.data.synthetic import generate_pairs
from regard.errors import UsageError
from regard.report.compare import ComparedRun, compare, train_architectures, write_report


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("data")
    paths = []
    for split, count in (("train", 300), ("test", 40)):
        pairs = generate_pairs("reverse", count, split=split)
        path = folder / f"{split}.tsv"
        path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
        paths.append(path)
    train, test = paths
    return train, test


def test_seq2seq_models_and_a_transformer_are_trained_and_compared(data: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = data
    settings = {"preset": "micro", "data.train": [str(train)], "tokenizer.kind": "characters", "training.steps": 30}
    config = TranslateRun().override({**settings, "training.threads": 1, "training.precision": "float32"})
    messages: list[str] = []
    architectures = ["lstm:none", "gru:additive", "gru:hard", "transformer"]
    runs = train_architectures(config, architectures, tmp_path, [], messages.append)
    assert [line.split(": ", 1)[1] for line in messages] == architectures
    report = compare(
        runs, read_pairs([str(test)], config.data.read), title="reverse", notify=messages.append, threads=1
    )
    assert [model.name for model in report.models] == architectures
    for model in report.models:
        assert model.low <= model.bleu <= model.high
        assert model.tokens_per_second is not None and model.tokens_per_second > 0
        assert ("<svg" in model.picture) == (model.name != "lstm:none")
    assert sum(model.p_value is None for model in report.models) == 1
    files = write_report(report, tmp_path / "report")
    assert [file.name for file in files] == ["report.html", "report.json", "report.md"]
    assert json.loads(files[1].read_text("utf-8"))["models"][1]["name"] == "gru:additive"
    repeated = train_architectures(config, architectures, tmp_path, [], messages.append)  # finished: nothing is trained
    assert [run.folder for run in repeated] == [run.folder for run in runs]


@pytest.mark.parametrize("name", ["gru", "gru:addtive", "rnn:none", "transformer:dot", ""])
def test_an_unknown_architecture_is_refused_before_anything_trains(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown architecture"):
        train_architectures(TranslateRun(), ["transformer", name], tmp_path, [], print)
    assert not list(tmp_path.iterdir())


def test_every_named_architecture_is_a_config() -> None:
    for cell in ("lstm", "gru"):
        for attention in ("none", "additive", "dot", "bilinear", "concat", "hard"):
            assert TranslateRun().override(parse_architecture(f"{cell}:{attention}")).seq2seq.cell == cell


def test_a_comparison_needs_two_models(data: tuple[Path, Path], tmp_path: Path) -> None:
    pairs = read_pairs([str(data[1])], TranslateRun().data.read)
    with pytest.raises(UsageError, match="at least two"):
        compare([ComparedRun("a", tmp_path)], pairs, title="", notify=print)
