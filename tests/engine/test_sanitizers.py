"""The engine built with sanitizers: its own test programs, and mutated engine files that Python opens and uses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from regard.engine.layout import PRECISIONS
from tests.engine.mutations import CONFIGS, FULL, MUTATIONS, SAMPLE, mutate
from tests.scale import HANG_GUARD, scaled

ROOT = Path(__file__).parents[2]
SECONDS = 5  # of processor time that a mutated file may take
SANITIZED_SECONDS = 30
# No single request is larger; what a loader may request in total is checked by `run_mutations`.
ASAN_OPTIONS = "detect_leaks=0:max_allocation_size_mb=128"


def build(folder: Path, sanitizers: str, target: str) -> Path:
    """Build the engine and a test program with sanitizers."""
    if not shutil.which("cmake") or not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler and cmake to build the sanitized engine with")
    options = [f"-DREGARD_SANITIZE={sanitizers}", "-DREGARD_CHECK=ON"]
    run(["cmake", "-S", str(ROOT / "engine"), "-B", str(folder), *options])
    run(["cmake", "--build", str(folder), "--parallel", "2", "--target", target])
    return folder


def run(command: list[str], **environment: str) -> str:
    process = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=HANG_GUARD
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-5000:]
    return process.stdout


def run_mutations(indices: Iterable[int], *options: str, **environment: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.engine.run_mutations", *options, *map(str, indices)]
    summary: dict[str, object] = json.loads(run(command, **environment))
    return summary


def run_sanitized_mutations(folder: Path, indices: Iterable[int]) -> dict[str, object]:
    """Mutations in a Python whose allocations, and the engine's, are those of the address sanitizer."""
    library = folder / "regard_engine.so"
    loaded = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout
    runtimes = re.findall(r"=> (\S*lib(?:clang_rt\.)?(?:asan|ubsan)\S*)", loaded)
    if not any("asan" in runtime for runtime in runtimes):
        pytest.skip("the address sanitizer of this compiler is no shared library that Python could load")
    options = ["--library", str(library), "--all-sets", "--seconds", str(SANITIZED_SECONDS)]
    return run_mutations(
        indices, *options, LD_PRELOAD=" ".join(runtimes), PYTHONMALLOC="malloc", ASAN_OPTIONS=ASAN_OPTIONS
    )


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build with address and undefined-behaviour sanitizers."""
    return build(tmp_path_factory.mktemp("sanitized"), "address,undefined", "check_engine")


def test_no_access_is_out_of_bounds(sanitized: Path) -> None:
    assert run([str(sanitized / "check_engine"), str(scaled(24, 6))]).startswith("passed on")


def test_a_sample_of_mutated_files_is_refused_or_used_without_a_fault(sanitized: Path) -> None:
    summary = run_sanitized_mutations(sanitized, SAMPLE)
    assert summary["files"] == len(SAMPLE) == 50
    assert 5 < summary["accepted"] < 45  # type: ignore[operator]


@pytest.mark.slow
def test_a_thousand_mutated_files_are_refused_or_used_without_a_fault(sanitized: Path) -> None:
    summary = run_sanitized_mutations(sanitized, range(FULL))
    assert summary["files"] == 1000 and 100 < summary["accepted"] < 900  # type: ignore[operator]


@pytest.mark.slow
def test_a_thousand_mutated_files_are_answered_in_time() -> None:
    """By the engine of the package, whose instruction sets are those of this processor."""
    assert run_mutations(range(FULL), "--all-sets", "--seconds", str(SECONDS))["files"] == 1000


@pytest.mark.slow
def test_no_two_threads_race(tmp_path: Path) -> None:
    folder = build(tmp_path, "thread", "check_threads")
    assert run([str(folder / "check_threads"), "6"]).startswith("passed on")


def test_the_sample_has_every_kind_of_mutation_every_family_and_precision() -> None:
    descriptions = [mutate(index)[0] for index in SAMPLE]
    assert all(any(f": {kind} of" in description for description in descriptions) for kind in MUTATIONS)
    assert {(config.family, precision) for config, precision in CONFIGS} == {
        (family, precision) for family in ("transformer", "bert", "gpt") for precision in PRECISIONS
    }
    for config, precision in CONFIGS:
        assert any(f"of {config.family} in {precision}" in description for description in descriptions)
    assert mutate(43)[1] == mutate(43)[1]  # the same in every run
