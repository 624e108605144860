"""A package outside the tree, installed by pip, adds a task, a family with its own positions, and a metric."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import regard
from tests.scale import HANG_GUARD

SOURCE = Path(__file__).parent / "spam_filter"
PACKAGE = Path(regard.__file__).parent
PLAN = ["--steps", "30", "--precision", "float32", "--threads", "1", "--vocab-size", "300"]
RUN_VERBS = """
import contextlib, io, json, sys
from regard.cli import run
results = {}
for name, arguments in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = run(arguments)
    results[name] = [code, output.getvalue()]
print(json.dumps(results))
"""


def run(arguments: list[str], *paths: Path) -> subprocess.CompletedProcess[str]:
    python_path = os.pathsep.join(str(path) for path in (PACKAGE.parent, *paths))
    environment = {**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=HANG_GUARD, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the installed plugin."""
    pytest.importorskip("hatchling", reason="builds the plugin")
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(folder)]
    process = run(["-m", "pip", "install", *options, str(SOURCE)])
    assert process.returncode == 0, process.stderr
    return folder


@pytest.fixture(scope="module")
def mails(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("mails") / "mails.tsv"
    rows = [f"you won the lottery number {n}\tspam\nsee you at lunch at {n}\tmail\n" for n in range(40)]
    path.write_text("".join(rows), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def trained(site: Path, mails: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run of `regard train spam`."""
    out = str(tmp_path_factory.mktemp("runs") / "spam")
    settings = ["--metric", "false-alarms", "--spam.word", "won", "--model.hidden_size", "24"]
    process = run(["-m", "regard", "train", "spam", mails, "--valid", mails, *PLAN, *settings, "--out", out], site)
    assert process.returncode == 0, process.stderr
    return out


@pytest.fixture(scope="module")
def outputs(site: Path, trained: str, mails: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Standard output of each verb, run in one process; all must succeed."""
    folder = tmp_path_factory.mktemp("outputs")
    text = "you won a car"
    commands = {
        "train": ["train"],
        "help": ["train", "spam", "--help-all"],
        "evaluate": ["evaluate", trained, mails, "--metric", "false-alarms", "--json"],
        "info": ["info", trained],
        "see": ["see", trained, text, "--attribution", "--json"],
        "page": ["see", trained, text, "--out", str(folder / "page.html")],
        "figure": ["figure", trained, text, "--view", "matrix", "--words"],
        "heads": ["heads", trained, mails, "--sample", "8", "--json"],
        "compare": [
            *("compare", mails, "--task", "spam", "--test", mails, "--arch", "counts,narrow", "--json"),
            *("--set", "training.steps=5", "--threads", "1", "--out", str(folder / "compared")),
        ],
        "recipe": ["train", "--recipe", f"{trained}/run.json", "--out", str(folder / "again")],
    }
    process = run(["-c", RUN_VERBS, json.dumps(commands)], site)
    assert process.returncode == 0, process.stderr
    results: dict[str, list[Any]] = json.loads(process.stdout)
    assert {name: code for name, (code, _) in results.items()} == dict.fromkeys(commands, 0), process.stderr
    return {"folder": str(folder), **{name: output for name, (_, output) in results.items()}}


def test_train_lists_and_describes_the_task(outputs: dict[str, str]) -> None:
    assert "train a spam filter" in outputs["train"]
    assert "--spam.word TEXT" in outputs["help"] and "--label COLUMN" in outputs["help"]
    assert "--lora" not in outputs["help"] and "--from" not in outputs["help"]


def test_the_folder_records_config_metric_and_plugin(trained: str) -> None:
    task = json.loads((Path(trained) / "task.json").read_text())
    assert (task["task"], task["word"], task["plugins"]) == ("spam", "won", ["spam-filter"])
    assert task["metrics"]["valid_false-alarms"] == 0.0 and task["metrics"]["valid_accuracy"] == 100.0
    config = json.loads((Path(trained) / "config.json").read_text())
    assert config["model_type"] == "regard-log-encoder"
    assert (config["regard"]["positions"], config["regard"]["hidden_size"]) == ("log-distance", 24)


def test_evaluate_computes_the_metric(outputs: dict[str, str]) -> None:
    scores = json.loads(outputs["evaluate"])
    assert (scores["accuracy"], scores["false-alarms"]) == (100.0, 0.0)


def test_info_describes_the_model(outputs: dict[str, str]) -> None:
    assert "log-distance encoder, 2 layers of 24, 2 heads, log-distance positions, 2 labels" in outputs["info"]
    assert "labels: mail, spam" in outputs["info"] and "false alarms" in outputs["info"]


def test_compare_trains_the_architectures_of_the_task(outputs: dict[str, str]) -> None:
    report = json.loads(outputs["compare"].splitlines()[-1])
    counts, narrow = report["models"]
    assert (report["task"], report["metric"], counts["score"]) == ("spam", "accuracy", 100.0)
    assert "2 layers of 8" in narrow["summary"] and narrow["attention"]


def test_see_and_figure_show_the_attention(outputs: dict[str, str]) -> None:
    record = json.loads(outputs["see"])
    (attention,) = record["attention"]
    assert (attention["name"], attention["layers"], attention["heads"]) == ("encoder.self", [0, 1], 2)
    assert record["prediction"]["labels"][0] == "spam" and len(record["attribution"]) == 3
    assert (Path(outputs["folder"]) / "page.html").stat().st_size > 10_000
    assert all(word in outputs["figure"] for word in ("you", "won", "car", "▓"))


def test_heads_measures_every_head(outputs: dict[str, str]) -> None:
    rows = json.loads(outputs["heads"])["heads"]
    assert {row["head"] for row in rows} == {f"encoder.{layer}.self:{head}" for layer in (0, 1) for head in (0, 1)}
    assert max(row["importance"] for row in rows) > 0 and min(row["numbers"]["entropy"] for row in rows) > 0


def test_a_recipe_reproduces_the_run(outputs: dict[str, str], trained: str) -> None:
    again = Path(outputs["folder"]) / "again"
    assert (again / "model.safetensors").read_bytes() == (Path(trained) / "model.safetensors").read_bytes()


def test_python_loads_the_model_and_says_once_that_torch_computes_it(site: Path, trained: str) -> None:
    code = f"""
import regard
model = regard.load({trained!r})
again = regard.load({trained!r})
result = model("you won the lottery")
print(result, result.attention["encoder.1.self"].weights.shape[0], again("see you at lunch"))
regard.load({trained!r}, backend="engine")
"""
    process = run(["-c", code], site)
    assert process.stdout == "spam 2 mail\n"
    assert process.stderr.count("the family log-encoder has no engine builder: torch computes it") == 1
    error = "the family log-encoder has no engine builder, torch computes it: leave out the backend"
    assert process.stderr.strip().endswith(error)


def test_names_of_the_plugin_are_checked_with_ours(site: Path, mails: str) -> None:
    process = run(["-m", "regard", "train", "spam", mails, "--out", "x", "--model.positions", "log-distanc"], site)
    assert process.returncode == 2
    assert (
        "'sinusoidal', 'interleaved', 'concatenated', 'learned', 'rotary', 'alibi', 'relative', 'none', 'log-distance'"
        in process.stderr
    )
    code = "from regard.config.models import GptConfig; GptConfig(positions='log-distanc')"
    assert "not 'log-distanc' (did you mean log-distance?)" in run(["-c", code], site).stderr


def test_positions_of_a_plugin_serve_other_families_and_are_recorded(site: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"a b {n}\tb a {n}\n" for n in range(40)))
    plan = ["--steps", "2", *PLAN[2:], "--preset", "micro", "--model.positions", "log-distance"]
    out = str(tmp_path / "run")
    commands = {
        "train": ["train", "translate", str(pairs), "--valid", str(pairs), *plan, "--out", out],
        "torch": ["translate", out, "a b 3"],
        "engine": ["translate", out, "a b 3", "--backend", "engine"],
    }
    process = run(["-c", RUN_VERBS, json.dumps(commands)], site)
    codes = {name: code for name, (code, _) in json.loads(process.stdout).items()}
    assert codes == {"train": 0, "torch": 0, "engine": 2}, process.stderr
    assert "the engine cannot be used: it has no log-distance positions" in process.stderr
    assert json.loads((tmp_path / "run/task.json").read_text())["plugins"] == ["spam-filter"]


def test_without_the_plugin_the_message_says_what_to_install(trained: str, mails: str) -> None:
    commands = {
        "info": ["info", trained],
        "evaluate": ["evaluate", trained, mails],
        "see": ["see", trained, "a text"],
        "heads": ["heads", trained, mails],
        "convert": ["convert", trained, f"{trained}-converted", "--to", "regard"],
    }
    process = run(["-c", RUN_VERBS, json.dumps(commands)])
    codes = {name: code for name, (code, _) in json.loads(process.stdout).items()}
    assert codes == dict.fromkeys(commands, 2), process.stderr
    message = f"{trained}: the model needs the plugin spam-filter: pip install spam-filter"
    assert process.stderr.count(message) == len(commands) and "Traceback" not in process.stderr
    assert "spam " not in run(["-m", "regard", "train"]).stdout


def test_a_folder_whose_plugin_does_not_load_says_to_repair_it(trained: str, tmp_path: Path) -> None:
    broken = tmp_path / "spam_filter-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: spam-filter\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[regard.plugins]\nspam_filter = spam_filter:register\n")
    (tmp_path / "spam_filter.py").write_text("raise ImportError('half a file')")
    process = run(["-m", "regard", "info", trained], tmp_path)
    assert process.returncode == 2
    assert "the plugin spam_filter of spam-filter is not loaded: ImportError: half a file" in process.stderr
    assert "the model needs the plugin spam-filter: repair it (ImportError: half a file)" in process.stderr


def test_each_part_is_one_short_file_and_nothing_in_the_package_refers_to_it() -> None:
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in (SOURCE / "spam_filter").glob("*.py")}
    assert set(lengths) == {"__init__.py", "task.py", "family.py", "metric.py"} and max(lengths.values()) < 120
    names = ("spam_filter", "log-encoder", "log-distance", "false-alarms")
    sources = [path.read_text("utf-8") for path in PACKAGE.rglob("*.py")]
    assert not [name for name in names if any(name in source for source in sources)]
