"""Claims: what is expected is read, measured on real runs, and judged; every recipe in the tree is well formed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.claims import Files, check_claim, verdict, write
from regard.cli import run
from regard.config.claim import ClaimConfig, Expectation
from regard.config.run import RunConfig
from regard.errors import ConfigError, UsageError

RECIPES = sorted(Path(__file__).parent.parent.glob("recipes/claims/*.json"))
SMALL = {
    "claim": "Models that learn longer are better at copying.",
    "measure": "exact_match",
    "make": {"kind": "copy", "count": 400, "tested": 20, "lengths": [2, 3]},
    "settings": {
        "preset": "custom",
        "model.width": 16,
        "decoding.beam": 1,
        "training.threads": 1,
        "training.precision": "float32",
    },
    "seeds": [1],
    "models": {"short": {"training.steps": 1}, "longer": {"training.steps": 3}},
    "expect": ["longer - short >= -100"],
}


def test_expectations_compare_one_model_or_two_with_a_number() -> None:
    measured = {"a": 30.0, "b": 20.0}
    assert Expectation.parsed("a >= 30").holds(Expectation.parsed("a >= 30").value(measured))
    assert not Expectation.parsed("a > 30").holds(30.0)
    assert Expectation.parsed("a - b < 11").value(measured) == 10
    assert Expectation.parsed(" b / a <= 0.5 ").value(measured) == pytest.approx(2 / 3)
    with pytest.raises(ConfigError, match="must be like 'plain < 20'"):
        Expectation.parsed("a better than b")


def test_a_verdict_says_by_how_much_and_which_seeds_disagree() -> None:
    config = ClaimConfig.from_dict({**SMALL, "expect": ["longer - short > 5"]})
    found = verdict(config, {"short": [10.0, 20.0], "longer": [30.0, 22.0]}, [1, 2])
    assert found.holds
    assert found.sentence() == "holds here: longer - short > 5: found 11, holds by 6 (1 of 2 seeds alone)"
    assert "| longer | 30 | 22 | 26 |" in found.markdown()
    worse = verdict(config, {"short": [10.0], "longer": [12.0]}, [1])
    assert worse.sentence() == "does not hold here: longer - short > 5: found 2, fails by 3"


def test_a_claim_is_checked_by_training_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "claim.json"
    file.write_text(json.dumps(SMALL))
    assert run(["claim", str(file), "--out", str(tmp_path / "out"), "--json"]) == 0
    said = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert said[-1]["holds"] is True
    assert set(said[-1]["measured"]) == {"short", "longer"}
    before = (tmp_path / "out/longer-1/model.safetensors").stat().st_mtime_ns
    again = check_claim(ClaimConfig.from_dict(SMALL), tmp_path / "out")
    assert (tmp_path / "out/longer-1/model.safetensors").stat().st_mtime_ns == before
    assert again.to_dict()["measured"] == said[-1]["measured"]
    assert [path.name for path in write(again, tmp_path / "out")] == ["claim.json", "claim.md"]


def test_time_to_a_quality_and_distance_of_heads_are_measured(tmp_path: Path) -> None:
    settings = {**SMALL["settings"], "training.evaluate_every": 1}  # type: ignore[dict-item]
    models = {"a": {"training.steps": 2}}
    timed = {"measure": "minutes_to_bleu", "bleu": 0, "expect": ["a < 5"], "settings": settings, "models": models}
    found = check_claim(ClaimConfig.from_dict({**SMALL, **timed}), tmp_path / "out")
    assert 0 < found.measured["a"][0] < float("inf")
    unreached = check_claim(ClaimConfig.from_dict({**SMALL, **timed, "bleu": 100.5}), tmp_path / "out")
    assert unreached.measured["a"][0] == float("inf")
    apart = check_claim(ClaimConfig.from_dict({**SMALL, **timed, "measure": "heads_apart"}), tmp_path / "out")
    assert 0 < apart.measured["a"][0] < 1


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_well_formed(path: Path, tmp_path: Path) -> None:
    config = ClaimConfig.from_dict(json.loads(path.read_text("utf-8")), where=str(path))
    from regard.claims import _run

    for own in config.models.values():
        assert isinstance(_run(config, own, Files(["train"], ["test"]), 1, {}), RunConfig)
    if not config.make:
        assert "--train" in config.about
        with pytest.raises(UsageError, match="needs data"):
            check_claim(config, tmp_path)


def test_faults_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for changes, message in (
        ({"expect": ["longr < 3"]}, "did you mean longer"),
        ({"models": {}}, "needs claim, models"),
        ({"measure": "bleu"}, "must be one of"),
        ({"make": {"kind": "copy", "rows": 3}}, "make: unknown rows"),
        ({"models": {"longer": {"model": "gru:nothing"}, "short": {}}}, "unknown architecture"),
        ({"measure": "error"}, "not measured of what this claim trains"),
    ):
        file = tmp_path / "claim.json"
        file.write_text(json.dumps({**SMALL, **changes}))
        assert run(["claim", str(file), "--out", str(tmp_path / "out")]) == 2, message
        assert message in capfd.readouterr().err
    assert run(["claim", str(file), "--train", "x.tsv", "--out", str(tmp_path / "out")]) == 2
    assert "go together" in capfd.readouterr().err
