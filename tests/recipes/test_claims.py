"""Claims: every recipe is well formed, and checking one trains, measures, judges, resumes and writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest

from recipes.claims import page
from recipes.claims.__main__ import PROGRAM, claims
from recipes.claims.check import MEASURED, CheckContext, ClaimCheck
from recipes.claims.claim import MAX_MINUTES, ClaimConfig, claim_files, find_claim, read_claim
from recipes.claims.data import check_data
from recipes.claims.result import is_current, read_result
from recipes.datasets import DATASETS
from regard import cli
from regard.errors import ConfigError, UsageError
from tests.scale import HANG_GUARD

ROOT = Path(__file__).parents[2]
RECIPES = claim_files()
SMALL_CLAIM: dict[str, Any] = {
    "claim": "Models that learn longer are better at copying.",
    "source": "Everybody",
    "method": "Strings of letters are copied.",
    "data": {"kind": "copy", "train_rows": 400, "test_rows": 20, "lengths": [2, 3]},
    "measure": {"name": "test_metric", "metric": "exact_match"},
    "settings": {
        "preset": "custom",
        "model.hidden_size": 16,
        "model.encoder.num_layers": 1,
        "model.decoder.num_layers": 1,
        "tokenizer.kind": "words",
        "decoding.beam": 1,
        "training.tune_length_penalty": False,
        "training.steps": 1,
    },
    "seeds": [1, 2, 3],
    "models": {"short": {}, "longer": {"training.steps": 2}},
    "rule": ["longer - short > -101"],
    "minutes": 1,
}
BY_LENGTH = {"name": "metric_by_length", "metric": "bleu"}


def run(*arguments: str) -> int:
    """Run the command line and return its exit code."""
    return cli.run(arguments, claims, PROGRAM)


def write_recipe(folder: Path, **changes: Any) -> Path:
    path = folder / "longer-is-better.json"
    path.write_text(json.dumps({**SMALL_CLAIM, **changes}))
    return path


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the small claim has been checked: runs/, results/ and its recipe."""
    folder = tmp_path_factory.mktemp("claims")
    recipe = write_recipe(folder)
    options = ("--out", str(folder / "runs"), "--results", str(folder / "results"), "--threads", "1")
    assert run(str(recipe), *options) == 0
    return folder


# ---- recipes


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_the_configs_of_all_its_runs(name: str, tmp_path: Path) -> None:
    config = read_claim(RECIPES[name])
    ClaimCheck(name, config, CheckContext(tmp_path)).check()
    assert not list(tmp_path.iterdir()), "checking a recipe trains nothing"
    for entry in (config.to_dict(), *config.models.values(), *config.bases.values()):
        data = entry.get("data", {})
        check_data(data)
        assert "name" not in data or data["name"] in DATASETS


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_is_measured_and_stays_within_its_minutes(name: str) -> None:
    config = read_claim(RECIPES[name])
    assert config.source
    assert len(config.method) > 60
    assert config.budget() < config.minutes <= MAX_MINUTES


def test_there_are_about_twenty_five_claims() -> None:
    assert len(RECIPES) >= 25
    topics = {read_claim(path).topic for path in RECIPES.values()}
    assert len(topics) == 7


def test_a_digest_is_of_what_decides() -> None:
    config = ClaimConfig.from_dict(SMALL_CLAIM)
    reworded = config.override({"claim": "Longer is better.", "method": "Copying.", "remark": "Far.", "minutes": 2.0})
    assert (reworded.digest(), reworded.run_digest()) == (config.digest(), config.run_digest())
    for changes in ({"seeds": [1, 2, 4]}, {"settings": {}}, {"data": {"kind": "sort"}}):
        changed = config.override(changes)
        assert changed.digest() != config.digest()
        assert changed.run_digest() != config.run_digest()
    ruled = config.override({"rule": ["longer > 3"]})
    assert ruled.digest() != config.digest()
    assert ruled.run_digest() == config.run_digest()


@pytest.mark.parametrize("name", sorted(path.stem for path in page.RESULTS.glob("*.json")))
def test_results_belong_to_the_recipes_as_they_stand(name: str) -> None:
    """A rule that is changed after its runs invalidates the result."""
    result = read_result(page.RESULTS, name)
    config = read_claim(RECIPES[name])
    assert result is not None
    assert is_current(result, config)
    assert [rule["rule"] for rule in result["rules"]] == list(config.rule)
    assert result["seeds"] == list(config.seeds)
    ElementTree.parse(page.RESULTS / f"{name}.svg")


def test_the_page_agrees_with_recipes_and_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.build_page(), "run python -m recipes.claims.page"
    results = {path.stem for path in page.RESULTS.glob("*.json")}
    assert results <= set(RECIPES), "results without a recipe"


# ---- checking


def test_a_check_trains_measures_judges_and_writes(checked: Path) -> None:
    result = json.loads((checked / "results/longer-is-better.json").read_text())
    assert result["verdict"] == "holds"
    assert set(result["measured"]) == {"short", "longer"}
    assert len(result["measured"]["longer"]["value"]) == 3
    (rule,) = result["rules"]
    low, high = rule["interval"]
    assert low <= rule["estimate"] <= high
    assert (rule["over"], rule["count"]) == ("seeds", 3)
    assert result["machine"]["threads"] == 1
    assert {"processor", "torch"} <= set(result["machine"])
    assert result["recipe"] == ClaimConfig.from_dict(SMALL_CLAIM).digest()
    figure = ElementTree.parse(checked / "results/longer-is-better.svg")
    assert "longer" in " ".join(figure.getroot().itertext())


def test_a_finished_claim_is_skipped(checked: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copy(checked / "longer-is-better.json", checked / "copy.json")
    options = ("--out", str(checked / "elsewhere"), "--results", str(checked / "results"))
    assert run(str(checked / "longer-is-better.json"), *options) == 0
    assert "1 of 1 claims have a result" in capfd.readouterr().err
    assert not (checked / "elsewhere").exists()


def test_an_interrupted_check_repeats_nothing_that_is_measured(checked: Path) -> None:
    runs = checked / "runs"
    check = ClaimCheck("longer-is-better", ClaimConfig.from_dict(SMALL_CLAIM), CheckContext(runs))
    measured = json.loads((check.folder / MEASURED).read_text())
    weights = {path: path.stat().st_mtime_ns for path in check.folder.glob("*/model.safetensors")}
    assert len(weights) == 6
    del measured["longer-3"]
    (check.folder / MEASURED).write_text(json.dumps(measured))
    reports: list[str] = []
    again = ClaimCheck(check.name, check.config, CheckContext(runs, report=reports.append)).run()
    assert [report.split(":")[1].strip() for report in reports] == ["longer, seed 3"] * 2
    assert {path: path.stat().st_mtime_ns for path in weights} == weights, "finished runs are not trained again"
    written = json.loads((checked / "results/longer-is-better.json").read_text())
    assert again.to_dict()["measured"] == written["measured"]


def test_another_rule_is_decided_by_the_same_runs(checked: Path) -> None:
    reports: list[str] = []
    config = ClaimConfig.from_dict({**SMALL_CLAIM, "rule": ["longer - short > 101"]})
    result = ClaimCheck("longer-is-better", config, CheckContext(checked / "runs", report=reports.append)).run()
    assert (result.verdict, reports) == ("does not hold", [])


def test_measurements_of_another_number_of_threads_do_not_count(checked: Path) -> None:
    config = ClaimConfig.from_dict(SMALL_CLAIM)
    by_threads = [
        ClaimCheck("longer-is-better", config, CheckContext(checked / "runs", threads=threads)) for threads in (1, 2)
    ]
    assert [len(check.measured) for check in by_threads] == [6, 0]
    data = by_threads[1]._prepare_data(by_threads[1].models["short"], 1)
    assert by_threads[1].build_config(by_threads[1].models["short"], data, 1).training.threads == 2


def test_synthetic_data_differ_by_seed(checked: Path) -> None:
    texts = {path.read_text() for path in (checked / "runs/data").glob("*/test.tsv")}
    assert len(texts) == 3


def test_models_start_from_a_base_of_their_seed(tmp_path: Path) -> None:
    changes = {
        "bases": {"first": {**SMALL_CLAIM["settings"], "training.steps": 2}},
        "models": {"tuned": {"pretrained": "@first", "preset": "auto"}},
        "settings": {"decoding.beam": 1, "training.tune_length_penalty": False, "training.steps": 1},
        "rule": ["tuned > -1"],
    }
    config = ClaimConfig.from_dict({**SMALL_CLAIM, **changes})
    check = ClaimCheck("base", config, CheckContext(tmp_path, is_quick=True))
    result = check.run()
    assert result.verdict == "holds"
    run_state = json.loads((check.folder / "tuned-1/run.json").read_text())
    assert run_state["config"]["pretrained"] == str(check.folder / "base-first-1")
    base = check._resolve_bases(check.models["tuned"], 2)["pretrained"]
    assert base == str(check.folder / "base-first-2")
    assert json.loads((Path(base) / "run.json").read_text())["config"]["training"]["seed"] == 2


# ---- the page


def test_the_page_states_the_margin_that_a_rule_misses() -> None:
    rule = {"rule": "a - b > 30", "estimate": 24.5, "count": 3, "over": "seeds", "verdict": "does not hold"}
    described = page._describe_rule({**rule, "interval": [20.5, 28.5]})
    assert described.endswith("**does not hold**: above 0, but not above the margin of 30")
    negative = page._describe_rule({**rule, "interval": [-1.0, 28.5]})
    assert negative.endswith("**does not hold**: not above the margin of 30")
    falling = {**rule, "rule": "a - b < -2", "interval": [-1.5, -0.5]}
    assert page._describe_rule(falling).endswith("below 0, but not below the margin of −2")


def test_a_quantity_that_is_not_known_is_written_and_drawn(tmp_path: Path) -> None:
    """No run reaches the target, so that the quotient of the minutes is unknown."""
    changes = {
        "measure": {"name": "minutes_to", "metric": "bleu", "bound": 101},
        "rule": ["longer / short < 1", "longer.has_reached > 0.5"],
    }
    config = ClaimConfig.from_dict({**SMALL_CLAIM, **changes})
    result = ClaimCheck("faster", config, CheckContext(tmp_path, is_quick=True)).run()
    assert result.verdict == "undecided"
    assert result.rules[0].describe() == "longer / short < 1: not known: undecided"
    result.write(tmp_path)
    written = read_result(tmp_path, "faster")
    assert written is not None
    assert page._describe_rule({**written["rules"][0], "count": 3}) == "`longer / short < 1`: not known, **undecided**"
    assert "has_reached" not in (tmp_path / "faster.svg").read_text()


def test_a_section_shows_the_remark_of_its_recipe(checked: Path) -> None:
    result = read_result(checked / "results", "longer-is-better")
    assert result is not None
    config = ClaimConfig.from_dict({**SMALL_CLAIM, "remark": "Both copy nothing yet."})
    assert "\n\nBoth copy nothing yet.\n\n" in page._section("longer-is-better", config, result)


# ---- command line


def test_the_command_runs_as_a_module_of_the_repository(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recipes.claims", "nowhere", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=HANG_GUARD)
    assert process.returncode == 2
    assert "no claim 'nowhere'" in process.stderr


def test_the_list_has_every_claim_and_the_minutes_of_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list", "--results", str(tmp_path)) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in RECIPES)
    assert f"{len(RECIPES)} claims to check: at most" in output


def test_claims_whose_data_are_missing_are_skipped_with_a_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("--quick", "--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results"))
    assert run("some-words-matter-more", *options, "--data", str(tmp_path)) == 0
    assert "skipped: some-words-matter-more: the data set trec is not on this machine" in capfd.readouterr().err
    assert not (tmp_path / "results").exists()


def test_the_help_shows_an_example_and_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    help_text = capsys.readouterr().out
    assert f"{PROGRAM} positions-are-needed" in help_text
    for option in claims.params:
        if isinstance(option, click.Option):
            assert option.help, f"{option.opts} has no help"
            assert option.opts[0] in help_text, f"{option.opts} is not listed"


def test_every_setting_of_a_claim_has_help() -> None:
    for setting in ClaimConfig.knobs():
        assert setting.help, f"{setting.path} has no help"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": ["longr < 3"]}, "did you mean longer"),
        ({"rule": ["longer <= 3"]}, "must be like"),
        ({"rule": ["longer.valeu < 3"]}, "longer has no number 'valeu' (did you mean value?)"),
        (
            {"measure": {**BY_LENGTH, "groups": [2]}},
            "longer has no number 'value': it has longer.upto_2, longer.over_2",
        ),
        ({"measure": {**BY_LENGTH, "groups": 2}}, "groups must be a list of numbers, not 2"),
        ({"settings": {"training.threads": 1}}, "training.threads is no setting of a claim: --threads applies to all"),
        ({"models": {}}, "a claim needs models"),
        ({"measure": {"name": "test_metrc"}}, "did you mean test_metric"),
        ({"measure": {"name": "test_metric"}}, "the parameter metric is missing"),
        ({"measure": {"name": "test_metric", "metrc": "bleu"}}, "did you mean metric"),
        ({"data": {"kind": "copy", "rows": 3}}, "data: unknown 'rows'"),
        ({"data": {"title": "copy"}}, "name a data set"),
        ({"models": {"longer": {"model": "gru:nothing"}, "short": {}}}, "unknown architecture"),
        ({"models": {"longer": {"training.step": 3}, "short": {}}}, "did you mean training.steps"),
        ({"seeds": [1, 2]}, "at least 3"),
        ({"minutes": 9}, "at most 8"),
        ({"topic": "Cooking"}, "topic must be one of"),
    ],
)
def test_mistakes_in_a_claim_are_named_before_anything_is_trained(
    changes: dict[str, Any], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, **changes)
    assert run(str(recipe), "--quick", "--out", str(tmp_path / "runs")) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("*/*-1"))


def test_a_claim_is_found_by_name_or_file(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    assert find_claim(str(recipe)) == recipe
    assert find_claim("positions-are-needed") == RECIPES["positions-are-needed"]
    with pytest.raises(UsageError, match="did you mean positions-are-needed"):
        find_claim("position-are-needed")
    with pytest.raises(ConfigError):
        ClaimConfig.from_dict({**SMALL_CLAIM, "models": []})
