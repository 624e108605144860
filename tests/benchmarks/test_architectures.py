"""The comparison of architectures: its stages, a tiny run, its results and its page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.architectures import page
from benchmarks.architectures.run import (
    AG_NEWS,
    Workplace,
    build_candidates,
    compare,
    is_current,
    run_stage,
    split_ag_news,
)
from benchmarks.architectures.stages import (
    COMPARISONS,
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


def test_a_run_compares_all_rows_on_the_same_test(finished: Workplace) -> None:
    comparison = find("classify-ag_news-6600")
    result = json.loads((finished.results / f"{comparison.name}.json").read_text())
    assert [model["name"] for model in result["report"]["models"]] == list(comparison.rows)
    assert result["report"]["metric"] == "accuracy"
    assert {"processor", "threads", "torch"} <= set(result["machine"])
    assert is_current(finished.results, comparison)


def test_finished_runs_are_kept(finished: Workplace) -> None:
    weights = {path: path.stat().st_mtime_ns for path in finished.out.rglob("seed-*/model.safetensors")}
    assert len(weights) == 3
    compare(find("classify-ag_news-6600"), finished)
    assert {path: path.stat().st_mtime_ns for path in finished.out.rglob("seed-*/model.safetensors")} == weights


def test_the_page_shows_results_and_what_is_not_run_yet(finished: Workplace, tmp_path: Path) -> None:
    shutil.copy(finished.results / "classify-ag_news-6600.json", tmp_path)
    text = page.build_page(tmp_path)
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    section = sections[page.TITLES["classify-ag_news-6600"]]
    assert "| Classification: test accuracy, % | AG News |" in sections["Overview"]
    assert "\n| RNN, attention | " in sections["Overview"]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")][2:]
    assert sorted(rows) == sorted(find("classify-ag_news-6600").rows)
    assert "Of the models trained from scratch" in section
    assert text.count("Not run yet.") == len(COMPARISONS) - 1


@pytest.mark.parametrize(
    ("difference", "significant", "sentence"),
    [
        (4.0, True, "the best with attention beats the best without on TREC."),
        (-4.0, True, "the best without attention is better on TREC."),
        (4.0, False, "they do not differ significantly on TREC."),
    ],
)
def test_the_overview_states_where_attention_wins(difference: float, significant: bool, sentence: str) -> None:
    verdict = {"test": {"difference": difference, "significant": significant}}
    text = page.describe_attention({"classify-trec": {"metric": "accuracy", "attention": verdict}})
    assert text == f"Of the models trained from scratch, {sentence}"


def test_less_error_is_a_win() -> None:
    verdict = {"test": {"difference": -4.0, "significant": True}}
    text = page.describe_attention({"stories-babi-1": {"metric": "error", "attention": verdict}})
    assert text == "Of the models trained from scratch, the best with attention beats the best without on bAbI 1."


def test_results_and_page_agree_with_the_stages() -> None:
    names = {comparison.name for comparison in COMPARISONS}
    results = {path.stem for path in page.RESULTS.glob("*.json")} - {"pretrain"}
    assert results <= names
    assert all(is_current(page.RESULTS, find(name)) for name in results)
    assert set(page.TITLES) == names
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


assert AG_NEWS == "ag_news-6600"
