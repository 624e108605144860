"""A package outside the tree, installed by pip, adds a task: the command line trains, evaluates and shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from tests.scale import HANG_GUARD

SOURCE = Path(__file__).parent / "spam_task"
PACKAGE = Path(regard.__file__).parent


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
def mails(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mails") / "mails.tsv"
    rows = [f"you won the lottery number {n}\tspam\nsee you at lunch at {n}\tmail\n" for n in range(40)]
    path.write_text("".join(rows), "utf-8")
    return path


def test_a_plugin_adds_a_task(site: Path, mails: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    listing = run(["-m", "regard", "train"], site)
    assert "train a spam filter" in listing.stdout and "spam " not in run(["-m", "regard", "train"]).stdout
    help_text = run(["-m", "regard", "train", "spam", "--help-all"], site).stdout
    assert "--spam.word TEXT" in help_text and "--label TEXT" in help_text

    plan = ["--steps", "30", "--preset", "tiny", "--precision", "float32", "--spam.word", "won"]
    trained = run(["-m", "regard", "train", "spam", str(mails), "--valid", str(mails), *plan, "--out", out], site)
    assert trained.returncode == 0, trained.stderr
    task = json.loads((tmp_path / "run/task.json").read_text())
    assert (task["task"], task["word"], task["plugin"]) == ("spam", "won", "spam-task")

    evaluated = run(["-m", "regard", "evaluate", out, str(mails)], site)
    assert evaluated.stdout.startswith("accuracy ") and evaluated.returncode == 0, evaluated.stderr
    described = run(["-m", "regard", "info", out], site)
    assert "labels: mail, spam" in described.stdout
    page = tmp_path / "page.html"
    shown = run(["-m", "regard", "see", out, "you won a car", "--out", str(page)], site)
    assert shown.returncode == 0 and page.stat().st_size > 10_000, shown.stderr
    heads = run(["-m", "regard", "heads", out, str(mails), "--sample", "3"], site)
    assert heads.returncode in (0, 2) and "Traceback" not in heads.stderr

    alone = run(["-m", "regard", "evaluate", out, str(mails)])
    assert alone.returncode == 2
    assert "a model for the task 'spam', which the plugin spam-task adds: install it" in alone.stderr


def test_nothing_in_the_package_refers_to_the_plugin() -> None:
    assert not [path for path in PACKAGE.rglob("*.py") if "spam_task" in path.read_text("utf-8")]
