"""The comparison of architectures: its stages, a tiny run, its results and its page."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.architectures import page, stages
from benchmarks.architectures.__main__ import build_workplace
from benchmarks.architectures.run import Workplace, build_candidates, compare, is_current, run_stage, split_ag_news
from benchmarks.architectures.stages import (
    AG_NEWS,
    COMPARISONS,
    CONTRASTS,
    JOBS,
    MINILM,
    PRETRAININGS,
    STAGE_MINUTES,
    STAGES,
    Comparison,
    stage_minutes,
)
from recipes.datasets import MissingDataError
from regard.config.runs import build_run
from regard.errors import UsageError
from regard.report.comparison.training import TrainingPlan

DATA = Path(__file__).parents[3] / "shared" / "data"
MODELS = [*(pretraining.name for pretraining in PRETRAININGS), MINILM]
MAX_SECONDS = 90  # of a training from scratch
SECONDS_BESIDE_TRAINING = 10  # of a run: reading, testing


def find(name: str) -> Comparison:
    return next(comparison for comparison in COMPARISONS if comparison.name == name)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A short trial on AG News."""
    if not (DATA / "ag_news").is_dir():
        pytest.skip("shared/data/ag_news does not exist")
    out = tmp_path_factory.mktemp("architectures")
    workplace = Workplace(DATA, out, out / "results", threads=1, is_quick=True)
    compare(find("classify-ag_news-6600"), workplace)
    return workplace


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_takes_at_most_an_hour(stage: str) -> None:
    num_runs = sum(comparison.num_runs for comparison in COMPARISONS if comparison.stage == stage)
    assert stage_minutes(stage) + num_runs * SECONDS_BESIDE_TRAINING / 60 / JOBS < STAGE_MINUTES


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda comparison: comparison.name)
def test_every_row_is_an_architecture_with_the_same_budget(comparison: Comparison) -> None:
    folders = {name: Path("runs", name) for name in MODELS}
    candidates = build_candidates(comparison, folders)
    settings = {"data.train": ["train"], **comparison.settings}
    configs = TrainingPlan(comparison.task, candidates, settings, comparison.seeds, minutes=0).run_configs()
    minutes = {row: {config.training.minutes for config in row_configs} for row, row_configs in configs.items()}
    timed = {row: values for row, values in minutes.items() if values - {0.0}}
    assert sum(len(configs[row]) for row in timed) * comparison.restarts == comparison.num_runs
    for row, values in timed.items():
        is_pretrained = "{" in comparison.rows[row]
        minutes_per_training = comparison.pretrained_minutes if is_pretrained else comparison.minutes
        assert values == {minutes_per_training * comparison.restarts}
    assert 60 * comparison.minutes <= MAX_SECONDS


def test_every_pre_training_is_a_run() -> None:
    for pretraining in PRETRAININGS:
        settings = {**pretraining.settings, "data.train": ["texts"], "training.minutes": 1.0}
        assert build_run(pretraining.task, settings).task == pretraining.task


def test_every_contrast_is_tested_on_some_data_set() -> None:
    assert {pair for comparison in COMPARISONS for pair in comparison.contrasts} == set(CONTRASTS)
    assert find("stories-babi-1").contrasts == [("Transformer from scratch", "LSTM")]


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [
        ("PRETRAINING_MINUTES", 5.0, ["classify-trec", "classify-sst2", "tag-wnut17"]),
        ("PRETRAININGS", PRETRAININGS[1:], ["classify-trec", "classify-sst2", "tag-wnut17"]),
        ("TEXTS", ("gutenberg",), ["classify-trec", "classify-sst2", "tag-wnut17"]),
        ("AG_NEWS_TRAIN", 6000, ["classify-ag_news-6600"]),
        ("TASK_SETTINGS", {**stages.TASK_SETTINGS, "tag": {}}, ["tag-wnut17"]),
    ],
)
def test_a_result_belongs_to_all_settings_that_decide_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any, changed: list[str]
) -> None:
    before = {comparison.name: comparison.digest() for comparison in COMPARISONS}
    monkeypatch.setattr(stages, name, value)
    assert [comparison.name for comparison in COMPARISONS if comparison.digest() != before[comparison.name]] == changed


def test_threads_decide_a_result_and_texts_do_not() -> None:
    comparison = find("stories-babi-1")
    assert comparison.digest(threads=2) != comparison.digest()
    assert replace(comparison, title="bAbI: 1", note="").digest() == comparison.digest()


def test_a_trial_shares_no_folder_with_the_stages(tmp_path: Path) -> None:
    options = {"data": tmp_path, "out": tmp_path / "out", "results": None, "threads": 1}
    trial = build_workplace(Namespace(**options, quick=True))
    full = build_workplace(Namespace(**options, quick=False))
    assert trial.model_folder("bert") != full.model_folder("bert")
    assert trial.out.parent == full.out
    assert trial.results.is_relative_to(trial.out)
    assert full.results == page.RESULTS


def test_ag_news_is_split_once_and_for_all(tmp_path: Path) -> None:
    if not (DATA / "ag_news").is_dir():
        pytest.skip("shared/data/ag_news does not exist")
    files = split_ag_news(DATA, tmp_path)
    train, test = (Path(paths[0]).read_text("utf-8").splitlines() for paths in (files.train, files.test))
    assert (len(train), len(test)) == (6600, 1000)
    assert split_ag_news(DATA, tmp_path / "again").test != files.test
    again = Path(split_ag_news(DATA, tmp_path / "again").test[0]).read_text("utf-8").splitlines()
    assert again == test
    assert {row.rpartition("\t")[2] for row in train} == {row.rpartition("\t")[2] for row in test}


def test_the_name_of_the_data_says_how_many_articles_are_for_training() -> None:
    assert f"ag_news-{stages.AG_NEWS_TRAIN}" == AG_NEWS


def test_a_run_compares_all_rows_on_the_same_test(finished: Workplace) -> None:
    comparison = find("classify-ag_news-6600")
    result = json.loads((finished.results / f"{comparison.name}.json").read_text())
    assert [model["name"] for model in result["report"]["models"]] == list(comparison.rows)
    assert result["report"]["metric"] == "accuracy"
    assert {"processor", "threads", "torch"} <= set(result["machine"])
    assert [(row["first"], row["second"]) for row in result["contrasts"]] == comparison.contrasts
    assert all(0 < row["test"]["p_value"] <= 1 for row in result["contrasts"])


def test_a_result_is_current_until_its_settings_change_and_a_trial_never(finished: Workplace, tmp_path: Path) -> None:
    comparison = find("classify-ag_news-6600")
    assert not is_current(finished.results, comparison)
    result = {"digest": comparison.digest(threads=2)}
    (tmp_path / f"{comparison.name}.json").write_text(json.dumps(result))
    assert is_current(tmp_path, comparison, threads=2)
    assert not is_current(tmp_path, comparison, threads=1)


def test_finished_runs_are_kept(finished: Workplace) -> None:
    weights = {path: path.stat().st_mtime_ns for path in finished.out.rglob("seed-*/model.safetensors")}
    assert len(weights) == 3
    compare(find("classify-ag_news-6600"), finished)
    assert {path: path.stat().st_mtime_ns for path in finished.out.rglob("seed-*/model.safetensors")} == weights


def test_the_page_shows_results_and_what_is_not_run_yet(finished: Workplace, tmp_path: Path) -> None:
    shutil.copy(finished.results / "classify-ag_news-6600.json", tmp_path)
    text = page.build_page(tmp_path)
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    section = sections[find("classify-ag_news-6600").title]
    assert "| Classification: test accuracy, % | AG News |" in sections["Overview"]
    assert "\n| RNN, attention | " in sections["Overview"]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")][2:]
    assert sorted(rows) == sorted(find("classify-ag_news-6600").rows)
    assert "\n| Transformer from scratch − RNN, mean | " in sections["Overview"]
    assert "Of the models without pre-training" in section
    assert page.FORMER_METHOD_NOTE not in text
    assert text.count("Not run yet.") == len(COMPARISONS) - 1


def verdict(difference: float, *, significant: bool, attending: str = "RNN, attention") -> dict[str, Any]:
    test = {"difference": difference, "significant": significant}
    return {"attending": attending, "plain": "word counts", "test": test}


@pytest.mark.parametrize(
    ("difference", "significant", "sentence"),
    [
        (
            4.0,
            True,
            "“RNN, attention”, the best with attention, is significantly better than the best without on TREC.",
        ),
        (-4.0, True, "word counts, the best without attention, is significantly better than the best with attention"),
        (4.0, False, "“RNN, attention”, the best with attention, does not differ significantly from the best without"),
    ],
)
def test_the_overview_states_where_attention_wins(difference: float, significant: bool, sentence: str) -> None:
    report = {"metric": "accuracy", "attention": verdict(difference, significant=significant)}
    (text,) = page.describe_attention({"classify-trec": report})
    assert text.startswith(f"Of the models without pre-training, {sentence}")


def test_the_overview_names_the_winner_of_each_data_set() -> None:
    names = {1: "memory network", 2: "memory network", 3: "Transformer from scratch"}
    reports = {
        f"stories-babi-{task}": {"metric": "error", "attention": verdict(-4.0, significant=True, attending=name)}
        for task, name in names.items()
    }
    first, second = page.describe_attention(reports)  # less error is a win
    assert "memory network, the best with attention, is significantly better" in first
    assert first.endswith(" on bAbI 1 and bAbI 2.")
    assert second.endswith(" on bAbI 3.")
    assert page.describe_attention({}) == []


def test_an_older_result_shows_contrasts_without_a_test_and_says_so(tmp_path: Path) -> None:
    names = ["LSTM", "Transformer from scratch", "memory network"]
    models = [
        {"name": name, "score": score, "low": 0.0, "high": 99.0, "test": None, "parameters": 1, "minutes": None}
        for name, score in zip(names, (51.0, 57.0, 0.0), strict=True)
    ]
    report = {"metric": "error", "models": models, "attention": None, "conclusion": "None."}
    machine = {"processor": "one", "threads": 1, "torch": "2"}
    (tmp_path / "stories-babi-1.json").write_text(json.dumps({"report": report, "machine": machine}))
    text = page.build_page(tmp_path)
    assert "\n| Transformer from scratch − LSTM | (+6.0) |" in text
    assert page.FORMER_METHOD_NOTE in text


def test_results_and_page_agree_with_the_stages() -> None:
    names = {comparison.name for comparison in COMPARISONS}
    results = {path.stem for path in page.RESULTS.glob("*.json")} - {"pretrain"}
    assert results <= names
    assert all(is_current(page.RESULTS, find(name)) for name in results)
    assert page.PAGE.read_text(encoding="utf-8") == page.build_page(), "run python -m benchmarks.architectures --page"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    reports: list[str] = []
    workplace = Workplace(tmp_path, tmp_path / "out", tmp_path / "results", threads=1, report=reports.append)
    with pytest.raises(MissingDataError, match="holds texts to pre-train on"):
        run_stage("pretrain", workplace)
    run_stage("tag", workplace)
    assert reports[-1:] == [
        f"skipped: tag-wnut17: the data set wnut17 is not on this machine: {tmp_path / 'wnut17'} does not exist"
    ]


def test_pre_training_comes_first(tmp_path: Path) -> None:
    if not (DATA / "wnut17").is_dir():
        pytest.skip("shared/data/wnut17 does not exist")
    workplace = Workplace(DATA, tmp_path / "out", tmp_path / "results", threads=1, is_quick=True)
    with pytest.raises(UsageError, match="elmo is not pre-trained yet: run the stage pretrain first"):
        compare(find("tag-wnut17"), workplace)
