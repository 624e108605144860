"""Example scripts run and print what they describe; the records of the notebooks can be drawn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from regard.view.figure import figure
from regard.view.record.record import Record
from tests.scale import HANG_GUARD

ROOT = Path(__file__).parents[2]


def run_example(name: str) -> list[str]:
    """Run an example script and return the lines that it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "examples" / name)]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=HANG_GUARD)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def test_the_first_hop_over_a_set_is_the_softmax_of_the_dot_products() -> None:
    lines = run_example("attention_over_a_set.py")
    softmax, first_hop, second_hop, _ = [line.partition(":")[2].split() for line in lines]
    assert softmax == first_hop
    assert len(second_hop) == 6
    assert second_hop != first_hop
    assert abs(sum(map(float, second_hop)) - 1) < 0.005


def test_a_custom_model_learns_to_reverse_and_one_of_its_heads_reads_backwards() -> None:
    correct, reading = run_example("custom_model.py")
    matched = re.fullmatch(r"reversed correctly: (\d+) of 200", correct)
    assert matched
    assert int(matched[1]) >= 190
    matched = re.fullmatch(r"blocks\.\d\.self:\d reads the source backwards: (\d+)% of the tokens", reading)
    assert matched
    assert int(matched[1]) >= 50


@pytest.mark.parametrize(
    ("record_name", "views"),
    [
        ("translation", ["matrix", "lines", "decoding", "beam-tree"]),
        ("encoder", ["lines", "heads", "math", "positions", "flow"]),
    ],
)
def test_the_records_of_the_notebooks_have_what_their_views_show(record_name: str, views: list[str]) -> None:
    record = Record.read(ROOT / "examples" / "notebooks" / "records" / f"{record_name}.json")
    for view in views:
        assert figure(record, view).svg.startswith("<svg")
