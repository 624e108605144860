"""Hostile folders end in one message: no fault, no traceback, no code run, bounded time and memory."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.engine.library import unavailable_reason
from tests.scale import HANG_GUARD, scaled

COUNT = scaled(300, 50)
USAGE_ERROR = 2
UNPICKLERS = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def _is_fault(row: dict[str, Any]) -> bool:
    """Whether a folder did anything but answer, or end in one message of Regard's."""
    lines = row["output"].strip().splitlines()
    has_message = bool(lines) and ("regard: " in row["output"] or "Error" not in row["output"])
    is_answered = row["code"] == 0
    is_refused = row["code"] == USAGE_ERROR and has_message
    return (
        row["executed"]
        or "unexpected" in row["output"]
        or "Traceback" in row["output"]
        or not (is_answered or is_refused)
    )


def test_nothing_is_unpickled_but_tensors() -> None:
    package = Path(regard.__file__).parent
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not UNPICKLERS & {module.partition(".")[0], *(name.partition(".")[0] for name in names)}, file
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "np.load"):
                options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                is_torch = ast.unparse(node.func) == "torch.load"
                assert options["weights_only" if is_torch else "allow_pickle"] == str(is_torch), file
                assert not is_torch or file.name == "pickle_weights.py", file


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is measured on Linux alone")
@pytest.mark.skipif(bool(unavailable_reason()), reason="the engine is not built")
def test_hostile_folders_are_answered_or_refused_within_their_limits(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(regard.__file__).parents[1]), str(root)]),
        "OMP_NUM_THREADS": "1",
        "RUST_BACKTRACE": "0",
    }
    process = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.hostile_runner", str(COUNT), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=2 * HANG_GUARD,
        env=environment,
        cwd=root,
    )
    rows = [json.loads(line) for line in process.stdout.splitlines()]
    assert process.returncode == 0, process.stderr
    hostile = [row for row in rows if "valid" not in row]
    assert len(hostile) == COUNT
    assert all(row["code"] == 0 for row in rows if "valid" in row), rows  # the folders that they were made of
    assert [row for row in hostile if _is_fault(row)] == []
    assert sum(row["code"] == USAGE_ERROR for row in hostile) > COUNT // 2
