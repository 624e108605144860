"""Test Regard with the lowest versions of its dependencies, or with another Python, in an environment of its own.

    python tools/lowest.py                                   # lowest versions, this Python
    python tools/lowest.py --python python3.13 --tested      # the versions of constraints.txt, Python 3.13
    python tools/lowest.py --dry-run                         # only print the constraints

The lowest versions are the bounds of pyproject.toml; torch alone is that of constraints.txt, since older ones are not
tested. The quick part of the tests then runs there: settings, text, data, checkpoints, pipelines, command line, server.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("convert", "numbers", "onnx", "tensorboard", "figures", "serve")  # what is installed beside the dependencies
TEST_TOOLS = ("pytest", "hypothesis", "pytest-xdist", "jsonschema")
QUICK_TESTS = ("config", "text", "data", "checkpoint", "pipeline", "cli", "server/test_server.py")
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)>=([0-9.]+)")


def lower_bounds(project: dict[str, object], extras: Sequence[str]) -> dict[str, str]:
    """Lowest version of each dependency, and of those of the extras.

    >>> lower_bounds({"dependencies": ["numpy>=1.26"], "optional-dependencies": {"docs": ["mkdocs>=9"]}}, ["docs"])
    {'numpy': '1.26', 'mkdocs': '9'}
    """
    requirements = list(project["dependencies"])  # type: ignore[call-overload]
    for extra in extras:
        requirements += project["optional-dependencies"][extra]  # type: ignore[index]
    matches = [_REQUIREMENT.fullmatch(requirement) for requirement in requirements]
    return {match[1]: match[2] for match in matches if match}


def constrained_versions(lines: Sequence[str]) -> dict[str, str]:
    """Versions of a constraints file.

    >>> constrained_versions(["# a comment", "numpy==2.4.6"])
    {'numpy': '2.4.6'}
    """
    versions = {}
    for line in lines:
        name, _, version = line.strip().partition("==")
        if version:
            versions[name] = version
    return versions


def choose_constraints(is_tested: bool) -> list[str]:
    """Lines of a constraints file: the lowest versions, or those that the tests run with."""
    tested = constrained_versions((ROOT / "constraints.txt").read_text("utf-8").splitlines())
    if is_tested:
        return [f"{name}=={version}" for name, version in tested.items()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lowest = {**lower_bounds(project, [*EXTRAS, "dev"]), "torch": tested["torch"]}
    return [f"{name}=={version}" for name, version in lowest.items()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Install what is to be tested, and run the tests there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment")
    parser.add_argument("--venv", type=Path, help="folder of the environment; default: a temporary one")
    parser.add_argument("--tested", action="store_true", help="the versions of constraints.txt, not the lowest")
    parser.add_argument("--dry-run", action="store_true", help="only print the constraints")
    parser.add_argument("tests", nargs="*", help="tests to run; default: the quick part")
    options = parser.parse_args(arguments)
    constraints = choose_constraints(options.tested)
    if options.dry_run:
        print("\n".join(constraints))
        return
    with tempfile.TemporaryDirectory() as temporary:
        venv = options.venv or Path(temporary, "venv")
        file = Path(temporary, "constraints.txt")
        file.write_text("\n".join(constraints) + "\n", "utf-8")
        if not (venv / "bin/python").exists():
            subprocess.run([options.python, "-m", "venv", str(venv)], check=True)
        install = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--constraint", str(file)]
        subprocess.run([*install, f"{ROOT}[{','.join(EXTRAS)}]", *TEST_TOOLS], check=True)
        tests = options.tests or [f"tests/{name}" for name in QUICK_TESTS]
        # the installed package, not the tree's: it has the engine that was built for this Python
        command = [str(venv / "bin/python"), "-m", "pytest", "-q", "-o", "pythonpath=.", *tests]
        sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
