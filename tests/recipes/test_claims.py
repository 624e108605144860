"""Claims: expectations are parsed, evaluated on training runs and judged; every recipe is well formed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from recipes.claims.__main__ import PROGRAM, claim
from recipes.claims.check import ClaimData, check_claim, judge, run_config, write_result
from recipes.claims.claim import ClaimConfig, Expectation
from regard import cli
from regard.config.runs import RunConfig
from regard.errors import ConfigError, UsageError
from tests.scale import HANG_GUARD

ROOT = Path(__file__).parents[2]
RECIPES = sorted(ROOT.glob("recipes/claims/*.json"))
SMALL_CLAIM: dict[str, Any] = {
    "claim": "Models that learn longer are better at copying.",
    "measure": "exact_match",
    "make": {"kind": "copy", "count": 400, "tested": 20, "lengths": [2, 3]},
    "settings": {
        "preset": "custom",
        "model.hidden_size": 16,
        "decoding.beam": 1,
        "training.threads": 1,
        "training.precision": "float32",
    },
    "seeds": [1],
    "models": {"short": {"training.steps": 1}, "longer": {"training.steps": 3}},
    "expect": ["longer - short >= -100"],
}


def run(*arguments: str) -> int:
    """Run the command line and return its exit code."""
    return cli.run(arguments, claim, PROGRAM)


def test_expectations_compare_a_score_a_difference_or_a_ratio_with_a_threshold() -> None:
    scores = {"a": 30.0, "b": 20.0}
    at_least_thirty = Expectation.parse("a >= 30")
    assert at_least_thirty.holds(at_least_thirty.evaluate(scores))
    assert not Expectation.parse("a > 30").holds(30.0)
    assert Expectation.parse("a - b < 11").evaluate(scores) == 10
    assert Expectation.parse(" b / a <= 0.5 ").evaluate(scores) == pytest.approx(2 / 3)
    with pytest.raises(ConfigError, match="must be like 'plain < 20'"):
        Expectation.parse("a better than b")


def test_a_verdict_reports_the_margin_and_how_many_seeds_agree() -> None:
    config = ClaimConfig.from_dict({**SMALL_CLAIM, "expect": ["longer - short > 5"]})
    result = judge(config, {"short": [10.0, 20.0], "longer": [30.0, 22.0]}, [1, 2])
    assert result.holds
    assert result.verdict() == "holds here: longer - short > 5: found 11, holds by 6 (1 of 2 seeds alone)"
    assert "| longer | 30 | 22 | 26 |" in result.markdown()
    failed = judge(config, {"short": [10.0], "longer": [12.0]}, [1])
    assert failed.verdict() == "does not hold here: longer - short > 5: found 2, fails by 3"


def test_a_second_check_reuses_the_trained_models(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    claim_file = tmp_path / "claim.json"
    claim_file.write_text(json.dumps(SMALL_CLAIM))
    output_dir = tmp_path / "out"
    assert run(str(claim_file), "--out", str(output_dir), "--json") == 0
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    first_result = events[-1]
    assert first_result["holds"] is True
    assert set(first_result["measured"]) == {"short", "longer"}
    outcome_fields = [set(outcome) for outcome in first_result["found"]]
    assert outcome_fields == [{"expected", "value", "margin", "holds", "alone", "seeds"}]
    weights_file = output_dir / "longer-1/model.safetensors"
    saved_at = weights_file.stat().st_mtime_ns
    second_result = check_claim(ClaimConfig.from_dict(SMALL_CLAIM), output_dir)
    assert weights_file.stat().st_mtime_ns == saved_at
    assert second_result.to_dict()["measured"] == first_result["measured"]
    assert [path.name for path in write_result(second_result, output_dir)] == ["claim.json", "claim.md"]


def test_the_command_runs_as_a_module_of_the_repository(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recipes.claims", "nowhere.json", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=HANG_GUARD)
    assert process.returncode == 2
    assert "nowhere.json" in process.stderr


def test_the_help_shows_an_example_and_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    help_text = capsys.readouterr().out
    assert f"Usage: {PROGRAM} [OPTIONS] FILE" in help_text
    assert f"{PROGRAM} recipes/claims/" in help_text
    for option in claim.params:
        if isinstance(option, click.Option):
            assert option.help, f"{option.opts} has no help"
            assert option.opts[0] in help_text, f"{option.opts} is not listed"


def test_minutes_to_a_bleu_and_the_distance_between_heads_are_measured(tmp_path: Path) -> None:
    timed_claim = {
        **SMALL_CLAIM,
        "measure": "minutes_to_bleu",
        "bleu": 0,
        "expect": ["a < 5"],
        "settings": {**SMALL_CLAIM["settings"], "training.evaluate_every": 1},
        "models": {"a": {"training.steps": 2}},
    }
    output_dir = tmp_path / "out"
    reached = check_claim(ClaimConfig.from_dict(timed_claim), output_dir)
    assert 0 < reached.scores["a"][0] < float("inf")
    unreached = check_claim(ClaimConfig.from_dict({**timed_claim, "bleu": 100.5}), output_dir)
    assert unreached.scores["a"][0] == float("inf")
    distance = check_claim(ClaimConfig.from_dict({**timed_claim, "measure": "heads_apart"}), output_dir)
    assert 0 < distance.scores["a"][0] < 1


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_well_formed(path: Path, tmp_path: Path) -> None:
    config = ClaimConfig.from_dict(json.loads(path.read_text("utf-8")), where=str(path))
    data = ClaimData(["train"], ["test"])
    for settings in config.models.values():
        assert isinstance(run_config(config, settings, data, seed=1, overrides={}), RunConfig)
    if not config.make:
        assert "--train" in config.about
        with pytest.raises(UsageError, match="needs data"):
            check_claim(config, tmp_path)


def test_every_setting_of_a_claim_has_help() -> None:
    assert ClaimConfig.__doc__
    for setting in ClaimConfig.knobs():
        assert setting.help, f"{setting.path} has no help"


def test_mistakes_in_a_claim_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    claim_file = tmp_path / "claim.json"
    output_dir = tmp_path / "out"
    for changes, message in (
        ({"expect": ["longr < 3"]}, "did you mean longer"),
        ({"models": {}}, "needs claim, models"),
        ({"measure": "bleu"}, "must be one of"),
        ({"make": {"kind": "copy", "rows": 3}}, "make: unknown rows"),
        ({"models": {"longer": {"model": "gru:nothing"}, "short": {}}}, "unknown architecture"),
        ({"measure": "error"}, "not measured of what this claim trains"),
    ):
        claim_file.write_text(json.dumps({**SMALL_CLAIM, **changes}))
        assert run(str(claim_file), "--out", str(output_dir)) == 2, message
        assert message in capfd.readouterr().err
    assert run(str(claim_file), "--train", "x.tsv", "--out", str(output_dir)) == 2
    assert "go together" in capfd.readouterr().err
    assert run(str(claim_file), "--ouput", "x") == 2
    assert f"no such option: --ouput (did you mean --out?)\n  {PROGRAM} --help shows" in capfd.readouterr().err
