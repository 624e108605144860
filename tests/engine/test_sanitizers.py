"""The engine's own test program, built with address and undefined-behaviour sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.scale import HANG_GUARD, scaled

ENGINE = Path(__file__).parents[2] / "engine"


def test_no_access_is_out_of_bounds(tmp_path: Path) -> None:
    if not shutil.which("cmake") or not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler and cmake to build the sanitized engine with")
    options = ["-DREGARD_SANITIZE=ON", "-DREGARD_CHECK=ON"]
    models_per_kind = scaled(24, 6)
    for command in (
        ["cmake", "-S", str(ENGINE), "-B", str(tmp_path), *options],
        ["cmake", "--build", str(tmp_path), "--parallel", "2"],
        [str(tmp_path / "check_engine"), str(models_per_kind)],
    ):
        process = subprocess.run(command, capture_output=True, text=True, timeout=HANG_GUARD)
        assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    assert process.stdout.startswith("passed on")
